//! Reads a training state from tiles, into any layout.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use models::{HfPiece, ParamSpec, ParamStore};
use parallel::{DistOptimizer, Groups};
use tensor::{Backend, DType, Stream, Tensor};

use crate::agree::agree;
use crate::digest::sha256_hex;
use crate::disk::Disk;
use crate::dtype::{dtype_name, parse_dtype};
use crate::error::{Error, Result};
use crate::fingerprint::Fingerprint;
use crate::hf::convert;
use crate::meta::Meta;
use crate::publish::{PublishTo, publish_from};
use crate::rect::{Rect, copy_shared};
use crate::safetensors_file::SafetensorsFile;
use crate::save::{INDEX_FILE, META_FILE, STATE};
use crate::shard::{flat_rects, weights_digest};
use crate::tile_index::{TensorEntry, Tile, TileIndex};

/// Names spelled out in a message.
const NAMES_MAX: usize = 8;

pub(crate) fn spell_out(mut names: Vec<String>) -> Vec<String> {
    let more = names.len().saturating_sub(NAMES_MAX);
    names.truncate(NAMES_MAX);
    if more > 0 {
        names.push(format!("{more} more"));
    }
    names
}

/// An open checkpoint: its index checked, its tiles not yet.
#[derive(Debug)]
pub struct Checkpoint {
    folder: PathBuf,
    index: TileIndex,
    meta: Meta,
    files: BTreeMap<String, SafetensorsFile>,
    /// The tile read last. A flat range cuts a tile into up to three rectangles, one after the other.
    last: Mutex<Option<ReadTile>>,
}

/// A tile that was read and checked.
#[derive(Debug)]
struct ReadTile {
    file: String,
    key: String,
    bytes: Arc<Vec<u8>>,
}

impl Checkpoint {
    /// Opens a folder. `index_sha256` is what the commit record says; without it (a person looking at a folder) only
    /// the inner consistency is checked.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::IndexDigest`], [`Error::Damaged`], [`Error::Format`], [`Error::Coverage`].
    pub fn open(folder: &Path, index_sha256: Option<&str>) -> Result<Checkpoint> {
        let path = folder.join(INDEX_FILE);
        let bytes = fs::read(&path).map_err(|e| Error::io("read", &path, e))?;
        let got = sha256_hex(&bytes);
        if let Some(expected) = index_sha256.filter(|e| **e != got) {
            return Err(Error::IndexDigest { path, expected: expected.to_owned(), got });
        }
        let index = TileIndex::parse(&path, &bytes)?;
        let path = folder.join(META_FILE);
        let bytes = fs::read(&path).map_err(|e| Error::io("read", &path, e))?;
        if sha256_hex(&bytes) != index.meta_sha256 {
            return Err(Error::damaged(&path, "it is not the one the index was written with"));
        }
        let meta = serde_json::from_slice(&bytes).map_err(|e| Error::damaged(&path, e.to_string()))?;
        let mut files = BTreeMap::new();
        for tile in index.tensors.values().flat_map(|t| &t.tiles) {
            if !files.contains_key(&tile.file) {
                files.insert(tile.file.clone(), SafetensorsFile::open(&folder.join(&tile.file))?);
            }
        }
        let checkpoint = Checkpoint { folder: folder.to_owned(), index, meta, files, last: Mutex::new(None) };
        checkpoint.check_tiles()?;
        Ok(checkpoint)
    }

    /// Everything of the state that is not a tensor.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// What lies where.
    pub fn index(&self) -> &TileIndex {
        &self.index
    }

    /// Every tile is in its file, with the shape and type the index says.
    fn check_tiles(&self) -> Result<()> {
        for (name, entry) in &self.index.tensors {
            let dtype = entry.dtype(name)?;
            for tile in &entry.tiles {
                let file = self.file(tile)?;
                let Some(info) = file.tensors().get(&tile.key) else {
                    let (path, names) = (file.path().to_owned(), vec![format!("tile {}", tile.key)]);
                    return Err(Error::Missing { path, names, hint: "; this checkpoint is damaged" });
                };
                if info.shape != tile.shape || info.dtype != dtype {
                    let what = format!(
                        "tile {} is {} {:?}, the index says {} {:?}",
                        tile.key,
                        dtype_name(info.dtype),
                        info.shape,
                        entry.dtype,
                        tile.shape
                    );
                    return Err(Error::Mismatch { path: file.path().to_owned(), tensor: name.clone(), what });
                }
            }
        }
        Ok(())
    }

    fn file(&self, tile: &Tile) -> Result<&SafetensorsFile> {
        self.files
            .get(&tile.file)
            .ok_or_else(|| Error::damaged(&self.folder.join(&tile.file), "the index names it, but it was not opened"))
    }

    fn read_tile(&self, tile: &Tile, out: &mut [u8]) -> Result<()> {
        let file = self.file(tile)?;
        file.read_rect(&tile.key, &tile.shape, &Rect::full(&tile.shape), out)?;
        let got = crc32c::crc32c(out);
        let path = || file.path().to_owned();
        let expected = u32::from_str_radix(&tile.crc32c, 16)
            .map_err(|_| Error::damaged(&path(), format!("'{}' is no checksum", tile.crc32c)))?;
        if got != expected {
            return Err(Error::Checksum { path: path(), key: tile.key.clone(), expected, got });
        }
        Ok(())
    }

    fn whole_tile(&self, tile: &Tile, len: usize) -> Result<Arc<Vec<u8>>> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(read) = last.as_ref().filter(|r| (&r.file, &r.key) == (&tile.file, &tile.key)) {
            return Ok(read.bytes.clone());
        }
        let mut bytes = vec![0; len];
        self.read_tile(tile, &mut bytes)?;
        let bytes = Arc::new(bytes);
        *last = Some(ReadTile { file: tile.file.clone(), key: tile.key.clone(), bytes: bytes.clone() });
        Ok(bytes)
    }

    fn entry(&self, name: &str, shape: &[usize], dtype: DType) -> Result<&TensorEntry> {
        let Some(entry) = self.index.tensors.get(name) else {
            return Err(Error::Missing { path: self.folder.clone(), names: vec![name.to_owned()], hint: "" });
        };
        if entry.shape != shape || entry.dtype(name)? != dtype {
            let what =
                format!("it is {} {:?}, the model has {} {shape:?}", entry.dtype, entry.shape, dtype_name(dtype));
            return Err(Error::Mismatch { path: self.folder.clone(), tensor: name.to_owned(), what });
        }
        Ok(entry)
    }

    /// Reads rectangle `part` of a tensor, row-major. Every tile it touches is read whole, by one read, and checked.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Mismatch`], [`Error::Checksum`], [`Error::Io`].
    pub fn read(&self, name: &str, shape: &[usize], dtype: DType, part: &Rect) -> Result<Vec<u8>> {
        let entry = self.entry(name, shape, dtype)?;
        let mut out = vec![0; part.numel() * dtype.size()];
        for tile in &entry.tiles {
            let rect = tile.rect();
            if rect == *part {
                self.read_tile(tile, &mut out)?;
                break;
            }
            if rect.intersect(part).is_some() {
                let bytes = self.whole_tile(tile, rect.numel() * dtype.size())?;
                copy_shared(&bytes, &rect, &mut out, part, dtype.size());
            }
        }
        Ok(out)
    }

    /// Reads and checks every tile.
    ///
    /// # Errors
    /// The first fault: [`Error::Checksum`], [`Error::Io`].
    pub fn verify(&self) -> Result<u64> {
        let mut bytes = 0;
        let mut buffer = Vec::new();
        let mut seen = std::collections::BTreeSet::new();
        for (name, entry) in &self.index.tensors {
            let size = entry.dtype(name)?.size();
            for tile in &entry.tiles {
                if seen.insert((tile.file.as_str(), tile.key.as_str())) {
                    buffer.resize(tile.rect().numel() * size, 0);
                    self.read_tile(tile, &mut buffer)?;
                    bytes += buffer.len() as u64;
                }
            }
        }
        Ok(bytes)
    }

    /// Names of tensors that a training state of these parameters needs and this checkpoint lacks.
    fn missing(&self, specs: &[ParamSpec], prefixes: &[&str]) -> Vec<String> {
        let names = specs.iter().flat_map(|s| prefixes.iter().map(move |p| format!("{p}{}", s.name)));
        names.filter(|n| !self.index.tensors.contains_key(n)).collect()
    }

    fn require(&self, specs: &[ParamSpec], prefixes: &[&str], hint: &'static str) -> Result<()> {
        let missing = self.missing(specs, prefixes);
        if missing.is_empty() {
            return Ok(());
        }
        Err(Error::Missing { path: self.folder.clone(), names: spell_out(missing), hint })
    }

    /// Fills the flat elements `flat` of `target` (which begins at flat element `base`) from tensors `prefix` + name.
    fn fill(
        &self,
        be: &dyn Backend,
        store: &ParamStore,
        prefix: &str,
        flat: &Range<usize>,
        base: usize,
        target: &Tensor,
    ) -> Result<()> {
        for part in flat_rects(store, flat, usize::MAX) {
            let spec = &store.specs()[part.param];
            let name = format!("{prefix}{}", spec.name);
            let bytes = self.read(&name, &spec.shape, target.dtype(), &part.rect)?;
            be.upload(Stream::COMPUTE, &target.flat(part.flat.start - base, part.flat.len())?, &bytes)?;
        }
        Ok(())
    }

    /// Fills a store with the weights alone, for a run that starts its optimizer afresh.
    ///
    /// # Errors
    /// [`Error::Fingerprint`], [`Error::Missing`], [`Error::Mismatch`], [`Error::Checksum`], [`Error::Io`].
    pub fn load_weights(&self, fingerprint: &Fingerprint, be: &dyn Backend, store: &ParamStore) -> Result<()> {
        self.meta.position.fingerprint.check(&self.folder, fingerprint)?;
        self.require(store.specs(), &[""], "; is it a checkpoint of this model?")?;
        let all = 0..store.layout().len;
        if self.meta.weights_dtype == dtype_name(store.dtype()) {
            return self.fill(be, store, "", &all, 0, store.flat());
        }
        // Another compute type: from the masters, as the optimizer would.
        let acc = Tensor::zeros(be, store.dtype().accumulator(), &[all.len()], tensor::Tag::Work)?;
        self.fill(be, store, STATE[0], &all, 0, &acc)?;
        Ok(be.cast(Stream::COMPUTE, &tensor::ops::Cast { src: &acc, dst: store.flat() })?)
    }

    /// Writes the weights as a Hugging Face folder, tensor by tensor.
    ///
    /// # Errors
    /// As [`crate::publish::publish`].
    pub fn export(&self, disk: &dyn Disk, be: &dyn Backend, specs: &[ParamSpec], to: &PublishTo) -> Result<()> {
        self.require(specs, &[""], "; is it a checkpoint of this model?")?;
        let saved = parse_dtype(&self.meta.weights_dtype)
            .ok_or_else(|| Error::damaged(&self.folder.join(META_FILE), "its type of weights is unknown"))?;
        publish_from(disk, to, specs, &mut |spec: &ParamSpec, piece: &HfPiece, dtype: DType| {
            let bytes = self.read(&spec.name, &spec.shape, saved, &piece.rect)?;
            convert(be, bytes, saved, dtype)
        })
    }
}

/// Restores weights, masters and moments from `folder`, whatever layout saved them. Every rank takes part; each reads
/// what it owns.
///
/// # Errors
/// [`Error::Fingerprint`] if it belongs to another model or tokenizer; [`Error::Missing`] names every absent tensor,
/// moments included; [`Error::IndexDigest`], [`Error::Checksum`], [`Error::Damaged`], [`Error::Io`]; [`Error::Rank`]
/// if another rank failed. After an error, store and optimizer are in no usable state.
pub fn load(
    folder: &Path,
    index_sha256: Option<&str>,
    fingerprint: &Fingerprint,
    groups: &Groups,
    be: &dyn Backend,
    store: &ParamStore,
    optimizer: &mut DistOptimizer,
) -> Result<Meta> {
    let world = &*groups.world;
    let meta = agree(world, load_rank(folder, index_sha256, fingerprint, be, store, optimizer))?;
    agree(world, optimizer.weights_from_masters().map_err(|e| Error::Optimizer(e.to_string())))?;
    optimizer.set_optimizer_steps(meta.optimizer_steps);
    if meta.weights_dtype == dtype_name(store.dtype()) {
        let got = weights_digest(world, be, store, optimizer.owned().map(|p| p.flat.clone()))?;
        if got != meta.weights_digest {
            let what = format!("the weights digest is {got}, {META_FILE} says {}", meta.weights_digest);
            return Err(Error::damaged(folder, what));
        }
    }
    Ok(meta)
}

fn load_rank(
    folder: &Path,
    index_sha256: Option<&str>,
    fingerprint: &Fingerprint,
    be: &dyn Backend,
    store: &ParamStore,
    optimizer: &DistOptimizer,
) -> Result<Meta> {
    let checkpoint = Checkpoint::open(folder, index_sha256)?;
    checkpoint.meta.position.fingerprint.check(folder, fingerprint)?;
    let hint = "; the optimizer's state is part of a checkpoint, and is never made up";
    checkpoint.require(store.specs(), &STATE, hint)?;
    for piece in optimizer.owned() {
        for (prefix, target) in STATE.iter().zip([&piece.master, &piece.m, &piece.v]) {
            checkpoint.fill(be, store, prefix, &piece.flat, piece.flat.start, target)?;
        }
    }
    Ok(checkpoint.meta)
}
