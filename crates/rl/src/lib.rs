//! Advantages, losses, corrections and schedules as pure functions on slices.
//!
//! A loss takes per-token log-probs and returns, per token, its share of the objective and the derivatives of the
//! objective with respect to the token's log-prob and entropy. The trainer feeds those coefficients into the backward
//! pass of the log-prob head; so a new loss needs no kernel, and every backend has every loss.
//!
//! What it is not: there is no I/O, no clock, no tensor and no parallelism here. Nothing here looks at a micro-batch to
//! find a mean: denominators are given, for the whole optimizer update.
//!
//! Invariants:
//! - a masked token contributes exactly 0 to everything, whatever its inputs are (infinities and NaN included);
//! - the sum over any split of an update into micro-batches and ranks is the same objective;
//! - groups whose rewards are all alike, and groups of one, have advantage exactly 0;
//! - a finite input gives a finite output: log-ratios are bounded before they are exponentiated.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod advantage;
mod bounded_exp;
mod config;
mod error;
mod finite;
mod kl;
mod policy;
mod reduction;
mod schedule;
mod sft;

pub use advantage::{Advantages, GroupAdvantage, GroupStats, RewardedSample};
pub use bounded_exp::{EXP_BOUND, bounded_exp};
pub use config::{KlConfig, KlKind, LossConfig, LossReduction, OptimizerConfig, ScheduleKind, StdKind, TisConfig};
pub use error::Error;
pub use finite::first_non_finite;
pub use policy::{PolicyBatch, PolicySums, policy_loss};
pub use reduction::Denominators;
pub use sft::{SftBatch, SftSums, sft_loss};

/// Per-token results of a loss. All three are as long as the batch's tokens and exactly 0 where the mask is 0.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenCoefficients {
    /// The token's share of the objective; their sum over all ranks and micro-batches of an update is the objective.
    pub loss: Vec<f64>,
    /// d objective / d log-prob of the token.
    pub dlogp: Vec<f64>,
    /// d objective / d entropy at the token.
    pub dentropy: Vec<f64>,
}

impl TokenCoefficients {
    pub(crate) fn zeros(tokens: usize) -> Self {
        Self { loss: vec![0.0; tokens], dlogp: vec![0.0; tokens], dentropy: vec![0.0; tokens] }
    }
}
