//! What straw needs of a file system, as a trait, so that a simulated one can stand in for it.
//!
//! The contract is the weakest that POSIX file systems and shared mounts keep:
//! * bytes written are durable only after [`File::sync_data`] returned;
//! * a name that was created, renamed or removed is so durably only after [`Dir::sync`] returned;
//! * [`Dir::create_new`] is atomic among all hosts: of two callers one fails with `AlreadyExists`;
//! * [`File::try_lock`] is freed when its holder's process ends; that is trusted where [`Dir::locks_are_shared`] says so;
//! * [`Dir::exists`] sees a name that another host created before the call. A mount that remembers *missing* names (NFS with
//!   `lookupcache=all`, a FUSE mount with a negative entry timeout) breaks this, and with it the fence.

use std::fmt;
use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::Arc;

/// A file system.
pub trait Fs: fmt::Debug + Send + Sync {
    /// Opens a folder. Fails with `NotFound` when it does not exist.
    fn open_dir(&self, path: &Path) -> io::Result<Arc<dyn Dir>>;
    /// Opens a folder; creates it, and the one above it, durably where they are missing. No more than these two: what should
    /// hold them may be a mount that is away, and then nothing must be written in its place.
    fn create_dir(&self, path: &Path) -> io::Result<Arc<dyn Dir>>;
    /// A number that no other caller on any host gets, for names that must never be used twice.
    fn unique(&self) -> u64;
}

/// One entry of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The file's name.
    pub name: String,
    /// Its length, bytes.
    pub len: u64,
}

/// An open folder. Names are single path components.
pub trait Dir: fmt::Debug + Send + Sync {
    /// Creates a file for reading and writing; fails with `AlreadyExists` when the name is taken.
    fn create_new(&self, name: &str) -> io::Result<Arc<dyn File>>;
    /// Opens a file for reading.
    fn open(&self, name: &str) -> io::Result<Arc<dyn File>>;
    /// Opens a file for reading and writing.
    fn open_rw(&self, name: &str) -> io::Result<Arc<dyn File>>;
    /// True when the name exists now, asked of the file system and not of a cache of ours.
    fn exists(&self, name: &str) -> io::Result<bool>;
    /// Renames a file, replacing the target.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file's name.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// All files, in order of name. An error means that nothing is known: never a part of the list.
    fn list(&self) -> io::Result<Vec<Entry>>;
    /// Makes all creations, renames and removals so far durable.
    fn sync(&self) -> io::Result<()>;
    /// True when a lock that any host holds on a file of this folder is seen by all hosts, so that whoever gets it knows that
    /// its holder is gone. False where that is not known.
    fn locks_are_shared(&self) -> bool {
        false
    }
    /// Why files of this folder are not to be mapped: whoever can cut one short while it is mapped ends the process. `None` when
    /// only processes of this host could, and not told is a reason.
    fn refuses_maps(&self) -> Option<String> {
        Some("it is not known who else can change files there".to_owned())
    }
}

/// Bytes of a file that are not in this process's own memory.
pub type Mapping = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// An open file.
pub trait File: fmt::Debug + Send + Sync {
    /// Writes all of `bufs`, one after the other, from `offset` on. On an error any part may have been written.
    fn write_at(&self, offset: u64, bufs: &mut [IoSlice<'_>]) -> io::Result<()>;
    /// Reads `len` bytes from `offset`; fewer only where the file ends.
    fn read_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>>;
    /// The length, bytes.
    fn len(&self) -> io::Result<u64>;
    /// True when the file has no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
    /// Makes all writes so far, and the length, durable.
    fn sync_data(&self) -> io::Result<()>;
    /// Takes the file's exclusive advisory lock, without waiting, for as long as this handle is open; the system frees it when
    /// the process ends. `Ok(true)` alone means held; `Ok(false)` means that another handle holds it, an error that nothing is
    /// known.
    fn try_lock(&self) -> io::Result<bool> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Maps the first `len` bytes of a file that nobody changes any more. Asked only where [`Dir::refuses_maps`] has no reason.
    fn map(&self, _len: u64) -> io::Result<Mapping> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// How many zeros, bytes, are worth writing ahead of what is appended, so that a later sync finds the length unchanged
    /// and has no more to write than the bytes themselves. 0 where that gains nothing, as on a shared mount, where each sync
    /// makes an object whatever the length.
    fn zeros_ahead(&self) -> u64 {
        0
    }
}
