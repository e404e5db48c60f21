//! Giving space back: packs that nothing can reach any more.
//!
//! The order makes it safe: [`Collector::candidates`] chooses, the owner journals [`crate::Queue::retire`], and only then
//! [`crate::Member::remove`] takes the files away. Once the retirement is in the journal no owner, present or future, accepts a
//! reference into the pack, so even a superseded owner that wakes up late removes only what it may.
//!
//! # How long a retired name is remembered
//!
//! A pack's name carries the era in which it was made. The queue has a *horizon*, an era that only rises: of an older pack than
//! that it accepts references only while it has some already. So the name of a retired pack can be forgotten once its era lies
//! below the horizon: nothing refers to it, so nothing ever will again. The collector proposes a horizon ([`Collector::horizon`])
//! below which nobody adds to a pack and no file of a retired one is left; were it wrong about that, a result would have to be
//! published once more.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::frame::Bad;
use crate::fs::File;
use crate::limits::RETIRED_NAMES_MAX;
use crate::pack;
use crate::queue::{AttemptId, Lease, Queue};
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

impl PackInfo {
    /// Nobody adds to it any more.
    fn is_finished(&self) -> bool {
        self.sealed || self.abandoned
    }
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
        self.settle_era()?;
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
    live: bool,
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
        let there: BTreeSet<&str> = packs.iter().map(|pack| pack.name.as_str()).collect();
        self.seen.retain(|name, _| there.contains(name.as_str()));
        let mut chosen = Vec::new();
        for pack in packs {
            if !pack.is_finished() || queue.retired().contains(&pack.name) {
                self.seen.remove(&pack.name);
            } else if self.has_settled(pack, queue, now_ms) && !queue.is_live(&pack.name) {
                chosen.push(pack.name.clone());
            }
        }
        chosen
    }

    /// The horizon that would let the queue forget names of retired packs; `None` when it would not. Call it after
    /// [`Collector::candidates`] with the same packs, and journal [`Queue::forget`] of it.
    ///
    /// A pack that somebody may still complete results from holds it back, unless more than
    /// [`crate::limits::RETIRED_NAMES_MAX`] names are remembered: then its writer has to publish them again.
    pub fn horizon(&self, packs: &[PackInfo], queue: &Queue, now_ms: u64) -> Option<u32> {
        let newest = packs.iter().map(|p| pack::era_of(&p.name)).max()?;
        let crowded = queue.retired().len() > RETIRED_NAMES_MAX;
        let holds_back = |p: &&PackInfo| {
            let retired = queue.retired().contains(&p.name);
            retired || !(crowded || p.is_finished() && self.is_settled(p, queue, now_ms))
        };
        let below = packs.iter().filter(holds_back).map(|p| pack::era_of(&p.name)).min().unwrap_or(newest).min(newest);
        let forgets = queue.retired().iter().any(|name| pack::era_of(name) < below);
        (forgets && below >= queue.horizon()).then_some(below)
    }

    fn has_settled(&mut self, pack: &PackInfo, queue: &Queue, now_ms: u64) -> bool {
        let now = Seen {
            bytes: pack.bytes,
            sealed: pack.sealed,
            live: queue.is_live(&pack.name),
            since_ms: now_ms,
            attempts: queue.last_attempt(),
        };
        let seen = self.seen.entry(pack.name.clone()).or_insert_with(|| now.clone());
        if (seen.bytes, seen.sealed, seen.live) != (now.bytes, now.sealed, now.live) {
            *seen = now;
        }
        self.is_settled(pack, queue, now_ms)
    }

    fn is_settled(&self, pack: &PackInfo, queue: &Queue, now_ms: u64) -> bool {
        self.seen.get(&pack.name).is_some_and(|seen| {
            let waited = now_ms.saturating_sub(seen.since_ms) >= self.settle_ms;
            let later = |lease: &Lease| lease.attempt > seen.attempts;
            // Whoever was given a task before its records moved may still read them here.
            let readers = !queue.was_moved_from(&pack.name) || queue.leases().all(later);
            waited && readers && queue.leases_of(&pack.owner).all(later)
        })
    }
}
