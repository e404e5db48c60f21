//! How the flat buffers of a rank are divided: buckets for the collectives, and in each bucket one piece per data
//! parallel rank, whose optimizer state lives with that rank. Pure arithmetic.

use std::ops::Range;

use models::{ParamStore, Shard};

/// What the optimizer must know of one parameter. Elements not covered by any parameter are padding: zero for ever.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlatParam {
    /// For messages.
    pub name: String,
    /// Its elements in the rank's flat buffers.
    pub range: Range<usize>,
    /// Whether weight decay applies.
    pub decay: bool,
    /// Whether every tensor parallel rank holds all of it (and its complete gradient); else a slice of its own.
    pub replicated: bool,
}

impl FlatParam {
    /// The parameters of a store, for the optimizer of that rank. Matrices decay; norms only with `decay_norms`.
    ///
    /// The gradients must be complete on every tensor parallel rank ([`models::Model::finish_grads`]).
    pub fn of_store(store: &ParamStore, decay_norms: bool) -> Vec<FlatParam> {
        let entries = store.specs().iter().zip(&store.layout().entries);
        entries
            .map(|(spec, entry)| FlatParam {
                name: spec.name.clone(),
                range: entry.range(),
                decay: spec.weight_decay || decay_norms,
                replicated: spec.shard == Shard::Replicated,
            })
            .collect()
    }
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

/// A part of the flat buffer that is exchanged at once, in `dp` equal pieces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bucket {
    /// Its elements.
    pub range: Range<usize>,
    /// Elements of a piece. In the last bucket the pieces may reach beyond the buffer: then the exchange goes through a
    /// padded copy of that bucket, which is smaller than [`bucket_quantum`].
    pub piece: usize,
}

impl Bucket {
    /// What `rank` owns of it.
    pub fn owned(&self, rank: usize) -> Range<usize> {
        let at = |r: usize| (self.range.start + r * self.piece).min(self.range.end);
        at(rank)..at(rank + 1)
    }
}

/// The division of a flat buffer of `total` elements among `dp` ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlatPlan {
    buckets: Vec<Bucket>,
}

impl FlatPlan {
    /// Buckets of about `bucket_elements`; parameters may straddle them.
    pub fn new(total: usize, dp: usize, bucket_elements: usize) -> FlatPlan {
        let quantum = bucket_quantum(dp);
        let even = total / quantum * quantum;
        let step = bucket_elements.max(1).next_multiple_of(quantum);
        let whole = (0..even).step_by(step).map(|at| at..(at + step).min(even));
        let mut buckets: Vec<Bucket> = whole.map(|range| Bucket { piece: range.len() / dp, range }).collect();
        if even < total {
            buckets.push(Bucket { range: even..total, piece: quantum / dp });
        }
        FlatPlan { buckets }
    }

    /// The buckets, in the order of the buffer.
    pub fn buckets(&self) -> &[Bucket] {
        &self.buckets
    }

    /// Elements that `rank` owns.
    pub fn owned_len(&self, rank: usize) -> usize {
        self.buckets.iter().map(|b| b.owned(rank).len()).sum()
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
        FlatParam { name: format!("{range:?}"), range, decay, replicated: false }
    }

    #[test]
    fn runs_follow_the_parameters_and_padding_joins_them() {
        let params = [param(0..60, true), param(64..128, true), param(128..130, false), param(192..256, true)];
        let runs = runs_by(&params, &(10..256), true, |p| p.decay);
        assert_eq!(runs, [(10..128, true), (128..192, false), (192..256, true)]);
        assert_eq!(runs_by(&params, &(130..190), true, |p| p.decay), [(130..190, true)]);
    }

    #[test]
    fn pieces_are_aligned_and_only_the_tail_is_padded() {
        assert_eq!(
            (bucket_quantum(1), bucket_quantum(2), bucket_quantum(3), bucket_quantum(256)),
            (128, 128, 384, 256)
        );
        let plan = FlatPlan::new(128 * 5 + 64, 2, 256);
        let ranges: Vec<_> = plan.buckets().iter().map(|b| (b.range.clone(), b.piece)).collect();
        assert_eq!(ranges, [(0..256, 128), (256..512, 128), (512..640, 64), (640..704, 64)]);
        assert_eq!((plan.buckets()[3].owned(0), plan.buckets()[3].owned(1)), (640..704, 704..704));
    }

    proptest! {
        #[test]
        fn every_element_has_exactly_one_owner(total in 0usize..5000, dp in 1usize..9, bucket in 1usize..3000) {
            let plan = FlatPlan::new(total, dp, bucket);
            let mut owners = vec![0; total];
            for rank in 0..dp {
                let mut len = 0;
                for bucket in plan.buckets() {
                    len += bucket.owned(rank).len();
                    owners[bucket.owned(rank)].iter_mut().for_each(|o| *o += 1);
                }
                prop_assert_eq!(len, plan.owned_len(rank));
            }
            prop_assert!(owners.iter().all(|o| *o == 1));
        }
    }
}
