//! An extent: what one publish call appends to a pack. It carries the submission id, so the receipt is the extent itself.
//!
//! ```text
//! extent = header { submission, table of records } | pad | record | pad | record | pad ...
//! ```

use std::io::IoSlice;

use serde::{Deserialize, Serialize};

use crate::frame::{self, Bad, Frame, Salt, align};
use crate::laid::Laid;
use crate::limits::{
    HEADER_BYTES_MAX, RECORD_BYTES_MAX, RECORDS_PER_EXTENT_MAX, SHARES_MAX, SUBMISSION_BYTES_MAX, at_most,
};
use crate::reference::Share;
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

/// A record of an extent: all of its reference but the place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Slot {
    pub(crate) len: u64,
    pub(crate) head: u32,
    pub(crate) crc: u32,
    pub(crate) table: u32,
    pub(crate) shares: Vec<Share>,
}

impl Header {
    /// Decodes the header at the beginning of `bytes`. Its table must be one that a writer could have written: whoever goes on
    /// from it adds lengths up.
    pub(crate) fn decode(salt: &Salt<'_>, bytes: &[u8]) -> std::result::Result<Frame<Header>, Bad> {
        let frame = frame::decode::<Header>(MAGIC, salt, bytes)?;
        let Header { body_len, records, .. } = &frame.body;
        let bounded = |slot: &Slot| slot.len <= RECORD_BYTES_MAX && slot.shares.len() <= SHARES_MAX;
        let few = records.len() <= RECORDS_PER_EXTENT_MAX && records.iter().all(bounded);
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
            let Slot { len, head, crc, table, ref shares } = *slot;
            let r = Ref { pack: pack.to_owned(), offset: at, len, head, crc, table, shares: shares.clone() };
            at += align(len);
            r
        };
        self.records.iter().map(place).collect()
    }
}

/// An extent ready to be written anywhere.
pub(crate) struct Encoded<'a> {
    header: Header,
    header_len: u64,
    records: Vec<Laid<'a>>,
    /// Whole length, bytes; a multiple of the alignment.
    pub(crate) len: u64,
}

impl<'a> Encoded<'a> {
    /// Checks the limits of an extent with these records.
    pub(crate) fn new(submission: &str, records: Vec<Laid<'a>>) -> Result<Self> {
        check_submission(submission)?;
        at_most("records of one publish", records.len() as u64, RECORDS_PER_EXTENT_MAX as u64)?;
        let slots: Vec<Slot> = records.iter().map(|record| record.slot.clone()).collect();
        let body_len = slots.iter().map(|s| align(s.len)).sum();
        let header = Header { submission: submission.to_owned(), settled_below: [0; 8], body_len, records: slots };
        let header_len = frame::encoded_len(&header);
        at_most("bytes of an extent's header", header_len, HEADER_BYTES_MAX)?;
        let len = header.extent_len(header_len);
        Ok(Encoded { header, header_len, records, len })
    }

    /// True when the content is that of `other`, as far as its checksums tell.
    pub(crate) fn same_content(&self, refs: &[Ref]) -> bool {
        let same = |(slot, r): (&Slot, &Ref)| slot.head == r.head && slot.crc == r.crc;
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
        for record in &self.records {
            out.push(&record.front);
            for tensor in &record.tensors {
                out.pad();
                tensor.iter().for_each(|bytes| out.push(bytes));
            }
            out.push(&record.meta);
            out.pad();
        }
        assert_eq!(out.len, self.len, "an extent must have the length it reserved");
        write(&mut out.slices)?;
        Ok((refs, u32::try_from(self.header_len).unwrap_or(u32::MAX)))
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever walks a pack goes on behind an extent by what its table and `body_len` say. A fuzzer found tables that sent it to
    /// another place than the records end at, or beyond the end of all numbers.
    #[test]
    fn a_table_that_does_not_add_up_to_the_length_of_its_extent_is_refused() {
        let salt = || Salt { file: "w-0", offset: 64 };
        let slot = |len| Slot { len, head: 40, crc: 0, table: 0, shares: Vec::new() };
        let decoded = |records: Vec<Slot>, body_len| {
            let header = Header { submission: "s".into(), settled_below: [0; 8], body_len, records };
            let (bytes, _) = frame::encode(MAGIC, &salt(), &header);
            Header::decode(&salt(), &bytes).map(|frame| frame.body.extent_len(frame.len as u64)).ok()
        };
        assert_eq!(decoded(vec![slot(100), slot(64)], 192), Some(256), "records are padded to 64");
        assert_eq!(decoded(Vec::new(), 0), Some(64));
        for (records, body_len) in [
            (vec![slot(100), slot(64)], 164),
            (vec![slot(100)], 64),
            (vec![slot(100)], u64::MAX),
            (vec![slot(u64::MAX)], u64::MAX),
            (vec![slot(u64::MAX), slot(65)], 128),
            (vec![slot(RECORD_BYTES_MAX + 1)], align(RECORD_BYTES_MAX + 1)),
            (vec![slot(0); RECORDS_PER_EXTENT_MAX + 1], 0),
        ] {
            assert_eq!(decoded(records.clone(), body_len), None, "{body_len}: {records:?}");
        }
        let crowd = Slot { shares: vec![Share::default(); SHARES_MAX + 1], ..slot(64) };
        assert_eq!(decoded(vec![crowd], 64), None, "more packs than a record may share");
    }
}
