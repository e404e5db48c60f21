//! A pack: one append-only file of one writer.
//!
//! ```text
//! pack = header | pad | extent | extent | ... | footer | trailer        (footer and trailer once sealed)
//! ```
//! Its name is the owner's name, the era it was made in ([`crate::pool`]) and a number no one else gets, and is never used again.

use serde::{Deserialize, Serialize};

use crate::frame::{self, ALIGN, Bad, PREFIX, Salt, align};
use crate::fs::File;
use crate::limits::HEADER_BYTES_MAX;
use crate::{Error, Result};

const MAGIC: [u8; 4] = *b"SPAK";
const FOOTER_MAGIC: [u8; 4] = *b"SFOT";
const SEAL: [u8; 4] = *b"SEAL";
const TRAILER: u64 = 16;
/// Version of everything in a pack.
pub(crate) const FORMAT: u32 = 3;
const EXTENSION: &str = ".pack";

/// First bytes of a pack.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Header {
    pub(crate) format: u32,
    pub(crate) owner: String,
    /// Its writer holds the file's lock for as long as it may add to it. A writer that could not get it makes this header durable
    /// before it publishes, so that a pack without a header is none of those.
    pub(crate) locked: bool,
}

/// Last bytes of a sealed pack: its extents, so that receipts need no walk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Footer {
    pub(crate) extents: Vec<Slot>,
}

/// One extent of a sealed pack.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Slot {
    pub(crate) offset: u64,
    pub(crate) header_len: u32,
    pub(crate) submission: String,
}

/// Where the next extent of `len` bytes begins in a pack whose extents end at `end`.
///
/// A long one begins at a page, and zeros fill the gap before it: a write that begins within a page costs more there
/// (`publish_256k` of `make bench-straw` on ext4, old and new by turns under load: 0.63 to 0.81 of one write and one sync of the
/// same bytes, from a page on 1.00 to 1.09; a later run gave 0.82 with it).
pub(crate) fn place(end: u64, len: u64) -> u64 {
    const PAGE: u64 = 4 << 10;
    const LONG: u64 = 64 << 10;
    if len < LONG { end } else { end.checked_next_multiple_of(PAGE).unwrap_or(end) }
}

/// Name of a new pack.
pub(crate) fn name(owner: &str, era: u32, unique: u64) -> String {
    format!("{owner}-{era:08x}{unique:016x}")
}

/// Era in a pack's name: 0 where there is none.
pub(crate) fn era_of(name: &str) -> u32 {
    let number = name.rsplit_once('-').filter(|_| owner_of(name).is_some()).and_then(|(_, number)| number.get(..8));
    number.and_then(|era| u32::from_str_radix(era, 16).ok()).unwrap_or(0)
}

/// Owner in a pack's name.
pub(crate) fn owner_of(name: &str) -> Option<&str> {
    let (owner, unique) = name.rsplit_once('-')?;
    let hex = unique.len() == 24 && unique.bytes().all(|c| c.is_ascii_hexdigit());
    (hex && !owner.is_empty()).then_some(owner)
}

pub(crate) fn file_name(name: &str) -> String {
    format!("{name}{EXTENSION}")
}

/// The pack that a file of this name is.
pub(crate) fn of_file(file_name: &str) -> Option<&str> {
    file_name.strip_suffix(EXTENSION).filter(|name| owner_of(name).is_some())
}

/// The encoded header and its padding; extents begin behind it.
pub(crate) fn encode_header(name: &str, owner: &str, locked: bool) -> Vec<u8> {
    let header = Header { format: FORMAT, owner: owner.to_owned(), locked };
    let (mut bytes, _) = frame::encode(MAGIC, &Salt { file: name, offset: 0 }, &header);
    bytes.resize(align(bytes.len() as u64) as usize, 0);
    bytes
}

/// Reads the header; gives it and the offset of the first extent.
pub(crate) fn read_header(name: &str, file: &dyn File) -> Result<std::result::Result<(Header, u64), Bad>> {
    let io = |e| Error::io("read", file_name(name), e);
    let bytes = file.read_at(0, 4 * ALIGN as usize).map_err(io)?;
    let decoded = frame::decode::<Header>(MAGIC, &Salt { file: name, offset: 0 }, &bytes);
    Ok(decoded.and_then(|f| if f.body.format == FORMAT { Ok((f.body, align(f.len as u64))) } else { Err(Bad::Schema) }))
}

/// The encoded footer and trailer for a pack whose extents end at `offset`.
pub(crate) fn encode_footer(name: &str, offset: u64, footer: &Footer) -> Vec<u8> {
    let (mut bytes, _) = frame::encode(FOOTER_MAGIC, &Salt { file: name, offset }, footer);
    let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    bytes.extend_from_slice(&offset.to_le_bytes());
    bytes.extend_from_slice(&len.to_le_bytes());
    bytes.extend_from_slice(&SEAL);
    bytes
}

/// Reads the footer of a sealed pack and the offset where it begins; `None` when the pack is not sealed.
pub(crate) fn read_footer(name: &str, file: &dyn File) -> Result<Option<(Footer, u64)>> {
    let io = |e| Error::io("read", file_name(name), e);
    let len = file.len().map_err(io)?;
    let Some(at) = len.checked_sub(TRAILER) else { return Ok(None) };
    let trailer = file.read_at(at, TRAILER as usize).map_err(io)?;
    if trailer.len() as u64 != TRAILER || !trailer.ends_with(&SEAL) {
        return Ok(None);
    }
    let (offset, footer_len) = (frame::u64_at(&trailer, 0), u64::from(frame::u32_at(&trailer, 8)));
    let fits = footer_len >= PREFIX as u64 && footer_len <= HEADER_BYTES_MAX;
    if !fits || offset.checked_add(footer_len) != Some(at) {
        return Ok(None);
    }
    let bytes = file.read_at(offset, footer_len as usize).map_err(io)?;
    let decoded = frame::decode::<Footer>(FOOTER_MAGIC, &Salt { file: name, offset }, &bytes);
    Ok(decoded.ok().map(|frame| (frame.body, offset)))
}
