//! A record as it will lie: what is in front of it, and the bytes of its own.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::compression::{Compression, Compressor};
use crate::extent::Slot;
use crate::frame::{self, Salt, align};
use crate::front::{Block, Shared, Table, Unpack, Zstd};
use crate::head::{self, BLOCK_BYTES, Head, HeadTensor};
use crate::limits::{HEADER_BYTES_MAX, RECORD_BYTES_MAX, SHARES_MAX, at_most};
use crate::record::{self, Record};
use crate::reference::Share;
use crate::store::Store;
use crate::{Error, Result};

/// A record ready to be written anywhere.
#[derive(Debug)]
pub(crate) struct Laid<'a> {
    /// Head and table.
    pub(crate) front: Vec<u8>,
    /// Own bytes of each tensor.
    pub(crate) tensors: Vec<Vec<Cow<'a, [u8]>>>,
    pub(crate) meta: Cow<'a, [u8]>,
    pub(crate) slot: Slot,
}

/// A tensor to be laid.
#[derive(Debug)]
pub(crate) struct Content<'a> {
    pub(crate) head: HeadTensor,
    /// Its blocks, each of [`BLOCK_BYTES`] in memory but for the last.
    pub(crate) blocks: Vec<Source<'a>>,
}

/// Where the bytes of a block come from.
#[derive(Clone, Debug)]
pub(crate) enum Source<'a> {
    /// To be written as they are, or smaller.
    New(Cow<'a, [u8]>),
    /// To be written as they are: they are compressed, and this is their checksum.
    Zstd(Cow<'a, [u8]>, u32),
    /// In a pack already.
    Kept(Kept),
}

/// A block that lies in a pack.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Kept {
    pub(crate) pack: Arc<str>,
    pub(crate) at: u64,
    /// Bytes that are stored.
    pub(crate) len: u64,
    /// Their checksum, when they are compressed.
    pub(crate) zstd: Option<u32>,
}

impl Kept {
    /// The block as it is stored, to be written elsewhere; it is checked.
    pub(crate) fn copied(
        &self,
        store: &Store,
        (tensor, n): (&HeadTensor, usize),
        unpack: &mut Unpack,
    ) -> Result<Source<'static>> {
        let stored = self.read(store, (tensor, n), unpack)?;
        Ok(match self.zstd {
            Some(crc) => Source::Zstd(Cow::Owned(stored), crc),
            None => Source::New(Cow::Owned(stored)),
        })
    }

    /// Reads what is stored, and leaves what it is in memory in `unpack`.
    pub(crate) fn read(
        &self,
        store: &Store,
        (tensor, n): (&HeadTensor, usize),
        unpack: &mut Unpack,
    ) -> Result<Vec<u8>> {
        let stored = store.read_exact(&self.pack, self.at, self.len)?;
        unpack.out.clear();
        let crc = tensor.crcs.get(n).copied().unwrap_or_default();
        let bad = |what: &str| Error::corrupt(self.pack.to_string(), self.at, format!("{what} in {}", tensor.name));
        unpack.append(&stored, self.zstd, tensor.block_len(BLOCK_BYTES, n), crc).map_err(bad)?;
        Ok(stored)
    }
}

/// Lets a record share blocks of [`SHARES_MAX`] packs at most: those of the packs that have the fewest bytes of it are copied.
pub(crate) fn share_of_few(store: &Store, contents: &mut [Content<'_>]) -> Result<()> {
    let mut bytes: BTreeMap<Arc<str>, u64> = BTreeMap::new();
    for block in contents.iter().flat_map(|content| &content.blocks) {
        if let Source::Kept(kept) = block {
            *bytes.entry(kept.pack.clone()).or_default() += kept.len;
        }
    }
    let mut packs: Vec<(u64, Arc<str>)> = bytes.into_iter().map(|(pack, bytes)| (bytes, pack)).collect();
    packs.sort_unstable_by(|a, b| b.cmp(a));
    let few: BTreeSet<Arc<str>> = packs.into_iter().skip(SHARES_MAX).map(|(_, pack)| pack).collect();
    let mut unpack = Unpack::default();
    for Content { head, blocks } in contents.iter_mut().filter(|_| !few.is_empty()) {
        for (n, block) in blocks.iter_mut().enumerate() {
            if let Source::Kept(kept) = &*block
                && few.contains(&kept.pack)
            {
                *block = kept.copied(store, (head, n), &mut unpack)?;
            }
        }
    }
    Ok(())
}

impl<'a> Content<'a> {
    /// A tensor of new bytes.
    pub(crate) fn new(head: HeadTensor, bytes: &'a [u8]) -> Self {
        let blocks = bytes.chunks(BLOCK_BYTES as usize).map(|block| Source::New(Cow::Borrowed(block))).collect();
        Content { head, blocks }
    }
}

impl<'a> Laid<'a> {
    /// Checks the limits of a record and computes its checksums.
    pub(crate) fn of(record: &'a Record, compression: Compression) -> Result<Self> {
        record.check()?;
        let content = |t: &'a record::NamedTensor| {
            let bytes = t.tensor.bytes();
            Content::new(HeadTensor::of(&t.name, t.tensor.dtype(), t.tensor.shape(), bytes), bytes)
        };
        let contents = record.tensors.iter().map(content).collect();
        Self::new(Cow::Borrowed(&record.meta), contents, record.compression.unwrap_or(compression))
    }

    /// A record of these tensors.
    pub(crate) fn new(meta: Cow<'a, [u8]>, contents: Vec<Content<'a>>, compression: Compression) -> Result<Self> {
        record::check(&meta, contents.iter().map(|content| content.head.name.as_str()))?;
        let mut shares = Shares::of(&contents);
        at_most("packs that a record shares blocks of", shares.0.len() as u64, SHARES_MAX as u64)?;
        let mut compressor = Compressor::new(compression);
        let mut heads = Vec::with_capacity(contents.len());
        let mut tensors = Vec::with_capacity(contents.len());
        let mut table = Table::default();
        for Content { head, blocks } in contents {
            assert_eq!(head.crcs.len(), blocks.len(), "a checksum for each block");
            let (mut own, mut places) = (Vec::with_capacity(blocks.len()), Vec::with_capacity(blocks.len()));
            for block in blocks {
                places.push(lay(block, &mut compressor, &mut shares, &mut own));
            }
            // As if it were written whole.
            let whole = places.iter().all(|place| place.shared.is_none() && place.zstd.is_none());
            table.tensors.push(if whole { Vec::new() } else { places });
            tensors.push(own);
            heads.push(head);
        }
        let (meta_len, meta_crc) = (meta.len() as u64, crc32c::crc32c(&meta));
        let content = heads.iter().fold(meta_len, |sum, head| sum.saturating_add(head.len()));
        at_most("bytes of a record", content, RECORD_BYTES_MAX)?;
        let head = Head { block: BLOCK_BYTES, tensors: heads, meta_len, meta_crc };
        let (mut front, crc) = frame::encode(head::MAGIC, &Salt::NONE, &head);
        let head_len = checked_len("bytes of a record's head", &front)?;
        let table = match table.tensors.iter().all(Vec::is_empty) {
            true => Vec::new(),
            false => table.encode(crc),
        };
        let table_len = checked_len("bytes of a record's table", &table)?;
        front.extend_from_slice(&table);
        let own = |own: &Vec<Cow<'_, [u8]>>| own.iter().map(|bytes| bytes.len() as u64).sum::<u64>();
        let len = tensors.iter().fold(front.len() as u64, |at, tensor| align(at) + own(tensor)) + meta_len;
        at_most("bytes of a record", len, RECORD_BYTES_MAX)?;
        let slot = Slot { len, head: head_len, crc, table: table_len, shares: shares.into_list() };
        Ok(Laid { front, tensors, meta, slot })
    }
}

fn checked_len(what: &'static str, bytes: &[u8]) -> Result<u32> {
    at_most(what, bytes.len() as u64, HEADER_BYTES_MAX)?;
    u32::try_from(bytes.len()).map_err(|_| Error::Limit { what, value: bytes.len() as u64, max: HEADER_BYTES_MAX })
}

/// Gives the place of a block, and adds what is to be written of it to `own`.
fn lay<'a>(block: Source<'a>, compressor: &mut Compressor, shares: &mut Shares, own: &mut Vec<Cow<'a, [u8]>>) -> Block {
    let small = |bytes: &[u8], crc| Some(Zstd { len: u32::try_from(bytes.len()).unwrap_or(u32::MAX), crc });
    let (bytes, zstd) = match block {
        Source::Kept(kept) => {
            let zstd = kept.zstd.map(|crc| Zstd { len: u32::try_from(kept.len).unwrap_or(u32::MAX), crc });
            return Block { shared: Some(shares.share(&kept)), zstd };
        }
        Source::Zstd(bytes, crc) => {
            let zstd = small(&bytes, crc);
            (bytes, zstd)
        }
        Source::New(bytes) => match compressor.compress(&bytes) {
            Some(compressed) => {
                let zstd = small(&compressed, crc32c::crc32c(&compressed));
                (Cow::Owned(compressed), zstd)
            }
            None => (bytes, None),
        },
    };
    own.push(bytes);
    Block { shared: None, zstd }
}

/// Packs of which blocks are shared, by name: their number, and the bytes so far.
struct Shares(BTreeMap<Arc<str>, (u32, u64)>);

impl Shares {
    fn of(contents: &[Content<'_>]) -> Self {
        let mut shares = BTreeMap::new();
        for block in contents.iter().flat_map(|content| &content.blocks) {
            if let Source::Kept(kept) = block
                && !shares.contains_key(&kept.pack)
            {
                shares.insert(kept.pack.clone(), (0, 0));
            }
        }
        (0..).zip(shares.values_mut()).for_each(|(n, (number, _))| *number = n);
        Shares(shares)
    }

    fn share(&mut self, kept: &Kept) -> Shared {
        let Some((number, bytes)) = self.0.get_mut(&kept.pack) else { unreachable!("all were collected before") };
        *bytes += kept.len;
        Shared { share: *number, at: kept.at }
    }

    fn into_list(self) -> Vec<Share> {
        self.0.into_iter().map(|(pack, (_, bytes))| Share { pack: pack.to_string(), bytes }).collect()
    }
}
