use std::any::Any;

/// What a buffer is for. Peaks are counted per tag, and a backend may put a whole tag to sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tag {
    Weight,
    Grad,
    Optim,
    Act,
    Kv,
    Work,
}

impl Tag {
    pub const ALL: [Tag; 6] = [Tag::Weight, Tag::Grad, Tag::Optim, Tag::Act, Tag::Kv, Tag::Work];

    pub(crate) const fn index(self) -> usize {
        self as usize
    }
}

/// Memory of one backend. Dropping it gives the memory back to the backend's pool.
pub trait Storage: Send + Sync {
    fn as_any(&self) -> &dyn Any;
}

/// An allocation on some device, opaque but for its size and its tag. Tensors share it through `Arc<Buf>`.
pub struct Buf {
    bytes: usize,
    tag: Tag,
    storage: Box<dyn Storage>,
}

impl Buf {
    /// Made by backends only.
    pub fn new(bytes: usize, tag: Tag, storage: Box<dyn Storage>) -> Self {
        Buf { bytes, tag, storage }
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn tag(&self) -> Tag {
        self.tag
    }

    pub fn storage(&self) -> &dyn Storage {
        &*self.storage
    }
}

impl std::fmt::Debug for Buf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Buf").field("bytes", &self.bytes).field("tag", &self.tag).finish_non_exhaustive()
    }
}
