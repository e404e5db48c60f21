//! Against transformers and PyTorch in f32 (fixtures in `data/`, see its README). The bounds are those the project
//! promises; what is measured is in the comment beside them.
#![allow(clippy::unwrap_used)]

mod support;

use models::{GradStore, Model};
use support::*;
use tensor::ops::{AdamW, SumSq};
use tensor::{DType, Stream, Tag, Tensor};

const FIXTURES: [&str; 3] = ["qwen3", "llama", "llama3"];

/// Logits of every token of a pack.
fn logits(model: &Model, tokens: &[i32], lengths: &[usize]) -> Vec<f64> {
    let layout = model.pack(lengths).unwrap();
    let pass = model.forward(tokens, &layout, false).unwrap();
    let be = &**model.backend();
    let h = pass.hidden().to_f64(be).unwrap();
    let head = model.stage().head().unwrap();
    let w = model.params().get(head.weight).to_f64(be).unwrap();
    let (hidden, vocab) = (model.config().hidden_size, model.config().vocab_size);
    let mut out = vec![];
    for x in h.chunks_exact(hidden) {
        for v in 0..vocab {
            out.push(x.iter().zip(&w[v * hidden..]).map(|(a, b)| a * b).sum());
        }
    }
    out
}

#[test]
fn logits_are_those_of_transformers() {
    for name in FIXTURES {
        let f = Fixture::new(name);
        let (model, io) = (f.model(), f.tensors("io.safetensors"));
        let packed = relative(&logits(&model, &ints(&io["packed.input_ids"]), &[83, 45]), &io["packed.logits"]);
        let batch = relative(&logits(&model, &ints(&io["batch.input_ids"]), &[24, 24]), &io["batch.logits"]);
        eprintln!("{name}: logits packed {packed:.2e} batch {batch:.2e}");
        assert!(packed <= 1e-5 && batch <= 1e-5, "{name}: {packed:e} {batch:e}");
    }
}

#[test]
fn log_probs_and_entropies_are_those_of_transformers_at_any_temperature() {
    for name in FIXTURES {
        let f = Fixture::new(name);
        let (model, io) = (f.model(), f.tensors("io.safetensors"));
        let tokens = ints(&io["packed.input_ids"]);
        let layout = model.pack(&[83, 45]).unwrap();
        let (rows, targets) = scored(&tokens, layout.cu_seqlens());
        let pick = |x: &[f64]| rows.iter().map(|&r| x[r as usize]).collect::<Vec<_>>();
        let mut pass = model.forward(&tokens, &layout, false).unwrap();
        for (temperature, key) in [(1.0, "packed.logprobs"), (0.7, "packed.logprobs_t0.7")] {
            let got = model.log_probs(&mut pass, &rows, &targets, temperature).unwrap();
            let logp: Vec<f64> = got.logp.iter().map(|&x| f64::from(x)).collect();
            let e = relative(&logp, &pick(&io[key]));
            eprintln!("{name}: {key} {e:.2e}");
            assert!(e <= 1e-5, "{name} {key}: {e:e}");
            if temperature == 1.0 {
                let entropy: Vec<f64> = got.entropy.iter().map(|&x| f64::from(x)).collect();
                let e = relative(&entropy, &pick(&io["packed.entropy"]));
                eprintln!("{name}: entropy {e:.2e}");
                assert!(e <= 1e-5, "{name} entropy: {e:e}");
            }
        }
    }
}

/// Gradients of `sum(coefficient * logp)` over the pack of the fixture.
fn gradients(model: &Model, tokens: &[i32], coefficient: impl Fn(usize, f64) -> f64) -> GradStore {
    let layout = model.pack(&[83, 45]).unwrap();
    let (rows, targets) = scored(tokens, layout.cu_seqlens());
    let mut pass = model.forward(tokens, &layout, true).unwrap();
    let lp = model.log_probs(&mut pass, &rows, &targets, 1.0).unwrap();
    let dlogp: Vec<f32> =
        rows.iter().zip(&lp.logp).map(|(&r, &lp)| coefficient(r as usize, f64::from(lp)) as f32).collect();
    let grads = model.new_grads().unwrap();
    model.backward(pass, &dlogp, None, &grads).unwrap();
    model.finish_grads(&grads).unwrap();
    grads
}

fn check_gradients(name: &str, what: &str, got: &Named, want: &Named) {
    let mut worst = (0.0, "");
    for (tensor, want) in want {
        let e = relative(&got[tensor], want);
        if e > worst.0 {
            worst = (e, tensor);
        }
        assert!(e <= 1e-4, "{name} {what} {tensor}: {e:e}");
    }
    assert_eq!(got.len(), want.len(), "{name}: every gradient has a name, and no other");
    eprintln!("{name}: {what} gradients, worst {:.2e} ({})", worst.0, worst.1);
}

#[test]
fn supervised_gradients_are_those_of_pytorch() {
    for name in FIXTURES {
        let f = Fixture::new(name);
        let (model, io) = (f.model(), f.tensors("io.safetensors"));
        let mask = &io["packed.loss_mask"];
        let total: f64 = mask.iter().sum();
        let grads = gradients(&model, &ints(&io["packed.input_ids"]), |r, _| -mask[r] / total);
        check_gradients(name, "sft", &grads_by_name(&model, &grads), &f.tensors("grad_sft.safetensors"));
    }
}

#[test]
fn grpo_gradients_are_those_of_pytorch() {
    for name in FIXTURES {
        let f = Fixture::new(name);
        let (model, io) = (f.model(), f.tensors("io.safetensors"));
        let (mask, adv) = (&io["packed.loss_mask"], &io["packed.advantages"]);
        let (old, reference) = (&io["packed.old_logprobs"], &io["packed.ref_logprobs"]);
        let total: f64 = mask.iter().sum();
        // Clip 0.2 / 0.28, k3 KL times 0.05, mean over tokens; d loss / d logp by hand.
        let coefficient = |r: usize, lp: f64| {
            let ratio = (lp - old[r]).exp();
            let clipped = (adv[r] < 0.0 && ratio < 0.8) || (adv[r] > 0.0 && ratio > 1.28);
            let policy = if clipped { 0.0 } else { -adv[r] * ratio };
            let kl = 1.0 - (reference[r] - lp).exp();
            mask[r] * (policy + 0.05 * kl) / total
        };
        let grads = gradients(&model, &ints(&io["packed.input_ids"]), coefficient);
        check_gradients(name, "grpo", &grads_by_name(&model, &grads), &f.tensors("grad_grpo.safetensors"));
    }
}

#[test]
fn an_adamw_step_is_that_of_pytorch() {
    let f = Fixture::new("qwen3");
    let model = f.model();
    let be = &**model.backend();
    // The fixture's own gradients, clipped to norm 1 in PyTorch's way.
    let carrier = f.model_on(cpu(1), single(), models::ModelOptions::default());
    load(&carrier, &f.tensors("grad_grpo.safetensors"));
    let grad = carrier.params().flat();
    let norm = Tensor::empty(be, DType::F64, &[1], Tag::Work).unwrap();
    be.sum_sq(Stream::COMPUTE, &SumSq { x: grad, out: &norm }).unwrap();
    let norm = norm.to_f64(be).unwrap()[0].sqrt();
    let want = f.meta()["adamw"]["total_norm"].as_f64().unwrap();
    assert!((norm - want).abs() / want < 1e-6, "{norm} {want}");

    let n = model.params().layout().len;
    let (m, v) = (
        Tensor::zeros(be, DType::F32, &[n], Tag::Optim).unwrap(),
        Tensor::zeros(be, DType::F32, &[n], Tag::Optim).unwrap(),
    );
    let args = AdamW {
        master: model.params().flat(),
        m: &m,
        v: &v,
        grad,
        param: None,
        lr: 1e-3,
        beta1: 0.9,
        beta2: 0.95,
        eps: 1e-8,
        weight_decay: 0.1,
        step: 1,
        grad_scale: (1.0 / (norm + 1e-6)).min(1.0),
    };
    be.adamw(Stream::COMPUTE, &args).unwrap();
    let views: Vec<Tensor> =
        (0..model.params().specs().len()).map(|i| model.params().get(nn::ParamId(i)).clone()).collect();
    let mut got = Named::new();
    by_hf_name(be, model.params(), &views, &mut got);
    let mut worst = 0.0f64;
    for (name, want) in f.tensors("after_adamw.safetensors") {
        let e = relative(&got[&name], &want);
        worst = worst.max(e);
        assert!(e <= 1e-6, "{name}: {e:e}");
    }
    eprintln!("adamw: worst {worst:.2e}");
}

#[test]
fn greedy_decode_through_pages_gives_the_tokens_of_transformers() {
    for name in FIXTURES {
        let f = Fixture::new(name);
        let (model, io) = (f.model(), f.tensors("io.safetensors"));
        let cache = model.new_kv_cache(4).unwrap();
        let (mut input, want) = (ints(&io["decode.prompt"]), ints(&io["decode.tokens"]));
        let (mut cached, mut tokens, mut logps) = (0, vec![], vec![]);
        for _ in 0..want.len() {
            let batch = model.batch(&[nn::KvSeq { cached, new: input.len(), pages: &[2] }]).unwrap();
            let logits = model.step(&input, &batch, &cache, &[input.len() as i32 - 1]).unwrap();
            let greedy =
                tensor::ops::SampleParams { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0, position: 0 };
            let next = model.sample(&logits, &[greedy]).unwrap();
            logps.push(f64::from(model.logits_stats(&logits, &next, &[1.0]).unwrap()[0].logp()));
            tokens.push(next[0]);
            cached += input.len();
            input = next;
        }
        assert_eq!(tokens, want, "{name}");
        let e = relative(&logps, &io["decode.logprobs"]);
        assert!(e <= 1e-5, "{name}: {e:e}");
    }
}
