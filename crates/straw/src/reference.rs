//! References: where a record lies and what its bytes must be.

use serde::{Deserialize, Serialize};

/// Names one record for ever. A pack's name is never used twice and its bytes never change, so a reference either
/// gives the record that was published or an error, never another record.
///
/// `crc` covers the record's head (the first `head` bytes), and the head holds the checksum of every block of the rest:
/// a whole read is one `pread`, a row slice one of the head (cached) and one of the blocks it touches.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ref {
    /// Name of the pack.
    pub pack: String,
    /// Offset of the record in it, bytes.
    pub offset: u64,
    /// Length of the record, bytes.
    pub len: u64,
    /// Length of the record's head, bytes.
    pub head: u32,
    /// CRC-32C of the head.
    pub crc: u32,
}

impl Ref {
    /// True when both name the same bytes, wherever they lie, as far as their checksums tell.
    pub(crate) fn same_bytes(&self, other: &Ref) -> bool {
        (self.len, self.head, self.crc) == (other.len, other.head, other.crc)
    }
}
