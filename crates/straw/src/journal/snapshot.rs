//! Snapshots: the owner's state after a transaction, in a file of its own.

use std::io::IoSlice;

use super::Lsn;
use super::names::Name;
use crate::frame::u64_at;
use crate::fs::Dir;
use crate::limits::{SNAPSHOT_BYTES_MAX, at_most};
use crate::{Error, Result};

const MAGIC: [u8; 8] = *b"STRAWSN1";
/// magic, lsn, length, checksum of all before and of the state
const HEADER: usize = 28;

fn header(lsn: Lsn, state: &[u8]) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    let fields = MAGIC.into_iter().chain(lsn.to_le_bytes()).chain((state.len() as u64).to_le_bytes());
    header.iter_mut().zip(fields).for_each(|(to, from)| *to = from);
    let crc = crc32c::crc32c_append(crc32c::crc32c(header.get(..24).unwrap_or_default()), state);
    header.iter_mut().skip(24).zip(crc.to_le_bytes()).for_each(|(to, from)| *to = from);
    header
}

/// Writes a snapshot under a temporary name, syncs it and renames it. Durable when this returns.
pub(super) fn write_snapshot(dir: &dyn Dir, epoch: u64, lsn: Lsn, state: &[u8]) -> Result<()> {
    at_most("bytes of a snapshot", state.len() as u64, SNAPSHOT_BYTES_MAX)?;
    let temporary = Name::Temporary { epoch }.text();
    let name = Name::Snapshot { lsn, epoch }.text();
    let made = || {
        match dir.remove(&temporary) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e),
            _ => {} // left by a snapshot that failed
        }
        let file = dir.create_new(&temporary)?;
        file.write_at(0, &mut [IoSlice::new(&header(lsn, state)), IoSlice::new(state)])?;
        file.sync_data()?;
        dir.rename(&temporary, &name)?;
        dir.sync()
    };
    made().map_err(|e| Error::io("write", &name, e))
}

/// Reads a snapshot and checks it.
pub(super) fn read_snapshot(dir: &dyn Dir, name: &str, lsn: Lsn) -> Result<Vec<u8>> {
    let io = |e| Error::io("read", name, e);
    let file = dir.open(name).map_err(|e| Error::io("open", name, e))?;
    let len = file.len().map_err(io)?;
    at_most("bytes of a snapshot", len, SNAPSHOT_BYTES_MAX + HEADER as u64)?;
    let mut bytes = file.read_at(0, len as usize).map_err(io)?;
    let state = bytes.split_off(HEADER.min(bytes.len()));
    if bytes != header(lsn, &state) || u64_at(&bytes, 8) != lsn {
        return Err(Error::corrupt(name, 0, "snapshot: wrong checksum or cut short"));
    }
    Ok(state)
}
