//! The objective: advantages, clipping, corrections, reduction.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::defaults;

/// The objective of the reinforcement phase.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Algorithm {
    /// The estimator.
    pub name: AlgorithmName,
    /// Lower clip ε: the ratio is clipped at 1 − ε.
    #[serde(default = "defaults::clip_low")]
    #[x_kube(validation = Rule::new("self >= 0.0 && self <= 1.0").message("must be between 0 and 1"))]
    pub clip_low: f64,
    /// Upper clip ε: the ratio is clipped at 1 + ε (clip-higher when above clipLow).
    #[serde(default = "defaults::clip_high")]
    #[x_kube(validation = Rule::new("self >= 0.0").message("must not be negative"))]
    pub clip_high: f64,
    /// Dual clip: for a negative advantage the loss is at most −c·A.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self > 1.0").message("must be above 1"))]
    pub clip_c: Option<f64>,
    /// A penalty on the distance from the weights the reinforcement phase began with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kl: Option<Kl>,
    /// Weight of the entropy bonus.
    #[serde(default)]
    #[x_kube(validation = Rule::new("self >= 0.0").message("must not be negative"))]
    pub entropy_coef: f64,
    /// Truncated importance sampling: weights tokens by clamp(exp(trainer − rollout log-prob), low, high).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tis: Option<Tis>,
    /// How token losses become one number.
    #[serde(default = "defaults::loss_reduction")]
    pub loss_reduction: LossReduction,
    /// What a group's centred rewards are divided by.
    #[serde(default = "defaults::std_kind")]
    pub std_kind: StdKind,
}

/// Estimators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum AlgorithmName {
    /// Group-relative policy optimisation.
    Grpo,
}

/// A KL penalty added to the loss.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Kl {
    /// Weight of the penalty.
    #[x_kube(validation = Rule::new("self > 0.0").message("must be above 0 (leave kl out for none)"))]
    pub coef: f64,
    /// Estimator of the divergence.
    #[serde(default = "defaults::kl_kind")]
    pub kind: KlKind,
}

/// Estimators of the divergence, with d = current − reference log-prob.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum KlKind {
    /// d.
    K1,
    /// d² / 2.
    K2,
    /// exp(−d) − 1 + d.
    K3,
    /// k3 clamped to [−10, 10].
    LowVar,
}

/// Bounds of truncated importance sampling.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.low >= 0.0 && self.low <= self.high").message("must satisfy 0 <= low <= high"))]
pub struct Tis {
    /// Least weight.
    #[serde(default)]
    pub low: f64,
    /// Greatest weight.
    #[serde(default = "defaults::tis_high")]
    pub high: f64,
}

/// How token losses become one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum LossReduction {
    /// Mean over all unmasked tokens of the update.
    TokenMean,
    /// Mean over rollouts of each rollout's token mean.
    RolloutMean,
}

/// What a group's centred rewards are divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum StdKind {
    /// Standard deviation with n − 1, plus 1e-6.
    Unbiased,
    /// Standard deviation with n, plus 1e-6.
    Biased,
    /// Nothing.
    None,
}
