//! The head of a record: what it holds and the checksum of every block of it.
//!
//! ```text
//! record = head | pad | tensor 0 | pad | tensor 1 | ... | meta
//! ```
//! Tensors begin at multiples of 64 bytes from the record's start. Each is checked in blocks of [`BLOCK_BYTES`], so a row
//! slice costs about a row and not a tensor.

use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::dtype::DType;
use crate::frame::{self, Bad, Salt, align};
use crate::limits::RECORD_BYTES_MAX;
use crate::record::{NamedTensor, Record, no_tensor};
use crate::tensor::{Tensor, bytes_of};
use crate::{Error, Ref, Result};

/// Bytes that one checksum covers. 64 KiB: a row slice reads at most that much beside its rows, and the checksums are a
/// sixteen-thousandth of the data.
pub const BLOCK_BYTES: u64 = 64 << 10;

pub(crate) const MAGIC: [u8; 4] = *b"SREC";

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Head {
    block: u64,
    tensors: Vec<HeadTensor>,
    meta_len: u64,
    meta_crc: u32,
}

#[derive(Debug, Serialize, Deserialize)]
struct HeadTensor {
    name: String,
    dtype: DType,
    shape: Vec<u64>,
    crcs: Vec<u32>,
}

/// Where a part of a record lies, relative to its start.
pub(crate) struct Part<'a> {
    pub(crate) range: Range<u64>,
    block: u64,
    crcs: &'a [u32],
    what: &'a str,
}

impl Head {
    /// The one pass over the bytes that publishing makes.
    pub(crate) fn of(record: &Record) -> Self {
        let tensors = record.tensors.iter().map(|t| HeadTensor {
            name: t.name.clone(),
            dtype: t.tensor.dtype(),
            shape: t.tensor.shape().to_vec(),
            crcs: t.tensor.bytes().chunks(BLOCK_BYTES as usize).map(crc32c::crc32c).collect(),
        });
        Head {
            block: BLOCK_BYTES,
            tensors: tensors.collect(),
            meta_len: record.meta.len() as u64,
            meta_crc: crc32c::crc32c(&record.meta),
        }
    }

    /// Decodes and checks the head of `reference` at the beginning of `bytes`.
    pub(crate) fn decode(reference: &Ref, bytes: &[u8]) -> Result<Self, Bad> {
        let frame = frame::decode::<Head>(MAGIC, &Salt::NONE, bytes)?;
        if frame.crc != reference.crc || frame.len as u64 != u64::from(reference.head) {
            return Err(Bad::Checksum);
        }
        let head = frame.body;
        let whole = head.parts(reference.head).last().map(|p| p.range.end);
        let blocks = (1..=RECORD_BYTES_MAX).contains(&head.block);
        if !blocks || whole != Some(reference.len) || !head.crc_counts_fit() {
            return Err(Bad::Schema);
        }
        Ok(head)
    }

    fn crc_counts_fit(&self) -> bool {
        let fits =
            |t: &HeadTensor| bytes_of(t.dtype, &t.shape).map(|n| n.div_ceil(self.block)) == Some(t.crcs.len() as u64);
        self.tensors.iter().all(fits)
    }

    /// The tensors in order, then the meta.
    pub(crate) fn parts(&self, head_len: u32) -> impl Iterator<Item = Part<'_>> {
        let mut at = u64::from(head_len);
        let tensors =
            self.tensors.iter().map(|t| (t.name.as_str(), bytes_of(t.dtype, &t.shape).unwrap_or(0), &t.crcs[..], true));
        let meta = ("meta", self.meta_len, std::slice::from_ref(&self.meta_crc), false);
        tensors.chain([meta]).map(move |(what, len, crcs, aligned)| {
            let start = if aligned { align(at) } else { at };
            at = start.saturating_add(len);
            let block = if aligned { self.block } else { u64::MAX };
            Part { range: start..at, block, crcs, what }
        })
    }

    /// Checks every byte of the record, which begins at `base` of `bytes`, and gives views of its tensors.
    pub(crate) fn open(&self, reference: &Ref, bytes: &Arc<Vec<u8>>, base: usize) -> Result<Record> {
        let mut record = Record::default();
        for (i, part) in self.parts(reference.head).enumerate() {
            let range = usize_range(&part.range);
            let range = base + range.start..base + range.end;
            let data = bytes.get(range.clone()).unwrap_or_default();
            part.verify(reference, part.range.start, data)?;
            match self.tensors.get(i) {
                Some(t) => {
                    let tensor = Tensor::view(t.dtype, &t.shape, bytes.clone(), range)?;
                    record.tensors.push(NamedTensor { name: t.name.clone(), tensor });
                }
                None => record.meta = data.to_vec(),
            }
        }
        Ok(record)
    }

    /// The meta's place.
    pub(crate) fn meta(&self, head_len: u32) -> Option<Part<'_>> {
        self.parts(head_len).last()
    }

    /// Type and shape of the tensor `name`, and its place.
    pub(crate) fn tensor(&self, head_len: u32, name: &str) -> Result<(DType, &[u64], Part<'_>)> {
        let mut both = self.tensors.iter().zip(self.parts(head_len));
        let found = both.find(|(t, _)| t.name == name);
        let found = found.map(|(t, part)| (t.dtype, &t.shape[..], part));
        found.ok_or_else(|| no_tensor(name, self.tensors.iter().map(|t| t.name.as_str())))
    }

    /// Names, types and shapes of the tensors.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = (&str, DType, &[u64])> {
        self.tensors.iter().map(|t| (t.name.as_str(), t.dtype, &t.shape[..]))
    }
}

impl Part<'_> {
    /// Widens a byte range of the part (relative to the part) to whole blocks.
    pub(crate) fn blocks_around(&self, bytes: &Range<u64>) -> Range<u64> {
        let len = self.range.end - self.range.start;
        let start = bytes.start / self.block * self.block;
        start..bytes.end.div_ceil(self.block).saturating_mul(self.block).min(len)
    }

    /// Checks whole blocks that begin at `at` (relative to the record).
    pub(crate) fn verify(&self, reference: &Ref, at: u64, data: &[u8]) -> Result<()> {
        let first = ((at - self.range.start) / self.block) as usize;
        let size = usize::try_from(self.block).unwrap_or(usize::MAX);
        let whole = usize::from(self.block == u64::MAX);
        let want = data.len().div_ceil(size).max(whole);
        let crcs = self.crcs.get(first..first + want).unwrap_or_default();
        assert_eq!(crcs.len(), want, "a block without a checksum");
        let mut blocks = data.chunks(size);
        for (i, &crc) in crcs.iter().enumerate() {
            let block = blocks.next().unwrap_or_default();
            if crc32c::crc32c(block) != crc {
                let offset = reference.offset + at + (i as u64).saturating_mul(self.block);
                return Err(Error::corrupt(&reference.pack, offset, format!("wrong checksum in {}", self.what)));
            }
        }
        Ok(())
    }
}

pub(crate) fn usize_range(range: &Range<u64>) -> Range<usize> {
    let clip = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    clip(range.start)..clip(range.end)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The body of a head, as anyone could write it.
    type Body = (u64, Vec<(String, DType, Vec<u64>, Vec<u32>)>, u64, u32);

    fn decoded(body: &Body, len: u64) -> Result<Head, Bad> {
        let (bytes, crc) = frame::encode(MAGIC, &Salt::NONE, body);
        let r = Ref { pack: "w-0".into(), offset: 0, len, head: bytes.len() as u32, crc };
        Head::decode(&r, &bytes)
    }

    #[test]
    fn a_head_that_no_writer_writes_is_not_believed() {
        let empty = |block| (block, vec![("t".into(), DType::U8, vec![0], vec![])], 0, 0);
        assert!(decoded(&empty(BLOCK_BYTES), 64).is_ok());
        for block in [0, u64::MAX, RECORD_BYTES_MAX + 1] {
            assert_eq!(decoded(&empty(block), 64).err(), Some(Bad::Schema), "blocks of {block} bytes");
        }
        // Lengths that add up to more than there are numbers.
        let huge = |name: &str| (name.to_owned(), DType::U8, vec![u64::MAX - 63], Vec::new());
        for len in [0, 64, 128, u64::MAX] {
            assert_eq!(decoded(&(BLOCK_BYTES, vec![huge("a"), huge("b")], 10, 0), len).err(), Some(Bad::Schema));
        }
    }
}
