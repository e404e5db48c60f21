//! The roles of the rollout image as a library: the binary picks one by its arguments, tests and benchmarks start them where
//! they are. What each of them does is in `crates`; here it is wired.
//!
//! | module | what it is |
//! |---|---|
//! | [`conductor`] | owns a run: its data, queue, batches, weight versions and commits |
//! | [`worker`] | generates and rewards prompt groups for whichever run invites |
//! | [`engine`] | serves a model, with SGLang's HTTP interface |
//! | [`lone`] | what a conductor needs around it to give out work, without any model |
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

pub mod conductor;
pub mod engine;
pub mod lone;
pub mod worker;
