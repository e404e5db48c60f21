//! Faulty forms of `decide`, each named for the rule it forgets. Histories must catch every one: a rule that nothing guards is
//! not a rule.
//!
//! A mutant wraps the real one and falsifies what it sees, or what it says, as a fault in its source would.

use api::{Outcome, RLJob, RLJobStatus, conditions as cond};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use plan::rljob::decide;
use plan::{Action, Child, ChildKind, Conductor, Listing, NodeState, Plan, Settings, World, micro, pod_facts};

use crate::sim::Decide;
use crate::watch;

/// The simulated API server's own rules.
pub const SERVING: &str = "nothing that happens to a trainer writes to serving or pool";

pub struct Mutant {
    pub name: &'static str,
    pub decide: Decide,
    /// The rules one of which it must break.
    pub breaks: &'static [&'static str],
}

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "absence in a cache is taken for absence",
        decide: absence,
        breaks: &[watch::ONE, watch::GONE, watch::CAUSE, "a Job is made once"],
    },
    Mutant {
        name: "an unreachable node is taken for one that is gone",
        decide: unreachable,
        breaks: &[watch::ONE, watch::GONE],
    },
    Mutant { name: "a fence is taken for acknowledged when it is asked for", decide: fence, breaks: &[watch::FENCED] },
    Mutant {
        name: "a number is used again when its Job was never seen",
        decide: number_again,
        breaks: &[watch::NUMBERS, "a Job is made once"],
    },
    Mutant {
        name: "the Job is made before status knows its number",
        decide: act_first,
        breaks: &["status knows a number before its Job is made"],
    },
    Mutant { name: "nobody waits between two attempts", decide: no_backoff, breaks: &[watch::BACKOFF] },
    Mutant { name: "an attempt's end writes serving again", decide: serving_again, breaks: &[SERVING] },
    Mutant { name: "a token leads out of Complete", decide: complete_left, breaks: &[watch::COMPLETE] },
    Mutant { name: "Failed is left without a token", decide: failed_left, breaks: &[watch::FAILED] },
    Mutant { name: "nobody is woken when the backoff is over", decide: no_wake, breaks: &[watch::REST] },
    Mutant { name: "a superseded Job stays", decide: superseded_stays, breaks: &[watch::SUPERSEDED] },
    Mutant { name: "suspend is not looked at between attempts", decide: suspend_ignored, breaks: &[watch::SUSPEND] },
    Mutant { name: "an edited trainer is not noticed", decide: edit_unseen, breaks: &[watch::OVERDUE] },
    Mutant { name: "a checkpoint is waited for for ever", decide: checkpoint_for_ever, breaks: &[watch::OVERDUE] },
    Mutant { name: "the cause is named at first sight", decide: no_settling, breaks: &[watch::SETTLED, watch::CAUSE] },
    Mutant { name: "status is written at every look", decide: flaps, breaks: &[watch::QUIET] },
    Mutant { name: "disruptions are counted as failures", decide: disruption_counted, breaks: &[watch::COUNTED] },
    Mutant {
        name: "a deleted run is let go while its trainer runs",
        decide: let_go_early,
        breaks: &["a deleted run is let go when nothing of it can write"],
    },
    Mutant { name: "time in the queue counts as starting", decide: queue_counts, breaks: &[watch::CAUSE] },
    Mutant { name: "a preemption is counted as a failure", decide: preemption_counted, breaks: &[watch::COUNTED] },
    Mutant { name: "gates are not looked at", decide: gates_open, breaks: &[watch::GATES] },
];

type Planned = Plan<RLJobStatus>;

/// The status that the plan leaves behind.
fn after(job: &RLJob, plan: &Planned) -> RLJobStatus {
    plan.status.clone().or_else(|| job.status.clone()).unwrap_or_default()
}

fn with_status(job: &RLJob, f: impl FnOnce(&mut RLJobStatus)) -> RLJob {
    let mut job = job.clone();
    if let Some(s) = &mut job.status {
        f(s);
    }
    job
}

/// Makes `status` what the plan writes, if it differs from what is there.
fn write(plan: &mut Planned, job: &RLJob, status: RLJobStatus) {
    plan.status = (job.status.as_ref() != Some(&status)).then_some(status);
}

fn is_job(action: &Action) -> bool {
    matches!(action, Action::Create(Child::Job(_)))
}

fn absence(job: &RLJob, world: &World, now: Timestamp, settings: &Settings) -> Planned {
    let mut world = world.clone();
    let jobs: Vec<_> =
        world.children.iter().filter_map(|c| if let Child::Job(j) = c { Some((**j).clone()) } else { None }).collect();
    let pods: Vec<_> = world.pods.iter().filter(|p| pod_facts::role(p) == "trainer").cloned().collect();
    world.listing = Some(Listing::of(&jobs, &pods));
    decide(job, &world, now, settings)
}

fn unreachable(job: &RLJob, world: &World, now: Timestamp, settings: &Settings) -> Planned {
    let mut world = world.clone();
    world.nodes.values_mut().for_each(|n| *n = NodeState::Gone);
    decide(job, &world, now, settings)
}

fn fence(job: &RLJob, world: &World, now: Timestamp, settings: &Settings) -> Planned {
    let mut plan = decide(job, world, now, settings);
    let mut s = after(job, &plan);
    if s.fence_asked > s.fenced_through {
        s.fenced_through = s.fence_asked;
        write(&mut plan, job, s);
    }
    plan
}

fn number_again(job: &RLJob, world: &World, now: Timestamp, settings: &Settings) -> Planned {
    let plan = decide(job, world, now, settings);
    let begins = |s: &RLJobStatus| s.attempts > 1 && s.last_attempt.as_ref().is_some_and(|l| l.id + 1 == s.attempts);
    if !(plan.actions.iter().any(is_job) && begins(&after(job, &plan))) {
        return plan;
    }
    let before = with_status(job, |s| {
        s.attempts -= 1;
        s.gone_through = Some(s.attempts);
    });
    let mut world = world.clone();
    world.children.retain(|c| c.kind() != ChildKind::Job);
    if let Conductor::Report(r) = &mut world.conductor {
        r.attempt = 0;
    }
    decide(&before, &world, now, settings)
}

fn act_first(job: &RLJob, world: &World, now: Timestamp, settings: &Settings) -> Planned {
    let mut plan = decide(job, world, now, settings);
    if plan.actions.iter().any(is_job) {
        plan.status = None;
    }
    plan
}

fn no_backoff(job: &RLJob, world: &World, now: Timestamp, settings: &Settings) -> Planned {
    decide(&with_status(job, |s| s.next_retry_time = None), world, now, settings)
}

fn serving_again(job: &RLJob, world: &World, now: Timestamp, settings: &Settings) -> Planned {
    let mut plan = decide(job, world, now, settings);
    let ended = |s: &RLJobStatus| s.last_attempt.as_ref().map(|l| l.id);
    let before = job.status.as_ref().and_then(ended);
    let there = world.children.iter().find(|c| c.kind() == ChildKind::ServingCluster);
    if let (true, Some(c)) = (ended(&after(job, &plan)) != before, there) {
        plan.actions.push(Action::Apply(c.clone()));
    }
    plan
}

fn complete_left(job: &RLJob, world: &World, now: Timestamp, settings: &Settings) -> Planned {
    let token = job.spec.restart.as_ref().map(|r| r.token.clone());
    let new = |s: &RLJobStatus| token.is_some() && s.restart_token != token;
    let left = job.status.as_ref().is_some_and(new);
    let job = &with_status(job, |s| {
        if left {
            cond::clear(&mut s.conditions, cond::COMPLETE);
        }
    });
    decide(job, world, now, settings)
}

fn failed_left(job: &RLJob, world: &World, now: Timestamp, settings: &Settings) -> Planned {
    let edited = job.status.as_ref().is_some_and(|s| s.observed_generation != job.metadata.generation);
    let job = &with_status(job, |s| {
        if edited {
            cond::clear(&mut s.conditions, cond::FAILED);
        }
    });
    decide(job, world, now, settings)
}

fn no_wake(job: &RLJob, world: &World, now: Timestamp, settings: &Settings) -> Planned {
    let mut plan = decide(job, world, now, settings);
    if after(job, &plan).next_retry_time.is_some() {
        plan.requeue_at = None;
    }
    plan
}

fn superseded_stays(job: &RLJob, world: &World, now: Timestamp, settings: &Settings) -> Planned {
    let mut plan = decide(job, world, now, settings);
    plan.actions.retain(|a| !matches!(a, Action::Delete(t) if t.kind == ChildKind::Job));
    plan
}

fn suspend_ignored(job: &RLJob, world: &World, now: Timestamp, settings: &Settings) -> Planned {
    let mut job = job.clone();
    if job.status.as_ref().is_some_and(|s| s.attempt.is_none()) {
        job.spec.suspend = false;
    }
    decide(&job, world, now, settings)
}

fn edit_unseen(job: &RLJob, world: &World, now: Timestamp, settings: &Settings) -> Planned {
    let wanted = api::hash::trainer(job);
    let Some(real) = job.status.as_ref().and_then(|s| s.attempt.as_ref()) else {
        return decide(job, world, now, settings);
    };
    let seen = with_status(job, |s| {
        if let Some(a) = &mut s.attempt {
            a.revision = wanted;
        }
    });
    let mut plan = decide(&seen, world, now, settings);
    let mut s = after(&seen, &plan);
    if let Some(a) = s.attempt.as_mut().filter(|a| a.id == real.id) {
        a.revision.clone_from(&real.revision);
    }
    write(&mut plan, job, s);
    plan
}

fn checkpoint_for_ever(job: &RLJob, world: &World, now: Timestamp, settings: &Settings) -> Planned {
    let job = &with_status(job, |s| {
        let stopping = s.attempt.as_mut().and_then(|a| a.stopping.as_mut());
        if let Some(c) = stopping.and_then(|s| s.checkpoint.as_mut()) {
            c.deadline = micro(now.checked_add(SignedDuration::from_secs(60)).unwrap());
        }
    });
    decide(job, world, now, settings)
}

fn no_settling(job: &RLJob, world: &World, now: Timestamp, settings: &Settings) -> Planned {
    decide(job, world, now, &Settings { settle_window: std::time::Duration::ZERO, ..settings.clone() })
}

fn flaps(job: &RLJob, world: &World, now: Timestamp, settings: &Settings) -> Planned {
    let mut plan = decide(job, world, now, settings);
    let mut s = after(job, &plan);
    if let Some(p) = &mut s.progress {
        p.heartbeat_time = Some(micro(now));
        write(&mut plan, job, s);
    }
    plan
}

fn disruption_counted(job: &RLJob, world: &World, now: Timestamp, settings: &Settings) -> Planned {
    let mut plan = decide(job, world, now, settings);
    let mut s = after(job, &plan);
    let before = job.status.as_ref().map_or(0, |s| s.counters.disruptions);
    if s.counters.disruptions > before && s.last_attempt.as_ref().is_some_and(|l| l.outcome == Outcome::Disrupted) {
        s.counters.failures += 1;
        write(&mut plan, job, s);
    }
    plan
}

fn queue_counts(job: &RLJob, world: &World, now: Timestamp, settings: &Settings) -> Planned {
    let real = job.status.as_ref().and_then(|s| s.attempt.as_ref()).map(|a| (a.id, a.released_time.clone()));
    let seen = with_status(job, |s| {
        if let Some(a) = s.attempt.as_mut().filter(|a| a.job_uid.is_some()) {
            a.released_time = a.released_time.take().or(a.start_time.clone());
        }
    });
    let mut plan = decide(&seen, world, now, settings);
    let mut s = after(&seen, &plan);
    if let (Some(a), Some((id, released))) = (&mut s.attempt, real)
        && a.id == id
        && a.released_generation.is_none()
    {
        a.released_time = released;
    }
    write(&mut plan, job, s);
    plan
}

fn preemption_counted(job: &RLJob, world: &World, now: Timestamp, settings: &Settings) -> Planned {
    let mut plan = decide(job, world, now, settings);
    let mut s = after(job, &plan);
    if s.counters.preemptions > job.status.as_ref().map_or(0, |s| s.counters.preemptions) {
        s.counters.failures += 1;
        write(&mut plan, job, s);
    }
    plan
}

fn let_go_early(job: &RLJob, world: &World, now: Timestamp, settings: &Settings) -> Planned {
    let mut plan = decide(job, world, now, settings);
    if job.metadata.deletion_timestamp.is_some() && job.metadata.finalizers.as_ref().is_some_and(|f| !f.is_empty()) {
        plan.actions.insert(0, Action::RemoveFinalizer(api::labels::RLJOB_FINALIZER));
    }
    plan
}

fn gates_open(job: &RLJob, world: &World, now: Timestamp, settings: &Settings) -> Planned {
    let mut world = world.clone();
    if let Conductor::Report(r) = &mut world.conductor {
        r.engines_ready = 100;
        r.workers = 100;
    }
    decide(job, &world, now, settings)
}
