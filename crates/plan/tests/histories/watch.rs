//! What must hold whatever happens. It judges by what is true in the simulated world, not by what a decision says.

use std::time::Duration;

use api::{AttemptStatus, Outcome, Phase, RLJobStatus, StopReason, UpdateType, conditions as cond};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use plan::{Child, ChildKind, StorageState, pod_facts};

use crate::coverage::Coverage;
use crate::sim::{Sim, Truth};

pub const ONE: &str = "at most one attempt may write";
pub const GONE: &str = "nothing of an attempt lives when it is said to be gone";
pub const FENCED: &str = "an attempt is fenced when the conductor has said so";
pub const COMPLETE: &str = "Complete is absolute";
pub const FAILED: &str = "Failed is left by a new token only";
pub const NUMBERS: &str = "numbers rise by one, from the highest that any Job, pod or claim has";
pub const SUSPEND: &str = "no attempt begins while the run is suspended";
pub const GATES: &str = "no attempt begins without what it needs";
pub const BACKOFF: &str = "a restart without a new commit waits";
pub const COUNTED: &str = "failures are counted, and the limit is kept";
pub const CAUSE: &str = "an end has the cause that it is given";
pub const SETTLED: &str = "the cause is named when there was time to see it";
pub const OVERDUE: &str = "what is overdue ends";
pub const SUPERSEDED: &str = "a superseded Job is deleted on sight";
pub const INVALID: &str = "an invalid spec touches nothing";
pub const FROZEN: &str = "an upgrade of the operator changes nothing of a run";
pub const TOLD: &str = "settings rise, and a fence is never lowered";
pub const REST: &str = "a quiet world comes to rest";
pub const QUIET: &str = "at rest nothing is written and nothing is done";

/// A rule, and how it was broken.
#[derive(Clone, Debug)]
pub struct Broken {
    pub rule: &'static str,
    pub what: String,
}

#[derive(Default)]
pub struct Watch {
    pub broken: Option<Broken>,
    pub coverage: Coverage,
    last: Option<RLJobStatus>,
    writes: usize,
    told: usize,
    /// Ends in a row without a new commit, and the commits when it was counted.
    ends: u32,
    commits: u64,
    /// Latest instant of the operator's clock since the last end: it may be set back.
    latest: Option<Timestamp>,
}

impl Watch {
    fn check(&mut self, holds: bool, rule: &'static str, what: impl FnOnce() -> String) {
        if !holds && self.broken.is_none() {
            self.broken = Some(Broken { rule, what: what() });
        }
    }

    pub fn fail(&mut self, rule: &'static str, what: String) {
        self.check(false, rule, || what);
    }

    /// Looks at a decision that was executed. False once something is broken.
    pub fn look(&mut self, sim: &mut Sim) -> bool {
        if let Some((rule, what)) = sim.faults.pop() {
            self.fail(rule, what);
        }
        self.coverage.plan(sim);
        let unfenced = sim.unfenced_attempts();
        self.check(unfenced.len() <= 1, ONE, || format!("{unfenced:?}"));
        self.told(sim);
        self.latest = self.latest.max(Some(sim.now));
        if sim.report.commits > self.commits {
            self.commits = sim.report.commits;
            self.ends = 0;
        }
        if let Some(new) = sim.job.status.clone() {
            if sim.writes > self.writes {
                self.writes = sim.writes;
                let old = self.last.take().unwrap_or_default();
                self.coverage.step(&old, &new);
                self.written(sim, &old, &new);
            }
            if sim.last_whole {
                self.overdue(sim, &new);
                self.superseded(sim, &new);
            }
            self.last = Some(new);
        }
        self.broken.is_none()
    }

    fn written(&mut self, sim: &Sim, old: &RLJobStatus, new: &RLJobStatus) {
        self.terminal(old, new);
        self.check(old.frozen.is_none() || old.frozen == new.frozen, FROZEN, || format!("{:?}", new.frozen));
        if new.gone_through > old.gone_through {
            self.gone(sim, new.gone_through.unwrap_or(0));
        }
        if new.fenced_through > old.fenced_through {
            let fence = sim.fence();
            self.check(new.fenced_through <= Some(fence), FENCED, || format!("{:?}, not {fence}", new.fenced_through));
        }
        if new.restart_token != old.restart_token || new.counters.commits_seen > old.counters.commits_seen {
            self.ends = 0;
        }
        self.check(new.counters.commits_seen <= sim.report.commits, COUNTED, || "commits nobody made".into());
        let id = |s: &RLJobStatus| s.attempt.as_ref().map(|a| a.id);
        if let Some(a) = &old.attempt
            && id(new) != Some(a.id)
        {
            self.ended(sim, a, old, new);
        }
        self.check(new.attempts >= old.attempts, NUMBERS, || format!("{} after {}", new.attempts, old.attempts));
        if let Some(a) = &new.attempt
            && id(old) != Some(a.id)
        {
            self.begun(sim, a, old, new);
        }
    }

    fn terminal(&mut self, old: &RLJobStatus, new: &RLJobStatus) {
        let is = |s: &RLJobStatus, t| cond::is_true(&s.conditions, t);
        self.check(!is(old, cond::COMPLETE) || is(new, cond::COMPLETE), COMPLETE, || format!("{:?}", new.phase));
        let left = is(old, cond::FAILED) && !is(new, cond::FAILED);
        self.check(!left || old.restart_token != new.restart_token, FAILED, || format!("{:?}", new.phase));
        let ended = is(new, cond::COMPLETE) || is(new, cond::FAILED);
        self.check(!ended || new.attempt.is_none(), COMPLETE, || "an attempt lives after the end".into());
        self.check(!(is(new, cond::COMPLETE) && is(new, cond::FAILED)), COMPLETE, || "both".into());
    }

    fn gone(&mut self, sim: &Sim, through: u64) {
        let fence = sim.fence();
        let left = sim.pods.iter().find(|p| {
            let n = pod_facts::attempt(&p.metadata);
            pod_facts::role(p) == "trainer" && n <= through && n > fence && sim.may_live(p)
        });
        self.check(left.is_none(), GONE, || {
            format!("{} when all through {through} are said to be gone", left.map(pod_facts::name).unwrap_or_default())
        });
    }

    /// An attempt was numbered.
    fn begun(&mut self, sim: &Sim, a: &AttemptStatus, old: &RLJobStatus, new: &RLJobStatus) {
        let children =
            sim.children.iter().filter(|c| c.kind() == ChildKind::Job && c.uid() != "").map(|c| c.metadata());
        let pods = sim.pods.iter().map(|p| &p.metadata);
        let used = children.chain(pods).map(pod_facts::attempt).filter(|n| *n != a.id).max().unwrap_or(0);
        let made = sim.made.range(a.id..).filter(|(n, _)| **n != a.id || old.attempts >= a.id).count();
        let fresh = a.id == old.attempts + 1 && new.attempts == a.id && a.id > used && made == 0;
        self.check(fresh, NUMBERS, || format!("{} after {}, {used} in use", a.id, old.attempts));
        self.check(!sim.job.spec.suspend, SUSPEND, || format!("attempt {}", a.id));
        if sim.last_whole {
            self.gates(sim);
        }
        let Some(last) = &old.last_attempt else { return };
        let policy = &sim.job.spec.trainer.failure_policy;
        let ends = self.ends;
        let doubled = u64::from(policy.base_delay_seconds) << ends.saturating_sub(1).min(20);
        let until = later(last.end_time.0, Duration::from_secs(doubled.min(policy.max_delay_seconds.into())));
        self.check(ends == 0 || self.latest >= Some(until), BACKOFF, || {
            format!("attempt {} begins at {} and may at {until}, after {ends} ends", a.id, sim.now)
        });
    }

    fn gates(&mut self, sim: &Sim) {
        let storage = !matches!(sim.storage, Some(StorageState::Missing | StorageState::Pending));
        self.check(storage, GATES, || format!("{:?}", sim.storage));
        let writer = sim.children.iter().find_map(|c| match c {
            Child::ServingCluster(s) => s.status.as_ref()?.weights.writer.as_ref(),
            _ => None,
        });
        self.check(writer.is_some_and(|w| w.uid == "uid-run"), GATES, || "another run is the writer".into());
        self.check(sim.conductor_answers(), GATES, || "the conductor does not answer".into());
        self.check(sim.engines_ready.is_none_or(|n| n >= 2), GATES, || "too few engines".into());
        let valid = plan::validate(None, &sim.job).is_empty();
        self.check(valid, INVALID, || "an attempt begins".into());
    }

    /// An attempt ended: why, and what it counts for.
    fn ended(&mut self, sim: &Sim, a: &AttemptStatus, old: &RLJobStatus, new: &RLJobStatus) {
        let Some(last) = new.last_attempt.as_ref().filter(|l| l.id == a.id) else {
            // The object is being deleted: nobody asks why any more.
            let deleted = sim.job.metadata.deletion_timestamp.is_some();
            return self.check(deleted, CAUSE, || format!("attempt {} vanished without an end", a.id));
        };
        let truth = sim.truth.get(&a.id).cloned().unwrap_or_default();
        let outcome = last.outcome;
        let caused = caused(sim, a, old, new, &truth);
        self.check(caused, CAUSE, || format!("{outcome:?} of {}: {truth:?}, {}", a.id, last.message));
        if sim.last_whole && sim.last_saw.0 && a.stopping.is_none() {
            let hidden = matches!(outcome, Outcome::Failed | Outcome::Deleted | Outcome::Stopped);
            let by_deadline = last.message.contains("deadline");
            self.check(!hidden || by_deadline, CAUSE, || format!("{outcome:?} although a disruption was seen"));
        }
        let valid = plan::validate(None, &sim.job).is_empty();
        let by_edit = matches!(outcome, Outcome::SpecChange | Outcome::Requested) && a.stopping.is_none();
        self.check(valid || !by_edit || !sim.last_whole, INVALID, || format!("attempt {} is ended, {outcome:?}", a.id));
        self.settled(sim, a, new, &truth);
        self.counted(sim, last, old, new);
        self.latest = Some(sim.now);
        self.ends = if self.commits > a.commits_at_start { 0 } else { self.ends + 1 };
    }

    fn settled(&mut self, sim: &Sim, a: &AttemptStatus, new: &RLJobStatus, truth: &Truth) {
        let Some(last) = &new.last_attempt else { return };
        let by_pods = matches!(
            last.outcome,
            Outcome::Failed | Outcome::Stopped | Outcome::Deleted | Outcome::Disrupted | Outcome::OutOfMemory
        );
        let by_deadline = cond::get(&new.conditions, cond::FAILED).is_some_and(|c| c.reason == "DeadlineExceeded");
        let Some((at, mono)) = truth.first_harm else { return };
        let window = sim.settings.settle_window;
        let time = sim.now >= later(at, window) || sim.mono - mono >= i64::try_from(window.as_millis()).unwrap();
        let seen = sim.last_saw.1 || truth.job_deleted || time;
        self.check(!by_pods || by_deadline || seen, SETTLED, || format!("{:?} of {}", last.outcome, a.id));
    }

    fn counted(&mut self, sim: &Sim, last: &api::LastAttempt, old: &RLJobStatus, new: &RLJobStatus) {
        let policy = &sim.job.spec.trainer.failure_policy;
        let failed =
            |reason| cond::get(&new.conditions, cond::FAILED).is_some_and(|c| c.status == "True" && c.reason == reason);
        let (o, n) = (old.counters, new.counters);
        let failure = matches!(
            last.outcome,
            Outcome::Failed | Outcome::OutOfMemory | Outcome::StartupDeadline | Outcome::NoProgress
        );
        if policy.rules.is_empty() {
            self.check(n.failures == o.failures + u32::from(failure), COUNTED, || {
                format!("{:?} makes {} failures {}", last.outcome, o.failures, n.failures)
            });
            self.check(failed("FailJobRule") == (last.outcome == Outcome::UserError), COUNTED, || {
                format!("{:?}: {:?}", last.outcome, new.phase)
            });
        }
        let over = n.failures > o.failures && n.failures_since_progress > policy.backoff_limit;
        self.check(failed("BackoffLimitExceeded") == over, COUNTED, || format!("{n:?}, {}", policy.backoff_limit));
    }

    /// What a decision that saw everything must not let pass.
    fn overdue(&mut self, sim: &Sim, s: &RLJobStatus) {
        let now = sim.now;
        let seconds = |t: Timestamp, s: u64| later(t, Duration::from_secs(s));
        let deleted = sim.job.metadata.deletion_timestamp.is_some();
        let ended = cond::is_true(&s.conditions, cond::COMPLETE) || cond::is_true(&s.conditions, cond::FAILED);
        if let (Some(limit), Some(start)) = (sim.job.spec.active_deadline_seconds, &s.start_time) {
            let done = s.attempt.is_some() && sim.report.finished && sim.conductor_answers();
            let in_time = ended || deleted || done || now < seconds(start.0, limit);
            self.check(in_time, OVERDUE, || format!("the run since {}", start.0));
        }
        let Some(a) = s.attempt.as_ref().filter(|a| a.ending.is_none()) else { return };
        match (&a.stopping, &a.ready_time, &a.start_time) {
            (Some(stopping), ..) => {
                let until = stopping.checkpoint.as_ref().map_or(stopping.since.0, |c| c.deadline.0);
                self.check(now < until, OVERDUE, || format!("a checkpoint at {until}"));
            }
            // Not while its queue holds it.
            (None, None, Some(_)) if a.job_uid.is_some() && a.released_time.is_none() => {}
            (None, None, Some(numbered)) => {
                let start = a.released_time.as_ref().unwrap_or(numbered);
                let until = seconds(start.0, sim.job.spec.trainer.startup_deadline_seconds.into());
                self.check(now < until, OVERDUE, || format!("attempt {} is not ready at {until}", a.id));
            }
            _ => {}
        }
        let differs = a.revision != api::hash::trainer(&sim.job);
        let waits = sim.job.spec.trainer.update_policy.type_ == UpdateType::OnNextFailure;
        let valid = plan::validate(None, &sim.job).is_empty();
        self.check(a.stopping.is_some() || !differs || waits || !valid, OVERDUE, || "an edit of the trainer".into());
        let stops = a.stopping.as_ref().is_some_and(|s| s.reason == StopReason::Suspend);
        self.check(stops || !sim.job.spec.suspend, OVERDUE, || "a suspension".into());
    }

    fn superseded(&mut self, sim: &Sim, s: &RLJobStatus) {
        let living = s.attempt.as_ref().map(|a| a.id);
        let jobs = sim.children.iter().filter(|c| c.kind() == ChildKind::Job);
        let stray = jobs.map(|c| pod_facts::attempt(c.metadata())).find(|n| Some(*n) != living);
        self.check(stray.is_none(), SUPERSEDED, || format!("Job {stray:?} beside {living:?}"));
    }

    fn told(&mut self, sim: &Sim) {
        let told = &sim.told[self.told.saturating_sub(1)..];
        let rises = told
            .windows(2)
            .all(|w| w[0].number < w[1].number && w[0].fence_attempts_up_to <= w[1].fence_attempts_up_to);
        self.told = sim.told.len();
        let valid = |t: &plan::ConductorSettings| t.spec["trainer"]["podTemplate"].is_null();
        self.check(told.iter().all(valid), INVALID, || "the conductor is told of it".into());
        self.check(rises, TOLD, || {
            format!("{:?}", sim.told.iter().map(|t| (t.number, t.fence_attempts_up_to)).collect::<Vec<_>>())
        });
    }

    /// What holds when a quiet world has come to rest.
    pub fn rest(&mut self, sim: &Sim) {
        let s = sim.status();
        let count = |k| sim.children.iter().filter(|c| c.kind() == k).count();
        let (jobs, conductors) = (count(ChildKind::Job), count(ChildKind::StatefulSet));
        let paused = sim.told.last().is_some_and(|t| t.paused);
        let spec = serde_json::to_value(&sim.job.defaulted().spec).unwrap();
        let told = sim.told.last().is_some_and(|t| api::hash::of(&t.spec) == api::hash::of(&spec));
        let (want, seen) = match s.phase {
            Phase::Running => {
                let pending = sim.job.spec.trainer.update_policy.type_ == UpdateType::OnNextFailure;
                let same = s.attempt.as_ref().is_some_and(|a| a.revision == api::hash::trainer(&sim.job));
                self.check(same || pending, REST, || "the last spec does not run".into());
                ((1, 1, false, true), (jobs, conductors, paused, told))
            }
            Phase::Suspended => ((0, 1, true, true), (jobs, conductors, paused, told)),
            _ => ((0, 0, paused, told), (jobs, conductors, paused, told)),
        };
        self.check(want == seen, REST, || format!("{:?}: Jobs, conductors, paused, told {seen:?}", s.phase));
    }
}

/// Whether the end is one that what happened can have had.
fn caused(sim: &Sim, a: &AttemptStatus, old: &RLJobStatus, new: &RLJobStatus, truth: &Truth) -> bool {
    let Some(last) = &new.last_attempt else { return false };
    let t = &sim.job.spec.trainer;
    let asked = |reason| a.stopping.as_ref().is_some_and(|s| s.reason == reason);
    let since = |from: Option<Timestamp>, s: u64| from.is_some_and(|f| sim.now >= later(f, Duration::from_secs(s)));
    let removed = truth.pod_deleted || truth.job_deleted;
    let lost = truth.disrupted || truth.node_lost;
    let exited = |f: fn(&i32) -> bool| truth.exits.iter().any(f);
    match last.outcome {
        Outcome::Complete => sim.report.finished,
        Outcome::Stopped => {
            exited(|c| matches!(c, 4 | 75))
                || cond::get(&new.conditions, cond::FAILED).is_some_and(|c| c.reason == "DeadlineExceeded")
        }
        // What vanished before it was looked at cannot be told from what a hand removed.
        Outcome::Deleted => removed || lost || truth.out_of_memory || (truth.preempted && !sim.last_whole),
        Outcome::Disrupted => lost,
        Outcome::Preempted => truth.preempted,
        Outcome::OutOfMemory => truth.out_of_memory,
        Outcome::UserError => exited(|c| *c == 3) || sim.report.failure.is_some(),
        Outcome::Failed => exited(|c| !matches!(c, 3 | 4 | 75)),
        Outcome::StartupDeadline => {
            let numbered = a.start_time.as_ref().filter(|_| a.job_uid.is_none());
            let from = a.released_time.as_ref().or(numbered).map(|t| t.0);
            a.ready_time.is_none() && since(from, t.startup_deadline_seconds.into())
        }
        Outcome::NoProgress => {
            let from = a.ready_time.as_ref().map(|t| t.0);
            t.progress_deadline_seconds > 0 && since(from, t.progress_deadline_seconds.into())
        }
        Outcome::SpecChange => {
            let now = a.revision != api::hash::trainer(&sim.job) && t.update_policy.type_ != UpdateType::OnNextFailure;
            asked(StopReason::SpecChange) || now
        }
        Outcome::Requested => asked(StopReason::Token) || old.restart_token != new.restart_token,
        Outcome::Suspended => asked(StopReason::Suspend) || sim.job.spec.suspend,
    }
}

fn later(t: Timestamp, d: Duration) -> Timestamp {
    t.checked_add(SignedDuration::try_from(d).unwrap()).unwrap()
}
