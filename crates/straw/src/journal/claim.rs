//! Claiming a journal: the epoch fence, then recovery.

use std::io::IoSlice;
use std::path::Path;
use std::sync::Arc;

use super::names::{Name, SegmentId};
use super::recovery::{self, History, read_history};
use super::segment::{Seal, Segment};
use super::writer::{Journal, fence};
use super::{Lsn, Options, Txn};
use crate::fs::{Dir, Fs};
use crate::limits::{OWNER_BYTES_MAX, name as check_name};
use crate::{Error, Result};

/// What a claim found.
#[derive(Debug)]
pub struct Recovered {
    /// The epoch of the new owner; higher than any before.
    pub epoch: u64,
    /// The newest snapshot.
    pub snapshot: Option<Vec<u8>>,
    /// Transactions after the snapshot, in order. Everything that was acknowledged is here; the last ones may be
    /// transactions whose acknowledgement was lost.
    pub txns: Vec<Txn>,
    /// Number of the last transaction, 0 if there was none.
    pub last: Lsn,
    /// Bytes of torn, never acknowledged frames that were cut off.
    pub torn_bytes: u64,
}

impl Journal {
    /// Claims the journal in `dir` (created when missing) for `owner`, under a new epoch, and reads it. Every earlier owner
    /// is fenced from here on.
    pub fn claim(fs: Arc<dyn Fs>, dir: impl AsRef<Path>, owner: &str) -> Result<(Journal, Recovered)> {
        Self::claim_with(fs, dir, owner, Options::default())
    }

    /// As [`Journal::claim`], with options.
    pub fn claim_with(
        fs: Arc<dyn Fs>,
        dir: impl AsRef<Path>,
        owner: &str,
        options: Options,
    ) -> Result<(Journal, Recovered)> {
        check_name("owner", owner, OWNER_BYTES_MAX)?;
        let path = dir.as_ref().display().to_string();
        let dir = fs.create_dir(dir.as_ref()).map_err(|e| Error::io("create", &path, e))?;
        let epoch = raise_epoch(&*dir, owner)?;
        let history = read_history(&*dir)?;
        make_durable(&*dir, &history)?;
        let seals = history.chain.last().map(|link| Seal { id: link.id, len: link.len });
        let first = history.last + 1;
        let segment = Segment::create(&*dir, SegmentId { epoch, index: 0 }, first, seals)?;
        fence(&*dir, epoch, &segment.name)?;
        let snapshot = history.snapshot.map(|(_, state)| state);
        let recovered =
            Recovered { epoch, snapshot, txns: history.txns, last: history.last, torn_bytes: history.torn_bytes };
        let before = history.chain.iter().map(|link| (link.id, link.first)).collect();
        Ok((Journal::new(dir, epoch, segment, before, options), recovered))
    }
}

impl Journal {
    /// Claims a journal that is to begin with `state`, that of a fork for instance. Should it have begun already (an earlier
    /// call was interrupted, or its answer lost), what is there is given and `state` is not written.
    pub fn begin(fs: Arc<dyn Fs>, dir: impl AsRef<Path>, owner: &str, state: &[u8]) -> Result<(Journal, Recovered)> {
        let (journal, mut found) = Self::claim(fs, dir, owner)?;
        if found.snapshot.is_none() && found.last == 0 {
            journal.snapshot(0, state)?;
            found.snapshot = Some(state.to_vec());
        }
        Ok((journal, found))
    }
}

/// Creates the next epoch's claim exclusively, durable with its name.
fn raise_epoch(dir: &dyn Dir, owner: &str) -> Result<u64> {
    let names = recovery::list(dir)?;
    let mut epoch = names.iter().map(|n| n.epoch()).max().unwrap_or(0);
    loop {
        epoch += 1; // a rival's claim may be taken although a cached listing does not show it
        let name = Name::Claim { epoch }.text();
        let file = match dir.create_new(&name) {
            Ok(file) => file,
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => continue,
            Err(e) => return Err(Error::io("create", name, e)),
        };
        let written = file.write_at(0, &mut [IoSlice::new(owner.as_bytes())]);
        written.and_then(|()| file.sync_data()).and_then(|()| dir.sync()).map_err(|e| Error::io("write", name, e))?;
        return Ok(epoch);
    }
}

/// What was read is visible, not yet durable: a predecessor may have died between its write and its sync, or its sync may
/// have failed, and then another sync alone would be answered well without writing anything. So the last frame is written
/// again, the same bytes at the same place, before it is sealed and acted upon. Every earlier frame was synced before the
/// one behind it was written.
fn make_durable(dir: &dyn Dir, history: &History) -> Result<()> {
    if let Some(last) = history.chain.last() {
        let name = Name::Segment(last.id).text();
        let (offset, bytes) = &history.tail;
        assert_eq!(offset + bytes.len() as u64, last.len, "the tail ends where the segment is sealed");
        let file = dir.open_rw(&name).map_err(|e| Error::io("open", &name, e))?;
        let written = file.write_at(*offset, &mut [IoSlice::new(bytes)]);
        written.and_then(|()| file.sync_data()).map_err(|e| Error::io("sync", &name, e))?;
    }
    dir.sync().map_err(|e| Error::io("sync", "the journal", e))
}
