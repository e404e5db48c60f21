//! `index.json`: which rectangle of which tensor lies where, and the proof that all of them cover everything once.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tensor::DType;

use crate::dtype::parse_dtype;
use crate::error::{Error, Result};
use crate::rect::{Rect, fits};

/// The version of this format.
pub const FORMAT: u64 = 1;

/// All of `index.json`. Its SHA-256 is what a commit record names; everything else in the folder hangs on it by
/// checksums.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TileIndex {
    /// [`FORMAT`].
    pub format: u64,
    /// SHA-256 of `meta.json`.
    pub meta_sha256: String,
    /// By name.
    pub tensors: BTreeMap<String, TensorEntry>,
}

/// One global tensor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorEntry {
    /// In safetensors' names.
    pub dtype: String,
    /// Of the whole tensor, whatever the layout that saved it.
    pub shape: Vec<usize>,
    /// Rectangles that cover it exactly once.
    pub tiles: Vec<Tile>,
}

/// One rectangle: an ordinary tensor `key` in the ordinary safetensors file `file`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tile {
    /// First index in each dimension.
    pub offset: Vec<usize>,
    /// Size in each dimension.
    pub shape: Vec<usize>,
    /// A name in the same folder.
    pub file: String,
    /// Name of the tensor in that file.
    pub key: String,
    /// CRC-32C of its bytes, eight hexadecimal digits.
    pub crc32c: String,
}

impl Tile {
    /// The rectangle.
    pub fn rect(&self) -> Rect {
        Rect { offset: self.offset.clone(), shape: self.shape.clone() }
    }
}

impl TensorEntry {
    /// The element type.
    ///
    /// # Errors
    /// [`Error::Coverage`] for a type we do not know.
    pub fn dtype(&self, name: &str) -> Result<DType> {
        parse_dtype(&self.dtype).ok_or_else(|| self.fault(name, format!("type {} is unknown", self.dtype)))
    }

    fn fault(&self, name: &str, what: String) -> Error {
        Error::Coverage { tensor: name.to_owned(), shape: self.shape.clone(), what }
    }

    /// Checks that the tiles cover the tensor exactly once.
    ///
    /// # Errors
    /// [`Error::Coverage`] names a tile out of bounds, two that overlap, or the number of elements in the gaps.
    pub fn check_coverage(&self, name: &str) -> Result<()> {
        if let Some(tile) = self.tiles.iter().find(|t| !fits(&t.rect(), &self.shape)) {
            return Err(self.fault(name, format!("tile {:?} of {} lies outside", tile.rect(), tile.file)));
        }
        // Sorted by their first row, a tile can only overlap those that begin before it ends.
        let mut tiles: Vec<&Tile> = self.tiles.iter().filter(|t| t.rect().numel() > 0).collect();
        tiles.sort_by(|a, b| a.offset.cmp(&b.offset));
        for (i, a) in tiles.iter().enumerate() {
            for b in &tiles[i + 1..] {
                if !a.offset.is_empty() && b.offset[0] >= a.offset[0] + a.shape[0] {
                    break;
                }
                if let Some(twice) = a.rect().intersect(&b.rect()) {
                    let what = format!("tiles of {} and {} overlap in {twice:?}", a.file, b.file);
                    return Err(self.fault(name, what));
                }
            }
        }
        let covered: usize = tiles.iter().map(|t| t.rect().numel()).sum();
        let all: usize = self.shape.iter().product();
        if covered != all {
            return Err(self.fault(name, format!("{} of its {all} elements are in no tile", all - covered)));
        }
        Ok(())
    }
}

impl TileIndex {
    /// Puts together what each rank has written and checks that it is everything, once.
    ///
    /// # Errors
    /// [`Error::Coverage`], also when two ranks disagree about a tensor's shape or type.
    pub fn assemble(meta_sha256: String, parts: Vec<BTreeMap<String, TensorEntry>>) -> Result<TileIndex> {
        let mut tensors: BTreeMap<String, TensorEntry> = BTreeMap::new();
        for (name, entry) in parts.into_iter().flatten() {
            match tensors.get_mut(&name) {
                None => {
                    tensors.insert(name, entry);
                }
                Some(known) if known.dtype == entry.dtype && known.shape == entry.shape => {
                    known.tiles.extend(entry.tiles);
                }
                Some(known) => {
                    let what = format!("another rank calls it {} {:?}", entry.dtype, entry.shape);
                    return Err(known.fault(&name, what));
                }
            }
        }
        for entry in tensors.values_mut() {
            entry.tiles.sort_by(|a, b| (&a.offset, &a.shape).cmp(&(&b.offset, &b.shape)));
        }
        let index = TileIndex { format: FORMAT, meta_sha256, tensors };
        index.check_coverage()?;
        Ok(index)
    }

    /// Checks every tensor.
    ///
    /// # Errors
    /// [`Error::Coverage`] for the first one at fault.
    pub fn check_coverage(&self) -> Result<()> {
        self.tensors.iter().try_for_each(|(name, entry)| entry.check_coverage(name))
    }

    /// Parses and checks `index.json`; `path` is for messages.
    ///
    /// # Errors
    /// [`Error::Damaged`], [`Error::Format`], [`Error::Coverage`].
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<TileIndex> {
        #[derive(Deserialize)]
        struct Version {
            format: u64,
        }
        let damaged = |e: serde_json::Error| Error::damaged(path, e.to_string());
        let Version { format } = serde_json::from_slice(bytes).map_err(damaged)?;
        if format != FORMAT {
            return Err(Error::Format { path: path.to_owned(), got: format, ours: FORMAT });
        }
        let index: TileIndex = serde_json::from_slice(bytes).map_err(damaged)?;
        let outside = |file: &str| file.is_empty() || file.contains('/') || file.starts_with('.');
        if let Some(tile) = index.tensors.values().flat_map(|t| &t.tiles).find(|t| outside(&t.file)) {
            return Err(Error::damaged(path, format!("tile {} names the file '{}'", tile.key, tile.file)));
        }
        index.check_coverage()?;
        Ok(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tile(offset: [usize; 2], shape: [usize; 2]) -> Tile {
        Tile {
            offset: offset.to_vec(),
            shape: shape.to_vec(),
            file: "w-0000.safetensors".into(),
            key: format!("w@{},{}", offset[0], offset[1]),
            crc32c: "00000000".into(),
        }
    }

    fn entry(tiles: Vec<Tile>) -> TensorEntry {
        TensorEntry { dtype: "F32".into(), shape: vec![4, 6], tiles }
    }

    fn fault(tiles: Vec<Tile>) -> String {
        entry(tiles).check_coverage("w").unwrap_err().to_string()
    }

    #[test]
    fn tiles_must_cover_a_tensor_exactly_once() {
        let good = vec![tile([0, 0], [2, 6]), tile([2, 0], [2, 2]), tile([2, 2], [1, 4]), tile([3, 2], [1, 4])];
        entry(good.clone()).check_coverage("w").unwrap();
        assert!(fault(good[..3].to_vec()).contains("4 of its 24 elements are in no tile"));
        let mut overlap = good.clone();
        overlap[1] = tile([1, 0], [3, 2]);
        assert!(fault(overlap).contains("overlap"));
        let mut outside = good.clone();
        outside[3] = tile([3, 2], [1, 5]);
        assert!(fault(outside).contains("outside"));
        // A gap and an overlap of equal size must not cancel out.
        let mut both = good;
        both[2] = tile([3, 2], [1, 4]);
        assert!(fault(both).contains("overlap"));
    }

    #[test]
    fn ranks_that_disagree_about_a_tensor_are_refused() {
        let a = BTreeMap::from([("w".to_owned(), entry(vec![tile([0, 0], [4, 6])]))]);
        let mut b = a.clone();
        b.get_mut("w").unwrap().shape = vec![6, 4];
        let error = TileIndex::assemble(String::new(), vec![a, b]).unwrap_err().to_string();
        assert!(error.contains("another rank calls it F32 [6, 4]"), "{error}");
    }

    #[test]
    fn an_index_cannot_point_outside_its_folder() {
        let mut bad = tile([0, 0], [4, 6]);
        bad.file = "../secret".into();
        let tensors = BTreeMap::from([("w".to_owned(), entry(vec![bad]))]);
        let index = TileIndex { format: FORMAT, meta_sha256: String::new(), tensors };
        let bytes = serde_json::to_vec(&index).unwrap();
        assert!(TileIndex::parse(Path::new("index.json"), &bytes).is_err());
    }

    #[test]
    fn a_later_format_is_named_not_guessed() {
        let error = TileIndex::parse(Path::new("index.json"), br#"{"format":2,"shards":[]}"#).unwrap_err().to_string();
        assert!(error.contains("format 2, this build reads format 1"), "{error}");
    }
}
