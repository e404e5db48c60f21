//! `meta.json`: everything of a training state that is not a tensor.

use serde::{Deserialize, Serialize};

use crate::fingerprint::Fingerprint;

/// Where training stands, as the trainer knows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Position {
    /// The step to run next.
    pub step: u64,
    /// Position in the learning-rate schedule.
    pub schedule_position: u64,
    /// Seed and position of the counter-based generator.
    pub rng: Rng,
    /// Model and tokenizer the tensors belong to.
    pub fingerprint: Fingerprint,
    /// What the trainer wants back that no part of this crate reads.
    #[serde(default)]
    pub extra: serde_json::Value,
}

/// A counter-based generator has no hidden state: these two numbers are all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Rng {
    /// Its key.
    pub seed: u64,
    /// Its counter.
    pub position: u64,
}

/// All of `meta.json`, bound to the tiles by its hash in their index.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Meta {
    /// [`crate::tile_index::FORMAT`].
    pub format: u64,
    /// Where training stood.
    pub position: Position,
    /// Updates the optimizer had made; the `t` of Adam's bias correction.
    pub optimizer_steps: u64,
    /// Compute type of the weights, in safetensors' names.
    pub weights_dtype: String,
    /// Digest of the weights ([`crate::digest`]).
    pub weights_digest: String,
    /// The layout that saved it. A note: any layout loads it.
    pub saved_by: String,
}
