//! Plays a history: what happens in it, then a quiet time in which the run must come to rest.

use api::{Phase, labels};

use crate::coverage::Coverage;
use crate::ops::{Op, history};
use crate::sim::{Decide, Sim};
use crate::watch::{Broken, QUIET, REST, Watch};

/// Plays it with this `decide`.
pub fn play(ops: &[Op], decide: Decide) -> Result<Coverage, Broken> {
    let mut sim = Sim::with_nodes(2);
    sim.decide = decide;
    sim.strict = false;
    sim.job.spec.trainer.failure_policy.base_delay_seconds = 2;
    sim.job.spec.trainer.startup_deadline_seconds = 120;
    sim.job.spec.trainer.update_policy.checkpoint_timeout_seconds = 60;
    let mut watch = Watch::default();
    for op in ops {
        op.happen(&mut sim);
        match *op {
            Op::Pass => sim.pass(),
            Op::Crash(n) => sim.crash_after(n),
            Op::Stale(s) => sim.stale_pass(s),
            Op::Run => sim.run_watched(&mut |sim| watch.look(sim)),
            _ => continue,
        }
        if !watch.look(&mut sim) {
            break;
        }
    }
    if watch.broken.is_none() {
        quiet(&mut sim, &mut watch);
    }
    match watch.broken {
        Some(broken) => Err(broken),
        None => Ok(watch.coverage),
    }
}

/// Everything heals and nothing happens any more. Time goes on only to where a plan has asked to be woken.
fn quiet(sim: &mut Sim, watch: &mut Watch) {
    // A checkpoint that never comes is no noise: it must be given up.
    let answered = sim.checkpoints_answer;
    sim.calm();
    sim.checkpoints_answer = answered;
    sim.edit(|j| {
        j.spec.trainer.pod_template = None;
        j.spec.trainer.progress_deadline_seconds = 0;
        j.spec.active_deadline_seconds = None;
        j.spec.ttl_seconds_after_finished = None;
    });
    let mut patience = 200;
    for _ in 0..200 {
        sim.run_watched(&mut |sim| watch.look(sim));
        if watch.broken.is_some() {
            return;
        }
        if at_rest(sim) {
            watch.rest(sim);
            return stays(sim, watch);
        }
        let Some(t) = sim.requeue else {
            return watch.fail(REST, format!("waits for nothing: {}", said(sim)));
        };
        // A poll that found nothing is followed by longer and longer sleeps, as of a busy operator.
        let asked = i64::try_from(t.duration_since(sim.now).as_millis()).unwrap();
        sim.advance_ms(asked.max(patience));
        patience = (patience * 5 / 4).min(60_000);
    }
    watch.fail(REST, format!("does not come to rest: {}", said(sim)));
}

fn at_rest(sim: &Sim) -> bool {
    let Some(s) = &sim.job.status else { return false };
    let there = match s.phase {
        Phase::Running => !sim.job.spec.suspend,
        Phase::Suspended => sim.job.spec.suspend,
        Phase::Complete | Phase::Failed => true,
        Phase::Terminating => !sim.finalizers().iter().any(|f| f == labels::RLJOB_FINALIZER),
        _ => false,
    };
    // A clock that was set back delays what is written now and then.
    let written = sim.report.step == s.progress.as_ref().map_or(0, |p| p.step);
    let reports = matches!(s.phase, Phase::Running | Phase::Suspended);
    there && (written || !reports) && sim.last_actions.is_empty() && sim.listing.is_none()
}

fn stays(sim: &mut Sim, watch: &mut Watch) {
    let writes = sim.writes;
    for _ in 0..3 {
        sim.pass();
        if !watch.look(sim) {
            return;
        }
        sim.settle();
        sim.advance_ms(1_000);
        if !sim.last_actions.is_empty() || sim.writes != writes {
            return watch.fail(QUIET, format!("{:?} {}", sim.last_actions, said(sim)));
        }
    }
    let Some(s) = &sim.job.status else { return };
    if s.phase == Phase::Running && sim.requeue.is_none() {
        watch.fail(QUIET, "a living trainer is not watched".into());
    }
}

fn said(sim: &Sim) -> String {
    let Some(s) = &sim.job.status else { return "no status".into() };
    let why = s.conditions.iter().find(|c| c.type_ == "TrainerReady").map(|c| format!("{} {}", c.reason, c.message));
    format!("{:?} {why:?} attempt {:?}", s.phase, s.attempt)
}

/// The history of a seed; if it breaks a rule, its shortest form that breaks the same one.
pub fn play_seed(seed: u64, decide: Decide) -> Result<Coverage, String> {
    let ops = history(seed);
    play(&ops, decide).map_err(|broken| {
        let (short, broken) = shortest(ops, broken, decide);
        format!("seed {seed}: {}: {}\n{short:#?}", broken.rule, broken.what)
    })
}

/// Leaves out whatever can be left out while the same rule is broken.
fn shortest(mut ops: Vec<Op>, mut broken: Broken, decide: Decide) -> (Vec<Op>, Broken) {
    let mut size = ops.len().div_ceil(2);
    while size > 0 {
        let mut at = 0;
        while at < ops.len() {
            let mut fewer = ops.clone();
            fewer.drain(at..(at + size).min(ops.len()));
            match play(&fewer, decide) {
                Err(b) if b.rule == broken.rule => (ops, broken) = (fewer, b),
                _ => at += size,
            }
        }
        size /= 2;
    }
    (ops, broken)
}
