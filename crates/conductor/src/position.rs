//! Where in a run a set of weights stands.

use control::wire::CommitRef;
use serde::{Deserialize, Serialize};

/// Everything that was learnt into a set of weights: warm-start updates, then RL steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Position {
    /// The RL phase has begun (its optimizer is fresh).
    pub rl: bool,
    /// Warm-start updates done.
    pub warm_step: u64,
    /// RL steps done, which is also the step to run next.
    pub step: u64,
}

impl Position {
    /// Where a commit stands.
    #[must_use]
    pub fn of(commit: &CommitRef) -> Self {
        Self { rl: !commit.warming, warm_step: commit.warm_step, step: commit.step }
    }
}

impl std::fmt::Display for Position {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.rl { write!(f, "step {}", self.step) } else { write!(f, "warm-start update {}", self.warm_step) }
    }
}
