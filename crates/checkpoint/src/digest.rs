//! One number for all weights of a model, the same for every layout that holds them.
//!
//! Per tensor: the sum modulo 2^128, over all elements, of `mix(index in the whole tensor, bits of the element)`.
//! A sum does not care who added which part, so ranks sum what they hold and the sums are added. Over the tensors:
//! SHA-256 of the sorted lines `name dtype shape sum`. It names weights, and finds any change by accident (for one
//! index, `mix` is a bijection of the bits, so one changed element always changes it); it is no protection against an
//! adversary, who can solve for sums.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};
use tensor::DType;

use crate::dtype::dtype_name;
use crate::error::{Error, Result};
use crate::rect::{Rect, fits, runs};

/// What is known of a model's weights so far: a sum per tensor, with how many elements it has seen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WeightsDigest {
    tensors: BTreeMap<String, TensorSum>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct TensorSum {
    dtype: DType,
    shape: Vec<usize>,
    sum: u128,
    elements: u64,
}

/// Finalizer of SplitMix64 (Steele, Lea, Flood 2014): a bijection of 64 bits.
#[inline]
fn scramble(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[inline]
fn mix(index: u64, bits: u64) -> u128 {
    let place = scramble(index.wrapping_add(0x9e37_79b9_7f4a_7c15));
    let low = scramble(place ^ bits);
    let high = scramble(place.rotate_left(32) ^ low.wrapping_add(bits));
    (u128::from(high) << 64) | u128::from(low)
}

fn sum_run<const N: usize>(first: usize, run: &[u8]) -> u128 {
    let (elements, _) = run.as_chunks::<N>();
    elements.iter().enumerate().fold(0u128, |sum, (i, element)| {
        let mut bits = [0; 8];
        bits[..N].copy_from_slice(element);
        sum.wrapping_add(mix((first + i) as u64, u64::from_le_bytes(bits)))
    })
}

impl WeightsDigest {
    /// Nothing known yet.
    pub fn new() -> WeightsDigest {
        WeightsDigest::default()
    }

    /// Adds rectangle `part` of tensor `name`, whose elements are `bytes`, row-major. The rectangle is one of the
    /// tensor seen as `view`: its shape, or a reshape of it. Every element of the model must be added exactly once, by
    /// whichever rank.
    ///
    /// # Errors
    /// [`Error::Digest`] if the rectangle does not fit the tensor, or the tensor was added before as something else.
    pub fn add(
        &mut self,
        name: &str,
        dtype: DType,
        shape: &[usize],
        view: &[usize],
        part: &Rect,
        bytes: &[u8],
    ) -> Result<()> {
        let size = dtype.size();
        let reshaped = shape.iter().product::<usize>() == view.iter().product::<usize>();
        if !reshaped || !fits(part, view) || bytes.len() != part.numel() * size {
            let what = format!("{} bytes for part {part:?} of {name} {shape:?} seen as {view:?}", bytes.len());
            return Err(Error::Digest(what));
        }
        let (starts, len) = runs(view, part);
        let sum = starts.iter().zip(bytes.chunks_exact((len * size).max(1))).fold(0u128, |sum, (first, run)| {
            sum.wrapping_add(match size {
                1 => sum_run::<1>(*first, run),
                2 => sum_run::<2>(*first, run),
                4 => sum_run::<4>(*first, run),
                _ => sum_run::<8>(*first, run),
            })
        });
        self.add_sum(name, TensorSum { dtype, shape: shape.to_vec(), sum, elements: part.numel() as u64 })
    }

    fn add_sum(&mut self, name: &str, part: TensorSum) -> Result<()> {
        match self.tensors.get_mut(name) {
            None => {
                self.tensors.insert(name.to_owned(), part);
            }
            Some(known) if known.dtype == part.dtype && known.shape == part.shape => {
                known.sum = known.sum.wrapping_add(part.sum);
                known.elements += part.elements;
            }
            Some(known) => {
                let what = format!(
                    "{name} is {:?} {:?} in one part and {:?} {:?} in another",
                    known.dtype, known.shape, part.dtype, part.shape
                );
                return Err(Error::Digest(what));
            }
        }
        Ok(())
    }

    /// Adds what another rank knows.
    ///
    /// # Errors
    /// As [`WeightsDigest::add`].
    pub fn merge(&mut self, other: &WeightsDigest) -> Result<()> {
        other.tensors.iter().try_for_each(|(name, sum)| self.add_sum(name, sum.clone()))
    }

    /// The digest, 64 hexadecimal digits.
    ///
    /// # Errors
    /// [`Error::Digest`] if a tensor was not added completely, or in part twice.
    pub fn finish(&self) -> Result<String> {
        let mut hash = Sha256::new();
        for (name, t) in &self.tensors {
            let all: usize = t.shape.iter().product();
            if t.elements != all as u64 {
                return Err(Error::Digest(format!("{name} has {all} elements, {} were added", t.elements)));
            }
            hash.update(format!("{name} {} {:?} {:032x}\n", dtype_name(t.dtype), t.shape, t.sum));
        }
        Ok(hex(&hash.finalize()))
    }

    /// For the wire between ranks.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = String::new();
        for (name, t) in &self.tensors {
            let shape = t.shape.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
            let _ = writeln!(out, "{name}\t{}\t{shape}\t{:032x}\t{}", dtype_name(t.dtype), t.sum, t.elements);
        }
        out.into_bytes()
    }

    /// Inverse of [`WeightsDigest::to_bytes`].
    ///
    /// # Errors
    /// [`Error::Digest`] if the bytes were not made by it.
    pub fn from_bytes(bytes: &[u8]) -> Result<WeightsDigest> {
        let broken = || Error::Digest("a rank sent something that is no digest".into());
        let text = std::str::from_utf8(bytes).map_err(|_| broken())?;
        let mut out = WeightsDigest::new();
        for line in text.lines() {
            let fields: Vec<&str> = line.split('\t').collect();
            let [name, dtype, shape, sum, elements] = fields[..] else { return Err(broken()) };
            let shape = shape.split(',').filter(|s| !s.is_empty()).map(str::parse).collect::<Result<Vec<usize>, _>>();
            out.add_sum(
                name,
                TensorSum {
                    dtype: crate::dtype::parse_dtype(dtype).ok_or_else(broken)?,
                    shape: shape.map_err(|_| broken())?,
                    sum: u128::from_str_radix(sum, 16).map_err(|_| broken())?,
                    elements: elements.parse().map_err(|_| broken())?,
                },
            )?;
        }
        Ok(out)
    }
}

/// Lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut out, b| {
        let _ = write!(out, "{b:02x}");
        out
    })
}

/// SHA-256 of bytes, in hexadecimal.
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::rect::{copy_shared, rectangles};

    fn values(n: usize) -> Vec<u8> {
        (0..n as u32).flat_map(|i| (i.wrapping_mul(2_654_435_761) as f32).to_le_bytes()).collect()
    }

    fn whole(bytes: &[u8]) -> String {
        let mut d = WeightsDigest::new();
        d.add("w", DType::F32, &[6, 7], &[6, 7], &Rect::full(&[6, 7]), bytes).unwrap();
        d.finish().unwrap()
    }

    proptest! {
        #[test]
        fn the_digest_does_not_depend_on_who_holds_what(cuts in prop::collection::vec(0usize..=42, 0..5)) {
            let (shape, bytes) = ([6, 7], values(42));
            let mut ends = cuts;
            ends.extend([0, 42]);
            ends.sort_unstable();
            let mut merged = WeightsDigest::new();
            for pair in ends.windows(2) {
                let mut rank = WeightsDigest::new();
                for part in rectangles(&shape, pair[0]..pair[1]) {
                    let mut piece = vec![0; part.numel() * 4];
                    copy_shared(&bytes, &Rect::full(&shape), &mut piece, &part, 4);
                    rank.add("w", DType::F32, &shape, &shape, &part, &piece).unwrap();
                }
                merged.merge(&WeightsDigest::from_bytes(&rank.to_bytes()).unwrap()).unwrap();
            }
            prop_assert_eq!(merged.finish().unwrap(), whole(&bytes));
        }

        #[test]
        fn one_changed_bit_changes_the_digest(bit in 0usize..42 * 32) {
            let mut bytes = values(42);
            let before = whole(&bytes);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_ne!(whole(&bytes), before);
        }
    }

    #[test]
    fn swapped_elements_names_and_shapes_change_the_digest() {
        let bytes = values(42);
        let mut swapped = bytes.clone();
        swapped[..8].rotate_left(4);
        assert_ne!(whole(&swapped), whole(&bytes));
        let mut other = WeightsDigest::new();
        other.add("w", DType::F32, &[7, 6], &[7, 6], &Rect::full(&[7, 6]), &bytes).unwrap();
        assert_ne!(other.finish().unwrap(), whole(&bytes), "shape");
        let mut other = WeightsDigest::new();
        other.add("x", DType::F32, &[6, 7], &[6, 7], &Rect::full(&[6, 7]), &bytes).unwrap();
        assert_ne!(other.finish().unwrap(), whole(&bytes), "name");
    }

    #[test]
    fn a_missing_or_doubled_part_is_an_error() {
        let mut d = WeightsDigest::new();
        d.add("w", DType::F32, &[6, 7], &[6, 7], &Rect { offset: vec![0, 0], shape: vec![3, 7] }, &values(21)).unwrap();
        assert!(d.finish().unwrap_err().to_string().contains("42 elements, 21 were added"));
        let half = d.clone();
        d.merge(&half).unwrap();
        d.merge(&half).unwrap();
        assert!(d.finish().is_err());
    }
}
