//! Reads a journal's folder: the newest snapshot and the transactions behind it.

use super::frames::{frame_at, search, txns};
use super::names::{Name, SegmentId};
use super::segment::{FRAMES_AT, Header, Seal, read_header};
use super::snapshot::read_snapshot;
use super::{Lsn, Txn};
use crate::fs::Dir;
use crate::{Error, Result};

/// A truncation by a living owner may remove files while they are read; then the folder is read again.
const TRIES: usize = 8;

/// Everything a journal's folder says.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// The newest snapshot: the last transaction it covers, and the state.
    pub(crate) snapshot: Option<(Lsn, Vec<u8>)>,
    pub(crate) snapshot_name: Option<String>,
    /// Transactions after the snapshot.
    pub(crate) txns: Vec<Txn>,
    /// The segments that hold them, oldest first.
    pub(crate) chain: Vec<Link>,
    /// Last transaction, or the snapshot's.
    pub(crate) last: Lsn,
    /// The last frame that counts (or the header of a segment without one), and its offset: the only bytes of the chain
    /// whose sync nothing vouches for.
    pub(crate) tail: (u64, Vec<u8>),
    /// Bytes behind the last good frame, up to the last that is not zero: never acknowledged.
    pub(crate) torn_bytes: u64,
}

/// A segment of the chain that ends in the newest one.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub(crate) id: SegmentId,
    pub(crate) first: Lsn,
    /// Length up to which it counts.
    pub(crate) len: u64,
    pub(crate) frames: u64,
    pub(crate) txns: u64,
}

/// Reads the folder. Changes nothing.
pub(crate) fn read_history(dir: &dyn Dir) -> Result<History> {
    let mut tries = 1;
    loop {
        match try_read(dir) {
            Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound && tries < TRIES => {
                tries += 1
            }
            done => return done,
        }
    }
}

fn try_read(dir: &dyn Dir) -> Result<History> {
    let names = list(dir)?;
    let mut history = History::default();
    let newest = names
        .iter()
        .filter_map(|n| if let Name::Snapshot { lsn, epoch } = n { Some((*lsn, *epoch)) } else { None })
        .max();
    if let Some((lsn, epoch)) = newest {
        let name = Name::Snapshot { lsn, epoch }.text();
        history.snapshot = Some((lsn, read_snapshot(dir, &name, lsn)?));
        history.snapshot_name = Some(name);
        history.last = lsn;
    }
    let segments = names.iter().filter_map(|n| if let Name::Segment(id) = n { Some(*id) } else { None }).collect();
    let chain = chain(dir, segments, history.last)?;
    let covered = history.last;
    for (i, (id, header, seal)) in chain.iter().enumerate() {
        assert!(i == 0 || header.seals.map(|s| s.id) == history.chain.last().map(|l| l.id), "a chain has no gap");
        read_segment(dir, *id, header, *seal, covered, &mut history)?;
    }
    Ok(history)
}

/// All names of the journal in its folder.
pub(super) fn list(dir: &dyn Dir) -> Result<Vec<Name>> {
    let entries = dir.list().map_err(|e| Error::io("list", "the journal", e))?;
    Ok(entries.iter().filter_map(|e| Name::parse(&e.name)).collect())
}

type ChainLink = (SegmentId, Header, Option<Seal>);

/// Follows the seals from the newest segment in use back to the snapshot. Segments that are not on this way belong to owners
/// that were fenced before they acknowledged anything in them.
fn chain(dir: &dyn Dir, mut segments: Vec<SegmentId>, covered: Lsn) -> Result<Vec<ChainLink>> {
    segments.sort();
    let mut chain: Vec<ChainLink> = Vec::new();
    for &id in segments.iter().rev() {
        let end = match chain.last() {
            None => None,
            Some((_, newer, _)) if newer.first <= covered + 1 => break,
            Some((_, newer, _)) => match newer.seals {
                Some(seal) if seal.id == id => Some(seal),
                _ => continue,
            },
        };
        let name = Name::Segment(id).text();
        let file = dir.open(&name).map_err(|e| Error::io("open", &name, e))?;
        match (read_header(&name, &*file)?, end) {
            (Some(header), end) => chain.push((id, header, end)),
            (None, None) => {}
            (None, Some(_)) => return Err(Error::corrupt(name, 0, "a sealed segment has no header")),
        }
    }
    match chain.last() {
        Some((id, oldest, _)) if oldest.first > covered + 1 => {
            let missing = oldest.seals.map_or("its predecessor".to_owned(), |s| Name::Segment(s.id).text());
            Err(Error::corrupt(
                Name::Segment(*id).text(),
                0,
                format!("{missing} is missing, and no snapshot covers it"),
            ))
        }
        _ => {
            chain.reverse();
            Ok(chain)
        }
    }
}

fn read_segment(
    dir: &dyn Dir,
    id: SegmentId,
    header: &Header,
    seal: Option<Seal>,
    covered: Lsn,
    out: &mut History,
) -> Result<()> {
    let name = Name::Segment(id).text();
    let io = |e| Error::io("read", &name, e);
    let file = dir.open(&name).map_err(|e| Error::io("open", &name, e))?;
    let len = seal.map_or_else(|| file.len().map_err(io), |s| Ok(s.len))?;
    let bytes = file.read_at(0, usize::try_from(len).unwrap_or(usize::MAX)).map_err(io)?;
    let mut link = Link { id, first: header.first, len: FRAMES_AT, frames: 0, txns: 0 };
    let mut next = header.first;
    let mut last_frame = 0;
    loop {
        let rest = bytes.get(link.len as usize..).unwrap_or_default();
        let Some(frame) = frame_at(&name, link.len, rest) else { break };
        let bad = |what: String| Error::corrupt(&name, link.len, what);
        if frame.first != next {
            return Err(bad(format!("transaction {} where {next} was due", frame.first)));
        }
        for txn in txns(frame.body).ok_or_else(|| bad("the body of a frame does not parse".into()))? {
            if next > covered {
                out.txns.push(txn);
            }
            next += 1;
            link.txns += 1;
        }
        last_frame = link.len;
        link.len += frame.len;
        link.frames += 1;
    }
    ends_well(&name, &bytes, link.len, seal)?;
    let mut tail: Vec<u8> = bytes.get(last_frame as usize..).unwrap_or_default().to_vec();
    tail.resize((link.len - last_frame) as usize, 0); // a header may have lost its padding
    out.tail = (last_frame, tail);
    let behind = bytes.get(link.len as usize..).unwrap_or_default();
    out.torn_bytes = behind.iter().rposition(|byte| *byte != 0).map_or(0, |last| last as u64 + 1);
    out.last = out.last.max(next - 1);
    out.chain.push(link);
    Ok(())
}

/// A sealed segment must be good up to its seal; an open one may end in a torn frame, but not have a good one behind it.
fn ends_well(name: &str, bytes: &[u8], end: u64, seal: Option<Seal>) -> Result<()> {
    if let Some(seal) = seal {
        let good = end == seal.len;
        return if good {
            Ok(())
        } else {
            Err(Error::corrupt(name, end, format!("damaged before its seal at {}", seal.len)))
        };
    }
    let rest = bytes.get(end as usize..).unwrap_or_default();
    match search(name, end, rest) {
        None => Ok(()),
        Some(at) => Err(Error::corrupt(name, end, format!("damaged, although a good frame follows at {at}"))),
    }
}
