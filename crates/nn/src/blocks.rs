//! Sums with the same bits at any tensor parallelism.
//!
//! What tensor-parallel ranks sum over (the inputs of a row layer, the vocabulary of the head) is cut into a number of
//! equal blocks that depends on its length alone. A rank holds a run of them. Blocks are added in pairs, the pairs in
//! pairs, and so on, first on each rank and then over the ranks: a fixed tree, whatever part of it lies on one rank.

use std::ops::Range;

use crate::Result;

/// Most blocks: the largest tensor parallelism whose bits are those of one rank.
const MOST: usize = 8;

/// Number of blocks on each of `ranks`, of `total` elements over all of them, each block at least `least` long. One where
/// the ranks do not hold equal runs of blocks; such a layout has sums of its own.
pub(crate) fn on_each_rank(total: usize, ranks: usize, least: usize) -> usize {
    let mut count = MOST;
    while count > 1 && (!total.is_multiple_of(count) || total / count < least) {
        count /= 2;
    }
    if count.is_multiple_of(ranks) { count / ranks } else { 1 }
}

/// The sum over `range`: `leaf` gives a term, `join` adds two neighbours.
pub(crate) fn in_pairs<T>(
    range: Range<usize>,
    leaf: &mut impl FnMut(usize) -> Result<T>,
    join: &impl Fn(T, T) -> Result<T>,
) -> Result<T> {
    if range.len() <= 1 {
        return leaf(range.start);
    }
    // The largest power of two below the length: neighbours first, whatever the length.
    let middle = range.start + range.len().next_power_of_two() / 2;
    let left = in_pairs(range.start..middle, leaf, join)?;
    let right = in_pairs(middle..range.end, leaf, join)?;
    join(left, right)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(n: usize) -> String {
        in_pairs(0..n, &mut |i| Ok(i.to_string()), &|a, b| Ok(format!("({a}{b})"))).unwrap()
    }

    #[test]
    fn neighbours_are_added_first() {
        assert_eq!([1, 2, 3, 4, 6].map(tree), ["0", "(01)", "((01)2)", "((01)(23))", "(((01)(23))(45))"]);
        assert_eq!(tree(8), "(((01)(23))((45)(67)))");
    }

    #[test]
    fn the_ranks_hold_runs_of_the_same_blocks() {
        assert_eq!([1, 2, 4, 8].map(|tp| on_each_rank(1536, tp, 32) * tp), [8; 4]);
        assert_eq!([1, 2].map(|tp| on_each_rank(64, tp, 32) * tp), [2; 2]);
        assert_eq!([1, 3, 16].map(|tp| on_each_rank(1536, tp, 32)), [8, 1, 1]);
        assert_eq!(on_each_rank(47, 1, 16), 1);
    }
}
