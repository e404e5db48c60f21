//! RLJob: one run of reinforcement learning.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Algorithm, Batch, Checkpoint, ConductorRole, Data, DeletionPolicy, Eval, Model, Optimizer, RLJobStatus, Restart,
    ResumeFrom, Reward, RolloutSource, Sampling, Scheduling, ServingSource, Storage, SuspendPolicy, Trainer, WarmStart,
    defaults,
};

/// One run of reinforcement learning.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "thresh.dev",
    version = "v1alpha1",
    kind = "RLJob",
    plural = "rljobs",
    singular = "rljob",
    shortname = "rlj",
    category = "rl",
    namespaced,
    status = "RLJobStatus",
    derive = "PartialEq",
    selectable = ".status.phase",
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Step", type_ = "string", json_path = ".status.progress.steps"),
    printcolumn(name = "Version", type_ = "integer", json_path = ".status.progress.weightVersion"),
    printcolumn(name = "Ranks", type_ = "string", json_path = ".status.ranks.summary"),
    printcolumn(name = "Serving", type_ = "string", json_path = ".status.serving.summary"),
    printcolumn(name = "Attempt", type_ = "integer", json_path = ".status.attempts"),
    printcolumn(name = "Fails", type_ = "integer", json_path = ".status.counters.failures"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"TrainerReady\")].reason", priority = "1"),
    printcolumn(name = "Queue", type_ = "string", json_path = ".spec.scheduling.queueName", priority = "1"),
    printcolumn(name = "Epoch", type_ = "integer", json_path = ".status.epoch", priority = "1"),
    printcolumn(name = "TP", type_ = "integer", json_path = ".status.attempt.parallelism.tp", priority = "1"),
    printcolumn(name = "DP", type_ = "integer", json_path = ".status.attempt.parallelism.dp", priority = "1"),
    printcolumn(name = "Ckpt", type_ = "integer", json_path = ".status.progress.lastCheckpointStep", priority = "1"),
    validation = Rule::new("self.metadata.name.size() <= 40").message("metadata.name must be at most 40 characters"),
    validation = Rule::new("self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')").message("metadata.name must be lower-case letters, digits and '-', beginning with a letter")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.model == oldSelf.model").message("model is immutable: a new model is a new run").field_path(".model"))]
#[x_kube(validation = Rule::new("self.storage == oldSelf.storage").message("storage is immutable").field_path(".storage"))]
#[x_kube(validation = Rule::new("has(self.warmStart) == has(oldSelf.warmStart) && (!has(self.warmStart) || self.warmStart == oldSelf.warmStart)").message("warmStart is immutable").field_path(".warmStart"))]
#[x_kube(validation = Rule::new("has(self.resumeFrom) == has(oldSelf.resumeFrom) && (!has(self.resumeFrom) || self.resumeFrom == oldSelf.resumeFrom)").message("resumeFrom is immutable: a run begins once").field_path(".resumeFrom"))]
#[x_kube(validation = Rule::new("!has(self.resumeFrom) || !has(self.warmStart)").message("warmStart and resumeFrom exclude each other").field_path(".resumeFrom"))]
#[x_kube(validation = Rule::new("!has(self.resumeFrom) || !has(self.resumeFrom.step) || self.resumeFrom.step < self.totalSteps").message("totalSteps must be above resumeFrom.step").field_path(".totalSteps"))]
#[x_kube(validation = Rule::new("self.data == oldSelf.data").message("data is immutable: other data is a new run").field_path(".data"))]
#[x_kube(validation = Rule::new("self.sampling == oldSelf.sampling").message("sampling is immutable: other sampling is a new run").field_path(".sampling"))]
#[x_kube(validation = Rule::new("self.mode == oldSelf.mode").message("mode is immutable").field_path(".mode"))]
#[x_kube(validation = Rule::new("has(self.maxStaleness) == has(oldSelf.maxStaleness) && (!has(self.maxStaleness) || self.maxStaleness == oldSelf.maxStaleness)").message("maxStaleness is immutable").field_path(".maxStaleness"))]
#[x_kube(validation = Rule::new("has(self.stalenessPolicy) == has(oldSelf.stalenessPolicy) && (!has(self.stalenessPolicy) || self.stalenessPolicy == oldSelf.stalenessPolicy)").message("stalenessPolicy is immutable").field_path(".stalenessPolicy"))]
#[x_kube(validation = Rule::new("self.batch == oldSelf.batch").message("batch is immutable: other batch sizes are a new run").field_path(".batch"))]
#[x_kube(validation = Rule::new("self.reward == oldSelf.reward").message("reward is immutable: another reward is a new run").field_path(".reward"))]
#[x_kube(validation = Rule::new("self.algorithm.name == oldSelf.algorithm.name").message("algorithm.name is immutable").field_path(".algorithm"))]
#[x_kube(validation = Rule::new("self.trainer.accelerator.vendor == oldSelf.trainer.accelerator.vendor || oldSelf.suspend").message("trainer.accelerator.vendor may change only while suspended").field_path(".trainer"))]
#[x_kube(validation = Rule::new("has(self.managedBy) == has(oldSelf.managedBy) && (!has(self.managedBy) || self.managedBy == oldSelf.managedBy)").message("managedBy is immutable").field_path(".managedBy"))]
#[x_kube(validation = Rule::new("(has(self.scheduling) && has(self.scheduling.queueName) ? self.scheduling.queueName : '') == (has(oldSelf.scheduling) && has(oldSelf.scheduling.queueName) ? oldSelf.scheduling.queueName : '') || oldSelf.suspend").message("scheduling.queueName may change only while suspended").field_path(".scheduling"))]
#[x_kube(validation = Rule::new("self.model.source.startsWith('pvc://' + self.storage.claimName + '/')").message("model.source must be on storage.claimName").field_path(".model"))]
#[x_kube(validation = Rule::new("self.mode == 'Async' || !has(self.maxStaleness)").message("maxStaleness is only allowed with mode Async").field_path(".maxStaleness"))]
#[x_kube(validation = Rule::new("self.mode == 'Async' || !has(self.stalenessPolicy)").message("stalenessPolicy is only allowed with mode Async").field_path(".stalenessPolicy"))]
#[x_kube(validation = Rule::new("!has(self.batch.globalBatchSize) || (self.batch.promptsPerStep * self.sampling.samplesPerPrompt) % self.batch.globalBatchSize == 0").message("batch.globalBatchSize must divide batch.promptsPerStep x sampling.samplesPerPrompt").field_path(".batch"))]
#[x_kube(validation = Rule::new("(self.trainer.nodes * self.trainer.accelerator.perNode) / self.trainer.parallelism.tp <= (has(self.batch.globalBatchSize) ? self.batch.globalBatchSize : self.batch.promptsPerStep * self.sampling.samplesPerPrompt)").message("an update must hold at least one rollout per data-parallel rank").field_path(".batch"))]
#[x_kube(validation = Rule::new("!has(self.warmStart) || !has(self.warmStart.stopAtPassRate) || has(self.data.evalPath)").message("warmStart.stopAtPassRate needs data.evalPath").field_path(".warmStart"))]
#[x_kube(validation = Rule::new("!has(self.eval) || has(self.data.evalPath)").message("eval needs data.evalPath").field_path(".eval"))]
pub struct RLJobSpec {
    /// Stop the trainer after a checkpoint; serving is untouched unless `suspendPolicy` says otherwise.
    #[serde(default)]
    pub suspend: bool,
    /// Who acts on this object: `thresh.dev/operator` (as when it is left out) or `kueue.x-k8s.io/multikueue`. What another
    /// controller manages, this one leaves alone altogether.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self == 'thresh.dev/operator' || self == 'kueue.x-k8s.io/multikueue'").message("managedBy must be thresh.dev/operator or kueue.x-k8s.io/multikueue"))]
    pub managed_by: Option<String>,
    /// What is trained.
    pub model: Model,
    /// Where everything lives.
    pub storage: Storage,
    /// Supervised training before step 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm_start: Option<WarmStart>,
    /// Begin with the weights, the optimizer and the step of another run's commit instead of `model.init`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume_from: Option<ResumeFrom>,
    /// The prompts.
    pub data: Data,
    /// How responses are drawn.
    pub sampling: Sampling,
    /// Sync waits for the step's groups; Async takes groups as they finish.
    #[serde(default = "defaults::mode")]
    pub mode: Mode,
    /// Most versions a sample may be behind the weights it is trained with, in Async mode; by default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_staleness: Option<u32>,
    /// What becomes of a group that is staler, in Async mode; by default Requeue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub staleness_policy: Option<StalenessPolicy>,
    /// Sizes of steps and updates.
    pub batch: Batch,
    /// Steps of reinforcement. May be edited while the run lives.
    #[schemars(range(min = 1))]
    pub total_steps: u64,
    /// How a response is judged.
    pub reward: Reward,
    /// The objective. An edit restarts the trainer.
    pub algorithm: Algorithm,
    /// The optimizer. An edit restarts the trainer.
    pub optimizer: Optimizer,
    /// The trainer.
    pub trainer: Trainer,
    /// The conductor's pod.
    #[serde(default)]
    pub conductor: ConductorRole,
    /// The engines.
    pub serving: ServingSource,
    /// The workers.
    pub rollout: RolloutSource,
    /// Commits.
    #[serde(default)]
    pub checkpoint: Checkpoint,
    /// Evaluations. May be edited while the run lives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval: Option<Eval>,
    /// Queue, gang and priorities of the trainer's pods. An edit takes effect with the next attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduling: Option<Scheduling>,
    /// What becomes of children when the RLJob is deleted.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
    /// What a suspension does to serving.
    #[serde(default)]
    pub suspend_policy: SuspendPolicy,
    /// Asks for a restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart: Option<Restart>,
    /// The run fails when it is not done this long after its first attempt began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub active_deadline_seconds: Option<u64>,
    /// The RLJob is deleted this long after it became Complete or Failed; never when left out. On a laptop it stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds_after_finished: Option<u64>,
}

/// How groups are admitted to a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Mode {
    /// A step's groups are generated with the step's own weights.
    Sync,
    /// Groups are generated while the trainer works, within `maxStaleness`.
    Async,
}

/// What becomes of a group that is too stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum StalenessPolicy {
    /// It is dropped, and listed with its reason.
    Drop,
    /// Its prompt is generated again.
    Requeue,
}
