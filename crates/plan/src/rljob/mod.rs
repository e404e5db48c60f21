//! The life of an RLJob.
//!
//! One pass: take note of what the conductor says → children that live as long as the run → the attempt → settings for the
//! conductor → conditions and phase. What a later pass must know is in status, which the executor writes before it acts.

mod attempt;
mod between;
mod children;
mod deletion;
mod queue;
mod summary;
mod tell;

use std::cell::OnceCell;

use api::{RLJob, RLJobStatus, conditions as cond, hash, labels};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use crate::later;
use crate::{Action, Child, Event, Plan, Report, Settings, StorageState, World, build, pod_facts, validate};

/// Decides what to do about an RLJob. Pure and total.
pub fn decide(job: &RLJob, world: &World, now: Timestamp, settings: &Settings) -> Plan<RLJobStatus> {
    if job.spec.managed_by.as_deref().is_some_and(|m| m != api::MANAGER) {
        // Another controller's: even its status is not ours.
        return Plan::none();
    }
    let old = job.status.clone().unwrap_or_default();
    let mut pass = Pass {
        job,
        world,
        now,
        settings,
        uid: job.metadata.uid.as_deref().unwrap_or_default(),
        s: old.clone(),
        actions: Vec::new(),
        events: Vec::new(),
        requeue: None,
        wait: None,
        valid: true,
        run_json: OnceCell::new(),
        trainer: OnceCell::new(),
    };
    pass.run();
    let status = (pass.s != old).then_some(pass.s);
    Plan { status, actions: pass.actions, requeue_at: pass.requeue, events: pass.events }
}

/// Why the trainer is not ready: reason and message of a condition.
struct Wait {
    reason: &'static str,
    message: String,
}

struct Pass<'a> {
    job: &'a RLJob,
    world: &'a World,
    now: Timestamp,
    settings: &'a Settings,
    uid: &'a str,
    /// The status that will be written.
    s: RLJobStatus,
    actions: Vec<Action>,
    events: Vec<Event>,
    requeue: Option<Timestamp>,
    wait: Option<Wait>,
    /// The spec is valid.
    valid: bool,
    /// The RLJob as the conductor reads it; made once a pass.
    run_json: OnceCell<Value>,
    /// Hash of the wanted trainer; made once a pass.
    trainer: OnceCell<String>,
}

impl<'a> Pass<'a> {
    fn run(&mut self) {
        self.s.observed_generation = self.job.metadata.generation;
        if self.s.frozen.is_none() {
            let images = &self.settings.images;
            self.s.frozen =
                Some(api::Frozen { trainer_image: images.trainer_cpu.clone(), rollout_image: images.rollout.clone() });
        }
        self.note_progress();
        if self.job.metadata.deletion_timestamp.is_some() {
            self.delete();
            return;
        }
        let has = |f: &str| self.job.metadata.finalizers.iter().flatten().any(|x| x == f);
        if !has(labels::RLJOB_FINALIZER) {
            self.actions.push(Action::AddFinalizer(labels::RLJOB_FINALIZER));
        }
        let problems = validate(None, self.job);
        self.valid = problems.is_empty();
        // A token that comes with a spec that is not valid waits: a trainer that lives must not be ended for nothing.
        if self.valid {
            self.note_token();
        }
        self.note_attempts();
        let accepted = self.accept(&problems);
        if self.terminal() {
            self.after_the_end();
        } else {
            if accepted {
                self.children();
            }
            // Before anything is begun: what is over begins nothing.
            self.check_active_deadline();
            // An attempt that lives is looked after even while its spec is not acceptable.
            if self.s.attempt.is_some() {
                self.live();
            } else if accepted && !self.terminal() {
                self.between();
            }
        }
        // What is not valid touches nothing: nobody is told of it either.
        if self.valid {
            self.tell();
        }
        self.summarise();
    }

    fn report(&self) -> Option<&'a Report> {
        self.world.conductor.report()
    }

    fn run_json(&self) -> &Value {
        self.run_json.get_or_init(|| build::run_json(self.job))
    }

    fn wanted_trainer(&self) -> &str {
        self.trainer.get_or_init(|| hash::trainer(self.job))
    }

    fn terminal(&self) -> bool {
        cond::is_true(&self.s.conditions, cond::COMPLETE) || cond::is_true(&self.s.conditions, cond::FAILED)
    }

    fn set(&mut self, type_: &str, truth: impl Into<cond::Truth>, reason: &str, message: impl AsRef<str>) {
        cond::set(
            &mut self.s.conditions,
            type_,
            truth.into(),
            reason,
            message.as_ref(),
            self.job.metadata.generation,
            self.now,
        );
    }

    fn wait(&mut self, reason: &'static str, message: impl Into<String>) {
        // The first reason found is the one that must go first.
        self.wait.get_or_insert(Wait { reason, message: message.into() });
    }

    fn event(&mut self, warning: bool, reason: &'static str, note: impl Into<String>) {
        self.events.push(Event { warning, reason, note: note.into() });
    }

    /// Decide again at `t` at the latest.
    fn at(&mut self, t: Timestamp) {
        self.requeue = Some(self.requeue.map_or(t, |r| r.min(t)));
    }

    fn after(&mut self, d: std::time::Duration) {
        let t = later(self.now, d);
        self.at(t);
    }

    fn poll(&mut self) {
        self.after(self.settings.poll_interval);
    }

    /// Jobs of this run's attempts, with their numbers.
    fn jobs(&self) -> impl Iterator<Item = (u64, &'a Job)> + use<'a> {
        let uid = self.uid;
        self.world.children.iter().filter_map(move |c| match c {
            Child::Job(j) if c.label(labels::RLJOB_UID) == Some(uid) => {
                Some((pod_facts::attempt_of_job(&j.metadata), &**j))
            }
            _ => None,
        })
    }

    /// Trainer pods of this run, with the numbers of their attempts.
    fn trainer_pods(&self) -> impl Iterator<Item = (u64, &'a Pod)> + use<'a> {
        self.world.pods.iter().filter(|p| pod_facts::role(p) == "trainer").map(|p| (pod_facts::attempt(&p.metadata), p))
    }

    /// Whether the spec can be acted on.
    fn accept(&mut self, problems: &[api::Problem]) -> bool {
        if let Some(first) = problems.first() {
            let more = match problems.len() {
                1 => String::new(),
                n => format!(" (and {} more)", n - 1),
            };
            let message = format!("{}: {}; {}{more}", first.path, first.message, first.fix);
            self.set(cond::ACCEPTED, false, "InvalidSpec", message);
            self.wait("InvalidSpec", "the spec is not valid");
            return false;
        }
        let claim = &self.job.spec.storage.claim_name;
        match self.world.storage {
            Some(StorageState::Missing) => {
                self.set(
                    cond::ACCEPTED,
                    false,
                    "StorageNotBound",
                    format!("PersistentVolumeClaim {claim} does not exist"),
                );
                self.wait("StorageNotBound", format!("waiting for PersistentVolumeClaim {claim}"));
                self.poll();
                return false;
            }
            Some(StorageState::Pending) => {
                self.set(
                    cond::ACCEPTED,
                    false,
                    "StorageNotBound",
                    format!("PersistentVolumeClaim {claim} is not bound"),
                );
                self.wait("StorageNotBound", format!("waiting for PersistentVolumeClaim {claim}"));
                self.poll();
                return false;
            }
            Some(StorageState::Bound) | None => {}
        }
        self.claim()
    }

    /// Whether this run holds, or may still get, the writer's role.
    fn claim(&mut self) -> bool {
        let name = self.job.serving_name();
        let writer = self.world.serving(&name).and_then(|s| s.status.as_ref()).and_then(|s| s.weights.writer.as_ref());
        if let Some(w) = writer
            && w.uid != self.uid
            && !self.terminal()
        {
            let message = format!("ServingCluster {name} is held by RLJob {} until it ends", w.rljob);
            self.set(cond::ACCEPTED, false, "ClaimDenied", &message);
            self.wait("WaitingForClaim", message);
            return false;
        }
        self.set(cond::ACCEPTED, true, "Valid", "");
        true
    }

    /// Takes note of a new restart token: it restarts the trainer, and is the only way out of Failed.
    fn note_token(&mut self) {
        let token = self.job.spec.restart.as_ref().map(|r| r.token.clone());
        let Some(token) = token else { return };
        if self.s.restart_token.as_ref() == Some(&token) {
            return;
        }
        if cond::is_true(&self.s.conditions, cond::COMPLETE) {
            return;
        }
        let known = self.s.attempts > 0;
        if cond::is_true(&self.s.conditions, cond::FAILED) {
            cond::clear(&mut self.s.conditions, cond::FAILED);
            self.s.completion_time = None;
            self.event(false, "Restarted", "a new restart token: the run goes on from its last commit");
        }
        if known {
            self.s.counters.requested += 1;
        }
        self.s.counters.failures_since_progress = 0;
        self.s.counters.restarts_since_progress = 0;
        self.s.next_retry_time = None;
        self.s.restart_token = Some(token);
        if self.s.attempt.is_some() {
            self.stop(api::StopReason::Token);
        }
    }

    fn finish(&mut self, condition: &str, reason: &'static str, message: &str) {
        self.set(condition, true, reason, message);
        self.s.completion_time = Some(crate::micro(self.now));
        self.s.next_retry_time = None;
        self.s.pending_revision = None;
        self.event(
            condition == cond::FAILED,
            if condition == cond::FAILED { "Failed" } else { "Complete" },
            format!("{}: {message}", cond::in_words(reason)),
        );
    }

    fn check_active_deadline(&mut self) {
        let (Some(seconds), Some(start)) = (self.job.spec.active_deadline_seconds, &self.s.start_time) else { return };
        // A run that is done is done, however late its ranks end.
        if self.s.attempt.is_some() && self.report().is_some_and(|r| r.finished) {
            return;
        }
        let deadline = later(start.0, std::time::Duration::from_secs(seconds));
        if self.now >= deadline {
            if self.s.attempt.is_some() {
                self.end(api::Outcome::Stopped, None, "the run's own deadline");
            }
            if !self.terminal() {
                self.finish(
                    cond::FAILED,
                    "DeadlineExceeded",
                    &format!("not done {seconds} s after its first attempt began"),
                );
            }
        } else {
            self.at(deadline);
        }
    }
}
