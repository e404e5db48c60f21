//! What is known of a run: the state machine's memory, and a summary for people. `phase` is computed from the rest and read
//! by nobody.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, MicroTime};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Status of an RLJob. Every instant is of the operator's own clock.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct RLJobStatus {
    /// Generation of the spec this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// One word for people, computed from the conditions.
    #[serde(default)]
    pub phase: Phase,
    /// What holds, with evidence.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// Highest attempt ever numbered. Written before the attempt's first child exists.
    #[serde(default)]
    pub attempts: u64,
    /// The living attempt; absent between attempts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<AttemptStatus>,
    /// Hash of the wanted trainer, where it differs from the living attempt's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending_revision: Option<String>,
    /// How the last attempt ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_attempt: Option<LastAttempt>,
    /// Every pod of this attempt and of all before is known to be gone (by a consistent list).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gone_through: Option<u64>,
    /// Attempts up to this one are refused by the conductor: pods of them may live, but cannot write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fenced_through: Option<u64>,
    /// The conductor was told to refuse attempts up to this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence_asked: Option<u64>,
    /// First sight of the conductor's pod on a lost node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conductor_lost_since: Option<MicroTime>,
    /// Restarts and failures so far.
    #[serde(default)]
    pub counters: Counters,
    /// When the next attempt may begin, while backing off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_retry_time: Option<MicroTime>,
    /// The last `restart.token` acted on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_token: Option<String>,
    /// Settings last sent to the conductor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings: Option<SettingsHeld>,
    /// What was resolved once for the run, outside the hash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frozen: Option<Frozen>,
    /// Where the run is, as its conductor says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// Ranks of the attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranks: Option<Ranks>,
    /// Engines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serving: Option<ServingSummary>,
    /// Workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutSummary>,
    /// Last trainer epoch seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    /// When the first attempt began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<MicroTime>,
    /// When the run became Complete or Failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<MicroTime>,
}

/// One word for people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum Phase {
    /// Accepted, nothing made yet.
    #[default]
    Pending,
    /// The attempt waits for its queue.
    Queued,
    /// Conductor, engines and workers come up.
    Preparing,
    /// The trainer's pods come up.
    Starting,
    /// Training.
    Running,
    /// Between two attempts.
    Restarting,
    /// Saving and stopping, by request.
    Suspending,
    /// Stopped, by request.
    Suspended,
    /// Done.
    Complete,
    /// Failed.
    Failed,
    /// Being deleted.
    Terminating,
}

impl std::fmt::Display for Phase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Every variant is one bare word.
        write!(f, "{self:?}")
    }
}

/// The living attempt.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AttemptStatus {
    /// Its number, from 1.
    pub id: u64,
    /// Name of its Job.
    pub job_name: String,
    /// Uid of its Job, once seen: after that, absence means it was deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_uid: Option<String>,
    /// Hash of meaning it runs.
    pub revision: String,
    /// What runs, not what is asked.
    pub parallelism: ParallelismStatus,
    /// Pods it has.
    pub nodes: u32,
    /// Why it was started.
    pub reason: AttemptCause,
    /// When it was numbered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<MicroTime>,
    /// When its children were last asked for. Creation goes with a status write, which is refused for a stale
    /// object, or follows a look at the API server itself that found this version of the object and no Job: a decision from a stale
    /// object cannot bring a superseded attempt back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_time: Option<MicroTime>,
    /// When its Job was first seen free to run. Until then a queue holds it, and no deadline runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub released_time: Option<MicroTime>,
    /// Generation its Job had then: a later generation that is suspended was taken back by its queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub released_generation: Option<i64>,
    /// When all ranks were first ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_time: Option<MicroTime>,
    /// Commits of the run when it was numbered.
    #[serde(default)]
    pub commits_at_start: u64,
    /// The checkpoint it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopping: Option<Stopping>,
    /// The end of it as it unfolds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ending: Option<Ending>,
}

/// Split of the devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ParallelismStatus {
    /// Data parallel.
    pub dp: u32,
    /// Tensor parallel.
    pub tp: u32,
}

/// Why an attempt was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AttemptCause {
    /// The first one.
    #[default]
    First,
    /// The one before failed.
    Failure,
    /// The one before lost a pod to the cluster (eviction, preemption, lost node) or to a hand, or its quota to its queue.
    Disruption,
    /// The spec was edited.
    SpecChange,
    /// A new restart token.
    Token,
    /// Suspended before.
    Resume,
}

/// An attempt on its way out, by our own decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Stopping {
    /// Why.
    pub reason: StopReason,
    /// Since when.
    pub since: MicroTime,
    /// The checkpoint waited for, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointAsked>,
}

/// Why we end an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum StopReason {
    /// The spec was edited.
    SpecChange,
    /// `suspend: true`.
    Suspend,
    /// A new restart token.
    Token,
}

/// A checkpoint asked of the conductor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointAsked {
    /// Name of the request; repeats are the same request.
    pub id: String,
    /// After this we go on without.
    pub deadline: MicroTime,
}

/// The end of an attempt as it unfolds: evidence is written down as it is seen, since pod objects vanish.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Ending {
    /// First sight of a lost or ended pod.
    pub first_seen: MicroTime,
    /// What was seen of each pod, by name; the first cause of each.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pods: BTreeMap<String, PodEnd>,
}

/// How a pod ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodEnd {
    /// What it means.
    pub outcome: Outcome,
    /// Exit code of the container, if it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Its index in the Job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<u32>,
    /// Where it ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// First sight of it, Unix microseconds of our own clock.
    #[serde(default)]
    pub seen_us: i64,
    /// When the container ended, Unix microseconds (of its node's clock; only ever compared within an attempt, to name the
    /// rank that failed first).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_us: Option<i64>,
    /// For people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// What an ended pod, or attempt, means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum Outcome {
    /// Exit 0, and `finished` is journaled.
    Complete,
    /// Exit 75, or ended by our own decision: uncounted.
    Stopped,
    /// Deleted by a hand: uncounted.
    Deleted,
    /// Evicted, preempted, node lost: uncounted.
    Disrupted,
    /// Its queue took the quota back: uncounted.
    Preempted,
    /// Exit 3: the user must act.
    UserError,
    /// Evicted for memory, or killed for it: counted.
    OutOfMemory,
    /// Any other end: counted.
    Failed,
    /// Not ready in time: counted.
    StartupDeadline,
    /// No step in time: counted.
    NoProgress,
    /// Ended for an edit: uncounted.
    SpecChange,
    /// Ended for a new restart token: uncounted.
    Requested,
    /// Ended for a suspension: uncounted.
    Suspended,
}

impl Outcome {
    /// For people, after "attempt 3".
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Complete => "completed the run",
            Self::Stopped => "stopped as asked",
            Self::Deleted => "was deleted",
            Self::Disrupted => "was lost to the cluster",
            Self::Preempted => "was preempted by its queue",
            Self::UserError => "failed and needs you",
            Self::OutOfMemory => "ran out of memory",
            Self::Failed => "failed",
            Self::StartupDeadline => "was not ready in time",
            Self::NoProgress => "made no progress",
            Self::SpecChange => "ended for an edit",
            Self::Requested => "ended for a new restart token",
            Self::Suspended => "ended for a suspension",
        }
    }
}

/// How the last attempt ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastAttempt {
    /// Its number.
    pub id: u64,
    /// When we decided that it had ended.
    pub end_time: MicroTime,
    /// What it means.
    pub outcome: Outcome,
    /// Exit code of the rank that failed first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Index of the pod that failed first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_name: Option<String>,
    /// Its node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// For people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// Restarts and failures so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Counters {
    /// Failures in all.
    #[serde(default)]
    pub failures: u32,
    /// Failures since the last new commit; the only one compared with backoffLimit.
    #[serde(default)]
    pub failures_since_progress: u32,
    /// Ends of any cause since the last new commit: the exponent of the backoff.
    #[serde(default)]
    pub restarts_since_progress: u32,
    /// Commits of the run when the two above were last set to 0.
    #[serde(default)]
    pub commits_seen: u64,
    /// Attempts lost to disruptions and hands.
    #[serde(default)]
    pub disruptions: u32,
    /// Attempts whose queue took their quota back.
    #[serde(default)]
    pub preemptions: u32,
    /// Attempts ended for an edit.
    #[serde(default)]
    pub spec_restarts: u32,
    /// Attempts ended or started on request (token, suspend).
    #[serde(default)]
    pub requested: u32,
}

/// Settings last sent to the conductor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SettingsHeld {
    /// Their number; rises with every change.
    pub number: u64,
    /// Hash of their content.
    pub hash: String,
}

/// Resolved once for a run: an operator upgrade changes none of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Frozen {
    /// Image of the trainer.
    pub trainer_image: String,
    /// Image of conductor, workers and native engines.
    pub rollout_image: String,
}

/// Where the run is. Written at most every few seconds, and only when changed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// Step to run next.
    #[serde(default)]
    pub step: u64,
    /// Steps wanted.
    #[serde(default)]
    pub total_steps: u64,
    /// `step/total`, for the column.
    #[serde(default)]
    pub steps: String,
    /// Warm-start update to run next.
    #[serde(default)]
    pub warm_step: u64,
    /// Version every admitted engine has acknowledged.
    #[serde(default)]
    pub weight_version: u64,
    /// Tokens generated and trained per second in the last step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_second: Option<f64>,
    /// Mean raw reward of the last step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reward_mean: Option<f64>,
    /// Step of the last commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_checkpoint_step: Option<u64>,
    /// When we first saw that commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_checkpoint_time: Option<MicroTime>,
    /// Commits so far.
    #[serde(default)]
    pub commits: u64,
    /// When this was last written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heartbeat_time: Option<MicroTime>,
    /// When we first saw this step (or warm-start update).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_time: Option<MicroTime>,
}

/// Ranks of the attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Ranks {
    /// Wanted.
    pub desired: u32,
    /// In pods that are ready.
    pub ready: u32,
    /// `ready/desired`, for the column.
    #[serde(default)]
    pub summary: String,
}

/// Engines of the run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServingSummary {
    /// Name of the ServingCluster.
    pub name: String,
    /// Engines that answer (and are current, once there is a version).
    pub ready: u32,
    /// Wanted.
    pub desired: u32,
    /// `ready/desired`, for the column.
    #[serde(default)]
    pub summary: String,
    /// Oldest version an engine serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_weight_version: Option<u64>,
}

/// Workers of the run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutSummary {
    /// Name of the RolloutPool.
    pub name: String,
    /// Workers that are ready.
    pub ready: u32,
    /// Wanted.
    pub desired: u32,
    /// Groups leased now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inflight: Option<u64>,
}
