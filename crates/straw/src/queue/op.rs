//! Durable changes, as values for the journal.

use serde::{Deserialize, Serialize};

use super::{AttemptId, BatchId, Class, DropCause, NewTask, Position, TaskId};
use crate::Ref;

/// One durable change. Made by the queue's `&self` methods; journaled; then given to [`super::Queue::apply`].
///
/// The order of variants and fields is part of the journal's format: add at the end only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Op {
    /// New tasks, in this order of line.
    Submit { tasks: Vec<NewTask> },
    /// A result was accepted.
    Complete { task: TaskId, submission: String, result: Vec<Ref>, attempt: Option<AttemptId> },
    /// A holder gave a task back with progress.
    Yield { task: TaskId, class: Class, key: Option<u64>, parts: Vec<Ref>, attempt: AttemptId },
    /// An attempt failed or lapsed; the task is tried again while it has attempts left, unless `drop`.
    Fail { task: TaskId, cause: DropCause, reason: String, drop: bool, attempt: AttemptId },
    /// An unfinished task is dropped.
    Cancel { task: TaskId, cause: DropCause, reason: String },
    /// Accepted groups are dropped (a filter, staleness).
    DropAccepted { positions: Vec<Position>, cause: DropCause, reason: String },
    /// Accepted groups become a batch.
    PlanBatch { batch: BatchId, positions: Vec<Position> },
    /// The converted batch was written.
    BatchReady { batch: BatchId, payload: Vec<Ref> },
    /// The trainer has used the batch.
    Consume { batch: BatchId },
    /// The trainer went back: batches from this one on are unconsumed again.
    Rewind { to: BatchId },
    /// Batches below this one are let go, and their groups are settled.
    Release { below: BatchId },
    /// `owner` holds exactly these references from now on.
    Retain { owner: String, refs: Vec<Ref> },
    /// `owner` holds nothing any more.
    ReleaseOwner { owner: String },
    /// Packs that nothing refers to are given up to the collector.
    Retire { packs: Vec<String> },
    /// A consumer of accepted groups begins.
    OpenConsumer { name: String, from: Position },
    /// A consumer has processed groups.
    AckConsumer { name: String, positions: Vec<Position>, state: Option<Vec<u8>> },
    /// A consumer is no more.
    CloseConsumer { name: String },
    /// Accepted groups that no batch will have are let go.
    SettleAccepted { positions: Vec<Position> },
    /// The present state is named, with the model that belongs to it.
    Checkpoint { name: String, model: Vec<u8> },
    /// The state is that of a checkpoint again.
    Rollback { name: String },
    /// A checkpoint is forgotten.
    DropCheckpoint { name: String },
    /// A checkpoint is held for a fork.
    HoldFork { fork: String, checkpoint: String },
    /// A fork needs nothing of this queue any more.
    EndFork { fork: String },
    /// Packs of eras below this are accepted only while they are referred to; retired ones of them are forgotten.
    Forget { below: u32 },
    /// References to the first of each pair become references to the second, which has the same content.
    Move { moves: Vec<(Ref, Ref)> },
}
