//! The tests, by what they are about.

mod kubectl;
mod lifecycle;
mod trainer;

use crate::harness::Test;

/// All of them, in the order they are reported.
pub fn all() -> Vec<Test> {
    [kubectl::tests(), lifecycle::tests(), trainer::tests()].concat()
}
