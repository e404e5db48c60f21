//! Host memory with a borrow check at run time.
//!
//! All `unsafe` about memory lives here. A block is zeroed when it is made, so it is always initialised; a slice is
//! handed out only while the block's borrow counter says that nobody holds a conflicting one.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::any::Any;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, Ordering};

use crate::pool::Pool;
use crate::{Buf, Element, Error, Result, Storage, Tag};

/// Cache line, and enough for any vector load.
const ALIGN: usize = 64;

/// A raw zeroed block that knows its size.
pub(crate) struct Block {
    ptr: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a block is plain memory that one owner holds; access is guarded by the counter in `HostMem`.
unsafe impl Send for Block {}
// SAFETY: as above; `&Block` gives no access to the memory.
unsafe impl Sync for Block {}

impl Block {
    /// `None` when the system has no memory.
    pub(crate) fn new(bytes: usize) -> Option<Block> {
        let layout = Layout::from_size_align(bytes.max(ALIGN), ALIGN).ok()?;
        // SAFETY: the layout has a size of at least ALIGN, so it is not zero.
        let ptr = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Block { ptr, bytes: layout.size() })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: made by `alloc_zeroed` with this very layout in `Block::new`, which checked it.
        unsafe { dealloc(self.ptr.as_ptr(), Layout::from_size_align_unchecked(self.bytes, ALIGN)) }
    }
}

/// Storage of the CPU and reference backends.
pub(crate) struct HostMem {
    block: Option<Block>,
    tag: Tag,
    /// > 0: so many readers; -1: one writer.
    borrow: AtomicIsize,
    home: Arc<Pool>,
}

impl HostMem {
    pub(crate) fn new(block: Block, tag: Tag, home: Arc<Pool>) -> Self {
        HostMem { block: Some(block), tag, borrow: AtomicIsize::new(0), home }
    }

    fn ptr(&self) -> *mut u8 {
        self.block.as_ref().map_or(std::ptr::null_mut(), |b| b.ptr.as_ptr())
    }

    fn begin_read(&self) -> bool {
        self.borrow.fetch_update(Ordering::Acquire, Ordering::Relaxed, |b| (b >= 0).then_some(b + 1)).is_ok()
    }

    fn begin_write(&self) -> bool {
        self.borrow.compare_exchange(0, -1, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }
}

impl Storage for HostMem {
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for HostMem {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            self.home.give_back(block, self.tag);
        }
    }
}

/// A shared borrow of the elements a view spans, strides included.
pub struct HostRead<'a, T> {
    slice: &'a [T],
    mem: &'a HostMem,
}

/// The exclusive borrow of the elements a view spans, strides included.
pub struct HostWrite<'a, T> {
    slice: &'a mut [T],
    mem: &'a HostMem,
}

fn host(buf: &Buf) -> Result<&HostMem> {
    buf.storage().as_any().downcast_ref().ok_or(Error::NotHost)
}

fn check_span<T: Element>(buf: &Buf, offset: usize, len: usize) -> Result<()> {
    if (offset + len) * size_of::<T>() > buf.bytes() {
        return Err(Error::shape(
            "host access",
            format!("elements {offset}..{} lie outside a buffer of {} bytes", offset + len, buf.bytes()),
        ));
    }
    Ok(())
}

pub(crate) fn read<T: Element>(buf: &Buf, offset: usize, len: usize) -> Result<HostRead<'_, T>> {
    // A view without elements may start anywhere, even past the end.
    let offset = if len == 0 { 0 } else { offset };
    check_span::<T>(buf, offset, len)?;
    let mem = host(buf)?;
    if !mem.begin_read() {
        return Err(Error::Conflict { bytes: buf.bytes(), tag: buf.tag() });
    }
    // SAFETY: in bounds (checked above, and a pool block is never smaller than its Buf), initialised (blocks are
    // zeroed when made and only ever overwritten with plain data), aligned (blocks are 64-byte aligned, offsets
    // count elements), any bits are a valid `T: Pod`, and the counter keeps writers out until the guard drops.
    let slice = unsafe { std::slice::from_raw_parts(mem.ptr().cast::<T>().add(offset), len) };
    Ok(HostRead { slice, mem })
}

pub(crate) fn write<T: Element>(buf: &Buf, offset: usize, len: usize) -> Result<HostWrite<'_, T>> {
    // A view without elements may start anywhere, even past the end.
    let offset = if len == 0 { 0 } else { offset };
    check_span::<T>(buf, offset, len)?;
    let mem = host(buf)?;
    if !mem.begin_write() {
        return Err(Error::Conflict { bytes: buf.bytes(), tag: buf.tag() });
    }
    // SAFETY: as in `read`, and the counter keeps everybody else out until the guard drops.
    let slice = unsafe { std::slice::from_raw_parts_mut(mem.ptr().cast::<T>().add(offset), len) };
    Ok(HostWrite { slice, mem })
}

impl<T> Deref for HostRead<'_, T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        self.slice
    }
}

impl<T> Deref for HostWrite<'_, T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        self.slice
    }
}

impl<T> DerefMut for HostWrite<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.slice
    }
}

impl<T> Drop for HostRead<'_, T> {
    fn drop(&mut self) {
        self.mem.borrow.fetch_sub(1, Ordering::Release);
    }
}

impl<T> Drop for HostWrite<'_, T> {
    fn drop(&mut self) {
        self.mem.borrow.store(0, Ordering::Release);
    }
}
