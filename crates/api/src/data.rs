//! The prompts, what a good answer is, and the supervised warm start.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Optimizer, defaults};

/// A JSONL data set on the volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Data {
    /// Training prompts: a JSONL file, relative to the volume's root.
    #[schemars(length(max = 1024))]
    #[x_kube(validation = Rule::new("self != '' && !self.startsWith('/') && !self.contains('..')").message("must be a path relative to the volume's root"))]
    pub path: String,
    /// Held-out prompts for the warm start's pass rate and for `eval`, relative to the volume's root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    #[x_kube(validation = Rule::new("self != '' && !self.startsWith('/') && !self.contains('..')").message("must be a path relative to the volume's root"))]
    pub eval_path: Option<String>,
    /// Field of a row that holds the prompt.
    #[serde(default = "defaults::prompt_key")]
    pub prompt_key: String,
    /// Field of a row that holds what the reward compares with.
    #[serde(default = "defaults::label_key")]
    pub label_key: String,
    /// Seed of the order of the rows; epoch `e` is shuffled with `shuffleSeed + e`.
    #[serde(default = "defaults::shuffle_seed")]
    pub shuffle_seed: u64,
}

/// How a response is judged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Reward {
    /// The reward function.
    pub kind: RewardKind,
}

/// Built-in reward functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RewardKind {
    /// 1 if the trimmed response equals the row's label, else 0.
    ExactMatch,
}

/// Supervised training before step 0, so that the policy is sometimes right when reinforcement begins.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.checkEverySteps <= self.maxSteps").message("checkEverySteps must not exceed maxSteps").field_path(".checkEverySteps"))]
pub struct WarmStart {
    /// Rows to imitate: a JSONL file, relative to the volume's root.
    #[schemars(length(max = 1024))]
    #[x_kube(validation = Rule::new("self != '' && !self.startsWith('/') && !self.contains('..')").message("must be a path relative to the volume's root"))]
    pub data: String,
    /// Field of a row that holds the prompt.
    #[serde(default = "defaults::prompt_key")]
    pub prompt_key: String,
    /// Field of a row that holds the completion to imitate.
    #[serde(default = "defaults::completion_key")]
    pub completion_key: String,
    /// Optimizer of the warm start; its state is dropped before step 0.
    pub optimizer: Optimizer,
    /// Rows per update.
    #[schemars(range(min = 1, max = 1048576))]
    pub batch_size: u32,
    /// Most updates.
    #[schemars(range(min = 1))]
    pub max_steps: u64,
    /// Stop as soon as this share of `evalPrompts` is answered right. Needs `data.evalPath`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self > 0.0 && self <= 1.0").message("must be above 0 and at most 1"))]
    pub stop_at_pass_rate: Option<f64>,
    /// Updates between two measurements of the pass rate.
    #[serde(default = "defaults::check_every_steps")]
    #[schemars(range(min = 1))]
    pub check_every_steps: u64,
    /// Held-out prompts used for a measurement.
    #[serde(default = "defaults::eval_prompts")]
    #[schemars(range(min = 1, max = 1048576))]
    pub eval_prompts: u32,
}
