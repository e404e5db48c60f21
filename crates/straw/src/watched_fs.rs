//! A file system that shows each call to a watcher before it makes it: to count calls, to hold one up, to let one fail, or to let
//! something else happen at that very moment. For tests and measurements.

use std::fmt;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::fs::{Dir, Entry, File, Fs, Mapping};

/// What is asked of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// [`Fs::open_dir`].
    OpenDir,
    /// [`Fs::create_dir`].
    CreateDir,
    /// [`Dir::create_new`].
    Create,
    /// [`Dir::open`] and [`Dir::open_rw`].
    Open,
    /// [`Dir::exists`].
    Exists,
    /// [`Dir::rename`].
    Rename,
    /// [`Dir::remove`].
    Remove,
    /// [`Dir::list`].
    List,
    /// [`Dir::sync`].
    SyncDir,
    /// [`File::write_at`].
    Write,
    /// [`File::read_at`].
    Read,
    /// [`File::len`].
    Len,
    /// [`File::sync_data`].
    Sync,
    /// [`File::try_lock`].
    Lock,
    /// [`File::map`].
    Map,
}

/// One call.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// What is asked.
    pub operation: Operation,
    /// The folder it is asked of.
    pub dir: &'a Path,
    /// The file; of a rename its new name, empty where the folder itself is meant.
    pub name: &'a str,
    /// Bytes to write, read or map.
    pub bytes: u64,
}

/// Who is shown the calls.
pub trait Watch: Send + Sync {
    /// Before the call. An error is what the caller gets instead of it.
    fn before(&self, call: &Call<'_>) -> io::Result<()> {
        let _ = call;
        Ok(())
    }

    /// After a call that went well.
    fn after(&self, call: &Call<'_>) {
        let _ = call;
    }
}

/// See the module.
pub struct WatchedFs {
    inner: Arc<dyn Fs>,
    watch: Arc<dyn Watch>,
}

impl WatchedFs {
    /// Shows `watch` what is asked of `inner`.
    pub fn new(inner: Arc<dyn Fs>, watch: Arc<dyn Watch>) -> Arc<Self> {
        Arc::new(WatchedFs { inner, watch })
    }

    fn dir(
        &self,
        operation: Operation,
        path: &Path,
        open: impl FnOnce() -> io::Result<Arc<dyn Dir>>,
    ) -> io::Result<Arc<dyn Dir>> {
        let inner = shown(&*self.watch, &Call { operation, dir: path, name: "", bytes: 0 }, open)?;
        Ok(Arc::new(WatchedDir { inner, path: path.to_owned(), watch: self.watch.clone() }))
    }
}

/// Makes the call, shown before and after.
fn shown<T>(watch: &dyn Watch, call: &Call<'_>, make: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    watch.before(call)?;
    let made = make()?;
    watch.after(call);
    Ok(made)
}

impl fmt::Debug for WatchedFs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WatchedFs").field(&self.inner).finish()
    }
}

impl Fs for WatchedFs {
    fn open_dir(&self, path: &Path) -> io::Result<Arc<dyn Dir>> {
        self.dir(Operation::OpenDir, path, || self.inner.open_dir(path))
    }

    fn create_dir(&self, path: &Path) -> io::Result<Arc<dyn Dir>> {
        self.dir(Operation::CreateDir, path, || self.inner.create_dir(path))
    }

    fn unique(&self) -> u64 {
        self.inner.unique()
    }
}

struct WatchedDir {
    inner: Arc<dyn Dir>,
    path: PathBuf,
    watch: Arc<dyn Watch>,
}

impl WatchedDir {
    fn shown<T>(
        &self,
        operation: Operation,
        name: &str,
        make: impl FnOnce(&dyn Dir) -> io::Result<T>,
    ) -> io::Result<T> {
        shown(&*self.watch, &Call { operation, dir: &self.path, name, bytes: 0 }, || make(&*self.inner))
    }

    fn file(&self, name: &str, inner: Arc<dyn File>) -> Arc<dyn File> {
        Arc::new(WatchedFile { inner, dir: self.path.clone(), name: name.to_owned(), watch: self.watch.clone() })
    }
}

impl fmt::Debug for WatchedDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WatchedDir").field(&self.inner).finish()
    }
}

impl Dir for WatchedDir {
    fn create_new(&self, name: &str) -> io::Result<Arc<dyn File>> {
        let file = self.shown(Operation::Create, name, |dir| dir.create_new(name))?;
        Ok(self.file(name, file))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        let file = self.shown(Operation::Open, name, |dir| dir.open(name))?;
        Ok(self.file(name, file))
    }

    fn open_rw(&self, name: &str) -> io::Result<Arc<dyn File>> {
        let file = self.shown(Operation::Open, name, |dir| dir.open_rw(name))?;
        Ok(self.file(name, file))
    }

    fn exists(&self, name: &str) -> io::Result<bool> {
        self.shown(Operation::Exists, name, |dir| dir.exists(name))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.shown(Operation::Rename, to, |dir| dir.rename(from, to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.shown(Operation::Remove, name, |dir| dir.remove(name))
    }

    fn list(&self) -> io::Result<Vec<Entry>> {
        self.shown(Operation::List, "", |dir| dir.list())
    }

    fn sync(&self) -> io::Result<()> {
        self.shown(Operation::SyncDir, "", |dir| dir.sync())
    }

    fn locks_are_shared(&self) -> bool {
        self.inner.locks_are_shared()
    }

    fn refuses_maps(&self) -> Option<String> {
        self.inner.refuses_maps()
    }
}

struct WatchedFile {
    inner: Arc<dyn File>,
    dir: PathBuf,
    name: String,
    watch: Arc<dyn Watch>,
}

impl WatchedFile {
    fn shown<T>(
        &self,
        operation: Operation,
        bytes: u64,
        make: impl FnOnce(&dyn File) -> io::Result<T>,
    ) -> io::Result<T> {
        shown(&*self.watch, &Call { operation, dir: &self.dir, name: &self.name, bytes }, || make(&*self.inner))
    }
}

impl fmt::Debug for WatchedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WatchedFile").field(&self.inner).finish()
    }
}

impl File for WatchedFile {
    fn write_at(&self, offset: u64, bufs: &mut [IoSlice<'_>]) -> io::Result<()> {
        let bytes = bufs.iter().map(|buf| buf.len() as u64).sum();
        self.shown(Operation::Write, bytes, |file| file.write_at(offset, bufs))
    }

    fn read_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        self.shown(Operation::Read, len as u64, |file| file.read_at(offset, len))
    }

    fn len(&self) -> io::Result<u64> {
        self.shown(Operation::Len, 0, |file| file.len())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.shown(Operation::Sync, 0, |file| file.sync_data())
    }

    fn try_lock(&self) -> io::Result<bool> {
        self.shown(Operation::Lock, 0, |file| file.try_lock())
    }

    fn map(&self, len: u64) -> io::Result<Mapping> {
        self.shown(Operation::Map, len, |file| file.map(len))
    }

    fn zeros_ahead(&self) -> u64 {
        self.inner.zeros_ahead()
    }
}
