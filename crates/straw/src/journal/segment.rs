//! A segment's header, and the creation of a segment.

use std::io::IoSlice;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Lsn;
use super::names::{Name, SegmentId};
use crate::frame::{self, Salt};
use crate::fs::{Dir, File};
use crate::{Error, Result};

const MAGIC: [u8; 4] = *b"SSEG";
const FORMAT: u32 = 1;
/// Frames begin here. The header is synced before the first frame is written, so a file longer than this with a bad header
/// is damaged, and a shorter one was never in use.
pub(super) const FRAMES_AT: u64 = 128;

/// First record of a segment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Header {
    format: u32,
    /// The first transaction that this segment can hold.
    pub(crate) first: Lsn,
    /// The segment before this one and the length at which it ends, for good.
    pub(crate) seals: Option<Seal>,
}

/// End of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Seal {
    pub(crate) id: SegmentId,
    pub(crate) len: u64,
}

/// A segment that frames are appended to.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    pub(super) id: SegmentId,
    pub(super) name: String,
    pub(super) first: Lsn,
    pub(super) file: Arc<dyn File>,
    pub(super) tail: u64,
    /// Zeros are on disk up to here, where they are worth it ([`File::zeros_ahead`]).
    pub(super) reserved: u64,
}

/// Zeros are first written so far ahead, then as far as the segment is long, up to what the file asks for.
const AHEAD_BYTES_MIN: u64 = 64 << 10;
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Adds so many zeros to a gathered write.
pub(super) fn push_zeros(bufs: &mut Vec<IoSlice<'_>>, mut count: u64) {
    while count > 0 {
        let some = ZEROS.get(..usize::try_from(count).unwrap_or(usize::MAX)).unwrap_or(&ZEROS);
        bufs.push(IoSlice::new(some));
        count -= some.len() as u64;
    }
}

impl Segment {
    /// Creates a segment, durable with its name.
    ///
    /// After an error a file may be left that seals `seals` already: whoever claims the journal may have built upon it, so
    /// it must not be removed, and nothing may be added to the segment it seals.
    pub(super) fn create(dir: &dyn Dir, id: SegmentId, first: Lsn, seals: Option<Seal>) -> Result<Segment> {
        let name = Name::Segment(id).text();
        let file = dir.create_new(&name).map_err(|e| Error::io("create", &name, e))?;
        let segment = Segment { id, name, first, file, tail: FRAMES_AT, reserved: FRAMES_AT };
        let Segment { name, file, .. } = &segment;
        let header = Header { format: FORMAT, first, seals };
        let (mut bytes, _) = frame::encode(MAGIC, &Salt { file: name, offset: 0 }, &header);
        assert!(bytes.len() as u64 <= FRAMES_AT, "a segment's header fits before its frames");
        bytes.resize(FRAMES_AT as usize, 0);
        let written = file.write_at(0, &mut [IoSlice::new(&bytes)]);
        let synced = written.and_then(|()| file.sync_data()).and_then(|()| dir.sync());
        synced.map_err(|e| Error::io("create", name, e))?;
        Ok(segment)
    }

    /// How far zeros should lie once the file is used up to `end`.
    pub(super) fn reserve(&self, end: u64) -> u64 {
        let ahead = self.file.zeros_ahead();
        if end <= self.reserved || ahead == 0 {
            return self.reserved;
        }
        end + end.clamp(AHEAD_BYTES_MIN.min(ahead), ahead)
    }
}

/// Reads a segment's header; `None` when the segment was never in use.
pub(crate) fn read_header(name: &str, file: &dyn File) -> Result<Option<Header>> {
    let io = |e| Error::io("read", name, e);
    let bytes = file.read_at(0, FRAMES_AT as usize).map_err(io)?;
    match frame::decode::<Header>(MAGIC, &Salt { file: name, offset: 0 }, &bytes) {
        Ok(frame) if frame.body.format == FORMAT && frame.body.first > 0 => Ok(Some(frame.body)),
        Ok(frame) if frame.body.format == FORMAT => Err(Error::corrupt(name, 0, "transactions are numbered from 1")),
        Ok(frame) => Err(Error::corrupt(name, 0, format!("format {} is not {FORMAT}", frame.body.format))),
        Err(_) if file.len().map_err(io)? <= FRAMES_AT => Ok(None),
        Err(bad) => Err(Error::corrupt(name, 0, format!("segment header: {}", bad.text()))),
    }
}
