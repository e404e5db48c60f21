//! Reads a pack without references: what receipts, `inspect` and `verify` know comes from here.
//!
//! A pack that was never sealed is walked. An extent counts only when every byte of it has its checksum; whatever lies
//! between good extents (a write that failed or was torn by a crash) is a gap and was never acknowledged.

use std::io::IoSlice;

use crate::extent::{self, Header};
use crate::frame::{self, ALIGN, PREFIX, Salt};
use crate::front::Front;
use crate::fs::File;
use crate::limits::HEADER_BYTES_MAX;
use crate::pack::{self, file_name};
use crate::{Error, Ref, Result};

/// Bytes looked at together when searching for the next extent.
const PROBE: usize = 256 << 10;

/// One whole extent.
#[derive(Clone, Debug)]
pub(crate) struct Extent {
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) submission: String,
    pub(crate) refs: Vec<Ref>,
    settled_below: u64,
}

/// What a pack holds.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    pub(crate) sealed: bool,
    pub(crate) extents: Vec<Extent>,
    /// Bytes that belong to no extent, header or footer.
    pub(crate) gap_bytes: u64,
    /// Acknowledged bytes that are damaged. Only a sealed pack can tell them from a torn write.
    pub(crate) errors: Vec<(u64, String)>,
}

impl Scan {
    /// Makes what was found in a pack durable. Visible is not durable yet: its writer may have died before its sync, or the
    /// sync failed, and then another sync alone would be answered well without writing anything. So extents that no later
    /// one vouches for are written again, the same bytes at the same place.
    pub(crate) fn make_durable(&self, name: &str, file: &dyn File) -> Result<()> {
        let settled = self.extents.iter().map(|e| e.settled_below).max().unwrap_or(0);
        for extent in self.extents.iter().filter(|e| e.offset >= settled) {
            let io = |e| Error::io("write", format!("{} at {}", file_name(name), extent.offset), e);
            let len = usize::try_from(extent.len).unwrap_or(usize::MAX);
            let bytes = file.read_at(extent.offset, len).map_err(io)?;
            file.write_at(extent.offset, &mut [IoSlice::new(&bytes)]).map_err(io)?;
        }
        if !self.extents.is_empty() {
            let header = file.read_at(0, self.first_extent_at()).map_err(|e| Error::io("read", file_name(name), e))?;
            file.write_at(0, &mut [IoSlice::new(&header)]).map_err(|e| Error::io("write", file_name(name), e))?;
        }
        file.sync_data().map_err(|e| Error::io("sync", file_name(name), e))
    }

    fn first_extent_at(&self) -> usize {
        self.extents.first().map_or(0, |e| e.offset as usize).min(4 * ALIGN as usize)
    }
}

/// Scans a pack; `deep` also checks the payload of extents that the footer vouches for.
pub(crate) fn scan(name: &str, file: &dyn File, deep: bool) -> Result<Scan> {
    let start = match pack::read_header(name, file)? {
        Ok((_, start)) => start,
        Err(bad) => return headless(name, file, bad),
    };
    match pack::read_footer(name, file)? {
        Some((footer, end)) => scan_sealed(name, file, &footer, start..end, deep),
        None => {
            let end = file.len().map_err(|e| Error::io("read", file_name(name), e))?;
            walk(name, file, start, end)
        }
    }
}

/// A pack whose header never became whole has no acknowledged extent, unless it is sealed: then the header is damaged.
fn headless(name: &str, file: &dyn File, bad: frame::Bad) -> Result<Scan> {
    let len = file.len().map_err(|e| Error::io("read", file_name(name), e))?;
    let sealed = pack::read_footer(name, file)?.is_some();
    let errors = if sealed { vec![(0, format!("pack header: {}", bad.text()))] } else { Vec::new() };
    Ok(Scan { sealed, gap_bytes: len, errors, ..Scan::default() })
}

fn scan_sealed(
    name: &str,
    file: &dyn File,
    footer: &pack::Footer,
    range: std::ops::Range<u64>,
    deep: bool,
) -> Result<Scan> {
    let mut out = Scan { sealed: true, ..Scan::default() };
    for slot in &footer.extents {
        match extent_at(name, file, slot.offset, deep)? {
            Ok(extent) if extent.submission == slot.submission => {
                out.extents.push(extent);
            }
            Ok(_) => out.errors.push((slot.offset, "extent has another submission than the footer says".into())),
            Err(what) => out.errors.push((slot.offset, what)),
        }
    }
    out.gap_bytes = range.end.saturating_sub(range.start).saturating_sub(used(range.start, &out.extents));
    Ok(out)
}

/// Bytes of extents, and of the padding before long ones.
fn used(start: u64, extents: &[Extent]) -> u64 {
    let mut end = start;
    let mut used = 0;
    for extent in extents {
        let padding = if pack::place(end, extent.len) == extent.offset { extent.offset - end } else { 0 };
        used += padding + extent.len;
        end = extent.offset + extent.len;
    }
    used
}

fn walk(name: &str, file: &dyn File, start: u64, end: u64) -> Result<Scan> {
    let mut out = Scan::default();
    let mut at = start;
    while at < end {
        let probe = file.read_at(at, PROBE).map_err(|e| Error::io("read", file_name(name), e))?;
        let Some(candidate) = find_magic(&probe) else {
            at += PROBE as u64;
            continue;
        };
        at += candidate;
        match extent_at(name, file, at, true)? {
            Ok(extent) => {
                at += extent.len;
                out.extents.push(extent);
            }
            Err(_) => at += ALIGN,
        }
    }
    // A header that was torn in the zeros behind it is whole, and its file ends before `start`.
    out.gap_bytes = end.saturating_sub(start).saturating_sub(used(start, &out.extents));
    Ok(out)
}

fn find_magic(probe: &[u8]) -> Option<u64> {
    let mut places = probe.chunks(ALIGN as usize).zip((0u64..).step_by(ALIGN as usize));
    places.find(|(bytes, _)| bytes.starts_with(&extent::MAGIC)).map(|(_, at)| at)
}

/// The extent at an offset, or why there is none.
fn extent_at(name: &str, file: &dyn File, offset: u64, deep: bool) -> Result<std::result::Result<Extent, String>> {
    let io = |e| Error::io("read", file_name(name), e);
    let mut bytes = file.read_at(offset, 4096).map_err(io)?;
    let len = match frame::peek_len(extent::MAGIC, &bytes) {
        Ok(len) if len as u64 <= HEADER_BYTES_MAX => len,
        Ok(_) => return Ok(Err("extent header: too long".into())),
        Err(bad) => return Ok(Err(format!("extent header: {}", bad.text()))),
    };
    if len > bytes.len() {
        bytes = file.read_at(offset, len).map_err(io)?;
    }
    let salt = Salt { file: name, offset };
    let header = match Header::decode(&salt, &bytes) {
        Ok(frame) => frame.body,
        Err(bad) => return Ok(Err(format!("extent header: {}", bad.text()))),
    };
    assert!(len >= PREFIX, "a frame is at least its prefix");
    let extent = Extent {
        offset,
        settled_below: header.settled_below(),
        len: header.extent_len(len as u64),
        refs: header.refs(name, offset, len as u64),
        submission: header.submission,
    };
    if deep && let Some(what) = first_damage(file, &extent)? {
        return Ok(Err(what));
    }
    Ok(Ok(extent))
}

fn first_damage(file: &dyn File, extent: &Extent) -> Result<Option<String>> {
    for r in &extent.refs {
        let len = usize::try_from(r.len).unwrap_or(usize::MAX);
        let end = file.len().map_err(|e| Error::io("read", file_name(&r.pack), e))?;
        if r.offset.checked_add(r.len).is_none_or(|record_end| record_end > end) {
            return Ok(Some(format!("record at {}: cut short", r.offset)));
        }
        let bytes = file.read_at(r.offset, len).map_err(|e| Error::io("read", file_name(&r.pack), e))?;
        // Blocks that it shares are checked where they were written.
        let whole = match Front::decode(r, &bytes) {
            Ok(front) => front.check_own(r, &bytes),
            Err(bad) => Err(Error::corrupt(file_name(&r.pack), r.offset, bad.text())),
        };
        if let Err(e) = whole {
            return Ok(Some(format!("record at {}: {e}", r.offset)));
        }
    }
    Ok(None)
}
