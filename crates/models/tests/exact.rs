//! The promises about bits: a token's log-prob is one number, whoever computes it and beside whatever.
#![allow(clippy::unwrap_used)]

mod support;

use models::{KvCache, KvSeq, Model, ModelOptions};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use support::*;
use tensor::ops::SampleParams;
use tensor::{PAGE, Philox, Stream};

/// A sequence as the engine serves it.
struct Served {
    tokens: Vec<i32>,
    prompt: usize,
    temperature: f32,
    pages: Vec<u32>,
    cached: usize,
    /// of tokens `prompt..`
    logps: Vec<f32>,
}

fn params(s: &Served, seed: u64) -> SampleParams {
    SampleParams { temperature: s.temperature, top_k: 0, top_p: 1.0, min_p: 0.0, seed, position: s.tokens.len() as u64 }
}

/// Serve all sequences to `length` tokens each: prefill in chunks of the given sizes, decode together, and at
/// `evict_at` cached tokens throw a sequence's pages away and prefill it again on others.
fn serve(
    model: &Model,
    cache: &KvCache,
    seqs: &mut [Served],
    lengths: &[usize],
    chunk: usize,
    evict_at: usize,
    free: &mut Vec<u32>,
) {
    let mut evicted = vec![false; seqs.len()];
    while seqs.iter().zip(lengths).any(|(s, &n)| s.tokens.len() < n) {
        let mut plan: Vec<(usize, usize)> = vec![];
        for (i, s) in seqs.iter_mut().enumerate() {
            if s.tokens.len() >= lengths[i] {
                continue;
            }
            if s.cached >= evict_at && !evicted[i] {
                evicted[i] = true;
                // Poison what it leaves, so that reading a stale page shows.
                for p in s.pages.drain(..) {
                    for layer in 0..model.config().layers {
                        let (k, v) = cache.layer(layer);
                        let be = &**model.backend();
                        be.fill(Stream::COMPUTE, &k.narrow(0, p as usize, 1).unwrap(), f64::NAN).unwrap();
                        be.fill(Stream::COMPUTE, &v.narrow(0, p as usize, 1).unwrap(), f64::NAN).unwrap();
                    }
                    free.insert(0, p);
                }
                s.cached = 0;
            }
            let new = (s.tokens.len() - s.cached).min(chunk);
            while s.pages.len() * PAGE < s.cached + new {
                s.pages.push(free.pop().unwrap());
            }
            plan.push((i, new));
        }
        let batch: Vec<KvSeq> =
            plan.iter().map(|&(i, new)| KvSeq { cached: seqs[i].cached, new, pages: &seqs[i].pages }).collect();
        let batch = model.batch(&batch).unwrap();
        let (mut tokens, mut rows, mut who) = (vec![], vec![], vec![]);
        for &(i, new) in &plan {
            let s = &seqs[i];
            tokens.extend(&s.tokens[s.cached..s.cached + new]);
            if s.cached + new == s.tokens.len() {
                rows.push(tokens.len() as i32 - 1);
                who.push(i);
            }
        }
        let logits = model.step(&tokens, &batch, cache, &rows).unwrap();
        for &(i, new) in &plan {
            seqs[i].cached += new;
        }
        let draws: Vec<_> = who.iter().map(|&i| params(&seqs[i], i as u64)).collect();
        let next = model.sample(&logits, &draws).unwrap();
        let temperatures: Vec<f32> = who.iter().map(|&i| seqs[i].temperature).collect();
        let stats = model.logits_stats(&logits, &next, &temperatures).unwrap();
        for ((&i, token), stats) in who.iter().zip(next).zip(stats) {
            seqs[i].tokens.push(token);
            seqs[i].logps.push(stats.logp());
        }
    }
}

/// Log-probs of tokens `prompt..` as the trainer computes them, for sequences packed in the given order.
fn train(model: &Model, seqs: &[Served], order: &[usize]) -> Vec<Vec<f32>> {
    let mut out = vec![vec![]; seqs.len()];
    // One temperature a pass, as the trainer has it.
    let mut temperatures: Vec<f32> = seqs.iter().map(|s| s.temperature).collect();
    temperatures.sort_by(f32::total_cmp);
    temperatures.dedup();
    for t in temperatures {
        let (mut tokens, mut rows, mut targets, mut lengths) = (vec![], vec![], vec![], vec![]);
        for &i in order {
            let s = &seqs[i];
            if s.temperature == t {
                for p in s.prompt..s.tokens.len() {
                    rows.push((tokens.len() + p) as i32 - 1);
                    targets.push(s.tokens[p]);
                }
            }
            tokens.extend(&s.tokens);
            lengths.push(s.tokens.len());
        }
        let layout = model.pack(&lengths).unwrap();
        let mut pass = model.forward(&tokens, &layout, false).unwrap();
        let got = model.log_probs(&mut pass, &rows, &targets, t).unwrap();
        let mut it = got.logp.into_iter();
        for &i in order {
            if seqs[i].temperature == t {
                out[i] = it.by_ref().take(seqs[i].tokens.len() - seqs[i].prompt).collect();
            }
        }
    }
    out
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

fn compare(model: &Model, trainer: &Model, seed: u64, batch: usize, longest: usize, chunk: usize, evict_at: usize) {
    let rng = Philox::new(seed, 1);
    let draw = |i: u64, n: usize| (rng.uniform(i) * n as f64) as usize;
    let vocab = model.config().vocab_size;
    let mut seqs = vec![];
    let mut lengths = vec![];
    for i in 0..batch as u64 {
        let prompt = 1 + draw(10 * i, longest / 2);
        let tokens: Vec<i32> = (0..prompt as u64).map(|j| draw(1_000_000 + i * 1000 + j, vocab) as i32).collect();
        let temperature = [1.0, 0.7, 1.0, 1.3][draw(10 * i + 1, 4)];
        lengths.push(prompt + 1 + draw(10 * i + 2, longest / 2));
        seqs.push(Served { tokens, prompt, temperature, pages: vec![], cached: 0, logps: vec![] });
    }
    let pages: usize = lengths.iter().map(|n| n.div_ceil(PAGE)).sum::<usize>() + 2;
    let cache = model.new_kv_cache(pages).unwrap();
    serve(model, &cache, &mut seqs, &lengths, chunk, evict_at, &mut (0..pages as u32).collect());
    let forward: Vec<usize> = (0..batch).collect();
    let backward: Vec<usize> = (0..batch).rev().collect();
    for order in [forward, backward] {
        for (s, got) in seqs.iter().zip(train(trainer, &seqs, &order)) {
            assert_eq!(bits(&s.logps), bits(&got), "seed {seed} batch {batch} chunk {chunk} evict {evict_at}");
        }
    }
}

#[test]
fn trainer_and_engine_log_probs_are_bitwise_equal() {
    for name in ["qwen3", "llama", "llama3"] {
        let model = Fixture::new(name).model();
        for (batch, longest, chunk, evict_at) in
            [(1, 200, 1, 999), (1, 140, 64, 70), (2, 260, 63, 128), (7, 150, 65, 64), (64, 30, 5, 9)]
        {
            compare(&model, &model, 5, batch, longest, chunk, evict_at);
        }
    }
}

#[test]
fn trainer_and_engine_log_probs_are_bitwise_equal_for_any_prompts_and_any_cut() {
    let (engine, trainer) =
        (Fixture::new("qwen3").model(), Fixture::new("qwen3").model_on(cpu(2), single(), ModelOptions::default()));
    let mut runner = TestRunner::new(Config { cases: 24, failure_persistence: None, ..Config::default() });
    runner
        .run(
            &(any::<u64>(), 1usize..=64, 4usize..=160, 1usize..=130, 1usize..=160),
            |(seed, batch, longest, chunk, evict_at)| {
                compare(&engine, &trainer, seed, batch.min(1200 / longest).max(1), longest, chunk, evict_at);
                Ok(())
            },
        )
        .unwrap();
}

/// Outputs and gradients of a pack.
fn pass(model: &Model, seqs: &[Vec<i32>]) -> (Vec<Vec<u32>>, Named) {
    let tokens: Vec<i32> = seqs.concat();
    let lengths: Vec<usize> = seqs.iter().map(Vec::len).collect();
    let layout = model.pack(&lengths).unwrap();
    let (rows, targets) = scored(&tokens, &layout.cu_seqlens()[..=seqs.len()]);
    let mut pass = model.forward(&tokens, &layout, true).unwrap();
    let lp = model.log_probs(&mut pass, &rows, &targets, 1.0).unwrap();
    let grads = model.new_grads().unwrap();
    let dlogp: Vec<f32> = targets.iter().map(|t| (*t as f32 * 0.37).sin()).collect();
    let dentropy: Vec<f32> = targets.iter().map(|t| (*t as f32 * 0.73).cos() * 0.1).collect();
    model.backward(pass, &dlogp, Some(&dentropy), &grads).unwrap();
    model.finish_grads(&grads).unwrap();
    let mut at = 0;
    let out = lengths
        .iter()
        .map(|n| {
            let k = n.saturating_sub(1);
            at += k;
            bits(&lp.logp[at - k..at]).into_iter().chain(bits(&lp.entropy[at - k..at])).collect()
        })
        .collect();
    (out, grads_by_name(model, &grads))
}

fn sequences(seed: u64, lengths: &[usize], vocab: usize) -> Vec<Vec<i32>> {
    let rng = Philox::new(seed, 2);
    let token = |s: usize, i: usize| (rng.uniform((s * 10_000 + i) as u64) * vocab as f64) as i32;
    lengths.iter().enumerate().map(|(s, &n)| (0..n).map(|i| token(s, i)).collect()).collect()
}

#[test]
fn packed_sequences_are_separate_sequences() {
    for name in ["qwen3", "llama", "llama3"] {
        let model = Fixture::new(name).model();
        let seqs = sequences(3, &[83, 0, 1, 45, 2, 130, 64, 65], model.config().vocab_size);
        let (packed, grads) = pass(&model, &seqs);
        let mut sum = Named::new();
        for (s, want) in seqs.iter().zip(&packed) {
            let (alone, g) = pass(&model, std::slice::from_ref(s));
            assert_eq!(&alone[0], want, "{name}: length {}", s.len());
            for (k, v) in g {
                let t = sum.entry(k).or_insert_with(|| vec![0.0; v.len()]);
                t.iter_mut().zip(v).for_each(|(a, b)| *a += b);
            }
        }
        let reversed: Vec<_> = seqs.iter().rev().cloned().collect();
        let (backwards, _) = pass(&model, &reversed);
        assert!(backwards.iter().rev().eq(packed.iter()), "{name}: order of packing");
        for (k, v) in &sum {
            let e = relative(v, &grads[k]);
            assert!(e <= 2e-6, "{name} {k}: {e:e}");
        }
    }
}

/// Log-probs of each sequence of a pack.
fn log_probs_of(model: &Model, seqs: &[Vec<i32>]) -> Vec<Vec<f32>> {
    let out = pass(model, seqs).0;
    out.into_iter().map(|bits| bits[..bits.len() / 2].iter().map(|b| f32::from_bits(*b)).collect()).collect()
}

#[test]
fn what_one_packed_sequence_holds_and_where_it_lies_changes_no_other() {
    for name in ["qwen3", "llama", "llama3"] {
        let model = Fixture::new(name).model();
        let mut seqs = sequences(5, &[5, 7, 3], model.config().vocab_size);
        let packed = log_probs_of(&model, &seqs);
        for (one, want) in seqs.iter().zip(&packed) {
            let alone = log_probs_of(&model, std::slice::from_ref(one));
            assert!(alone[0].iter().zip(want).all(|(a, b)| (a - b).abs() <= 1e-5), "{name}: {alone:?} {want:?}");
        }
        let before = seqs.clone();
        seqs[0][2] = (seqs[0][2] + 1) % 500;
        let changed = log_probs_of(&model, &seqs);
        assert_ne!(bits(&changed[0]), bits(&packed[0]), "{name}: the change is seen where it was made");
        for other in [1, 2] {
            assert_eq!(bits(&changed[other]), bits(&packed[other]), "{name}: sequence {other}");
        }
        // All of them 67 places further on.
        let shifted = [sequences(6, &[67], model.config().vocab_size), before].concat();
        for (got, want) in log_probs_of(&model, &shifted)[1..].iter().zip(&packed) {
            assert_eq!(bits(got), bits(want), "{name}");
        }
    }
}

fn same(a: &(Vec<Vec<u32>>, Named), b: &(Vec<Vec<u32>>, Named)) -> bool {
    a.0 == b.0 && a.1.iter().zip(&b.1).all(|(x, y)| x.1.iter().zip(y.1).all(|(x, y)| x.to_bits() == y.to_bits()))
}

#[test]
fn recompute_chunking_and_threads_change_no_bit() {
    let f = Fixture::new("qwen3");
    let seqs = sequences(4, &[83, 45, 1, 200, 7], 512);
    let plain = pass(&f.model(), &seqs);
    let with = |threads, options| pass(&f.model_on(cpu(threads), single(), options), &seqs);
    assert!(same(&plain, &with(1, ModelOptions { recompute: true, ..Default::default() })), "recompute");
    assert!(same(&plain, &with(2, ModelOptions::default())), "2 threads");
    assert!(same(&plain, &with(3, ModelOptions::default())), "3 threads");
    let chunked = with(1, ModelOptions { logits_chunk: 50, ..Default::default() });
    // The head's weight gradient adds chunk by chunk: another order of the sum, so only it may differ.
    assert_eq!(plain.0, chunked.0, "logits chunks");
    for (k, v) in &plain.1 {
        let e = relative(&chunked.1[k], v);
        assert!(if k.contains("embed") { e < 1e-6 } else { e == 0.0 }, "{k} {e:e}");
    }
}

#[test]
fn samples_without_loss_change_nothing() {
    let model = Fixture::new("llama").model();
    let seqs = sequences(5, &[50, 20], 512);
    let run = |extra: bool| {
        let lengths: Vec<usize> = if extra { vec![50, 33, 20] } else { vec![50, 20] };
        let mut tokens = seqs[0].clone();
        if extra {
            tokens.extend((0..33).map(|i| i * 7 % 512));
        }
        tokens.extend(&seqs[1]);
        let layout = model.pack(&lengths).unwrap();
        let (rows, targets) = scored(&tokens, layout.cu_seqlens());
        let mut pass = model.forward(&tokens, &layout, true).unwrap();
        model.log_probs(&mut pass, &rows, &targets, 1.0).unwrap();
        let dlogp: Vec<f32> = rows.iter().map(|&r| if extra && (50..83).contains(&r) { 0.0 } else { 1.0 }).collect();
        let grads = model.new_grads().unwrap();
        model.backward(pass, &dlogp, None, &grads).unwrap();
        grads_by_name(&model, &grads)
    };
    let (with, without) = (run(true), run(false));
    for (k, v) in &without {
        let e = relative(&with[k], v);
        assert!(e <= 1e-6, "{k}: {e:e}");
    }
}

#[test]
fn a_training_step_allocates_nothing_after_the_first() {
    let f = Fixture::new("qwen3");
    let model = f.model();
    let grads = model.new_grads().unwrap();
    let tokens = sequences(6, &[128], 512).remove(0);
    let mut seen = vec![];
    for _ in 0..4 {
        let layout = model.pack(&[83, 45]).unwrap();
        let (rows, targets) = scored(&tokens, layout.cu_seqlens());
        let mut pass = model.forward(&tokens, &layout, true).unwrap();
        let lp = model.log_probs(&mut pass, &rows, &targets, 1.0).unwrap();
        model.backward(pass, &lp.logp, Some(&lp.entropy), &grads).unwrap();
        seen.push(model.backend().mem_stats());
    }
    assert_eq!(seen[1].system_allocs, seen[3].system_allocs);
    assert_eq!(seen[1].in_use_total, seen[3].in_use_total, "nothing leaks");
    assert_eq!(seen[1].peak_total, seen[3].peak_total);
}

#[test]
fn a_copied_page_serves_like_its_original() {
    let model = Fixture::new("qwen3").model();
    let cache = model.new_kv_cache(6).unwrap();
    let tokens = sequences(8, &[90], 512).remove(0);
    let prefill = model.batch(&[KvSeq { cached: 0, new: 90, pages: &[1, 2] }]).unwrap();
    model.step(&tokens, &prefill, &cache, &[]).unwrap();
    for (from, to) in [(1, 4), (2, 5)] {
        cache.copy_page(&**model.backend(), Stream::COMPUTE, from, to).unwrap();
    }
    let next = |pages: &[u32]| {
        let batch = model.batch(&[KvSeq { cached: 90, new: 1, pages }]).unwrap();
        model.step(&[7], &batch, &cache, &[0]).unwrap().full.to_vec::<f32>(&**model.backend()).unwrap()
    };
    assert_eq!(bits(&next(&[1, 2])), bits(&next(&[4, 5])));
}

#[test]
fn one_changed_weight_shows_in_the_log_probs() {
    let (engine, trainer) = (Fixture::new("qwen3").model(), Fixture::new("qwen3").model());
    let w = trainer.params().get(trainer.params().find("layers.1.mlp.down").unwrap());
    w.write::<f32>().unwrap()[77] *= 1.0 + 1e-4;
    let tokens = sequences(9, &[60], 512).remove(0);
    let cache = engine.new_kv_cache(1).unwrap();
    let mut seqs = [Served { tokens, prompt: 60, temperature: 1.0, pages: vec![], cached: 0, logps: vec![] }];
    serve(&engine, &cache, &mut seqs, &[64], 16, 999, &mut vec![0]);
    assert_ne!(bits(&seqs[0].logps), bits(&train(&trainer, &seqs, &[0])[0]));
    assert_eq!(bits(&seqs[0].logps), bits(&train(&engine, &seqs, &[0])[0]));
}
