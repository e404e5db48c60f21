//! Hugging Face model folders, read: `model.safetensors`, or several files with `model.safetensors.index.json`.
//!
//! A rank reads its own slices and nothing else, by position.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use models::ParamStore;
use serde::{Deserialize, Serialize};
use tensor::ops::Cast;
use tensor::{Backend, DType, Stream, Tag, Tensor};

use crate::digest::WeightsDigest;
use crate::error::{Error, Result};
use crate::rect::{Rect, copy_shared, split};
use crate::safetensors_file::{SafetensorsFile, TensorInfo};
use crate::shard::shared;

pub(crate) const SINGLE: &str = "model.safetensors";
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// `model.safetensors.index.json`.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct HfIndex {
    #[serde(default)]
    pub metadata: serde_json::Map<String, serde_json::Value>,
    pub weight_map: BTreeMap<String, String>,
}

/// An open model folder.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    files: Vec<SafetensorsFile>,
    /// Name of a tensor to its file.
    tensors: BTreeMap<String, usize>,
}

/// Whether the folder holds weights at all; one without is a config and tokenizer for a random start.
pub fn has_weights(folder: &Path) -> bool {
    folder.join(SINGLE).exists() || folder.join(INDEX).exists()
}

impl Folder {
    /// Opens the folder and reads the headers.
    ///
    /// # Errors
    /// [`Error::Missing`] if it holds no weights, or its index names a tensor that its file lacks; [`Error::Damaged`];
    /// [`Error::Io`].
    pub fn open(path: &Path) -> Result<Folder> {
        let index = path.join(INDEX);
        let (files, tensors) = if index.exists() {
            Folder::open_sharded(path, &index)?
        } else if has_weights(path) {
            let file = SafetensorsFile::open(&path.join(SINGLE))?;
            let tensors = file.tensors().keys().map(|name| (name.clone(), 0)).collect();
            (vec![file], tensors)
        } else {
            let names = vec![format!("{SINGLE} and {INDEX}")];
            return Err(Error::Missing {
                path: path.to_owned(),
                names,
                hint: "; is this a model folder with weights?",
            });
        };
        Ok(Folder { path: path.to_owned(), files, tensors })
    }

    fn open_sharded(path: &Path, index: &Path) -> Result<(Vec<SafetensorsFile>, BTreeMap<String, usize>)> {
        let bytes = fs::read(index).map_err(|e| Error::io("read", index, e))?;
        let parsed: HfIndex = serde_json::from_slice(&bytes).map_err(|e| Error::damaged(index, e.to_string()))?;
        let mut opened: BTreeMap<String, usize> = BTreeMap::new();
        let mut files = Vec::new();
        let mut tensors = BTreeMap::new();
        for (name, file) in parsed.weight_map {
            if file.contains('/') || file.starts_with('.') {
                return Err(Error::damaged(index, format!("tensor {name} is said to lie in '{file}'")));
            }
            let at = match opened.get(&file) {
                Some(at) => *at,
                None => {
                    files.push(SafetensorsFile::open(&path.join(&file))?);
                    opened.insert(file, files.len() - 1);
                    files.len() - 1
                }
            };
            if !files[at].tensors().contains_key(&name) {
                let path = files[at].path().to_owned();
                return Err(Error::Missing { path, names: vec![name], hint: ", which the index promises" });
            }
            tensors.insert(name, at);
        }
        Ok((files, tensors))
    }

    /// Names of the tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Type and shape of a tensor.
    pub fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(name).and_then(|file| self.files[*file].tensors().get(name))
    }

    /// Where the folder is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn file(&self, name: &str) -> Result<&SafetensorsFile> {
        self.tensors.get(name).map(|at| &self.files[*at]).ok_or_else(|| Error::Missing {
            path: self.path.clone(),
            names: vec![name.to_owned()],
            hint: "",
        })
    }

    /// Reads a rectangle of a tensor seen as `view`: its shape, or a reshape of it.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Mismatch`], [`Error::Io`].
    ///
    /// # Panics
    /// If `out` is not as large as the rectangle.
    pub fn read(&self, name: &str, view: &[usize], part: &Rect, out: &mut [u8]) -> Result<()> {
        self.file(name)?.read_rect(name, view, part, out)
    }
}

/// Tensors that may lie in a folder without meaning anything to the model: the head of a tied model, which is its
/// embedding, and tables that older exporters wrote.
fn is_redundant(name: &str, tied: bool) -> bool {
    (tied && name == "lm_head.weight") || name.ends_with("rotary_emb.inv_freq")
}

/// Checks that the folder holds exactly the tensors of these parameters, with their shapes.
fn check_tensors(folder: &Folder, store: &ParamStore) -> Result<()> {
    let pieces: BTreeMap<&str, &[usize]> =
        store.specs().iter().flat_map(|s| &s.hf).map(|p| (p.name.as_str(), p.shape.as_slice())).collect();
    let missing: Vec<String> =
        pieces.keys().filter(|name| folder.info(name).is_none()).map(|n| (*n).to_owned()).collect();
    if !missing.is_empty() {
        let names = crate::load::spell_out(missing);
        return Err(Error::Missing { path: folder.path.clone(), names, hint: "; does config.json belong to it?" });
    }
    let tied = !pieces.contains_key("lm_head.weight");
    for name in folder.names() {
        let fault = |what: String| Error::Mismatch { path: folder.path.clone(), tensor: name.to_owned(), what };
        match (pieces.get(name), folder.info(name)) {
            (Some(shape), Some(info)) if *shape != info.shape => {
                return Err(fault(format!("it has shape {:?}, config.json asks for {shape:?}", info.shape)));
            }
            (Some(_), Some(info)) if !info.dtype.is_float() => {
                return Err(fault(format!("its type {:?} is not a float", info.dtype)));
            }
            (None, _) if !is_redundant(name, tied) => {
                return Err(fault("the model has no such tensor, and nothing is left out silently".into()));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Fills a store (a whole model, or one tensor parallel rank's slices) from a folder, converting to its type.
///
/// # Errors
/// [`Error::Missing`] names every tensor the folder lacks; [`Error::Mismatch`] a tensor of another shape or one the model does
/// not have; [`Error::Damaged`], [`Error::Io`], [`Error::Tensor`].
pub fn load_weights(folder: &Folder, be: &dyn Backend, store: &ParamStore) -> Result<()> {
    check_tensors(folder, store)?;
    let size = store.dtype().size();
    for (spec, entry) in store.specs().iter().zip(&store.layout().entries) {
        let mut local = vec![0; entry.rect.numel() * size];
        for piece in &spec.hf {
            let Some((ours, theirs)) = shared(piece, &entry.rect) else { continue };
            let Some(info) = folder.info(&piece.name) else { continue };
            let mut bytes = vec![0; theirs.numel() * info.dtype.size()];
            folder.read(&piece.name, &piece.rect.shape, &theirs, &mut bytes)?;
            let bytes = convert(be, bytes, info.dtype, store.dtype())?;
            copy_shared(&bytes, &ours, &mut local, &entry.rect, size);
        }
        be.upload(Stream::COMPUTE, &store.flat().flat(entry.offset, entry.rect.numel())?, &local)?;
    }
    Ok(())
}

/// Elements of one float type as another, rounded to nearest even.
pub(crate) fn convert(be: &dyn Backend, bytes: Vec<u8>, from: DType, to: DType) -> Result<Vec<u8>> {
    if from == to || bytes.is_empty() {
        return Ok(bytes);
    }
    let n = bytes.len() / from.size();
    let src = Tensor::empty(be, from, &[n], Tag::Work)?;
    be.upload(Stream::COMPUTE, &src, &bytes)?;
    let dst = Tensor::empty(be, to, &[n], Tag::Work)?;
    be.cast(Stream::COMPUTE, &Cast { src: &src, dst: &dst })?;
    crate::shard::download(be, &dst)
}

/// The digest of the weights in a folder: that of any model that holds them in the same type.
///
/// # Errors
/// [`Error::Io`], [`Error::Damaged`].
pub fn folder_digest(path: &Path) -> Result<String> {
    const ELEMENTS: usize = 1 << 20;
    let folder = Folder::open(path)?;
    let mut digest = WeightsDigest::new();
    for name in folder.names() {
        let Some(info) = folder.info(name) else { continue };
        for part in split(&Rect::full(&info.shape), ELEMENTS) {
            let mut bytes = vec![0; part.numel() * info.dtype.size()];
            folder.read(name, &info.shape, &part, &mut bytes)?;
            digest.add(name, info.dtype, &info.shape, &info.shape, &part, &bytes)?;
        }
    }
    digest.finish()
}
