//! How often each pack is referred to, so that liveness costs nothing to ask.

use std::collections::BTreeMap;

use crate::Ref;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Holds(BTreeMap<String, u64>);

impl Holds {
    pub(super) fn add(&mut self, refs: &[Ref]) {
        for r in refs {
            match self.0.get_mut(&r.pack) {
                Some(count) => *count += 1,
                None => drop(self.0.insert(r.pack.clone(), 1)),
            }
        }
    }

    pub(super) fn remove(&mut self, refs: &[Ref]) {
        for r in refs {
            let Some(count) = self.0.get_mut(&r.pack) else { unreachable!("a reference is let go once") };
            *count -= 1;
            if *count == 0 {
                self.0.remove(&r.pack);
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
