//! A set of task ids as ranges: a run's finished tasks are nearly all of those it ever had.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A set of numbers, kept as ranges that neither touch nor overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Settled(BTreeMap<u64, u64>); // first -> last, both in the set

impl Settled {
    /// True when `id` is in the set.
    pub fn contains(&self, id: u64) -> bool {
        self.0.range(..=id).next_back().is_some_and(|(_, &last)| id <= last)
    }

    /// The last of the numbers in the set that follow `id` without a gap, if it is in the set itself.
    pub(crate) fn stretch_end(&self, id: u64) -> Option<u64> {
        self.0.range(..=id).next_back().map(|(_, last)| *last).filter(|last| id <= *last)
    }

    /// Adds `id`; false when it was there.
    pub fn insert(&mut self, id: u64) -> bool {
        let before = self.0.range(..=id).next_back().map(|(&first, &last)| (first, last));
        if before.is_some_and(|(_, last)| id <= last) {
            return false;
        }
        let joins_before = before.filter(|(_, last)| last.checked_add(1) == Some(id));
        let after = id.checked_add(1).and_then(|next| self.0.remove(&next));
        let first = joins_before.map_or(id, |(first, _)| first);
        self.0.insert(first, after.unwrap_or(id));
        true
    }

    /// Removes all numbers below `end`.
    pub(crate) fn forget_below(&mut self, end: u64) {
        let mut kept = self.0.split_off(&end);
        if let Some((_, &last)) = self.0.last_key_value()
            && last >= end
        {
            kept.insert(end, last);
        }
        self.0 = kept;
    }

    /// Numbers in the set.
    pub fn len(&self) -> u64 {
        self.0.iter().map(|(first, last)| last - first + 1).sum()
    }

    /// True when the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
