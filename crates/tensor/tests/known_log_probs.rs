//! Log-probs, entropies and their gradients against numbers worked out by hand.
#![allow(clippy::unwrap_used)]

use tensor::ops::{LogprobDlogits, LogprobMerge, LogprobStats, TokenStats};
use tensor::{Backend, CpuBackend, ReferenceBackend, Stream, Tag, Tensor};

const S: Stream = Stream::COMPUTE;

fn backends() -> Vec<Box<dyn Backend>> {
    vec![Box::new(CpuBackend::new(1)), Box::new(ReferenceBackend::new())]
}

fn floats(be: &dyn Backend, values: &[f32], shape: &[usize]) -> Tensor {
    Tensor::from_slice(be, values, shape, Tag::Work).unwrap()
}

fn near(got: &[f32], wanted: &[f32]) {
    assert_eq!(got.len(), wanted.len());
    assert!(got.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-6), "{got:?}, expected {wanted:?}");
}

/// The one statistic behind the trainer's log-probs and the engine's.
fn log_prob(be: &dyn Backend, logits: &[f32], target: i32, temperature: f32) -> f32 {
    let stats = floats(be, &[0.0; 4], &[1, 4]);
    let op = LogprobStats {
        logits: &floats(be, logits, &[1, logits.len()]),
        targets: &Tensor::from_slice(be, &[target], &[1], Tag::Work).unwrap(),
        first: 0,
        temperature: &floats(be, &[temperature], &[1]),
        stats: &stats,
    };
    be.logprob_stats(S, &op).unwrap();
    TokenStats::<f32>::from_row(stats.to_vec(be).unwrap().try_into().unwrap()).logp()
}

#[test]
fn log_probs_are_of_the_distribution_at_the_sampling_temperature() {
    for be in backends() {
        let at = |temperature| log_prob(&*be, &[1.5, 0.5, -0.5], 0, temperature);
        near(&[at(1.0), at(0.7)], &[-0.407_606, -0.260_118]);
        // What a trainer at another temperature than the sampler's would take for a change of the policy.
        near(&[(at(0.7) - at(0.7)).exp(), (at(1.0) - at(0.7)).exp()], &[1.0, 0.862_873]);
    }
}

/// (log-prob, entropy, d logits of the log-prob, d logits of the entropy) of a row cut into `parts` over the vocabulary.
fn over_parts(be: &dyn Backend, logits: &[f32], target: i32, parts: usize) -> (f32, f32, Vec<f32>, Vec<f32>) {
    let width = logits.len() / parts;
    let targets = Tensor::from_slice(be, &[target], &[1], Tag::Work).unwrap();
    let temperature = floats(be, &[1.0], &[1]);
    let gathered = floats(be, &vec![0.0; 4 * parts], &[parts, 1, 4]);
    for (part, own) in logits.chunks(width).enumerate() {
        let (first, stats) = (part * width, floats(be, &[0.0; 4], &[1, 4]));
        let logits = floats(be, own, &[1, width]);
        let op = LogprobStats { logits: &logits, targets: &targets, first, temperature: &temperature, stats: &stats };
        be.logprob_stats(S, &op).unwrap();
        be.copy(S, &gathered.flat(4 * part, 4).unwrap(), &stats.flat(0, 4).unwrap()).unwrap();
    }
    let stats = floats(be, &[0.0; 4], &[1, 4]);
    be.logprob_merge(S, &LogprobMerge { parts: &gathered, stats: &stats }).unwrap();
    let row = TokenStats::<f32>::from_row(stats.to_vec(be).unwrap().try_into().unwrap());
    let gradient = |dlogp: f32, dentropy: f32| -> Vec<f32> {
        let shards = logits.chunks(width).enumerate().map(|(part, own)| {
            let grad = floats(be, own, &[1, width]);
            let op = LogprobDlogits {
                logits: &grad,
                targets: &targets,
                first: part * width,
                temperature: &temperature,
                stats: &stats,
                dlogp: &floats(be, &[dlogp], &[1]),
                dentropy: Some(&floats(be, &[dentropy], &[1])),
            };
            be.logprob_dlogits(S, &op).unwrap();
            grad.to_vec::<f32>(be).unwrap()
        });
        shards.flatten().collect()
    };
    (row.logp(), row.entropy(), gradient(1.0, 0.0), gradient(0.0, 1.0))
}

#[test]
fn every_shard_of_the_vocabulary_gets_its_part_of_the_gradient() {
    for be in backends() {
        for parts in [1, 2, 4] {
            let (log_prob, entropy, d_log_prob, d_entropy) = over_parts(&*be, &[0.5, 1.5, -0.5, 1.0], 3, parts);
            near(&[log_prob, entropy], &[-1.246_567, 1.192_979]);
            near(&d_log_prob, &[-0.174_371, -0.473_991, -0.064_148, 0.712_510]);
            near(&d_entropy, &[0.096_530, -0.211_595, 0.099_659, 0.015_406]);
        }
    }
}
