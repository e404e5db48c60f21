//! A simulated file system that calls a hook before each operation in an open folder, to play other processes at that very moment.

use std::io;
use std::sync::{Arc, LazyLock};

use straw::SimFs;
use straw::fs::Fs;
use straw::watched_fs::{Call, Operation, Watch, WatchedFs};

struct Hook<F>(F);

impl<F: Fn(Operation) + Send + Sync> Watch for Hook<F> {
    fn before(&self, call: &Call<'_>) -> io::Result<()> {
        // Tells of each operation when `STRAW_TRACE` is set.
        static TRACES: LazyLock<bool> = LazyLock::new(|| std::env::var_os("STRAW_TRACE").is_some());
        if matches!(call.operation, Operation::OpenDir | Operation::CreateDir) {
            return Ok(());
        }
        (self.0)(call.operation);
        if *TRACES {
            eprintln!("    {:?} {} {}", call.operation, call.name, call.bytes);
        }
        Ok(())
    }
}

/// `sim` with a hook.
pub fn hooked(sim: &SimFs, hook: impl Fn(Operation) + Send + Sync + 'static) -> Arc<dyn Fs> {
    WatchedFs::new(Arc::new(sim.clone()), Arc::new(Hook(hook)))
}
