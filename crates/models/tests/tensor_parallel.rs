//! Tensor parallelism over ranks that are threads: the log-probs of one rank, to the bit where the ranks hold equal runs of
//! the blocks of every sum and to rounding where they do not; its gradients, to rounding; and trainer against engine.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;
use std::time::Duration;

use models::{KvSeq, Model, ModelConfig, ModelOptions};
use support::*;
use tensor::Comm;

/// Run `f` on every rank of a group of `size` threads; results in rank order.
fn on_ranks<T: Send>(size: usize, f: impl Fn(Arc<dyn Comm>) -> T + Sync) -> Vec<T> {
    let world = comm::thread::world(size, Duration::from_secs(60)).unwrap();
    std::thread::scope(|s| {
        let handles: Vec<_> = world.into_iter().map(|c| s.spawn(|| f(Arc::new(c)))).collect();
        handles.into_iter().map(|h| h.join().unwrap()).collect()
    })
}

struct Outcome {
    logps: Vec<f64>,
    entropies: Vec<f64>,
    grads: Named,
}

fn step(model: &Model, lengths: &[usize]) -> Outcome {
    let total: usize = lengths.iter().sum();
    let vocab = model.config().vocab_size;
    let tokens: Vec<i32> = (0..total).map(|i| ((i * 7919 + i * i * 31) % vocab) as i32).collect();
    let layout = model.pack(lengths).unwrap();
    let (rows, targets) = scored(&tokens, &layout.cu_seqlens()[..=lengths.len()]);
    let mut pass = model.forward(&tokens, &layout, true).unwrap();
    let lp = model.log_probs(&mut pass, &rows, &targets, 0.9).unwrap();
    let dlogp: Vec<f32> = targets.iter().map(|t| (*t as f32 * 0.37).sin()).collect();
    let dentropy: Vec<f32> = targets.iter().map(|t| (*t as f32 * 0.73).cos() * 0.1).collect();
    let grads = model.new_grads().unwrap();
    model.backward(pass, &dlogp, Some(&dentropy), &grads).unwrap();
    model.finish_grads(&grads).unwrap();
    let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect();
    Outcome { logps: wide(&lp.logp), entropies: wide(&lp.entropy), grads: grads_by_name(model, &grads) }
}

/// Gradients of the ranks laid together: each holds its part of a sharded tensor, and zeros elsewhere; replicated
/// tensors are the same everywhere.
fn together(ranks: &[Outcome], replicated: impl Fn(&str) -> bool) -> Named {
    let mut out = ranks[0].grads.clone();
    for r in &ranks[1..] {
        for (k, v) in &r.grads {
            let t = out.get_mut(k).unwrap();
            if replicated(k) {
                assert_eq!(t, v, "{k} differs between ranks");
            } else {
                t.iter_mut().zip(v).for_each(|(a, b)| *a += b);
            }
        }
    }
    out
}

/// How the log-probs at `tp` compare with those of one rank.
#[derive(Clone, Copy, PartialEq)]
enum Same {
    Bits,
    Rounding,
}

fn check(
    name: &str,
    tp: usize,
    same: Same,
    lengths: &[usize],
    build: impl Fn(Arc<dyn Comm>, ModelOptions) -> Model + Sync,
) {
    let one = step(&build(single(), ModelOptions::default()), lengths);
    for sequence_parallel in [true, false] {
        let options = ModelOptions { sequence_parallel, ..ModelOptions::default() };
        let run = || on_ranks(tp, |c| step(&build(c, options.clone()), lengths));
        let ranks = run();
        for r in &ranks {
            let (a, b) = (relative(&r.logps, &one.logps), relative(&r.entropies, &one.entropies));
            assert!(a <= 1e-5 && b <= 1e-5, "{name} tp {tp} sp {sequence_parallel}: {a:e} {b:e}");
            let equal = r.logps == one.logps && r.entropies == one.entropies;
            assert_eq!(equal, same == Same::Bits, "{name} tp {tp} sp {sequence_parallel}: {a:e} {b:e}");
        }
        let grads = together(&ranks, |k| k.contains("norm"));
        for (k, v) in &one.grads {
            let e = relative(&grads[k], v);
            assert!(e <= 1e-5, "{name} tp {tp} sp {sequence_parallel} {k}: {e:e}");
        }
        for (a, b) in ranks.iter().zip(run()) {
            assert!(a.logps == b.logps && a.grads == b.grads, "{name} tp {tp} sp {sequence_parallel}: two runs differ");
        }
    }
}

#[test]
fn tensor_parallel_ranks_compute_the_model_of_one_rank() {
    check("qwen3", 2, Same::Bits, &[83, 45, 1], |c, o| Fixture::new("qwen3").model_on(cpu(1), c, o));
    check("llama3", 2, Same::Bits, &[30, 0, 17], |c, o| Fixture::new("llama3").model_on(cpu(1), c, o));
}

const ODD: &str = r#"{"architectures":["Qwen3ForCausalLM"],"vocab_size":47,"hidden_size":24,"intermediate_size":12,"num_hidden_layers":2,
"num_attention_heads":12,"num_key_value_heads":4,"head_dim":6,"rms_norm_eps":1e-6,"rope_theta":10000.0,"tie_word_embeddings":true}"#;

#[test]
fn a_vocabulary_that_does_not_divide_and_odd_head_counts_shard_too() {
    for tp in [2, 4] {
        check("odd", tp, Same::Rounding, &[5, 8, 2], |c, o| {
            let m = Model::new(cpu(1), c, ModelConfig::from_json(ODD).unwrap(), o).unwrap();
            m.init_random(3).unwrap();
            m
        });
    }
}

const EVEN: &str = r#"{"architectures":["Qwen3ForCausalLM"],"vocab_size":256,"hidden_size":24,"intermediate_size":320,"num_hidden_layers":2,
"num_attention_heads":16,"num_key_value_heads":8,"head_dim":16,"rms_norm_eps":1e-6,"rope_theta":10000.0,"tie_word_embeddings":false}"#;

#[test]
fn log_probs_have_the_same_bits_at_every_tensor_parallelism_that_holds_equal_runs_of_blocks() {
    for tp in [2, 4, 8] {
        check("even", tp, Same::Bits, &[70, 9, 1], |c, o| {
            let m = Model::new(cpu(1), c, ModelConfig::from_json(EVEN).unwrap(), o).unwrap();
            m.init_random(5).unwrap();
            m
        });
    }
}

#[test]
fn a_tensor_parallel_size_that_does_not_divide_the_heads_is_refused() {
    let errors = on_ranks(3, |c| {
        Model::new(cpu(1), c, ModelConfig::from_json(ODD).unwrap(), ModelOptions::default()).unwrap_err().to_string()
    });
    assert!(errors[0].contains("layers.0.attn.qkv") && errors[0].contains("tp 3"), "{}", errors[0]);
}

#[test]
fn trainer_and_engine_log_probs_are_bitwise_equal_at_equal_tensor_parallelism() {
    let f = || Fixture::new("qwen3");
    on_ranks(2, |c| {
        let model = f().model_on(cpu(1), c, ModelOptions::default());
        let tokens: Vec<i32> = (0..101).map(|i| (i * 37 + 5) % 512).collect();
        let layout = model.pack(&[101]).unwrap();
        let (rows, targets) = scored(&tokens, &layout.cu_seqlens()[..2]);
        let mut pass = model.forward(&tokens, &layout, false).unwrap();
        let want = model.log_probs(&mut pass, &rows, &targets, 0.8).unwrap().logp;
        let cache = model.new_kv_cache(3).unwrap();
        let mut got = vec![];
        let mut cached = 0;
        for new in [40, 1, 1, 30, 28] {
            let batch = model.batch(&[KvSeq { cached, new, pages: &[2, 0] }]).unwrap();
            let rows: Vec<i32> = (0..new as i32).collect();
            let logits = model.step(&tokens[cached..cached + new], &batch, &cache, &rows).unwrap();
            let targets = &tokens[cached + 1..cached + new + 1];
            got.extend(model.logits_stats(&logits, targets, &vec![0.8; new]).unwrap().iter().map(|s| s.logp()));
            cached += new;
        }
        assert!(want.iter().zip(&got).all(|(a, b)| a.to_bits() == b.to_bits()) && want.len() == got.len());
    });
}
