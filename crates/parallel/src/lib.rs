//! Who works with whom, and the optimizer they share.
//!
//! [`grid`] says which ranks form which group for a [`Layout`]; [`flat`] divides a rank's flat buffers among the data
//! parallel ranks; [`dist_optimizer`] is AdamW on that division. This crate knows no layer, no file and no network: a
//! group arrives as `dyn Comm`, a parameter as a range with two flags.
//!
//! Invariants:
//! - the groups of an axis partition the ranks;
//! - every element of a flat buffer has exactly one owner among its data parallel ranks;
//! - every rank takes the same decision (clip, skip), because it computes it from the same numbers in the same order;
//! - a step whose gradient is not finite changes nothing.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

pub mod dist_optimizer;
mod error;
pub mod flat;
pub mod grid;
mod groups;
mod layout;

pub use dist_optimizer::{AdamWConfig, DistOptimizer, OwnedPiece, StepReport};
pub use error::{Error, Result};
pub use flat::FlatParam;
pub use grid::{Axis, Coord, Grid};
pub use groups::Groups;
pub use layout::Layout;
