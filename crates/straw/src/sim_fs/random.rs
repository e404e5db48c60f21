//! splitmix64 (Steele, Lea, Flood 2014), so that a seed means the same everywhere. Tests that need random numbers include this file.

use std::cell::Cell;

/// Random numbers of a seed.
#[derive(Clone, Debug, Default)]
pub struct Random(Cell<u64>);

impl Random {
    /// Those of `seed`.
    pub fn new(seed: u64) -> Self {
        Random(Cell::new(seed))
    }

    /// Any number.
    pub fn next(&self) -> u64 {
        self.0.set(self.0.get().wrapping_add(0x9e37_79b9_7f4a_7c15));
        let mut z = self.0.get();
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`; 0 when `n` is 0.
    pub fn below(&self, n: u64) -> u64 {
        self.next().checked_rem(n).unwrap_or(0)
    }

    /// One of some; nothing of nothing.
    pub fn pick<'a, T>(&self, items: &'a [T]) -> Option<&'a T> {
        items.get(self.below(items.len() as u64) as usize)
    }
}
