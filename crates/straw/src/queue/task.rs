//! Tasks: prompt groups that are not finished.

use serde::{Deserialize, Serialize};

use super::order::{LANE_SHIFT, Lane};
use crate::Ref;

/// Identifies a task for the whole life of a run (a `group_index`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TaskId(pub u64);

impl TaskId {
    /// The lane of the task.
    pub fn lane(self) -> Lane {
        Lane(u16::try_from(self.0 >> LANE_SHIFT).unwrap_or(u16::MAX))
    }
}

/// What is leased first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Class {
    /// Generated and waiting only to be finished.
    Ready,
    /// Generated in part.
    Partial,
    /// Not begun.
    #[default]
    Fresh,
}

/// A task to submit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NewTask {
    /// New for ever in this run.
    pub id: TaskId,
    /// Opaque to straw: which row of the data, for instance.
    #[serde(with = "crate::blob")]
    pub input: Vec<u8>,
    /// The task is dropped when this many attempts failed or lapsed. At least 1.
    pub attempts_max: u32,
}

/// An unfinished task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// Its id.
    pub id: TaskId,
    /// What it was submitted with.
    #[serde(with = "crate::blob")]
    pub input: Vec<u8>,
    /// Its class.
    pub class: Class,
    /// The oldest weight version in its progress; `None` when nothing was generated.
    pub key: Option<u64>,
    /// What earlier attempts yielded.
    pub parts: Vec<Ref>,
    /// Attempts that failed or lapsed.
    pub attempts: u32,
    /// See [`NewTask::attempts_max`].
    pub attempts_max: u32,
    /// Its place in line.
    pub(super) turn: u64,
}

/// Sorts tasks in order of leasing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    class: Class,
    key: u64,
    turn: u64,
}

impl Rank {
    pub(super) fn first_of(class: Class) -> Self {
        Rank { class, key: 0, turn: 0 }
    }

    pub(super) fn last_of(class: Class) -> Self {
        Rank { class, key: u64::MAX, turn: u64::MAX }
    }
}

impl Task {
    pub(super) fn rank(&self) -> Rank {
        Rank { class: self.class, key: self.key.unwrap_or(u64::MAX), turn: self.turn }
    }
}
