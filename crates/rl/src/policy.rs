//! The clipped policy objective (PPO, Schulman et al. 2017) with asymmetric clipping (DAPO, Yu et al. 2025), dual clip
//! (Ye et al. 2020), a KL term, an entropy bonus and truncated importance sampling of the train/rollout mismatch.
//!
//! Per unmasked token, with r = exp(current - old) and A the advantage:
//!
//! ```text
//! clipped = max(-r A, -clip(r, 1 - clip_low, 1 + clip_high) A)
//! policy  = min(-clip_c A, clipped) if A < 0 and clip_c is set, else clipped
//! loss    = tis * policy + kl_coef * kl(current, reference) - entropy_coef * entropy
//! ```
//!
//! `tis` = clamp(exp(old - rollout), low, high) carries no gradient.

use crate::TokenCoefficients;
use crate::bounded_exp::bounded_exp;
use crate::config::LossConfig;
use crate::error::Error;
use crate::schedule::check;

/// Per-token inputs, all of one length. Log-probs are of the sampled tokens, at the sampling temperature, in nats.
#[derive(Clone, Copy, Debug)]
pub struct PolicyBatch<'a> {
    /// Under the weights being trained.
    pub current: &'a [f64],
    /// Under the weights before the first update of the step, computed by the trainer. Carries no gradient.
    pub old: &'a [f64],
    /// As recorded by the sampler. Needed for TIS.
    pub rollout: Option<&'a [f64]>,
    /// Under the reference weights. Needed for the KL term.
    pub reference: Option<&'a [f64]>,
    /// Entropy of the current distribution, nats.
    pub entropy: &'a [f64],
    /// 1 where the token counts.
    pub mask: &'a [u8],
    /// Advantage of the token.
    pub advantage: &'a [f64],
    /// Weight of the token in the objective ([`crate::LossReduction::token_weight`]).
    pub weight: &'a [f64],
}

/// Sums over the unmasked tokens, to be added over micro-batches and ranks. Terms marked *weighted* are multiplied by
/// the token weights (so they add up to means as the reduction defines them), the others are plain sums over tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PolicySums {
    /// Objective, weighted.
    pub loss: f64,
    /// Policy term, weighted, after TIS.
    pub pg_loss: f64,
    /// KL term before its coefficient, weighted.
    pub kl: f64,
    /// Entropy, weighted.
    pub entropy: f64,
    /// Tokens whose clipped loss exceeds the unclipped one.
    pub clipped: u64,
    /// Tokens held by the dual clip.
    pub dual_clipped: u64,
    /// old - current, plain.
    pub old_minus_current: f64,
    /// exp(old - rollout) before the clamp, plain.
    pub tis_raw: f64,
    /// After it, plain.
    pub tis_weight: f64,
    /// Tokens whose TIS weight was clamped.
    pub tis_clamped: u64,
    /// Unmasked tokens.
    pub tokens: u64,
    /// Unmasked tokens with an input that is not finite: their coefficients are NaN, so that the update is skipped.
    /// The other sums leave them out.
    pub non_finite: u64,
}

impl LossConfig {
    /// True when the KL term is on.
    pub fn needs_reference(&self) -> bool {
        self.kl.is_some_and(|kl| kl.coef != 0.0)
    }

    /// Refuses values that make no objective.
    ///
    /// # Errors
    /// [`Error::Setting`] naming the field.
    pub fn validate(&self) -> Result<(), Error> {
        let at_least_0 = |field, value: f64| check(field, value, value.is_finite() && value >= 0.0, "must be >= 0");
        check("clipLow", self.clip_low, (0.0..=1.0).contains(&self.clip_low), "must lie in [0, 1]")?;
        at_least_0("clipHigh", self.clip_high)?;
        if let Some(c) = self.clip_c {
            let room = c.is_finite() && c > 1.0 + self.clip_high;
            check("clipC", c, room, "a dual clip must be above 1 + clipHigh")?;
        }
        if let Some(kl) = self.kl {
            at_least_0("kl.coef", kl.coef)?;
        }
        check("entropyCoef", self.entropy_coef, self.entropy_coef.is_finite(), "must be finite")?;
        if let Some(tis) = self.tis {
            at_least_0("tis.low", tis.low)?;
            let ordered = tis.high.is_finite() && tis.high > tis.low;
            check("tis.high", tis.high, ordered, "must be finite and above tis.low")?;
        }
        Ok(())
    }
}

/// The policy objective of `config` on `batch`: per-token coefficients, and sums for the metrics.
///
/// # Errors
/// [`Error::Length`] when slices differ in length, [`Error::Missing`] when `config` needs log-probs that are absent.
pub fn policy_loss(config: &LossConfig, batch: &PolicyBatch<'_>) -> Result<(TokenCoefficients, PolicySums), Error> {
    let n = batch.current.len();
    let rollout = match (&config.tis, batch.rollout) {
        (Some(_), None) => return Err(Error::Missing { what: "rollout log-probs", because: "tis" }),
        (Some(tis), Some(rollout)) => Some((tis, rollout)),
        (None, _) => None,
    };
    let reference = match (&config.kl, batch.reference) {
        (Some(kl), None) if kl.coef != 0.0 => {
            return Err(Error::Missing { what: "reference log-probs", because: "kl" });
        }
        (Some(kl), Some(reference)) => Some((kl, reference)),
        _ => None,
    };
    for (what, got) in [
        ("old", batch.old.len()),
        ("rollout", batch.rollout.map_or(n, <[f64]>::len)),
        ("reference", batch.reference.map_or(n, <[f64]>::len)),
        ("entropy", batch.entropy.len()),
        ("mask", batch.mask.len()),
        ("advantage", batch.advantage.len()),
        ("weight", batch.weight.len()),
    ] {
        if got != n {
            return Err(Error::Length { what, got, expected: n });
        }
    }

    let mut out = TokenCoefficients::zeros(n);
    let mut sums = PolicySums::default();
    for t in 0..n {
        if batch.mask[t] == 0 {
            continue;
        }
        sums.tokens += 1;
        let (current, old, advantage, entropy) = (batch.current[t], batch.old[t], batch.advantage[t], batch.entropy[t]);
        let rollout = rollout.map(|(tis, lp)| (tis, lp[t]));
        let reference = reference.map(|(kl, lp)| (kl, lp[t]));
        let used = [current, old, advantage, entropy, rollout.map_or(0.0, |r| r.1), reference.map_or(0.0, |r| r.1)];
        if used.iter().any(|x| !x.is_finite()) {
            sums.non_finite += 1;
            (out.loss[t], out.dlogp[t]) = (f64::NAN, f64::NAN);
            continue;
        }

        let (ratio, dratio) = bounded_exp(current - old);
        let clipped_ratio = ratio.clamp(1.0 - config.clip_low, 1.0 + config.clip_high);
        let (unclipped, clipped) = (-ratio * advantage, -clipped_ratio * advantage);
        let (mut policy, mut dpolicy) = if clipped > unclipped {
            sums.clipped += 1;
            (clipped, 0.0)
        } else {
            (unclipped, -dratio * advantage)
        };
        if let Some(c) = config.clip_c
            && advantage < 0.0
            && policy > -c * advantage
        {
            sums.dual_clipped += 1;
            (policy, dpolicy) = (-c * advantage, 0.0);
        }

        if let Some((tis, rollout)) = rollout {
            let raw = bounded_exp(old - rollout).0;
            let weight = raw.clamp(tis.low, tis.high);
            sums.tis_raw += raw;
            sums.tis_weight += weight;
            sums.tis_clamped += u64::from(weight != raw);
            (policy, dpolicy) = (policy * weight, dpolicy * weight);
        }

        let (mut loss, mut dlogp) = (policy, dpolicy);
        let w = batch.weight[t];
        if let Some((kl, reference)) = reference {
            let (value, derivative) = kl.kind.value_and_derivative(current, reference);
            loss += kl.coef * value;
            dlogp += kl.coef * derivative;
            sums.kl += w * value;
        }
        loss -= config.entropy_coef * entropy;

        out.loss[t] = w * loss;
        out.dlogp[t] = w * dlogp;
        out.dentropy[t] = -w * config.entropy_coef;
        sums.loss += w * loss;
        sums.pg_loss += w * policy;
        sums.entropy += w * entropy;
        sums.old_minus_current += old - current;
    }
    Ok((out, sums))
}
