//! The real file system, with a count of what is asked of it; each read may wait, as for a network.

use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use straw::RealFs;
use straw::fs::{Dir, Entry, File, Fs};

/// Calls so far.
#[derive(Debug, Default)]
pub struct Calls {
    writes: AtomicU64,
    reads: AtomicU64,
    syncs: AtomicU64,
    names: AtomicU64,
}

/// A reading of [`Calls`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Counted {
    /// Gathered writes.
    pub writes: u64,
    /// Positioned reads.
    pub reads: u64,
    /// Syncs of files and folders.
    pub syncs: u64,
    /// Calls that look a name up: create, open, exists, rename, remove, list.
    pub names: u64,
}

impl Calls {
    /// As of now.
    pub fn now(&self) -> Counted {
        let get = |x: &AtomicU64| x.load(Relaxed);
        Counted { writes: get(&self.writes), reads: get(&self.reads), syncs: get(&self.syncs), names: get(&self.names) }
    }
}

/// Counts, and passes on.
#[derive(Debug)]
pub struct CountingFs {
    real: Arc<RealFs>,
    read_wait: Duration,
    /// The count.
    pub calls: Arc<Calls>,
}

impl CountingFs {
    /// Counts from zero.
    pub fn new() -> Arc<Self> {
        Self::waiting(Duration::ZERO)
    }

    /// Lets each read wait.
    pub fn waiting(read_wait: Duration) -> Arc<Self> {
        Arc::new(Self { real: RealFs::new(), read_wait, calls: Arc::default() })
    }

    fn dir(&self, real: Arc<dyn Dir>) -> Arc<dyn Dir> {
        Arc::new(CountedDir { real, read_wait: self.read_wait, calls: self.calls.clone() })
    }
}

impl Fs for CountingFs {
    fn open_dir(&self, path: &Path) -> io::Result<Arc<dyn Dir>> {
        self.calls.names.fetch_add(1, Relaxed);
        Ok(self.dir(self.real.open_dir(path)?))
    }

    fn create_dir(&self, path: &Path) -> io::Result<Arc<dyn Dir>> {
        self.calls.names.fetch_add(1, Relaxed);
        Ok(self.dir(self.real.create_dir(path)?))
    }

    fn unique(&self) -> u64 {
        self.real.unique()
    }
}

#[derive(Debug)]
struct CountedDir {
    real: Arc<dyn Dir>,
    read_wait: Duration,
    calls: Arc<Calls>,
}

impl CountedDir {
    fn file(&self, real: Arc<dyn File>) -> Arc<dyn File> {
        Arc::new(CountedFile { real, read_wait: self.read_wait, calls: self.calls.clone() })
    }

    fn named(&self) -> &dyn Dir {
        self.calls.names.fetch_add(1, Relaxed);
        &*self.real
    }
}

impl Dir for CountedDir {
    fn create_new(&self, name: &str) -> io::Result<Arc<dyn File>> {
        Ok(self.file(self.named().create_new(name)?))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        Ok(self.file(self.named().open(name)?))
    }

    fn open_rw(&self, name: &str) -> io::Result<Arc<dyn File>> {
        Ok(self.file(self.named().open_rw(name)?))
    }

    fn exists(&self, name: &str) -> io::Result<bool> {
        self.named().exists(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.named().rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.named().remove(name)
    }

    fn list(&self) -> io::Result<Vec<Entry>> {
        self.named().list()
    }

    fn sync(&self) -> io::Result<()> {
        self.calls.syncs.fetch_add(1, Relaxed);
        self.real.sync()
    }

    fn locks_are_shared(&self) -> bool {
        self.real.locks_are_shared()
    }
}

#[derive(Debug)]
struct CountedFile {
    real: Arc<dyn File>,
    read_wait: Duration,
    calls: Arc<Calls>,
}

impl File for CountedFile {
    fn write_at(&self, offset: u64, bufs: &mut [IoSlice<'_>]) -> io::Result<()> {
        self.calls.writes.fetch_add(1, Relaxed);
        self.real.write_at(offset, bufs)
    }

    fn read_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        self.calls.reads.fetch_add(1, Relaxed);
        if !self.read_wait.is_zero() {
            std::thread::sleep(self.read_wait);
        }
        self.real.read_at(offset, len)
    }

    fn len(&self) -> io::Result<u64> {
        self.real.len()
    }

    fn sync_data(&self) -> io::Result<()> {
        self.calls.syncs.fetch_add(1, Relaxed);
        self.real.sync_data()
    }
    fn try_lock(&self) -> io::Result<bool> {
        self.real.try_lock()
    }

    fn zeros_ahead(&self) -> u64 {
        self.real.zeros_ahead()
    }
}
