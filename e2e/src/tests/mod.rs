//! The tests, by what they are about.

mod api_server;
mod chart;
mod kubectl;
mod lifecycle;
mod nodes;
mod operator;
mod scheduling;
mod security;
mod serving;
mod trainer;

use crate::harness::Test;

/// All of them, in the order they are reported.
pub fn all() -> Vec<Test> {
    [
        api_server::tests(),
        chart::tests(),
        operator::tests(),
        lifecycle::tests(),
        trainer::tests(),
        serving::tests(),
        kubectl::tests(),
        scheduling::tests(),
        security::tests(),
        nodes::tests(),
    ]
    .concat()
}
