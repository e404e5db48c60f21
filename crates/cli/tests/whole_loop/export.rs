//! What a run leaves behind can be used: the exported checkpoint, loaded afresh, is the model that the engines served.

use std::{
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use serde_json::{Value, json};

use crate::local_run::{LocalRun, binaries, quickstart_manifest};

struct Engine(Child);

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn model(folder: &Path) -> models::Model {
    let config = std::fs::read_to_string(folder.join("config.json")).unwrap();
    let config = models::ModelConfig::from_json(&config).unwrap();
    let backend: Arc<dyn tensor::Backend> = Arc::new(tensor::CpuBackend::new(1));
    let comm = Arc::new(tensor::SingleRank::new("tp"));
    let model = models::Model::new(backend.clone(), comm, config, models::ModelOptions::default()).unwrap();
    checkpoint::hf::load_weights(&checkpoint::hf::Folder::open(folder).unwrap(), &*backend, model.params()).unwrap();
    model
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_exported_checkpoint_loaded_afresh_gives_the_engines_log_probs() {
    let mut run = LocalRun::start(&quickstart_manifest().replace("totalSteps: 50", "totalSteps: 4"), &[], &[]);
    assert_eq!(run.wait(), 0, "{}", run.report());
    let export = run.run_dir().unwrap().join("export");
    for file in ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
        let source = run.state().join("volumes/thresh-data/sort5/model").join(file);
        assert_eq!(
            std::fs::read(export.join(file)).unwrap(),
            std::fs::read(source).unwrap(),
            "{file} is copied as it is"
        );
    }

    let address = "127.77.254.7:30000";
    let _engine = Engine(
        Command::new(binaries().join("thresh-rollout"))
            .args(["engine", "--listen", address, "--model-path"])
            .arg(&export)
            .env("THRESH_TOKEN", "")
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    );
    let http = reqwest::Client::new();
    let url = format!("http://{address}/generate");
    // "s:59210=01259" in the quickstart's vocabulary.
    let tokens = [35i32, 16, 7, 11, 4, 3, 2, 15, 2, 3, 4, 7, 11];
    let body = json!({"input_ids": tokens, "return_logprob": true, "logprob_start_len": 0,
        "sampling_params": {"max_new_tokens": 0, "temperature": 0.7}});
    let mut scored: Option<Value> = None;
    for _ in 0..200 {
        match http.post(&url).json(&body).send().await {
            Ok(reply) if reply.status() == 200 => {
                scored = Some(reply.json().await.unwrap());
                break;
            }
            _ => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
    let scored = scored.expect("the engine serves the exported checkpoint");
    let rows = scored["meta_info"]["input_token_logprobs"].as_array().unwrap();

    let model = model(&export);
    let layout = model.pack(&[tokens.len()]).unwrap();
    let mut pass = model.forward(&tokens, &layout, false).unwrap();
    let positions: Vec<i32> = (0..tokens.len() as i32 - 1).collect();
    let own = model.log_probs(&mut pass, &positions, &tokens[1..], 0.7).unwrap().logp;
    assert_eq!(rows.len(), tokens.len());
    for (row, own) in rows[1..].iter().zip(&own) {
        assert_eq!((row[0].as_f64().unwrap() as f32).to_bits(), own.to_bits());
    }
}
