//! Layers, each with its forward beside its backward, and the flat buffers their parameters live in.
//!
//! What it is: linear layers with column and row tensor parallelism and sequence parallelism, RMSNorm, rotary
//! attention over packed sequences or a paged cache, SwiGLU, a vocab-parallel embedding and a chunked, vocab-parallel
//! head that gives log-probs and entropies.
//!
//! What it is NOT: no model is named here (see `models`), nothing reads a file, and no layer knows the step it is in.
//!
//! Invariants
//! - Parameter gradients accumulate into the flat main-grad buffer; activation gradients overwrite.
//! - `backward_input` needs no weight gradient to be ready and `backward_weight` may run any time later: a pipeline
//!   schedule may move it.
//! - [`Saved`] owns what a backward pass needs, so memory is given back exactly when the backward is done with it.
//! - One code path: packed training, chunked prefill and decode run the same operations, and a token gets the same bits
//!   in all of them, at any tensor parallelism whose ranks hold equal runs of the blocks that sums are made of.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod attention;
mod block;
mod blocks;
mod cx;
mod embedding;
mod error;
mod kv;
mod layer;
mod linear;
mod lm_head;
mod mlp;
mod norm;
mod param;
mod recompute;
mod rope;
mod saved;
mod seq;
mod store;

pub use attention::{Attention, AttentionConfig};
pub use block::Block;
pub use cx::{Cx, Layout};
pub use embedding::Embedding;
pub use error::{Error, Result};
pub use kv::{KvBatch, KvCache, KvSeq, KvView};
pub use layer::Layer;
pub use linear::{ColumnLinear, RowLinear};
pub use lm_head::LmHead;
pub use mlp::Mlp;
pub use norm::RmsNorm;
pub use param::{HfPiece, Init, ParamId, ParamSpec, Rect, Shard, TpGrad};
pub use recompute::Recompute;
pub use rope::{RopeScaling, RopeTable};
pub use saved::Saved;
pub use seq::SeqLayout;
pub use store::{ALIGN, FlatEntry, FlatLayout, GradStore, ParamStore};
