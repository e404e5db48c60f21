//! The conductor's brain: it owns a run from its data to its last checkpoint, and decides everything in between.
//!
//! - [`State`] is what is true: the journal's [`Record`]s, added up by [`State::apply`] and by nothing else.
//! - [`Conductor::step`] takes an [`Event`] and the time and answers with records and [`Command`]s. The binary appends the
//!   records, and when they are durable it carries the commands out. Replies are commands: nothing is promised before it is
//!   durable.
//! - What is not in a record is memory (leases, who was heard of, what engines serve, held requests). A successor does
//!   without: [`Conductor::open`] goes on from the records alone, whichever was the last.
//! - [`microbatch::plan`], [`Source`] and [`convert`] are pure functions that the rest stands on.
//! - [`check`] reads a journal and verifies that everything happened once.
//!
//! It does no I/O, reads no clock and knows no transport: those are the binary's.
//!
//! Invariants:
//! - each accepted group is in exactly one batch; each batch is learnt exactly once on the way to a commit; work behind the
//!   last commit is replayed from kept batches, never generated again;
//! - a version is served by all who answer before it is used, and versions only rise;
//! - orders and reports are idempotent by (trainer epoch, number), results by their submission;
//! - whatever could be lost between two records is done again by the successor, and doing it twice changes nothing.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod admission;
pub mod check;
mod compaction;
mod conductor;
mod config;
pub mod convert;
mod engines;
mod error;
mod evals;
mod event;
mod folders;
mod memory;
pub mod microbatch;
mod mix;
mod order;
mod position;
mod progress;
mod record;
mod replay;
pub mod resumed;
mod source;
mod state;
mod trainer;
mod workers;

pub use check::Snapshot;
pub use compaction::GiveBack;
pub use conductor::{Conductor, LEASE_MS, PUBLISH_PATIENCE_MS, SAVED_HOLD_MS, TRAINER_HEARTBEAT_MS};
pub use config::{
    AttemptConfig, DataFile, EvalEvery, Found, Frozen, Live, RunConfig, TooStale, Warm, first_difference,
};
pub use convert::{BatchStats, Converted};
pub use error::Error;
pub use event::{Command, Event, Grant, Reply, ReplyId, SettingsAsked, Step, TilesProblem, Unreached};
pub use mix::sample_seed;
pub use order::{OrderKind, epoch_of, tiles_folder};
pub use position::Position;
pub use record::{DropReason, EvalFor, Record};
pub use replay::replay;
pub use resumed::Resumed;
pub use source::{Cursor, Drawn, Source, order};
pub use state::{
    ATTEMPTS_MAX, Applied, Batch, CheckpointAsked, Commit, EVAL_TASKS, Eval, EvalResult, Publishing, Run, SettingsHeld,
    State, Trainer, Version, WarmBatch, row_of,
};
pub use trainer::EXPORT_FOLDER;
