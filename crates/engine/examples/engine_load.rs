//! Load on a native engine: rounds of requests at once, over HTTP, as rollout workers send them.
//!
//! `cargo run --release -p engine --example engine_load -- MODEL_FOLDER [REQUESTS] [PROMPT_TOKENS] [NEW_TOKENS] [ROUNDS]`
//!
//! The folder needs a config; without weights the example writes random ones to a folder of its own. Prints one JSON object a round.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

use std::{path::PathBuf, sync::Arc, time::Instant};

use engine::{Engine, EngineOptions};
use models::{Model, ModelConfig, ModelOptions};
use serde_json::{Value, json};
use tensor::{CpuBackend, SingleRank};

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let folder = PathBuf::from(arguments.next().expect("a model folder"));
    let mut number = |default: usize| arguments.next().map_or(default, |text| text.parse().expect("a number"));
    let (requests, prompt, new, rounds) = (number(256), number(8), number(6), number(5));
    let text = std::fs::read_to_string(folder.join("config.json")).expect("config.json");
    let config = ModelConfig::from_json(&text).expect("a config");
    let weights = tempfile::tempdir().expect("a folder");
    std::fs::write(weights.path().join("config.json"), &text).expect("config.json");
    if checkpoint::hf::has_weights(&folder) {
        std::fs::copy(folder.join("model.safetensors"), weights.path().join("model.safetensors")).expect("weights");
    } else {
        write_random(&config, &weights.path().join("model.safetensors"));
    }
    let mut options = EngineOptions::new("127.0.0.1:0".parse().expect("an address"), weights.path().to_owned());
    options.max_running_requests = requests.max(256);
    let engine = Engine::start(options).await.expect("an engine");
    let url = format!("http://{}/generate", engine.address());
    let server = tokio::spawn(engine.run_until(std::future::pending()));
    let client = reqwest::Client::new();
    for round in 0..rounds {
        let begun = Instant::now();
        let answers: Vec<_> = (0..requests)
            .map(|index| {
                let ids: Vec<usize> = (0..prompt).map(|at| (index * 7 + at * 3 + round) % config.vocab_size).collect();
                let params = json!({"max_new_tokens": new, "ignore_eos": true, "sampling_seed": index});
                let body = json!({"input_ids": ids, "sampling_params": params, "return_logprob": true});
                let request = client.post(&url).json(&body);
                tokio::spawn(
                    async move { request.send().await.expect("an answer").json::<Value>().await.expect("JSON") },
                )
            })
            .collect();
        let mut tokens = 0;
        for answer in answers {
            tokens += answer.await.expect("no panic")["output_ids"].as_array().expect("ids").len();
        }
        let seconds = begun.elapsed().as_secs_f64();
        let figures = json!({"bench": "engine_load", "round": round, "requests": requests, "prompt_tokens": prompt, "new_tokens": new,
            "seconds": seconds, "requests_per_second": requests as f64 / seconds, "value": tokens as f64 / seconds, "unit": "tokens/s"});
        println!("{figures}");
    }
    server.abort();
}

fn write_random(config: &ModelConfig, file: &std::path::Path) {
    let alone = Arc::new(SingleRank::new("tp"));
    let model =
        Model::new(Arc::new(CpuBackend::new(1)), alone, config.clone(), ModelOptions::default()).expect("a model");
    model.init_random(1).expect("weights");
    let mut tensors = Vec::new();
    for (spec, entry) in model.params().specs().iter().zip(&model.params().layout().entries) {
        let id = model.params().find(&spec.name).expect("its own parameter");
        let ours = model.params().get(id).to_vec::<f32>(&**model.backend()).expect("host memory");
        let ours: Vec<u8> = ours.iter().flat_map(|value| value.to_le_bytes()).collect();
        for piece in &spec.hf {
            let mut theirs = vec![0; piece.shape.iter().product::<usize>() * 4];
            models::gather_piece(piece, &mut theirs, &entry.rect, &ours, 4);
            tensors.push((piece.name.clone(), piece.shape.clone(), theirs));
        }
    }
    let views = tensors.iter().map(|(name, shape, bytes)| {
        let view =
            safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.clone(), bytes).expect("a tensor");
        (name.as_str(), view)
    });
    safetensors::serialize_to_file(views, None, file).expect("a file");
}
