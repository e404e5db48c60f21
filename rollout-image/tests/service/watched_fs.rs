//! The real file system, with a count of what is asked of it and a gate that holds syncs back.

use std::{
    io::{self, IoSlice},
    path::Path,
    sync::{Arc, Condvar, Mutex},
};

use straw::{
    RealFs,
    fs::{Dir, Entry, File, Fs},
};

/// What was asked so far. Looks at names are not counted: an idle conductor looks once a second whether it still reigns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    pub writes: u64,
    pub syncs: u64,
    pub reads: u64,
    /// Names made, moved or removed.
    pub names: u64,
}

#[derive(Debug, Default)]
struct Gate {
    counted: Counted,
    closed: bool,
    held: u64,
    /// What whoever writes is told.
    refuses: Option<io::ErrorKind>,
}

#[derive(Clone, Debug, Default)]
struct Watch(Arc<(Mutex<Gate>, Condvar)>);

impl Watch {
    fn count(&self, what: fn(&mut Counted) -> &mut u64) {
        *what(&mut self.0.0.lock().unwrap().counted) += 1;
    }

    fn may_write(&self) -> io::Result<()> {
        self.0.0.lock().unwrap().refuses.map_or(Ok(()), |kind| Err(kind.into()))
    }

    fn pass(&self) {
        let (gate, changed) = &*self.0;
        let mut gate = gate.lock().unwrap();
        gate.counted.syncs += 1;
        gate.held += 1;
        changed.notify_all();
        while gate.closed {
            gate = changed.wait(gate).unwrap();
        }
        gate.held -= 1;
    }
}

#[derive(Debug)]
pub struct WatchedFs {
    real: Arc<RealFs>,
    watch: Watch,
}

impl WatchedFs {
    pub fn new() -> Arc<Self> {
        Arc::new(Self { real: RealFs::new(), watch: Watch::default() })
    }

    /// From now on nothing can be written, or everything again.
    pub fn refuse(&self, kind: Option<io::ErrorKind>) {
        self.watch.0.0.lock().unwrap().refuses = kind;
    }

    pub fn counted(&self) -> Counted {
        self.watch.0.0.lock().unwrap().counted
    }

    /// From now on no sync returns.
    pub fn close(&self) {
        self.watch.0.0.lock().unwrap().closed = true;
    }

    /// Lets all go on.
    pub fn open(&self) {
        let (gate, changed) = &*self.watch.0;
        gate.lock().unwrap().closed = false;
        changed.notify_all();
    }

    /// Waits until a sync is held back.
    pub fn until_held(&self) {
        let (gate, changed) = &*self.watch.0;
        let mut gate = gate.lock().unwrap();
        while gate.held == 0 {
            gate = changed.wait(gate).unwrap();
        }
    }

    fn dir(&self, real: Arc<dyn Dir>) -> Arc<dyn Dir> {
        Arc::new(WatchedDir { real, watch: self.watch.clone() })
    }
}

impl Fs for WatchedFs {
    fn open_dir(&self, path: &Path) -> io::Result<Arc<dyn Dir>> {
        Ok(self.dir(self.real.open_dir(path)?))
    }

    fn create_dir(&self, path: &Path) -> io::Result<Arc<dyn Dir>> {
        self.watch.may_write()?;
        Ok(self.dir(self.real.create_dir(path)?))
    }

    fn unique(&self) -> u64 {
        self.real.unique()
    }
}

#[derive(Debug)]
struct WatchedDir {
    real: Arc<dyn Dir>,
    watch: Watch,
}

impl WatchedDir {
    fn file(&self, real: Arc<dyn File>) -> Arc<dyn File> {
        Arc::new(WatchedFile { real, watch: self.watch.clone() })
    }
}

impl Dir for WatchedDir {
    fn create_new(&self, name: &str) -> io::Result<Arc<dyn File>> {
        self.watch.may_write()?;
        self.watch.count(|counted| &mut counted.names);
        Ok(self.file(self.real.create_new(name)?))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        Ok(self.file(self.real.open(name)?))
    }

    fn open_rw(&self, name: &str) -> io::Result<Arc<dyn File>> {
        Ok(self.file(self.real.open_rw(name)?))
    }

    fn exists(&self, name: &str) -> io::Result<bool> {
        self.real.exists(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.watch.count(|counted| &mut counted.names);
        self.real.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.watch.count(|counted| &mut counted.names);
        self.real.remove(name)
    }

    fn list(&self) -> io::Result<Vec<Entry>> {
        self.real.list()
    }

    fn sync(&self) -> io::Result<()> {
        self.watch.count(|counted| &mut counted.names);
        self.real.sync()
    }

    fn locks_are_shared(&self) -> bool {
        self.real.locks_are_shared()
    }
}

#[derive(Debug)]
struct WatchedFile {
    real: Arc<dyn File>,
    watch: Watch,
}

impl File for WatchedFile {
    fn write_at(&self, offset: u64, bufs: &mut [IoSlice<'_>]) -> io::Result<()> {
        self.watch.may_write()?;
        self.watch.count(|counted| &mut counted.writes);
        self.real.write_at(offset, bufs)
    }

    fn read_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        self.watch.count(|counted| &mut counted.reads);
        self.real.read_at(offset, len)
    }

    fn len(&self) -> io::Result<u64> {
        self.real.len()
    }

    fn sync_data(&self) -> io::Result<()> {
        self.watch.pass();
        self.real.sync_data()
    }

    fn try_lock(&self) -> io::Result<bool> {
        self.real.try_lock()
    }

    fn zeros_ahead(&self) -> u64 {
        self.real.zeros_ahead()
    }
}
