//! The trainer's log-probs against those of a paged decode over the published weights: the difference is exactly 0.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use control::wire::{Order, Phase, Start, TrainMetrics, TrainOrder};
use models::{KvSeq, Model, ModelConfig, ModelOptions};
use support::*;
use tensor::{CpuBackend, PAGE, SingleRank};

const RANDOM: Start = Start::Random { seed: 5 };
const TEMPERATURE: f32 = 0.9;

fn load(folder: &Path) -> Model {
    let config = ModelConfig::from_json(&std::fs::read_to_string(folder.join("config.json")).unwrap()).unwrap();
    let (backend, tp) = (Arc::new(CpuBackend::new(1)), Arc::new(SingleRank::new("tp")));
    let model = Model::new(backend, tp, config, ModelOptions::default()).unwrap();
    let files = checkpoint::hf::Folder::open(folder).unwrap();
    checkpoint::hf::load_weights(&files, &**model.backend(), model.params()).unwrap();
    model
}

/// As an engine does: prompts in chunks of `chunk` tokens, then one token at a time, all sequences that still run in one
/// batch. Fills in the log-prob of every response token.
fn decode(model: &Model, samples: &mut [Sample], chunk: usize) {
    let pages_of = |s: &Sample| (s.prompt.len() + s.response.len()).div_ceil(PAGE);
    let mut next = 0u32;
    let pages: Vec<Vec<u32>> = samples
        .iter()
        .map(|s| {
            let mine = (next..next + pages_of(s) as u32).collect();
            next += pages_of(s) as u32;
            mine
        })
        .collect();
    let cache = model.new_kv_cache(next as usize).unwrap();
    let mut cached = vec![0usize; samples.len()];
    let mut scored = vec![0usize; samples.len()];
    loop {
        let (mut tokens, mut seqs, mut rows, mut targets, mut whose) = (vec![], vec![], vec![], vec![], vec![]);
        for (i, s) in samples.iter().enumerate() {
            if scored[i] == s.response.len() {
                continue;
            }
            let all: Vec<i32> = s.prompt.iter().chain(&s.response).copied().collect();
            let new = if cached[i] < s.prompt.len() { chunk.min(s.prompt.len() - cached[i]) } else { 1 };
            tokens.extend(&all[cached[i]..cached[i] + new]);
            seqs.push(KvSeq { cached: cached[i], new, pages: &pages[i] });
            cached[i] += new;
            if cached[i] >= s.prompt.len() {
                rows.push(tokens.len() as i32 - 1);
                targets.push(all[cached[i]]);
                whose.push(i);
            }
        }
        if seqs.is_empty() {
            return;
        }
        let logits = model.step(&tokens, &model.batch(&seqs).unwrap(), &cache, &rows).unwrap();
        let stats = model.logits_stats(&logits, &targets, &vec![TEMPERATURE; rows.len()]).unwrap();
        for (i, stat) in whose.into_iter().zip(stats) {
            samples[i].log_probs[scored[i]] = stat.logp();
            scored[i] += 1;
        }
    }
}

/// Long enough to cross pages; one prompt longer than a page.
fn long_samples() -> Vec<Sample> {
    let mut all = samples(6, 31);
    let mut numbers = Numbers(32);
    for (i, s) in all.iter_mut().enumerate() {
        let mut random = |n: usize| (0..n).map(|_| 2 + numbers.below(94) as i32).collect::<Vec<_>>();
        if i == 2 {
            s.prompt = random(70);
        }
        if i == 4 {
            s.response = random(90);
        }
        s.mask = vec![1; s.response.len()];
        s.log_probs = vec![0.0; s.response.len()];
    }
    all
}

struct Scene {
    volume: Volume,
    samples: Vec<Sample>,
    digest: String,
}

/// A published version 1, and samples scored with what lies in its folder.
fn scene(faults: &str) -> Scene {
    let volume = Volume::new();
    let attempt = Attempt { faults: faults.into(), ..Attempt::new(&volume, 1, 1) };
    let published = attempt.play(RANDOM, config(), vec![publish(1, "weights/v1")]);
    let mut samples = long_samples();
    decode(&load(&volume.run_dir().join("weights/v1")), &mut samples, 16);
    samples.iter_mut().for_each(|s| s.version = 1);
    Scene { digest: weights_digest(&published[0]).to_owned(), volume, samples }
}

impl Scene {
    fn order(&self, step: u64, dp: usize, updates: &[&[u32]], digests: &[(u64, &str)]) -> Order {
        Order::Train(TrainOrder {
            phase: Phase::Rl,
            step,
            replay: false,
            batch: write_batch(&self.volume.store, Phase::Rl, step, &self.samples),
            updates: updates.iter().map(|members| plan(&self.samples, members, dp, 2)).collect(),
            version_digests: digests.iter().map(|(v, d)| (*v, (*d).to_owned())).collect::<BTreeMap<_, _>>(),
        })
    }

    /// Metrics of one order by a trainer that holds version 1.
    fn train(&self, layout: (usize, usize), updates: &[&[u32]], digests: &[(u64, &str)]) -> TrainMetrics {
        let step = (layout.0 * 1000 + layout.1 * 100 + updates.len() * 10 + digests.len()) as u64;
        let order = self.order(step, layout.0, updates, digests);
        let reports = Attempt::new(&self.volume, layout.0, layout.1).play(RANDOM, config(), vec![order]);
        trained(&reports[0]).clone()
    }

    fn tokens(&self) -> u64 {
        self.samples.iter().map(|s| s.response.len() as u64).sum()
    }
}

const ALL: &[u32] = &[0, 1, 2, 3, 4, 5];

#[test]
fn trainer_and_paged_decode_agree_to_the_last_bit() {
    let scene = scene("");
    let held = [(1, scene.digest.as_str())];
    for dp in [1, 2] {
        let m = scene.train((dp, 1), &[ALL], &held);
        assert_eq!((m.gap_max, m.gap_mean, m.gap_tokens), (0.0, 0.0, scene.tokens()), "dp {dp}");
    }
    let m = scene.train((1, 1), &[&[0, 1, 2], &[3, 4, 5]], &held);
    assert_eq!((m.gap_max, m.gap_tokens), (0.0, scene.tokens()), "several updates: all are compared before the first");
}

#[test]
fn at_another_tensor_parallelism_the_gap_is_rounding() {
    let scene = scene("");
    let m = scene.train((1, 2), &[ALL], &[(1, &scene.digest)]);
    assert_eq!(m.gap_tokens, scene.tokens());
    assert!(m.gap_max < 1e-5, "{}", m.gap_max);
}

#[test]
fn tokens_of_other_weights_are_not_compared() {
    let scene = scene("");
    let m = scene.train((1, 1), &[ALL], &[(1, "another")]);
    assert_eq!((m.gap_max, m.gap_tokens), (0.0, 0));
    let m = scene.train((1, 1), &[ALL], &[]);
    assert_eq!(m.gap_tokens, 0);
    // The second order meets the tokens with other weights than it began with.
    let held = [(1, scene.digest.as_str())];
    let orders = vec![scene.order(1, 1, &[ALL], &held), scene.order(2, 1, &[ALL], &held)];
    let reports = Attempt::new(&scene.volume, 1, 1).play(RANDOM, config(), orders);
    assert_eq!(trained(&reports[0]).gap_tokens, scene.tokens());
    assert_eq!(trained(&reports[1]).gap_tokens, 0);
}

#[test]
fn one_changed_weight_in_a_published_folder_shows_in_the_gap() {
    let scene = scene("flip-weight:version=1");
    let m = scene.train((1, 1), &[ALL], &[(1, &scene.digest)]);
    assert_eq!(m.gap_tokens, scene.tokens());
    assert!(m.gap_max > 0.0 && m.gap_mean > 0.0, "{m:?}");
}

#[test]
fn a_log_prob_off_by_one_bit_shows_in_the_gap() {
    let mut scene = scene("");
    let x = &mut scene.samples[3].log_probs[1];
    *x = f32::from_bits(x.to_bits() ^ 1);
    let m = scene.train((1, 1), &[ALL], &[(1, &scene.digest)]);
    assert!(m.gap_max > 0.0 && m.gap_max < 1e-5, "{}", m.gap_max);
}
