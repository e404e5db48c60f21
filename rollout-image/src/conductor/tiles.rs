//! Looking at tiles before they are believed.

use std::path::Path;

use checkpoint::{Checkpoint, Error};
use conductor::TilesProblem;

/// Tiles are read through when they are no larger than this; of larger ones the index, the headers and the lengths are
/// checked, and their checksums when they are loaded. A gigabyte is read back from a page cache in well under a second.
const READ_BYTES_MAX: u64 = 1 << 30;

/// Are the tiles in `folder` those whose index has this digest, and are they whole?
pub fn verify(folder: &Path, index_digest: &str) -> Result<(), TilesProblem> {
    look_through(folder, index_digest).map_err(problem)
}

/// The same, with what exactly is in the way.
pub fn look_through(folder: &Path, index_digest: &str) -> Result<(), Error> {
    let checkpoint = Checkpoint::open(folder, Some(index_digest))?;
    let bytes: u64 = std::fs::read_dir(folder)
        .and_then(|entries| entries.map(|entry| entry.and_then(|entry| entry.metadata()).map(|meta| meta.len())).sum())
        .map_err(|source| Error::Io { action: "list", path: folder.to_owned(), source })?;
    if bytes <= READ_BYTES_MAX {
        checkpoint.verify()?;
    }
    Ok(())
}

fn problem(error: Error) -> TilesProblem {
    match error {
        Error::Io { .. } => TilesProblem::Unreadable(error.to_string()),
        other => TilesProblem::Wrong(other.to_string()),
    }
}
