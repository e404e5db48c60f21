//! Why a request was refused. Nothing changed.

use std::collections::BTreeSet;

use super::{AttemptId, BatchId, Position, TaskId};

/// Why the queue refused a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// No such unfinished task.
    #[error("task {} is not known, or is finished", .0.0)]
    UnknownTask(TaskId),
    /// The id was used before.
    #[error("task {} was submitted before: ids are never used twice", .0.0)]
    TaskExists(TaskId),
    /// The attempt does not hold the task: its lease lapsed, was released, or is of an earlier epoch.
    #[error("attempt {attempt} does not hold task {}: stop working on it, or offer a finished result", task.0)]
    StaleAttempt {
        /// The task.
        task: TaskId,
        /// The attempt that was named.
        attempt: AttemptId,
    },
    /// The task was accepted under another submission.
    #[error("task {} was accepted as submission {winner}: discard this result", task.0)]
    AcceptedOtherwise {
        /// The task.
        task: TaskId,
        /// The submission that was accepted.
        winner: String,
    },
    /// The submission id was used for another task.
    #[error("submission {submission} belongs to task {}", task.0)]
    SubmissionTaken {
        /// The submission id.
        submission: String,
        /// The task it was accepted for.
        task: TaskId,
    },
    /// No accepted group at this position, or it is released or dropped.
    #[error("no accepted group at position {}", .0.0)]
    UnknownPosition(Position),
    /// The group is in a batch already.
    #[error("the group at position {} is in batch {} already", position.0, batch.0)]
    Batched {
        /// The group's position.
        position: Position,
        /// The batch it is in.
        batch: BatchId,
    },
    /// A batch must have the id that is due next.
    #[error("batch {} is not due: the next is {}", given.0, due.0)]
    NotDue {
        /// The id given.
        given: BatchId,
        /// The id due.
        due: BatchId,
    },
    /// No such batch, or it is released.
    #[error("batch {} is not known, or is released", .0.0)]
    UnknownBatch(BatchId),
    /// The batch has no payload yet, or has another one.
    #[error("batch {}: {what}", batch.0)]
    Batch {
        /// The batch.
        batch: BatchId,
        /// What does not hold.
        what: &'static str,
    },
    /// A reference points into a pack that was given up to the collector.
    #[error("pack {0} was collected: publish the bytes again")]
    PackRetired(String),
    /// A pack that is still referred to cannot be retired.
    #[error("pack {0} is still referred to")]
    PackLive(String),
    /// No consumer of this name.
    #[error("no consumer {0} is open")]
    UnknownConsumer(String),
    /// A consumer of this name is open.
    #[error("consumer {0} is open already")]
    ConsumerExists(String),
    /// No checkpoint of this name.
    #[error("no checkpoint {0} is known, or it was dropped")]
    UnknownCheckpoint(String),
    /// A checkpoint of this name was taken.
    #[error("checkpoint {0} was taken already: names are used once")]
    CheckpointExists(String),
    /// A checkpoint is held for a fork.
    #[error("checkpoint {checkpoint} is held for the fork {fork}: end it first")]
    CheckpointHeld {
        /// The checkpoint.
        checkpoint: String,
        /// The fork.
        fork: String,
    },
    /// A limit of [`crate::limits`].
    #[error("{what} is {value}, at most {max} is allowed")]
    Limit {
        /// The limited quantity.
        what: &'static str,
        /// The value given.
        value: u64,
        /// The largest value allowed.
        max: u64,
    },
    /// A value that is never right.
    #[error("{0}")]
    Invalid(&'static str),
}

/// Finds what is named twice; costs nothing while the names come in order, as they mostly do.
#[derive(Debug)]
pub(super) struct Seen<T> {
    last: Option<T>,
    all: Vec<T>,
    set: Option<BTreeSet<T>>,
}

impl<T> Default for Seen<T> {
    fn default() -> Self {
        Seen { last: None, all: Vec::new(), set: None }
    }
}

impl<T: Copy + Ord> Seen<T> {
    /// False when it was noted before.
    pub(super) fn note(&mut self, name: T) -> bool {
        if let Some(set) = &mut self.set {
            return set.insert(name);
        }
        if self.last < Some(name) {
            self.last = Some(name);
            self.all.push(name);
            return true;
        }
        let mut set: BTreeSet<T> = self.all.drain(..).collect();
        let new = set.insert(name);
        self.set = Some(set);
        new
    }
}

pub(super) fn at_most(what: &'static str, value: usize, max: usize) -> Result<(), Refused> {
    let (value, max) = (value as u64, max as u64);
    if value > max { Err(Refused::Limit { what, value, max }) } else { Ok(()) }
}
