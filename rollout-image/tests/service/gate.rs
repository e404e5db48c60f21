//! The real file system, with a count of what is asked of it and a gate that holds syncs back.

use std::{
    io,
    sync::{Arc, Condvar, Mutex},
};

use straw::{
    Fs, RealFs,
    watched_fs::{Call, Operation, Watch, WatchedFs},
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
struct State {
    counted: Counted,
    closed: bool,
    held: u64,
    /// What whoever writes is told.
    refuses: Option<io::ErrorKind>,
}

/// Counts, holds back, refuses.
#[derive(Debug, Default)]
pub struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

impl Watch for Gate {
    fn before(&self, call: &Call<'_>) -> io::Result<()> {
        use Operation::{Create, CreateDir, Read, Remove, Rename, Sync, SyncDir, Write};
        let mut state = self.state.lock().unwrap();
        if let (Write | Create | CreateDir, Some(kind)) = (call.operation, state.refuses) {
            return Err(kind.into());
        }
        match call.operation {
            Write => state.counted.writes += 1,
            Read => state.counted.reads += 1,
            Create | Rename | Remove | SyncDir => state.counted.names += 1,
            Sync => {
                state.counted.syncs += 1;
                state.held += 1;
                self.changed.notify_all();
                while state.closed {
                    state = self.changed.wait(state).unwrap();
                }
                state.held -= 1;
            }
            _ => {}
        }
        Ok(())
    }
}

impl Gate {
    /// A gate that is open.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// The file system behind it.
    pub fn fs(self: &Arc<Self>) -> Arc<dyn Fs> {
        WatchedFs::new(RealFs::new(), self.clone())
    }

    /// From now on nothing can be written, or everything again.
    pub fn refuse(&self, kind: Option<io::ErrorKind>) {
        self.state.lock().unwrap().refuses = kind;
    }

    pub fn counted(&self) -> Counted {
        self.state.lock().unwrap().counted
    }

    /// From now on no sync returns.
    pub fn close(&self) {
        self.state.lock().unwrap().closed = true;
    }

    /// Lets all go on.
    pub fn open(&self) {
        self.state.lock().unwrap().closed = false;
        self.changed.notify_all();
    }

    /// Waits until a sync is held back.
    pub fn until_held(&self) {
        let mut state = self.state.lock().unwrap();
        while state.held == 0 {
            state = self.changed.wait(state).unwrap();
        }
    }
}
