//! The tests, by what they are about.

mod lifecycle;
mod nodes;
mod scheduling;
mod security;
mod trainer;

use crate::harness::Test;

/// All of them, in the order they are reported.
pub fn all() -> Vec<Test> {
    [lifecycle::tests(), trainer::tests(), nodes::tests(), scheduling::tests(), security::tests()].concat()
}
