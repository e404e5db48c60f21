//! Checking and applying ops.

use super::refused::{Seen, at_most};
use super::{BatchId, Class, NewTask, Op, Queue, Refused, Task};
use crate::limits::{TASK_INPUT_BYTES_MAX, TASKS_MAX};

impl Queue {
    /// Adds tasks at the end of the line, in the order given.
    pub fn submit(&self, tasks: Vec<NewTask>) -> Result<Op, Refused> {
        let op = Op::Submit { tasks };
        self.check(&op)?;
        Ok(op)
    }

    /// Applies a durable change. Refuses one that does not follow from this state, and then changes nothing: in a replay
    /// that means the journal is of another queue.
    pub fn apply(&mut self, op: &Op) -> Result<(), Refused> {
        self.apply_owned(op.clone())
    }

    /// As [`Queue::apply`], without a copy of what the op holds: for a replay.
    pub fn apply_owned(&mut self, op: Op) -> Result<(), Refused> {
        self.check(&op)?;
        match op {
            Op::Submit { tasks } => self.apply_submit(tasks),
            Op::Complete { task, submission, result, .. } => self.apply_complete(task, submission, result),
            Op::Yield { task, class, key, parts, .. } => self.apply_yield(task, class, key, parts),
            Op::Fail { task, cause, reason, drop, .. } => self.apply_fail(task, cause, &reason, drop),
            Op::Cancel { task, cause, reason } => {
                self.take_task(task);
                self.note_drop(task, cause, &reason);
            }
            Op::DropAccepted { positions, cause, reason } => self.apply_drop(&positions, cause, &reason),
            Op::PlanBatch { batch, positions } => self.apply_plan(batch, positions),
            Op::BatchReady { batch, payload } => self.apply_ready(batch, payload),
            Op::Consume { batch } => self.durable.live.consumed = BatchId(batch.0 + 1),
            Op::Rewind { to } => self.durable.live.consumed = to,
            Op::Release { below } => self.apply_release(below),
            Op::Retain { owner, refs } => {
                self.holds.add(&refs);
                let before = self.durable.live.owners.insert(owner, refs);
                self.holds.remove(&before.unwrap_or_default());
            }
            Op::ReleaseOwner { owner } => {
                let before = self.durable.live.owners.remove(&owner);
                self.holds.remove(&before.unwrap_or_default());
            }
            Op::Retire { packs } => {
                self.forget_moves_to(&packs);
                self.durable.retired.extend(packs);
            }
            Op::Forget { below } => self.apply_forget(below),
            Op::Move { moves } => self.apply_move(&moves),
            Op::OpenConsumer { name, from } => self.apply_open_consumer(&name, from),
            Op::AckConsumer { name, positions, state } => self.apply_ack_consumer(&name, &positions, state.as_deref()),
            Op::CloseConsumer { name } => self.apply_close_consumer(&name),
            Op::SettleAccepted { positions } => positions.iter().for_each(|position| self.let_go(*position)),
            Op::Checkpoint { name, model } => self.apply_checkpoint(&name, &model),
            Op::Rollback { name } => self.apply_rollback(&name),
            Op::DropCheckpoint { name } => self.apply_drop_checkpoint(&name),
            Op::HoldFork { fork, checkpoint } => {
                self.durable.forks.insert(fork, checkpoint);
            }
            Op::EndFork { fork } => {
                self.durable.forks.remove(&fork);
            }
        }
        self.assert_invariants();
        Ok(())
    }

    /// Validates an op against the durable state alone, as a replay can.
    pub(super) fn check(&self, op: &Op) -> Result<(), Refused> {
        match op {
            Op::Submit { tasks } => self.check_submit(tasks),
            Op::Complete { task, submission, result, .. } => self.check_complete(*task, submission, result),
            Op::Yield { task, parts, .. } => self.check_yield(*task, parts),
            Op::Fail { task, .. } | Op::Cancel { task, .. } => {
                self.task(*task).map(drop).ok_or(Refused::UnknownTask(*task))
            }
            Op::DropAccepted { positions, .. } | Op::SettleAccepted { positions } => self.check_drop(positions),
            Op::PlanBatch { batch, positions } => self.check_plan(*batch, positions),
            Op::BatchReady { batch, payload } => self.check_ready(*batch, payload),
            Op::Consume { batch } => self.check_consume(*batch),
            Op::Rewind { to } => self.check_rewind(*to),
            Op::Release { below } => self.check_release(*below),
            Op::Retain { owner, refs } => self.check_retain(owner, refs),
            Op::ReleaseOwner { .. } => Ok(()),
            Op::Retire { packs } => self.check_retire(packs),
            Op::Forget { below } => self.check_forget(*below),
            Op::Move { moves } => self.check_move(moves),
            Op::OpenConsumer { name, .. } => self.check_open_consumer(name),
            Op::AckConsumer { name, positions, state } => self.check_ack_consumer(name, positions, state.as_deref()),
            Op::CloseConsumer { .. } | Op::EndFork { .. } => Ok(()),
            Op::Checkpoint { name, model } => self.check_checkpoint(name, model),
            Op::Rollback { name } => self.check_known_checkpoint(name),
            Op::DropCheckpoint { name } => self.check_drop_checkpoint(name),
            Op::HoldFork { fork, checkpoint } => self.check_hold_fork(fork, checkpoint),
        }
    }

    fn check_submit(&self, tasks: &[NewTask]) -> Result<(), Refused> {
        at_most("tasks of the queue", self.tasks_len() + tasks.len(), TASKS_MAX)?;
        let mut new = Seen::default();
        for task in tasks {
            at_most("bytes of a task's input", task.input.len(), TASK_INPUT_BYTES_MAX)?;
            if task.attempts_max == 0 {
                return Err(Refused::Invalid("a task needs at least one attempt"));
            }
            let known = self.task(task.id).is_some() || self.accepted_of(task.id).is_some() || self.is_settled(task.id);
            if known || !new.note(task.id) {
                return Err(Refused::TaskExists(task.id));
            }
        }
        Ok(())
    }

    fn apply_submit(&mut self, tasks: Vec<NewTask>) {
        for new in tasks {
            let task = Task {
                id: new.id,
                input: new.input,
                class: Class::Fresh,
                key: None,
                parts: Vec::new(),
                attempts: 0,
                attempts_max: new.attempts_max,
                turn: self.next_turn(),
            };
            self.order.insert(task.rank(), task.id);
            self.durable.live.tasks.insert(task.id, task);
        }
    }

    /// Cheap ones only: this runs after every op.
    fn assert_invariants(&self) {
        let d = &self.durable.live;
        assert!(d.released <= d.consumed && d.consumed <= d.next_batch, "released <= consumed <= planned");
        let groups = d.accepted.len();
        assert_eq!((groups, groups), self.known.len(), "one task and one submission for each accepted group");
        let pending = self.order.len_if_built().unwrap_or(d.tasks.len() - self.leases().len());
        assert_eq!(d.tasks.len(), pending + self.leases().len(), "a task is pending or leased");
    }
}
