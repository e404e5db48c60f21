//! Compression of tensors, block by block, so that a row still costs about a row.

use serde::{Deserialize, Serialize};

/// How the tensors of a record are stored. Each block of [`crate::BLOCK_BYTES`] is compressed by itself, and one that does not
/// shrink is stored as it is, so nothing grows. The meta is not compressed.
///
/// Token ids and masks shrink to a third or less, log-probs and weights hardly: say it for those records that gain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Compression {
    /// As they are in memory.
    #[default]
    None,
    /// Zstandard of this level, 1 (fast) to 19 (small); others are taken for the nearer of the two.
    Zstd(u8),
}

/// A block's bytes as they are stored, if that is shorter.
pub(crate) struct Compressor(Option<zstd::bulk::Compressor<'static>>);

impl Compressor {
    /// Without memory for it nothing is compressed.
    pub(crate) fn new(how: Compression) -> Self {
        Compressor(match how {
            Compression::None => None,
            Compression::Zstd(level) => zstd::bulk::Compressor::new(i32::from(level.clamp(1, 19))).ok(),
        })
    }

    pub(crate) fn compress(&mut self, block: &[u8]) -> Option<Vec<u8>> {
        let compressed = self.0.as_mut()?.compress(block).ok()?;
        (compressed.len() < block.len()).then_some(compressed)
    }
}

/// Makes blocks of what was stored.
#[derive(Default)]
pub(crate) struct Decompressor(Option<zstd::bulk::Decompressor<'static>>);

impl Decompressor {
    /// Appends what `stored` was compressed from to `out`; it must be `len` bytes. No more than that is ever written or reserved,
    /// whatever the bytes say of themselves. `None` when they are not that.
    pub(crate) fn decompress(&mut self, stored: &[u8], len: usize, out: &mut Vec<u8>) -> Option<()> {
        if self.0.is_none() {
            self.0 = zstd::bulk::Decompressor::new().ok();
        }
        let start = out.len();
        out.resize(start + len, 0);
        let written = self.0.as_mut()?.decompress_to_buffer(stored, out.get_mut(start..)?);
        if written.ok() == Some(len) {
            Some(())
        } else {
            out.truncate(start);
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_says_that_it_is_longer_than_its_block_writes_no_more_than_the_block() {
        let bomb = zstd::bulk::compress(&vec![0; 64 << 20], 3).unwrap();
        let without_length = {
            let mut encoder = zstd::stream::Encoder::new(Vec::new(), 3).unwrap();
            std::io::Write::write_all(&mut encoder, &vec![0; 64 << 20]).unwrap();
            encoder.finish().unwrap()
        };
        let mut out = vec![1, 2, 3];
        for bytes in [&bomb, &without_length] {
            assert!(bytes.len() < 1 << 16, "{}", bytes.len());
            assert_eq!(Decompressor::default().decompress(bytes, 1 << 16, &mut out), None);
            assert_eq!(out, [1, 2, 3]);
            assert!(out.capacity() < 1 << 17);
        }
    }

    #[test]
    fn what_is_shorter_than_its_block_or_no_frame_at_all_is_refused() {
        let mut out = Vec::new();
        let short = zstd::bulk::compress(&[7; 100], 3).unwrap();
        let mut decompressor = Decompressor::default();
        for bytes in [&short[..], &short[..short.len() - 1], b"", b"no frame"] {
            assert_eq!(decompressor.decompress(bytes, 101, &mut out), None);
        }
        assert_eq!(decompressor.decompress(&short, 100, &mut out), Some(()));
        assert_eq!(out, [7; 100]);
    }
}
