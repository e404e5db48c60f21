//! A real run of the whole loop, with all its processes; an engine and a conductor behind their HTTP interfaces.

mod engine_http;
mod local_run;
mod loop_time;
mod memory;
mod service;
mod trainer_recovery;

use std::path::Path;

use anyhow::Result;

use crate::{Options, line::Lines};
use local_run::LocalRun;

/// Measures everything that needs processes.
pub fn run(options: &Options, manifest: &Path, kills: usize) -> Result<()> {
    let mut lines = Lines::begin(&options.out, "rollout")?;
    if options.wants("engine_http") {
        engine_http::run(options, &mut lines, manifest)?;
    }
    if options.wants("lease_renewals") {
        service::renewals(options, &mut lines, manifest)?;
    }
    if options.wants("results_accepted") {
        service::offers(options, &mut lines, manifest)?;
    }
    if options.wants("conductor_failover") {
        service::failover(options, &mut lines, manifest)?;
    }
    if !(options.wants("loop") || options.wants("memory") || options.wants("trainer_recovery")) {
        return Ok(());
    }
    let mut run = LocalRun::start(&options.out, manifest, kills)?;
    let mut peaks = memory::Peaks::default();
    // Steps before the first kill are undisturbed: they are what the loop's times are taken from.
    run.wait_for_steps(local_run::QUIET_STEPS, &mut peaks)?;
    loop_time::warm_start(&run, &mut lines)?;
    loop_time::rl(&run, &mut lines)?;
    trainer_recovery::run(&mut run, &mut lines, &mut peaks, kills)?;
    run.finish(&mut peaks)?;
    memory::report(&peaks, &mut lines)
}
