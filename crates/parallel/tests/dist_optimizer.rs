//! The sharded optimizer against plain AdamW on the whole buffer.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;
use std::time::Duration;

use parallel::{AdamWConfig, DistOptimizer, FlatParam, Grid, Groups, Layout, StepReport};
use proptest::prelude::*;
use tensor::ops::AdamW;
use tensor::{Backend, Comm, CpuBackend, DType, Element, ReferenceBackend, SingleRank, Stream, Tag, Tensor};

const S: Stream = Stream::COMPUTE;
const WAIT: Duration = Duration::from_secs(300);

/// A number in about -1..1 that depends on all arguments.
fn noise(seed: usize, i: usize) -> f32 {
    let mut z = (seed as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (i as u64).wrapping_mul(0xd134_2543_de82_ef95);
    z = (z ^ (z >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    z ^= z >> 32;
    (z >> 40) as f32 / (1 << 23) as f32 - 1.0
}

/// Four parameters with gaps between them, the third a norm.
fn params() -> Vec<FlatParam> {
    let param = |name: &str, range, decay, replicated| FlatParam { name: name.into(), range, decay, replicated };
    vec![
        param("embed", 0..500, true, false),
        param("qkv", 512..900, true, false),
        param("norm", 960..976, false, true),
        param("down", 1024..1451, true, false),
    ]
}

const TOTAL: usize = 1472;

fn is_param(i: usize) -> bool {
    params().iter().any(|p| p.range.contains(&i))
}

fn initial(i: usize) -> f32 {
    if is_param(i) { noise(99, i) } else { 0.0 }
}

fn gradient(rank: usize, step: usize, i: usize) -> f32 {
    if is_param(i) { noise(1000 * step + rank, i) * [1.0, 3.0e-4, 40.0, 1.0][(i + rank) % 4] } else { 0.0 }
}

fn config(bucket_elements: usize) -> AdamWConfig {
    AdamWConfig { beta2: 0.95, weight_decay: 0.1, max_grad_norm: Some(1.5), bucket_elements, ..AdamWConfig::default() }
}

fn groups(dp: usize, tp: usize) -> Vec<Groups> {
    let grid = Grid::new(Layout::dp_tp(dp, tp)).unwrap();
    comm::thread::world(dp * tp, WAIT).unwrap().into_iter().map(|w| Groups::new(w, grid).unwrap()).collect()
}

fn on_ranks<T: Send>(groups: Vec<Groups>, run: impl Fn(Groups) -> T + Sync) -> Vec<T> {
    std::thread::scope(|s| {
        let threads: Vec<_> = groups.into_iter().map(|g| s.spawn(|| run(g))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

fn flat<T: Element>(be: &dyn Backend, f: impl Fn(usize) -> T) -> Tensor {
    Tensor::from_slice(be, &(0..TOTAL).map(f).collect::<Vec<_>>(), &[TOTAL], Tag::Grad).unwrap()
}

struct Outcome {
    reports: Vec<StepReport>,
    weights: Vec<u32>,
    /// flat index, master, m, v
    owned: Vec<(usize, u32, u32, u32)>,
}

fn bits(be: &dyn Backend, t: &Tensor) -> Vec<u32> {
    t.to_vec::<f32>(be).unwrap().into_iter().map(f32::to_bits).collect()
}

const STEPS: usize = 4;

/// The sharded optimizer on `dp` ranks.
fn sharded(dp: usize, bucket: usize) -> Vec<Outcome> {
    on_ranks(groups(dp, 1), |g| {
        let be: Arc<dyn Backend> = Arc::new(CpuBackend::new(1));
        let weights = flat(&*be, initial);
        let mut opt =
            DistOptimizer::new(be.clone(), g.dp.clone(), g.tp.clone(), &params(), &weights, config(bucket)).unwrap();
        let reports = (0..STEPS)
            .map(|step| opt.step(&flat(&*be, |i| gradient(g.dp.rank(), step, i)), 1e-2, 0.5).unwrap())
            .collect();
        let owned = opt
            .owned()
            .flat_map(|p| {
                let (master, m, v) = (bits(&*be, &p.master), bits(&*be, &p.m), bits(&*be, &p.v));
                p.flat.clone().enumerate().map(move |(at, i)| (i, master[at], m[at], v[at])).collect::<Vec<_>>()
            })
            .collect();
        Outcome { reports, weights: bits(&*be, &weights), owned }
    })
}

/// AdamW on the whole buffer, the gradients added in rank order, the clip factors as given.
fn plain(dp: usize, clip: &[f64]) -> (Vec<u32>, Vec<u32>, Vec<u32>) {
    let be = CpuBackend::new(1);
    let weights = flat(&be, initial);
    let (m, v) = (flat(&be, |_| 0f32), flat(&be, |_| 0f32));
    for (step, clip) in clip.iter().enumerate() {
        let grad = flat(&be, |i| (1..dp).fold(gradient(0, step, i), |sum, r| sum + gradient(r, step, i)));
        for p in params() {
            let (at, n) = (p.range.start, p.range.len());
            let of = |t: &Tensor| t.flat(at, n).unwrap();
            be.adamw(
                S,
                &AdamW {
                    master: &of(&weights),
                    m: &of(&m),
                    v: &of(&v),
                    grad: &of(&grad),
                    param: None,
                    lr: 1e-2,
                    beta1: 0.9,
                    beta2: 0.95,
                    eps: 1e-8,
                    weight_decay: if p.decay { 0.1 } else { 0.0 },
                    step: step as u64 + 1,
                    grad_scale: 0.5 * clip,
                },
            )
            .unwrap();
        }
    }
    (bits(&be, &weights), bits(&be, &m), bits(&be, &v))
}

/// The norm in f64, whatever the order.
fn norm(dp: usize, step: usize) -> f64 {
    let sum = |i: usize| (1..dp).fold(gradient(0, step, i), |sum, r| sum + gradient(r, step, i));
    0.5 * (0..TOTAL).map(|i| f64::from(sum(i)).powi(2)).sum::<f64>().sqrt()
}

#[test]
fn a_sharded_optimizer_is_plain_adamw_to_the_bit() {
    for dp in [1, 2, 3, 4] {
        for bucket in [1, 300, 1 << 20] {
            let ranks = sharded(dp, bucket);
            let reports = &ranks[0].reports;
            for (step, report) in reports.iter().enumerate() {
                let want = norm(dp, step);
                // Rounded to f32: half a unit in the last place.
                assert!((report.grad_norm - want).abs() <= want * 6.0e-8, "{} for {want}", report.grad_norm);
                assert!(report.clip_scale < 1.0, "the test means to clip");
                assert_eq!(report.optimizer_steps, step as u64 + 1);
            }
            let clip: Vec<f64> = reports.iter().map(|r| r.clip_scale).collect();
            let (weights, m, v) = plain(dp, &clip);
            let mut owners = vec![0; TOTAL];
            for rank in &ranks {
                assert_eq!(&rank.reports, reports, "every rank decides alike");
                assert_eq!(rank.weights, weights, "dp {dp}, bucket {bucket}");
                for (i, master, first, second) in &rank.owned {
                    assert_eq!((*master, *first, *second), (weights[*i], m[*i], v[*i]), "element {i}");
                    owners[*i] += 1;
                }
            }
            assert!(owners.iter().all(|n| *n == 1));
        }
    }
}

#[test]
fn bucket_size_changes_no_bit() {
    let all: Vec<Vec<u32>> = [1, 200, 500, 1 << 20].iter().map(|b| sharded(2, *b).remove(1).weights).collect();
    assert!(all.windows(2).all(|w| w[0] == w[1]));
}

#[test]
fn dp_2_equals_dp_1_where_the_sum_is_bracketed_alike() {
    let two = sharded(2, 1 << 20);
    // One rank that accumulates the same two micro-batches from zero.
    let be: Arc<dyn Backend> = Arc::new(CpuBackend::new(1));
    let weights = flat(&*be, initial);
    let one: Arc<dyn Comm> = Arc::new(SingleRank::new("one"));
    let mut opt = DistOptimizer::new(be.clone(), one.clone(), one, &params(), &weights, config(1 << 20)).unwrap();
    for step in 0..STEPS {
        let grad = flat(&*be, |i| 0.0 + gradient(0, step, i) + gradient(1, step, i));
        let report = opt.step(&grad, 1e-2, 0.5).unwrap();
        assert_eq!(report, two[0].reports[step]);
    }
    assert_eq!(bits(&*be, &weights), two[0].weights);
}

#[test]
fn a_gradient_that_is_not_finite_changes_nothing_anywhere() {
    for bad in [f32::NAN, f32::INFINITY] {
        let ranks = on_ranks(groups(2, 2), |g| {
            let be: Arc<dyn Backend> = Arc::new(CpuBackend::new(1));
            let weights = flat(&*be, initial);
            let mut opt =
                DistOptimizer::new(be.clone(), g.dp.clone(), g.tp.clone(), &params(), &weights, config(300)).unwrap();
            opt.step(&flat(&*be, |i| gradient(g.dp.rank(), 0, i)), 1e-2, 1.0).unwrap();
            let state = |opt: &DistOptimizer| {
                let owned = opt.owned().flat_map(|p| [bits(&*be, &p.m), bits(&*be, &p.v)].concat());
                (bits(&*be, &weights), owned.collect::<Vec<_>>(), opt.optimizer_steps())
            };
            let before = state(&opt);
            // One element on one rank.
            let poison = |i: usize| if g.world.rank() == 3 && i == 1200 { bad } else { gradient(g.dp.rank(), 1, i) };
            let report = opt.step(&flat(&*be, poison), 1e-2, 1.0).unwrap();
            assert!(report.skipped() && !report.grad_norm.is_finite(), "{report:?}");
            assert_eq!(report.nonfinite, 1);
            assert_eq!(state(&opt), before);
            // And the next good one counts on from there.
            let report = opt.step(&flat(&*be, |i| gradient(g.dp.rank(), 2, i)), 1e-2, 1.0).unwrap();
            report.optimizer_steps
        });
        assert_eq!(ranks, [2; 4]);
    }
}

#[test]
fn a_replicated_parameter_counts_once_in_the_norm() {
    // Tensor parallel ranks hold different slices, and the same norm.
    let value =
        |tp: usize, i: usize| if params()[2].range.contains(&i) { gradient(0, 0, i) } else { gradient(tp, 0, i) };
    let reports = on_ranks(groups(2, 2), |g| {
        let be: Arc<dyn Backend> = Arc::new(CpuBackend::new(1));
        let weights = flat(&*be, initial);
        let mut opt =
            DistOptimizer::new(be.clone(), g.dp.clone(), g.tp.clone(), &params(), &weights, config(300)).unwrap();
        let mine = |i: usize| if g.dp.rank() == 0 { value(g.tp.rank(), i) } else { 0.0 };
        let report = opt.step(&flat(&*be, mine), 1e-2, 1.0).unwrap();
        let norm = params()[2].range.clone();
        (report, bits(&*be, &weights)[norm].to_vec())
    });
    let mut sum = 0.0;
    for tp in 0..2 {
        for i in (0..TOTAL).filter(|i| tp == 0 || !params()[2].range.contains(i)) {
            sum += f64::from(value(tp, i)).powi(2);
        }
    }
    let want = f64::from(sum.sqrt() as f32);
    assert!(reports.iter().all(|(r, _)| r.grad_norm == want), "{} is not {want}", reports[0].0.grad_norm);
    assert!(reports.iter().all(|r| *r == reports[0]), "replicas stay equal");
}

#[test]
fn clipping_follows_torch_and_small_gradients_are_left_alone() {
    let one: Arc<dyn Comm> = Arc::new(SingleRank::new("one"));
    let be: Arc<dyn Backend> = Arc::new(CpuBackend::new(1));
    let step = |scale: f32, max: Option<f64>| {
        let weights = flat(&*be, initial);
        let config = AdamWConfig { max_grad_norm: max, ..config(1 << 20) };
        let mut opt = DistOptimizer::new(be.clone(), one.clone(), one.clone(), &params(), &weights, config).unwrap();
        opt.step(
            &flat(&*be, |i| {
                if i == 3 {
                    3.0 * scale
                } else if i == 600 {
                    4.0 * scale
                } else {
                    0.0
                }
            }),
            1e-2,
            1.0,
        )
        .unwrap()
    };
    let report = step(1.0, Some(1.0));
    assert_eq!(report.grad_norm, 5.0);
    assert_eq!(report.clip_scale, f64::from(1.0f32 / (5.0f32 + 1e-6)));
    assert_eq!(step(0.1, Some(1.0)).clip_scale, 1.0);
    assert_eq!(step(1.0, None).clip_scale, 1.0);
}

#[test]
fn weights_in_bf16_are_the_rounded_masters() {
    let ranks = on_ranks(groups(2, 1), |g| {
        let be: Arc<dyn Backend> = Arc::new(ReferenceBackend::new());
        let weights = flat(&*be, |i| half::bf16::from_f32(initial(i)));
        let mut opt =
            DistOptimizer::new(be.clone(), g.dp.clone(), g.tp.clone(), &params(), &weights, config(300)).unwrap();
        for step in 0..3 {
            opt.step(&flat(&*be, |i| gradient(g.dp.rank(), step, i)), 1e-4, 1.0).unwrap();
        }
        let weights = weights.to_vec::<half::bf16>(&*be).unwrap();
        let mut moved = 0;
        for p in opt.owned() {
            for (master, i) in p.master.to_vec::<f32>(&*be).unwrap().iter().zip(p.flat.clone()) {
                assert_eq!(weights[i], half::bf16::from_f32(*master));
                moved += usize::from(weights[i].to_f32() != *master);
            }
        }
        assert!(moved > 100, "the masters keep what bf16 cannot hold");
        weights
    });
    assert_eq!(ranks[0], ranks[1]);
}

#[test]
fn buffers_that_do_not_fit_are_refused() {
    let one: Arc<dyn Comm> = Arc::new(SingleRank::new("one"));
    let be: Arc<dyn Backend> = Arc::new(CpuBackend::new(1));
    let weights = flat(&*be, initial);
    let mut overlapping = params();
    overlapping[1].range.start = 499;
    let new = |p: &[FlatParam]| DistOptimizer::new(be.clone(), one.clone(), one.clone(), p, &weights, config(300));
    assert!(new(&overlapping).unwrap_err().to_string().contains("parameter qkv"));
    let short = Tensor::zeros(&*be, DType::F32, &[TOTAL - 64], Tag::Grad).unwrap();
    assert!(new(&params()).unwrap().step(&short, 1e-2, 1.0).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]
    #[test]
    fn any_division_gives_the_same_weights_as_one_rank_with_the_same_sums(dp in 2usize..6, bucket in 1usize..2000) {
        let ranks = sharded(dp, bucket);
        let clip: Vec<f64> = ranks[0].reports.iter().map(|r| r.clip_scale).collect();
        let (weights, _, _) = plain(dp, &clip);
        for rank in &ranks {
            prop_assert_eq!(&rank.weights, &weights);
        }
    }
}
