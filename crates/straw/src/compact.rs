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
//! nowhere: whatever an owner of such references holds stays where it is ([`sparse`]'s `stays`). Each queue of a pool moves its own
//! references; a pack goes when all of them have given it up.
//!
//! Records elsewhere that share blocks of the pack move, too: their copies share the copies of those blocks, or have them if nobody
//! else does, and go on sharing what lies in other packs, the rest of the old record included. So what is copied of them is
//! what lies in the pack that is given up.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::compression::Compression;
use crate::front::{Front, Place, Places, Unpack};
use crate::head::{BLOCK_BYTES, HeadTensor};
use crate::laid::{Content, Kept, Laid, Source, share_of_few};
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
    /// Bytes in it that something needs, of records and of blocks that records share.
    pub live_bytes: u64,
    /// Those records, those elsewhere that share its blocks included, in order of place, each once.
    pub live: Vec<Ref>,
}

/// The packs of which at most `live_percent_max` percent of the bytes is needed, and something is; the emptiest first. A block that several
/// records share is counted for each of them, so a pack may be taken for fuller than it is, never for emptier. Packs with a record
/// that an owner holds ([`Queue::retain`]) for whom `stays` is true are left out.
pub fn sparse(packs: &[PackInfo], queue: &Queue, live_percent_max: u64, stays: impl Fn(&str) -> bool) -> Vec<Sparse> {
    let held = queue.owners_everywhere().filter(|(owner, _)| stays(owner));
    let fixed: BTreeSet<&str> = held.flat_map(|(_, refs)| refs).flat_map(Ref::packs).collect();
    let mut live: BTreeMap<&str, BTreeSet<&Ref>> = BTreeMap::new();
    for r in queue.live_refs() {
        for pack in r.packs() {
            live.entry(pack).or_default().insert(r);
        }
    }
    let finished = packs.iter().filter(|pack| (pack.sealed || pack.abandoned) && !fixed.contains(pack.name.as_str()));
    let found = finished.filter_map(|pack| {
        let live: Vec<Ref> = live.get(pack.name.as_str())?.iter().map(|r| (*r).clone()).collect();
        let needed = live.iter().flat_map(Ref::bytes_in_packs).filter(|(name, _)| *name == pack.name);
        let live_bytes = needed.map(|(_, bytes)| bytes).sum::<u64>().min(pack.bytes);
        let few = u128::from(live_bytes) * 100 <= u128::from(pack.bytes) * u128::from(live_percent_max);
        few.then(|| Sparse { pack: pack.name.clone(), bytes: pack.bytes, live_bytes, live })
    });
    let mut found: Vec<Sparse> = found.collect();
    found.sort_by_key(|s| u128::from(s.live_bytes) * 1_000_000 / u128::from(s.bytes.max(1)));
    found
}

/// Copies the records `live` ([`Sparse::live`]) to `writer`'s packs, so that they need nothing of the pack `out_of`, and gives where
/// each went. They are durable when this returns, and nothing refers to them yet: journal [`Queue::move_records`] of what it gives.
///
/// # Errors
/// As of [`Store::read`] and [`Writer::publish`]. Nothing changed but copies that nothing refers to; the same call again writes
/// only those that are missing. When the queue refuses the move because the copies were collected meanwhile
/// ([`crate::queue::Refused::PackRetired`]), tell the writer ([`Writer::retired`]) and copy again.
pub fn copy(store: &Store, writer: &Writer, out_of: &str, live: &[Ref]) -> Result<Vec<(Ref, Ref)>> {
    if writer.pack().is_some_and(|pack| pack == out_of || live.iter().any(|r| r.pack == pack)) {
        // It lost the lock of its pack (its host was taken for lost), and so the pack is taken for finished; or it copied here
        // before. A record moves to another pack.
        writer.seal();
    }
    let shared = live.iter().any(|r| r.shares.iter().any(|share| share.pack == out_of));
    let mut copier = Copier { store, out_of, shared, moved: BTreeMap::new(), claimed: BTreeSet::new() };
    // Those that lie in the pack first: what others share is then copied with the record that it was written with, if that lives.
    let (inside, outside): (Vec<&Ref>, Vec<&Ref>) = live.iter().partition(|r| r.pack == out_of);
    let order: Vec<&Ref> = inside.into_iter().chain(outside).collect();
    let mut moves = Vec::with_capacity(live.len());
    let mut rest = order.as_slice();
    while !rest.is_empty() {
        let mut laid = Vec::new();
        let mut bytes = 0;
        for r in rest.iter().take(RECORDS_PER_EXTENT_MAX) {
            let front = store.front(r)?;
            bytes += copier.copied_bytes(r, &front);
            if !laid.is_empty() && (bytes > COPY_BYTES || copier.awaits(r, &front)) {
                break;
            }
            laid.push(copier.lay(r, &front)?);
        }
        let (now, later) = rest.split_at(laid.len());
        let refs = writer.publish_laid(&submission(out_of, now), laid)?;
        for (from, to) in now.iter().zip(refs) {
            if !from.same_content(&to) {
                let what = "its copy is not the same content: another version wrote it";
                return Err(Error::corrupt(crate::pack::file_name(&from.pack), from.offset, what));
            }
            copier.note(from, &to)?;
            moves.push(((*from).clone(), to));
        }
        copier.claimed.clear();
        rest = later;
    }
    Ok(moves)
}

/// Names a publish of copies: the same records out of the same pack are the same publish.
fn submission(out_of: &str, records: &[&Ref]) -> String {
    let named = records.iter().fold(0, |crc, r| {
        let crc = crc32c::crc32c_append(crc, r.pack.as_bytes());
        crc32c::crc32c_append(crc, &r.offset.to_le_bytes())
    });
    format!("copy-{out_of}-{named:08x}-{}", records.len())
}

struct Copier<'a> {
    store: &'a Store,
    out_of: &'a str,
    /// Some record shares blocks of the pack: then it is kept where each went.
    shared: bool,
    /// Blocks of the pack by offset, and where they are now.
    moved: BTreeMap<u64, Kept>,
    /// Those that go with the publish that is being made.
    claimed: BTreeSet<u64>,
}

impl Copier<'_> {
    /// The offset of a block in the pack that is given up; `None` for one that lies elsewhere.
    fn leaves(&self, r: &Ref, front: &Front, place: &Place) -> Option<u64> {
        let (pack, at) = front.absolute(r, place);
        (pack == self.out_of).then_some(at)
    }

    /// Bytes of a record that are copied, unless others have copied them.
    fn copied_bytes(&self, r: &Ref, front: &Front) -> u64 {
        if r.table == 0 && r.pack == self.out_of {
            return r.len;
        }
        let places = front.tensors().flat_map(|(tensor, places)| front.places_of(tensor, places));
        let leave = places.filter(|place| self.leaves(r, front, place).is_some());
        leave.map(|place| place.len).sum::<u64>() + front.head.meta_len
    }

    /// True when it shares a block that is on its way: its place is known once that is published.
    fn awaits(&self, r: &Ref, front: &Front) -> bool {
        let all = front.tensors().flat_map(|(tensor, places)| front.places_of(tensor, places));
        let mut shared = all.filter(|place| place.share.is_some());
        shared.any(|place| self.leaves(r, front, &place).is_some_and(|at| self.claimed.contains(&at)))
    }

    /// The record as it will lie. What is copied is checked; compressed blocks stay compressed.
    fn lay(&mut self, r: &Ref, front: &Front) -> Result<Laid<'static>> {
        if front.head.block != BLOCK_BYTES {
            return Err(Error::corrupt(crate::pack::file_name(&r.pack), r.offset, "another version wrote it"));
        }
        let mut contents = Vec::with_capacity(front.head.tensors.len());
        let mut unpack = Unpack::default();
        for (tensor, places) in front.tensors() {
            let mut blocks = Vec::with_capacity(tensor.crcs.len());
            if let (Places::Whole(range), true) = (places, r.pack == self.out_of) {
                let bytes = self.store.read_exact(&r.pack, r.offset + range.start, range.end - range.start)?;
                front.check_whole(r, tensor, range.start, 0, &bytes)?;
                blocks.extend(bytes.chunks(BLOCK_BYTES as usize).map(|block| Source::New(Cow::Owned(block.to_vec()))));
                self.claim(r, front, tensor, places);
            } else {
                for (n, place) in front.places_of(tensor, places).enumerate() {
                    blocks.push(self.block(r, front, (tensor, n), &place, &mut unpack)?);
                }
            }
            contents.push(Content { head: tensor.clone(), blocks });
        }
        let meta = self.store.read_meta(r)?;
        share_of_few(self.store, &mut contents)?;
        Laid::new(Cow::Owned(meta), contents, Compression::None)
    }

    fn claim(&mut self, r: &Ref, front: &Front, tensor: &HeadTensor, places: &Places) {
        if self.shared {
            let places = front.places_of(tensor, places);
            let leaving: Vec<u64> = places.filter_map(|place| self.leaves(r, front, &place)).collect();
            self.claimed.extend(leaving);
        }
    }

    fn block(
        &mut self,
        r: &Ref,
        front: &Front,
        (tensor, n): (&HeadTensor, usize),
        place: &Place,
        unpack: &mut Unpack,
    ) -> Result<Source<'static>> {
        let (pack, at) = front.absolute(r, place);
        if pack != self.out_of {
            return Ok(Source::Kept(Kept { pack: pack.into(), at, len: place.len, zstd: place.zstd }));
        }
        if let Some(kept) = self.moved.get(&at) {
            return Ok(Source::Kept(kept.clone()));
        }
        if self.shared {
            self.claimed.insert(at);
        }
        let kept = Kept { pack: pack.into(), at, len: place.len, zstd: place.zstd };
        kept.copied(self.store, (tensor, n), unpack)
    }

    /// Notes where the blocks of a record went, for those who share them.
    fn note(&mut self, from: &Ref, to: &Ref) -> Result<()> {
        if !self.shared {
            return Ok(());
        }
        let (old, new) = (self.store.front(from)?, self.store.front(to)?);
        for ((tensor, places), (_, now)) in old.tensors().zip(new.tensors()) {
            for (place, now) in old.places_of(tensor, places).zip(new.places_of(tensor, now)) {
                let (pack, offset) = new.absolute(to, &now);
                if let Some(at) = self.leaves(from, &old, &place)
                    && pack != self.out_of
                {
                    let pack: Arc<str> = pack.into();
                    self.moved.entry(at).or_insert(Kept { pack, at: offset, len: now.len, zstd: now.zstd });
                }
            }
        }
        Ok(())
    }
}
