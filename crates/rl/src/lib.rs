//! Advantages, losses, corrections and schedules as pure functions on slices.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod config;

pub use config::{KlConfig, KlKind, LossConfig, LossReduction, OptimizerConfig, ScheduleKind, StdKind, TisConfig};
