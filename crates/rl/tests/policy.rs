//! The policy loss: derivatives against finite differences, and every edge.
#![allow(clippy::unwrap_used)]

use rl::{
    Denominators, Error, KlConfig, KlKind, LossConfig, LossReduction, PolicyBatch, PolicySums, TisConfig,
    TokenCoefficients, policy_loss,
};

const PLAIN: LossConfig = LossConfig {
    clip_low: 0.2,
    clip_high: 0.2,
    clip_c: None,
    kl: None,
    entropy_coef: 0.0,
    tis: None,
    reduction: LossReduction::TokenMean,
};

/// Owned inputs of a batch; `batch()` borrows them.
#[derive(Clone)]
struct Inputs {
    current: Vec<f64>,
    old: Vec<f64>,
    rollout: Vec<f64>,
    reference: Vec<f64>,
    entropy: Vec<f64>,
    mask: Vec<u8>,
    advantage: Vec<f64>,
    weight: Vec<f64>,
}

impl Inputs {
    /// Tokens of weight 1 with the given ratios (current against old) and advantages.
    fn ratios(pairs: &[(f64, f64)]) -> Self {
        let n = pairs.len();
        let old = vec![-1.0; n];
        Self {
            current: pairs.iter().map(|(_, r)| -1.0 + r.ln()).collect(),
            rollout: old.clone(),
            reference: old.clone(),
            old,
            entropy: vec![0.7; n],
            mask: vec![1; n],
            advantage: pairs.iter().map(|(a, _)| *a).collect(),
            weight: vec![1.0; n],
        }
    }

    fn batch(&self) -> PolicyBatch<'_> {
        PolicyBatch {
            current: &self.current,
            old: &self.old,
            rollout: Some(&self.rollout),
            reference: Some(&self.reference),
            entropy: &self.entropy,
            mask: &self.mask,
            advantage: &self.advantage,
            weight: &self.weight,
        }
    }

    fn loss(&self, config: &LossConfig) -> (TokenCoefficients, PolicySums) {
        policy_loss(config, &self.batch()).unwrap()
    }
}

/// A repeatable stream of numbers in [0, 1) (SplitMix64).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

fn random(n: usize, seed: u64) -> Inputs {
    let mut u = Numbers(seed);
    let mut list = |scale: f64, shift: f64| (0..n).map(|_| u.next() * scale + shift).collect::<Vec<_>>();
    let current = list(-3.0, 0.0);
    let near = |list: Vec<f64>| current.iter().zip(list).map(|(c, x)| c + x).collect::<Vec<_>>();
    Inputs {
        old: near(list(1.6, -0.8)),
        rollout: near(list(2.4, -1.2)),
        reference: near(list(1.0, -0.5)),
        entropy: list(2.0, 0.0),
        advantage: list(4.0, -2.0),
        weight: list(0.1, 0.01),
        mask: list(1.0, 0.0).iter().map(|x| u8::from(*x > 0.2)).collect(),
        current,
    }
}

fn configurations() -> Vec<LossConfig> {
    let mut all = vec![PLAIN, LossConfig { clip_low: 0.1, clip_high: 0.28, ..PLAIN }];
    all.push(LossConfig { clip_c: Some(1.5), ..PLAIN });
    for kind in [KlKind::K1, KlKind::K2, KlKind::K3, KlKind::LowVar] {
        all.push(LossConfig { kl: Some(KlConfig { coef: 0.3, kind }), ..PLAIN });
    }
    all.push(LossConfig { tis: Some(TisConfig { low: 0.5, high: 2.0 }), ..PLAIN });
    all.push(LossConfig {
        clip_low: 0.2,
        clip_high: 0.28,
        clip_c: Some(1.4),
        kl: Some(KlConfig { coef: 0.05, kind: KlKind::K3 }),
        entropy_coef: 0.01,
        tis: Some(TisConfig { low: 0.0, high: 1.2 }),
        reduction: LossReduction::RolloutMean,
    });
    all
}

/// Central differences of the objective by every log-prob and entropy. The step keeps the error of the difference near
/// 1e-10; tokens whose ratio lies within a step of a clip boundary have no derivative and are asserted not to occur.
#[test]
fn coefficients_are_the_derivatives_of_the_objective() {
    let h = 1e-6;
    let mut clipped = 0;
    for (i, config) in configurations().iter().enumerate() {
        let inputs = random(200, 17 + i as u64);
        let (got, sums) = inputs.loss(config);
        clipped += sums.clipped + sums.dual_clipped;
        for t in 0..inputs.current.len() {
            let ratio = (inputs.current[t] - inputs.old[t]).exp();
            let edges = [1.0 - config.clip_low, 1.0 + config.clip_high, config.clip_c.unwrap_or(1e9)];
            assert!(edges.iter().all(|e| (ratio - e).abs() > 10.0 * h));
            let at = |change: &dyn Fn(&mut Inputs, f64), x: f64| {
                let mut moved = inputs.clone();
                change(&mut moved, x);
                // The token alone: its share of the objective depends on no other token.
                moved.loss(config).0.loss[t]
            };
            let difference = |change: &dyn Fn(&mut Inputs, f64)| (at(change, h) - at(change, -h)) / (2.0 * h);
            let dlogp = difference(&|i, x| i.current[t] += x);
            let dentropy = difference(&|i, x| i.entropy[t] += x);
            assert!((got.dlogp[t] - dlogp).abs() < 1e-8, "{config:?} token {t}: {} {dlogp}", got.dlogp[t]);
            assert!((got.dentropy[t] - dentropy).abs() < 1e-8, "{config:?} token {t}");
        }
    }
    assert!(clipped > 100, "the clipped branches were hardly tested: {clipped}");
}

#[test]
fn clip_and_dual_clip_take_the_published_branches() {
    // (advantage, ratio) -> loss; the last has the dual clip
    for (a, r, want) in [(1.0, 1.4, -1.2), (-1.0, 1.4, 1.4), (-1.0, 0.6, 0.8), (1.0, 0.6, -0.6)] {
        let (c, s) = Inputs::ratios(&[(a, r)]).loss(&PLAIN);
        assert!((c.loss[0] - want).abs() < 1e-12, "{a} {r}");
        let is_clipped = want == -1.2 || want == 0.8;
        assert_eq!(s.clipped, u64::from(is_clipped));
        assert_eq!(c.dlogp[0] == 0.0, is_clipped);
    }
    let dual = LossConfig { clip_c: Some(3.0), ..PLAIN };
    let (c, s) = Inputs::ratios(&[(-1.0, 8.0), (1.0, 8.0), (-1.0, 2.9)]).loss(&dual);
    assert!((c.loss[0] - 3.0).abs() < 1e-12 && c.dlogp[0] == 0.0);
    assert!((c.loss[1] + 1.2).abs() < 1e-12, "the dual clip is for negative advantages alone");
    assert!((c.loss[2] - 2.9).abs() < 1e-12 && c.dlogp[2] != 0.0);
    assert_eq!((s.dual_clipped, s.clipped), (1, 1));
}

#[test]
fn a_token_just_inside_the_clip_has_gradient_and_just_outside_has_none() {
    let higher = LossConfig { clip_high: 0.28, ..PLAIN };
    for (config, bound, advantage) in [(&PLAIN, 1.2, 1.0), (&PLAIN, 0.8, -1.0), (&higher, 1.28, 1.0)] {
        let outward = advantage * 1e-9;
        let (c, s) = Inputs::ratios(&[(advantage, bound - outward), (advantage, bound + outward)]).loss(config);
        assert!(c.dlogp[0] != 0.0 && c.dlogp[1] == 0.0, "{bound}: {:?}", c.dlogp);
        assert_eq!(s.clipped, 1);
        assert!((c.loss[0] - c.loss[1]).abs() < 1e-8, "the loss is continuous across the bound");
        // The other sign of the advantage is never clipped at this bound.
        let (c, _) = Inputs::ratios(&[(-advantage, bound + outward)]).loss(config);
        assert!(c.dlogp[0] != 0.0);
    }
}

#[test]
fn with_old_equal_to_current_the_ratio_is_exactly_one() {
    let mut inputs = random(50, 3);
    inputs.old = inputs.current.clone();
    let (c, s) = inputs.loss(&PLAIN);
    assert_eq!((s.clipped, s.old_minus_current), (0, 0.0));
    for t in 0..50 {
        let m = f64::from(inputs.mask[t]);
        assert_eq!(c.dlogp[t], -m * inputs.weight[t] * inputs.advantage[t]);
    }
}

#[test]
fn a_zero_advantage_gives_exactly_zero_however_far_the_policy_went() {
    let mut inputs = Inputs::ratios(&[(0.0, 1.0); 4]);
    inputs.current = vec![-1.0, -5000.0, 3000.0, -0.0];
    let (c, s) = inputs.loss(&PLAIN);
    for t in 0..4 {
        assert_eq!((c.loss[t], c.dlogp[t]), (0.0, 0.0));
    }
    assert_eq!((s.loss, s.clipped), (0.0, 0));
}

#[test]
fn masked_tokens_contribute_nothing_whatever_they_hold() {
    let mut inputs = random(40, 9);
    let config = configurations().pop().unwrap();
    let (before, sums) = inputs.loss(&config);
    for t in 0..40 {
        if inputs.mask[t] == 0 {
            inputs.current[t] = f64::NAN;
            inputs.old[t] = f64::INFINITY;
            inputs.rollout[t] = f64::NEG_INFINITY;
            inputs.advantage[t] = f64::NAN;
        }
    }
    assert_eq!(inputs.loss(&config), (before, sums));
    inputs.mask = vec![0; 40];
    let (c, s) = inputs.loss(&config);
    assert_eq!(s, PolicySums::default());
    assert!(c.loss.iter().chain(&c.dlogp).chain(&c.dentropy).all(|x| x.to_bits() == 0));
}

#[test]
fn a_runaway_ratio_stays_finite_and_is_still_pulled_back() {
    let mut inputs = Inputs::ratios(&[(-1.0, 1.0), (-1.0, 1.0), (1.0, 1.0)]);
    inputs.old = vec![-90.0, -1000.0, -1000.0];
    let (c, s) = inputs.loss(&PLAIN);
    assert!(c.loss.iter().chain(&c.dlogp).all(|x| (*x as f32).is_finite()), "{c:?}");
    assert!(c.dlogp[0] > 0.0 && c.dlogp[1] > 0.0 && c.dlogp[2] == 0.0 && s.non_finite == 0);
    // Down to a ratio of 0.
    inputs.old = vec![1000.0; 3];
    let (c, _) = inputs.loss(&PLAIN);
    assert_eq!(c.loss, [0.8, 0.8, 0.0]);
}

#[test]
fn an_input_that_is_not_finite_poisons_its_token_and_is_counted() {
    let mut inputs = Inputs::ratios(&[(1.0, 1.0), (1.0, 1.0)]);
    inputs.current[1] = f64::NAN;
    let (c, s) = inputs.loss(&PLAIN);
    assert_eq!((s.non_finite, s.tokens), (1, 2));
    assert!(c.dlogp[1].is_nan() && c.dlogp[0].is_finite());
    assert_eq!(s.loss, c.loss[0], "the figures stay readable");
}

#[test]
fn tis_weighs_by_old_minus_rollout_and_reports_raw_and_effective() {
    let mut inputs = Inputs::ratios(&[(1.0, 1.0); 3]);
    inputs.old = vec![-1.0, -2.0, -1.5];
    inputs.rollout = vec![-1.1, -4.0, -1.1];
    // current far from old, so that a weight made from current would show
    inputs.current = vec![-0.9, -2.1, -1.5];
    let capped = |high| LossConfig { tis: Some(TisConfig { low: 0.0, high }), ..PLAIN };
    let (_, s) = inputs.loss(&capped(2.0));
    assert!((s.tis_raw / 3.0 - 3.054_849).abs() < 1e-6);
    assert!((s.tis_weight / 3.0 - 1.258_497).abs() < 1e-6);
    assert_eq!(s.tis_clamped, 1);
    let (_, s) = inputs.loss(&capped(5.0));
    assert!((s.tis_weight / 3.0 - 2.258_497).abs() < 1e-6);

    let (with, _) = inputs.loss(&capped(5.0));
    let (without, _) = inputs.loss(&PLAIN);
    let weights = [0.1f64.exp(), 5.0, (-0.4f64).exp()];
    for (t, w) in weights.iter().enumerate() {
        assert!((with.dlogp[t] - w * without.dlogp[t]).abs() < 1e-12, "the weight scales the gradient and has none");
    }
}

#[test]
fn tis_leaves_the_kl_and_entropy_terms_alone() {
    let mut inputs = Inputs::ratios(&[(0.0, 1.0)]);
    inputs.rollout = vec![-3.0];
    inputs.reference = vec![-1.5];
    let config = LossConfig {
        kl: Some(KlConfig { coef: 0.1, kind: KlKind::K2 }),
        entropy_coef: 0.01,
        tis: Some(TisConfig { low: 0.0, high: 2.0 }),
        ..PLAIN
    };
    let (c, s) = inputs.loss(&config);
    assert!((c.loss[0] - (0.1 * 0.125 - 0.01 * 0.7)).abs() < 1e-12);
    assert_eq!(c.dentropy, [-0.01]);
    assert!((s.kl - 0.125).abs() < 1e-12);
}

#[test]
fn any_split_of_an_update_has_the_same_objective_and_gradient() {
    let inputs = random(60, 4);
    let config = configurations().pop().unwrap();
    let (whole, sums) = inputs.loss(&config);
    for cuts in [vec![1, 2, 60], vec![30, 60], vec![7, 8, 9, 10, 60]] {
        let (mut start, mut loss, mut dlogp) = (0, 0.0, Vec::new());
        for end in cuts {
            let cut = |v: &[f64]| v[start..end].to_vec();
            let part = Inputs {
                current: cut(&inputs.current),
                old: cut(&inputs.old),
                rollout: cut(&inputs.rollout),
                reference: cut(&inputs.reference),
                entropy: cut(&inputs.entropy),
                mask: inputs.mask[start..end].to_vec(),
                advantage: cut(&inputs.advantage),
                weight: cut(&inputs.weight),
            };
            let (c, s) = part.loss(&config);
            loss += s.loss;
            dlogp.extend(c.dlogp);
            start = end;
        }
        assert_eq!(dlogp, whole.dlogp);
        assert!((loss - sums.loss).abs() < 1e-12);
    }
}

#[test]
fn the_weights_of_an_update_sum_to_one() {
    let sums = [9u64, 4, 7, 1];
    let d = Denominators { rollouts: 4, loss_tokens: sums.iter().sum() };
    for kind in [LossReduction::TokenMean, LossReduction::RolloutMean] {
        let total: f64 = sums.iter().map(|s| *s as f64 * kind.token_weight(d, *s)).sum();
        assert!((total - 1.0).abs() < 1e-12);
    }
}

#[test]
fn missing_or_ragged_inputs_are_refused_by_name() {
    let inputs = Inputs::ratios(&[(1.0, 1.0)]);
    let tis = LossConfig { tis: Some(TisConfig { low: 0.0, high: 2.0 }), ..PLAIN };
    let kl = LossConfig { kl: Some(KlConfig { coef: 0.1, kind: KlKind::K3 }), ..PLAIN };
    let bare = PolicyBatch { rollout: None, reference: None, ..inputs.batch() };
    assert!(policy_loss(&PLAIN, &bare).is_ok());
    for (config, name) in [(tis, "rollout log-probs"), (kl, "reference log-probs")] {
        let error = policy_loss(&config, &bare).unwrap_err();
        assert!(matches!(error, Error::Missing { what, .. } if what == name), "{error}");
    }
    let off = LossConfig { kl: Some(KlConfig { coef: 0.0, kind: KlKind::K3 }), ..PLAIN };
    assert!(!off.needs_reference() && policy_loss(&off, &bare).is_ok(), "a coefficient of 0 needs no reference");
    let ragged = PolicyBatch { mask: &[], ..inputs.batch() };
    let error = policy_loss(&PLAIN, &ragged).unwrap_err();
    assert_eq!(error, Error::Length { what: "mask", got: 0, expected: 1 });
}

#[test]
fn settings_that_make_no_objective_are_refused_by_name() {
    assert_eq!(PLAIN.validate(), Ok(()));
    let name = |c: LossConfig| match c.validate().unwrap_err() {
        Error::Setting { field, .. } => field,
        other => panic!("{other:?}"),
    };
    assert_eq!(name(LossConfig { clip_low: -0.1, ..PLAIN }), "clipLow");
    assert_eq!(name(LossConfig { clip_high: f64::NAN, ..PLAIN }), "clipHigh");
    assert_eq!(name(LossConfig { clip_c: Some(1.1), ..PLAIN }), "clipC");
    assert_eq!(name(LossConfig { tis: Some(TisConfig { low: 2.0, high: 1.0 }), ..PLAIN }), "tis.high");
    assert_eq!(name(LossConfig { kl: Some(KlConfig { coef: -1.0, kind: KlKind::K1 }), ..PLAIN }), "kl.coef");
}
