//! Speed of a training step and of decode at the quickstart's shape, one JSON object a line.
//! `cargo run --release -p models --example speed [threads]`
#![allow(clippy::print_stdout)]

use std::sync::Arc;
use std::time::Instant;

use models::{KvSeq, Model, ModelConfig, ModelOptions};
use tensor::ops::{AdamW, SampleParams};
use tensor::{Backend, CpuBackend, DType, SingleRank, Stream, Tag, Tensor};

type Fail = Box<dyn std::error::Error>;

const CONFIG: &str = r#"{"architectures":["Qwen3ForCausalLM"],"vocab_size":47,"hidden_size":64,"intermediate_size":128,"num_hidden_layers":2,
"num_attention_heads":4,"num_key_value_heads":2,"head_dim":16,"rms_norm_eps":1e-6,"rope_theta":10000.0,"tie_word_embeddings":true}"#;

const LARGE: &str = r#"{"architectures":["LlamaForCausalLM"],"vocab_size":49152,"hidden_size":576,"intermediate_size":1536,"num_hidden_layers":30,
"num_attention_heads":9,"num_key_value_heads":3,"rms_norm_eps":1e-5,"rope_theta":100000.0,"tie_word_embeddings":true}"#;

/// The median of some runs, after two that warm up.
fn median(runs: usize, mut f: impl FnMut() -> Result<(), Fail>) -> Result<f64, Fail> {
    let mut times = vec![];
    for i in 0..runs + 2 {
        let start = Instant::now();
        f()?;
        if i >= 2 {
            times.push(start.elapsed().as_secs_f64());
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

fn report(bench: &str, seconds: f64, tokens: usize, flops: f64) {
    println!(
        r#"{{"bench":"{bench}","value":{:.0},"unit":"token/s","ms":{:.3},"gflops":{:.2}}}"#,
        tokens as f64 / seconds,
        seconds * 1e3,
        flops / seconds / 1e9
    );
}

fn main() -> Result<(), Fail> {
    let threads = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(1);
    let be: Arc<dyn Backend> = Arc::new(CpuBackend::new(threads));
    let config = ModelConfig::from_json(CONFIG)?;
    let model = Model::new(be.clone(), Arc::new(SingleRank::new("tp")), config, ModelOptions::default())?;
    model.init_random(1)?;
    let per_token = model.config().forward_flops_per_token(7);

    let (count, length) = (315, 13);
    let tokens: Vec<i32> = (0..count * length).map(|i| (i * 31 % 47) as i32).collect();
    let lengths = vec![length; count];
    let rows: Vec<i32> = (0..tokens.len() as i32).filter(|i| i % length as i32 != length as i32 - 1).collect();
    let targets: Vec<i32> = rows.iter().map(|&r| tokens[r as usize + 1]).collect();
    let grads = model.new_grads()?;
    let n = model.params().layout().len;
    let zeros = || Tensor::zeros(&*be, DType::F32, &[n], Tag::Optim);
    let (m, v) = (zeros()?, zeros()?);
    let step = || -> Result<(), Fail> {
        let layout = model.pack(&lengths)?;
        grads.zero(&*be, Stream::COMPUTE)?;
        let mut pass = model.forward(&tokens, &layout, true)?;
        let lp = model.log_probs(&mut pass, &rows, &targets, 1.0)?;
        model.backward(pass, &lp.logp, None, &grads)?;
        let master = model.params().flat();
        be.adamw(
            Stream::COMPUTE,
            &AdamW {
                master,
                m: &m,
                v: &v,
                grad: grads.flat(),
                param: None,
                lr: 1e-6,
                beta1: 0.9,
                beta2: 0.95,
                eps: 1e-8,
                weight_decay: 0.0,
                step: 1,
                grad_scale: 1e-4,
            },
        )?;
        Ok(())
    };
    report("train_step", median(20, step)?, tokens.len(), 3.0 * per_token * tokens.len() as f64);
    let forward = || -> Result<(), Fail> {
        let layout = model.pack(&lengths)?;
        let mut pass = model.forward(&tokens, &layout, false)?;
        model.log_probs(&mut pass, &rows, &targets, 1.0)?;
        Ok(())
    };
    report("forward", median(20, forward)?, tokens.len(), per_token * tokens.len() as f64);

    decode(&model, "decode", &[1, 8, 128])?;
    // A real small model's shape (SmolLM2-135M), random weights.
    if std::env::args().nth(2).is_some_and(|a| a == "large") {
        let large =
            Model::new(be, Arc::new(SingleRank::new("tp")), ModelConfig::from_json(LARGE)?, ModelOptions::default())?;
        large.params().flat().write::<f32>()?.iter_mut().enumerate().for_each(|(i, w)| *w = (i % 31) as f32 * 1e-3);
        decode(&large, "decode_135m", &[1, 2, 4, 8, 16, 32])?;
    }
    Ok(())
}

fn decode(model: &Model, name: &str, batches: &[usize]) -> Result<(), Fail> {
    for &batch in batches {
        let cache = model.new_kv_cache(batch)?;
        let pages: Vec<[u32; 1]> = (0..batch as u32).map(|i| [i]).collect();
        let cached = 12;
        let input = vec![3; batch];
        let rows: Vec<i32> = (0..batch as i32).collect();
        let draws: Vec<SampleParams> = (0..batch as u64)
            .map(|seed| SampleParams { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed, position: 13 })
            .collect();
        let temperatures = vec![1.0; batch];
        let decode = || -> Result<(), Fail> {
            let seqs: Vec<KvSeq> = pages.iter().map(|p| KvSeq { cached, new: 1, pages: p }).collect();
            let layout = model.batch(&seqs)?;
            let logits = model.step(&input, &layout, &cache, &rows)?;
            let next = model.sample(&logits, &draws)?;
            model.logits_stats(&logits, &next, &temperatures)?;
            Ok(())
        };
        let runs = if model.config().layers > 4 { 5 } else { 200 };
        report(
            &format!("{name}_{batch}"),
            median(runs, decode)?,
            batch,
            model.config().forward_flops_per_token(13) * batch as f64,
        );
    }
    Ok(())
}
