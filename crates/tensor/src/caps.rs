use crate::{DType, Tag};

/// What a backend can do. Callers branch on this, never on a backend's type.
#[derive(Clone, Debug)]
pub struct Caps {
    /// "cpu", "reference", ...
    pub name: &'static str,
    /// Types weights and activations may have.
    pub compute: Vec<DType>,
    /// Largest head dimension of attention.
    pub head_dim_max: usize,
    /// Rows of a batch have the same bits whatever stands beside them.
    pub batch_invariant: bool,
    /// Memory can be read through `Tensor::read` and `Tensor::write`.
    pub host_memory: bool,
    /// Threads one operation may use.
    pub threads: usize,
}

/// A snapshot of the allocator. Bytes are those asked for, rounded up to their size class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemStats {
    pub in_use: [usize; 6],
    pub peak: [usize; 6],
    pub in_use_total: usize,
    pub peak_total: usize,
    /// Bytes that lie free in the pool.
    pub pooled: usize,
    /// How often the pool had to ask the system. Constant once a step is warm.
    pub system_allocs: u64,
}

impl MemStats {
    pub fn in_use(&self, tag: Tag) -> usize {
        self.in_use[tag.index()]
    }

    pub fn peak(&self, tag: Tag) -> usize {
        self.peak[tag.index()]
    }
}
