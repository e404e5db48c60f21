//! How often each pack is referred to, for a record in it or for blocks that a record elsewhere shares, so that liveness costs
//! nothing to ask.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use crate::Ref;

/// Built when it is first asked for, and kept up to date from then on: a replay mostly does not ask.
#[derive(Clone, Debug, Default)]
pub(super) struct Holds(OnceLock<Counts>);

#[derive(Clone, Debug, Default)]
pub(super) struct Counts(BTreeMap<String, u64>);

impl Holds {
    pub(super) fn add(&mut self, refs: &[Ref]) {
        if let Some(counts) = self.0.get_mut() {
            refs.iter().for_each(|r| counts.add(r));
        }
    }

    pub(super) fn remove(&mut self, refs: &[Ref]) {
        if let Some(counts) = self.0.get_mut() {
            refs.iter().for_each(|r| counts.remove(r));
        }
    }

    pub(super) fn get_or_build(&self, build: impl FnOnce() -> Counts) -> &Counts {
        self.0.get_or_init(build)
    }
}

impl Counts {
    pub(super) fn add(&mut self, r: &Ref) {
        for pack in r.packs() {
            match self.0.get_mut(pack) {
                Some(count) => *count += 1,
                None => drop(self.0.insert(pack.to_owned(), 1)),
            }
        }
    }

    fn remove(&mut self, r: &Ref) {
        for pack in r.packs() {
            let Some(count) = self.0.get_mut(pack) else { unreachable!("a reference is let go once") };
            *count -= 1;
            if *count == 0 {
                self.0.remove(pack);
            }
        }
    }

    pub(super) fn has(&self, pack: &str) -> bool {
        self.0.contains_key(pack)
    }

    pub(super) fn packs(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}
