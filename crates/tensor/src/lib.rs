//! Tensors and the two traits everything numeric stands on: [`Backend`] (compute and memory of one device) and
//! [`Comm`] (moves between ranks).
//!
//! What it is: data types, shapes, views over reference-counted buffers, a counter-based random generator, the
//! argument structs of about thirty coarse operations, a fast CPU backend, a slow and obvious reference backend
//! (f32 and f64) and a conformance suite that any backend runs.
//!
//! What it is NOT: there is no autograd, no lazy graph and no operator overloading. A layer calls `out = op(in)` and
//! owns what it wants to keep for its backward pass.
//!
//! Invariants
//! - An operation never allocates behind the caller's back except scratch tagged [`Tag::Work`].
//! - An operation that overwrites its output never reads it: outputs may hold NaN on entry.
//! - The bits of one row never depend on how many rows stand beside it, on how they are packed, or on the number of
//!   threads. Trainer and engine rely on it: the log-prob of a token is the same number in both.
//! - Collectives move bytes; sums are ours and run in rank order.
//! - Host memory is borrow-checked at run time: two operations that touch one buffer at the same time, one of them
//!   writing, get [`Error::Conflict`] instead of a data race.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]
// Numeric loops index several arrays at once; iterators would hide which.
#![allow(clippy::needless_range_loop)]

mod backend;
mod buf;
mod caps;
mod comm;
pub mod conformance;
pub mod cpu;
mod dtype;
mod error;
mod host;
pub mod ops;
mod philox;
mod pool;
pub mod reference;
mod shape;
mod stream;
#[allow(clippy::module_inception)]
mod tensor;

pub use backend::Backend;
pub use buf::{Buf, Storage, Tag};
pub use caps::{Caps, MemStats};
pub use comm::{Comm, SingleRank};
pub use cpu::CpuBackend;
pub use dtype::{DType, Element};
pub use error::{Error, Result};
pub use host::{HostRead, HostWrite};
pub use philox::Philox;
pub use reference::ReferenceBackend;
pub use shape::{Dims, MAX_RANK};
pub use stream::{Event, Stream};
pub use tensor::Tensor;

/// Tokens in one page of the key-value cache, and the fixed width of a key tile in attention.
pub const PAGE: usize = 64;
