//! The tests, by what they are about.

mod lifecycle;
mod serving;
mod trainer;

use crate::harness::Test;

/// All of them, in the order they are reported.
pub fn all() -> Vec<Test> {
    [lifecycle::tests(), trainer::tests(), serving::tests()].concat()
}
