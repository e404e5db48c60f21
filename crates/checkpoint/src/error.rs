//! What can be wrong with a checkpoint, said so that the reader knows which file to look at.

use std::io;
use std::path::{Path, PathBuf};

/// A checkpoint that cannot be written, read or trusted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file system said no.
    #[error("cannot {action} {}: {source}", .path.display())]
    Io {
        /// "create", "write", "sync", "rename", "read" …
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file is not what it should be: torn, of the wrong length, not safetensors, not JSON.
    #[error("{}: {what}; this checkpoint is damaged, load an earlier one", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// A tile's bytes are not the ones that were saved.
    #[error("tile {key} in {}: checksum {got:08x}, the index says {expected:08x}; this checkpoint is damaged, load an earlier one", .path.display())]
    Checksum {
        /// The file.
        path: PathBuf,
        /// Key of the tile in the file.
        key: String,
        /// CRC-32C in the index.
        expected: u32,
        /// CRC-32C of what was read.
        got: u32,
    },
    /// The index is not the one the commit record names.
    #[error("{}: its digest is {got}, the commit record says {expected}; it was written by somebody else or changed since", .path.display())]
    IndexDigest {
        /// index.json.
        path: PathBuf,
        /// From the commit record.
        expected: String,
        /// Of the file.
        got: String,
    },
    /// The tiles of a tensor do not cover it exactly once.
    #[error("tensor {tensor} {shape:?}: {what}")]
    Coverage {
        /// Its name.
        tensor: String,
        /// Its global shape.
        shape: Vec<usize>,
        /// The gap, the overlap or the tile out of bounds.
        what: String,
    },
    /// A tensor that must be there is not.
    #[error("{} lacks {}{}", .path.display(), .names.join(", "), .hint)]
    Missing {
        /// The checkpoint.
        path: PathBuf,
        /// All missing names, at most eight of them spelled out.
        names: Vec<String>,
        /// What to do.
        hint: &'static str,
    },
    /// A tensor is there, but not as the model wants it.
    #[error("tensor {tensor} in {}: {what}", .path.display())]
    Mismatch {
        /// The checkpoint.
        path: PathBuf,
        /// Its name.
        tensor: String,
        /// Type, shape.
        what: String,
    },
    /// The checkpoint belongs to another model or tokenizer.
    #[error("{} holds {what} {saved}, this job has {wanted}; use another folder or the {what} it was made with", .path.display())]
    Fingerprint {
        /// The checkpoint.
        path: PathBuf,
        /// "model" or "tokenizer".
        what: &'static str,
        /// In the checkpoint.
        saved: String,
        /// Of this job.
        wanted: String,
    },
    /// A complete checkpoint or published folder is already there; those never change.
    #[error("{} is complete already; a new one needs a new folder", .path.display())]
    Exists {
        /// The folder.
        path: PathBuf,
    },
    /// Another rank failed, so the whole save or load did.
    #[error("rank {rank} failed: {what}")]
    Rank {
        /// World rank.
        rank: usize,
        /// Its error.
        what: String,
    },
    /// Parts of a digest do not fit together.
    #[error("weights digest: {0}")]
    Digest(String),
    /// Made for a later format.
    #[error("{}: format {got}, this build reads format {ours}; use the build that wrote it", .path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Found.
        got: u64,
        /// Ours.
        ours: u64,
    },
    /// The optimizer could not take up what was loaded.
    #[error("{0}")]
    Optimizer(String),
    /// A parameter does not divide as the layout asks.
    #[error(transparent)]
    Model(#[from] models::Error),
    /// Memory, the device, or another rank that could not be reached.
    #[error(transparent)]
    Tensor(#[from] tensor::Error),
}

impl Error {
    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> Error {
        Error::Io { action, path: path.to_owned(), source }
    }

    pub(crate) fn damaged(path: &Path, what: impl Into<String>) -> Error {
        Error::Damaged { path: path.to_owned(), what: what.into() }
    }
}

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
