//! AdamW and its learning-rate schedule.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::defaults;

/// AdamW.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Optimizer {
    /// Peak learning rate. 0 trains nothing (a control run).
    #[x_kube(validation = Rule::new("self >= 0.0 && self <= 1.0").message("must be between 0 and 1"))]
    pub lr: f64,
    /// Decay of the first and second moment.
    #[serde(default = "defaults::betas")]
    #[x_kube(validation = Rule::new("self.all(b, b >= 0.0 && b < 1.0)").message("each must be at least 0 and below 1"))]
    pub betas: [f64; 2],
    /// Added to the root of the second moment.
    #[serde(default = "defaults::eps")]
    #[x_kube(validation = Rule::new("self > 0.0").message("must be above 0"))]
    pub eps: f64,
    /// Decoupled weight decay.
    #[serde(default)]
    #[x_kube(validation = Rule::new("self >= 0.0 && self <= 1.0").message("must be between 0 and 1"))]
    pub weight_decay: f64,
    /// Largest global gradient norm; 0 clips nothing.
    #[serde(default = "defaults::clip_grad_norm")]
    #[x_kube(validation = Rule::new("self >= 0.0").message("must not be negative"))]
    pub clip_grad_norm: f64,
    /// Learning rate over the updates.
    #[serde(default)]
    pub schedule: Schedule,
}

/// Learning rate over the updates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Schedule {
    /// Shape after the warm-up.
    #[serde(default = "defaults::schedule_kind")]
    pub kind: ScheduleKind,
    /// Updates over which the rate rises linearly to `lr`.
    #[serde(default)]
    pub warmup_steps: u64,
    /// Updates after which a decay has reached `minLr`; by default all updates of the phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub decay_steps: Option<u64>,
    /// Rate at the end of a decay.
    #[serde(default)]
    #[x_kube(validation = Rule::new("self >= 0.0 && self <= 1.0").message("must be between 0 and 1"))]
    pub min_lr: f64,
}

impl Default for Schedule {
    fn default() -> Self {
        Self { kind: defaults::schedule_kind(), warmup_steps: 0, decay_steps: None, min_lr: 0.0 }
    }
}

/// Shape of the learning rate after the warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ScheduleKind {
    /// Stays at `lr`.
    Constant,
    /// Falls linearly to `minLr`.
    Linear,
    /// Falls along half a cosine to `minLr`.
    Cosine,
}
