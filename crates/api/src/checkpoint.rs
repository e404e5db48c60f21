//! Commits and evaluations.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::defaults;

/// When the run's state becomes a commit, and how many are kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Checkpoint {
    /// Steps between two commits.
    #[serde(default = "defaults::checkpoint_every")]
    #[schemars(range(min = 1))]
    pub every_steps: u64,
    /// Commits kept.
    #[serde(default = "defaults::checkpoint_keep")]
    #[schemars(range(min = 1, max = 1000))]
    pub keep: u32,
}

impl Default for Checkpoint {
    fn default() -> Self {
        Self { every_steps: defaults::checkpoint_every(), keep: defaults::checkpoint_keep() }
    }
}

/// Evaluation on the held-out prompts (`data.evalPath`), greedy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Eval {
    /// Steps between two evaluations.
    #[schemars(range(min = 1))]
    pub every_steps: u64,
    /// Prompts used: the first ones of the file.
    #[serde(default = "defaults::eval_prompts")]
    #[schemars(range(min = 1, max = 1048576))]
    pub prompts: u32,
}
