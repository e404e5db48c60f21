//! Orders to the trainer as the journal knows them.

use control::{run_dir, wire::ScoreSet};
use serde::{Deserialize, Serialize};

use crate::Position;

/// An order, without what can be derived from the state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OrderKind {
    /// Learn the warm-start batch of this update.
    TrainWarm {
        /// Update.
        update: u64,
        /// An earlier attempt was given it.
        replay: bool,
    },
    /// Learn the batch of this step.
    Train {
        /// Step.
        step: u64,
        /// An earlier attempt was given it.
        replay: bool,
    },
    /// Write tiles.
    Save {
        /// What they hold.
        position: Position,
        /// Where, relative to the run's folder.
        folder: String,
    },
    /// Write weights for the engines.
    Publish {
        /// The version they become.
        version: u64,
        /// Where, relative to the run's folder.
        folder: String,
        /// Samples that trainer and engines both score with these weights.
        score: Option<ScoreSet>,
    },
    /// Begin the RL phase with a fresh optimizer.
    BeginRl,
    /// Write the final checkpoint.
    Export {
        /// Where, relative to the run's folder.
        folder: String,
    },
    /// Exit: stopped as asked.
    Stop {
        /// For the log.
        reason: String,
    },
    /// Exit: all is done and journaled.
    Finish,
}

impl OrderKind {
    /// For people.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Self::TrainWarm { update, .. } => format!("learning warm-start update {update}"),
            Self::Train { step, replay: false } => format!("learning step {step}"),
            Self::Train { step, replay: true } => format!("learning step {step} again"),
            Self::Save { position, .. } => format!("saving {position}"),
            Self::Publish { version, .. } => format!("writing weights of version {version}"),
            Self::BeginRl => "beginning the RL phase".to_owned(),
            Self::Export { .. } => "writing the final checkpoint".to_owned(),
            Self::Stop { .. } => "stopping".to_owned(),
            Self::Finish => "finishing".to_owned(),
        }
    }
}

/// Folder of the tiles of a position, relative to the run's.
#[must_use]
pub fn tiles_folder(position: Position, trainer_epoch: u64) -> String {
    run_dir::tiles_folder(!position.rl, position.warm_step, position.step, trainer_epoch)
}

/// Epoch in the name of such a folder, or of one that was never finished (`.tmp`).
#[must_use]
pub fn epoch_of(folder: &str) -> Option<u64> {
    folder.strip_suffix(".tmp").unwrap_or(folder).rsplit_once("-e")?.1.parse().ok()
}
