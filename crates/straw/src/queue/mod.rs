//! The queue: which work there is, who holds it, what was accepted, and which bytes are still needed.
//!
//! A pure state machine. It does no I/O and reads no clock. What must survive is changed in two halves:
//!
//! 1. a `&self` method validates a request and gives an [`Op`] (or an answer that needs none);
//! 2. once the op is in the journal, [`Queue::apply`] changes the state. Replaying a journal is applying its ops in order.
//!
//! `apply` validates again, so an op that no longer holds is refused and changes nothing. Leases are not durable: they live
//! in this process' memory, under attempt ids made of its epoch, and a new epoch voids them all.
//!
//! ```text
//! submit -> pending -> leased -> accepted -> in a batch -> released
//!              ^          | yield, fail, lapse     | drop
//!              +----------+                        v
//!                    (out of attempts: dropped, with its reason)
//! ```
//!
//! Order of leasing: [`Class`] (ready, partial, fresh), then the smaller scheduling key (the older weight version; none is
//! last), then first come, first served.

mod accepted;
mod apply;
mod batch;
mod lease;
mod op;
mod order;
mod owners;
mod refused;
mod settled;
mod task;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use accepted::{Accepted, Completion, Drop, DropCause, Position};
pub use batch::{Batch, BatchId};
pub use lease::{AttemptId, Lease, LeaseTerms};
pub use op::Op;
pub use refused::Refused;
pub use settled::Settled;
pub use task::{Class, NewTask, Task, TaskId};

use lease::Leases;
use order::Order;

/// The queue of one run. Serialises to (and from) its durable part alone.
#[derive(Clone, Debug, Default)]
pub struct Queue {
    durable: Durable,
    /// Pending tasks in order of leasing: derived from `durable`, less what is leased.
    order: Order,
    leases: Leases,
}

/// Equal when the durable states are: leases do not count.
impl PartialEq for Queue {
    fn eq(&self, other: &Self) -> bool {
        self.durable == other.durable
    }
}

/// What a snapshot holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Durable {
    /// Unfinished tasks.
    tasks: BTreeMap<TaskId, Task>,
    /// Next place in the line of those who came at the same class and key.
    next_turn: u64,
    /// Accepted groups that are not released yet.
    accepted: BTreeMap<Position, Accepted>,
    next_position: Position,
    /// Where each accepted task lies.
    positions: BTreeMap<TaskId, Position>,
    /// Submission of each accepted group.
    submissions: BTreeMap<String, Position>,
    batches: BTreeMap<BatchId, Batch>,
    /// Batches below this were planned once; ids are never used again.
    next_batch: BatchId,
    /// Batches below this are consumed.
    consumed: BatchId,
    /// Batches below this are released.
    released: BatchId,
    /// Tasks that are over: released or dropped.
    settled: Settled,
    /// What was dropped since the last release.
    dropped: Vec<Drop>,
    /// Dropped tasks of the whole run, by cause.
    dropped_total: BTreeMap<DropCause, u64>,
    /// Named holders of references outside tasks and batches.
    owners: BTreeMap<String, Vec<crate::Ref>>,
    /// Packs that were given up to the collector; nothing may refer to them again.
    retired: BTreeSet<String>,
}

impl Queue {
    /// An empty queue. Call [`Queue::begin_epoch`] before leasing.
    pub fn new() -> Self {
        Queue::default()
    }

    /// The task, while it is unfinished.
    pub fn task(&self, id: TaskId) -> Option<&Task> {
        self.durable.tasks.get(&id)
    }

    /// Unfinished tasks, in order of id.
    pub fn tasks(&self) -> impl Iterator<Item = &Task> {
        self.durable.tasks.values()
    }

    /// Tasks that nobody holds, in order of leasing.
    pub fn pending(&self) -> impl Iterator<Item = &Task> {
        self.order.iter().filter_map(|id| self.durable.tasks.get(&id))
    }

    /// Number of tasks that nobody holds.
    pub fn pending_len(&self) -> usize {
        self.order.len()
    }

    /// Number of unfinished tasks, leased ones included.
    pub fn tasks_len(&self) -> usize {
        self.durable.tasks.len()
    }

    /// True when the task is over: released with its batch, or dropped.
    pub fn is_settled(&self, id: TaskId) -> bool {
        self.durable.settled.contains(id.0)
    }

    /// Packs that some durable reference reaches: these must stay.
    pub fn live_packs(&self) -> BTreeSet<String> {
        let d = &self.durable;
        let tasks = d.tasks.values().flat_map(|t| &t.parts);
        let accepted = d.accepted.values().flat_map(|a| &a.result);
        let batches = d.batches.values().flat_map(|b| &b.payload);
        let owners = d.owners.values().flatten();
        tasks.chain(accepted).chain(batches).chain(owners).map(|r| r.pack.clone()).collect()
    }

    /// Every durable reference. For checkers.
    pub fn live_refs(&self) -> impl Iterator<Item = &crate::Ref> {
        let d = &self.durable;
        let tasks = d.tasks.values().flat_map(|t| &t.parts);
        let accepted = d.accepted.values().flat_map(|a| &a.result);
        let batches = d.batches.values().flat_map(|b| &b.payload);
        tasks.chain(accepted).chain(batches).chain(d.owners.values().flatten())
    }
}

impl Serialize for Queue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.durable.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Queue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let durable = Durable::deserialize(deserializer)?;
        let order = durable.tasks.values().map(|t| (t.rank(), t.id)).collect();
        Ok(Queue { durable, order, leases: Leases::default() })
    }
}
