//! What happens to children, on suspension, and on request.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What becomes of a child made from a template when its RLJob is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ChildPolicy {
    /// It stays, without an owner.
    Retain,
    /// It is deleted too.
    Delete,
}

/// What becomes of children when the RLJob is deleted. A child that was only referred to always stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeletionPolicy {
    /// The ServingCluster; by default Delete when it is a template, else Retain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serving: Option<ChildPolicy>,
    /// The RolloutPool; by default Delete when it is a template, else Retain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<ChildPolicy>,
}

/// What a suspension does to serving.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ServingSuspendPolicy {
    /// Engines keep answering.
    #[default]
    Keep,
    /// Engines made from a template are scaled to zero.
    ScaleToZero,
}

/// What a suspension does beyond stopping the trainer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SuspendPolicy {
    /// The engines.
    #[serde(default)]
    pub serving: ServingSuspendPolicy,
}

/// Asks for a restart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Restart {
    /// Any change restarts the trainer, uncounted; it is also the only way out of Failed.
    #[schemars(length(min = 1, max = 256))]
    pub token: String,
}
