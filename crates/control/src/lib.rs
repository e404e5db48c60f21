//! How the parts of a run talk: wire types, clients, and what every server of ours has in common.
//!
//! - [`wire`] is the protocol between conductor, workers, trainer and operator: JSON over HTTP, references instead of tensors.
//! - [`client`] are its clients; they remember the highest conductor epoch they met and refuse a lower one.
//! - [`names`] finds Services, through DNS in a cluster and through a file on a laptop.
//! - [`server`] has bearer authentication, refusals, graceful shutdown; [`health`] has `/metrics`, `/livez`, `/readyz`.
//! - [`run_dir`] says what lies where in a run's folder.
//! - [`log`] sets up tracing the same way in every binary; [`identity`] reads the environment a pod is given.
//!
//! It does not know what the messages mean: that is the conductor's, the worker's and the trainer's business.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

pub mod client;
pub mod health;
pub mod identity;
pub mod log;
pub mod names;
pub mod run_dir;
pub mod server;
pub mod wire;
