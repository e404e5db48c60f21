//! Rollouts: prompts in, rewarded samples out.
//!
//! - [`Dataset`] reads JSONL rows; [`Tokenizer`] turns them into tokens and back.
//! - [`Reward`] scores a response; [`rewards::built_in`] makes the ones a manifest can name.
//! - [`EnginePool`] is the engines of the moment: which to use, which to avoid for a while.
//! - [`generate_group`] drives one prompt group; a sample that fails never fails its group.
//! - [`group_record`] is a finished group as straw keeps it, [`read_group`] reads it back.
//! - [`Figures`] counts what went wrong, by cause.
//! - [`Worker`] is a worker's whole life: invited into runs, leasing, generating, publishing, completing.
//!
//! It knows nothing of batches, steps or weights: that is the conductor's business.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod dataset;
mod engine_pool;
mod figures;
mod generate;
mod group;
mod offers;
pub mod rewards;
mod session;
mod tokenizer;
mod worker;

pub use dataset::{Dataset, DatasetError, PromptRow, SupervisedRow};
pub use engine_pool::EnginePool;
pub use figures::Figures;
pub use generate::{Limits, generate_group};
pub use group::{Group, GroupError, Sample, group_record, read_group};
pub use rewards::Reward;
pub use tokenizer::{Tokenizer, TokenizerError};
pub use worker::{Worker, WorkerOptions};
