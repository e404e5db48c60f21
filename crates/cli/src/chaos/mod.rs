//! Chaos: a run is played to its end while its parts are killed, and its journal must say that nothing was lost or doubled.
//!
//! A seed gives a [`schedule::Schedule`]: what kills each life of the trainer, each reign of the conductor, and which engines
//! and workers die in which moment. Deaths at a point inside a process (in backward, between two records) are armed before it
//! starts, by the fault points of trainer and conductor; the others are signals that the [`director::Director`] sends. The
//! brain is told of none of them. [`verdict::Verdict`] reads the journal afterwards with the checker that the conductor's
//! state does not share code with.

pub mod dice;
pub mod director;
pub mod kill;
pub mod manifest;
pub mod schedule;
pub mod verdict;
