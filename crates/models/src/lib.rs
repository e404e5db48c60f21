//! From a `config.json` to a stage of layers, with the map between our fused tensors and Hugging Face names.
//!
//! What it is: [`ModelConfig`] (Qwen3 and Llama, dense), [`Stage`] (a range of layers, with or without embedding and
//! head) and [`Model`], the facade that trainer and engine share.
//!
//! What it is NOT: it opens no file (see `checkpoint`), schedules nothing and knows no loss.
//!
//! Invariants
//! - One map: load, save, publish and checkpoints all go through [`nn::HfPiece`].
//! - The trainer's packed forward and the engine's paged steps are the same layers, so on equal weights and equal
//!   tensor parallelism a token's log-prob has the same bits in both.
//! - Random initialisation depends on (seed, name, global index) alone, never on the layout.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod config;
mod error;
mod hf;
mod model;
mod specs;
mod stage;

pub use config::{Architecture, ModelConfig};
pub use error::{Error, Result};
pub use hf::{gather_piece, scatter_piece};
pub use model::{LogProbs, Logits, Model, ModelOptions, Pass};
pub use nn::{
    FlatEntry, FlatLayout, GradStore, HfPiece, KvBatch, KvCache, KvSeq, ParamSpec, ParamStore, Rect, SeqLayout, Shard,
};
pub use specs::param_specs;
pub use stage::{Stage, StageRange};
