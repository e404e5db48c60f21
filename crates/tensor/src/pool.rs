use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::host::{Block, HostMem};
use crate::{Buf, Error, MemStats, Result, Tag};

/// Size-class pool of host blocks. A freed block waits in its class for the next buffer of that class, so a training
/// step that repeats its shapes asks the system for nothing after the first.
pub(crate) struct Pool {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    free: BTreeMap<usize, Vec<Block>>,
    stats: MemStats,
}

/// Four classes per power of two: at most a quarter of a block is slack.
fn size_class(bytes: usize) -> usize {
    let bytes = bytes.max(64);
    let step = (bytes.next_power_of_two() / 8).max(64);
    bytes.div_ceil(step) * step
}

impl Pool {
    pub(crate) fn new() -> Arc<Pool> {
        Arc::new(Pool { inner: Mutex::new(Inner::default()) })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The contents are whatever the last owner left.
    pub(crate) fn alloc(self: &Arc<Self>, bytes: usize, tag: Tag) -> Result<Buf> {
        let class = size_class(bytes);
        let mut inner = self.lock();
        let pooled = inner.free.get_mut(&class).and_then(Vec::pop);
        let block = match pooled {
            Some(b) => {
                inner.stats.pooled -= b.bytes();
                b
            }
            None => {
                inner.stats.system_allocs += 1;
                Block::new(class).ok_or(Error::OutOfMemory { bytes, tag })?
            }
        };
        let s = &mut inner.stats;
        s.in_use[tag.index()] += block.bytes();
        s.in_use_total += block.bytes();
        s.peak[tag.index()] = s.peak[tag.index()].max(s.in_use[tag.index()]);
        s.peak_total = s.peak_total.max(s.in_use_total);
        drop(inner);
        Ok(Buf::new(bytes, tag, Box::new(HostMem::new(block, tag, self.clone()))))
    }

    pub(crate) fn give_back(&self, block: Block, tag: Tag) {
        let mut inner = self.lock();
        inner.stats.in_use[tag.index()] -= block.bytes();
        inner.stats.in_use_total -= block.bytes();
        inner.stats.pooled += block.bytes();
        inner.free.entry(block.bytes()).or_default().push(block);
    }

    pub(crate) fn stats(&self) -> MemStats {
        self.lock().stats
    }

    /// Give every pooled block back to the system.
    pub(crate) fn trim(&self) {
        let mut inner = self.lock();
        inner.free.clear();
        inner.stats.pooled = 0;
    }
}
