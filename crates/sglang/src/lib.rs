//! Client of engines that speak SGLang's HTTP interface: SGLang itself and our native engine.
//!
//! - [`Engine`] is what the conductor and the workers need of one engine; [`HttpEngine`] is it over HTTP.
//! - [`WeightTransport`] brings new weights to an engine in three steps (prepare, apply, acknowledge);
//!   [`DiskTransport`] does it through a folder that the engines can read. [`update_engine`] does the three in order.
//!
//! What an engine answers is checked here, once: ids, log-probs and versions that do not fit together never get further
//! (a reply with a list one too long, or a NaN, would otherwise be learnt from).
//!
//! It does not know runs, queues or steps, and it never retries: its callers do, elsewhere.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod engine;
mod generation;
mod http_engine;
mod score;
mod transport;

pub use engine::{Engine, EngineError, ModelInfo, PauseMode, WeightUpdate};
pub use generation::{Cause, Finish, GenerateRequest, Generation, SamplingParams, Span, Unusable};
pub use http_engine::HttpEngine;
pub use score::{ScoreRequest, Scored};
pub use transport::{DiskTransport, Publication, UpdateLimits, WeightTransport, update_engine};
