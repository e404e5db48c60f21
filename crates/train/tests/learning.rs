//! What learning must do, whatever the layout.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeMap;

use control::wire::{Order, Phase, Report, Start, TrainConfig, TrainOrder};
use rl::{KlConfig, KlKind, LossReduction, OptimizerConfig, TisConfig};
use support::*;

fn supervised() -> TrainConfig {
    TrainConfig { warm_optimizer: Some(optimizer()), ..config() }
}

const RANDOM: Start = Start::Random { seed: 1 };

fn losses(reports: &[Report]) -> Vec<f64> {
    reports.iter().filter(|r| matches!(r, Report::Trained(_))).map(|r| trained(r).loss).collect()
}

/// Trains on the same samples for some updates in some layout and publishes; gives the reports and the weights.
fn run(config: &TrainConfig, (dp, tp): (usize, usize), size: usize, updates: u64, samples: &[Sample]) -> Trained {
    let volume = Volume::new();
    let mut orders: Vec<Order> =
        (0..updates).map(|k| train_order(&volume.store, phase_of(config), k, samples, dp, size)).collect();
    orders.push(publish(1, "weights/v1"));
    let reports = Attempt::new(&volume, dp, tp).play(RANDOM, config.clone(), orders);
    let weights = read_safetensors(&volume.run_dir().join("weights/v1"));
    Trained { reports, weights }
}

fn phase_of(config: &TrainConfig) -> Phase {
    if config.warm_optimizer.is_some() { Phase::WarmStart } else { Phase::Rl }
}

struct Trained {
    reports: Vec<Report>,
    weights: BTreeMap<String, (Vec<usize>, Vec<f32>)>,
}

impl Trained {
    /// Norm of the difference of all weights, relative to the norm of what training changed.
    fn distance(&self, other: &Self, start: &Self) -> f64 {
        let norm = |a: &Self, b: &Self| {
            a.weights
                .iter()
                .flat_map(|(name, (_, w))| w.iter().zip(&b.weights[name].1))
                .map(|(x, y)| f64::from(x - y).powi(2))
                .sum::<f64>()
                .sqrt()
        };
        norm(self, other) / norm(self, start)
    }
}

#[test]
fn supervised_loss_goes_down() {
    let volume = Volume::new();
    let samples = samples(8, 1);
    let orders = (0..30).map(|k| train_order(&volume.store, Phase::WarmStart, k, &samples, 1, 4)).collect();
    let reports = Attempt::new(&volume, 1, 1).play(RANDOM, supervised(), orders);
    let losses = losses(&reports);
    assert!(losses[0] > 4.0, "a random model is near ln 96 = 4.56: {losses:?}");
    assert!(losses[29] < 0.5 * losses[0], "{losses:?}");
    let last = trained(&reports[29]);
    assert_eq!((last.updates_done, last.skipped_updates), (30, 0));
}

/// Plain SGD-like updates: Adam divides by the root of tiny second moments, which blows rounding differences of near-zero
/// gradients up to full size, so layouts are compared with a large eps.
fn smooth(config: TrainConfig) -> TrainConfig {
    let even = |o: OptimizerConfig| OptimizerConfig { eps: 1e-2, ..o };
    TrainConfig { optimizer: even(config.optimizer), warm_optimizer: config.warm_optimizer.map(even), ..config }
}

/// Everything the loss can be made of.
fn everything() -> TrainConfig {
    let mut config = config();
    config.loss.kl = Some(KlConfig { coef: 0.05, kind: KlKind::K3 });
    config.loss.entropy_coef = 0.01;
    config.loss.clip_c = Some(3.0);
    config.loss.tis = Some(TisConfig { low: 0.0, high: 2.0 });
    config.loss.reduction = LossReduction::RolloutMean;
    config
}

/// Measured 2.2e-7 to 3.6e-7 over all cases below, relative to how far four updates move the weights.
const SAME_WEIGHTS: f64 = 1e-6;

#[test]
fn the_split_into_micro_batches_changes_nothing_but_rounding() {
    let samples = samples(8, 2);
    for config in [smooth(supervised()), smooth(config()), smooth(everything())] {
        let start = run(&config, (1, 1), 8, 0, &samples);
        let whole = run(&config, (1, 1), 8, 4, &samples);
        for size in [1, 3] {
            let split = run(&config, (1, 1), size, 4, &samples);
            let distance = split.distance(&whole, &start);
            assert!(distance < SAME_WEIGHTS, "micro-batches of {size}: {distance:e}");
            for (a, b) in losses(&split.reports).iter().zip(losses(&whole.reports)) {
                assert!((a - b).abs() < 1e-6, "{a} {b}");
            }
        }
    }
}

#[test]
fn the_layout_changes_nothing_but_rounding() {
    let samples = samples(9, 3);
    for config in [smooth(supervised()), smooth(everything())] {
        let start = run(&config, (1, 1), 2, 0, &samples);
        let one = run(&config, (1, 1), 2, 4, &samples);
        for layout in [(2, 1), (1, 2), (2, 2), (4, 1)] {
            let many = run(&config, layout, 2, 4, &samples);
            let distance = many.distance(&one, &start);
            assert!(distance < SAME_WEIGHTS, "dp, tp {layout:?}: {distance:e}");
            for (a, b) in many.reports.iter().zip(&one.reports).take(4) {
                let (a, b) = (trained(a), trained(b));
                assert!((a.loss - b.loss).abs() < 1e-6 && (a.kl - b.kl).abs() < 1e-6, "{layout:?}: {a:?} {b:?}");
                assert!((a.grad_norm - b.grad_norm).abs() < 1e-5 * b.grad_norm, "{layout:?}: {a:?} {b:?}");
                assert_eq!((a.tokens, a.loss_tokens, a.lr), (b.tokens, b.loss_tokens, b.lr));
            }
        }
    }
}

#[test]
fn the_same_orders_give_the_same_bits() {
    let samples = samples(9, 4);
    for layout in [(1, 1), (2, 2)] {
        let first = run(&everything(), layout, 2, 3, &samples);
        let again = run(&everything(), layout, 2, 3, &samples);
        assert_eq!(first.weights, again.weights);
        let timeless = |t: &Trained| t.reports.iter().map(timeless).collect::<Vec<_>>();
        assert_eq!(timeless(&first), timeless(&again));
    }
}

#[test]
fn threads_and_tcp_give_the_same_bits() {
    let samples = samples(6, 5);
    let digest = |wire: Wire, threads: usize| {
        let volume = Volume::new();
        let mut orders: Vec<Order> = (0..3).map(|k| train_order(&volume.store, Phase::Rl, k, &samples, 2, 2)).collect();
        orders.push(publish(1, "weights/v1"));
        let attempt = Attempt { wire, threads, ..Attempt::new(&volume, 2, 2) };
        let reports = attempt.play(RANDOM, config(), orders);
        weights_digest(&reports[3]).to_owned()
    };
    let threads = digest(Wire::Threads, 1);
    assert_eq!(digest(Wire::Tcp, 1), threads);
    assert_eq!(digest(Wire::Threads, 2), threads, "compute threads");
}

#[test]
fn samples_that_carry_no_loss_change_nothing() {
    let good = samples(6, 6);
    let mut more = good.clone();
    for (at, mut extra) in [(0, 2), (3, 3), (8, 4)].map(|(at, seed)| (at, samples(1, seed).remove(0))) {
        extra.mask.fill(0);
        extra.log_probs.fill(f32::NEG_INFINITY);
        extra.rollout_id = 100 + at as i64;
        more.insert(at, extra);
    }
    let volume = Volume::new();
    let play = |samples: &[Sample], members: Vec<Vec<u32>>, step: u64| {
        let all: Vec<u32> = members.concat();
        let batch = write_batch(&volume.store, Phase::Rl, step, samples);
        let mut update = plan(samples, &all, 1, 100);
        update.micro_batches = vec![members];
        update.rollouts = 6;
        let order = TrainOrder {
            phase: Phase::Rl,
            step,
            replay: false,
            batch,
            updates: vec![update],
            version_digests: BTreeMap::new(),
        };
        let folder = format!("weights/v{step}");
        Attempt::new(&volume, 1, 1).play(RANDOM, everything(), vec![Order::Train(order), publish(step, &folder)])
    };
    let without = play(&good, vec![vec![0, 1, 2], vec![3, 4, 5]], 1);
    // Positions of the good ones among all: 1 2 4 | 5 6 7; extra ones and an empty micro-batch between.
    let with = play(&more, vec![vec![0, 1, 2, 3, 4], vec![], vec![5, 6, 7, 8]], 2);
    assert_eq!(weights_digest(&without[1]), weights_digest(&with[1]));
    assert_eq!(timeless(&without[0]), timeless(&with[0]));
}

#[test]
fn a_rank_with_nothing_to_learn_keeps_in_step() {
    let samples = samples(1, 7);
    let one = run(&smooth(config()), (1, 1), 1, 3, &samples);
    let start = run(&smooth(config()), (1, 1), 1, 0, &samples);
    let many = run(&smooth(config()), (4, 1), 1, 3, &samples);
    assert!(many.distance(&one, &start) < SAME_WEIGHTS);
}

#[test]
fn recompute_changes_no_bit() {
    let samples = samples(6, 8);
    let kept = run(&config(), (1, 2), 2, 3, &samples);
    let again = run(&TrainConfig { recompute: true, ..config() }, (1, 2), 2, 3, &samples);
    assert_eq!(kept.weights, again.weights);
}

#[test]
fn a_gradient_that_is_not_finite_skips_the_update_and_the_schedule() {
    let volume = Volume::new();
    let samples = samples(4, 9);
    let orders = |faults: &str, keep: &[u64]| {
        let mut orders: Vec<Order> =
            keep.iter().map(|k| train_order(&volume.store, Phase::Rl, *k, &samples, 2, 2)).collect();
        orders.push(publish(1, &format!("weights/v-{}", faults.len())));
        let attempt = Attempt { faults: faults.into(), ..Attempt::new(&volume, 2, 1) };
        attempt.play(RANDOM, config(), orders)
    };
    let poisoned = orders("poison-gradient:rank=1,step=1", &[0, 1, 2]);
    let spared = orders("", &[0, 2]);
    let skipped = trained(&poisoned[1]);
    assert_eq!((skipped.skipped_updates, skipped.updates_done, skipped.grad_norm), (1, 1, -1.0));
    assert_eq!(trained(&poisoned[2]).lr, trained(&spared[1]).lr, "the schedule did not move");
    assert_eq!(timeless(&poisoned[2]), timeless(&spared[1]));
    assert_eq!(weights_digest(&poisoned[3]), weights_digest(&spared[2]));
}

#[test]
fn several_updates_take_their_ratio_against_the_weights_before_the_first() {
    let volume = Volume::new();
    let samples = samples(8, 10);
    let order = |step: u64, cuts: &[&[u32]]| {
        Order::Train(TrainOrder {
            phase: Phase::Rl,
            step,
            replay: false,
            batch: write_batch(&volume.store, Phase::Rl, step, &samples),
            updates: cuts.iter().map(|members| plan(&samples, members, 1, 4)).collect(),
            version_digests: BTreeMap::new(),
        })
    };
    let all: &[u32] = &[0, 1, 2, 3, 4, 5, 6, 7];
    // The same samples twice: in the second update the policy has moved, so ratios differ from 1 and some are clipped.
    let mut config = config();
    config.optimizer = OptimizerConfig { lr: 5e-2, warmup_steps: 0, ..config.optimizer };
    (config.loss.clip_low, config.loss.clip_high) = (0.01, 0.01);
    let attempt = Attempt::new(&volume, 1, 1);
    let reports = attempt.play(RANDOM, config.clone(), vec![order(0, &[all]), order(1, &[all, all])]);
    assert_eq!(trained(&reports[0]).clip_fraction, 0.0, "on policy, the ratio is exactly 1");
    let twice = trained(&reports[1]);
    assert!(twice.clip_fraction > 0.05, "{twice:?}");
    assert_eq!(twice.updates_done, 3);
    assert_eq!(twice.loss_tokens, 2 * trained(&reports[0]).loss_tokens);
}

#[test]
fn the_kl_term_holds_the_policy_to_where_the_rl_phase_began() {
    let samples = samples(8, 11);
    let kl_at_end = |coef: f64| {
        let mut config = config();
        config.loss.kl = Some(KlConfig { coef, kind: KlKind::K3 });
        let reports = run(&config, (1, 1), 4, 12, &samples).reports;
        assert_eq!(trained(&reports[0]).kl, 0.0, "at first the policy is the reference");
        trained(&reports[11]).kl
    };
    let (loose, tight) = (kl_at_end(1e-6), kl_at_end(10.0));
    assert!(loose > 1e-3 && tight < loose / 5.0, "{loose} {tight}");
}

#[test]
fn a_policy_gradient_raises_what_had_advantage() {
    let mut samples = samples(8, 12);
    for (i, s) in samples.iter_mut().enumerate() {
        s.advantage = if i % 2 == 0 { 1.0 } else { -1.0 };
    }
    let reports = run(&config(), (1, 1), 8, 10, &samples).reports;
    // With old = current the value of the objective is -(mean advantage); what moves is visible in the supervised loss of
    // the rewarded half.
    assert!(losses(&reports).iter().all(|l| l.is_finite()));
    let rewarded: Vec<Sample> = samples.iter().step_by(2).cloned().collect();
    let volume = Volume::new();
    let mut orders: Vec<Order> = vec![];
    orders.extend((0..10).map(|k| train_order(&volume.store, Phase::Rl, k, &samples, 1, 8)));
    // A zero learning rate makes the last orders measurements: K1 against the reference is the mean log-ratio.
    let mut config = config();
    config.loss.kl = Some(KlConfig { coef: 1e-9, kind: KlKind::K1 });
    orders.push(train_order(&volume.store, Phase::Rl, 10, &rewarded, 1, 8));
    let reports = Attempt::new(&volume, 1, 1).play(RANDOM, config, orders);
    assert!(trained(&reports[10]).kl > 0.05, "{:?}", reports[10]);
}
