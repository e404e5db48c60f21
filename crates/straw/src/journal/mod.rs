//! The journal: an ordered log of transactions with one owner at a time.
//!
//! # Fence
//!
//! A claim creates the file `epoch-N` exclusively: that is the fence. The owner of epoch N acknowledges a transaction only
//! after it was synced **and** `epoch-(N+1)` did not exist afterwards. A successor reads the predecessor's segment after
//! its own claim, and the first record of its own segment seals the predecessor's at the length it has read. So whatever
//! was acknowledged has been read, and whatever a zombie adds beyond the seal is never read by anyone.
//!
//! # Files
//!
//! | file | what |
//! |---|---|
//! | `epoch-N` | claim of epoch N, holds the owner's name |
//! | `seg-N-K.log` | segment K of epoch N: a header that seals its predecessor, then frames |
//! | `snap-L-N.snap` | state after transaction L, written by epoch N |
//!
//! A frame is one group commit: a header of 20 bytes and the transactions that were waiting. On file systems where a sync that
//! lengthens a file costs more than one that does not, zeros are written ahead of the frames. Since a frame is synced before
//! the next is written, a frame that is damaged although a good one follows is corruption ([`crate::Error::Corrupt`]); a
//! damaged frame with nothing good behind it is a torn tail and is dropped. Zeros at the end are a torn tail too.

mod claim;
mod frames;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod names;
mod recovery;
mod segment;
mod snapshot;
mod writer;

use std::path::Path;

use crate::fs::Fs;
use crate::limits::OWNER_BYTES_MAX;
use crate::{Error, Result};

pub use claim::Recovered;
pub use writer::{Journal, Pipeline, Ticket};

pub(crate) use names::Name;
pub(crate) use recovery::{History, read_history};

/// Reads a journal without claiming it: the newest snapshot, and the transactions behind it. Its owner may be alive.
///
/// # Errors
/// [`crate::Error::Io`]; [`crate::Error::Corrupt`] for damage that is no torn tail.
pub fn read(fs: &dyn Fs, dir: impl AsRef<Path>) -> Result<(Option<Vec<u8>>, Vec<Txn>)> {
    let dir = dir.as_ref();
    let open = fs.open_dir(dir).map_err(|e| Error::io("open", dir.display().to_string(), e))?;
    let history = read_history(&*open)?;
    Ok((history.snapshot.map(|(_, state)| state), history.txns))
}

/// The highest epoch that was claimed, and by whom; nothing when there is no journal. A claim that is being written may have
/// no name yet.
///
/// # Errors
/// [`crate::Error::Io`].
pub fn owner(fs: &dyn Fs, dir: impl AsRef<Path>) -> Result<Option<(u64, String)>> {
    let path = dir.as_ref().display().to_string();
    let open = match fs.open_dir(dir.as_ref()) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        open => open.map_err(|e| Error::io("open", path, e))?,
    };
    let claims = recovery::list(&*open)?.into_iter().filter(|name| matches!(name, Name::Claim { .. }));
    let Some(newest) = claims.max_by_key(|name| name.epoch()) else { return Ok(None) };
    let name = newest.text();
    let file = open.open(&name).map_err(|e| Error::io("open", &name, e))?;
    let bytes = file.read_at(0, OWNER_BYTES_MAX).map_err(|e| Error::io("read", &name, e))?;
    Ok(Some((newest.epoch(), String::from_utf8_lossy(&bytes).into_owned())))
}

/// Sequence number of a transaction: 1 for the first in the journal's life, rising by 1.
pub type Lsn = u64;

/// One transaction: records in the order they were given.
pub type Txn = Vec<Vec<u8>>;

/// How a journal writes.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// A new segment is begun when the current one would pass this length, bytes.
    pub segment_bytes_target: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options { segment_bytes_target: 64 << 20 }
    }
}
