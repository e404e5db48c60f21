//! What a person sees with one look at a run: where it is, what it waits for, what happened, who said what.
//!
//! What it is: pure functions from the objects of a run to lines, for `thresh` on this machine and for `kubectl thresh` on a
//! cluster, so that both say the same in the same words.
//!
//! What it is **not**: it reads no file, asks no server and knows no clock. Who calls it brings the objects and the instant.
//!
//! Invariants:
//! - every reason of a condition that `plan` or the operator can set has its words in [`reasons`]; one that is not known there
//!   (of a newer operator) is still told, as it stands;
//! - whatever is waited for has an owner; an instant is told only if the objects hold it.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod clock;
mod facts;
mod happening;
mod logs;
mod output;
pub mod reasons;
mod row;
pub mod status;
mod why;

pub use clock::{age, span, time_of_day};
pub use facts::{Facts, Place};
pub use happening::{Happening, from_event, is_about, lines as event_lines};
pub use logs::{LogsOf, Role, Source, pick, prefix, selectors, source_of_name, source_of_pod};
pub use output::Output;
pub use row::{Row, table};
pub use why::{Why, why};

#[cfg(test)]
mod sample;
