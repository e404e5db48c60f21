//! Collectives between the ranks of one attempt: threads of one process ([`thread`]) or processes over TCP ([`tcp`]).
//!
//! This crate only **moves** bytes. Sums are made by the code shared by all transports, in rank order, so a result
//! never depends on which transport carried it or on what arrived first. It knows no tensors' meaning, no grid (who
//! forms a group is decided by `parallel::grid`), and retries nothing: a world that has failed stays failed.
//!
//! Invariants:
//! - every wait has a deadline, and the error at its end names who waits for whom;
//! - every wait can be ended from another thread ([`Abort`]);
//! - the death of a rank ends every wait of all others at once, with an error that names it;
//! - two ranks that call different collectives get an error, not each other's bytes;
//! - a rank of another run or an older attempt never enters a world (see [`tcp::join`]).
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod abort;
mod beat;
mod error;
mod frame;
mod group;
mod inbox;
mod mesh;
mod message;
pub mod tcp;
pub mod thread;
mod transport;

pub use abort::Abort;
pub use error::{Error, Result};
pub use group::Group;
