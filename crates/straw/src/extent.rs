//! An extent: what one publish call appends to a pack. It carries the submission id, so the receipt is the extent itself.
//!
//! ```text
//! extent = header { submission, table of records } | pad | record | pad | record | pad ...
//! ```

use std::io::IoSlice;

use serde::{Deserialize, Serialize};

use crate::frame::{self, Bad, Frame, Salt, align};
use crate::head::{self, Head};
use crate::limits::{HEADER_BYTES_MAX, RECORD_BYTES_MAX, RECORDS_PER_EXTENT_MAX, SUBMISSION_BYTES_MAX, at_most};
use crate::record::Record;
use crate::{Error, Ref, Result};

pub(crate) const MAGIC: [u8; 4] = *b"SEXT";

static ZEROS: [u8; 64] = [0; 64];

/// The header of an extent. Offsets are relative to the extent's start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Header {
    pub(crate) submission: String,
    /// Every extent that begins below this offset of the pack was settled when this one was written. Bytes, so that the
    /// header's length does not depend on it.
    settled_below: [u8; 8],
    /// From the end of the (aligned) header to the end of the extent.
    body_len: u64,
    records: Vec<Slot>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Slot {
    len: u64,
    head: u32,
    crc: u32,
}

impl Header {
    /// Decodes the header at the beginning of `bytes`. Its table must be one that a writer could have written: whoever goes on
    /// from it adds lengths up.
    pub(crate) fn decode(salt: &Salt<'_>, bytes: &[u8]) -> std::result::Result<Frame<Header>, Bad> {
        let frame = frame::decode::<Header>(MAGIC, salt, bytes)?;
        let Header { body_len, records, .. } = &frame.body;
        let few = records.len() <= RECORDS_PER_EXTENT_MAX && records.iter().all(|slot| slot.len <= RECORD_BYTES_MAX);
        let adds_up = few && records.iter().map(|slot| align(slot.len)).sum::<u64>() == *body_len;
        if adds_up { Ok(frame) } else { Err(Bad::Schema) }
    }

    /// Length of the extent whose header takes `header_len` bytes.
    pub(crate) fn extent_len(&self, header_len: u64) -> u64 {
        align(header_len).saturating_add(self.body_len)
    }

    /// See the field.
    pub(crate) fn settled_below(&self) -> u64 {
        u64::from_le_bytes(self.settled_below)
    }

    /// References to the records of the extent at `offset` of `pack`.
    pub(crate) fn refs(&self, pack: &str, offset: u64, header_len: u64) -> Vec<Ref> {
        let mut at = offset + align(header_len);
        let place = |slot: &Slot| {
            let r = Ref { pack: pack.to_owned(), offset: at, len: slot.len, head: slot.head, crc: slot.crc };
            at += align(slot.len);
            r
        };
        self.records.iter().map(place).collect()
    }
}

/// An extent ready to be written anywhere.
pub(crate) struct Encoded<'a> {
    header: Header,
    header_len: u64,
    records: Vec<(Vec<u8>, &'a Record)>,
    /// Whole length, bytes; a multiple of the alignment.
    pub(crate) len: u64,
}

impl<'a> Encoded<'a> {
    /// Checks the limits and computes every checksum but the header's.
    pub(crate) fn new(submission: &str, records: &'a [Record]) -> Result<Self> {
        check_submission(submission)?;
        at_most("records of one publish", records.len() as u64, RECORDS_PER_EXTENT_MAX as u64)?;
        let mut slots = Vec::with_capacity(records.len());
        let mut parts = Vec::with_capacity(records.len());
        for record in records {
            record.check()?;
            let (bytes, slot) = encode_record(record)?;
            slots.push(slot);
            parts.push((bytes, record));
        }
        let body_len = slots.iter().map(|s| align(s.len)).sum();
        let header = Header { submission: submission.to_owned(), settled_below: [0; 8], body_len, records: slots };
        let header_len = frame::encoded_len(&header);
        let len = header.extent_len(header_len);
        Ok(Encoded { header, header_len, records: parts, len })
    }

    /// True when the content is that of `other`, as far as its checksums tell.
    pub(crate) fn same_content(&self, refs: &[Ref]) -> bool {
        let same = |(slot, r): (&Slot, &Ref)| slot.len == r.len && slot.head == r.head && slot.crc == r.crc;
        self.header.records.len() == refs.len() && self.header.records.iter().zip(refs).all(same)
    }

    /// Gives the bytes to `write` as one gathered write, and the references.
    pub(crate) fn write(
        mut self,
        pack: &str,
        offset: u64,
        settled_below: u64,
        write: impl FnOnce(&mut [IoSlice<'_>]) -> Result<()>,
    ) -> Result<(Vec<Ref>, u32)> {
        self.header.settled_below = settled_below.to_le_bytes();
        let refs = self.header.refs(pack, offset, self.header_len);
        let (header, _) = frame::encode(MAGIC, &Salt { file: pack, offset }, &self.header);
        assert_eq!(header.len() as u64, self.header_len, "a header's length does not depend on its place");
        let mut out = Gather::default();
        out.push(&header);
        out.pad();
        for (head, record) in &self.records {
            out.push(head);
            for t in &record.tensors {
                out.pad();
                out.push(t.tensor.bytes());
            }
            out.push(&record.meta);
            out.pad();
        }
        assert_eq!(out.len, self.len, "an extent must have the length it reserved");
        write(&mut out.slices)?;
        Ok((refs, u32::try_from(self.header_len).unwrap_or(u32::MAX)))
    }
}

fn encode_record(record: &Record) -> Result<(Vec<u8>, Slot)> {
    let head = Head::of(record);
    let (bytes, crc) = frame::encode(head::MAGIC, &Salt::NONE, &head);
    at_most("bytes of a record's head", bytes.len() as u64, HEADER_BYTES_MAX)?;
    let head_len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    let len = head.meta(head_len).map_or(0, |part| part.range.end);
    at_most("bytes of a record", len, RECORD_BYTES_MAX)?;
    Ok((bytes, Slot { len, head: head_len, crc }))
}

fn check_submission(submission: &str) -> Result<()> {
    at_most("bytes of a submission id", submission.len() as u64, SUBMISSION_BYTES_MAX as u64)?;
    if submission.is_empty() {
        return Err(Error::BadName { what: "submission id", name: String::new(), max: SUBMISSION_BYTES_MAX });
    }
    Ok(())
}

/// Slices of one gathered write.
#[derive(Default)]
struct Gather<'a> {
    slices: Vec<IoSlice<'a>>,
    len: u64,
}

impl<'a> Gather<'a> {
    fn push(&mut self, bytes: &'a [u8]) {
        if !bytes.is_empty() {
            self.slices.push(IoSlice::new(bytes));
            self.len += bytes.len() as u64;
        }
    }

    fn pad(&mut self) {
        let missing = (align(self.len) - self.len) as usize;
        self.push(ZEROS.get(..missing).unwrap_or_default());
    }
}
