//! A record made of an older one: what did not change is not written again.
//!
//! The new record shares the blocks ([`crate::BLOCK_BYTES`]) of the older one that did not change: it says where they lie, and only
//! the others are written. Its reference names the packs that it shares blocks of ([`Ref::shares`]), and whoever holds the
//! reference holds them all, so the older record can be let go at any time. Where a block lies is said directly, never by way of
//! another record: after a thousand updates a read is no longer a chain than after one. Blocks of more than
//! [`crate::limits::SHARES_MAX`] packs are not shared: those of the packs that have the fewest are copied.

use std::borrow::Cow;
use std::ops::Range;

use crate::compression::Compression;
use crate::front::{Front, Places, Unpack, usize_range};
use crate::head::{BLOCK_BYTES, HeadTensor};
use crate::laid::{Content, Kept, Laid, Source, share_of_few};
use crate::record::no_tensor;
use crate::store::Store;
use crate::tensor::Tensor;
use crate::{Error, Ref, Result};

/// A record to publish that shares what it can with an older one. Made by [`Store::update`], published by
/// [`crate::Writer::publish_updates`].
#[derive(Clone, Debug)]
pub struct Update {
    store: Store,
    meta: Vec<u8>,
    tensors: Vec<Changing>,
    compression: Option<Compression>,
}

#[derive(Clone, Debug)]
struct Changing {
    name: String,
    body: Body,
}

#[derive(Clone, Debug)]
enum Body {
    /// Of one block or none, or given whole.
    Whole(Tensor),
    /// Of several, some of which lie in packs.
    Blocks { head: HeadTensor, blocks: Vec<Block> },
}

#[derive(Clone, Debug)]
enum Block {
    Kept(Kept),
    New(Vec<u8>),
}

impl Store {
    /// Begins a record that is made of `base`. Reads what is in front of it, its meta, and tensors that are shorter than a block.
    ///
    /// ```
    /// # use straw::{Record, Store, Tensor};
    /// # let store = Store::open(std::sync::Arc::new(straw::SimFs::new(1)), "/packs")?;
    /// # let writer = store.writer("w")?;
    /// let weights = Tensor::from_vec(&[1000, 256], vec![0f32; 256_000])?;
    /// let first = writer.publish("step-0", &[Record::new("0").with("weights", weights)])?.remove(0);
    /// let mut update = store.update(&first)?;
    /// update.set_rows("weights", 10..11, &Tensor::from_vec(&[1, 256], vec![1f32; 256])?)?;
    /// let second = writer.publish_updates("step-1", &[update])?.remove(0);
    /// assert!(second.len < first.len / 10);
    /// assert_eq!(store.read_rows(&second, "weights", 10..12)?.to_vec::<f32>()?[255..257], [1.0, 0.0]);
    /// # Ok::<(), straw::Error>(())
    /// ```
    /// The base must be as durable as the new record is to be: one that was published with
    /// [`crate::Durability::Process`] may be lost with the machine, and its blocks with it.
    ///
    /// # Errors
    /// As [`Store::read_meta`].
    pub fn update(&self, base: &Ref) -> Result<Update> {
        let front = self.front(base)?;
        let mut tensors = Vec::new();
        for (head, places) in front.tensors() {
            let shares = head.crcs.len() > 1 && front.head.block == BLOCK_BYTES;
            let body = if shares {
                let blocks = front.places_of(head, places).map(|place| {
                    let (pack, at) = front.absolute(base, &place);
                    Block::Kept(Kept { pack: pack.into(), at, len: place.len, zstd: place.zstd })
                });
                Body::Blocks { head: head.clone(), blocks: blocks.collect() }
            } else {
                Body::Whole(self.whole_tensor(base, &front, (head, places))?)
            };
            tensors.push(Changing { name: head.name.clone(), body });
        }
        Ok(Update { store: self.clone(), meta: self.read_meta(base)?, tensors, compression: None })
    }

    fn whole_tensor(&self, r: &Ref, front: &Front, (head, places): (&HeadTensor, &Places)) -> Result<Tensor> {
        let bytes = front.assemble(r, (head, places), 0..head.crcs.len(), &self.fetch(r))?;
        Tensor::from_bytes(head.dtype, &head.shape, bytes)
    }
}

impl Update {
    /// Replaces the meta.
    pub fn set_meta(&mut self, meta: impl Into<Vec<u8>>) {
        self.meta = meta.into();
    }

    /// Replaces the rows `rows` (along the first dimension) of the tensor `name`; `values` has the shape `[rows.len(), ...]`. Reads the
    /// blocks that are changed in part.
    ///
    /// # Errors
    /// [`Error::Tensor`] for values of another type or shape, or rows outside the tensor; as [`Store::read_rows`] otherwise, and
    /// then some of the rows may be replaced and others not: drop the update.
    pub fn set_rows(&mut self, name: &str, rows: Range<u64>, values: &Tensor) -> Result<()> {
        let store = self.store.clone();
        let body = self.body(name)?;
        let (dtype, shape) = body.kind();
        let count = shape.first().copied().unwrap_or(0);
        let bad = |what: String| Err(Error::Tensor { name: name.to_owned(), what });
        if rows.start > rows.end || rows.end > count {
            return bad(format!("rows {rows:?} are outside its {count} rows"));
        }
        let want: Vec<u64> = std::iter::once(rows.end - rows.start).chain(shape.iter().skip(1).copied()).collect();
        if (values.dtype(), values.shape()) != (dtype, &want[..]) {
            return bad(format!(
                "is {dtype:?}, and {want:?} of these rows; the values are {:?} of {:?}",
                values.dtype(),
                values.shape()
            ));
        }
        let row_bytes = (values.bytes().len() as u64).checked_div(rows.end - rows.start).unwrap_or(0);
        body.patch(&store, rows.start * row_bytes, values.bytes())
    }

    /// Replaces the tensor `name`, or adds it. Of one that has the same type and shape the blocks that are the same stay shared; those
    /// whose checksum is the same are read to make sure.
    ///
    /// # Errors
    /// As [`Store::read_rows`].
    pub fn set(&mut self, name: &str, tensor: &Tensor) -> Result<()> {
        let store = self.store.clone();
        let Some(known) = self.tensors.iter_mut().find(|t| t.name == name) else {
            self.tensors.push(Changing { name: name.to_owned(), body: Body::Whole(tensor.clone()) });
            return Ok(());
        };
        match &mut known.body {
            Body::Blocks { head, blocks } if (head.dtype, &head.shape[..]) == (tensor.dtype(), tensor.shape()) => {
                let new = tensor.bytes().chunks(BLOCK_BYTES as usize);
                let mut unpack = Unpack::default();
                for ((n, block), new) in blocks.iter_mut().enumerate().zip(new) {
                    let crc = crc32c::crc32c(new);
                    let same = match &*block {
                        Block::Kept(kept) if head.crcs.get(n) == Some(&crc) => {
                            kept.read(&store, (head, n), &mut unpack)?;
                            unpack.out == new
                        }
                        _ => false,
                    };
                    if !same {
                        *block = Block::New(new.to_vec());
                        head.crcs.iter_mut().skip(n).take(1).for_each(|place| *place = crc);
                    }
                }
            }
            body => *body = Body::Whole(tensor.clone()),
        }
        Ok(())
    }

    /// Says how the blocks that are written are to be stored, whatever the store's options say. Shared ones stay as they are.
    pub fn compressed(mut self, how: Compression) -> Self {
        self.compression = Some(how);
        self
    }

    /// Bytes of tensors that publishing it will share, as they are stored, and bytes that it will write, before they are
    /// compressed.
    pub fn shared_and_new(&self) -> (u64, u64) {
        let (mut shared, mut new) = (0, 0);
        for changing in &self.tensors {
            match &changing.body {
                Body::Whole(tensor) => new += tensor.bytes().len() as u64,
                Body::Blocks { blocks, .. } => blocks.iter().for_each(|block| match block {
                    Block::Kept(kept) => shared += kept.len,
                    Block::New(bytes) => new += bytes.len() as u64,
                }),
            }
        }
        (shared, new)
    }

    fn body(&mut self, name: &str) -> Result<&mut Body> {
        let names: Vec<String> = self.tensors.iter().map(|t| t.name.clone()).collect();
        let found = self.tensors.iter_mut().find(|t| t.name == name);
        found.map(|t| &mut t.body).ok_or_else(|| no_tensor(name, names.iter().map(String::as_str)))
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// The record as it will lie. Reads blocks that lie in too many packs to be shared.
    pub(crate) fn lay(&self, compression: Compression) -> Result<Laid<'_>> {
        let mut contents: Vec<Content<'_>> = self.tensors.iter().map(Changing::content).collect();
        share_of_few(&self.store, &mut contents)?;
        Laid::new(Cow::Borrowed(&self.meta), contents, self.compression.unwrap_or(compression))
    }
}

impl Changing {
    fn content(&self) -> Content<'_> {
        match &self.body {
            Body::Whole(t) => Content::new(HeadTensor::of(&self.name, t.dtype(), t.shape(), t.bytes()), t.bytes()),
            Body::Blocks { head, blocks } => {
                let blocks = blocks.iter().map(|block| match block {
                    Block::New(bytes) => Source::New(Cow::Borrowed(bytes)),
                    Block::Kept(kept) => Source::Kept(kept.clone()),
                });
                Content { head: head.clone(), blocks: blocks.collect() }
            }
        }
    }
}

impl Body {
    fn kind(&self) -> (crate::DType, &[u64]) {
        match self {
            Body::Whole(tensor) => (tensor.dtype(), tensor.shape()),
            Body::Blocks { head, .. } => (head.dtype, &head.shape),
        }
    }

    /// Writes `values` over the bytes from `start` on.
    fn patch(&mut self, store: &Store, start: u64, values: &[u8]) -> Result<()> {
        let end = start + values.len() as u64;
        match self {
            Body::Whole(tensor) => {
                let mut bytes = tensor.bytes().to_vec();
                put(&mut bytes, &(start..end), values);
                *tensor = Tensor::from_bytes(tensor.dtype(), tensor.shape(), bytes)?;
            }
            Body::Blocks { head, blocks } => {
                let first = start / BLOCK_BYTES;
                let places = (first..).zip(blocks.iter_mut().skip(usize::try_from(first).unwrap_or(usize::MAX)));
                let mut unpack = Unpack::default();
                for (n, block) in places.take_while(|(n, _)| n * BLOCK_BYTES < end) {
                    let (at, n) = (n * BLOCK_BYTES, usize::try_from(n).unwrap_or(usize::MAX));
                    let len = head.block_len(BLOCK_BYTES, n);
                    // What of the values goes into this block, and where.
                    let (from, to) = (start.max(at), end.min(at + len));
                    let new = values.get(usize_range(&(from - start..to - start))).unwrap_or_default();
                    let mut bytes = match block {
                        Block::New(bytes) => std::mem::take(bytes),
                        Block::Kept(_) if to - from == len => vec![0; new.len()],
                        Block::Kept(kept) => {
                            kept.read(store, (head, n), &mut unpack)?;
                            std::mem::take(&mut unpack.out)
                        }
                    };
                    put(&mut bytes, &(from - at..to - at), new);
                    let crc = crc32c::crc32c(&bytes);
                    head.crcs.iter_mut().skip(n).take(1).for_each(|place| *place = crc);
                    *block = Block::New(bytes);
                }
            }
        }
        Ok(())
    }
}

fn put(bytes: &mut [u8], range: &Range<u64>, values: &[u8]) {
    let place = bytes.get_mut(usize_range(range)).unwrap_or_default();
    place.copy_from_slice(values);
}
