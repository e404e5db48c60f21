//! Compaction: the live records of a pack that is mostly dead move to another one, and the pack can be given up.
//!
//! Records are copied first, whole and checked, as any publish is; then one op ([`Queue::move_records`]) replaces every reference
//! that the queue holds, in checkpoints, too. Before the op is durable nothing refers to the copies, after it nothing that is
//! durable refers to the pack: a crash in between leaves copies that the collector removes. The old pack is given up as any
//! other ([`crate::Collector::candidates`]), but only when all leases from before the move are over, since their holders may
//! have old references.
//!
//! Records move, and holes are not punched into the pack: a hole gives nothing back where data lies in objects, and what was
//! never written could not be told from it.
//!
//! Whoever else has an old reference (a reader of batches, a finished result with progress of an earlier attempt in it) can go
//! on using it: the queue knows where the record went for as long as it is needed ([`Queue::resolve`]), and translates what is
//! brought to it. A reference that is written down where the queue is not asked, in another record for instance, would lead
//! nowhere: whatever an owner of such references holds stays where it is ([`sparse`]'s `stays`). Each queue of a pool moves its own references; a pack goes when all of them have given it up.

use std::collections::{BTreeMap, BTreeSet};

use crate::limits::RECORDS_PER_EXTENT_MAX;
use crate::{Error, PackInfo, Queue, Ref, Result, Store, Writer};

/// Bytes of records that are copied with one publish, unless one alone has more. They are in memory meanwhile.
const COPY_BYTES: u64 = 32 << 20;

/// A pack that nobody adds to and that is mostly dead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sparse {
    /// Its name.
    pub pack: String,
    /// Its length, bytes.
    pub bytes: u64,
    /// Bytes of records in it that something needs.
    pub live_bytes: u64,
    /// Those records, in order of place, each once.
    pub live: Vec<Ref>,
}

/// The packs of which at most `live_percent_max` percent of the bytes is needed, and something is; the emptiest first. Packs with
/// a record that an owner holds ([`Queue::retain`]) for whom `stays` is true are left out.
pub fn sparse(packs: &[PackInfo], queue: &Queue, live_percent_max: u64, stays: impl Fn(&str) -> bool) -> Vec<Sparse> {
    let held = queue.owners_everywhere().filter(|(owner, _)| stays(owner));
    let fixed: BTreeSet<&str> = held.flat_map(|(_, refs)| refs).map(|r| r.pack.as_str()).collect();
    let mut live: BTreeMap<&str, BTreeSet<&Ref>> = BTreeMap::new();
    for r in queue.live_refs() {
        live.entry(r.pack.as_str()).or_default().insert(r);
    }
    let finished = packs.iter().filter(|pack| (pack.sealed || pack.abandoned) && !fixed.contains(pack.name.as_str()));
    let found = finished.filter_map(|pack| {
        let live: Vec<Ref> = live.get(pack.name.as_str())?.iter().map(|r| (*r).clone()).collect();
        let live_bytes = live.iter().map(|r| r.len).sum();
        let few = u128::from(live_bytes) * 100 <= u128::from(pack.bytes) * u128::from(live_percent_max);
        few.then(|| Sparse { pack: pack.name.clone(), bytes: pack.bytes, live_bytes, live })
    });
    let mut found: Vec<Sparse> = found.collect();
    found.sort_by_key(|s| u128::from(s.live_bytes) * 1_000_000 / u128::from(s.bytes.max(1)));
    found
}

/// Copies the records `live` of one pack (in order of place) to `writer`'s, and gives where each went. They are durable when this
/// returns, and nothing refers to them yet: journal [`Queue::move_records`] of what it gives.
///
/// # Errors
/// As of [`Store::read`] and [`Writer::publish`]. Nothing changed but copies that nothing refers to; the same call again writes
/// only those that are missing. When the queue refuses the move because the copies were collected meanwhile
/// ([`crate::queue::Refused::PackRetired`]), tell the writer ([`Writer::retired`]) and copy again.
pub fn copy(store: &Store, writer: &Writer, live: &[Ref]) -> Result<Vec<(Ref, Ref)>> {
    let mut moves = Vec::with_capacity(live.len());
    let mut rest = live;
    while let Some(first) = rest.first() {
        let mut bytes = 0;
        let fits = |r: &&Ref| {
            bytes += r.len;
            bytes <= COPY_BYTES
        };
        let count = rest.iter().take(RECORDS_PER_EXTENT_MAX).take_while(fits).count().max(1);
        let (now, later) = rest.split_at(count);
        let records = store.read_many(now)?;
        if writer.pack().as_ref() == Some(&first.pack) {
            // It lost the lock of its pack (its host was taken for lost), and so the pack is taken for finished: let it be.
            writer.seal();
        }
        let refs = writer.publish(&format!("copy-{}-{}-{count}", first.pack, first.offset), &records)?;
        for (from, to) in now.iter().zip(refs) {
            if !from.same_bytes(&to) {
                let what = "its copy is not the same bytes: another version wrote it";
                return Err(Error::corrupt(crate::pack::file_name(&from.pack), from.offset, what));
            }
            moves.push((from.clone(), to));
        }
        rest = later;
    }
    Ok(moves)
}
