//! Records that were moved to other packs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::refused::at_most;
use super::{Op, Queue, Refused};
use crate::Ref;
use crate::limits::REFS_MAX;

impl Queue {
    /// Every reference to the first of a pair becomes one to the second, which has the same content ([`crate::compact::copy`]). What is
    /// not referred to any more is left alone.
    pub fn move_records(&self, moves: &[(Ref, Ref)]) -> Result<Op, Refused> {
        let op = Op::Move { moves: moves.to_vec() };
        self.check(&op)?;
        Ok(op)
    }

    /// Where the record is now: the reference itself, unless the record was moved. Known for as long as anything needs it.
    /// A reader whose pack is missing asks this.
    pub fn resolve(&self, r: &Ref) -> Ref {
        let to = self.durable.moved.get(r).filter(|to| !to.packs().any(|pack| self.is_given_up(pack)));
        to.unwrap_or(r).clone()
    }

    /// True when records were moved out of the pack, or do not share its blocks any more, so that someone may have old references
    /// that need it.
    pub(crate) fn was_moved_from(&self, pack: &str) -> bool {
        let first = Ref { pack: pack.to_owned(), ..Ref::default() };
        let moved = &self.durable.moved;
        let own = moved.range(first..).next().is_some_and(|(from, _)| from.pack == pack);
        own || moved.keys().any(|from| from.shares.iter().any(|share| share.pack == pack))
    }

    pub(super) fn resolve_all(&self, refs: &[Ref]) -> Vec<Ref> {
        refs.iter().map(|r| self.resolve(r)).collect()
    }

    pub(super) fn check_move(&self, moves: &[(Ref, Ref)]) -> Result<(), Refused> {
        at_most("records of a move", moves.len(), REFS_MAX)?;
        let mut seen = BTreeSet::new();
        for (from, to) in moves {
            if from.pack == to.pack || !from.same_content(to) {
                return Err(Refused::Invalid("a record is moved to another pack and stays the same"));
            }
            if !seen.insert(from) {
                return Err(Refused::Invalid("a record is moved once"));
            }
            self.check_refs(std::slice::from_ref(to))?;
        }
        Ok(())
    }

    pub(super) fn apply_move(&mut self, moves: &[(Ref, Ref)]) {
        let to: BTreeMap<&Ref, &Ref> = moves.iter().map(|(from, to)| (from, to)).collect();
        let Queue { durable, holds, .. } = self;
        let mut done = BTreeMap::new();
        let mut replace = |r: &mut Ref| {
            if let Some(to) = to.get(r).copied() {
                holds.add(std::slice::from_ref(to));
                holds.remove(std::slice::from_ref(r));
                done.insert(std::mem::replace(r, to.clone()), to.clone());
            }
        };
        durable.live.refs_mut().for_each(&mut replace);
        for checkpoint in durable.checkpoints.values_mut() {
            // One that has none of them stays shared with its copies.
            if checkpoint.live.refs().any(|r| to.contains_key(r)) {
                Arc::make_mut(&mut checkpoint.live).refs_mut().for_each(&mut replace);
            }
        }
        for moved in durable.moved.values_mut() {
            if let Some(further) = done.get(moved) {
                moved.clone_from(further);
            }
        }
        durable.moved.append(&mut done);
        // Bounded by what is needed: a record that nothing needs is not looked for.
        let live: BTreeSet<Ref> = self.live_refs().cloned().collect();
        self.durable.moved.retain(|_, to| live.contains(to));
    }

    /// Forgets where records went that nothing needs now.
    pub(super) fn forget_moves_to(&mut self, packs: &[String]) {
        self.durable.moved.retain(|_, to| !packs.iter().any(|pack| to.needs(pack)));
    }
}
