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
//! Beside the batches, which are the trainer's, any number of named [`Consumer`]s read the accepted groups, each at its own
//! pace. A [`Checkpoint`] is a named state, bound to an opaque record of the caller's (the model that belongs to it) by being
//! one op: [`Queue::rollback`] goes back to it, and [`Queue::fork`] begins another queue from it without copying a payload.
//!
//! Order of leasing: [`Class`] (ready, partial, fresh), then the smaller scheduling key (the older weight version; none is
//! last), then first come, first served.

mod accepted;
mod apply;
mod batch;
mod checkpoint;
mod consumers;
mod holds;
mod known;
mod lease;
mod moved;
mod op;
mod order;
mod owners;
mod refused;
mod replay;
mod settled;
mod task;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use accepted::{Accepted, Completion, Drop, DropCause, Finished, Position};
pub use batch::{Batch, BatchId};
pub use checkpoint::{Checkpoint, FORKED};
pub use consumers::Consumer;
pub use lease::{AttemptId, Lease, LeaseTerms};
pub use op::Op;
pub use order::{LANE_SHIFT, Lane, Wanted};
pub use refused::Refused;
pub use settled::Settled;
pub use task::{Class, NewTask, Task, TaskId};

use holds::{Counts, Holds};
use known::Known;
use lease::Leases;
use order::{Lanes, Order};

/// Version of the queue's ops and of its serialised state.
pub(crate) const FORMAT: u16 = 5;

/// The queue of one run. Serialises to (and from) its durable part alone.
///
/// What is derived for queries is made by the first of them, so that a replay, which asks nothing, does not pay for it: a
/// million tasks that are submitted, completed, batched and released took 1.6 s of one core when it was kept up to date and
/// ops were copied, 0.6 s since (`recover_1m_tasks_without_snapshot` of the bench).
#[derive(Clone, Debug, Default)]
pub struct Queue {
    durable: Durable,
    /// Pending tasks in order of leasing: derived from `durable`, less what is leased.
    order: Order,
    /// Accepted groups that are in no batch and not let go: derived. As the other two, made when it is first asked for.
    unbatched: OnceLock<BTreeSet<Position>>,
    /// Accepted groups by task and by submission: derived.
    known: Known,
    /// How often each pack is referred to: derived.
    holds: Holds,
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
    live: Live,
    /// Next place in the line of those who came at the same class and key. Never goes back.
    next_turn: u64,
    /// Never goes back either, so that a position means one group for ever.
    next_position: Position,
    /// Packs that were given up to the collector; nothing may refer to them again. Those of eras below the horizon are
    /// forgotten.
    retired: BTreeSet<String>,
    /// Packs of earlier eras are accepted only while they are referred to already. Never goes back.
    horizon: u32,
    /// Where records went that were moved and that something needs: old place -> present one.
    moved: BTreeMap<crate::Ref, crate::Ref>,
    /// Named states to go back to or to fork from.
    checkpoints: BTreeMap<String, Checkpoint>,
    /// The checkpoint that the present state comes from.
    head: Option<String>,
    /// Forks that still need a checkpoint's references held here: fork -> checkpoint.
    forks: BTreeMap<String, String>,
}

/// What a checkpoint captures and a rollback brings back.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Live {
    /// Unfinished tasks.
    tasks: BTreeMap<TaskId, Task>,
    /// Accepted groups that someone may still want.
    accepted: BTreeMap<Position, Accepted>,
    batches: BTreeMap<BatchId, Batch>,
    /// Batches below this were planned once; ids are never used again in one line of history.
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
    /// Named readers of the accepted groups, beside the batches.
    consumers: BTreeMap<String, Consumer>,
}

impl Live {
    /// Every reference.
    fn refs(&self) -> impl Iterator<Item = &crate::Ref> {
        let tasks = self.tasks.values().flat_map(|t| &t.parts);
        let accepted = self.accepted.values().flat_map(|a| &a.result);
        let batches = self.batches.values().flat_map(|b| &b.payload);
        tasks.chain(accepted).chain(batches).chain(self.owners.values().flatten())
    }

    /// The same ones, to be replaced when a record was moved.
    fn refs_mut(&mut self) -> impl Iterator<Item = &mut crate::Ref> {
        let tasks = self.tasks.values_mut().flat_map(|t| &mut t.parts);
        let accepted = self.accepted.values_mut().flat_map(|a| &mut a.result);
        let batches = self.batches.values_mut().flat_map(|b| &mut b.payload);
        tasks.chain(accepted).chain(batches).chain(self.owners.values_mut().flatten())
    }
}

impl Queue {
    /// An empty queue. Call [`Queue::begin_epoch`] before leasing.
    pub fn new() -> Self {
        Queue::default()
    }

    /// An empty queue whose first batch is `first`: it goes on where another one was left.
    pub fn beginning_at(first: BatchId) -> Self {
        let live = Live { next_batch: first, consumed: first, released: first, ..Live::default() };
        Queue::derive(Durable { live, ..Durable::default() }, Leases::default())
    }

    /// The task, while it is unfinished.
    pub fn task(&self, id: TaskId) -> Option<&Task> {
        self.durable.live.tasks.get(&id)
    }

    /// Unfinished tasks, in order of id.
    pub fn tasks(&self) -> impl Iterator<Item = &Task> {
        self.durable.live.tasks.values()
    }

    /// Tasks that nobody holds, in order of leasing.
    pub fn pending(&self) -> impl Iterator<Item = &Task> {
        self.pending_of(&Wanted::default())
    }

    /// Those of them that are wanted, in order of leasing. Costs what is taken of it.
    pub fn pending_of(&self, wanted: &Wanted) -> impl Iterator<Item = &Task> + use<'_> {
        self.lanes().iter(wanted).filter_map(|id| self.durable.live.tasks.get(&id))
    }

    /// Unfinished tasks of a lane, in order of id. Costs what is taken of it.
    pub fn tasks_of(&self, lane: Lane) -> impl Iterator<Item = &Task> + use<'_> {
        self.durable.live.tasks.range(lane.ids()).map(|(_, task)| task)
    }

    /// Number of tasks that nobody holds.
    pub fn pending_len(&self) -> usize {
        self.lanes().len()
    }

    /// Number of unfinished tasks, leased ones included.
    pub fn tasks_len(&self) -> usize {
        self.durable.live.tasks.len()
    }

    /// True when the task is over: released with its batch, or dropped.
    pub fn is_settled(&self, id: TaskId) -> bool {
        self.durable.live.settled.contains(id.0)
    }

    /// Packs that some durable reference reaches, those of blocks that it shares included: these must stay.
    pub fn live_packs(&self) -> BTreeSet<String> {
        self.counts().packs().map(str::to_owned).collect()
    }

    /// True when some durable reference reaches the pack.
    pub fn is_live(&self, pack: &str) -> bool {
        self.counts().has(pack)
    }

    /// Every durable reference, those that checkpoints hold included. One that is held twice comes twice.
    pub fn live_refs(&self) -> impl Iterator<Item = &crate::Ref> {
        let checkpoints = self.durable.checkpoints.values().flat_map(|c| c.live.refs());
        self.durable.live.refs().chain(checkpoints)
    }

    /// A queue of a durable state.
    fn derive(durable: Durable, leases: Leases) -> Self {
        let known = Known::of(&durable.live.accepted);
        Queue { durable, known, leases, ..Queue::default() }
    }

    fn lanes(&self) -> &Lanes {
        let pending = || self.durable.live.tasks.values().filter(|t| self.lease(t.id).is_none());
        self.order.get_or_build(|| pending().map(|t| (t.rank(), t.id)).collect())
    }

    fn free(&self) -> &BTreeSet<Position> {
        let free = || self.durable.live.accepted.iter().filter(|(_, a)| a.batch.is_none() && !a.settled);
        self.unbatched.get_or_init(|| free().map(|(position, _)| *position).collect())
    }

    fn counts(&self) -> &Counts {
        self.holds.get_or_build(|| {
            let mut counts = Counts::default();
            self.live_refs().for_each(|r| counts.add(r));
            counts
        })
    }
}

impl Serialize for Queue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (FORMAT, &self.durable).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Queue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Stored(durable) = Stored::deserialize(deserializer)?;
        Ok(Queue::derive(durable, Leases::default()))
    }
}

/// The durable part behind its version.
struct Stored(Durable);

impl<'de> Deserialize<'de> for Stored {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pair;
        impl<'de> serde::de::Visitor<'de> for Pair {
            type Value = Stored;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "a queue of format {FORMAT}")
            }
            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut seq: A) -> Result<Stored, A::Error> {
                use serde::de::Error as _;
                // The version first: the rest of another one would be read as something else.
                match seq.next_element::<u16>()? {
                    Some(FORMAT) => {}
                    other => return Err(A::Error::custom(format!("queue format {other:?} is not {FORMAT}"))),
                }
                let durable = seq.next_element()?.ok_or_else(|| A::Error::custom("a queue is cut short"))?;
                Ok(Stored(durable))
            }
        }
        deserializer.deserialize_tuple(2, Pair)
    }
}
