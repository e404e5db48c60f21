//! Against transformers, on a real model and on a model of ours. `make test-oracle` prepares what these tests need (models,
//! references, a Python with transformers) and runs them; they are no part of `make test`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stderr)]

mod byte_equality;
mod compare;
mod one_run;
mod ours;
mod quickstart;
mod reference;
mod served;
mod smollm2;
