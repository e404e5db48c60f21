//! Bytes on a connection between two ranks: a fixed header of 32 bytes, then the payload.
//!
//! `magic u32 | kind u8 | op u8 | 0 u16 | group u64 | seq u64 | payload length u64`, little endian.

use std::io::{self, Read};

use crate::message::{Op, Tag};

pub(crate) const HEADER_BYTES: usize = 32;
const MAGIC: u32 = 0x4d43_5254; // "TRCM"

/// More than any buffer a rank can own; a longer frame is a broken stream, not a message.
const PAYLOAD_BYTES_MAX: u64 = 1 << 40;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Header {
    /// A message for the inbox.
    Data { tag: Tag, len: u64 },
    /// The sender leaves; the payload says why. Nothing follows.
    Leave { orderly: bool, len: u64 },
    /// The sender's process lives.
    Beat,
}

const DATA: u8 = 1;
const LEAVE_ORDERLY: u8 = 2;
const LEAVE_FAILED: u8 = 3;
const BEAT: u8 = 4;

impl Header {
    pub(crate) fn encode(self) -> [u8; HEADER_BYTES] {
        let (kind, op, group, seq, len) = match self {
            Header::Data { tag, len } => (DATA, tag.op as u8, tag.group, tag.seq, len),
            Header::Leave { orderly: true, len } => (LEAVE_ORDERLY, 0, 0, 0, len),
            Header::Leave { orderly: false, len } => (LEAVE_FAILED, 0, 0, 0, len),
            Header::Beat => (BEAT, 0, 0, 0, 0),
        };
        let mut out = [0; HEADER_BYTES];
        out[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        out[4] = kind;
        out[5] = op;
        out[8..16].copy_from_slice(&group.to_le_bytes());
        out[16..24].copy_from_slice(&seq.to_le_bytes());
        out[24..32].copy_from_slice(&len.to_le_bytes());
        out
    }

    pub(crate) fn decode(raw: &[u8; HEADER_BYTES]) -> io::Result<Header> {
        let word = |at: usize| {
            u64::from_le_bytes([
                raw[at],
                raw[at + 1],
                raw[at + 2],
                raw[at + 3],
                raw[at + 4],
                raw[at + 5],
                raw[at + 6],
                raw[at + 7],
            ])
        };
        let magic = u32::from_le_bytes([raw[0], raw[1], raw[2], raw[3]]);
        if magic != MAGIC {
            return Err(broken(format!("a frame starts with {magic:#010x}")));
        }
        let len = word(24);
        if len > PAYLOAD_BYTES_MAX {
            return Err(broken(format!("a frame announces {len} bytes")));
        }
        match raw[4] {
            DATA => {
                let op = Op::from_code(raw[5]).ok_or_else(|| broken(format!("unknown operation {}", raw[5])))?;
                Ok(Header::Data { tag: Tag { group: word(8), op, seq: word(16) }, len })
            }
            LEAVE_ORDERLY => Ok(Header::Leave { orderly: true, len }),
            LEAVE_FAILED => Ok(Header::Leave { orderly: false, len }),
            BEAT if len == 0 => Ok(Header::Beat),
            kind => Err(broken(format!("unknown kind of frame {kind}"))),
        }
    }

    /// Reads the next header; `None` when the stream ends between two frames.
    pub(crate) fn read(from: &mut impl Read) -> io::Result<Option<Header>> {
        let mut raw = [0; HEADER_BYTES];
        let mut have = 0;
        while have < HEADER_BYTES {
            match from.read(&mut raw[have..]) {
                Ok(0) if have == 0 => return Ok(None),
                Ok(0) => return Err(broken("the connection closed inside a header".into())),
                Ok(n) => have += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Header::decode(&raw).map(Some)
    }
}

fn broken(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_survives_the_wire() {
        let tag = Tag { group: u64::MAX - 3, op: Op::AllToAll, seq: 77 };
        for header in [
            Header::Data { tag, len: 123_456_789_012 },
            Header::Leave { orderly: true, len: 0 },
            Header::Leave { orderly: false, len: 9 },
            Header::Beat,
        ] {
            assert_eq!(Header::read(&mut header.encode().as_slice()).unwrap(), Some(header));
        }
    }

    #[test]
    fn a_stream_that_is_not_ours_is_refused() {
        assert!(Header::read(&mut b"GET / HTTP/1.1\r\nHost: somewhere\r\n".as_slice()).is_err());
        let mut raw = Header::Leave { orderly: true, len: 0 }.encode();
        raw[24..32].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(Header::decode(&raw).is_err(), "absurd length");
        let mut raw = Header::Leave { orderly: true, len: 0 }.encode();
        raw[4] = 9;
        assert!(Header::decode(&raw).is_err(), "unknown kind");
    }

    #[test]
    fn an_end_between_frames_differs_from_an_end_inside_one() {
        assert_eq!(Header::read(&mut [].as_slice()).unwrap(), None);
        let raw = Header::Leave { orderly: true, len: 0 }.encode();
        assert!(Header::read(&mut &raw[..20]).is_err());
    }
}
