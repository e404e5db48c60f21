//! The trainer: devices, layout, and what to do when it fails or is edited.

use k8s_openapi::api::core::v1::ResourceRequirements;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{PodTemplate, defaults};

/// The trainer of a run. An edit of anything that shapes an attempt restarts the trainer alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("(self.nodes * self.accelerator.perNode) % self.parallelism.tp == 0").message("nodes x accelerator.perNode must be divisible by parallelism.tp").field_path(".parallelism"))]
#[x_kube(validation = Rule::new("!has(self.parallelism.dp) || self.parallelism.dp * self.parallelism.tp == self.nodes * self.accelerator.perNode").message("dp x tp must equal nodes x accelerator.perNode").field_path(".parallelism"))]
pub struct Trainer {
    /// Pods of an attempt.
    #[serde(default = "defaults::one")]
    #[schemars(range(min = 1, max = 1024))]
    pub nodes: u32,
    /// Devices of each pod.
    pub accelerator: Accelerator,
    /// How the model and the data are split over the devices.
    #[serde(default)]
    pub parallelism: Parallelism,
    /// Most tokens (prompt and response) in a micro-batch of one rank; a longer sample sits alone.
    #[serde(default = "defaults::max_tokens")]
    #[schemars(range(min = 1))]
    pub max_tokens_per_micro_batch: u64,
    /// Compute activations again in the backward pass instead of keeping them.
    #[serde(default)]
    pub recompute: bool,
    /// Image; by default the operator's own trainer image of the vendor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Requests and limits of the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// Anything else about the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_template: Option<PodTemplate>,
    /// What an edit does to the living attempt.
    #[serde(default)]
    pub update_policy: UpdatePolicy,
    /// What a failure does.
    #[serde(default)]
    pub failure_policy: FailurePolicy,
    /// Longest time from the start of an attempt until all its ranks are ready.
    #[serde(default = "defaults::startup_deadline")]
    #[schemars(range(min = 1))]
    pub startup_deadline_seconds: u32,
    /// Longest time without a finished step before the attempt counts as failed; 0 only reports.
    #[serde(default)]
    pub progress_deadline_seconds: u32,
    /// Time a rank has between SIGTERM and SIGKILL.
    #[serde(default = "defaults::trainer_grace")]
    #[schemars(range(min = 1, max = 86400))]
    pub termination_grace_period_seconds: u32,
}

impl Trainer {
    /// Ranks of an attempt: one per device.
    pub fn world_size(&self) -> u32 {
        self.nodes.saturating_mul(self.accelerator.per_node)
    }

    /// The data-parallel size: as asked, else what is left of the devices.
    pub fn dp(&self) -> u32 {
        self.parallelism.dp.unwrap_or_else(|| self.world_size() / self.parallelism.tp.max(1))
    }
}

/// Devices of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Accelerator {
    /// Kind of device. May change only while suspended.
    pub vendor: Vendor,
    /// Devices per pod; one rank each.
    #[serde(default = "defaults::one")]
    #[schemars(range(min = 1, max = 64))]
    pub per_node: u32,
}

/// Kinds of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Vendor {
    /// No accelerator: a rank is a process with its share of the cores. Asks for no extended resource.
    Cpu,
}

/// How the model and the data are split over the devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Parallelism {
    /// Tensor parallel: ranks that share every layer.
    #[serde(default = "defaults::one")]
    #[schemars(range(min = 1, max = 64))]
    pub tp: u32,
    /// Data parallel; by default what is left of the devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65536))]
    pub dp: Option<u32>,
}

impl Default for Parallelism {
    fn default() -> Self {
        Self { tp: 1, dp: None }
    }
}

/// What an edit does to the living attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UpdatePolicy {
    /// When the new trainer starts.
    #[serde(default, rename = "type")]
    pub type_: UpdateType,
    /// How long to wait for the checkpoint before restarting without it.
    #[serde(default = "defaults::checkpoint_timeout")]
    #[schemars(range(min = 0, max = 86400))]
    pub checkpoint_timeout_seconds: u32,
}

impl Default for UpdatePolicy {
    fn default() -> Self {
        Self { type_: UpdateType::default(), checkpoint_timeout_seconds: defaults::checkpoint_timeout() }
    }
}

/// When an edit of the trainer takes effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum UpdateType {
    /// After a checkpoint of the living attempt: nothing is computed twice.
    #[default]
    CheckpointThenRestart,
    /// At once, from the last commit.
    Immediate,
    /// When the attempt next ends by itself.
    OnNextFailure,
}

/// What a failure does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.maxDelaySeconds >= self.baseDelaySeconds").message("maxDelaySeconds must be at least baseDelaySeconds").field_path(".maxDelaySeconds"))]
pub struct FailurePolicy {
    /// Failures in a row without a new commit that are survived.
    #[serde(default = "defaults::backoff_limit")]
    pub backoff_limit: u32,
    /// First delay before a restart that follows no new commit; doubled each time.
    #[serde(default = "defaults::base_delay")]
    pub base_delay_seconds: u32,
    /// Longest delay.
    #[serde(default = "defaults::max_delay")]
    pub max_delay_seconds: u32,
    /// Exceptions to the built-in rules (disruption: restart uncounted; exit 75: restart uncounted; exit 3: fail), first
    /// match wins.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub rules: Vec<FailureRule>,
}

impl Default for FailurePolicy {
    fn default() -> Self {
        Self {
            backoff_limit: defaults::backoff_limit(),
            base_delay_seconds: defaults::base_delay(),
            max_delay_seconds: defaults::max_delay(),
            rules: Vec::new(),
        }
    }
}

/// An exception to the built-in rules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.onExitCodes) != (has(self.onDisruption) && self.onDisruption)").message("exactly one of onExitCodes and onDisruption must be set"))]
pub struct FailureRule {
    /// Matches an attempt whose first failing rank exited with one of these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_exit_codes: Option<ExitCodes>,
    /// Matches an attempt that lost a pod to a disruption (eviction, preemption, lost node).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_disruption: Option<bool>,
    /// What to do.
    pub action: FailureAction,
}

/// A set of exit codes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExitCodes {
    /// The codes.
    #[schemars(length(min = 1, max = 255))]
    pub values: Vec<i32>,
}

/// What to do with a matched failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum FailureAction {
    /// Restart, counted against backoffLimit.
    RestartTrainer,
    /// Restart, not counted.
    RestartTrainerUncounted,
    /// The run fails.
    FailJob,
}
