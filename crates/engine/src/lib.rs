//! The native engine: text generation behind SGLang's HTTP interface, on the model code that the trainer trains with.
//!
//! It is the embedded default (no GPU, no Python) and speaks to rollout workers and conductor exactly as an SGLang server would.
//!
//! ```text
//! HTTP tasks (http, front)  ──commands──>  scheduler (one thread)  ──batches──>  runner (models, tensor)
//!        ^                                   pages, prefix tree
//!        └──────────── events ───────────────┘
//! ```
//!
//! What it is NOT: it computes nothing itself. Forward pass, sampling and log-probs are those of `models`, `nn` and `tensor`, so that
//! **the log-prob of a token here is bitwise the trainer's** for the same weights. It knows nothing of runs, conductors or versions
//! beyond the name it is given.
//!
//! Invariants
//! - What a request draws depends on its tokens, its seed and the weights. Batch composition, chunked prefill, retraction, prefix
//!   cache, pauses and the engine it ran on change no bit.
//! - Every output token says which weights it was drawn with (`weight_versions`), also in a request that lived through an update.
//! - KV of other weights is never read by a request that began after the update.
//! - A pause never makes an engine unready: ready means that it can answer.
//! - Every live request ends: lengths are bounded by the pool, shortage retracts the youngest, a client that leaves aborts.
//! - Nothing a client sends can panic the scheduler; if the scheduler fails all the same, the process ends and says why.
//!
//! Where it differs from SGLang, on purpose: an abort names one request exactly, not a prefix; `/health` and `/ready` are 200 during a
//! pause; an abort during an in-place pause is answered at once; log-probs of prompt tokens are temperature-scaled like those of
//! output tokens; an end token counts before the length; `sampling_seed` is always honoured, together with the position of the token.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod answer;
mod clock;
mod command;
mod error;
mod front;
mod http;
mod metrics;
mod options;
mod outcome;
mod pages;
mod prefix;
mod request;
mod runner;
mod sampling_params;
mod scheduler;
mod sequence;
mod serve;
mod shared;
mod stop;
mod text;

pub use error::Error;
pub use options::EngineOptions;
pub use serve::{Engine, serve};
