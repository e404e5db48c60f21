//! A file system that calls a hook before each operation, to play other processes at that very moment.

use std::fmt;
use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::Arc;

use straw::SimFs;
use straw::fs::{Dir, Entry, File, Fs};

pub type Hook = Arc<dyn Fn(&str) + Send + Sync>;

pub struct Hooked {
    pub inner: SimFs,
    pub hook: Hook,
}

/// Tells of each operation when `STRAW_TRACE` is set.
fn trace(operation: &str, name: impl fmt::Debug) {
    static ON: std::sync::LazyLock<bool> = std::sync::LazyLock::new(|| std::env::var_os("STRAW_TRACE").is_some());
    if *ON {
        eprintln!("    {operation} {name:?}");
    }
}

struct HookedDir(Arc<dyn Dir>, Hook);
struct HookedFile(Arc<dyn File>, Hook);

impl fmt::Debug for Hooked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hooked")
    }
}

impl fmt::Debug for HookedDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HookedDir")
    }
}

impl fmt::Debug for HookedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HookedFile")
    }
}

impl Fs for Hooked {
    fn open_dir(&self, path: &Path) -> io::Result<Arc<dyn Dir>> {
        Ok(Arc::new(HookedDir(self.inner.open_dir(path)?, self.hook.clone())))
    }

    fn create_dir(&self, path: &Path) -> io::Result<Arc<dyn Dir>> {
        Ok(Arc::new(HookedDir(self.inner.create_dir(path)?, self.hook.clone())))
    }

    fn unique(&self) -> u64 {
        self.inner.unique()
    }
}

impl HookedDir {
    fn file(&self, file: Arc<dyn File>) -> Arc<dyn File> {
        Arc::new(HookedFile(file, self.1.clone()))
    }
}

impl Dir for HookedDir {
    fn create_new(&self, name: &str) -> io::Result<Arc<dyn File>> {
        (self.1)("create");
        trace("create", name);
        Ok(self.file(self.0.create_new(name)?))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        (self.1)("open");
        trace("open", name);
        Ok(self.file(self.0.open(name)?))
    }

    fn open_rw(&self, name: &str) -> io::Result<Arc<dyn File>> {
        (self.1)("open");
        trace("open", name);
        Ok(self.file(self.0.open_rw(name)?))
    }

    fn exists(&self, name: &str) -> io::Result<bool> {
        (self.1)("exists");
        trace("exists", name);
        self.0.exists(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        (self.1)("rename");
        trace("rename", (from, to));
        self.0.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        (self.1)("remove");
        trace("remove", name);
        self.0.remove(name)
    }

    fn list(&self) -> io::Result<Vec<Entry>> {
        (self.1)("list");
        self.0.list()
    }

    fn sync(&self) -> io::Result<()> {
        (self.1)("sync dir");
        self.0.sync()
    }

    fn locks_are_shared(&self) -> bool {
        self.0.locks_are_shared()
    }
}

impl File for HookedFile {
    fn write_at(&self, offset: u64, bufs: &mut [IoSlice<'_>]) -> io::Result<()> {
        (self.1)("write");
        trace("write", (offset, bufs.iter().map(|b| b.len()).sum::<usize>()));
        self.0.write_at(offset, bufs)
    }

    fn read_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        (self.1)("read");
        self.0.read_at(offset, len)
    }

    fn len(&self) -> io::Result<u64> {
        (self.1)("len");
        self.0.len()
    }

    fn sync_data(&self) -> io::Result<()> {
        (self.1)("sync");
        trace("sync", ());
        self.0.sync_data()
    }
    fn try_lock(&self) -> io::Result<bool> {
        (self.1)("lock");
        self.0.try_lock()
    }

    fn zeros_ahead(&self) -> u64 {
        self.0.zeros_ahead()
    }
}
