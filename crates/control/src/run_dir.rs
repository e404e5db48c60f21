//! The folder of a run on the volume, and what lies where in it.

use std::path::{Path, PathBuf};

/// `<volume>/runs/<run uid>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunDir(PathBuf);

impl RunDir {
    /// The run's folder, given relative to the root of the volume.
    #[must_use]
    pub fn new(volume: &Path, relative: impl AsRef<Path>) -> Self {
        Self(volume.join(relative))
    }

    /// The folder itself.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// What to say while the folder is not there, although it was.
    #[must_use]
    pub fn away(&self) -> String {
        format!("the volume, which is away: {} is not there", self.0.display())
    }

    /// Straw's packs: written by conductor and workers, read by all.
    #[must_use]
    pub fn packs(&self) -> PathBuf {
        self.0.join("packs")
    }

    /// The journal: the conductor's alone.
    #[must_use]
    pub fn journal(&self) -> PathBuf {
        self.0.join("journal")
    }

    /// One line per finished RL step ([`crate::wire::StepRecord`]).
    #[must_use]
    pub fn steps(&self) -> PathBuf {
        self.0.join("steps.jsonl")
    }

    /// The weights that the RL phase of a run with a warm start began with, one folder named for their digest.
    #[must_use]
    pub fn references(&self) -> PathBuf {
        self.0.join(REFERENCES)
    }

    /// Where the final Hugging Face checkpoint is written.
    #[must_use]
    pub fn export(&self) -> PathBuf {
        self.0.join("export")
    }
}

/// Name of [`RunDir::references`].
pub const REFERENCES: &str = "reference";

/// Name of the tiles folder of a commit, relative to the run's folder. The epoch keeps a zombie out of its successor's.
#[must_use]
pub fn tiles_folder(warming: bool, warm_step: u64, step: u64, trainer_epoch: u64) -> String {
    if warming {
        format!("tiles/warm-{warm_step:06}-e{trainer_epoch}")
    } else {
        format!("tiles/step-{step:06}-e{trainer_epoch}")
    }
}

/// Name of the folder of a weight version, relative to the run's folder.
#[must_use]
pub fn weights_folder(version: u64, trainer_epoch: u64) -> String {
    format!("weights/v{version:06}-e{trainer_epoch}")
}
