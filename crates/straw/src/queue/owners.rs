//! Owners of references outside tasks and batches, and packs that nothing owns.

use std::collections::BTreeSet;

use super::refused::at_most;
use super::{Op, Queue, Refused};
use crate::Ref;
use crate::limits::{OWNER_BYTES_MAX, REFS_MAX, SHARES_MAX};
use crate::pack::era_of;

impl Queue {
    /// `owner` (a commit, an archive) holds exactly `refs` from now on.
    pub fn retain(&self, owner: &str, refs: &[Ref]) -> Result<Op, Refused> {
        let op = Op::Retain { owner: owner.to_owned(), refs: self.resolve_all(refs) };
        self.check(&op)?;
        Ok(op)
    }

    /// `owner` lets go. `None` when it held nothing.
    pub fn release_owner(&self, owner: &str) -> Option<Op> {
        self.durable.live.owners.contains_key(owner).then(|| Op::ReleaseOwner { owner: owner.to_owned() })
    }

    /// What an owner holds.
    pub fn owner(&self, owner: &str) -> Option<&[Ref]> {
        self.durable.live.owners.get(owner).map(Vec::as_slice)
    }

    /// Owners and what they hold.
    pub fn owners(&self) -> impl Iterator<Item = (&str, &[Ref])> {
        self.durable.live.owners.iter().map(|(name, refs)| (name.as_str(), refs.as_slice()))
    }

    /// Owners and what they hold, in checkpoints too.
    pub(crate) fn owners_everywhere(&self) -> impl Iterator<Item = (&str, &[Ref])> {
        let checkpoints = self.durable.checkpoints.values().map(|checkpoint| &*checkpoint.live);
        let all = std::iter::once(&self.durable.live).chain(checkpoints);
        all.flat_map(|live| &live.owners).map(|(name, refs)| (name.as_str(), refs.as_slice()))
    }

    /// Gives packs up to the collector: from then on the queue refuses references into them, so they can be removed at any
    /// time, even by an owner that has been superseded since. Journal this before removing a pack.
    pub fn retire(&self, packs: &[String]) -> Result<Op, Refused> {
        let op = Op::Retire { packs: packs.to_vec() };
        self.check(&op)?;
        Ok(op)
    }

    /// Packs that were given up and not forgotten since.
    pub fn retired(&self) -> &BTreeSet<String> {
        &self.durable.retired
    }

    /// Raises the horizon, and forgets the names of retired packs of earlier eras; see [`crate::Collector::horizon`].
    pub fn forget(&self, below: u32) -> Result<Op, Refused> {
        let op = Op::Forget { below };
        self.check(&op)?;
        Ok(op)
    }

    /// The era below which a pack is accepted only while it is referred to already.
    pub fn horizon(&self) -> u32 {
        self.durable.horizon
    }

    /// True when no reference into the pack is accepted, now or ever: it was retired; or it is older than the horizon and
    /// nothing refers to it, and only an accepted reference could change that.
    pub fn is_given_up(&self, pack: &str) -> bool {
        self.durable.retired.contains(pack) || (era_of(pack) < self.durable.horizon && !self.is_live(pack))
    }

    pub(super) fn check_refs(&self, refs: &[Ref]) -> Result<(), Refused> {
        for r in refs {
            at_most("packs that a record shares blocks of", r.shares.len(), SHARES_MAX)?;
        }
        match refs.iter().flat_map(Ref::packs).find(|pack| self.is_given_up(pack)) {
            Some(pack) => Err(Refused::PackRetired(pack.to_owned())),
            None => Ok(()),
        }
    }

    pub(super) fn check_retain(&self, owner: &str, refs: &[Ref]) -> Result<(), Refused> {
        at_most("bytes of an owner's name", owner.len(), OWNER_BYTES_MAX)?;
        at_most("references of an owner", refs.len(), REFS_MAX)?;
        self.check_refs(refs)
    }

    pub(super) fn check_forget(&self, below: u32) -> Result<(), Refused> {
        if below < self.durable.horizon { Err(Refused::Invalid("the horizon never goes back")) } else { Ok(()) }
    }

    pub(super) fn apply_forget(&mut self, below: u32) {
        self.durable.horizon = below;
        self.durable.retired.retain(|name| era_of(name) >= below);
    }

    pub(super) fn check_retire(&self, packs: &[String]) -> Result<(), Refused> {
        match packs.iter().find(|pack| self.is_live(pack)) {
            Some(pack) => Err(Refused::PackLive(pack.clone())),
            None => Ok(()),
        }
    }
}
