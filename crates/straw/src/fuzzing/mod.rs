//! The decoders of everything that is read back from disk, for fuzzing: the targets in `fuzz/` and the test that replays the
//! corpora in `tests/corpus` call [`Decoder::check`]. No part of the interface.
//!
//! Each input is read as it is, and once more with its checksums mended, so that what lies behind a checksum is reached, too. What
//! can be decoded is encoded again, and must be the same when it is decoded.

mod memory;
#[cfg(test)]
mod replay;

use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::extent;
use crate::frame::{self, Salt};
use crate::front::{self, Front};
use crate::fs::{Dir, Fs};
use crate::head::{self, BLOCK_BYTES, Head};
use crate::laid::Laid;
use crate::pack;
use crate::queue::{Op, Queue};
use crate::scan::scan;
use crate::{Archive, Compression, Record, Ref, Share, SimFs, Store, Tensor, pool};
use memory::MemoryFile;

/// The pack that all inputs are read as.
pub(crate) const PACK: &str = "w-000000000000000000000001";
/// The file of given up packs.
pub(crate) const GONE: &str = "gone-0000000000000001-main";
/// Where an extent is read.
pub(crate) const EXTENT_AT: u64 = 64;

/// What is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Decoder {
    PackHeader,
    PackFooter,
    Pack,
    ExtentHeader,
    RecordHead,
    Frame,
    Claim,
    Segment,
    Snapshot,
    QueueOp,
    QueueState,
    ArchivePage,
    GoneFile,
}

impl Decoder {
    /// All of them, each with its name: of its fuzz target and of its corpus.
    pub const ALL: [(Decoder, &'static str); 13] = [
        (Decoder::PackHeader, "pack_header"),
        (Decoder::PackFooter, "pack_footer"),
        (Decoder::Pack, "pack"),
        (Decoder::ExtentHeader, "extent_header"),
        (Decoder::RecordHead, "record_head"),
        (Decoder::Frame, "frame"),
        (Decoder::Claim, "claim"),
        (Decoder::Segment, "segment"),
        (Decoder::Snapshot, "snapshot"),
        (Decoder::QueueOp, "queue_op"),
        (Decoder::QueueState, "queue_state"),
        (Decoder::ArchivePage, "archive_page"),
        (Decoder::GoneFile, "gone_file"),
    ];

    /// Decodes the bytes as they are and with mended checksums. True when either gave something. Panics when the decoder does,
    /// or when what it gave is not the same after another encoding and decoding.
    pub fn check(self, bytes: &[u8]) -> bool {
        let whole = self.decodes(bytes);
        let mended = self.mended(bytes);
        mended.is_some_and(|mended| self.decodes(&mended)) || whole
    }

    fn decodes(self, bytes: &[u8]) -> bool {
        match self {
            Decoder::PackHeader => pack_header(bytes),
            Decoder::PackFooter => pack_footer(bytes),
            Decoder::Pack => whole_pack(bytes),
            Decoder::ExtentHeader => extent_header(bytes),
            Decoder::RecordHead => record(bytes),
            Decoder::Frame => crate::journal::fuzzing::frame(bytes),
            Decoder::Claim => crate::journal::fuzzing::claim(bytes),
            Decoder::Segment => crate::journal::fuzzing::segment(bytes),
            Decoder::Snapshot => crate::journal::fuzzing::snapshot(bytes),
            Decoder::QueueOp => queue_ops(bytes),
            Decoder::QueueState => queue_state(bytes),
            Decoder::ArchivePage => archive(bytes),
            Decoder::GoneFile => gone(bytes),
        }
    }

    /// The bytes with the checksums that they should have; `None` where there are none, or nothing has the place for one.
    fn mended(self, bytes: &[u8]) -> Option<Vec<u8>> {
        let mut bytes = bytes.to_vec();
        match self {
            Decoder::PackHeader => mend(&mut bytes, 0, b"SPAK", &of_pack(0))?,
            Decoder::PackFooter => {
                let len = bytes.len().checked_sub(16)?;
                let mut footer = bytes.get(..len)?.to_vec();
                mend(&mut footer, 0, b"SFOT", &of_pack(0))?;
                let footer_len = frame::peek_len(*b"SFOT", &footer).ok()?;
                footer.truncate(footer_len);
                footer.extend_from_slice(&0u64.to_le_bytes());
                footer.extend_from_slice(&u32::try_from(footer_len).ok()?.to_le_bytes());
                footer.extend_from_slice(b"SEAL");
                bytes = footer;
            }
            Decoder::Pack => mend_pack(&mut bytes)?,
            Decoder::ExtentHeader => mend(&mut bytes, 0, b"SEXT", &of_pack(EXTENT_AT))?,
            Decoder::RecordHead => mend_record(&mut bytes, 0)?,
            Decoder::GoneFile => mend(&mut bytes, 0, b"SGON", &Salt { file: GONE, offset: 0 })?,
            Decoder::Frame => crate::journal::fuzzing::mend_frame(&mut bytes)?,
            Decoder::Segment => crate::journal::fuzzing::mend_segment(&mut bytes)?,
            Decoder::Snapshot => crate::journal::fuzzing::mend_snapshot(&mut bytes)?,
            Decoder::Claim | Decoder::QueueOp | Decoder::QueueState | Decoder::ArchivePage => return None,
        }
        Some(bytes)
    }
}

fn of_pack(offset: u64) -> Salt<'static> {
    Salt { file: PACK, offset }
}

/// Gives the frame at `at` its magic and its checksum, and a length that fits.
pub(crate) fn mend(bytes: &mut [u8], at: usize, magic: &[u8; 4], salt: &Salt<'_>) -> Option<()> {
    let frame = bytes.get_mut(at..)?;
    let rest = frame.len().checked_sub(frame::PREFIX)?;
    let len = Some(frame::u32_at(frame, 4) as usize).filter(|len| *len <= rest).unwrap_or(rest);
    frame.get_mut(..4)?.copy_from_slice(magic);
    frame.get_mut(4..8)?.copy_from_slice(&u32::try_from(len).ok()?.to_le_bytes());
    let crc = frame::checksum(salt, frame.get(..frame::PREFIX + len)?);
    frame.get_mut(8..12)?.copy_from_slice(&crc.to_le_bytes());
    Some(())
}

/// Mends the head at `at`, and the table behind it if there is one.
fn mend_record(bytes: &mut [u8], at: usize) -> Option<()> {
    mend(bytes, at, b"SREC", &Salt::NONE)?;
    let record = bytes.get_mut(at..)?;
    let (crc, table) = (frame::u32_at(record, 8), frame::peek_len(head::MAGIC, record).ok()?);
    if record.get(table..).is_some_and(|rest| rest.starts_with(&front::MAGIC)) {
        mend(record, table, &front::MAGIC, &front::salt(crc))?;
    }
    Some(())
}

/// Mends the header, and each head and extent header that lies where one may: heads first, and the extents' tables with them.
fn mend_pack(bytes: &mut [u8]) -> Option<()> {
    mend(bytes, 0, b"SPAK", &of_pack(0))?;
    let places: Vec<usize> = (64..bytes.len()).step_by(64).collect();
    for at in places {
        let begins = |magic: &[u8; 4]| bytes.get(at..).is_some_and(|rest| rest.starts_with(magic));
        if begins(b"SEXT") {
            let _ = mend(bytes, at, b"SEXT", &of_pack(at as u64));
        } else if begins(b"SREC") {
            let _ = mend_record(bytes, at);
        }
    }
    let Some(at) = bytes.len().checked_sub(16) else { return Some(()) };
    let footer = frame::u64_at(bytes, at);
    if let Ok(begins) = usize::try_from(footer)
        && bytes.ends_with(b"SEAL")
        && begins < at
    {
        let _ = mend(bytes.get_mut(..at)?, begins, b"SFOT", &of_pack(footer));
    }
    Some(())
}

/// What was decoded is the same after another encoding and decoding.
fn comes_back<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(value: &T) {
    let bytes = postcard::to_stdvec(value).unwrap_or_else(|e| unreachable!("memory takes it: {e}"));
    let (again, rest) =
        postcard::take_from_bytes::<T>(&bytes).unwrap_or_else(|e| panic!("{value:?} is not read back: {e}"));
    assert_eq!((&again, rest), (value, &[][..]), "it is read back as another one");
}

fn pack_header(bytes: &[u8]) -> bool {
    let Ok(Ok((header, begins))) = pack::read_header(PACK, &MemoryFile(bytes)) else { return false };
    assert!(begins >= 64 && begins.is_multiple_of(64), "extents begin behind the header, aligned");
    let again = pack::encode_header(PACK, &header.owner, header.locked);
    let read = pack::read_header(PACK, &MemoryFile(&again));
    // A name that no writer may have can make a header that is longer than what is looked at.
    assert!(again.len() > 256 || matches!(read, Ok(Ok((read, _))) if read == header), "a header is read back");
    true
}

fn pack_footer(bytes: &[u8]) -> bool {
    let Ok(Some((footer, offset))) = pack::read_footer(PACK, &MemoryFile(bytes)) else { return false };
    let mut again = vec![0; usize::try_from(offset).unwrap_or(0)];
    again.extend(pack::encode_footer(PACK, offset, &footer));
    let read = pack::read_footer(PACK, &MemoryFile(&again));
    assert!(matches!(read, Ok(Some(read)) if read == (footer, offset)), "a footer is read back");
    true
}

fn whole_pack(bytes: &[u8]) -> bool {
    let file = MemoryFile(bytes);
    let mut found = 0;
    for deep in [false, true] {
        let Ok(scanned) = scan(PACK, &file, deep) else { continue };
        assert!(scanned.gap_bytes <= bytes.len() as u64, "a gap lies in the file");
        found = scanned.extents.len();
        assert!(!deep || scanned.extents.iter().all(|e| e.offset + e.len <= bytes.len().next_multiple_of(64) as u64));
        for r in scanned.extents.iter().flat_map(|e| &e.refs).filter(|_| deep) {
            assert!(r.offset + r.len <= bytes.len() as u64, "a record that was checked lies in the file");
        }
    }
    found > 0
}

fn extent_header(bytes: &[u8]) -> bool {
    let Ok(frame) = extent::Header::decode(&of_pack(EXTENT_AT), bytes) else { return false };
    let (header, len) = (frame.body, frame.len as u64);
    comes_back(&header);
    let end = EXTENT_AT.saturating_add(header.extent_len(len));
    let refs = header.refs(PACK, EXTENT_AT, len);
    assert!(refs.iter().all(|r| r.offset.saturating_add(r.len) <= end), "an extent's records lie in it");
    assert!(refs.is_sorted_by(|a, b| a.offset < b.offset || a.len == 0), "one behind the other");
    true
}

/// The reference that leads to a record of these bytes. Two places have blocks that it may share.
fn reference_to(bytes: &[u8]) -> Option<Ref> {
    let frame = frame::decode::<Head>(head::MAGIC, &Salt::NONE, bytes).ok()?;
    let behind = bytes.get(frame.len..).unwrap_or_default();
    let table = frame::peek_len(front::MAGIC, behind).ok().filter(|len| *len <= behind.len()).unwrap_or(0);
    let share = Share { pack: PACK.into(), bytes: 0 };
    let mut reference = Ref {
        pack: PACK.into(),
        offset: EXTENT_AT,
        len: 0,
        head: u32::try_from(frame.len).ok()?,
        crc: frame.crc,
        table: u32::try_from(table).ok()?,
        shares: vec![share.clone(), share],
    };
    reference.len = Front::end(&reference, bytes)?;
    Some(reference)
}

fn record(bytes: &[u8]) -> bool {
    let Some(reference) = reference_to(bytes) else { return false };
    let Ok(front) = Front::decode(&reference, bytes) else { return false };
    for (tensor, places) in front.tensors() {
        let len = tensor.len();
        let around = front.blocks_around(&(len / 3..len / 2));
        let (from, to) = (around.start as u64 * front.head.block, (around.end as u64).saturating_mul(front.head.block));
        assert!(from <= len / 3 && len / 2 <= to, "blocks lie around their bytes");
        for place in front.places_of(tensor, places).filter(|place| place.share.is_none()) {
            assert!(place.at + place.len <= reference.len, "an own block lies in the record");
        }
    }
    // Whatever is shared lies in the input, too.
    let fetch = |_: Option<u32>, range: Range<u64>| {
        let shared = bytes.get(front::usize_range(&range));
        shared.map(Cow::Borrowed).ok_or_else(|| crate::Error::corrupt(PACK, range.start, "not there"))
    };
    if let Ok(len) = usize::try_from(reference.len)
        && let Some(whole) = bytes.get(..len)
        && let Ok(record) = front.open(&reference, &Arc::new(whole.to_vec()), 0, &fetch)
    {
        assert!(front.check_own(&reference, whole).is_ok(), "a record that is whole has its own bytes");
        // As a writer would have encoded it, if one may write it at all.
        for compression in [Compression::None, Compression::Zstd(1)] {
            let Ok(laid) = Laid::of(&record, compression) else { continue };
            let crate::extent::Slot { len, head, crc, table, shares } = laid.slot.clone();
            let again = Ref { pack: PACK.into(), offset: EXTENT_AT, len, head, crc, table, shares };
            let Ok(again) = Front::decode(&again, &laid.front) else { panic!("what is in front of it is read back") };
            assert!(front.head.block != BLOCK_BYTES || again.head == front.head, "it holds the same");
        }
    }
    true
}

/// Ops one behind the other, each applied to a queue, whatever it says: it is refused or leaves a sound state.
fn queue_ops(mut bytes: &[u8]) -> bool {
    let mut queue = Queue::new();
    queue.begin_epoch(1);
    let mut decoded = false;
    while let Ok((op, rest)) = postcard::take_from_bytes::<Op>(bytes) {
        comes_back(&op);
        decoded = true;
        let before = queue.clone();
        if queue.apply_owned(op).is_err() {
            assert_eq!(queue, before, "a refused op changes nothing");
        }
        bytes = rest;
    }
    comes_back(&queue);
    decoded
}

fn queue_state(bytes: &[u8]) -> bool {
    let Ok(queue) = postcard::from_bytes::<Queue>(bytes) else { return false };
    comes_back(&queue);
    assert!(queue.pending_len() <= queue.tasks_len());
    let _ = (queue.live_packs(), queue.unbatched().count());
    true
}

/// The first two bytes are the length of the meta, what is behind it are the pages.
fn archive(bytes: &[u8]) -> bool {
    let Some((len, rest)) = bytes.split_first_chunk::<2>() else { return false };
    let Some((meta, pages)) = rest.split_at_checked(usize::from(u16::from_le_bytes(*len))) else { return false };
    let written = || -> crate::Result<Archive> {
        let store = Store::open(Arc::new(SimFs::new(1)), "/packs")?;
        let pages = Tensor::from_vec(&[pages.len() as u64], pages.to_vec())?;
        let refs = store.writer("w")?.publish("index", &[Record::new(meta).with("pages", pages)])?;
        let index = refs.first().unwrap_or_else(|| unreachable!("one record, one reference"));
        Archive::open(&store, index)
    };
    let Ok(archive) = written() else { return false };
    let all: crate::Result<Vec<_>> = archive.entries().collect();
    let Ok(all) = all else { return false };
    for entry in all.iter().take(8) {
        let _ = archive.lookup(&[&entry.key, &b"task".to_vec()]);
    }
    true
}

fn gone(bytes: &[u8]) -> bool {
    let sim = SimFs::new(1);
    let Some(dir) = folder_with(&sim, GONE, bytes) else { return false };
    let Ok(names) = pool::gone(&*dir, GONE) else { return false };
    let (again, _) = frame::encode(*b"SGON", &Salt { file: GONE, offset: 0 }, &names);
    let other = SimFs::new(1);
    let read = folder_with(&other, GONE, &again).and_then(|dir| pool::gone(&*dir, GONE).ok());
    assert_eq!(read, Some(names.clone()), "a file of given up packs is read back");
    !names.is_empty()
}

/// A folder with one file.
pub(crate) fn folder_with(sim: &SimFs, name: &str, bytes: &[u8]) -> Option<Arc<dyn Dir>> {
    let dir = sim.create_dir(Path::new("/run/folder")).ok()?;
    let file = dir.create_new(name).ok()?;
    file.write_at(0, &mut [std::io::IoSlice::new(bytes)]).ok()?;
    Some(dir)
}
