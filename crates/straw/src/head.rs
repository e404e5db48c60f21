//! The head of a record: what it holds and the checksum of every block of it.
//!
//! ```text
//! record = head | table | pad | tensor 0 | pad | tensor 1 | ... | meta
//! ```
//! Tensors begin at multiples of 64 bytes from the record's start. Each is checked in blocks of [`BLOCK_BYTES`], so a row
//! slice costs about a row and not a tensor. Where the blocks lie is no matter of the head: [`crate::front`].

use serde::{Deserialize, Serialize};

use crate::dtype::DType;
use crate::frame::{self, Bad, Salt};
use crate::limits::RECORD_BYTES_MAX;
use crate::tensor::bytes_of;
use crate::{Error, Ref, Result};

/// Bytes that one checksum covers. 64 KiB: a row slice reads at most that much beside its rows, and the checksums are a
/// sixteen-thousandth of the data.
pub const BLOCK_BYTES: u64 = 64 << 10;

pub(crate) const MAGIC: [u8; 4] = *b"SREC";

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Head {
    pub(crate) block: u64,
    pub(crate) tensors: Vec<HeadTensor>,
    pub(crate) meta_len: u64,
    pub(crate) meta_crc: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct HeadTensor {
    pub(crate) name: String,
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<u64>,
    pub(crate) crcs: Vec<u32>,
}

impl HeadTensor {
    /// The head of a tensor of these bytes: the one pass over them that publishing makes.
    pub(crate) fn of(name: &str, dtype: DType, shape: &[u64], bytes: &[u8]) -> Self {
        let crcs = bytes.chunks(BLOCK_BYTES as usize).map(crc32c::crc32c).collect();
        HeadTensor { name: name.to_owned(), dtype, shape: shape.to_vec(), crcs }
    }

    /// Bytes of it in memory.
    pub(crate) fn len(&self) -> u64 {
        bytes_of(self.dtype, &self.shape).unwrap_or(u64::MAX)
    }

    /// Bytes of its block of this number, in memory.
    pub(crate) fn block_len(&self, block: u64, number: usize) -> u64 {
        self.len().saturating_sub(block.saturating_mul(number as u64)).min(block)
    }
}

impl Head {
    /// Decodes and checks the head of `reference` at the beginning of `bytes`.
    pub(crate) fn decode(reference: &Ref, bytes: &[u8]) -> Result<Self, Bad> {
        let frame = frame::decode::<Head>(MAGIC, &Salt::NONE, bytes)?;
        if frame.crc != reference.crc || frame.len as u64 != u64::from(reference.head) {
            return Err(Bad::Checksum);
        }
        let head = frame.body;
        let blocks = (1..=RECORD_BYTES_MAX).contains(&head.block);
        if blocks && head.crc_counts_fit() { Ok(head) } else { Err(Bad::Schema) }
    }

    fn crc_counts_fit(&self) -> bool {
        let fits =
            |t: &HeadTensor| bytes_of(t.dtype, &t.shape).map(|n| n.div_ceil(self.block)) == Some(t.crcs.len() as u64);
        self.tensors.iter().all(fits)
    }
}

/// Checks a block that lies at `offset` of a pack.
pub(crate) fn check_block(reference: &Ref, what: &str, offset: u64, bytes: &[u8], crc: u32) -> Result<()> {
    if crc32c::crc32c(bytes) == crc {
        return Ok(());
    }
    Err(Error::corrupt(&reference.pack, offset, format!("wrong checksum in {what}")))
}
