//! The few things a checkpoint does to a file system, behind a trait, so that a test can stop it at each of them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use crate::error::{Error, Result};

/// A file being written.
pub trait DiskFile: Send {
    /// Appends.
    ///
    /// # Errors
    /// As the file system says.
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Returns when the bytes would survive a power cut.
    ///
    /// # Errors
    /// As the file system says.
    fn sync(&mut self) -> io::Result<()>;
}

/// Where checkpoints are written. Reading goes straight to the files.
pub trait Disk: Send + Sync {
    /// Makes a folder and its parents; one that exists is fine.
    ///
    /// # Errors
    /// As the file system says.
    fn create_dir_all(&self, path: &Path) -> io::Result<()>;
    /// Opens a file for writing, empty.
    ///
    /// # Errors
    /// As the file system says.
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    /// Renames a file or folder, replacing a file.
    ///
    /// # Errors
    /// As the file system says.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Makes the entries of a folder durable.
    ///
    /// # Errors
    /// As the file system says.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
    /// Removes a folder with everything in it.
    ///
    /// # Errors
    /// As the file system says.
    fn remove_dir_all(&self, path: &Path) -> io::Result<()>;
}

/// The file system of this machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealDisk;

impl DiskFile for File {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        Write::write_all(self, bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_all()
    }
}

impl Disk for RealDisk {
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        fs::create_dir_all(path)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
        Ok(Box::new(file))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir_all(path)
    }
}

/// Writes a small file and makes its bytes durable; its entry is durable once its folder is synced. For files in a folder that
/// has no final name yet: whoever finds them torn finds no folder.
pub(crate) fn write_synced(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = disk.create(path).map_err(|e| Error::io("create", path, e))?;
    file.write_all(bytes).map_err(|e| Error::io("write", path, e))?;
    file.sync().map_err(|e| Error::io("sync", path, e))
}

/// Writes a small file whole and durable: to a temporary name, synced, renamed, the folder synced.
pub(crate) fn write_atomically(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".tmp");
    let temporary = Path::new(&temporary);
    write_synced(disk, temporary, bytes)?;
    disk.rename(temporary, path).map_err(|e| Error::io("rename", temporary, e))?;
    sync_parent(disk, path)
}

/// Makes a folder, and the one above it where that is missing, and every new entry durable. No more than these two: what
/// should hold them may be a mount that is away, and then nothing must be written in its place.
pub(crate) fn create_dir_durably(disk: &dyn Disk, path: &Path) -> Result<()> {
    if let Some(holder) = path.ancestors().nth(2).filter(|p| !p.as_os_str().is_empty() && !p.exists()) {
        return Err(Error::io("find the folder", holder, io::ErrorKind::NotFound.into()));
    }
    let new: Vec<&Path> = path.ancestors().take_while(|p| !p.as_os_str().is_empty() && !p.exists()).collect();
    disk.create_dir_all(path).map_err(|e| Error::io("create", path, e))?;
    new.into_iter().rev().try_for_each(|made| sync_parent(disk, made))
}

/// Makes the entry of `path` in its folder durable.
pub(crate) fn sync_parent(disk: &dyn Disk, path: &Path) -> Result<()> {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    disk.sync_dir(parent).map_err(|e| Error::io("sync the folder", parent, e))
}
