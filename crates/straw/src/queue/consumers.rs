//! Named consumers of the accepted groups, beside the batches.
//!
//! Each has its own place in the log. A group is kept until its batch is released (or it was settled without one) *and* every
//! consumer that was open when it was accepted, or opened at or before its position, has processed it. A group that is dropped
//! is dropped for all.

use serde::{Deserialize, Serialize};

use super::refused::at_most;
use super::{Accepted, Op, Position, Queue, Refused, Settled};
use crate::limits::{BATCH_GROUPS_MAX, CONSUMER_STATE_BYTES_MAX, CONSUMERS_MAX, OWNER_BYTES_MAX};

/// Where a consumer stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Consumer {
    /// Every position below is processed.
    next: Position,
    /// Positions at or above `next` that are processed.
    done: Settled,
    /// The consumer's own record, replaced with each acknowledgement that brings one.
    #[serde(with = "crate::blob")]
    state: Vec<u8>,
}

impl Consumer {
    /// Every position below is processed.
    pub fn next(&self) -> Position {
        self.next
    }

    /// What the consumer stored with its last acknowledgement.
    pub fn state(&self) -> &[u8] {
        &self.state
    }

    /// True when the consumer has yet to process the position.
    pub fn needs(&self, position: Position) -> bool {
        position >= self.next && !self.done.contains(position.0)
    }
}

impl Queue {
    /// Adds a consumer that begins with the first group at or behind `from` that is still there.
    pub fn open_consumer(&self, name: &str, from: Position) -> Result<Op, Refused> {
        let op = Op::OpenConsumer { name: name.to_owned(), from };
        self.check(&op)?;
        Ok(op)
    }

    /// The consumer has processed these positions, in whatever order; `state` replaces what it had stored. Positions that it
    /// processed before are no error.
    pub fn ack_consumer(&self, name: &str, positions: &[Position], state: Option<&[u8]>) -> Result<Op, Refused> {
        let state = state.map(<[u8]>::to_vec);
        let op = Op::AckConsumer { name: name.to_owned(), positions: positions.to_vec(), state };
        self.check(&op)?;
        Ok(op)
    }

    /// Removes a consumer. `None` when there is none of that name.
    pub fn close_consumer(&self, name: &str) -> Option<Op> {
        self.consumer(name).map(|_| Op::CloseConsumer { name: name.to_owned() })
    }

    /// Groups that no batch will have are let go: their tasks are settled, and they are removed once no consumer needs them.
    pub fn settle_accepted(&self, positions: &[Position]) -> Result<Op, Refused> {
        let op = Op::SettleAccepted { positions: positions.to_vec() };
        self.check(&op)?;
        Ok(op)
    }

    /// The consumer of that name.
    pub fn consumer(&self, name: &str) -> Option<&Consumer> {
        self.durable.live.consumers.get(name)
    }

    /// All consumers, by name.
    pub fn consumers(&self) -> impl Iterator<Item = (&str, &Consumer)> {
        self.durable.live.consumers.iter().map(|(name, c)| (name.as_str(), c))
    }

    /// Up to `max` groups that the consumer has yet to process, at or behind `from`, by position. Costs what it gives, and a
    /// little for each stretch of processed ones in between.
    pub fn fetch(&self, name: &str, from: Position, max: usize) -> Result<Vec<(Position, &Accepted)>, Refused> {
        let consumer = self.consumer(name).ok_or_else(|| Refused::UnknownConsumer(name.to_owned()))?;
        let mut groups = Vec::new();
        let mut at = from.max(consumer.next);
        while groups.len() < max
            && let Some((position, group)) = self.durable.live.accepted.range(at..).next()
        {
            let processed = consumer.done.stretch_end(position.0);
            at = Position(processed.unwrap_or(position.0) + 1);
            if processed.is_none() {
                groups.push((*position, group));
            }
        }
        Ok(groups)
    }

    pub(super) fn check_open_consumer(&self, name: &str) -> Result<(), Refused> {
        at_most("bytes of a consumer's name", name.len(), OWNER_BYTES_MAX)?;
        at_most("consumers", self.durable.live.consumers.len() + 1, CONSUMERS_MAX)?;
        match self.consumer(name) {
            Some(_) => Err(Refused::ConsumerExists(name.to_owned())),
            None => Ok(()),
        }
    }

    pub(super) fn check_ack_consumer(
        &self,
        name: &str,
        positions: &[Position],
        state: Option<&[u8]>,
    ) -> Result<(), Refused> {
        self.consumer(name).ok_or_else(|| Refused::UnknownConsumer(name.to_owned()))?;
        at_most("positions of an acknowledgement", positions.len(), BATCH_GROUPS_MAX)?;
        at_most("bytes of a consumer's state", state.map_or(0, <[u8]>::len), CONSUMER_STATE_BYTES_MAX)?;
        match positions.iter().find(|p| **p >= self.durable.next_position) {
            Some(ahead) => Err(Refused::UnknownPosition(*ahead)),
            None => Ok(()),
        }
    }

    pub(super) fn apply_open_consumer(&mut self, name: &str, from: Position) {
        let consumer = Consumer { next: from.min(self.durable.next_position), ..Consumer::default() };
        self.durable.live.consumers.insert(name.to_owned(), consumer);
    }

    pub(super) fn apply_ack_consumer(&mut self, name: &str, positions: &[Position], state: Option<&[u8]>) {
        let live = &mut self.durable.live;
        let Some(consumer) = live.consumers.get_mut(name) else { unreachable!("checked: the consumer is there") };
        for position in positions.iter().filter(|p| **p >= consumer.next) {
            consumer.done.insert(position.0);
        }
        let waits = live.accepted.range(consumer.next..).map(|(p, _)| *p).find(|p| !consumer.done.contains(p.0));
        consumer.next = waits.unwrap_or(self.durable.next_position);
        consumer.done.forget_below(consumer.next.0);
        if let Some(state) = state {
            consumer.state = state.to_vec();
        }
        self.sweep(positions);
    }

    pub(super) fn apply_close_consumer(&mut self, name: &str) {
        self.durable.live.consumers.remove(name);
        let settled = self.durable.live.accepted.iter().filter(|(_, a)| a.settled).map(|(p, _)| *p);
        let settled: Vec<Position> = settled.collect();
        self.sweep(&settled);
    }

    /// Marks an accepted group as over for the batches, and removes it if no consumer needs it.
    pub(super) fn let_go(&mut self, position: Position) {
        let Some(group) = self.durable.live.accepted.get_mut(&position) else { unreachable!("a group is let go once") };
        group.settled = true;
        let task = group.task;
        self.take_free(position);
        self.settle(task);
        self.sweep(&[position]);
    }

    /// Removes those of the groups that are over and that no consumer needs.
    fn sweep(&mut self, positions: &[Position]) {
        for position in positions {
            let over = self.accepted_at(*position).is_some_and(|a| a.settled);
            if over && !self.durable.live.consumers.values().any(|c| c.needs(*position)) {
                self.take_accepted(*position);
            }
        }
    }
}
