//! Leases: who works on what, in memory only.
//!
//! A crash loses them, and that is right: a new epoch voids every earlier attempt, and a worker that still has a result
//! offers it ([`Queue::offer`]).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use super::accepted::cut;
use super::refused::at_most;
use super::task::Rank;
use super::{Class, DropCause, Op, Queue, Refused, Task, TaskId, Wanted};
use crate::Ref;
use crate::limits::{LEASES_PER_WORKER_MAX, REFS_MAX};

/// Names an attempt for ever: the owner's epoch, and a counter within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AttemptId {
    /// Epoch of the journal's owner that granted it.
    pub epoch: u64,
    /// Rises by 1 with each grant of that epoch.
    pub counter: u64,
}

impl fmt::Display for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch, self.counter)
    }
}

/// The right to work on a task until it expires.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// The task.
    pub task: TaskId,
    /// The attempt.
    pub attempt: AttemptId,
    /// Who holds it.
    pub worker: String,
    /// When it lapses, ms, on the clock whose readings the caller passes as `now_ms`.
    pub expires_ms: u64,
}

/// For how long, and how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTerms {
    /// Life of a lease from its grant or its last renewal, ms.
    pub duration_ms: u64,
    /// Leases one worker may hold.
    pub per_worker_max: usize,
}

impl Default for LeaseTerms {
    fn default() -> Self {
        LeaseTerms { duration_ms: 60_000, per_worker_max: LEASES_PER_WORKER_MAX }
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Leases {
    epoch: u64,
    counter: u64,
    by_task: BTreeMap<TaskId, Lease>,
    by_worker: BTreeMap<String, BTreeSet<TaskId>>,
    by_expiry: BTreeSet<(u64, TaskId)>,
}

impl Leases {
    fn insert(&mut self, lease: Lease) {
        self.by_expiry.insert((lease.expires_ms, lease.task));
        self.by_worker.entry(lease.worker.clone()).or_default().insert(lease.task);
        let before = self.by_task.insert(lease.task, lease);
        assert!(before.is_none(), "a task has one holder");
    }

    pub(super) fn remove(&mut self, task: TaskId) -> Option<Lease> {
        let lease = self.by_task.remove(&task)?;
        self.by_expiry.remove(&(lease.expires_ms, task));
        if let Some(tasks) = self.by_worker.get_mut(&lease.worker) {
            tasks.remove(&task);
            if tasks.is_empty() {
                self.by_worker.remove(&lease.worker);
            }
        }
        Some(lease)
    }

    /// Ends all leases; attempts are still numbered on.
    pub(super) fn clear(&mut self) {
        *self = Leases { epoch: self.epoch, counter: self.counter, ..Leases::default() };
    }

    fn held_by(&self, worker: &str) -> usize {
        self.by_worker.get(worker).map_or(0, BTreeSet::len)
    }
}

impl Queue {
    /// Voids all leases and grants new ones under `epoch` from now on, which must be higher than any before.
    pub fn begin_epoch(&mut self, epoch: u64) {
        assert!(epoch > self.leases.epoch, "epochs only rise");
        let held: Vec<TaskId> = self.leases.by_task.keys().copied().collect();
        for task in held {
            self.return_task(task);
        }
        self.leases = Leases { epoch, ..Leases::default() };
        // What the replay did without is made now, so that no call pays for it later.
        self.lanes();
        self.free();
        self.counts();
    }

    /// Leases up to `max` tasks to `worker`, best first.
    pub fn acquire(&mut self, worker: &str, max: usize, now_ms: u64, terms: LeaseTerms) -> Vec<Lease> {
        self.acquire_where(worker, max, now_ms, terms, &Wanted::default())
    }

    /// Leases up to `max` of the tasks that are wanted, best first. Costs what it gives, however many tasks there are.
    pub fn acquire_where(
        &mut self,
        worker: &str,
        max: usize,
        now_ms: u64,
        terms: LeaseTerms,
        wanted: &Wanted,
    ) -> Vec<Lease> {
        let room = self.room(worker, terms);
        let chosen: Vec<TaskId> = self.lanes().iter(wanted).take(max.min(room)).collect();
        chosen.into_iter().map(|task| self.grant(task, worker, now_ms, terms)).collect()
    }

    /// Leases those of the tasks `ids` that nobody holds, best first, as far as the worker may hold more.
    pub fn acquire_ids(&mut self, worker: &str, ids: &[TaskId], now_ms: u64, terms: LeaseTerms) -> Vec<Lease> {
        let rank =
            |id: &TaskId| self.task(*id).map(|t| (t.rank(), *id)).filter(|(rank, id)| self.lanes().has(*rank, *id));
        let chosen: BTreeSet<(Rank, TaskId)> = ids.iter().filter_map(rank).collect();
        let room = self.room(worker, terms);
        chosen.into_iter().take(room).map(|(_, task)| self.grant(task, worker, now_ms, terms)).collect()
    }

    fn room(&self, worker: &str, terms: LeaseTerms) -> usize {
        assert!(self.leases.epoch > 0, "begin_epoch comes before the first lease");
        terms.per_worker_max.min(LEASES_PER_WORKER_MAX).saturating_sub(self.leases.held_by(worker))
    }

    fn grant(&mut self, task: TaskId, worker: &str, now_ms: u64, terms: LeaseTerms) -> Lease {
        let rank = self.task(task).map(Task::rank).filter(|rank| self.lanes().has(*rank, task));
        let Some(rank) = rank else { unreachable!("only a pending task is leased") };
        self.order.remove(rank, task);
        self.leases.counter += 1;
        let attempt = AttemptId { epoch: self.leases.epoch, counter: self.leases.counter };
        let expires_ms = now_ms.saturating_add(terms.duration_ms);
        let lease = Lease { task, attempt, worker: worker.to_owned(), expires_ms };
        self.leases.insert(lease.clone());
        lease
    }

    /// Extends a lease; gives its new end.
    pub fn renew(&mut self, task: TaskId, attempt: AttemptId, now_ms: u64, terms: LeaseTerms) -> Result<u64, Refused> {
        self.holds(task, attempt)?;
        let Some(mut lease) = self.leases.remove(task) else { unreachable!("just seen") };
        lease.expires_ms = lease.expires_ms.max(now_ms.saturating_add(terms.duration_ms));
        let expires_ms = lease.expires_ms;
        self.leases.insert(lease);
        Ok(expires_ms)
    }

    /// Gives a task back as it was; no attempt is spent, and it keeps its place in line.
    pub fn give_back(&mut self, task: TaskId, attempt: AttemptId) -> Result<(), Refused> {
        self.holds(task, attempt)?;
        self.return_task(task);
        Ok(())
    }

    /// Takes all tasks from a worker that is gone; no attempt is spent. Gives the tasks.
    pub fn release_worker(&mut self, worker: &str) -> Vec<TaskId> {
        let tasks: Vec<TaskId> = self.leases.by_worker.get(worker).into_iter().flatten().copied().collect();
        for &task in &tasks {
            self.return_task(task);
        }
        assert_eq!(self.leases.held_by(worker), 0, "the worker holds nothing any more");
        tasks
    }

    /// For each lease that ran out by `now_ms`, the op that spends the attempt. Applying it frees the task.
    pub fn lapsed(&self, now_ms: u64) -> Vec<Op> {
        let over = self.leases.by_expiry.iter().take_while(|(expires, _)| *expires <= now_ms);
        let lease = over.filter_map(|(_, task)| self.leases.by_task.get(task));
        let op = |l: &Lease| Op::Fail {
            task: l.task,
            cause: DropCause::Lapsed,
            reason: cut(&format!("the lease of {} ran out", l.worker)),
            drop: false,
            attempt: l.attempt,
        };
        lease.map(op).collect()
    }

    /// When the next lease runs out.
    pub fn next_expiry_ms(&self) -> Option<u64> {
        self.leases.by_expiry.first().map(|(expires, _)| *expires)
    }

    /// A holder gives its task back with progress: `parts` replace what was there. No attempt is spent.
    pub fn yield_partial(
        &self,
        task: TaskId,
        attempt: AttemptId,
        class: Class,
        key: Option<u64>,
        parts: &[Ref],
    ) -> Result<Op, Refused> {
        self.holds(task, attempt)?;
        let op = Op::Yield { task, class, key, parts: self.resolve_all(parts), attempt };
        self.check(&op)?;
        Ok(op)
    }

    /// A holder's attempt failed. With `retry` the task is tried again while it has attempts left; else it is dropped.
    pub fn fail(&self, task: TaskId, attempt: AttemptId, reason: &str, retry: bool) -> Result<Op, Refused> {
        self.holds(task, attempt)?;
        let op = Op::Fail { task, cause: DropCause::Failed, reason: cut(reason), drop: !retry, attempt };
        self.check(&op)?;
        Ok(op)
    }

    /// The attempt granted last in this epoch.
    pub fn last_attempt(&self) -> AttemptId {
        AttemptId { epoch: self.leases.epoch, counter: self.leases.counter }
    }

    /// The lease on a task.
    pub fn lease(&self, task: TaskId) -> Option<&Lease> {
        self.leases.by_task.get(&task)
    }

    /// All leases, by task.
    pub fn leases(&self) -> impl ExactSizeIterator<Item = &Lease> {
        self.leases.by_task.values()
    }

    /// The leases of one worker.
    pub fn leases_of(&self, worker: &str) -> impl Iterator<Item = &Lease> {
        let tasks = self.leases.by_worker.get(worker).into_iter().flatten();
        tasks.filter_map(|task| self.leases.by_task.get(task))
    }

    pub(super) fn holds(&self, task: TaskId, attempt: AttemptId) -> Result<(), Refused> {
        let holds = self.lease(task).is_some_and(|lease| lease.attempt == attempt);
        if holds { Ok(()) } else { Err(Refused::StaleAttempt { task, attempt }) }
    }

    pub(super) fn check_yield(&self, task: TaskId, parts: &[Ref]) -> Result<(), Refused> {
        at_most("references of a task's progress", parts.len(), REFS_MAX)?;
        self.check_refs(parts)?;
        self.task(task).map(drop).ok_or(Refused::UnknownTask(task))
    }

    pub(super) fn apply_yield(&mut self, task: TaskId, class: Class, key: Option<u64>, parts: Vec<Ref>) {
        let turn = self.next_turn();
        self.holds.add(&parts);
        let mut before = Vec::new();
        self.edit_task(task, |t| {
            t.class = class;
            t.key = key;
            before = std::mem::replace(&mut t.parts, parts);
            t.turn = turn;
        });
        self.holds.remove(&before);
    }

    pub(super) fn apply_fail(&mut self, task: TaskId, cause: DropCause, reason: &str, drop: bool) {
        let left = self.task(task).is_some_and(|t| t.attempts + 1 < t.attempts_max);
        if drop || !left {
            self.take_task(task);
            self.note_drop(task, cause, reason);
            return;
        }
        let turn = self.next_turn();
        self.edit_task(task, |t| {
            t.attempts += 1;
            t.turn = turn;
        });
    }

    /// Ends a lease and makes its task pending again, unchanged.
    fn return_task(&mut self, task: TaskId) {
        self.leases.remove(task);
        if let Some(rank) = self.task(task).map(Task::rank) {
            self.order.insert(rank, task);
        }
    }

    /// Ends a lease, changes the task, and puts it in line.
    fn edit_task(&mut self, task: TaskId, edit: impl FnOnce(&mut Task)) {
        self.leases.remove(task);
        let Some(t) = self.durable.live.tasks.get_mut(&task) else { unreachable!("checked: the task is unfinished") };
        let before = t.rank();
        edit(t);
        let after = t.rank();
        self.order.remove(before, task);
        self.order.insert(after, task);
    }

    /// Removes an unfinished task, its lease, and its place in line.
    pub(super) fn take_task(&mut self, task: TaskId) -> Option<Task> {
        self.leases.remove(task);
        let taken = self.durable.live.tasks.remove(&task)?;
        self.order.remove(taken.rank(), task);
        self.holds.remove(&taken.parts);
        Some(taken)
    }

    pub(super) fn next_turn(&mut self) -> u64 {
        let turn = self.durable.next_turn;
        self.durable.next_turn += 1;
        turn
    }
}
