//! The engine as its clients see it: a real server on loopback, a small random model, real requests.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod aborts;
mod ends;
mod limits;
mod live;
mod log_probs;
mod prefix_cache;
mod samples;
mod shapes;
mod transformers;
mod updates;
