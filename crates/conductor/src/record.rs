//! What the journal holds: each record is one fact, and each may be the last one before a crash.

use control::wire::{CommitRef, GroupSummary, Layout, Report, Start};
use serde::{Deserialize, Serialize};
use straw::{
    Ref,
    queue::{AttemptId, DropCause},
};

use crate::{AttemptConfig, Converted, Cursor, Drawn, Error, Live, Position, Resumed, RunConfig, order::OrderKind};

/// Why a group left the run untrained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum DropReason {
    /// Its rewards are all alike, and the run asked for others.
    ZeroStd,
    /// Its step was full before it was needed (over-sampling).
    Surplus,
    /// Generated with weights too old for the step it could be trained in.
    TooStale,
    /// The run had all its steps.
    RunOver,
}

impl DropReason {
    /// A short name to count by.
    #[must_use]
    pub fn class(&self) -> &'static str {
        match self {
            Self::ZeroStd => "zeroStd",
            Self::Surplus => "surplus",
            Self::TooStale => "tooStale",
            Self::RunOver => "runOver",
        }
    }

    /// As the queue counts it.
    #[must_use]
    pub fn cause(&self) -> DropCause {
        match self {
            Self::ZeroStd => DropCause::Filtered,
            Self::TooStale => DropCause::Stale,
            Self::Surplus | Self::RunOver => DropCause::Cancelled,
        }
    }
}

/// What an evaluation is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EvalFor {
    /// To decide whether the warm start may end.
    WarmStart,
    /// To be looked at.
    Rl,
}

/// One fact. Times are Unix milliseconds on the clock of the conductor that wrote it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Record {
    /// A conductor took the run over. The first one freezes what the run is.
    Opened {
        /// Its epoch.
        conductor_epoch: u64,
        /// Uid of its pod.
        pod: String,
        /// When.
        time_ms: u64,
        /// Present in the first record of a run and nowhere else.
        config: Option<Box<RunConfig>>,
        /// In the first record of a run that begins with another's commit.
        resumed: Option<Box<Resumed>>,
    },
    /// Settings of the operator.
    Settings {
        /// Their number; strictly rising.
        number: u64,
        /// Attempts up to this may not claim, poll or report.
        fence_attempts_up_to: u64,
        /// No leases to workers on these.
        cordoned_nodes: Vec<String>,
        /// No new groups.
        paused: bool,
        /// What a new attempt takes.
        attempt: Box<AttemptConfig>,
        /// What takes effect at the next step.
        live: Live,
    },
    /// Rows became groups, and the cursor moved behind them.
    Refilled {
        /// The groups.
        groups: Vec<Drawn>,
        /// The cursor behind them.
        cursor: Cursor,
    },
    /// A group was generated and rewarded; its record is durable.
    Completed {
        /// Task.
        task: u64,
        /// The result's own name; a repeated offer is the same result.
        submission: String,
        /// Where the group lies.
        group: Ref,
        /// What is known of it.
        summary: GroupSummary,
        /// The attempt that made it, when its lease was still held.
        attempt: Option<AttemptId>,
    },
    /// A try failed. The task waits again, or is dropped when it has no tries left.
    TaskFailed {
        /// Task.
        task: u64,
        /// The lease ran out, rather than the worker saying so.
        lapsed: bool,
        /// Why.
        reason: String,
        /// The attempt that failed.
        attempt: AttemptId,
    },
    /// Finished groups were too stale: their rows are generated again as new groups.
    Requeued {
        /// Old group, and the new one of the same row.
        groups: Vec<(u64, Drawn)>,
        /// The cursor behind the new groups.
        cursor: Cursor,
    },
    /// Groups left the run.
    Dropped {
        /// The groups.
        groups: Vec<u64>,
        /// Why.
        reason: DropReason,
    },
    /// The step's groups are chosen: raw batch and source cursor in one.
    Accepted {
        /// Step.
        step: u64,
        /// The groups, ascending.
        groups: Vec<u64>,
        /// Where the source stands.
        cursor: Cursor,
        /// Version the engines were at.
        version: u64,
        /// Milliseconds since the batch's first lease.
        generate_ms: u64,
        /// When.
        time_ms: u64,
    },
    /// The step's batch was converted and written, once.
    Converted {
        /// Step.
        step: u64,
        /// The batch.
        batch: Box<Converted>,
    },
    /// Warm-start batches were made ahead.
    WarmConverted {
        /// Update of the first.
        first: u64,
        /// One per update.
        batches: Vec<Converted>,
    },
    /// A trainer's rank 0 claimed.
    Claimed {
        /// Its epoch, higher than any before.
        trainer_epoch: u64,
        /// The operator's counter.
        attempt: u64,
        /// Random per process.
        incarnation: String,
        /// Pod name.
        pod: String,
        /// How its ranks are laid out.
        layout: Layout,
        /// Where it begins.
        start: Start,
        /// When.
        time_ms: u64,
    },
    /// An order was given. Orders of an epoch are numbered without gaps from 1.
    Ordered {
        /// To which epoch.
        trainer_epoch: u64,
        /// Its number.
        seq: u64,
        /// The order; its micro-batch plan follows from the batch and the layout.
        order: OrderKind,
        /// Which conductor gave it.
        conductor_epoch: u64,
    },
    /// An order was carried out (all but Save, whose record is [`Record::Committed`]).
    Reported {
        /// By which epoch.
        trainer_epoch: u64,
        /// The order's number.
        seq: u64,
        /// What was done.
        report: Report,
        /// When.
        time_ms: u64,
    },
    /// Tiles are durable and verified: the recovery boundary moves here.
    Committed {
        /// By which trainer epoch.
        trainer_epoch: u64,
        /// Number of the order to save.
        seq: u64,
        /// Recorded by which conductor epoch.
        conductor_epoch: u64,
        /// The commit.
        commit: CommitRef,
        /// Where the source stands.
        cursor: Cursor,
        /// Groups in the run that are in no batch yet: the queue as it stands.
        queue: Vec<Drawn>,
        /// When.
        time_ms: u64,
    },
    /// Every live engine acknowledged the version; it is the current one from here on.
    VersionAdvanced {
        /// The version.
        version: u64,
        /// Who acknowledged.
        engines: Vec<String>,
        /// Milliseconds since the intent.
        publish_ms: u64,
        /// When.
        time_ms: u64,
    },
    /// Trainer and engines have scored the same samples with a published version.
    Rescored {
        /// The version.
        version: u64,
        /// Largest difference of two log-probs.
        gap_max: f64,
        /// Tokens compared.
        tokens: u64,
    },
    /// An evaluation began.
    EvalStarted {
        /// What for.
        purpose: EvalFor,
        /// Version it measures.
        version: u64,
        /// What was learnt into it.
        position: Position,
        /// Tasks: one per prompt, first row first.
        first_task: u64,
        /// How many.
        prompts: u64,
    },
    /// All prompts of the evaluation were answered or given up.
    EvalFinished {
        /// Right answers.
        passed: u64,
        /// Answers.
        answered: u64,
        /// When.
        time_ms: u64,
    },
    /// The operator wants a commit as soon as the order at hand is done.
    CheckpointAsked {
        /// Caller's name for it.
        id: String,
        /// Attempt it is meant for.
        attempt: u64,
        /// Stop the trainer after it.
        then_stop: bool,
    },
    /// The commit that was asked for was there already.
    CheckpointReached {
        /// Caller's name for it.
        id: String,
    },
    /// A folder that nothing names is gone.
    FolderDeleted {
        /// Relative to the run's folder.
        folder: String,
    },
    /// Packs that nothing refers to are given up: no reference into them is accepted any more, and they may be removed.
    PacksRetired {
        /// Their names.
        packs: Vec<String>,
    },
    /// An epoch may not report any more: what it did does not hold.
    TrainerRefused {
        /// Which.
        trainer_epoch: u64,
        /// Why.
        reason: String,
    },
    /// The run cannot go on without its user.
    Failed {
        /// Why, and what to do.
        reason: String,
        /// When.
        time_ms: u64,
    },
    /// Names of retired packs that nothing can refer to any more are forgotten.
    PacksForgotten {
        /// Those of earlier eras than this.
        below: u32,
    },
    /// Records were moved out of packs that were mostly dead.
    RecordsMoved {
        /// From where, and to where.
        moves: Vec<(Ref, Ref)>,
    },
}

/// First byte of every record.
const FORMAT: u8 = 1;

impl Record {
    /// As bytes.
    ///
    /// # Errors
    /// Never for records made by this crate; the encoder's error otherwise.
    pub fn encode(&self) -> Result<Vec<u8>, Error> {
        postcard::to_extend(self, vec![FORMAT])
            .map_err(|error| Error::Undecodable { what: "record", why: error.to_string() })
    }

    /// From bytes.
    ///
    /// # Errors
    /// When they are not a record of this version.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let bad = |why: String| Error::Undecodable { what: "record", why };
        match bytes.split_first() {
            Some((&FORMAT, body)) => match postcard::take_from_bytes(body) {
                Ok((record, [])) => Ok(record),
                Ok((_, rest)) => Err(bad(format!("{} bytes too many", rest.len()))),
                Err(error) => Err(bad(error.to_string())),
            },
            Some((format, _)) => Err(bad(format!("format {format}, this version reads {FORMAT}"))),
            None => Err(bad("empty".to_owned())),
        }
    }

    /// Its name, for messages.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Opened { .. } => "Opened",
            Self::Settings { .. } => "Settings",
            Self::Refilled { .. } => "Refilled",
            Self::Completed { .. } => "Completed",
            Self::TaskFailed { .. } => "TaskFailed",
            Self::Requeued { .. } => "Requeued",
            Self::Dropped { .. } => "Dropped",
            Self::Accepted { .. } => "Accepted",
            Self::Converted { .. } => "Converted",
            Self::WarmConverted { .. } => "WarmConverted",
            Self::Claimed { .. } => "Claimed",
            Self::Ordered { .. } => "Ordered",
            Self::Reported { .. } => "Reported",
            Self::Committed { .. } => "Committed",
            Self::VersionAdvanced { .. } => "VersionAdvanced",
            Self::Rescored { .. } => "Rescored",
            Self::EvalStarted { .. } => "EvalStarted",
            Self::EvalFinished { .. } => "EvalFinished",
            Self::CheckpointAsked { .. } => "CheckpointAsked",
            Self::CheckpointReached { .. } => "CheckpointReached",
            Self::FolderDeleted { .. } => "FolderDeleted",
            Self::PacksRetired { .. } => "PacksRetired",
            Self::TrainerRefused { .. } => "TrainerRefused",
            Self::Failed { .. } => "Failed",
            Self::PacksForgotten { .. } => "PacksForgotten",
            Self::RecordsMoved { .. } => "RecordsMoved",
        }
    }
}
