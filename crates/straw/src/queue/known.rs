//! Where each accepted group lies, by its task and by its submission: derived from the groups.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

use super::{Accepted, Position, TaskId};

#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    tasks: HashMap<TaskId, Position, BuildHasherDefault<IdHasher>>,
    submissions: HashMap<String, Position>,
}

impl Known {
    pub(super) fn of(accepted: &BTreeMap<Position, Accepted>) -> Self {
        let mut known = Known::default();
        accepted.iter().for_each(|(position, group)| known.insert(*position, group));
        known
    }

    pub(super) fn insert(&mut self, position: Position, group: &Accepted) {
        self.tasks.insert(group.task, position);
        self.submissions.insert(group.submission.clone(), position);
    }

    pub(super) fn remove(&mut self, group: &Accepted) {
        self.tasks.remove(&group.task);
        self.submissions.remove(&group.submission);
    }

    pub(super) fn task(&self, task: TaskId) -> Option<Position> {
        self.tasks.get(&task).copied()
    }

    pub(super) fn submission(&self, submission: &str) -> Option<Position> {
        self.submissions.get(submission).copied()
    }

    /// Groups by task, and by submission.
    pub(super) fn len(&self) -> (usize, usize) {
        (self.tasks.len(), self.submissions.len())
    }
}

/// Ids are given by the owner, so nobody chooses them to collide.
#[derive(Clone, Copy, Debug, Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, n: u64) {
        // Fibonacci hashing (Knuth, The Art of Computer Programming 3, 6.4); the map takes the upper and the lower bits.
        self.0 = (self.0 ^ n).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(32);
    }
}
