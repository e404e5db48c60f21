//! Acceptance: a result becomes durable exactly once.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::refused::{Seen, at_most};
use super::{AttemptId, BatchId, Op, Queue, Refused, TaskId};
use crate::Ref;
use crate::limits::{REASON_BYTES_MAX, REFS_MAX, SUBMISSION_BYTES_MAX};

/// Place in the log of accepted groups: dense from 0, in order of acceptance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Position(pub u64);

/// An accepted group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Accepted {
    /// The task it finished.
    pub task: TaskId,
    /// What it was submitted with.
    #[serde(with = "crate::blob")]
    pub input: Vec<u8>,
    /// Id of the submission that was accepted.
    pub submission: String,
    /// The result.
    pub result: Vec<Ref>,
    /// The batch it is in, or was.
    pub batch: Option<BatchId>,
    /// Its task is settled; it is kept for the consumers that have yet to process it.
    pub settled: bool,
}

/// A finished task, as a member of [`Queue::complete_many`].
#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    /// The task.
    pub task: TaskId,
    /// The attempt that holds it; `None` when it is offered without a lease.
    pub attempt: Option<AttemptId>,
    /// Id of the submission.
    pub submission: String,
    /// The result.
    pub result: Vec<Ref>,
}

/// Why a task ended without being trained on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum DropCause {
    /// Its attempts failed.
    Failed,
    /// Its leases ran out.
    Lapsed,
    /// A filter rejected it.
    Filtered,
    /// Its weights are too old.
    Stale,
    /// It is not wanted any more.
    Cancelled,
}

/// A dropped task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Drop {
    /// The task.
    pub task: TaskId,
    /// Why, as a class.
    pub cause: DropCause,
    /// Why, in words.
    pub reason: String,
}

/// Answer to a completion.
#[derive(Clone, Debug, PartialEq)]
pub enum Completion {
    /// Journal this, apply it, then acknowledge.
    Accept(Op),
    /// The same submission was accepted before: acknowledge again.
    Already(Position),
    /// The task is over and its history is gone: acknowledge; the result is not needed.
    Settled,
}

impl Queue {
    /// A holder finished its task. Idempotent: the same submission is acknowledged again, for as long as anyone may ask.
    pub fn complete(
        &self,
        task: TaskId,
        attempt: AttemptId,
        submission: &str,
        result: &[Ref],
    ) -> Result<Completion, Refused> {
        if let Some(known) = self.known(task, submission)? {
            return Ok(known);
        }
        self.holds(task, attempt)?;
        self.accept(task, Some(attempt), submission, result)
    }

    /// Someone has a finished result of a task that it does not hold (any more): the coordinator restarted, its lease
    /// lapsed, or an acknowledgement was lost. The first result wins, and a present holder loses its lease.
    pub fn offer(&self, task: TaskId, submission: &str, result: &[Ref]) -> Result<Completion, Refused> {
        match self.known(task, submission)? {
            Some(known) => Ok(known),
            None => self.accept(task, None, submission, result),
        }
    }

    /// Many finished tasks at once, each answered as [`Queue::complete`] and [`Queue::offer`] answer, in order: the ops of those
    /// that are accepted can be journaled as one transaction. Of two for one task, or with one submission, the first wins, and
    /// the second is refused until the first is applied.
    pub fn complete_many(&self, finished: &[Finished]) -> Vec<Result<Completion, Refused>> {
        let mut tasks = BTreeMap::new();
        let mut submissions = BTreeMap::new();
        let mut answer = |f: &Finished| {
            if let Some(winner) = tasks.get(&f.task) {
                return Err(Refused::AcceptedOtherwise { task: f.task, winner: String::clone(winner) });
            }
            if let Some(task) = submissions.get(&f.submission) {
                return Err(Refused::SubmissionTaken { submission: f.submission.clone(), task: *task });
            }
            let answer = match f.attempt {
                Some(attempt) => self.complete(f.task, attempt, &f.submission, &f.result),
                None => self.offer(f.task, &f.submission, &f.result),
            };
            if let Ok(Completion::Accept(_)) = answer {
                tasks.insert(f.task, f.submission.clone());
                submissions.insert(f.submission.clone(), f.task);
            }
            answer
        };
        finished.iter().map(&mut answer).collect()
    }

    /// The answer to a submission that was decided before.
    fn known(&self, task: TaskId, submission: &str) -> Result<Option<Completion>, Refused> {
        if let Some((position, accepted)) = self.submission(submission) {
            let submission = submission.to_owned();
            let same = accepted.task == task;
            return if same {
                Ok(Some(Completion::Already(position)))
            } else {
                Err(Refused::SubmissionTaken { submission, task: accepted.task })
            };
        }
        if self.is_settled(task) {
            return Ok(Some(Completion::Settled));
        }
        match self.accepted_of(task) {
            Some((_, other)) => Err(Refused::AcceptedOtherwise { task, winner: other.submission.clone() }),
            None => Ok(None),
        }
    }

    fn accept(
        &self,
        task: TaskId,
        attempt: Option<AttemptId>,
        submission: &str,
        result: &[Ref],
    ) -> Result<Completion, Refused> {
        let op = Op::Complete { task, submission: submission.to_owned(), result: self.resolve_all(result), attempt };
        self.check(&op)?;
        Ok(Completion::Accept(op))
    }

    /// Drops accepted groups that are in no batch.
    pub fn drop_accepted(&self, positions: &[Position], cause: DropCause, reason: &str) -> Result<Op, Refused> {
        let op = Op::DropAccepted { positions: positions.to_vec(), cause, reason: cut(reason) };
        self.check(&op)?;
        Ok(op)
    }

    /// Drops an unfinished task, whether held or not.
    pub fn cancel(&self, task: TaskId, cause: DropCause, reason: &str) -> Result<Op, Refused> {
        let op = Op::Cancel { task, cause, reason: cut(reason) };
        self.check(&op)?;
        Ok(op)
    }

    /// Accepted groups that are not let go by the batches and all consumers, by position.
    pub fn accepted(&self) -> impl Iterator<Item = (Position, &Accepted)> {
        self.durable.live.accepted.iter().map(|(p, a)| (*p, a))
    }

    /// Accepted groups that are in no batch yet, by position.
    pub fn unbatched(&self) -> impl Iterator<Item = (Position, &Accepted)> {
        self.free().iter().filter_map(|p| self.accepted_at(*p).map(|a| (*p, a)))
    }

    /// The group at a position.
    pub fn accepted_at(&self, position: Position) -> Option<&Accepted> {
        self.durable.live.accepted.get(&position)
    }

    /// The accepted result of a task, until it is released.
    pub fn accepted_of(&self, task: TaskId) -> Option<(Position, &Accepted)> {
        self.known.task(task).and_then(|p| self.accepted_at(p).map(|a| (p, a)))
    }

    /// The accepted group of a submission, until it is released.
    pub fn submission(&self, submission: &str) -> Option<(Position, &Accepted)> {
        self.known.submission(submission).and_then(|p| self.accepted_at(p).map(|a| (p, a)))
    }

    /// What was dropped since the last release, oldest first.
    pub fn dropped(&self) -> &[Drop] {
        &self.durable.live.dropped
    }

    /// How many tasks of the run were dropped for `cause`.
    pub fn dropped_total(&self, cause: DropCause) -> u64 {
        self.durable.live.dropped_total.get(&cause).copied().unwrap_or(0)
    }

    pub(super) fn check_complete(&self, task: TaskId, submission: &str, result: &[Ref]) -> Result<(), Refused> {
        at_most("bytes of a submission id", submission.len(), SUBMISSION_BYTES_MAX)?;
        if submission.is_empty() {
            return Err(Refused::Invalid("a submission id must not be empty"));
        }
        at_most("references of a result", result.len(), REFS_MAX)?;
        self.check_refs(result)?;
        if let Some((_, other)) = self.submission(submission) {
            return Err(Refused::SubmissionTaken { submission: submission.to_owned(), task: other.task });
        }
        if let Some((_, other)) = self.accepted_of(task) {
            return Err(Refused::AcceptedOtherwise { task, winner: other.submission.clone() });
        }
        self.task(task).map(drop).ok_or(Refused::UnknownTask(task))
    }

    pub(super) fn check_drop(&self, positions: &[Position]) -> Result<(), Refused> {
        let mut seen = Seen::default();
        for position in positions {
            let group = self.accepted_at(*position).ok_or(Refused::UnknownPosition(*position))?;
            if let Some(batch) = group.batch {
                return Err(Refused::Batched { position: *position, batch });
            }
            if group.settled {
                return Err(Refused::UnknownPosition(*position)); // over, and kept only for a consumer
            }
            if !seen.note(*position) {
                return Err(Refused::Invalid("a position is named twice"));
            }
        }
        Ok(())
    }

    pub(super) fn apply_complete(&mut self, task: TaskId, submission: String, result: Vec<Ref>) {
        let Some(done) = self.take_task(task) else { unreachable!("checked: the task is unfinished") };
        let position = self.durable.next_position;
        self.durable.next_position.0 += 1;
        let accepted = Accepted { task, input: done.input, submission, result, batch: None, settled: false };
        self.holds.add(&accepted.result);
        self.known.insert(position, &accepted);
        if let Some(free) = self.unbatched.get_mut() {
            free.insert(position);
        }
        let before = self.durable.live.accepted.insert(position, accepted);
        assert!(before.is_none(), "a position is used once");
    }

    pub(super) fn apply_drop(&mut self, positions: &[Position], cause: DropCause, reason: &str) {
        for position in positions {
            let Some(group) = self.take_accepted(*position) else { unreachable!("checked: the group is there") };
            self.note_drop(group.task, cause, reason);
        }
    }

    /// Removes an accepted group and what leads to it.
    pub(super) fn take_accepted(&mut self, position: Position) -> Option<Accepted> {
        let group = self.durable.live.accepted.remove(&position)?;
        self.known.remove(&group);
        self.holds.remove(&group.result);
        self.take_free(position);
        Some(group)
    }

    /// The group is in a batch, or over.
    pub(super) fn take_free(&mut self, position: Position) {
        if let Some(free) = self.unbatched.get_mut() {
            free.remove(&position);
        }
    }

    pub(super) fn note_drop(&mut self, task: TaskId, cause: DropCause, reason: &str) {
        self.settle(task);
        *self.durable.live.dropped_total.entry(cause).or_default() += 1;
        self.durable.live.dropped.push(Drop { task, cause, reason: reason.to_owned() });
    }

    pub(super) fn settle(&mut self, task: TaskId) {
        let new = self.durable.live.settled.insert(task.0);
        assert!(new, "a task ends once");
    }
}

/// A reason of bounded length.
pub(super) fn cut(reason: &str) -> String {
    let mut end = reason.len().min(REASON_BYTES_MAX);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    reason.get(..end).unwrap_or_default().to_owned()
}
