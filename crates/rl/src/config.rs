//! What the learner is asked to optimise, and with which optimizer: plain data, shared by the conductor (which
//! resolves it from the RLJob) and the trainer (which obeys it).

use serde::{Deserialize, Serialize};

/// How per-token losses become one number. Both are normalised over the whole optimizer step, never over the
/// micro-batch at hand, so that packing and parallelism cannot change the objective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum LossReduction {
    /// Sum over unmasked tokens divided by the number of unmasked tokens of the step (DAPO).
    TokenMean,
    /// Each rollout contributes its own token mean, rollouts are averaged (the samples cut from one episode share one
    /// denominator).
    RolloutMean,
}

/// The standard deviation a group's rewards are divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StdKind {
    /// Bessel-corrected, n - 1.
    Unbiased,
    /// Population, n.
    Biased,
    /// Not divided at all (Dr. GRPO).
    None,
}

/// Estimators of KL(current || reference) per token, with d = current - reference log-prob.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum KlKind {
    /// d
    K1,
    /// d^2 / 2
    K2,
    /// exp(-d) - 1 + d
    K3,
    /// K3 clamped to [-10, 10]
    LowVar,
}

/// A KL penalty in the loss against the weights the run started from.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KlConfig {
    /// Weight of the term; 0 switches it off.
    pub coef: f64,
    /// Which estimator.
    pub kind: KlKind,
}

/// Truncated importance sampling of the train/rollout mismatch: the policy term of a token is multiplied by
/// clamp(exp(old - rollout), low, high).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TisConfig {
    /// Lower clamp.
    pub low: f64,
    /// Upper clamp.
    pub high: f64,
}

/// The policy objective of one run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LossConfig {
    /// Lower clip: the ratio may fall to 1 - clip_low.
    pub clip_low: f64,
    /// Upper clip ("clip higher"): the ratio may rise to 1 + clip_high.
    pub clip_high: f64,
    /// Dual clip for negative advantages, > 1 when present.
    pub clip_c: Option<f64>,
    /// KL penalty against the reference weights.
    pub kl: Option<KlConfig>,
    /// Weight of the entropy bonus.
    pub entropy_coef: f64,
    /// Truncated importance sampling.
    pub tis: Option<TisConfig>,
    /// How tokens are averaged.
    pub reduction: LossReduction,
}

/// Shape of the learning rate over optimizer updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ScheduleKind {
    /// lr after warm-up.
    Constant,
    /// Straight line from lr to min_lr over decay_steps.
    Linear,
    /// Half a cosine from lr to min_lr over decay_steps.
    Cosine,
}

/// AdamW and its schedule. Position in the schedule is the number of optimizer updates done, nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OptimizerConfig {
    /// Peak learning rate.
    pub lr: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay, applied to matrices only (norms and biases are exempt).
    pub weight_decay: f64,
    /// Global gradient norm is clipped to this; 0 switches clipping off.
    pub clip_grad_norm: f64,
    /// Shape after warm-up.
    pub schedule: ScheduleKind,
    /// Linear warm-up from lr / warmup_steps.
    pub warmup_steps: u64,
    /// Updates from 0 to min_lr (Linear and Cosine).
    pub decay_steps: u64,
    /// Floor of the schedule.
    pub min_lr: f64,
}
