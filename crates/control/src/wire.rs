//! The messages between conductor, workers, trainer and operator. Bodies are references into straw, never tensors.
//!
//! | from | to | path | request → reply |
//! |---|---|---|---|
//! | conductor | worker | `POST /v1/runs` | [`Invite`] → [`InviteAck`] |
//! | worker | conductor | `POST /v1/lease` | [`LeaseRequest`] → [`LeaseReply`] (long poll) |
//! | worker | conductor | `POST /v1/renew` | [`RenewRequest`] → [`RenewReply`] (many leases in one call; from memory) |
//! | worker | conductor | `POST /v1/complete` | [`CompleteRequest`] → [`CompleteReply`] (many results in one call; idempotent) |
//! | worker | conductor | `POST /v1/fail` | [`FailRequest`] → [`FailReply`] |
//! | trainer rank 0 | conductor | `POST /v1/claim` | [`ClaimRequest`] → [`ClaimReply`] |
//! | trainer rank 0 | conductor | `POST /v1/next` | [`NextRequest`] → [`NextReply`] (long poll, also the heartbeat) |
//! | trainer rank 0 | conductor | `POST /v1/report` | [`ReportRequest`] → [`ReportReply`] (idempotent) |
//! | operator | conductor | `GET /v1/progress` | → [`Progress`] |
//! | operator | conductor | `POST /v1/settings` | [`SettingsRequest`] → [`SettingsReply`] |
//! | operator | conductor | `POST /v1/checkpoint` | [`CheckpointRequest`] → [`CheckpointReply`] |
//! | a person | conductor | `POST /v1/compact` | [`CompactRequest`] → [`CompactReply`] |
//!
//! Every request carries `Authorization: Bearer <token>`. Every reply carries the conductor's epoch; a client that has met
//! a higher one refuses a lower one ([`crate::client`]). Refusals are a [`Refusal`] with a 4xx or 503 status.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use straw::Ref;

/// A conductor epoch: raised by each claim of the run's journal.
pub type ConductorEpoch = u64;
/// A trainer epoch: raised by each claim of a trainer's rank 0. Conductor failover never touches it.
pub type TrainerEpoch = u64;

/// Why a request was refused, in a form the caller can act on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RefusalKind {
    /// Bad or missing token.
    Unauthorized,
    /// The caller's trainer epoch or attempt is superseded: stop, do not retry.
    Fenced,
    /// The conductor itself has been superseded: find its successor and offer again.
    ConductorSuperseded,
    /// The lease is not held (expired, completed by another, unknown): drop the work.
    LeaseLost,
    /// The pack that the result lies in was collected, since nothing referred to it for a long time: publish it again, into
    /// another pack, and offer that.
    PackCollected,
    /// The request contradicts what is recorded: a bug or a corrupt message; do not retry.
    Invalid,
    /// Not possible now (starting, storage unavailable): retry after a while.
    Unavailable,
}

/// The body of every refusal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Refusal {
    /// What to do about it.
    pub kind: RefusalKind,
    /// What happened, for a person.
    pub message: String,
    /// Epoch of the conductor that answered (0 when it holds none).
    pub conductor_epoch: ConductorEpoch,
}

// ---------------------------------------------------------------- workers

/// The conductor invites a worker of its pool into a run; again after every restart of either.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Invite {
    /// Run uid.
    pub run: String,
    /// Base URL of the conductor, `http://host:port`.
    pub conductor: String,
    /// Bearer token of the run.
    pub token: String,
    /// Epoch of the inviting conductor.
    pub conductor_epoch: ConductorEpoch,
    /// Folder of the run relative to the volume's root.
    pub run_dir: String,
    /// Everything a worker needs to know of the run that does not change.
    pub rollout: RolloutConfig,
}

/// How groups are generated and rewarded; fixed for a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RolloutConfig {
    /// Folder of the model (config.json, tokenizer.json) relative to the volume's root.
    pub model_dir: String,
    /// The reward function.
    pub reward: RewardConfig,
    /// Bearer token of the engines, if they want one.
    pub engine_token: Option<String>,
    /// A generate call that has not answered after this is aborted and tried elsewhere, in milliseconds.
    pub generate_timeout_ms: u64,
}

/// Built-in reward functions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RewardConfig {
    /// 1 when the response (without its stop token, trimmed) equals the label, else 0.
    ExactMatch,
}

/// A worker's answer to an [`Invite`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InviteAck {
    /// Who answered.
    pub worker: WorkerId,
    /// True when the worker already serves this run at this conductor epoch.
    pub known: bool,
}

/// A worker process. The incarnation is new at every start, so that a restarted worker is not taken for its predecessor.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerId {
    /// Pod name.
    pub name: String,
    /// Random per process.
    pub incarnation: String,
    /// Node name (cordoned nodes get no leases).
    pub node: String,
}

/// How one sample is drawn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sampling {
    /// Softmax temperature; 0 is greedy (evaluation only).
    pub temperature: f64,
    /// Longest response in tokens.
    pub max_new_tokens: u32,
    /// Token ids that end a response (the model's end-of-sequence tokens are always among them).
    pub stop_token_ids: Vec<u32>,
}

/// What a task is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum TaskKind {
    /// A prompt group of the training data.
    Train,
    /// A prompt of an evaluation.
    Eval,
}

/// One prompt group to generate and reward: a dataset row and how many samples of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupTask {
    /// Training or evaluation.
    pub kind: TaskKind,
    /// Unique in the run, across epochs of the data. Statistics are taken over it.
    pub group_index: u64,
    /// The prompt as text.
    pub prompt: String,
    /// The prompt as tokens; what is sent to the engine.
    pub prompt_tokens: Vec<u32>,
    /// What the reward compares with.
    pub label: String,
    /// Samples to draw.
    pub samples: u32,
    /// Seed of each sample, `samples` long: a function of (run seed, group_index, sample), never of step, rank or engine.
    pub seeds: Vec<u64>,
    /// How to draw.
    pub sampling: Sampling,
}

/// An engine a worker may use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EngineAddress {
    /// Pod name.
    pub name: String,
    /// `http://host:port`.
    pub url: String,
}

/// Ask for work. The conductor holds the request until there is some or `wait_ms` has passed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LeaseRequest {
    /// Who asks.
    pub worker: WorkerId,
    /// At most this many groups.
    pub want: u32,
    /// Longest time the reply may be held back.
    pub wait_ms: u64,
}

/// Work, and who can do it. Every lease carries the current engine list, so a worker follows engines that come and go.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LeaseReply {
    /// Who answered.
    pub conductor_epoch: ConductorEpoch,
    /// Possibly empty.
    pub leases: Vec<Lease>,
    /// Admitted engines: live and at the current version.
    pub engines: Vec<EngineAddress>,
    /// Tasks this worker holds whose result is no longer wanted: abort them.
    pub abandon: Vec<u64>,
}

/// The right to work on a task until it expires. Renew at a third of `lease_ms`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lease {
    /// Unique across conductor epochs.
    pub lease: String,
    /// The task.
    pub task: u64,
    /// Duration from now.
    pub lease_ms: u64,
    /// What to do.
    pub group: GroupTask,
}

/// Keep leases alive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RenewRequest {
    /// Who asks.
    pub worker: WorkerId,
    /// (lease, task) pairs held.
    pub leases: Vec<(String, u64)>,
}

/// Which leases are gone, and the engines of the moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RenewReply {
    /// Who answered.
    pub conductor_epoch: ConductorEpoch,
    /// Leases not held any more (a new conductor holds none; finished work may still be offered by `complete`).
    pub lost: Vec<String>,
    /// Admitted engines.
    pub engines: Vec<EngineAddress>,
}

/// A contiguous range of response tokens generated by one weight version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VersionSpan {
    /// Weight version.
    pub version: u64,
    /// First response token, inclusive.
    pub start: u32,
    /// Last response token, exclusive.
    pub end: u32,
}

/// Why a sample ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SampleStatus {
    /// A stop token.
    Completed,
    /// The length limit.
    Truncated,
    /// Generation or reward failed for this sample alone; its mask is zero and it takes no part in the loss.
    Failed,
}

/// One sample of a finished group, as recorded in the meta of the group's straw record ([`GroupMeta`]).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SampleMeta {
    /// Place in the group.
    pub index: u32,
    /// How it ended.
    pub status: SampleStatus,
    /// Raw reward.
    pub reward: f64,
    /// Temperature it was drawn at: its log-probs are of that distribution.
    pub temperature: f64,
    /// Versions of its response tokens, in order, without gaps.
    pub versions: Vec<VersionSpan>,
    /// Engine that produced it.
    pub engine: String,
    /// What went wrong, when it failed.
    pub error: Option<String>,
}

/// Meta (JSON) of a group's straw record. Its tensors: `tokens` I32 [sum of prompt + response lengths], `cu_tokens` I64
/// [n + 1], `response_lens` I32 [n], `loss_mask` U8 [sum of response lengths], `rollout_log_probs` F32 [sum of response lengths].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupMeta {
    /// The group.
    pub group_index: u64,
    /// Training or evaluation.
    pub kind: TaskKind,
    /// Samples in order of their index.
    pub samples: Vec<SampleMeta>,
}

/// What the conductor must know of a finished group without reading it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupSummary {
    /// The group.
    pub group_index: u64,
    /// Raw rewards by sample; failed samples are absent.
    pub rewards: Vec<f64>,
    /// Failed samples.
    pub failed: u32,
    /// Oldest weight version among the response tokens.
    pub version_min: u64,
    /// Newest.
    pub version_max: u64,
    /// Response tokens in all.
    pub response_tokens: u64,
    /// Prompt and response tokens in all.
    pub tokens: u64,
    /// Generate calls that were made (retries included).
    pub generate_calls: u32,
}

/// Finished groups, already durable in straw: any number in one call. What they make the conductor journal shares one sync.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CompleteRequest {
    /// Who did it.
    pub worker: WorkerId,
    /// The groups; they are taken in this order. At most [`RESULTS_MAX`].
    pub results: Vec<Finished>,
}

/// Results that one call may carry.
pub const RESULTS_MAX: usize = 4096;

/// A finished group. Idempotent by `submission`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Finished {
    /// The lease under which it was done (may be of an earlier conductor).
    pub lease: String,
    /// The task.
    pub task: u64,
    /// Unique per result.
    pub submission: String,
    /// The group's record.
    pub group: Ref,
    /// Its summary.
    pub summary: GroupSummary,
}

/// What became of an offered result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// Journaled now.
    Accepted,
    /// Journaled before, under the same submission.
    Duplicate,
    /// Another result of the task was journaled first, or the task is no longer wanted: drop it.
    Superseded,
    /// Not taken; the others of the call are not concerned.
    Refused {
        /// What the caller can do about it.
        kind: RefusalKind,
        /// What happened, for a person.
        message: String,
    },
}

impl Outcome {
    /// The result is in the journal.
    #[must_use]
    pub fn is_journaled(&self) -> bool {
        matches!(self, Self::Accepted | Self::Duplicate)
    }
}

/// Reply to [`CompleteRequest`]; sent only when all of it is durable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CompleteReply {
    /// Who answered.
    pub conductor_epoch: ConductorEpoch,
    /// What happened to each result, in the order of the request.
    pub outcomes: Vec<Outcome>,
}

/// A group that could not be generated at all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FailRequest {
    /// Who tried.
    pub worker: WorkerId,
    /// The lease.
    pub lease: String,
    /// The task.
    pub task: u64,
    /// Why.
    pub reason: String,
}

/// Reply to [`FailRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FailReply {
    /// Who answered.
    pub conductor_epoch: ConductorEpoch,
}

// ---------------------------------------------------------------- trainer

/// How the ranks of an attempt are laid out. `dp * tp * pp * cp` is the world size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Layout {
    /// Data parallel.
    pub dp: usize,
    /// Tensor parallel.
    pub tp: usize,
    /// Pipeline parallel.
    #[serde(default = "one")]
    pub pp: usize,
    /// Context parallel.
    #[serde(default = "one")]
    pub cp: usize,
}

fn one() -> usize {
    1
}

/// Rank 0 of an attempt claims the run's trainer role.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimRequest {
    /// Run uid.
    pub run: String,
    /// The operator's counter. Refused when a higher attempt has claimed, or this one was fenced.
    pub attempt: u64,
    /// Random per process: a claim repeated after a lost reply gets the same epoch.
    pub incarnation: String,
    /// Pod name, for people.
    pub pod: String,
    /// Layout of this attempt.
    pub layout: Layout,
}

/// A commit: the only recovery boundary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CommitRef {
    /// The step to run next. The commit that ends the warm start says 0.
    pub step: u64,
    /// Warm-start updates done.
    pub warm_step: u64,
    /// True while the warm start is not finished.
    pub warming: bool,
    /// Folder of the tiles, relative to the run's folder.
    pub folder: String,
    /// SHA-256 of the tiles' index.json, hex.
    pub index_digest: String,
    /// Digest of the weights (layout-independent).
    pub weights_digest: String,
}

/// Where an attempt begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Start {
    /// From a commit.
    Commit(CommitRef),
    /// From the model folder's own weights.
    Pretrained,
    /// From the model folder's config and this seed.
    Random {
        /// Seed of the initialisation.
        seed: u64,
    },
}

/// What a trainer must know; resolved by the conductor from the RLJob.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TrainConfig {
    /// Folder of the model relative to the volume's root.
    pub model_dir: String,
    /// Run's folder relative to the volume's root.
    pub run_dir: String,
    /// Objective of the RL phase.
    pub loss: rl::LossConfig,
    /// Optimizer of the RL phase (fresh moments and step count at step 0).
    pub optimizer: rl::OptimizerConfig,
    /// Optimizer of the warm start.
    pub warm_optimizer: Option<rl::OptimizerConfig>,
    /// Temperature the samples were drawn at.
    pub temperature: f64,
    /// Re-run the forward pass instead of keeping activations.
    pub recompute: bool,
}

/// The right to train.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimReply {
    /// Who answered.
    pub conductor_epoch: ConductorEpoch,
    /// Epoch of this attempt, higher than any before. Every write and report carries it.
    pub trainer_epoch: TrainerEpoch,
    /// Where to begin.
    pub start: Start,
    /// What to do.
    pub config: TrainConfig,
    /// A trainer not heard of for this long is given up by the conductor.
    pub heartbeat_timeout_ms: u64,
}

/// What rank 0 is doing, sent with every poll, shown to people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NextRequest {
    /// Run uid.
    pub run: String,
    /// This attempt's epoch.
    pub trainer_epoch: TrainerEpoch,
    /// Sequence number of the last [`Work`] finished and reported (0 at first): the conductor answers with what follows.
    pub done: u64,
    /// Longest time the reply may be held back.
    pub wait_ms: u64,
    /// What the order at hand waits for on the volume, for people.
    #[serde(default)]
    pub waiting_for: Option<String>,
}

/// The next thing to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NextReply {
    /// Who answered.
    pub conductor_epoch: ConductorEpoch,
    /// Absent: nothing yet, poll again.
    pub work: Option<Work>,
    /// Why there is nothing, for people.
    pub waiting_for: Option<String>,
}

/// One order to the trainer. Orders of one trainer epoch are numbered from 1; a repeated poll gets the same order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Work {
    /// Number within the trainer epoch.
    pub seq: u64,
    /// What to do.
    pub order: Order,
}

/// Orders to the trainer. Each is answered by the [`Report`] of the same name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Order {
    /// Learn from a batch.
    Train(TrainOrder),
    /// Write tiles; the commit record follows when they are verified.
    Save {
        /// The commit's step (the step to run next).
        step: u64,
        /// Warm-start updates done.
        warm_step: u64,
        /// True when the warm start is not finished.
        warming: bool,
        /// Folder to write, relative to the run's folder.
        folder: String,
    },
    /// Write the weights as a Hugging Face folder for the engines.
    Publish {
        /// Version it will become.
        version: u64,
        /// Folder to write, relative to the run's folder.
        folder: String,
        /// Samples to score with the weights being published; the engines score them too, and the two are compared.
        score: Option<ScoreSet>,
    },
    /// The warm start is over: drop its optimizer state, begin the RL phase with a fresh optimizer.
    BeginRl,
    /// Write the final Hugging Face checkpoint.
    Export {
        /// Folder to write, relative to the run's folder.
        folder: String,
    },
    /// Exit 75: asked to stop, everything wanted is saved.
    Stop {
        /// For the log.
        reason: String,
    },
    /// Everything is journaled: exit 0.
    Finish,
}

/// A few samples of a converted batch, to be scored by trainer and engines alike: in Async mode and after a reshard, when
/// few or no tokens of the next batch were generated by the very weights the trainer holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ScoreSet {
    /// The batch.
    pub batch: Ref,
    /// Positions in it.
    pub samples: Vec<u32>,
    /// Of each response only so many tokens, from its beginning.
    pub tokens_max: u32,
}

/// Log-probs of a [`ScoreSet`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Scores {
    /// What was scored.
    pub set: ScoreSet,
    /// `[sample][token]`, nats, under the temperature-scaled distribution.
    pub log_probs: Vec<Vec<f32>>,
}

/// Which optimizer and objective a batch belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Phase {
    /// Supervised warm start.
    WarmStart,
    /// Reinforcement learning.
    Rl,
}

/// One batch and how the ranks share it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TrainOrder {
    /// Objective and optimizer.
    pub phase: Phase,
    /// RL step, or warm-start update, both 0-based.
    pub step: u64,
    /// True when an earlier attempt was given this batch already.
    pub replay: bool,
    /// The converted batch: see [`BatchMeta`].
    pub batch: Ref,
    /// One entry per optimizer update.
    pub updates: Vec<UpdatePlan>,
    /// Digests of the weight versions that occur in the batch.
    pub version_digests: BTreeMap<u64, String>,
}

/// The micro-batches of one optimizer update. A pure function of lengths, ids and layout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UpdatePlan {
    /// Rollouts in this update (the denominator of RolloutMean).
    pub rollouts: u64,
    /// Unmasked response tokens in this update over all ranks (the denominator of TokenMean).
    pub loss_tokens: u64,
    /// `[dp rank][micro-batch][sample]`: positions in the batch. Every rank has the same number of micro-batches.
    pub micro_batches: Vec<Vec<Vec<u32>>>,
}

/// Meta (JSON) of a converted batch. Tensors, with n samples, T tokens, R response tokens: `tokens` I32 [T], `cu_tokens`
/// I64 [n + 1], `cu_response` I64 [n + 1] (a sample's response is its last tokens), `loss_mask` U8 [R],
/// `rollout_log_probs` F32 [R], `versions` I64 [R], `advantages` F32 [n], `rewards` F32 [n] (raw), `group_index` I64 [n],
/// `rollout_id` I64 [n], `rollout_mask_sum` I64 [n] (unmasked tokens of the sample's whole rollout).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BatchMeta {
    /// Objective.
    pub phase: Phase,
    /// RL step or warm-start update.
    pub step: u64,
    /// Samples.
    pub samples: u64,
}

/// Rank 0 tells what was done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReportRequest {
    /// Run uid.
    pub run: String,
    /// This attempt's epoch.
    pub trainer_epoch: TrainerEpoch,
    /// The order's number.
    pub seq: u64,
    /// What was done.
    pub report: Report,
}

/// Answers to [`Order`]s.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Report {
    /// A batch was learnt.
    Trained(Box<TrainMetrics>),
    /// Tiles are durable.
    Tiles {
        /// SHA-256 of index.json, hex.
        index_digest: String,
        /// Digest of the weights.
        weights_digest: String,
        /// Bytes written.
        bytes: u64,
    },
    /// Weights are durable.
    Weights {
        /// Digest of the weights.
        weights_digest: String,
        /// Bytes written.
        bytes: u64,
        /// What the order asked to be scored.
        #[serde(default)]
        scores: Option<Scores>,
    },
    /// The RL phase may begin.
    RlBegun,
    /// The final checkpoint is durable.
    Exported {
        /// Bytes written.
        bytes: u64,
    },
    /// About to exit.
    Stopping,
    /// Everything asked for is done; exit 0 follows the reply.
    Finished,
}

/// Figures of one batch, reduced over all ranks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TrainMetrics {
    /// Objective value.
    pub loss: f64,
    /// Policy term.
    pub pg_loss: f64,
    /// KL term before its coefficient.
    pub kl: f64,
    /// Mean entropy, nats.
    pub entropy: f64,
    /// Share of clipped tokens.
    pub clip_fraction: f64,
    /// Global gradient norm before clipping (of the last update); -1 when it was not finite.
    pub grad_norm: f64,
    /// Learning rate of the last update.
    pub lr: f64,
    /// Optimizer updates skipped for non-finite gradients.
    pub skipped_updates: u64,
    /// Optimizer updates done in this phase so far.
    pub updates_done: u64,
    /// Largest |trainer - engine| log-prob difference over the compared tokens.
    pub gap_max: f64,
    /// Mean of it.
    pub gap_mean: f64,
    /// Tokens compared: those whose version has the digest the trainer held when it met them.
    pub gap_tokens: u64,
    /// Tokens processed (prompt and response).
    pub tokens: u64,
    /// Response tokens under the mask.
    pub loss_tokens: u64,
    /// Seconds of the whole order.
    pub seconds: f64,
}

/// Reply to a report; sent only when it is journaled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReportReply {
    /// Who answered.
    pub conductor_epoch: ConductorEpoch,
}

// ---------------------------------------------------------------- operator

/// Live settings; numbered so that the operator can tell which the conductor holds. Lower numbers are ignored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SettingsRequest {
    /// Strictly rising.
    pub number: u64,
    /// The values.
    pub settings: Settings,
}

/// What may change while a run lives.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Settings {
    /// Attempts at or below this may not claim or report any more.
    pub fence_attempts_up_to: u64,
    /// No task is leased to workers on these nodes.
    pub cordoned_nodes: Vec<String>,
    /// Stop admitting new groups (suspend).
    pub paused: bool,
    /// The RLJob's spec as it stands (live fields are taken from it; the rest must equal what the run began with, but for
    /// optimizer, loss and memory settings, which a new attempt takes).
    pub spec: serde_json::Value,
}

/// Reply to [`SettingsRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SettingsReply {
    /// Who answered.
    pub conductor_epoch: ConductorEpoch,
    /// The number held now.
    pub number: u64,
}

/// Save as soon as the batch at hand is learnt, then stop the trainer (exit 75) when asked to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointRequest {
    /// Caller's name for this request; repeats are the same request.
    pub id: String,
    /// Attempt it is meant for.
    pub attempt: u64,
    /// Order the trainer to stop after the commit.
    pub then_stop: bool,
}

/// Reply to [`CheckpointRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointReply {
    /// Who answered.
    pub conductor_epoch: ConductorEpoch,
}

/// Where the run is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RunPhase {
    /// Waiting for the first trainer claim.
    #[default]
    Starting,
    /// Supervised warm start.
    WarmStart,
    /// Reinforcement learning.
    Rl,
    /// `finished` is journaled.
    Finished,
    /// The run cannot go on without its user (see `failure`).
    Failed,
}

/// Someone waits for something: what, who owns it, since when, until when, and what it means.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Wait {
    /// What is waited for.
    pub what: String,
    /// Who must act.
    pub owner: String,
    /// Unix milliseconds on the conductor's clock.
    pub since_ms: u64,
    /// When something else happens, if ever.
    pub until_ms: Option<u64>,
}

/// Move what is needed out of packs that are mostly dead, now. The conductor does so by itself once it is worth it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CompactRequest {
    /// Of a pack, at most this share is needed, percent of its bytes.
    pub live_percent: u64,
}

/// What was found. It is moved in the background, and the files go once nobody can hold an old reference.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CompactReply {
    /// Who answered.
    pub conductor_epoch: ConductorEpoch,
    /// Packs that are mostly dead.
    pub packs: u64,
    /// Records that are moved out of them.
    pub records: u64,
    /// Bytes of those.
    pub live_bytes: u64,
    /// Bytes of the packs.
    pub bytes: u64,
}

/// The run as its conductor sees it. All a person or the operator needs, in one read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// Who answered.
    pub conductor_epoch: ConductorEpoch,
    /// Settings number held.
    pub settings_number: u64,
    /// Where the run is.
    pub phase: RunPhase,
    /// RL step to run next.
    pub step: u64,
    /// RL steps wanted.
    pub total_steps: u64,
    /// Warm-start update to run next.
    pub warm_step: u64,
    /// Upper bound of warm-start updates.
    pub warm_steps_max: u64,
    /// Last measured pass rate of the warm start.
    pub pass_rate: Option<f64>,
    /// Version every admitted engine has acknowledged.
    pub weight_version: u64,
    /// Last commit, if any.
    pub commit: Option<CommitRef>,
    /// Commits so far: rises with each.
    pub commits: u64,
    /// Highest attempt that has claimed.
    pub attempt: u64,
    /// Its epoch.
    pub trainer_epoch: TrainerEpoch,
    /// What the trainer does now.
    pub trainer: TrainerProgress,
    /// Ids of checkpoint requests fulfilled.
    pub checkpoints_done: Vec<String>,
    /// Engines.
    pub engines: Vec<EngineProgress>,
    /// Workers met, and when they were last heard of (ms ago).
    pub workers: Vec<WorkerProgress>,
    /// Queue depths.
    pub queue: QueueProgress,
    /// How many of the last samples could be had.
    #[serde(default)]
    pub samples: SamplesProgress,
    /// Epoch of the data and offset in it.
    pub data_epoch: u64,
    /// Offset in the epoch.
    pub data_offset: u64,
    /// Last step's record.
    pub last_step: Option<StepRecord>,
    /// What is waited for.
    pub waits: Vec<Wait>,
    /// Why the run cannot go on.
    pub failure: Option<String>,
    /// The last events, newest last.
    pub events: Vec<String>,
}

/// The trainer as the conductor sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TrainerProgress {
    /// True when it has been heard of within the heartbeat time-out.
    pub live: bool,
    /// What it was last told to do.
    pub doing: String,
    /// Milliseconds since it was last heard of.
    pub heard_ms_ago: Option<u64>,
}

/// An engine as the conductor sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EngineProgress {
    /// Pod name.
    pub name: String,
    /// Base URL.
    pub url: String,
    /// Answers.
    pub live: bool,
    /// Workers may use it.
    pub admitted: bool,
    /// Version it has acknowledged.
    pub version: u64,
}

/// A worker as the conductor sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerProgress {
    /// Who.
    pub worker: WorkerId,
    /// Leases held.
    pub leases: u32,
    /// Milliseconds since it was last heard of.
    pub heard_ms_ago: u64,
}

/// Depths of the queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct QueueProgress {
    /// Tasks nobody works on.
    pub waiting: u64,
    /// Tasks leased.
    pub leased: u64,
    /// Finished groups not yet in a batch.
    pub ready: u64,
    /// Batches kept for replay.
    pub retained_batches: u64,
    /// Groups dropped so far, by reason.
    pub dropped: BTreeMap<String, u64>,
}

/// The last samples that workers brought, over a bounded number of groups.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SamplesProgress {
    /// Samples.
    pub brought: u64,
    /// Those that could not be generated or judged.
    pub invalid: u64,
    /// Why the last of them could not.
    pub reason: Option<String>,
}

impl SamplesProgress {
    /// Fewer samples than this say nothing.
    const BROUGHT_MIN: u64 = 16;

    /// More than a fifth are invalid: the run learns from what is left, and somebody should look.
    #[must_use]
    pub fn too_many_invalid(&self) -> bool {
        self.brought >= Self::BROUGHT_MIN && self.invalid * 5 > self.brought
    }
}

/// One line of `steps.jsonl`: what a finished RL step was. The last line of a step counts (a replayed step is written again).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StepRecord {
    /// 0-based RL step.
    pub step: u64,
    /// Attempt that trained it.
    pub attempt: u64,
    /// Its epoch.
    pub trainer_epoch: TrainerEpoch,
    /// Trained before by an earlier attempt.
    pub replay: bool,
    /// Version the engines were at when the batch was accepted.
    pub weight_version: u64,
    /// Mean raw reward over the batch's samples.
    pub reward: f64,
    /// Population standard deviation of it.
    pub reward_std: f64,
    /// Share of groups whose rewards are all alike.
    pub zero_std_groups: f64,
    /// Mean response length in tokens.
    pub response_len: f64,
    /// Share of truncated samples.
    pub truncated: f64,
    /// Largest staleness (version held at training minus oldest version generated with).
    pub staleness_max: u64,
    /// The trainer's figures.
    pub train: TrainMetrics,
    /// Largest |trainer - engine| difference over samples that both scored with the same published weights since the last
    /// step (Async mode, and after a reshard).
    #[serde(default)]
    pub rescored_gap_max: f64,
    /// Tokens compared so.
    #[serde(default)]
    pub rescored_tokens: u64,
    /// Seconds from the first lease of the batch to its acceptance.
    pub generate_seconds: f64,
    /// Seconds the engines took for the publication before this step.
    pub publish_seconds: f64,
    /// Tokens generated and trained per second of the whole step.
    pub tokens_per_second: f64,
    /// Seconds since the run's first record, all attempts included.
    pub elapsed_seconds: f64,
    /// Unix milliseconds.
    pub time_ms: u64,
}
