//! What is in front of a record's bytes: its head, and where its blocks lie.
//!
//! Mostly there is no more than the head: each tensor lies whole and as it is, and its place follows from the lengths. A record
//! with compressed blocks, or with blocks of older records, has a *table* behind the head that says of each block where its bytes
//! are and how they are stored. It names the places themselves and never another table, so however often a record was changed, a
//! read looks at one.
//!
//! The table has a checksum, and so has each compressed block as it is stored; but what decides is the head's checksum of the
//! block: no table can give other bytes than were published.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::compression::Decompressor;
use crate::frame::{self, Bad, Salt, align};
use crate::head::{BLOCK_BYTES, Head, HeadTensor, check_block};
use crate::limits::RECORD_BYTES_MAX;
use crate::record::{NamedTensor, Record, no_tensor};
use crate::tensor::Tensor;
use crate::{Error, Ref, Result};

pub(crate) const MAGIC: [u8; 4] = *b"STAB";
/// Blocks that lie one behind the other are read together, so many bytes at most.
const RUN_BYTES_MAX: u64 = 8 << 20;

/// Where the blocks of a record lie: a list for each tensor, empty for one that lies whole in the record.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Table {
    pub(crate) tensors: Vec<Vec<Block>>,
}

/// Where one block lies, and how.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Block {
    /// In a pack that the reference names; `None` is in the record, behind the tensor's block before it there.
    pub(crate) shared: Option<Shared>,
    /// Compressed with Zstandard; `None` is as it is.
    pub(crate) zstd: Option<Zstd>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Shared {
    /// Number in [`Ref::shares`].
    pub(crate) share: u32,
    /// Offset in that pack.
    pub(crate) at: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Zstd {
    /// Bytes that are stored; less than the block has.
    pub(crate) len: u32,
    /// Their checksum.
    pub(crate) crc: u32,
}

/// The place of one block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Place {
    /// Number of the share; `None` is the record itself.
    pub(crate) share: Option<u32>,
    /// Offset in the share's pack, or from the record's start.
    pub(crate) at: u64,
    /// Bytes that are stored.
    pub(crate) len: u64,
    /// Checksum of what is stored, when that is compressed.
    pub(crate) zstd: Option<u32>,
}

/// Where a tensor lies.
#[derive(Debug)]
pub(crate) enum Places {
    /// As it is, from the record's start.
    Whole(Range<u64>),
    /// Block by block.
    Blocks(Vec<Place>),
}

/// What is in front of a record's bytes.
#[derive(Debug)]
pub(crate) struct Front {
    pub(crate) head: Head,
    places: Vec<Places>,
    meta: Range<u64>,
}

/// Gives bytes of a share or of the record, exactly those asked for.
pub(crate) type Fetch<'a> = dyn Fn(Option<u32>, Range<u64>) -> Result<Cow<'a, [u8]>> + 'a;

/// Where a table belongs: to the head of this checksum.
pub(crate) fn salt(crc: u32) -> Salt<'static> {
    Salt { file: "", offset: u64::from(crc) }
}

impl Table {
    pub(crate) fn encode(&self, head_crc: u32) -> Vec<u8> {
        frame::encode(MAGIC, &salt(head_crc), self).0
    }
}

impl Front {
    /// Bytes of it.
    pub(crate) fn len(reference: &Ref) -> u64 {
        u64::from(reference.head) + u64::from(reference.table)
    }

    /// Decodes and checks what is in front of `reference` at the beginning of `bytes`.
    pub(crate) fn decode(reference: &Ref, bytes: &[u8]) -> Result<Self, Bad> {
        let front = Self::parse(reference, bytes)?;
        if front.meta.end == reference.len { Ok(front) } else { Err(Bad::Schema) }
    }

    /// The length that a reference to the record would have.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn end(reference: &Ref, bytes: &[u8]) -> Option<u64> {
        Self::parse(reference, bytes).ok().map(|front| front.meta.end)
    }

    fn parse(reference: &Ref, bytes: &[u8]) -> Result<Self, Bad> {
        let head = Head::decode(reference, bytes)?;
        let table = match reference.table {
            0 => None,
            len => {
                let bytes = bytes.get(reference.head as usize..).unwrap_or_default();
                let frame = frame::decode::<Table>(MAGIC, &salt(reference.crc), bytes)?;
                if frame.len as u64 != u64::from(len) {
                    return Err(Bad::Checksum);
                }
                Some(frame.body)
            }
        };
        Self::lay_out(reference, head, table.as_ref()).ok_or(Bad::Schema)
    }

    /// Adds the lengths up; `None` when there are not so many bytes, or no writer writes such blocks.
    fn lay_out(reference: &Ref, head: Head, table: Option<&Table>) -> Option<Self> {
        let mut at = Self::len(reference);
        let mut content = head.meta_len;
        let mut places = Vec::with_capacity(head.tensors.len());
        if table.is_some_and(|table| table.tensors.len() != head.tensors.len() || head.block != BLOCK_BYTES) {
            return None;
        }
        for (i, tensor) in head.tensors.iter().enumerate() {
            at = align(at);
            content = content.saturating_add(tensor.len());
            let blocks = table.and_then(|table| table.tensors.get(i)).filter(|blocks| !blocks.is_empty());
            places.push(match blocks {
                None => {
                    let start = at;
                    at = at.saturating_add(tensor.len());
                    Places::Whole(start..at)
                }
                Some(blocks) if blocks.len() == tensor.crcs.len() => {
                    let place = |(n, block)| place_of(reference, &head, tensor, n, block, &mut at);
                    Places::Blocks(blocks.iter().enumerate().map(place).collect::<Option<_>>()?)
                }
                Some(_) => return None,
            });
        }
        let meta = at..at.saturating_add(head.meta_len);
        // A few bytes may stand for many: so many may be in memory, as of any record.
        let bounded = table.is_none() || content <= RECORD_BYTES_MAX;
        (meta.end < u64::MAX && bounded).then_some(Front { head, places, meta })
    }

    /// Names, types, shapes and checksums of the tensors, and where they lie.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = (&HeadTensor, &Places)> {
        self.head.tensors.iter().zip(&self.places)
    }

    pub(crate) fn tensor(&self, name: &str) -> Result<(&HeadTensor, &Places)> {
        let found = self.tensors().find(|(t, _)| t.name == name);
        found.ok_or_else(|| no_tensor(name, self.head.tensors.iter().map(|t| t.name.as_str())))
    }

    /// The meta's place, from the record's start.
    pub(crate) fn meta(&self) -> Range<u64> {
        self.meta.clone()
    }

    pub(crate) fn check_meta(&self, reference: &Ref, bytes: &[u8]) -> Result<()> {
        check_block(reference, "meta", reference.offset + self.meta.start, bytes, self.head.meta_crc)
    }

    /// The blocks that bytes of a tensor lie in.
    pub(crate) fn blocks_around(&self, bytes: &Range<u64>) -> Range<usize> {
        let number = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        number(bytes.start / self.head.block)..number(bytes.end.div_ceil(self.head.block))
    }

    /// Where each block of a tensor lies, one by one.
    pub(crate) fn places_of<'a>(
        &'a self,
        tensor: &'a HeadTensor,
        places: &'a Places,
    ) -> impl Iterator<Item = Place> + 'a {
        (0..tensor.crcs.len()).filter_map(move |n| self.place(tensor, places, n))
    }

    fn place(&self, tensor: &HeadTensor, places: &Places, n: usize) -> Option<Place> {
        match places {
            Places::Whole(range) => {
                let at = range.start + self.head.block * n as u64;
                Some(Place { share: None, at, len: tensor.block_len(self.head.block, n), zstd: None })
            }
            Places::Blocks(blocks) => blocks.get(n).copied(),
        }
    }

    /// Blocks of a tensor as they are in memory, each checked.
    pub(crate) fn assemble(
        &self,
        reference: &Ref,
        (tensor, places): (&HeadTensor, &Places),
        blocks: Range<usize>,
        fetch: &Fetch<'_>,
    ) -> Result<Vec<u8>> {
        let mut unpack = Unpack::default();
        let mut next = blocks.start;
        while next < blocks.end {
            let Some(run) = self.run(tensor, places, next..blocks.end) else { break };
            let first = run.first().map_or((None, 0), |place| (place.share, place.at));
            let end = run.last().map_or(first.1, |place| place.at + place.len);
            let stored = fetch(first.0, first.1..end)?;
            for place in &run {
                let from = usize_range(&(place.at - first.1..place.at - first.1 + place.len));
                let bytes = stored.get(from).unwrap_or_default();
                self.append(reference, (tensor, next), place, bytes, &mut unpack)?;
                next += 1;
            }
        }
        Ok(unpack.out)
    }

    /// Blocks from the first of `range` on that lie one behind the other.
    fn run(&self, tensor: &HeadTensor, places: &Places, range: Range<usize>) -> Option<Vec<Place>> {
        let mut run: Vec<Place> = Vec::new();
        for n in range {
            let place = self.place(tensor, places, n)?;
            if let (Some(first), Some(last)) = (run.first(), run.last()) {
                let follows = place.share == last.share && place.at == last.at + last.len;
                if !follows || place.at + place.len - first.at > RUN_BYTES_MAX {
                    break;
                }
            }
            run.push(place);
        }
        (!run.is_empty()).then_some(run)
    }

    fn append(
        &self,
        reference: &Ref,
        (tensor, n): (&HeadTensor, usize),
        place: &Place,
        stored: &[u8],
        unpack: &mut Unpack,
    ) -> Result<()> {
        let len = tensor.block_len(self.head.block, n);
        let crc = tensor.crcs.get(n).copied().unwrap_or_default();
        unpack.append(stored, place.zstd, len, crc).map_err(|what| {
            let (pack, offset) = self.absolute(reference, place);
            Error::corrupt(pack, offset, format!("{what} in {}", tensor.name))
        })
    }

    /// The pack of a place, and the offset in it.
    pub(crate) fn absolute<'a>(&self, reference: &'a Ref, place: &Place) -> (&'a str, u64) {
        let share = place.share.and_then(|share| reference.shares.get(share as usize));
        match share {
            Some(share) => (&share.pack, place.at),
            None => (&reference.pack, reference.offset + place.at),
        }
    }

    /// The record, every byte of it checked. It begins at `base` of `bytes`, which tensors that lie whole go on to share; `fetch`
    /// gives shared bytes.
    pub(crate) fn open(&self, reference: &Ref, bytes: &Arc<Vec<u8>>, base: usize, fetch: &Fetch<'_>) -> Result<Record> {
        let own = |range: &Range<u64>| bytes.get(shifted(range, base)).unwrap_or_default();
        let all = |share: Option<u32>, range: Range<u64>| match share {
            None => Ok(Cow::Borrowed(own(&range))),
            Some(_) => fetch(share, range),
        };
        let mut record = Record::default();
        for (tensor, places) in self.tensors() {
            let read = match places {
                Places::Whole(range) => {
                    self.check_whole(reference, tensor, range.start, 0, own(range))?;
                    Tensor::view(tensor.dtype, &tensor.shape, bytes.clone(), shifted(range, base))?
                }
                Places::Blocks(_) => {
                    let whole = self.assemble(reference, (tensor, places), 0..tensor.crcs.len(), &all)?;
                    Tensor::from_bytes(tensor.dtype, &tensor.shape, whole)?
                }
            };
            record.tensors.push(NamedTensor { name: tensor.name.clone(), tensor: read });
        }
        let meta = own(&self.meta);
        self.check_meta(reference, meta)?;
        record.meta = meta.to_vec();
        Ok(record)
    }

    /// Checks what the record has of its own; `bytes` begin with it.
    pub(crate) fn check_own(&self, reference: &Ref, bytes: &[u8]) -> Result<()> {
        if (bytes.len() as u64) < reference.len {
            return Err(Error::corrupt(&reference.pack, reference.offset, "cut short"));
        }
        let own = |range: Range<u64>| bytes.get(usize_range(&range)).unwrap_or_default();
        for (tensor, places) in self.tensors() {
            match places {
                Places::Whole(range) => self.check_whole(reference, tensor, range.start, 0, own(range.clone()))?,
                Places::Blocks(blocks) => {
                    let mut unpack = Unpack::default();
                    for (n, place) in blocks.iter().enumerate().filter(|(_, place)| place.share.is_none()) {
                        unpack.out.clear();
                        self.append(reference, (tensor, n), place, own(place.at..place.at + place.len), &mut unpack)?;
                    }
                }
            }
        }
        self.check_meta(reference, own(self.meta()))
    }

    /// Checks blocks, from the one of number `first` on, of a tensor that lies whole; they begin at `at` of the record.
    pub(crate) fn check_whole(
        &self,
        reference: &Ref,
        tensor: &HeadTensor,
        at: u64,
        first: usize,
        bytes: &[u8],
    ) -> Result<()> {
        let size = usize::try_from(self.head.block).unwrap_or(usize::MAX);
        let crcs = tensor.crcs.get(first..first + bytes.len().div_ceil(size)).unwrap_or_default();
        assert_eq!(crcs.len(), bytes.len().div_ceil(size), "a block without a checksum");
        let offsets = (reference.offset + at..).step_by(size);
        for ((block, crc), offset) in bytes.chunks(size).zip(crcs).zip(offsets) {
            check_block(reference, &tensor.name, offset, block, *crc)?;
        }
        Ok(())
    }
}

/// Makes blocks of what is stored, one behind the other.
#[derive(Default)]
pub(crate) struct Unpack {
    decompressor: Decompressor,
    pub(crate) out: Vec<u8>,
}

impl Unpack {
    /// Appends a block of `len` bytes in memory: `zstd` is the checksum of what is stored when that is compressed, `crc` that of the
    /// block.
    pub(crate) fn append(&mut self, stored: &[u8], zstd: Option<u32>, len: u64, crc: u32) -> Result<(), &'static str> {
        let start = self.out.len();
        match zstd {
            None => self.out.extend_from_slice(stored),
            Some(crc) if crc32c::crc32c(stored) == crc => {
                let len = usize::try_from(len).unwrap_or(0);
                let whole = self.decompressor.decompress(stored, len, &mut self.out);
                whole.ok_or("a compressed block that is not of its length")?;
            }
            Some(_) => return Err("wrong checksum of a compressed block"),
        }
        let block = self.out.get(start..).unwrap_or_default();
        if block.len() as u64 == len && crc32c::crc32c(block) == crc { Ok(()) } else { Err("wrong checksum") }
    }
}

/// The place of a block; own ones lie one behind the other from `at` on.
fn place_of(reference: &Ref, head: &Head, tensor: &HeadTensor, n: usize, block: &Block, at: &mut u64) -> Option<Place> {
    let whole = tensor.block_len(head.block, n);
    let len = block.zstd.map_or(whole, |zstd| u64::from(zstd.len));
    if block.zstd.is_some() && !(1..whole).contains(&len) {
        return None;
    }
    let zstd = block.zstd.map(|zstd| zstd.crc);
    match block.shared {
        Some(Shared { share, at }) => {
            reference.shares.get(share as usize)?;
            at.checked_add(len)?;
            Some(Place { share: Some(share), at, len, zstd })
        }
        None => {
            let start = *at;
            *at = at.checked_add(len)?;
            Some(Place { share: None, at: start, len, zstd })
        }
    }
}

fn shifted(range: &Range<u64>, base: usize) -> Range<usize> {
    let Range { start, end } = usize_range(range);
    base.saturating_add(start)..base.saturating_add(end)
}

pub(crate) fn usize_range(range: &Range<u64>) -> Range<usize> {
    let clip = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    clip(range.start)..clip(range.end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::head;

    /// The body of a head, as anyone could write it.
    type Body = (u64, Vec<(String, DType, Vec<u64>, Vec<u32>)>, u64, u32);

    fn decoded(body: &Body, len: u64) -> Result<Front, Bad> {
        let (bytes, crc) = frame::encode(head::MAGIC, &Salt::NONE, body);
        let r = Ref { pack: "w-0".into(), len, head: bytes.len() as u32, crc, ..Ref::default() };
        Front::decode(&r, &bytes)
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

    /// A record of one tensor of two blocks, its second one of 10 bytes, with this table.
    fn tabled(table: &Table, shares: usize, own: u64) -> Result<Front, Bad> {
        let body: Body = (BLOCK_BYTES, vec![("t".into(), DType::U8, vec![BLOCK_BYTES + 10], vec![0, 0])], 0, 0);
        let (mut bytes, crc) = frame::encode(head::MAGIC, &Salt::NONE, &body);
        let head = bytes.len() as u32;
        bytes.extend(table.encode(crc));
        let table = bytes.len() as u32 - head;
        let shares = vec![crate::reference::Share::default(); shares];
        let len = align(bytes.len() as u64) + own;
        Front::decode(&Ref { pack: "w-0".into(), offset: 0, len, head, crc, table, shares }, &bytes)
    }

    #[test]
    fn a_table_that_no_writer_writes_is_not_believed() {
        let own = Block { shared: None, zstd: None };
        let there = |share, at| Block { shared: Some(Shared { share, at }), zstd: None };
        let small = |len| Block { shared: None, zstd: Some(Zstd { len, crc: 0 }) };
        let of = |blocks: &[Block]| Table { tensors: vec![blocks.to_vec()] };
        assert!(tabled(&of(&[there(0, 64), own]), 1, 10).is_ok());
        assert!(tabled(&of(&[small(100), small(9)]), 0, 109).is_ok());
        assert!(tabled(&of(&[]), 0, BLOCK_BYTES + 10).is_ok(), "a tensor that lies whole");
        let bad = [
            (of(&[there(1, 64), own]), 1, 10),       // a place that the reference does not have
            (of(&[there(0, u64::MAX), own]), 1, 10), // behind the end of all numbers
            (of(&[there(0, 64), own]), 1, 11),       // another length
            (of(&[own]), 0, BLOCK_BYTES),            // a block is missing
            (of(&[small(0), own]), 0, 10),           // of nothing
            (of(&[own, small(10)]), 0, BLOCK_BYTES + 10), // compressed, and no shorter
            (of(&[small(BLOCK_BYTES as u32 + 1), own]), 0, BLOCK_BYTES + 11),
            (Table::default(), 0, BLOCK_BYTES + 10),
        ];
        for (table, shares, own) in bad {
            assert_eq!(tabled(&table, shares, own).err(), Some(Bad::Schema), "{table:?}");
        }
    }

    #[test]
    fn few_bytes_that_stand_for_more_than_a_record_may_have_are_not_believed() {
        // One shared block, a hundred thousand times over in each of many tensors.
        let blocks = 1usize << 17;
        let tensor = |i: usize| (i.to_string(), DType::U8, vec![blocks as u64 * BLOCK_BYTES], vec![0u32; blocks]);
        let decode = |tensors: usize| {
            let body: Body = (BLOCK_BYTES, (0..tensors).map(tensor).collect(), 0, 0);
            let (mut bytes, crc) = frame::encode(head::MAGIC, &Salt::NONE, &body);
            let block = Block { shared: Some(Shared { share: 0, at: 64 }), zstd: None };
            let head = bytes.len() as u32;
            bytes.extend(Table { tensors: vec![vec![block; blocks]; tensors] }.encode(crc));
            let table = bytes.len() as u32 - head;
            let len = align(bytes.len() as u64);
            let shares = vec![crate::reference::Share::default()];
            Front::decode(&Ref { pack: "w-0".into(), offset: 0, len, head, crc, table, shares }, &bytes).map(drop)
        };
        assert_eq!(decode(2), Ok(()));
        assert_eq!(decode(3), Err(Bad::Schema));
    }
}
