//! The raw file system, with the fewest calls that do the work.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result};

/// A file that is appended to.
pub struct Appender {
    file: File,
}

impl Appender {
    /// Creates it.
    pub fn create(path: &Path) -> Result<Self> {
        let file = OpenOptions::new().create_new(true).append(true).open(path);
        Ok(Self { file: file.with_context(|| path.display().to_string())? })
    }

    /// One `write` and one `fdatasync`.
    pub fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes)?;
        Ok(self.file.sync_data()?)
    }
}

/// A file to read from.
pub struct Reader {
    file: File,
}

impl Reader {
    /// Writes it and opens it.
    pub fn create(path: &Path, bytes: &[u8], copies: usize) -> Result<Self> {
        let mut file = File::create(path)?;
        for _ in 0..copies {
            file.write_all(bytes)?;
        }
        file.sync_all()?;
        Ok(Self { file: File::open(path)? })
    }

    /// One `pread` into memory that is fresh for each call, as a read of a record gives it.
    pub fn read(&self, offset: usize, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.file.read_exact_at(&mut bytes, offset as u64)?;
        Ok(bytes)
    }
}
