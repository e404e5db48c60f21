//! Giving space back: packs that nothing can reach any more.
//!
//! The order makes it safe: [`Collector::candidates`] chooses, the owner journals [`crate::Queue::retire`], and only then
//! [`Store::remove`] takes the files away. Once the retirement is in the journal no owner, present or future, accepts a
//! reference into the pack, so even a superseded owner that wakes up late removes only what it may.

use std::collections::{BTreeMap, BTreeSet};

use crate::pack;
use crate::queue::{AttemptId, Queue};
use crate::store::Store;
use crate::{Error, Result};

/// A pack in its folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackInfo {
    /// Its name, as references give it.
    pub name: String,
    /// Who wrote it.
    pub owner: String,
    /// Its length, bytes.
    pub bytes: u64,
    /// Its writer has finished it.
    pub sealed: bool,
}

impl Store {
    /// All packs, by name. An error means that nothing is known; it never gives a part.
    pub fn packs(&self) -> Result<Vec<PackInfo>> {
        let mut packs = Vec::new();
        for entry in self.list()? {
            let Some(name) = pack::of_file(&entry.name) else { continue };
            let Some(owner) = pack::owner_of(name) else { continue };
            let file = match self.inner.dir.open(&entry.name) {
                Ok(file) => file,
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue, // removed since
                Err(e) => return Err(Error::io("open", entry.name, e)),
            };
            let sealed = pack::read_footer(name, &*file)?.is_some();
            packs.push(PackInfo { name: name.to_owned(), owner: owner.to_owned(), bytes: entry.len, sealed });
        }
        Ok(packs)
    }

    /// Removes the files of `retired` packs, those of an interrupted removal included. Gives the bytes freed.
    /// Their retirement must be durable: pass [`Queue::retired`].
    pub fn remove(&self, retired: &BTreeSet<String>) -> Result<u64> {
        let mut freed = 0;
        for entry in self.list()? {
            let Some(name) = pack::of_file(&entry.name).filter(|name| retired.contains(*name)) else { continue };
            match self.inner.dir.remove(&entry.name) {
                Ok(()) => freed += entry.len,
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                Err(e) => return Err(Error::io("remove", entry.name, e)),
            }
            self.forget(name);
        }
        if freed > 0 {
            self.inner.dir.sync().map_err(|e| Error::io("sync", self.dir_name(), e))?;
        }
        Ok(freed)
    }
}

/// Chooses packs that may be given up. Keeps what it has seen in memory only: after a restart it waits again.
///
/// A pack that nothing refers to may still hold a result whose worker is about to complete it. So a sealed pack is chosen
/// only when it has been seen for `settle_ms` and its owner (as a worker of the queue) holds no lease from before it was
/// first seen; an open pack only when, besides, it did not grow for `idle_ms`: then its writer is taken for dead. Should
/// that writer live after all, the queue refuses its references and it publishes again ([`crate::Writer::retired`]).
#[derive(Clone, Debug)]
pub struct Collector {
    settle_ms: u64,
    idle_ms: u64,
    seen: BTreeMap<String, Seen>,
}

#[derive(Clone, Debug)]
struct Seen {
    bytes: u64,
    sealed: bool,
    since_ms: u64,
    attempts: AttemptId,
}

impl Collector {
    /// Waits this long for sealed and for open packs.
    pub fn new(settle_ms: u64, idle_ms: u64) -> Self {
        Collector { settle_ms, idle_ms, seen: BTreeMap::new() }
    }

    /// The packs, of all there are, that may be retired now.
    pub fn candidates(&mut self, packs: &[PackInfo], queue: &Queue, now_ms: u64) -> Vec<String> {
        self.seen.retain(|name, _| packs.iter().any(|p| &p.name == name));
        let mut chosen = Vec::new();
        for pack in packs {
            if queue.is_live(&pack.name) || queue.retired().contains(&pack.name) {
                self.seen.remove(&pack.name);
            } else if self.has_settled(pack, queue, now_ms) {
                chosen.push(pack.name.clone());
            }
        }
        chosen
    }

    fn has_settled(&mut self, pack: &PackInfo, queue: &Queue, now_ms: u64) -> bool {
        let now = Seen { bytes: pack.bytes, sealed: pack.sealed, since_ms: now_ms, attempts: queue.last_attempt() };
        let seen = self.seen.entry(pack.name.clone()).or_insert_with(|| now.clone());
        if seen.bytes != pack.bytes || seen.sealed != pack.sealed {
            *seen = now;
        }
        let wait_ms = if pack.sealed { self.settle_ms } else { self.idle_ms.max(self.settle_ms) };
        let waited = now_ms.saturating_sub(seen.since_ms) >= wait_ms;
        waited && queue.leases_of(&pack.owner).all(|lease| lease.attempt > seen.attempts)
    }
}
