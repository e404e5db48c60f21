//! How responses are drawn and how many make a step.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::defaults;

/// How responses are drawn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Sampling {
    /// Responses per prompt: the size of a prompt group.
    #[serde(default = "defaults::samples_per_prompt")]
    #[schemars(range(min = 1, max = 1024))]
    pub samples_per_prompt: u32,
    /// Softmax temperature. Near 0 there is no policy to learn from.
    #[serde(default = "defaults::temperature")]
    #[x_kube(validation = Rule::new("self >= 0.001 && self <= 1000.0").message("must be between 0.001 and 1000"))]
    pub temperature: f64,
    /// Longest response, in tokens.
    #[schemars(range(min = 1, max = 1048576))]
    pub max_new_tokens: u32,
    /// Strings that end a response, each a single token of the tokenizer. The model's end-of-sequence tokens always do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub stop: Vec<String>,
    /// Seed of all sampling in the run.
    #[serde(default)]
    pub seed: u64,
}

/// How many groups make a step, and how many rollouts an optimizer update.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.overSampling) || self.overSampling >= self.promptsPerStep").message("overSampling must be at least promptsPerStep").field_path(".overSampling"))]
pub struct Batch {
    /// Prompt groups per step.
    #[schemars(range(min = 1, max = 1048576))]
    pub prompts_per_step: u32,
    /// Rollouts per optimizer update; by default all of the step. Must divide promptsPerStep × samplesPerPrompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub global_batch_size: Option<u32>,
    /// Groups asked for at a time in Sync mode; those beyond promptsPerStep are dropped. By default promptsPerStep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub over_sampling: Option<u32>,
    /// Drop groups that teach nothing and generate others in their place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dynamic_filter: Option<DynamicFilter>,
}

/// Which groups are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DynamicFilter {
    /// Groups whose rewards are not all alike.
    NonZeroStd,
}
