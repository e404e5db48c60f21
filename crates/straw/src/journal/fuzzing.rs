//! The journal's decoders; see [`crate::fuzzing`].

use super::frames::{HEADER, frame_at, header, push_txn, search, txns};
use super::names::{Name, SegmentId};
use super::recovery::read_history;
use super::segment::FRAMES_AT;
use super::snapshot::{read_snapshot, write_snapshot};
use crate::SimFs;
use crate::frame::{Salt, u32_at};
use crate::fuzzing::{folder_with, mend};

const LSN: u64 = 7;
const SNAPSHOT_HEADER: usize = 28;

fn segment_name() -> String {
    Name::Segment(SegmentId { epoch: 1, index: 0 }).text()
}

pub(crate) fn frame(bytes: &[u8]) -> bool {
    let name = segment_name();
    let found = search(&name, FRAMES_AT, bytes);
    let Some(frame) = frame_at(&name, FRAMES_AT, bytes) else { return false };
    assert_eq!(found, Some(FRAMES_AT), "a good frame is found where it is");
    let Some(txns) = txns(frame.body) else { return false };
    let mut body = Vec::new();
    txns.iter().for_each(|txn| push_txn(&mut body, txn));
    if !body.is_empty() {
        let again = [&header(&name, FRAMES_AT, frame.first, &body)[..], &body].concat();
        let read = frame_at(&name, FRAMES_AT, &again).map(|f| (f.first, f.body.to_vec(), f.len));
        assert_eq!(read, Some((frame.first, body.clone(), again.len() as u64)), "a frame is read back");
    }
    assert_eq!(super::frames::txns(&body), Some(txns), "transactions are read back");
    true
}

/// A claim's content, and its name.
pub(crate) fn claim(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    if let Some(name) = Name::parse(&text) {
        assert_eq!(name.text(), text, "a name has one spelling");
    }
    let sim = SimFs::new(1);
    let _dir = folder_with(&sim, &Name::Claim { epoch: 3 }.text(), bytes);
    matches!(super::owner(&sim, "/run/folder"), Ok(Some((3, _))))
}

pub(crate) fn segment(bytes: &[u8]) -> bool {
    let sim = SimFs::new(1);
    let Some(dir) = folder_with(&sim, &segment_name(), bytes) else { return false };
    let Ok(history) = read_history(&*dir) else { return false };
    let Some(link) = history.chain.first() else { return false };
    assert!(link.first > 0, "transactions are numbered from 1");
    assert_eq!(history.tail.0 + history.tail.1.len() as u64, link.len, "the tail ends where the segment does");
    assert_eq!(history.last + 1, link.first + link.txns, "transactions are numbered without a gap");
    assert_eq!(history.txns.len() as u64, link.txns, "no snapshot covers any");
    true
}

pub(crate) fn snapshot(bytes: &[u8]) -> bool {
    let name = Name::Snapshot { lsn: LSN, epoch: 1 }.text();
    let sim = SimFs::new(1);
    let Some(dir) = folder_with(&sim, &name, bytes) else { return false };
    let Ok(state) = read_snapshot(&*dir, &name, LSN) else { return false };
    assert!(write_snapshot(&*dir, 1, LSN, &state).is_ok());
    assert_eq!(read_snapshot(&*dir, &name, LSN).ok(), Some(state), "a snapshot is read back");
    true
}

/// Gives the frame at the beginning its checksums, and a length that fits.
pub(crate) fn mend_frame(bytes: &mut [u8]) -> Option<()> {
    let first = crate::frame::u64_at(bytes, 12);
    mend_frame_at(bytes, FRAMES_AT, first).map(drop)
}

fn mend_frame_at(frame: &mut [u8], offset: u64, first: u64) -> Option<(usize, u64)> {
    let rest = frame.len().checked_sub(HEADER).filter(|rest| *rest > 0)?;
    let len = Some(u32_at(frame, 0) as usize).filter(|len| (1..=rest).contains(len)).unwrap_or(rest);
    let body = frame.get(HEADER..HEADER + len)?.to_vec();
    let count = txns(&body).map_or(0, |txns| txns.len() as u64);
    frame.get_mut(..HEADER)?.copy_from_slice(&header(&segment_name(), offset, first, &body));
    Some((HEADER + len, count))
}

/// Gives the header and each frame behind it, as their lengths say, their checksums, and frames their numbers.
pub(crate) fn mend_segment(bytes: &mut [u8]) -> Option<()> {
    let name = segment_name();
    let begins = usize::try_from(FRAMES_AT).ok()?;
    let header_end = bytes.len().min(begins);
    mend(bytes.get_mut(..header_end)?, 0, b"SSEG", &Salt { file: &name, offset: 0 })?;
    let (mut at, mut next) = (begins, 1);
    while let Some(rest) = bytes.get_mut(at..) {
        let Some((len, count)) = mend_frame_at(rest, at as u64, next) else { break };
        at += len;
        next += count;
    }
    Some(())
}

pub(crate) fn mend_snapshot(bytes: &mut [u8]) -> Option<()> {
    let len = bytes.len().checked_sub(SNAPSHOT_HEADER)? as u64;
    let fields = [*b"STRAWSN1", LSN.to_le_bytes(), len.to_le_bytes()].concat();
    bytes.get_mut(..24)?.copy_from_slice(&fields);
    let crc = crc32c::crc32c_append(crc32c::crc32c(bytes.get(..24)?), bytes.get(SNAPSHOT_HEADER..)?);
    bytes.get_mut(24..28)?.copy_from_slice(&crc.to_le_bytes());
    Some(())
}
