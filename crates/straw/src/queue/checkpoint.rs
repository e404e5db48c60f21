//! Checkpoints: named states of the queue, each bound to the model that belongs to it.
//!
//! A checkpoint is taken by one op, so it and the caller's record of the model (step, digest, folder) are in the journal
//! together or not at all: there is no marker file and no `latest`. It holds every reference of its state, so it can always be
//! gone back to ([`Queue::rollback`]) or forked ([`Queue::fork`]); both copy the state's metadata and no payload.
//!
//! Each checkpoint knows the one before it in its line of history, and the queue knows the one it comes from ([`Queue::head`]):
//! after a rollback the checkpoints of the line that was left stay, as a branch, until they are dropped.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::lease::Leases;
use super::refused::at_most;
use super::{Durable, Live, Op, Queue, Refused};
use crate::limits::{CHECKPOINT_MODEL_BYTES_MAX, CHECKPOINTS_MAX, OWNER_BYTES_MAX};

/// Name, in a fork, of the checkpoint it began with.
pub const FORKED: &str = "forked";

/// A named state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Checkpoint {
    pub(super) parent: Option<String>,
    #[serde(with = "crate::blob")]
    pub(super) model: Vec<u8>,
    pub(super) live: Arc<Live>,
}

impl Checkpoint {
    /// The checkpoint before it in its line of history.
    pub fn parent(&self) -> Option<&str> {
        self.parent.as_deref()
    }

    /// The caller's record, committed with it.
    pub fn model(&self) -> &[u8] {
        &self.model
    }

    /// The batch that was to be consumed next.
    pub fn consumed(&self) -> super::BatchId {
        self.live.consumed
    }
}

impl Queue {
    /// Names the present state, and binds `model` to it.
    pub fn checkpoint(&self, name: &str, model: &[u8]) -> Result<Op, Refused> {
        let op = Op::Checkpoint { name: name.to_owned(), model: model.to_vec() };
        self.check(&op)?;
        Ok(op)
    }

    /// Goes back to a checkpoint. Leases end, and what was accepted since is forgotten (its positions are not used again);
    /// packs that were given up stay so.
    pub fn rollback(&self, name: &str) -> Result<Op, Refused> {
        let op = Op::Rollback { name: name.to_owned() };
        self.check(&op)?;
        Ok(op)
    }

    /// Forgets a checkpoint, and lets go of what only it held. Refused while a fork needs it.
    pub fn drop_checkpoint(&self, name: &str) -> Result<Op, Refused> {
        let op = Op::DropCheckpoint { name: name.to_owned() };
        self.check(&op)?;
        Ok(op)
    }

    /// Holds a checkpoint for the fork of that name, so that it cannot be dropped. Journal this before the fork registers in
    /// the pool and begins.
    pub fn hold_for(&self, fork: &str, checkpoint: &str) -> Result<Op, Refused> {
        let op = Op::HoldFork { fork: fork.to_owned(), checkpoint: checkpoint.to_owned() };
        self.check(&op)?;
        Ok(op)
    }

    /// The fork has begun its journal in a pool where it is registered ([`crate::Store::register`]), which keeps its packs from
    /// then on; or it will never begin. `None` when nothing was held for it.
    pub fn end_hold(&self, fork: &str) -> Option<Op> {
        self.durable.forks.contains_key(fork).then(|| Op::EndFork { fork: fork.to_owned() })
    }

    /// A queue that begins as this one was at the checkpoint: same tasks, accepted groups, batches and references. It has the
    /// checkpoint as [`FORKED`], and what was retired here is refused there. Store it as the first snapshot of a journal of its
    /// own ([`crate::Journal::begin`]).
    pub fn fork(&self, name: &str) -> Result<Queue, Refused> {
        let from = self.checkpoint_named(name).ok_or_else(|| Refused::UnknownCheckpoint(name.to_owned()))?;
        let forked = Checkpoint { parent: None, ..from.clone() };
        let durable = Durable {
            live: (*from.live).clone(),
            next_turn: self.durable.next_turn,
            next_position: self.durable.next_position,
            retired: self.durable.retired.clone(),
            horizon: self.durable.horizon,
            moved: self.durable.moved.clone(),
            checkpoints: [(FORKED.to_owned(), forked)].into(),
            head: Some(FORKED.to_owned()),
            forks: Default::default(),
        };
        Ok(Queue::derive(durable, Leases::default()))
    }

    /// The checkpoint of that name.
    pub fn checkpoint_named(&self, name: &str) -> Option<&Checkpoint> {
        self.durable.checkpoints.get(name)
    }

    /// All checkpoints, by name; those of branches that were left included.
    pub fn checkpoints(&self) -> impl Iterator<Item = (&str, &Checkpoint)> {
        self.durable.checkpoints.iter().map(|(name, c)| (name.as_str(), c))
    }

    /// The checkpoint that the present state comes from.
    pub fn head(&self) -> Option<&str> {
        self.durable.head.as_deref()
    }

    /// The checkpoints of the present line of history, newest first.
    pub fn ancestors(&self) -> impl Iterator<Item = (&str, &Checkpoint)> {
        let known = |name: Option<&String>| name.and_then(|name| self.durable.checkpoints.get_key_value(name));
        let line = std::iter::successors(known(self.durable.head.as_ref()), move |(_, c)| known(c.parent.as_ref()));
        line.map(|(name, c)| (name.as_str(), c))
    }

    /// Forks and the checkpoints that are held for them.
    pub fn forks(&self) -> impl Iterator<Item = (&str, &str)> {
        self.durable.forks.iter().map(|(fork, checkpoint)| (fork.as_str(), checkpoint.as_str()))
    }

    pub(super) fn check_checkpoint(&self, name: &str, model: &[u8]) -> Result<(), Refused> {
        at_most("bytes of a checkpoint's name", name.len(), OWNER_BYTES_MAX)?;
        at_most("bytes of a checkpoint's model record", model.len(), CHECKPOINT_MODEL_BYTES_MAX)?;
        at_most("checkpoints", self.durable.checkpoints.len() + 1, CHECKPOINTS_MAX)?;
        match self.checkpoint_named(name) {
            Some(_) => Err(Refused::CheckpointExists(name.to_owned())),
            None => Ok(()),
        }
    }

    pub(super) fn check_known_checkpoint(&self, name: &str) -> Result<(), Refused> {
        self.checkpoint_named(name).map(drop).ok_or_else(|| Refused::UnknownCheckpoint(name.to_owned()))
    }

    pub(super) fn check_drop_checkpoint(&self, name: &str) -> Result<(), Refused> {
        self.check_known_checkpoint(name)?;
        match self.durable.forks.iter().find(|(_, held)| *held == name) {
            Some((fork, _)) => Err(Refused::CheckpointHeld { checkpoint: name.to_owned(), fork: fork.clone() }),
            None => Ok(()),
        }
    }

    pub(super) fn check_hold_fork(&self, fork: &str, checkpoint: &str) -> Result<(), Refused> {
        at_most("bytes of a fork's name", fork.len(), OWNER_BYTES_MAX)?;
        at_most("forks", self.durable.forks.len() + 1, CHECKPOINTS_MAX)?;
        self.check_known_checkpoint(checkpoint)?;
        match self.durable.forks.get(fork) {
            Some(held) if held != checkpoint => Err(Refused::Invalid("the fork holds another checkpoint")),
            _ => Ok(()),
        }
    }

    pub(super) fn apply_checkpoint(&mut self, name: &str, model: &[u8]) {
        let live = Arc::new(self.durable.live.clone());
        live.refs().for_each(|r| self.holds.add(std::slice::from_ref(r)));
        let checkpoint = Checkpoint { parent: self.durable.head.take(), model: model.to_vec(), live };
        self.durable.checkpoints.insert(name.to_owned(), checkpoint);
        self.durable.head = Some(name.to_owned());
    }

    pub(super) fn apply_rollback(&mut self, name: &str) {
        let Some(to) = self.checkpoint_named(name) else { unreachable!("checked: the checkpoint is there") };
        let live = (*to.live).clone();
        let mut durable = std::mem::take(&mut self.durable);
        durable.live = live;
        durable.head = Some(name.to_owned());
        let mut leases = std::mem::take(&mut self.leases);
        leases.clear();
        *self = Queue::derive(durable, leases);
    }

    pub(super) fn apply_drop_checkpoint(&mut self, name: &str) {
        let Some(gone) = self.durable.checkpoints.remove(name) else {
            unreachable!("checked: the checkpoint is there")
        };
        gone.live.refs().for_each(|r| self.holds.remove(std::slice::from_ref(r)));
        let after = self.durable.checkpoints.values_mut().map(|c| &mut c.parent).chain([&mut self.durable.head]);
        after.filter(|parent| parent.as_deref() == Some(name)).for_each(|parent| parent.clone_from(&gone.parent));
    }
}
