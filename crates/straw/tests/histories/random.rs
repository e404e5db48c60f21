//! splitmix64, so that a seed means the same everywhere.

use std::cell::Cell;

#[derive(Debug)]
pub struct Random(Cell<u64>);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(Cell::new(seed))
    }

    pub fn next(&self) -> u64 {
        self.0.set(self.0.get().wrapping_add(0x9e37_79b9_7f4a_7c15));
        let mut z = self.0.get();
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&self, n: u64) -> u64 {
        self.next() % n
    }

    pub fn pick<'a, T>(&self, items: &'a [T]) -> Option<&'a T> {
        (!items.is_empty()).then(|| &items[self.below(items.len() as u64) as usize])
    }
}
