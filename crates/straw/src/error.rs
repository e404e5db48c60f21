//! The one error type of this crate.

use std::io;

use crate::queue::Refused;

/// What went wrong, where, and (in the message) what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file system refused an operation. The same call may be tried again.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// What was tried: `open`, `write`, `sync`, ...
        action: &'static str,
        /// The file or folder, with its offset where there is one.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// The volume or its quota is full. Nothing was acknowledged; the same call may be tried again once space is free.
    #[error("no space left to {action} {path}: free space or raise the quota, then try again")]
    OutOfSpace {
        /// What was tried.
        action: &'static str,
        /// The file or folder.
        path: String,
    },
    /// A pack that a reference names is not there: it was collected, or the reference is of another store.
    #[error("pack {pack} is not in {dir}: it was collected, or the reference belongs to another store")]
    PackMissing {
        /// Name of the pack.
        pack: String,
        /// Folder of the store.
        dir: String,
    },
    /// The file is shorter than the reference says, or reads as zeros there. On a shared mount the bytes may not have
    /// arrived yet: try again a little later.
    #[error("{path} at {offset}: bytes are not visible yet (short or zero); try again shortly")]
    NotVisible {
        /// The file.
        path: String,
        /// Offset of the first missing byte's record.
        offset: u64,
    },
    /// Bytes do not have the checksum that was promised for them. Trying again will not help.
    #[error("{path} at {offset}: corrupt: {what}")]
    Corrupt {
        /// The file.
        path: String,
        /// Where the bad structure begins.
        offset: u64,
        /// Which check failed.
        what: String,
    },
    /// A higher epoch owns this journal. The transaction is not acknowledged; this process must stop acting as owner.
    #[error("epoch {epoch} is fenced: epoch {by} has claimed the journal; stop, or claim it anew")]
    Fenced {
        /// The epoch of this handle.
        epoch: u64,
        /// A higher epoch, or this epoch itself when only the removal of its segment was seen.
        by: u64,
    },
    /// An earlier write or sync failed in a way that leaves the file's state unknown. Open or claim anew.
    #[error("{path} is closed after a failed write or sync: open it anew")]
    Poisoned {
        /// The file.
        path: String,
    },
    /// The same submission was published before with other content.
    #[error("submission {submission} was already published with other content: use a new submission id")]
    SubmissionConflict {
        /// The submission id.
        submission: String,
    },
    /// A limit of [`crate::limits`] was exceeded.
    #[error("{what} is {value}, at most {max} is allowed")]
    Limit {
        /// The limited quantity, with its unit.
        what: &'static str,
        /// The value given.
        value: u64,
        /// The largest value allowed.
        max: u64,
    },
    /// A name is empty, too long, or has characters outside `[a-z0-9._-]`.
    #[error("{what} {name:?} must be 1 to {max} characters of [a-z0-9._-] and begin with a letter or digit")]
    BadName {
        /// What the name is for.
        what: &'static str,
        /// The name given.
        name: String,
        /// The largest length allowed.
        max: usize,
    },
    /// A tensor's bytes do not fit its shape, its type is not the one asked for, or the rows lie outside it.
    #[error("tensor {name}: {what}")]
    Tensor {
        /// The tensor's name, or `?` where it has none yet.
        name: String,
        /// What does not fit.
        what: String,
    },
    /// Packs here are not to be mapped. They are read without a mapping all the same.
    #[error("{path} is not mapped: {why}; records are read with a copy")]
    NotMappable {
        /// Folder of the store.
        path: String,
        /// What could end the process.
        why: String,
    },
    /// A queue of this name has left the pool ([`crate::Member::leave`]).
    #[error("queue {queue} has left the pool: use another name, names are used once")]
    QueueLeft {
        /// The queue's name.
        queue: String,
    },
    /// The queue refused a request; nothing changed.
    #[error(transparent)]
    Refused(#[from] Refused),
}

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// True when the same call may succeed later without any other action than waiting or freeing space.
    pub fn is_retryable(&self) -> bool {
        match self {
            // Who may not, may not later either.
            Error::Io { source, .. } => {
                !matches!(source.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
            }
            Error::OutOfSpace { .. } | Error::NotVisible { .. } => true,
            _ => false,
        }
    }

    /// Wraps an operating system error, telling a full volume apart.
    pub(crate) fn io(action: &'static str, path: impl Into<String>, source: io::Error) -> Self {
        let path = path.into();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::OutOfSpace { action, path },
            _ => Error::Io { action, path, source },
        }
    }

    /// Names a failed check.
    pub(crate) fn corrupt(path: impl Into<String>, offset: u64, what: impl Into<String>) -> Self {
        Error::Corrupt { path: path.into(), offset, what: what.into() }
    }
}
