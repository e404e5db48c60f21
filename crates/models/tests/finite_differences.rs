//! The whole model in f64 against central differences: log-prob and entropy together, every parameter at once.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;

use models::{Model, ModelConfig, ModelOptions};
use support::*;
use tensor::ops::TokenStats;
use tensor::{Backend, DType, Philox, ReferenceBackend, Stream};

const QWEN3: &str = r#"{"architectures":["Qwen3ForCausalLM"],"vocab_size":13,"hidden_size":8,"intermediate_size":6,"num_hidden_layers":2,
"num_attention_heads":4,"num_key_value_heads":2,"head_dim":4,"rms_norm_eps":1e-3,"rope_theta":100.0,"tie_word_embeddings":true}"#;
const LLAMA: &str = r#"{"model_type":"llama","vocab_size":13,"hidden_size":8,"intermediate_size":6,"num_hidden_layers":2,"num_attention_heads":2,
"num_key_value_heads":1,"rms_norm_eps":1e-3,"tie_word_embeddings":false,
"rope_scaling":{"type":"llama3","factor":4.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":8}}"#;

#[test]
fn gradients_of_whole_models_are_those_of_finite_differences() {
    for (text, recompute, chunk) in [(QWEN3, false, 100), (QWEN3, true, 3), (LLAMA, false, 5)] {
        let be: Arc<dyn Backend> = Arc::new(ReferenceBackend::new());
        let options = ModelOptions { dtype: DType::F64, recompute, logits_chunk: chunk, ..ModelOptions::default() };
        let model = Model::new(be.clone(), single(), ModelConfig::from_json(text).unwrap(), options).unwrap();
        let n = model.params().layout().len;
        let normals = |seed: u64| {
            let rng = Philox::new(seed, 9);
            (0..n as u64).map(|i| rng.normal(i)).collect::<Vec<f64>>()
        };
        let set = |w: &[f64]| be.upload(Stream::COMPUTE, model.params().flat(), bytemuck::cast_slice(w)).unwrap();
        // Far from the initial weights, so that nothing is nearly linear.
        let weights: Vec<f64> = normals(1).iter().map(|x| 0.5 + 0.5 * x).collect();
        set(&weights);
        let tokens = [3, 1, 12, 7, 7, 0, 5, 2, 9];
        let layout = model.pack(&[5, 1, 3]).unwrap();
        let (rows, targets) = scored(&tokens, layout.cu_seqlens());
        let dlogp: Vec<f32> = (0..rows.len()).map(|i| (i as f32 - 2.0) * 0.5).collect();
        let dentropy: Vec<f32> = (0..rows.len()).map(|i| 0.25 - (i as f32) * 0.125).collect();
        let loss = || {
            let mut pass = model.forward(&tokens, &layout, false).unwrap();
            let stats = model.token_stats(&mut pass, &rows, &targets, 0.75).unwrap().to_f64(&*be).unwrap();
            let s = stats.chunks_exact(4).map(|r| TokenStats::<f64>::from_row([r[0], r[1], r[2], r[3]]));
            s.zip(dlogp.iter().zip(&dentropy))
                .map(|(s, (a, b))| f64::from(*a) * s.logp() + f64::from(*b) * s.entropy())
                .sum::<f64>()
        };
        let mut pass = model.forward(&tokens, &layout, true).unwrap();
        model.token_stats(&mut pass, &rows, &targets, 0.75).unwrap();
        let grads = model.new_grads().unwrap();
        model.backward(pass, &dlogp, Some(&dentropy), &grads).unwrap();
        let g = grads.flat().to_f64(&*be).unwrap();
        for (i, spec) in model.params().specs().iter().enumerate() {
            let entry = &model.params().layout().entries[i];
            for direction in 0..4 {
                let mut v = normals(100 + direction);
                v.iter_mut().enumerate().for_each(|(i, x)| *x *= f64::from(u8::from(entry.range().contains(&i))));
                let at = |e: f64| {
                    set(&weights.iter().zip(&v).map(|(w, v)| w + e * v).collect::<Vec<_>>());
                    loss()
                };
                let numeric = (at(1e-5) - at(-1e-5)) / 2e-5;
                let exact: f64 = g.iter().zip(&v).map(|(a, b)| a * b).sum();
                let scale = g[entry.range()].iter().map(|x| x * x).sum::<f64>().sqrt();
                let error = (numeric - exact).abs() / (numeric.abs() + 0.1 * scale);
                assert!(error < 1e-6, "{} direction {direction}: {numeric} against {exact}: {error:e}", spec.name);
            }
        }
        set(&weights);
    }
}

#[test]
fn gaps_of_the_flat_buffers_stay_zero() {
    let model = Fixture::new("qwen3").model();
    let grads = model.new_grads().unwrap();
    let tokens: Vec<i32> = (0..40).collect();
    let layout = model.pack(&[40]).unwrap();
    let (rows, targets) = scored(&tokens, layout.cu_seqlens());
    let mut pass = model.forward(&tokens, &layout, true).unwrap();
    let lp = model.log_probs(&mut pass, &rows, &targets, 1.0).unwrap();
    model.backward(pass, &lp.logp, None, &grads).unwrap();
    let mut inside = vec![false; grads.layout().len];
    grads.layout().entries.iter().for_each(|e| inside[e.range()].fill(true));
    for flat in [grads.flat(), model.params().flat()] {
        let flat: Vec<f32> = flat.to_vec(&**model.backend()).unwrap();
        assert!(flat.iter().zip(&inside).all(|(x, inside)| *inside || *x == 0.0));
    }
}
