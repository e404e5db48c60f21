//! The one place where memory is not what the compiler can vouch for: a file that is mapped.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::fs::Mapping;

/// Maps the first `len` bytes of a file for reading.
///
/// The mapping is sound only for as long as nobody changes those bytes or cuts the file short: a changed byte would be changed
/// under a `&[u8]`, and a page behind the end ends the process (SIGBUS). So it is asked only for a *sealed* pack, which no writer
/// opens again and nothing of straw ever changes or truncates (a pack that is removed keeps its bytes for as long as it is mapped),
/// and only where [`crate::fs::Dir::refuses_maps`] says that no other host can do so. What is left is whoever edits packs by hand on
/// this host, and a disk that cannot be read: that, too, is a signal instead of an error.
pub(crate) fn map(fd: &OwnedFd, len: u64) -> io::Result<Mapping> {
    let len = usize::try_from(len).map_err(|_| io::ErrorKind::FileTooLarge)?;
    // SAFETY: as above; the callers keep to it.
    let map = unsafe { memmap2::MmapOptions::new().len(len).map(fd.as_raw_fd()) }?;
    Ok(std::sync::Arc::new(map))
}
