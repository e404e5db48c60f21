//! A kill: who dies, and when.

use std::fmt;

use control::wire::Progress;

/// A moment of the run, as its conductor tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Whatever goes on.
    Any,
    /// Workers hold leases: samples are being generated.
    Generating,
    /// The trainer learns.
    Learning,
    /// The trainer writes tiles.
    Saving,
    /// The trainer writes weights.
    Publishing,
    /// Engines are taking new weights.
    Updating,
}

impl Moment {
    /// Whether it is now.
    pub fn is_now(self, progress: &Progress) -> bool {
        let doing = |word: &str| progress.trainer.doing.starts_with(word);
        match self {
            Self::Any => true,
            Self::Generating => progress.queue.leased > 0,
            Self::Learning => doing("learning"),
            Self::Saving => doing("saving"),
            Self::Publishing => doing("writing weights"),
            Self::Updating => progress.engines.iter().any(|engine| engine.live && !engine.admitted),
        }
    }
}

/// A signal at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strike {
    /// Which of several: the launcher (0) or a rank of the trainer, the n-th engine or worker.
    pub place: usize,
    /// When.
    pub moment: Moment,
    /// And so many milliseconds later.
    pub after_ms: u64,
    /// With everything else that waits for its moment.
    pub together: bool,
}

/// What ends an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrainerDeath {
    /// A rank kills itself at a point of its step loop.
    Armed {
        /// Which rank.
        rank: u32,
        /// A point of the trainer's faults.
        point: &'static str,
    },
    /// A signal, after a commit of this attempt.
    Struck(Strike),
}

/// What ends a reign of the conductor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConductorDeath {
    /// It kills itself at a point of its journal.
    Armed {
        /// A point of the conductor's faults.
        point: &'static str,
        /// At which record; none where the point has none.
        record: Option<&'static str>,
        /// How many it lets pass.
        passes: u64,
    },
    /// A signal.
    Struck(Strike),
}

impl fmt::Display for ConductorDeath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Armed { point, record: Some(record), .. } => write!(f, "{point} {record}"),
            Self::Armed { point, record: None, .. } => write!(f, "{point}"),
            Self::Struck(_) => write!(f, "signal"),
        }
    }
}
