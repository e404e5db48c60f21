//! Frames of a segment: one group commit each.
//!
//! ```text
//! frame = body length u32 | checksum of this header u32 | checksum of the body u32 | first lsn u64 | body
//! body  = transaction*      transaction = count varint, (length varint, bytes)*
//! ```
//! Both checksums are seeded with the segment's name and the frame's offset.

use super::{Lsn, Txn};
use crate::frame::{u32_at, u64_at};

/// Bytes before a frame's body.
pub(super) const HEADER: usize = 20;

/// Seed of the checksums in one segment at one offset.
fn seed(segment: &str, offset: u64) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(segment.as_bytes()), &offset.to_le_bytes())
}

/// The header of a frame.
pub(super) fn header(segment: &str, offset: u64, first: Lsn, body: &[u8]) -> [u8; HEADER] {
    let seed = seed(segment, offset);
    let len = u32::try_from(body.len()).unwrap_or_else(|_| unreachable!("a frame's body is bounded"));
    let body_crc = crc32c::crc32c_append(seed, body);
    let mut header = [0; HEADER];
    put(&mut header, 0, &len.to_le_bytes());
    put(&mut header, 8, &body_crc.to_le_bytes());
    put(&mut header, 12, &first.to_le_bytes());
    let crc = header_crc(seed, &header);
    put(&mut header, 4, &crc.to_le_bytes());
    header
}

fn put(header: &mut [u8], at: usize, value: &[u8]) {
    if let Some(field) = header.get_mut(at..at + value.len()) {
        field.copy_from_slice(value);
    }
}

/// Checksum of everything in a header but the checksum itself.
fn header_crc(seed: u32, header: &[u8]) -> u32 {
    let crc = crc32c::crc32c_append(seed, header.get(..4).unwrap_or_default());
    crc32c::crc32c_append(crc, header.get(8..HEADER).unwrap_or_default())
}

/// A good frame.
pub(super) struct Frame<'a> {
    pub(super) first: Lsn,
    pub(super) body: &'a [u8],
    pub(super) len: u64,
}

/// The frame at `offset`, where `bytes` begin; `None` when there is no good one.
pub(super) fn frame_at<'a>(segment: &str, offset: u64, bytes: &'a [u8]) -> Option<Frame<'a>> {
    let header = bytes.get(..HEADER)?;
    let len = u32_at(header, 0) as usize;
    if len == 0 || len > bytes.len() {
        return None;
    }
    let seed = seed(segment, offset);
    if u32_at(header, 4) != header_crc(seed, header) {
        return None;
    }
    let body = bytes.get(HEADER..HEADER + len)?;
    let good = crc32c::crc32c_append(seed, body) == u32_at(header, 8);
    good.then(|| Frame { first: u64_at(header, 12), body, len: (HEADER + len) as u64 })
}

/// The first good frame at or behind `offset`; `bytes` begin at `offset`.
pub(super) fn search(segment: &str, offset: u64, bytes: &[u8]) -> Option<u64> {
    let mut at = 0;
    loop {
        // A frame's first four bytes are its length, so it begins at most three before a byte that is not zero: the zeros
        // that were written ahead cost nothing.
        let rest = bytes.get(at..)?;
        at += rest.iter().position(|byte| *byte != 0)?.saturating_sub(3);
        if frame_at(segment, offset + at as u64, bytes.get(at..)?).is_some() {
            return Some(offset + at as u64);
        }
        at += 1;
    }
}

/// Appends a transaction to a body.
pub(super) fn push_txn<R: AsRef<[u8]>>(body: &mut Vec<u8>, records: &[R]) {
    push_varint(body, records.len() as u64);
    for record in records {
        let record = record.as_ref();
        push_varint(body, record.len() as u64);
        body.extend_from_slice(record);
    }
}

/// Bytes that [`push_txn`] adds at most.
pub(super) fn txn_bytes_max<R: AsRef<[u8]>>(records: &[R]) -> u64 {
    records.iter().map(|r| r.as_ref().len() as u64 + 10).sum::<u64>() + 10
}

/// The transactions of a body; `None` when it does not parse.
pub(super) fn txns(mut body: &[u8]) -> Option<Vec<Txn>> {
    let mut txns = Vec::new();
    while !body.is_empty() {
        let count = take_varint(&mut body)?;
        let mut txn = Vec::new();
        for _ in 0..count {
            let len = usize::try_from(take_varint(&mut body)?).ok()?;
            let (record, rest) = body.split_at_checked(len)?;
            txn.push(record.to_vec());
            body = rest;
        }
        txns.push(txn);
    }
    Some(txns)
}

fn push_varint(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push((n as u8 & 0x7f) | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut n = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        n |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(n);
        }
    }
    None
}
