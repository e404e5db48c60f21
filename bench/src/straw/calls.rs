//! The real file system, with a count of what is asked of it; each read may wait, as for a network.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use straw::watched_fs::{Call, Operation, Watch, WatchedFs};
use straw::{Fs, RealFs};

/// Calls so far.
#[derive(Debug, Default)]
pub struct Calls {
    read_wait: Duration,
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
    /// Counts from zero.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Lets each read wait.
    pub fn waiting(read_wait: Duration) -> Arc<Self> {
        Arc::new(Self { read_wait, ..Self::default() })
    }

    /// The file system whose calls these are.
    pub fn fs(self: &Arc<Self>) -> Arc<dyn Fs> {
        WatchedFs::new(RealFs::new(), self.clone())
    }

    /// As of now.
    pub fn now(&self) -> Counted {
        let get = |x: &AtomicU64| x.load(Relaxed);
        Counted { writes: get(&self.writes), reads: get(&self.reads), syncs: get(&self.syncs), names: get(&self.names) }
    }
}

impl Watch for Calls {
    fn before(&self, call: &Call<'_>) -> io::Result<()> {
        use Operation::{
            Create, CreateDir, Exists, Len, List, Lock, Map, Open, OpenDir, Read, Remove, Rename, Sync, SyncDir, Write,
        };
        let count = match call.operation {
            Write => &self.writes,
            Read => &self.reads,
            Sync | SyncDir => &self.syncs,
            OpenDir | CreateDir | Create | Open | Exists | Rename | Remove | List => &self.names,
            Len | Lock | Map => return Ok(()),
        };
        count.fetch_add(1, Relaxed);
        if call.operation == Read && !self.read_wait.is_zero() {
            std::thread::sleep(self.read_wait);
        }
        Ok(())
    }
}
