//! References: where a record lies and what its bytes must be.

use serde::{Deserialize, Serialize};

/// Names one record for ever. A pack's name is never used twice and its bytes never change, so a reference either
/// gives the record that was published or an error, never another record.
///
/// `crc` covers the record's head (the first `head` bytes), and the head holds the checksum of every block of the rest:
/// a whole read is one `pread`, a row slice one of the head (cached) and one of the blocks it touches. The head says what the
/// record holds and not how it is stored, so `head` and `crc` are the same for every copy, compressed or shared or neither.
///
/// A record may share blocks of older ones ([`crate::Store::update`]). Then the reference names their packs, too, since whoever
/// keeps the record must keep those: a queue counts all of [`Ref::packs`] as needed. Without them the record cannot be read.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
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
    /// Length of the table behind the head that says where blocks lie, bytes; 0 where all lie in the record as they are.
    pub table: u32,
    /// Other places with blocks of the record, by number from 0 as the table names them; mostly none.
    pub shares: Vec<Share>,
}

/// A pack with blocks that a record shares.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Share {
    /// Name of the pack; it may be the record's own.
    pub pack: String,
    /// Bytes of it that the record shares.
    pub bytes: u64,
}

impl Ref {
    /// The packs that must be there for the record to be read, its own one first. One may come twice.
    pub fn packs(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.pack.as_str()).chain(self.shares.iter().map(|share| share.pack.as_str()))
    }

    /// True when bytes of the pack are needed to read the record.
    pub fn needs(&self, pack: &str) -> bool {
        self.packs().any(|needed| needed == pack)
    }

    /// Bytes in each of [`Ref::packs`], in the same order.
    pub fn bytes_in_packs(&self) -> impl Iterator<Item = (&str, u64)> {
        let shares = self.shares.iter().map(|share| (share.pack.as_str(), share.bytes));
        std::iter::once((self.pack.as_str(), self.len)).chain(shares)
    }

    /// True when both name the same content, wherever and however it is stored, as far as their checksums tell.
    pub(crate) fn same_content(&self, other: &Ref) -> bool {
        (self.head, self.crc) == (other.head, other.crc)
    }
}
