//! The one framing of every structure on disk: magic, length, checksum, body.
//!
//! The checksum (CRC-32C) is seeded with a *salt* that is not stored, the place where the frame belongs (file name and
//! offset), so that bytes of another file or another place never pass for it.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Bytes before the body: magic, body length, checksum.
pub(crate) const PREFIX: usize = 12;
/// Records, tensors and extents begin at multiples of this, so that tensor bytes are aligned for any element.
pub(crate) const ALIGN: u64 = 64;

/// The next multiple of [`ALIGN`]; the largest number where there is none, so that lengths which were read do not add up.
pub(crate) const fn align(n: u64) -> u64 {
    match n.checked_next_multiple_of(ALIGN) {
        Some(aligned) => aligned,
        None => u64::MAX,
    }
}

/// Why bytes are not the frame that was looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bad {
    /// Fewer bytes than the frame says it has (or than a prefix).
    Short,
    /// Only zeros where the prefix should be: not written yet, or a hole.
    Zero,
    /// Another magic.
    Magic,
    /// The checksum differs.
    Checksum,
    /// The checksum is right but the body does not parse: another version wrote it.
    Schema,
}

impl Bad {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Bad::Short => "cut short",
            Bad::Zero => "zeros",
            Bad::Magic => "wrong magic",
            Bad::Checksum => "wrong checksum",
            Bad::Schema => "unknown layout (written by another version?)",
        }
    }
}

/// The place a frame belongs to.
pub(crate) struct Salt<'a> {
    pub(crate) file: &'a str,
    pub(crate) offset: u64,
}

impl Salt<'_> {
    /// For frames that may be met anywhere, because whoever reads them knows their checksum.
    pub(crate) const NONE: Salt<'static> = Salt { file: "", offset: 0 };
}

pub(crate) fn checksum(salt: &Salt<'_>, frame: &[u8]) -> u32 {
    let (prefix, body) = frame.split_at(PREFIX.min(frame.len()));
    let mut crc = crc32c::crc32c(salt.file.as_bytes());
    crc = crc32c::crc32c_append(crc, &salt.offset.to_le_bytes());
    crc = crc32c::crc32c_append(crc, prefix.get(..8).unwrap_or_default());
    crc32c::crc32c_append(crc, body)
}

/// Encodes a frame at its place; gives its bytes and its checksum.
pub(crate) fn encode<T: Serialize>(magic: [u8; 4], salt: &Salt<'_>, body: &T) -> (Vec<u8>, u32) {
    let mut bytes = Vec::with_capacity(256);
    bytes.extend_from_slice(&magic);
    bytes.extend_from_slice(&[0; PREFIX - 4]);
    let mut bytes =
        postcard::to_extend(body, bytes).unwrap_or_else(|e| unreachable!("serialising to memory cannot fail: {e}"));
    let len = u32::try_from(bytes.len() - PREFIX).unwrap_or(u32::MAX);
    put(&mut bytes, 4, len);
    let crc = checksum(salt, &bytes);
    put(&mut bytes, 8, crc);
    (bytes, crc)
}

fn put(frame: &mut [u8], at: usize, value: u32) {
    if let Some(field) = frame.get_mut(at..at + 4) {
        field.copy_from_slice(&value.to_le_bytes());
    }
}

/// Bytes of the frame that [`encode`] makes of `body`.
pub(crate) fn encoded_len<T: Serialize>(body: &T) -> u64 {
    let size = postcard::experimental::serialized_size(body);
    (PREFIX + size.unwrap_or_else(|e| unreachable!("serialising cannot fail: {e}"))) as u64
}

/// A decoded frame.
pub(crate) struct Frame<T> {
    pub(crate) body: T,
    /// Bytes of the whole frame.
    pub(crate) len: usize,
    pub(crate) crc: u32,
}

/// Whole length of the frame that begins here, when there is one.
pub(crate) fn peek_len(magic: [u8; 4], bytes: &[u8]) -> Result<usize, Bad> {
    let prefix = bytes.get(..PREFIX).ok_or(Bad::Short)?;
    if prefix.iter().all(|&b| b == 0) {
        return Err(Bad::Zero);
    }
    if !prefix.starts_with(&magic) {
        return Err(Bad::Magic);
    }
    Ok(PREFIX + u32_at(prefix, 4) as usize)
}

/// Decodes the frame at the beginning of `bytes`; what follows it is ignored.
pub(crate) fn decode<T: DeserializeOwned>(magic: [u8; 4], salt: &Salt<'_>, bytes: &[u8]) -> Result<Frame<T>, Bad> {
    let len = peek_len(magic, bytes)?;
    let frame = bytes.get(..len).ok_or(Bad::Short)?;
    let crc = u32_at(frame, 8);
    if crc != checksum(salt, frame) {
        return Err(Bad::Checksum);
    }
    let body = frame.get(PREFIX..).unwrap_or_default();
    match postcard::take_from_bytes(body) {
        Ok((body, [])) => Ok(Frame { body, len, crc }),
        _ => Err(Bad::Schema),
    }
}

/// A little-endian number; zero where the bytes end (callers checked the length).
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let field = bytes.get(at..at + 4).and_then(|b| b.try_into().ok());
    field.map_or(0, u32::from_le_bytes)
}

/// See [`u32_at`].
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let field = bytes.get(at..at + 8).and_then(|b| b.try_into().ok());
    field.map_or(0, u64::from_le_bytes)
}
