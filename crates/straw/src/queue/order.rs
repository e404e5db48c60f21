//! Tasks that nobody holds, in order of leasing.

use std::collections::BTreeSet;

use super::task::{Rank, TaskId};

#[derive(Clone, Debug, Default)]
pub(super) struct Order(BTreeSet<(Rank, TaskId)>);

impl Order {
    pub(super) fn insert(&mut self, rank: Rank, id: TaskId) {
        self.0.insert((rank, id));
    }

    pub(super) fn remove(&mut self, rank: Rank, id: TaskId) -> bool {
        self.0.remove(&(rank, id))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = TaskId> {
        self.0.iter().map(|(_, id)| *id)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

impl FromIterator<(Rank, TaskId)> for Order {
    fn from_iter<I: IntoIterator<Item = (Rank, TaskId)>>(items: I) -> Self {
        Order(items.into_iter().collect())
    }
}
