//! A store as it is: what lies in it, what its journal says, and what should be there and is not.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result};
use straw::{Damage, Inspection, Queue, RealFs, Ref};

use super::journaled::queue_of;
use super::pool::{journal_of, size};
use crate::soundness::{damage, lost_journal};

/// See the module.
pub struct Look {
    /// What lies there. Its errors name what is missing, too.
    pub found: Inspection,
    /// What the journal describes, or why it cannot be read; nothing without one.
    pub queue: Option<Result<Queue>>,
}

impl Look {
    /// Reads no payloads. The owner may live.
    pub fn at(pool: &Path) -> Result<Self> {
        let journal = journal_of(pool);
        // The journal first: what it names is there afterwards, or it was given up meanwhile.
        let mut queue = journal.as_deref().map(queue_of);
        let mut found = straw::inspect(&*RealFs::new(), pool).with_context(|| pool.display().to_string())?;
        if let Some(lost) = lost_journal(pool, &found) {
            found.errors.push(lost);
            queue = None;
        }
        if let (Some(journal), Some(Ok(before))) = (&journal, &queue) {
            let mut missing = missing(pool, before, &found);
            if !missing.is_empty() {
                // Given up since is not missing, and what was named since was not looked for.
                let now = queue_of(journal)?;
                missing.retain(|pack, _| pack.is_empty() || now.is_live(pack));
                queue = Some(Ok(now));
            }
            found.errors.extend(missing.into_values());
        }
        Ok(Self { found, queue })
    }

    /// The queue, where it can be known.
    pub fn known(&self) -> Option<&Queue> {
        self.queue.as_ref().and_then(|queue| queue.as_ref().ok())
    }

    /// Names of the queues that use the packs beside the run's own.
    pub fn others(&self) -> Vec<&str> {
        let others = self.found.queues.iter().filter(|queue| !queue.left && queue.name != straw::pool::MAIN);
        others.map(|queue| queue.name.as_str()).collect()
    }

    /// A line for whoever asked for something else.
    pub fn hint(&self) -> Option<String> {
        let count = self.found.errors.len();
        (count > 0).then(|| {
            format!("{}: look with `thresh straw inspect`", api::count(count, "place") + " damaged or missing")
        })
    }
}

/// Packs that the queue needs and that are not there, by name; with no name, the folder of them.
fn missing(pool: &Path, queue: &Queue, found: &Inspection) -> BTreeMap<String, Damage> {
    let refs: BTreeSet<&Ref> = queue.live_refs().collect();
    if !pool.join("packs").is_dir() {
        let run = pool.join("journal").is_dir() && !refs.is_empty();
        let folder = || damage("packs", "the folder is missing, and the journal names records in it");
        return run.then(|| (String::new(), folder())).into_iter().collect();
    }
    let there: BTreeSet<&str> = found.packs.iter().map(|pack| pack.name.as_str()).collect();
    let mut of: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for r in refs.into_iter().filter(|r| !there.contains(r.pack.as_str())) {
        let (records, bytes) = of.entry(&r.pack).or_default();
        *records += 1;
        *bytes += r.len;
    }
    let one = |(pack, (records, bytes)): (&str, (u64, u64))| {
        let what = format!("it is missing; needed of it: {} ({})", api::count(records, "record"), size(bytes));
        (pack.to_owned(), damage(&format!("packs/{pack}.pack"), &what))
    };
    of.into_iter().map(one).collect()
}
