//! The step loop of a trainer's rank: claim the run, obey the conductor's orders, report.
//!
//! A rank holds a slice of the model, its gradients and a share of the optimizer. Rank 0 asks the conductor what to do and
//! tells every rank; all carry the order out together ([`run`]); rank 0 reports what was done. Orders are to learn from a
//! batch, to save tiles, to publish weights, to begin the RL phase, to export, to stop and to finish.
//!
//! What it is not: it decides nothing about the run. It never looks for a checkpoint, never chooses a batch, never reads a
//! clock to act on it, never deletes what another attempt wrote, and commits nothing: a save is a folder until the
//! conductor has journaled it. Losses are [`rl`]'s, the optimizer is [`parallel`]'s, formats are [`checkpoint`]'s.
//!
//! Invariants:
//! - the same start and the same orders in the same layout give the same bits, so a replayed batch does too;
//! - every rank makes the same collective calls in the same order, whatever it has to learn itself;
//! - an update whose gradient is not finite changes nothing, and is reported;
//! - the ratio of an update is taken against log-probs the trainer computed under the weights before the order's first
//!   update, never against the sampler's;
//! - the log-prob gap covers only tokens whose version has the digest of the weights held, and their count goes with it;
//! - what is written lies in folders named by the conductor, complete under their name or not there at all.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod batch;
mod error;
pub mod exit;
mod failure;
pub mod faults;
mod gap;
mod learn;
pub mod link;
mod persist;
mod reference;
mod rescore;
mod run;
mod space;
mod stop;
mod sums;
mod trainer;
mod volume;

pub use error::Error;
pub use failure::{Failure, describe};
pub use run::{Claimant, Ended, Event, RankConfig, run};
pub use stop::Stop;
