//! What is true of the run: the journal, added up. Nothing in here comes from memory, a clock or another host's files.
//!
//! `apply` is what each record changes, `view` what follows without changing it.

mod apply;
mod view;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use control::wire::{CommitRef, GroupSummary, Layout, Scores, Start, StepRecord};
use serde::{Deserialize, Serialize};
use straw::queue::Queue;

use crate::{AttemptConfig, Converted, Cursor, Drawn, EvalFor, Live, Position, RunConfig, order::OrderKind};

/// Task numbers from here on are evaluation tasks; below are groups of the training data, numbered by `group_index`.
pub const EVAL_TASKS: u64 = 1 << 52;
/// Tries (failed, or with a lease that ran out) a task has before it is dropped.
pub const ATTEMPTS_MAX: u32 = 5;

/// A batch that is kept until a commit has passed it; its groups and its payload are the queue's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Batch {
    /// Oldest version among its tokens.
    pub version_min: u64,
    /// Newest.
    pub version_max: u64,
    /// Version the engines were at.
    pub version: u64,
    /// Largest distance between the step and the weights a group began with.
    pub staleness: u64,
    /// Time from the first lease to acceptance.
    pub generate_ms: u64,
    /// When it was accepted.
    pub accepted_ms: u64,
    /// The converted batch.
    pub converted: Option<Converted>,
    /// The last epoch that was given it.
    pub given_to: Option<u64>,
}

/// A warm-start batch, kept likewise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WarmBatch {
    /// The converted batch.
    pub converted: Converted,
    /// The last epoch that was given it.
    pub given_to: Option<u64>,
}

/// The trainer that claimed last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trainer {
    /// Its epoch.
    pub epoch: u64,
    /// The operator's counter.
    pub attempt: u64,
    /// Random per process.
    pub incarnation: String,
    /// Pod name.
    pub pod: String,
    /// How its ranks are laid out.
    pub layout: Layout,
    /// Most tokens of a micro-batch, as the configuration said when it claimed.
    pub tokens_max: u64,
    /// The configuration it was given.
    pub config: AttemptConfig,
    /// Where it began.
    pub start: Start,
    /// What it has learnt, orders done.
    pub position: Position,
    /// Last order done and reported.
    pub done: u64,
    /// The order at hand, number `done + 1`.
    pub order: Option<OrderKind>,
    /// The conductor that gave it.
    pub ordered_by: u64,
    /// The version its weights were written as; nothing since it learnt anything after.
    pub published: Option<u64>,
    /// It has done whatever earlier attempts had been given.
    pub caught_up: bool,
    /// Few tokens of a batch are of the weights it holds (Async mode), or it sums in another order than its predecessor
    /// (another layout): its publications are compared by scoring the same samples on both sides.
    pub rescore: bool,
    /// It said that it exits.
    pub stopped: bool,
    /// Why it may not report any more.
    pub refused: Option<String>,
}

/// An entry of the weight-version ledger.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Version {
    /// Digest of the weights.
    pub digest: String,
    /// What was learnt into them.
    pub position: Position,
    /// Folder, relative to the run's.
    pub folder: String,
    /// Time the engines took.
    pub publish_ms: u64,
}

/// Weights that are written and not yet acknowledged: the intent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Publishing {
    /// Version they become.
    pub version: u64,
    /// Folder, relative to the run's.
    pub folder: String,
    /// Digest of the weights.
    pub digest: String,
    /// What was learnt into them.
    pub position: Position,
    /// When the intent was journaled.
    pub since_ms: u64,
    /// What the trainer says of a few samples.
    pub scores: Option<Scores>,
}

/// A recovery boundary.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Commit {
    /// What the trainer is told.
    pub commit: CommitRef,
    /// Trainer that wrote the tiles.
    pub trainer_epoch: u64,
    /// Conductor that recorded it.
    pub conductor_epoch: u64,
    /// Where the source stood.
    pub cursor: Cursor,
    /// What was drawn before the cursor and is in no step before the commit's.
    pub unlearnt: Vec<Drawn>,
}

/// An evaluation under way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Eval {
    /// What for.
    pub purpose: EvalFor,
    /// Version measured.
    pub version: u64,
    /// What was learnt into it.
    pub position: Position,
    /// First task.
    pub first_task: u64,
    /// Prompts.
    pub prompts: u64,
}

/// A finished evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvalResult {
    /// What was measured.
    pub position: Position,
    /// Right answers.
    pub passed: u64,
    /// Answers.
    pub answered: u64,
}

impl EvalResult {
    /// Share of right answers, if there was any answer.
    #[must_use]
    pub fn pass_rate(&self) -> Option<f64> {
        (self.answered > 0).then(|| self.passed as f64 / self.answered as f64)
    }
}

/// Settings of the operator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SettingsHeld {
    /// Their number.
    pub number: u64,
    /// Attempts up to this are fenced.
    pub fence_attempts_up_to: u64,
    /// No leases there.
    pub cordoned_nodes: Vec<String>,
    /// No new groups.
    pub paused: bool,
    /// What a new attempt takes.
    pub attempt: AttemptConfig,
    /// What is live.
    pub live: Live,
}

/// A checkpoint the operator asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointAsked {
    /// Caller's name for it.
    pub id: String,
    /// Attempt it is meant for.
    pub attempt: u64,
    /// Stop after it.
    pub then_stop: bool,
    /// The commit is journaled.
    pub done: bool,
}

/// A run that has begun.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// What it began with.
    pub config: RunConfig,
    /// What the operator set since.
    pub settings: SettingsHeld,
    /// When its first record was written.
    pub began_ms: u64,
}

/// The durable state. Made by [`State::apply`] from records and nothing else.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// The last conductor that took over.
    pub conductor_epoch: u64,
    /// Uid of its pod.
    pub conductor_pod: String,
    /// Pods that another took over from. They are being deleted, or on a node that is lost: none of them may come back.
    pub replaced_pods: BTreeSet<String>,
    /// The run, once its first record is written.
    pub run: Option<Run>,
    /// The data source.
    pub cursor: Cursor,
    /// Groups from draw to release, and prompts under evaluation. Its leases are memory: they are not part of a snapshot,
    /// and do not count when states are compared.
    pub queue: Queue,
    /// What is known of finished groups that are not released.
    pub summaries: BTreeMap<u64, GroupSummary>,
    /// The next evaluation task's number.
    pub next_eval_task: u64,
    /// RL batches from acceptance until a commit has passed them.
    pub batches: BTreeMap<u64, Batch>,
    /// RL steps that were learnt at least once.
    pub trained: u64,
    /// Warm-start batches until a commit has passed them.
    pub warm_batches: BTreeMap<u64, WarmBatch>,
    /// The trainer.
    pub trainer: Option<Trainer>,
    /// Highest trainer epoch ever given.
    pub trainer_epoch: u64,
    /// Highest attempt that ever claimed.
    pub attempt: u64,
    /// The ledger.
    pub versions: BTreeMap<u64, Version>,
    /// The current version; 0 before the first.
    pub version: u64,
    /// Highest version number ever ordered: abandoned ones are not used again.
    pub version_last: u64,
    /// The intent.
    pub publishing: Option<Publishing>,
    /// The last batch that was learnt, to score samples of: where it lies, how many samples it has.
    pub scorable: Option<(straw::Ref, u64)>,
    /// What the trainer says of samples under the current version; the engines have not been asked yet.
    pub unscored: Option<(u64, Scores)>,
    /// Largest difference and tokens compared since the last step record.
    pub rescored: (f64, u64),
    /// What the last group that failed said; nothing since another was finished.
    pub last_failure: Option<String>,
    /// Commits that are kept, oldest first.
    pub commits: VecDeque<Commit>,
    /// Commits ever.
    pub commits_total: u64,
    /// The evaluation under way.
    pub eval: Option<Eval>,
    /// The last one of the warm start.
    pub warm_result: Option<EvalResult>,
    /// The last one of the RL phase.
    pub rl_result: Option<EvalResult>,
    /// Checkpoints asked for, the newest last; a bounded number of done ones is kept for the caller to see.
    pub checkpoints: VecDeque<CheckpointAsked>,
    /// Folders that nothing names any more and that are still to be deleted.
    pub garbage: BTreeSet<String>,
    /// The final checkpoint is written.
    pub exported: Option<Position>,
    /// The trainer said that it is done, and this is journaled.
    pub finished: bool,
    /// The run cannot go on.
    pub failure: Option<String>,
    /// Groups dropped, by reason.
    pub dropped: BTreeMap<String, u64>,
    /// Generate calls made for groups that were completed.
    pub generate_calls: u64,
    /// The last finished RL step.
    pub last_step: Option<StepRecord>,
    /// Step records ever written.
    pub step_records: u64,
    /// For people: time and text.
    pub events: VecDeque<(u64, String)>,
}

/// What applying a record brought forth besides the new state.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Applied {
    /// A line of `steps.jsonl`.
    pub step_record: Option<StepRecord>,
}

/// The row a task was drawn from.
#[must_use]
pub fn row_of(input: &[u8]) -> u64 {
    input.try_into().map_or(0, u64::from_le_bytes)
}
