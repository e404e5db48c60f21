//! Batches: each accepted group is in exactly one, each is consumed in order, and is kept until the boundary passes it.

use serde::{Deserialize, Serialize};

use super::refused::{Seen, at_most};
use super::{Op, Position, Queue, Refused};
use crate::Ref;
use crate::limits::{BATCH_GROUPS_MAX, REFS_MAX};

/// Number of a batch: dense from 0 (the step that trains on it).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BatchId(pub u64);

/// A planned batch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Batch {
    /// Its groups, in order.
    pub positions: Vec<Position>,
    /// The converted batch; empty until it is ready.
    pub payload: Vec<Ref>,
    /// The converted batch was written.
    pub ready: bool,
}

impl Queue {
    /// Makes a batch of accepted groups, in the order given. Its id must be [`Queue::next_batch`].
    pub fn plan_batch(&self, batch: BatchId, positions: &[Position]) -> Result<Op, Refused> {
        let op = Op::PlanBatch { batch, positions: positions.to_vec() };
        self.check(&op)?;
        Ok(op)
    }

    /// The converted batch was written once, as `payload`.
    pub fn batch_ready(&self, batch: BatchId, payload: &[Ref]) -> Result<Op, Refused> {
        let op = Op::BatchReady { batch, payload: self.resolve_all(payload) };
        self.check(&op)?;
        Ok(op)
    }

    /// The trainer has used the batch: batches are consumed in order. `None` when it was consumed before.
    pub fn ack(&self, batch: BatchId) -> Result<Option<Op>, Refused> {
        if batch < self.durable.live.consumed {
            return Ok(None);
        }
        let op = Op::Consume { batch };
        self.check(&op)?;
        Ok(Some(op))
    }

    /// The trainer restarts from its last commit: batches from `to` on will be consumed again.
    pub fn rewind(&self, to: BatchId) -> Result<Op, Refused> {
        let op = Op::Rewind { to };
        self.check(&op)?;
        Ok(op)
    }

    /// Lets go of all batches below `below`; they must be consumed. Their tasks are settled.
    pub fn release(&self, below: BatchId) -> Result<Op, Refused> {
        let op = Op::Release { below };
        self.check(&op)?;
        Ok(op)
    }

    /// The batch, until it is released.
    pub fn batch(&self, batch: BatchId) -> Option<&Batch> {
        self.durable.live.batches.get(&batch)
    }

    /// Batches that are not released.
    pub fn batches(&self) -> impl Iterator<Item = (BatchId, &Batch)> {
        self.durable.live.batches.iter().map(|(id, b)| (*id, b))
    }

    /// Id of the batch to plan next.
    pub fn next_batch(&self) -> BatchId {
        self.durable.live.next_batch
    }

    /// The batch to consume next; all below are consumed.
    pub fn consumed(&self) -> BatchId {
        self.durable.live.consumed
    }

    /// All batches below this one are released.
    pub fn released(&self) -> BatchId {
        self.durable.live.released
    }

    pub(super) fn check_plan(&self, batch: BatchId, positions: &[Position]) -> Result<(), Refused> {
        if batch != self.durable.live.next_batch {
            return Err(Refused::NotDue { given: batch, due: self.durable.live.next_batch });
        }
        at_most("groups of a batch", positions.len(), BATCH_GROUPS_MAX)?;
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
                return Err(Refused::Batched { position: *position, batch });
            }
        }
        Ok(())
    }

    pub(super) fn check_ready(&self, batch: BatchId, payload: &[Ref]) -> Result<(), Refused> {
        let known = self.batch(batch).ok_or(Refused::UnknownBatch(batch))?;
        if known.ready {
            return Err(Refused::Batch { batch, what: "is ready already" });
        }
        at_most("references of a batch", payload.len(), REFS_MAX)?;
        self.check_refs(payload)
    }

    pub(super) fn check_consume(&self, batch: BatchId) -> Result<(), Refused> {
        if batch != self.durable.live.consumed {
            return Err(Refused::NotDue { given: batch, due: self.durable.live.consumed });
        }
        let known = self.batch(batch).ok_or(Refused::UnknownBatch(batch))?;
        if known.ready { Ok(()) } else { Err(Refused::Batch { batch, what: "is not ready" }) }
    }

    pub(super) fn check_rewind(&self, to: BatchId) -> Result<(), Refused> {
        if to < self.durable.live.released {
            return Err(Refused::UnknownBatch(to));
        }
        let ahead = to > self.durable.live.consumed;
        if ahead { Err(Refused::Batch { batch: to, what: "is not consumed yet" }) } else { Ok(()) }
    }

    pub(super) fn check_release(&self, below: BatchId) -> Result<(), Refused> {
        if below < self.durable.live.released {
            return Err(Refused::Batch { batch: below, what: "is released already" });
        }
        let ahead = below > self.durable.live.consumed;
        if ahead { Err(Refused::Batch { batch: below, what: "has unconsumed batches before it" }) } else { Ok(()) }
    }

    pub(super) fn apply_plan(&mut self, batch: BatchId, positions: Vec<Position>) {
        for position in &positions {
            if let Some(group) = self.durable.live.accepted.get_mut(position) {
                group.batch = Some(batch);
            }
            self.take_free(*position);
        }
        self.durable.live.next_batch = BatchId(batch.0 + 1);
        let planned = Batch { positions, ..Batch::default() };
        let before = self.durable.live.batches.insert(batch, planned);
        assert!(before.is_none(), "a batch is planned once");
    }

    pub(super) fn apply_ready(&mut self, batch: BatchId, payload: Vec<Ref>) {
        self.holds.add(&payload);
        if let Some(known) = self.durable.live.batches.get_mut(&batch) {
            known.payload = payload;
            known.ready = true;
        }
    }

    pub(super) fn apply_release(&mut self, below: BatchId) {
        let kept = self.durable.live.batches.split_off(&below);
        let released = std::mem::replace(&mut self.durable.live.batches, kept);
        for batch in released.values() {
            self.holds.remove(&batch.payload);
            batch.positions.iter().for_each(|position| self.let_go(*position));
        }
        self.durable.live.released = below;
        self.durable.live.dropped.clear();
    }
}
