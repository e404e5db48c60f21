//! Writes a training state as tiles.
//!
//! Order: folder, then every rank its files (synced, and the folder synced), then `meta.json`, then `index.json`, each
//! by rename. Until the index is there, the folder is nothing. Whether a folder *counts* is not decided here: the
//! digest of its index goes into the run's journal, and only what the journal names is ever loaded.

use std::collections::BTreeMap;
use std::path::Path;

use models::ParamStore;
use parallel::{DistOptimizer, Groups};
use tensor::{Backend, Tensor};

use crate::agree::{agree, exchange};
use crate::digest::{WeightsDigest, sha256_hex};
use crate::disk::{Disk, create_dir_durably, write_atomically};
use crate::dtype::dtype_name;
use crate::error::{Error, Result};
use crate::meta::{Meta, Position};
use crate::safetensors_file::{Entry, SafetensorsWriter};
use crate::shard::{FlatRect, download, flat_rects, partial_digest, speaks};
use crate::tile_index::{FORMAT, TensorEntry, Tile, TileIndex};

/// Names of the two files beside the tiles.
pub const INDEX_FILE: &str = "index.json";
/// See [`Meta`].
pub const META_FILE: &str = "meta.json";

/// A tile is read and checked whole, so this bounds what a small read costs.
const TILE_BYTES_MAX: usize = 16 << 20;

/// Prefixes of the tensors of the optimizer, in the order of the file.
pub(crate) const STATE: [&str; 3] = ["master.", "m.", "v."];

/// A completed save.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saved {
    /// SHA-256 of `index.json`: what a commit record must name.
    pub index_sha256: String,
    /// Digest of the weights in it.
    pub weights_digest: String,
    /// Bytes of all tiles of all ranks.
    pub bytes: u64,
}

/// What one rank tells the others: its tiles, its part of the weights digest, its bytes.
#[derive(serde::Serialize, serde::Deserialize)]
struct Written {
    tensors: BTreeMap<String, TensorEntry>,
    digest: String,
    bytes: u64,
}

/// Saves weights, masters and moments to `folder`. Every rank takes part; each writes what it owns, once.
///
/// # Errors
/// [`Error::Exists`] if the folder is complete already; [`Error::Io`]; [`Error::Rank`] if another rank failed. After
/// an error there is no index, so the folder is nothing, and what was written of it is removed: on a full disk its half
/// would be in the way of the next try, which may use the same folder.
pub fn save(
    disk: &dyn Disk,
    folder: &Path,
    groups: &Groups,
    be: &dyn Backend,
    store: &ParamStore,
    optimizer: &DistOptimizer,
    position: &Position,
) -> Result<Saved> {
    let world = &*groups.world;
    let first = world.rank() == 0;
    agree(world, if first { begin(disk, folder) } else { Ok(()) })?;
    let saved = write(disk, folder, groups, be, store, optimizer, position);
    // A rank that is lost may still be writing; what it leaves is swept later.
    let all_there = !matches!(saved, Err(Error::Tensor(_)));
    if saved.is_err() && all_there && first {
        drop(disk.remove_dir_all(folder));
    }
    saved
}

/// Bytes of the tiles that a save writes, all ranks together. The volume must hold one more than it keeps.
pub fn bytes_of_save(store: &ParamStore) -> u64 {
    let elements: u64 = store.specs().iter().map(|spec| spec.shape.iter().product::<usize>() as u64).sum();
    let state = STATE.len() * store.dtype().accumulator().size();
    // Weights in the accumulator's type are the masters, and are not written twice.
    let weights = if store.dtype() == store.dtype().accumulator() { 0 } else { store.dtype().size() };
    elements * (state + weights) as u64
}

fn write(
    disk: &dyn Disk,
    folder: &Path,
    groups: &Groups,
    be: &dyn Backend,
    store: &ParamStore,
    optimizer: &DistOptimizer,
    position: &Position,
) -> Result<Saved> {
    let world = &*groups.world;
    let first = world.rank() == 0;
    let written = write_rank(disk, folder, world.rank(), be, store, optimizer);
    let written = written.and_then(|w| serde_json::to_vec(&w).map_err(|e| Error::damaged(folder, e.to_string())));
    let all = exchange(world, written)?;
    let meta = |weights_digest: String| Meta {
        format: FORMAT,
        position: position.clone(),
        optimizer_steps: optimizer.optimizer_steps(),
        weights_dtype: dtype_name(store.dtype()).to_owned(),
        weights_digest,
        saved_by: groups.grid.layout().to_string(),
    };
    // Everyone checks the whole, so everyone knows the result; only the first writes it.
    let done = assemble(folder, all, &meta).and_then(|(saved, index, meta)| {
        if first {
            write_atomically(disk, &folder.join(META_FILE), &meta)?;
            write_atomically(disk, &folder.join(INDEX_FILE), &index)?;
        }
        Ok(saved)
    });
    agree(world, done)
}

fn begin(disk: &dyn Disk, folder: &Path) -> Result<()> {
    if folder.join(INDEX_FILE).exists() {
        return Err(Error::Exists { path: folder.to_owned() });
    }
    create_dir_durably(disk, folder)
}

fn assemble(folder: &Path, all: Vec<Vec<u8>>, meta: &dyn Fn(String) -> Meta) -> Result<(Saved, Vec<u8>, Vec<u8>)> {
    let damaged = |e: serde_json::Error| Error::damaged(folder, e.to_string());
    let mut digest = WeightsDigest::new();
    let mut parts = Vec::with_capacity(all.len());
    let mut bytes = 0;
    for written in all {
        let written: Written = serde_json::from_slice(&written).map_err(damaged)?;
        digest.merge(&WeightsDigest::from_bytes(written.digest.as_bytes())?)?;
        bytes += written.bytes;
        parts.push(written.tensors);
    }
    let weights_digest = digest.finish()?;
    let meta = serde_json::to_vec_pretty(&meta(weights_digest.clone())).map_err(damaged)?;
    let index = TileIndex::assemble(sha256_hex(&meta), parts)?;
    let index = serde_json::to_vec(&index).map_err(damaged)?;
    Ok((Saved { index_sha256: sha256_hex(&index), weights_digest, bytes }, index, meta))
}

/// A tile to be written, and where its bytes are.
struct Planned {
    name: String,
    part: FlatRect,
    source: Tensor,
}

impl Planned {
    fn key(&self) -> String {
        let offset: Vec<String> = self.part.rect.offset.iter().map(usize::to_string).collect();
        format!("{}@{}", self.name, offset.join(","))
    }
}

fn write_rank(
    disk: &dyn Disk,
    folder: &Path,
    rank: usize,
    be: &dyn Backend,
    store: &ParamStore,
    optimizer: &DistOptimizer,
) -> Result<Written> {
    let mut state = Vec::new();
    let mut weights = Vec::new();
    let elements = TILE_BYTES_MAX / store.dtype().accumulator().size();
    for piece in optimizer.owned() {
        for part in flat_rects(store, &piece.flat, elements) {
            if !speaks(store, part.param) {
                continue;
            }
            let name = &store.specs()[part.param].name;
            let (at, n) = (part.flat.start - piece.flat.start, part.flat.len());
            for (prefix, tensor) in STATE.iter().zip([&piece.master, &piece.m, &piece.v]) {
                let source = tensor.flat(at, n)?;
                state.push(Planned { name: format!("{prefix}{name}"), part: part.clone(), source });
            }
            let source = store.flat().flat(part.flat.start, n)?;
            weights.push(Planned { name: name.clone(), part, source });
        }
    }
    let mut tensors = BTreeMap::new();
    let mut bytes = write_tiles(disk, folder, &format!("o-{rank:04}.safetensors"), be, store, &state, &mut tensors)?;
    if store.dtype() == store.dtype().accumulator() {
        // The weights are the masters: the index names the same tiles twice.
        let prefix = STATE[0];
        let masters: Vec<(String, TensorEntry)> = tensors
            .iter()
            .filter_map(|(name, entry)| name.strip_prefix(prefix).map(|n| (n.to_owned(), entry.clone())))
            .collect();
        tensors.extend(masters);
    } else {
        bytes += write_tiles(disk, folder, &format!("w-{rank:04}.safetensors"), be, store, &weights, &mut tensors)?;
    }
    disk.sync_dir(folder).map_err(|e| Error::io("sync the folder", folder, e))?;
    let digest = partial_digest(be, store, optimizer.owned().map(|p| p.flat.clone()))?;
    Ok(Written { tensors, digest: String::from_utf8_lossy(&digest.to_bytes()).into_owned(), bytes })
}

fn write_tiles(
    disk: &dyn Disk,
    folder: &Path,
    file: &str,
    be: &dyn Backend,
    store: &ParamStore,
    tiles: &[Planned],
    tensors: &mut BTreeMap<String, TensorEntry>,
) -> Result<u64> {
    if tiles.is_empty() {
        return Ok(0);
    }
    let entries: Vec<Entry> = tiles.iter().map(|t| (t.key(), t.source.dtype(), t.part.rect.shape.clone())).collect();
    let mut writer = SafetensorsWriter::create(disk, &folder.join(file), &entries, &BTreeMap::new())?;
    let mut written = 0;
    for tile in tiles {
        let bytes = download(be, &tile.source)?;
        writer.write(&bytes)?;
        written += bytes.len() as u64;
        let entry = tensors.entry(tile.name.clone()).or_insert_with(|| TensorEntry {
            dtype: dtype_name(tile.source.dtype()).to_owned(),
            shape: store.specs()[tile.part.param].shape.clone(),
            tiles: Vec::new(),
        });
        entry.tiles.push(Tile {
            offset: tile.part.rect.offset.clone(),
            shape: tile.part.rect.shape.clone(),
            file: file.to_owned(),
            key: tile.key(),
            crc32c: format!("{:08x}", crc32c::crc32c(&bytes)),
        });
    }
    writer.finish()?;
    Ok(written)
}
