//! Giving space back: packs that nothing can reach any more.
//!
//! The order makes it safe: [`Collector::candidates`] chooses, the owner journals [`crate::Queue::retire`], and only then
//! [`Store::remove`] takes the files away. Once the retirement is in the journal no owner, present or future, accepts a
//! reference into the pack, so even a superseded owner that wakes up late removes only what it may.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::frame::Bad;
use crate::fs::File;
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
    /// It is not finished and never will be: its writer is dead, as the lock that it held tells.
    pub abandoned: bool,
}

impl Store {
    /// All packs, by name. An error means that nothing is known; it never gives a part.
    ///
    /// A writer holds the lock of the pack that it adds to. Where locks are shared by all hosts, whoever gets the lock of an
    /// unsealed pack has proof that its writer is gone; it is held for that moment only, so call this from the collector alone.
    /// On a mount that does not share locks (or where its writer could not get one) a pack is kept until it is sealed.
    pub fn packs(&self) -> Result<Vec<PackInfo>> {
        let mut packs = Vec::new();
        let mut shared = None;
        for entry in self.list()? {
            let Some(name) = pack::of_file(&entry.name) else { continue };
            let Some(owner) = pack::owner_of(name) else { continue };
            let file = match self.inner.dir.open(&entry.name) {
                Ok(file) => file,
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue, // removed since
                Err(e) => return Err(Error::io("open", entry.name, e)),
            };
            let mut sealed = pack::read_footer(name, &*file)?.is_some();
            let mut abandoned = false;
            if !sealed && *shared.get_or_insert_with(|| self.inner.dir.locks_are_shared()) {
                abandoned = self.lock_dead(name, &entry.name)?.is_some();
                // It may have been sealed, and let go, since it was looked at.
                sealed = abandoned && pack::read_footer(name, &*file)?.is_some();
                abandoned &= !sealed;
            }
            packs.push(PackInfo {
                name: name.to_owned(),
                owner: owner.to_owned(),
                bytes: entry.len,
                sealed,
                abandoned,
            });
        }
        Ok(packs)
    }

    /// The locked file of a pack whose writer is dead; `None` when it lives, or when that is not known.
    fn lock_dead(&self, name: &str, file_name: &str) -> Result<Option<Arc<dyn File>>> {
        let Ok(file) = self.inner.dir.open_rw(file_name) else { return Ok(None) };
        if !matches!(file.try_lock(), Ok(true)) {
            return Ok(None);
        }
        let promised = match pack::read_header(name, &*file)? {
            Ok((header, _)) => header.locked,
            Err(Bad::Schema) => false,
            // Nothing was published in it: what is published makes the header durable.
            Err(_) => true,
        };
        Ok(promised.then_some(file))
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
/// Only a pack that nobody adds to is chosen: one that is sealed, or whose writer is proved dead ([`PackInfo::abandoned`]). No
/// clock says so. Nothing refers to it then, but it may still hold a result that is about to be completed, by its writer or (as a
/// receipt) by that one's successor. So it is chosen only when it has been seen like this for `settle_ms` and its owner (as a
/// worker of the queue) holds no lease from before it was first seen. Should someone come later still, or should a host that
/// was taken for lost wake up, the queue refuses the references and they are published again ([`crate::Writer::retired`]).
#[derive(Clone, Debug)]
pub struct Collector {
    settle_ms: u64,
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
    /// Waits this long, milliseconds, once a pack is sealed or abandoned.
    pub fn new(settle_ms: u64) -> Self {
        Collector { settle_ms, seen: BTreeMap::new() }
    }

    /// The packs, of all there are, that may be retired now.
    pub fn candidates(&mut self, packs: &[PackInfo], queue: &Queue, now_ms: u64) -> Vec<String> {
        self.seen.retain(|name, _| packs.iter().any(|p| &p.name == name));
        let mut chosen = Vec::new();
        for pack in packs {
            let growing = !pack.sealed && !pack.abandoned;
            if growing || queue.is_live(&pack.name) || queue.retired().contains(&pack.name) {
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
        let waited = now_ms.saturating_sub(seen.since_ms) >= self.settle_ms;
        waited && queue.leases_of(&pack.owner).all(|lease| lease.attempt > seen.attempts)
    }
}
