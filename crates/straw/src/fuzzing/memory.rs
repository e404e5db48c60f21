//! Bytes as a file.

use std::io::{self, IoSlice};

use crate::fs::File;

/// A file that can be read.
pub(super) struct MemoryFile<'a>(pub(super) &'a [u8]);

impl std::fmt::Debug for MemoryFile<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MemoryFile({} bytes)", self.0.len())
    }
}

impl File for MemoryFile<'_> {
    fn write_at(&self, _: u64, _: &mut [IoSlice<'_>]) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn read_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let rest = usize::try_from(offset).ok().and_then(|at| self.0.get(at..)).unwrap_or_default();
        Ok(rest.get(..len).unwrap_or(rest).to_vec())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn sync_data(&self) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }
}
