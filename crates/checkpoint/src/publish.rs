//! Hugging Face model folders, written: whole under a temporary name, then renamed, so that a folder with its final
//! name is complete and never changes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use models::{HfPiece, ParamSpec, ParamStore};
use parallel::Groups;
use tensor::{Backend, Comm, DType, Stream, Tag, Tensor};

use crate::agree::agree;
use crate::disk::{Disk, create_dir_durably, sync_parent, write_synced};
use crate::error::{Error, Result};
use crate::hf::{Folder, HfIndex, INDEX, SINGLE, convert};
use crate::rect::{Rect, copy_shared};
use crate::safetensors_file::SafetensorsWriter;
use crate::shard::{download, shared};

/// Larger files are split, as transformers does.
pub const FILE_BYTES_MAX: u64 = 4 << 30;

/// The element type of each tensor in a folder to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExportTypes {
    /// One for all.
    All(DType),
    /// As in the folder the model came from, so that an untouched model is written byte for byte as it was read;
    /// tensors not named there get the second.
    AsRead(BTreeMap<String, DType>, DType),
}

impl ExportTypes {
    /// The types of a folder's tensors.
    pub fn of_folder(folder: &Folder, otherwise: DType) -> ExportTypes {
        let types = folder.names().filter_map(|n| folder.info(n).map(|i| (n.to_owned(), i.dtype))).collect();
        ExportTypes::AsRead(types, otherwise)
    }

    fn of(&self, name: &str) -> DType {
        match self {
            ExportTypes::All(dtype) => *dtype,
            ExportTypes::AsRead(types, otherwise) => types.get(name).copied().unwrap_or(*otherwise),
        }
    }
}

/// What a folder is to be made of.
#[derive(Debug, Clone)]
pub struct PublishTo<'a> {
    /// Its final name. Must not exist.
    pub folder: &'a Path,
    /// config.json, tokenizer and chat template are copied from here, byte for byte.
    pub config_from: &'a Path,
    /// Types of the tensors.
    pub types: ExportTypes,
    /// See [`FILE_BYTES_MAX`].
    pub file_bytes_max: u64,
}

/// A tensor of the folder, and where it comes from.
struct Planned<'a> {
    param: usize,
    spec: &'a ParamSpec,
    piece: &'a HfPiece,
    dtype: DType,
}

impl Planned<'_> {
    fn bytes(&self) -> u64 {
        (self.piece.shape.iter().product::<usize>() * self.dtype.size()) as u64
    }
}

/// The tensors in order, cut into files.
fn plan<'a>(specs: &'a [ParamSpec], to: &PublishTo) -> Vec<Vec<Planned<'a>>> {
    let mut files: Vec<Vec<Planned>> = vec![Vec::new()];
    let mut bytes = 0;
    for (param, spec) in specs.iter().enumerate() {
        for piece in &spec.hf {
            let tensor = Planned { param, spec, piece, dtype: to.types.of(&piece.name) };
            if bytes > 0 && bytes + tensor.bytes() > to.file_bytes_max {
                files.push(Vec::new());
                bytes = 0;
            }
            bytes += tensor.bytes();
            if let Some(file) = files.last_mut() {
                file.push(tensor);
            }
        }
    }
    files
}

fn file_name(at: usize, of: usize) -> String {
    if of == 1 { SINGLE.to_owned() } else { format!("model-{:05}-of-{of:05}.safetensors", at + 1) }
}

fn temporary(folder: &Path) -> PathBuf {
    let mut name = folder.as_os_str().to_owned();
    name.push(".tmp");
    PathBuf::from(name)
}

/// Empties the temporary folder (a predecessor may have died in it).
fn begin(disk: &dyn Disk, to: &PublishTo) -> Result<()> {
    if to.folder.exists() {
        return Err(Error::Exists { path: to.folder.to_owned() });
    }
    let work = temporary(to.folder);
    if work.exists() {
        disk.remove_dir_all(&work).map_err(|e| Error::io("remove", &work, e))?;
    }
    create_dir_durably(disk, &work)
}

/// Writes one file from whatever yields the bytes of its tensors.
fn write_file(
    disk: &dyn Disk,
    path: &Path,
    tensors: &[Planned],
    bytes_of: &mut dyn FnMut(&Planned) -> Result<Vec<u8>>,
) -> Result<()> {
    let entries: Vec<_> = tensors.iter().map(|t| (t.piece.name.clone(), t.dtype, t.piece.shape.clone())).collect();
    let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
    let mut writer = SafetensorsWriter::create(disk, path, &entries, &metadata)?;
    for tensor in tensors {
        writer.write(&bytes_of(tensor)?)?;
    }
    writer.finish()
}

/// Adds everything that is not a tensor, and gives the folder its name.
fn complete(disk: &dyn Disk, to: &PublishTo, files: &[Vec<Planned>]) -> Result<()> {
    let work = temporary(to.folder);
    for name in companions(to.config_from)? {
        let from = to.config_from.join(&name);
        let bytes = fs::read(&from).map_err(|e| Error::io("read", &from, e))?;
        write_synced(disk, &work.join(&name), &bytes)?;
    }
    if files.len() > 1 {
        let mut index = HfIndex::default();
        let total: u64 = files.iter().flatten().map(Planned::bytes).sum();
        index.metadata.insert("total_size".into(), total.into());
        for (at, file) in files.iter().enumerate() {
            let name = file_name(at, files.len());
            index.weight_map.extend(file.iter().map(|t| (t.piece.name.clone(), name.clone())));
        }
        let path = work.join(INDEX);
        let bytes = serde_json::to_vec_pretty(&index).map_err(|e| Error::damaged(&path, e.to_string()))?;
        write_synced(disk, &path, &bytes)?;
    }
    disk.sync_dir(&work).map_err(|e| Error::io("sync the folder", &work, e))?;
    disk.rename(&work, to.folder).map_err(|e| Error::io("rename", &work, e))?;
    sync_parent(disk, to.folder)
}

/// The files of a model folder that are not weights: what transformers and SGLang read beside them.
fn companions(folder: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(|e| Error::io("list", folder, e))? {
        let entry = entry.map_err(|e| Error::io("list", folder, e))?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let kind = Path::new(&name).extension().and_then(|e| e.to_str()).unwrap_or("");
        let wanted = ["json", "txt", "jinja", "model", "tiktoken"].contains(&kind) && !name.ends_with(".index.json");
        if wanted && entry.path().is_file() {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Writes the weights of `store` as a model folder. Every rank of the attempt takes part: files are spread over the
/// data parallel ranks; within one, the tensor parallel ranks hand their slices to the first of them.
///
/// # Errors
/// [`Error::Exists`] if the folder is there; [`Error::Io`]; [`Error::Rank`] if another rank failed. After an error
/// nothing bears the final name.
pub fn publish(disk: &dyn Disk, to: &PublishTo, groups: &Groups, be: &dyn Backend, store: &ParamStore) -> Result<()> {
    let world = &*groups.world;
    let first = world.rank() == 0;
    agree(world, if first { begin(disk, to) } else { Ok(()) })?;
    let files = plan(store.specs(), to);
    let (dp, tp) = (&*groups.dp, &*groups.tp);
    let mine = files.iter().enumerate().filter(|(at, _)| at % dp.size() == dp.rank());
    let mut slices = Slices { be, store, last: None };
    let mut outcome = Ok(());
    for (at, tensors) in mine {
        let path = temporary(to.folder).join(file_name(at, files.len()));
        outcome = if tp.rank() == 0 {
            write_file(disk, &path, tensors, &mut |t| slices.assemble(tp, t))
        } else {
            tensors.iter().try_for_each(|t| slices.hand_over(tp, t))
        };
        // The others of this tensor parallel group go on to the next file only if the first could write this one.
        outcome = agree(tp, outcome);
        if outcome.is_err() {
            break;
        }
    }
    agree(world, outcome)?;
    agree(world, if first { complete(disk, to, &files) } else { Ok(()) })
}

/// This rank's slices of the parameters, in the types of the folder. A fused parameter is several tensors of the folder
/// in a row, so the last slice is kept.
struct Slices<'a> {
    be: &'a dyn Backend,
    store: &'a ParamStore,
    last: Option<(usize, DType, Vec<u8>)>,
}

impl Slices<'_> {
    fn of(&mut self, t: &Planned) -> Result<(&Rect, &[u8])> {
        let rect = &self.store.layout().entries[t.param].rect;
        let bytes = match self.last.take() {
            Some((param, dtype, bytes)) if (param, dtype) == (t.param, t.dtype) => bytes,
            _ => {
                let offset = self.store.layout().entries[t.param].offset;
                let bytes = download(self.be, &self.store.flat().flat(offset, rect.numel())?)?;
                convert(self.be, bytes, self.store.dtype(), t.dtype)?
            }
        };
        let (_, _, bytes) = self.last.insert((t.param, t.dtype, bytes));
        Ok((rect, bytes))
    }

    /// The first tensor parallel rank: puts a tensor together from everybody's slices.
    fn assemble(&mut self, tp: &dyn Comm, t: &Planned) -> Result<Vec<u8>> {
        let size = t.dtype.size();
        let mut out = vec![0; t.piece.rect.numel() * size];
        let (rect, bytes) = self.of(t)?;
        copy_shared(bytes, rect, &mut out, &t.piece.rect, size);
        for rank in 1..tp.size() {
            let Some(theirs) = handed_over(t, rank, tp.size())? else { continue };
            let incoming = Tensor::empty(self.be, DType::U8, &[theirs.numel() * size], Tag::Work)?;
            tp.recv(Stream::COMPUTE, &incoming, rank)?;
            copy_shared(&download(self.be, &incoming)?, &theirs, &mut out, &t.piece.rect, size);
        }
        Ok(out)
    }

    /// Any other tensor parallel rank: sends what it holds of a tensor.
    fn hand_over(&mut self, tp: &dyn Comm, t: &Planned) -> Result<()> {
        let Some(part) = handed_over(t, tp.rank(), tp.size())? else { return Ok(()) };
        let (rect, bytes) = self.of(t)?;
        let mut out = vec![0; part.numel() * t.dtype.size()];
        copy_shared(bytes, rect, &mut out, &part, t.dtype.size());
        let outgoing = Tensor::from_slice(self.be, &out, &[out.len()], Tag::Work)?;
        Ok(tp.send(Stream::COMPUTE, &outgoing, 0)?)
    }
}

/// What rank `rank` sends of a tensor: nothing if the first rank holds all of it.
fn handed_over(t: &Planned, rank: usize, size: usize) -> Result<Option<Rect>> {
    if t.spec.shard == models::Shard::Replicated {
        return Ok(None);
    }
    let rect = t.spec.local(rank, size).map_err(models::Error::from)?;
    Ok(shared(t.piece, &rect).map(|(ours, _)| ours))
}

/// The bytes of a tensor of the folder, in its type there.
pub(crate) type BytesOf<'a> = dyn FnMut(&ParamSpec, &HfPiece, DType) -> Result<Vec<u8>> + 'a;

/// Writes a model folder in one process, from whatever yields the bytes of each tensor in its type in the folder (for
/// instance the tiles of a checkpoint).
///
/// # Errors
/// [`Error::Exists`], [`Error::Io`], and whatever `bytes_of` says.
pub(crate) fn publish_from(
    disk: &dyn Disk,
    to: &PublishTo,
    specs: &[ParamSpec],
    bytes_of: &mut BytesOf<'_>,
) -> Result<()> {
    begin(disk, to)?;
    let files = plan(specs, to);
    for (at, tensors) in files.iter().enumerate() {
        let path = temporary(to.folder).join(file_name(at, files.len()));
        write_file(disk, &path, tensors, &mut |t| bytes_of(t.spec, t.piece, t.dtype))?;
    }
    complete(disk, to, &files)
}
