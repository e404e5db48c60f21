//! The weights the RL phase began with, which the KL term is taken against, across restarts.
//!
//! Where they come from is decided once, when the phase begins, and written into every commit:
//!
//! - a run without a warm start began with the model folder's weights, or with a seed: both can be had again at any time;
//! - a run with a warm start began with weights that exist nowhere else once its tiles are gone, so they are written to
//!   `reference/<digest>/` of the run. The folder's name is its contents' digest: whoever writes it (an attempt, its
//!   successor that was ordered to begin again, a zombie) writes the same bytes, and what is read is checked against it.
//!
//! They are kept whether or not the KL term is on, because turning it on is an edit that only restarts the trainer.

use serde::{Deserialize, Serialize};

/// Where the reference weights come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Origin {
    /// The model folder's own.
    ModelFolder,
    /// Random initialisation.
    Random {
        /// Its seed.
        seed: u64,
    },
    /// `reference/<digest>/` of the run.
    Kept {
        /// Digest of the weights.
        digest: String,
    },
}
