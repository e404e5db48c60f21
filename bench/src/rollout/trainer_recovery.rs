//! From the `kill -9` of a rank of the trainer to the next optimizer step that anybody can read of.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

use super::local_run::{LocalRun, Process, QUIET_STEPS, STEPS_BETWEEN};
use super::memory::Peaks;
use crate::line::{Line, Lines};
use crate::rounds::median;

/// How often it looks.
const LOOK: Duration = Duration::from_millis(5);

fn now_ms() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64() * 1e3
}

fn ranks(run: &LocalRun) -> Vec<Process> {
    run.processes().into_iter().filter(|process| process.rank.is_some()).collect()
}

/// Kills a rank a few times, in the middle of whatever it does then.
pub fn run(run: &mut LocalRun, lines: &mut Lines, peaks: &mut Peaks, kills: usize) -> Result<()> {
    let (mut totals, mut respawns, mut loads) = (vec![], vec![], vec![]);
    for kill in 0..kills {
        run.wait_for_steps(QUIET_STEPS + kill * STEPS_BETWEEN, peaks)?;
        let attempt = run.records().last().map_or(1, |record| record.attempt);
        let victim = ranks(run).into_iter().nth(kill % 2).context("a rank to kill")?;
        let pid = Pid::from_raw(victim.pid).context("a process id")?;
        let killed = now_ms();
        kill_process(pid, Signal::KILL)?;
        let born = run.wait_for("the next attempt", LOOK, |run| {
            ranks(run).iter().any(|rank| rank.pod != victim.pod).then(now_ms)
        })?;
        let step = run.wait_for("its first step", LOOK, |run| {
            run.records().into_iter().find(|record| record.attempt > attempt)
        })?;
        // The record has the time at which the conductor made the step durable, by the same clock.
        totals.push((step.time_ms as f64 - killed) / 1e3);
        respawns.push((born - killed) / 1e3);
        loads.push((step.time_ms as f64 - born) / 1e3);
    }
    let line = |bench: &str, case: &str, x: &[f64]| {
        let mut line = Line::new(bench, case, median(x), "s").with("kills", x.len());
        line.range = Some([x.iter().copied().fold(f64::INFINITY, f64::min), x.iter().copied().fold(0.0, f64::max)]);
        line
    };
    lines.add(line("trainer_recovery", "", &totals))?;
    lines.add(line("trainer_recovery_part", "until the next attempt's ranks exist", &respawns))?;
    lines.add(line("trainer_recovery_part", "from there to its first optimizer step", &loads))
}
