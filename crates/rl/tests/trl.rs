//! The policy loss against TRL's values and gradients (f32), for the settings both can express.
//! `data/trl_losses.py` makes the data.
#![allow(clippy::unwrap_used)]

use rl::{Denominators, KlConfig, KlKind, LossConfig, LossReduction, PolicyBatch, policy_loss};
use serde_json::Value;

/// Largest differences measured: loss 1.9e-8, gradient 6.6e-9 (TRL computes in f32).
const TOLERANCE: f64 = 1e-6;

fn rows(v: &Value) -> Vec<Vec<f64>> {
    v.as_array().unwrap().iter().map(|r| r.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()).collect()
}

#[test]
fn value_and_gradient_are_those_of_trl() {
    let data: Value = serde_json::from_str(include_str!("data/trl_losses.json")).unwrap();
    let flat = |k: &str| rows(&data[k]).concat();
    let (logps, old, reference, entropy) = (flat("logps"), flat("old"), flat("ref"), flat("entropies"));
    let mask_rows = rows(&data["mask"]);
    let mask: Vec<u8> = mask_rows.concat().iter().map(|m| *m as u8).collect();
    let width = mask_rows[0].len();
    let sums: Vec<u64> = mask_rows.iter().map(|r| r.iter().sum::<f64>() as u64).collect();
    let advantages: Vec<f64> = data["advantages"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
    let advantage: Vec<f64> = advantages.iter().flat_map(|a| vec![*a; width]).collect();
    let denominators = Denominators { rollouts: mask_rows.len() as u64, loss_tokens: sums.iter().sum() };
    let cases = data["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 8);
    let (mut loss_worst, mut grad_worst) = (0.0f64, 0.0f64);
    for case in cases {
        let number = |k: &str| case[k].as_f64();
        let reduction = match case["loss_type"].as_str().unwrap() {
            "grpo" => LossReduction::RolloutMean,
            "bnpo" | "dapo" => LossReduction::TokenMean,
            other => panic!("{other}"),
        };
        let config = LossConfig {
            clip_low: number("epsilon_low").unwrap(),
            clip_high: number("epsilon_high").unwrap(),
            // TRL's upper bound on the ratio is the dual clip: for A > 0 the ordinary clip lies below it.
            clip_c: number("delta"),
            kl: Some(KlConfig { coef: number("beta").unwrap(), kind: KlKind::K3 }),
            entropy_coef: 0.0,
            tis: None,
            reduction,
        };
        config.validate().unwrap();
        let weight: Vec<f64> =
            sums.iter().flat_map(|s| vec![reduction.token_weight(denominators, *s); width]).collect();
        let batch = PolicyBatch {
            current: &logps,
            old: &old,
            rollout: None,
            reference: Some(&reference),
            entropy: &entropy,
            mask: &mask,
            advantage: &advantage,
            weight: &weight,
        };
        let (got, total) = policy_loss(&config, &batch).unwrap();
        loss_worst = loss_worst.max((total.loss - number("loss").unwrap()).abs());
        for (g, want) in got.dlogp.iter().zip(rows(&case["grad"]).concat()) {
            grad_worst = grad_worst.max((g - want).abs());
        }
        assert!(
            loss_worst < TOLERANCE && grad_worst < TOLERANCE,
            "{case}: loss {loss_worst:e} gradient {grad_worst:e}"
        );
    }
}
