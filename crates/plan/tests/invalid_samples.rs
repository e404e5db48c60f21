//! A run that learns from the few samples that can be judged says so.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod cases;
mod sim;

use api::conditions as cond;
use sim::Sim;

#[test]
fn a_run_with_too_many_invalid_samples_is_degraded_until_they_are_fewer() {
    let mut sim = Sim::new();
    sim.run();
    assert_eq!(sim.condition(cond::DEGRADED), ("False", "AsExpected"));
    sim.report.samples_invalid = true;
    sim.run_for_ms(10_000);
    assert_eq!(sim.condition(cond::DEGRADED), ("True", "SamplesInvalid"));
    assert_eq!(sim.status().attempts, 1, "no trainer is to blame, so none is restarted");
    sim.report.samples_invalid = false;
    sim.run_for_ms(10_000);
    assert_eq!(sim.condition(cond::DEGRADED), ("False", "AsExpected"));
}
