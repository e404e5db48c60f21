//! How the flat buffers of a rank are divided: buckets for the collectives, and in each bucket one piece per data
//! parallel rank, whose optimizer state lives with that rank. Pure arithmetic.

use std::ops::Range;

use crate::error::{Error, Result};

/// What the optimizer must know of one parameter. Elements not covered by any parameter are padding: zero for ever.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlatParam {
    /// For messages.
    pub name: String,
    /// Its elements in the rank's flat buffers.
    pub range: Range<usize>,
    /// Whether weight decay applies.
    pub decay: bool,
    /// How the tensor parallel ranks hold it.
    pub tp: TpGrad,
}

/// What the gradient of a parameter on one tensor parallel rank is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TpGrad {
    /// Of this rank's own slice: nobody else has it.
    Sharded,
    /// Every rank holds the whole parameter, and a part of its gradient (it saw a part of the tokens, or fed a part of
    /// the output): to be summed over the ranks.
    Partial,
    /// Every rank holds the whole parameter and its whole gradient.
    Same,
}

/// Elements in a bucket, about: large enough to keep a network busy, small enough to start early (Megatron-LM's 40 M).
pub const BUCKET_ELEMENTS: usize = 40_000_000;

/// Pieces start at multiples of this many elements where dp divides it: whole cache lines and vectors.
const ALIGN: usize = 128;

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Every bucket is a multiple of this: lcm(dp, 128).
pub fn bucket_quantum(dp: usize) -> usize {
    dp / gcd(dp, ALIGN) * ALIGN
}

/// Elements a flat buffer must have, so that its `used` elements divide among `dp` ranks.
pub fn padded_len(used: usize, dp: usize) -> usize {
    used.next_multiple_of(bucket_quantum(dp))
}

/// The division of a flat buffer of `total` elements among `dp` ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlatPlan {
    buckets: Vec<Range<usize>>,
    dp: usize,
}

impl FlatPlan {
    /// Buckets of about `bucket_elements`; parameters may straddle them.
    ///
    /// # Errors
    /// [`Error::Optimizer`] if `total` is not padded (see [`padded_len`]).
    pub fn new(total: usize, dp: usize, bucket_elements: usize) -> Result<FlatPlan> {
        let quantum = bucket_quantum(dp.max(1));
        if dp == 0 || !total.is_multiple_of(quantum) {
            let what = format!("a flat buffer of {total} elements does not divide among dp {dp}: pad it to {quantum}");
            return Err(Error::Optimizer(what));
        }
        let step = bucket_elements.max(1).next_multiple_of(quantum);
        let buckets = (0..total).step_by(step).map(|at| at..(at + step).min(total)).collect();
        Ok(FlatPlan { buckets, dp })
    }

    /// The buckets, in the order of the buffer.
    pub fn buckets(&self) -> &[Range<usize>] {
        &self.buckets
    }

    /// The piece of each bucket that `rank` owns.
    pub fn owned(&self, rank: usize) -> impl Iterator<Item = Range<usize>> {
        self.buckets.iter().map(move |bucket| {
            let piece = bucket.len() / self.dp;
            bucket.start + rank * piece..bucket.start + (rank + 1) * piece
        })
    }

    /// Elements that each rank owns.
    pub fn owned_len(&self) -> usize {
        self.buckets.iter().map(|b| b.len() / self.dp).sum()
    }
}

/// Cuts `range` where `label` of the parameters changes; padding takes the label of what stands before it. Yields
/// maximal runs with their label.
pub(crate) fn runs_by<L: Copy + PartialEq>(
    params: &[FlatParam],
    range: &Range<usize>,
    padding: L,
    label: impl Fn(&FlatParam) -> L,
) -> Vec<(Range<usize>, L)> {
    let mut out: Vec<(Range<usize>, L)> = Vec::new();
    let mut push = |part: Range<usize>, what: L| {
        if part.is_empty() {
            return;
        }
        match out.last_mut() {
            Some((last, l)) if *l == what && last.end == part.start => last.end = part.end,
            _ => out.push((part, what)),
        }
    };
    let mut at = range.start;
    let mut current = padding;
    let first = params.partition_point(|p| p.range.end <= range.start);
    for p in params[first..].iter().take_while(|p| p.range.start < range.end) {
        let start = p.range.start.max(range.start);
        push(at..start, current);
        current = label(p);
        at = p.range.end.min(range.end);
        push(start..at, current);
    }
    push(at..range.end, current);
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn param(range: Range<usize>, decay: bool) -> FlatParam {
        FlatParam { name: format!("{range:?}"), range, decay, tp: TpGrad::Sharded }
    }

    #[test]
    fn runs_follow_the_parameters_and_padding_joins_them() {
        let params = [param(0..60, true), param(64..128, true), param(128..130, false), param(192..256, true)];
        let runs = runs_by(&params, &(10..256), true, |p| p.decay);
        assert_eq!(runs, [(10..128, true), (128..192, false), (192..256, true)]);
        assert_eq!(runs_by(&params, &(130..190), true, |p| p.decay), [(130..190, true)]);
    }

    #[test]
    fn an_unpadded_buffer_is_refused() {
        assert_eq!(bucket_quantum(2), 128);
        assert_eq!(bucket_quantum(3), 384);
        assert_eq!(padded_len(1, 6), 384);
        assert!(FlatPlan::new(130, 2, 1 << 20).unwrap_err().to_string().contains("pad it to 128"));
    }

    proptest! {
        #[test]
        fn every_element_has_exactly_one_owner(used in 0usize..5000, dp in 1usize..9, bucket in 1usize..3000) {
            let total = padded_len(used, dp);
            let plan = FlatPlan::new(total, dp, bucket).unwrap();
            let mut owners = vec![0; total];
            for rank in 0..dp {
                let mut len = 0;
                for piece in plan.owned(rank) {
                    len += piece.len();
                    owners[piece].iter_mut().for_each(|o| *o += 1);
                }
                prop_assert_eq!(len, plan.owned_len());
            }
            prop_assert!(owners.iter().all(|o| *o == 1));
        }
    }
}
