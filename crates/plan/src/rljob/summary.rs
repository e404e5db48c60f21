//! Progress, conditions and phase: what people see.

use api::{Outcome, Phase, Progress, RolloutSummary, ServingSummary, StopReason, UpdateType, conditions as cond};
use cond::Truth;

use super::queue::queued;
use super::{Pass, later};
use crate::classify::last_end;
use crate::{ChildKind, build, micro, pod_facts, trouble};

impl Pass<'_> {
    /// Takes note of what the conductor says: a new commit clears the counters, progress is written now and then.
    pub(super) fn note_progress(&mut self) {
        let Some(r) = self.report() else { return };
        let c = &mut self.s.counters;
        if r.commits > c.commits_seen {
            c.commits_seen = r.commits;
            c.failures_since_progress = 0;
            c.restarts_since_progress = 0;
        }
        if r.trainer_epoch > 0 {
            self.s.epoch = Some(r.trainer_epoch);
        }
        let old = self.s.progress.clone().unwrap_or_default();
        let now = micro(self.now);
        let moved = old.step_time.is_none() || (old.step, old.warm_step) != (r.step, r.warm_step);
        let committed = r.commits > old.commits;
        let new = Progress {
            step: r.step,
            total_steps: r.total_steps,
            steps: format!("{}/{}", r.step, r.total_steps),
            warm_step: r.warm_step,
            weight_version: r.weight_version,
            tokens_per_second: r.tokens_per_second,
            reward_mean: r.reward_mean,
            last_checkpoint_step: r.commit_step,
            last_checkpoint_time: if committed { Some(now.clone()) } else { old.last_checkpoint_time.clone() },
            commits: r.commits,
            heartbeat_time: old.heartbeat_time.clone(),
            step_time: if moved { Some(now.clone()) } else { old.step_time.clone() },
        };
        if new == old {
            return;
        }
        let due = old.heartbeat_time.as_ref().map_or(self.now, |t| later(t.0, self.settings.progress_interval));
        if committed || r.finished || self.now >= due {
            self.s.progress = Some(Progress { heartbeat_time: Some(now), ..new });
        } else {
            self.at(due);
        }
    }

    pub(super) fn summarise(&mut self) {
        self.serving_and_rollout();
        self.conductor_ready();
        self.trainer_ready();
        self.quota();
        self.progressing();
        self.up_to_date();
        self.degraded();
        self.s.phase = self.phase();
        // A living trainer is watched: its conductor has news that no watch of ours brings.
        match &self.s.attempt {
            // Its queue lets a Job go for us to see; only what it says meanwhile is not watched.
            Some(a) if queued(a) => self.after(self.settings.poll_interval * 10),
            Some(_) => self.poll(),
            None => {}
        }
    }

    fn conductor_ready(&mut self) {
        if self.terminal() {
            let there = self.world.pods.iter().any(|p| pod_facts::role(p) == "conductor");
            let (reason, message) =
                if there { ("Stopping", "the run has ended") } else { ("Stopped", "the run has ended") };
            self.set(cond::CONDUCTOR_READY, false, reason, message);
        } else if self.report().is_some() {
            self.set(cond::CONDUCTOR_READY, true, "Answering", "");
        } else {
            let pod = self.world.pods.iter().find(|p| pod_facts::role(p) == "conductor");
            let message = match pod {
                None => self.no_conductor(),
                // Before the back-off, which comes and goes and says nothing of why.
                Some(p) => match (last_end(p), pod_facts::waiting(p)) {
                    (Some(end), _) => format!("{}: {end}", pod_facts::name(p)),
                    (None, Some((reason, message))) => format!("{}: {reason} {message}", pod_facts::name(p)),
                    (None, None) => format!("{} does not answer", pod_facts::name(p)),
                },
            };
            self.set(cond::CONDUCTOR_READY, false, "NotAnswering", message);
        }
    }

    /// A pod that nobody can make: only the events of its maker say why.
    fn no_conductor(&mut self) -> String {
        let name = build::conductor_name(self.job.metadata.name.as_deref().unwrap_or_default());
        let waited = cond::get(&self.s.conditions, cond::CONDUCTOR_READY).filter(|c| c.reason == "NotAnswering");
        let made = self.world.children.iter().find(|c| c.kind() == ChildKind::StatefulSet && c.name() == name);
        let (Some(waited), Some(_)) = (waited, made) else { return "its pod does not exist yet".to_owned() };
        let until = later(waited.last_transition_time.0, trouble::PODS_COME);
        if self.now < until {
            self.at(until);
            return "its pod does not exist yet".to_owned();
        }
        format!("its pod does not exist: {}", trouble::events_say("StatefulSet", &name))
    }

    fn serving_and_rollout(&mut self) {
        let name = self.job.serving_name();
        let report = self.report();
        match self.world.serving(&name) {
            None => {
                self.s.serving =
                    Some(ServingSummary { name: name.clone(), summary: "0/0".into(), ..ServingSummary::default() });
                let reason = if self.job.spec.serving.ref_.is_some() { "NotFound" } else { "Creating" };
                self.set(cond::SERVING_READY, false, reason, format!("ServingCluster {name} does not exist"));
            }
            Some(serving) => {
                let desired = serving.spec.replicas;
                let ready = report.map_or(serving.status.as_ref().map_or(0, |s| s.ready_replicas), |r| r.engines_ready);
                let needed =
                    (u64::from(desired) * u64::from(self.job.spec.serving.min_ready_percent)).div_ceil(100).max(1);
                // It moves with every step, so it is written when progress is.
                let told = self.s.progress.as_ref().and_then(|p| p.heartbeat_time.as_ref()) == Some(&micro(self.now));
                let known = self.s.serving.as_ref().and_then(|s| s.min_weight_version);
                let min_weight_version = if told { report.and_then(|r| r.min_weight_version) } else { known };
                self.s.serving = Some(ServingSummary {
                    name: name.clone(),
                    ready,
                    desired,
                    summary: format!("{ready}/{desired}"),
                    min_weight_version,
                });
                let holder = serving.status.as_ref().and_then(|s| s.weights.writer.as_ref());
                let (ok, reason) = match holder {
                    Some(w) if w.uid == self.uid && u64::from(ready) >= needed => (true, "AboveMinimum"),
                    Some(w) if w.uid == self.uid => (false, "BelowMinimum"),
                    _ if self.terminal() => (true, "Released"),
                    _ => (false, "WaitingForClaim"),
                };
                self.set(cond::SERVING_READY, ok, reason, format!("{ready} of {desired} engines of {name} are ready"));
            }
        }
        let name = self.job.rollout_name();
        match self.world.pool(&name) {
            None => {
                self.s.rollout = Some(RolloutSummary { name: name.clone(), ..RolloutSummary::default() });
                let reason = if self.job.spec.rollout.ref_.is_some() { "NotFound" } else { "Creating" };
                self.set(cond::ROLLOUT_READY, false, reason, format!("RolloutPool {name} does not exist"));
            }
            Some(pool) => {
                let status = pool.status.clone().unwrap_or_default();
                let (ready, desired) = (status.ready_replicas, status.replicas.max(pool.spec.replicas.unwrap_or(0)));
                self.s.rollout = Some(RolloutSummary {
                    name: name.clone(),
                    ready,
                    desired,
                    inflight: self.s.rollout.as_ref().and_then(|r| r.inflight),
                });
                let reason = if ready > 0 { "AboveMinimum" } else { "BelowMinimum" };
                self.set(
                    cond::ROLLOUT_READY,
                    ready > 0,
                    reason,
                    format!("{ready} of {desired} workers of {name} are ready"),
                );
            }
        }
    }

    fn trainer_ready(&mut self) {
        if let Some(a) = self.s.attempt.clone() {
            let ranks = self.s.ranks.clone().unwrap_or_default();
            let id = a.id;
            if let Some(w) = self.wait.take() {
                self.set(cond::TRAINER_READY, false, w.reason, w.message);
            } else if queued(&a) {
                let (reason, message) = self.why_queued();
                self.set(cond::TRAINER_READY, false, reason, format!("attempt {id}: {message}"));
            } else if ranks.ready >= ranks.desired && ranks.desired > 0 {
                self.set(
                    cond::TRAINER_READY,
                    true,
                    "AllRanksReady",
                    format!("attempt {id}: {}", api::count(ranks.desired, "rank")),
                );
            } else {
                let why = self.why_not_ready();
                let reason = if why.contains("ImagePull") || why.contains("ErrImage") {
                    "ImagePull"
                } else if why.contains("Unschedulable") {
                    "Scheduling"
                } else {
                    "Starting"
                };
                self.set(
                    cond::TRAINER_READY,
                    false,
                    reason,
                    format!("attempt {id}: {}/{} ranks are ready; {why}", ranks.ready, ranks.desired),
                );
            }
            return;
        }
        let w = self.wait.take();
        let (reason, message) = match w {
            Some(w) => (w.reason, w.message),
            None => ("Starting", "the next attempt is being made".to_owned()),
        };
        self.set(cond::TRAINER_READY, false, reason, message);
    }

    fn progressing(&mut self) {
        let (truth, reason, message) = if self.terminal() {
            (Truth::False, "Ended", String::new())
        } else if self.report().is_none() {
            (Truth::Unknown, "StatusUnreachable", "the conductor does not answer".to_owned())
        } else if self.s.attempt.as_ref().is_none_or(|a| a.ready_time.is_none()) {
            (Truth::False, "NotStarted", String::new())
        } else if let Some(problem) = self.report().and_then(|report| report.storage.as_deref()) {
            (Truth::False, "WaitingForStorage", problem.to_owned())
        } else if let Some(r) = self.report()
            && !r.trainer_live
        {
            (Truth::False, "HeartbeatLost", "the conductor has not heard of the trainer for a while".to_owned())
        } else {
            // Without what the run waits for: that changes from look to look, and each change would be a write.
            (Truth::True, "StepAdvanced", String::new())
        };
        self.tell_of_storage(reason, &message);
        self.set(cond::PROGRESSING, truth, reason, message);
    }

    fn tell_of_storage(&mut self, reason: &str, message: &str) {
        const WAITS: &str = "WaitingForStorage";
        let waited = cond::get(&self.s.conditions, cond::PROGRESSING).is_some_and(|c| c.reason == WAITS);
        if reason == WAITS && !waited {
            self.event(true, WAITS, format!("{message}; the run goes on when the volume takes it"));
        } else if reason == "StepAdvanced" && waited {
            self.event(false, "StorageBack", "the volume takes what is written again");
        }
    }

    fn up_to_date(&mut self) {
        let wanted = self.wanted_trainer().to_owned();
        let Some(a) = self.s.attempt.clone() else {
            self.s.pending_revision = None;
            if self.terminal() {
                self.ended_up_to_date();
            } else {
                self.set(cond::UP_TO_DATE, false, "NotRunning", "the next attempt takes the spec as it is then");
            }
            return;
        };
        if a.revision == wanted {
            self.s.pending_revision = None;
            self.set(cond::UP_TO_DATE, true, "RevisionRunning", "");
            return;
        }
        self.s.pending_revision = Some(wanted);
        match &a.stopping {
            Some(s) if s.reason == StopReason::SpecChange && s.checkpoint.is_some() => {
                self.set(
                    cond::UP_TO_DATE,
                    false,
                    "CheckpointRequested",
                    "an edit waits for a checkpoint; then the trainer restarts, alone",
                );
            }
            _ => {
                let when = match self.job.spec.trainer.update_policy.type_ {
                    UpdateType::OnNextFailure => "an edit waits for the attempt to end by itself",
                    _ => "an edit is about to restart the trainer, alone",
                };
                self.set(cond::UP_TO_DATE, false, "RestartPending", when);
            }
        }
    }

    /// More steps for a run that is done change nothing: that must not look as if they would.
    fn ended_up_to_date(&mut self) {
        const LATE: &str = "RunIsComplete";
        let wanted = self.job.spec.total_steps;
        let done = self.s.progress.as_ref().map_or(u64::MAX, |p| p.total_steps);
        if !cond::is_true(&self.s.conditions, cond::COMPLETE) || wanted <= done {
            self.set(cond::UP_TO_DATE, true, "Ended", "");
            return;
        }
        let message = format!("totalSteps is {wanted} now, but Complete is absolute: more steps are a new RLJob");
        if cond::get(&self.s.conditions, cond::UP_TO_DATE).is_none_or(|c| c.reason != LATE) {
            self.event(true, LATE, &message);
        }
        self.set(cond::UP_TO_DATE, false, LATE, message);
    }

    fn degraded(&mut self) {
        let stuck = self.s.attempt.is_none()
            && !self.terminal()
            && self.s.last_attempt.as_ref().is_some_and(|l| {
                let grace =
                    std::time::Duration::from_secs(self.job.spec.trainer.termination_grace_period_seconds.into());
                self.now >= later(later(l.end_time.0, grace), self.settings.stuck_slack)
                    && self.trainer_pods().any(|(n, p)| n <= l.id && !pod_facts::ended(p))
            });
        let running = self.s.attempt.as_ref().is_some_and(|a| a.ready_time.is_some());
        let reduced = |list: &[_], t: &str| cond::get(list, t).is_some_and(|c| c.status == "False");
        if stuck {
            self.set(
                cond::DEGRADED,
                true,
                "OldPodsStuck",
                "a pod of the last attempt does not end although its time is over",
            );
        } else if running && self.report().is_none() {
            self.set(
                cond::DEGRADED,
                true,
                "StatusUnreachable",
                "the conductor does not answer; the run goes on as far as it can",
            );
        } else if running && self.report().is_some_and(|r| r.samples_invalid) {
            self.set(
                cond::DEGRADED,
                true,
                "SamplesInvalid",
                "more than a fifth of the last samples could not be generated or judged; they teach nothing, and the workers' logs say why",
            );
        } else if running && reduced(&self.s.conditions, cond::SERVING_READY) {
            self.set(
                cond::DEGRADED,
                true,
                "ServingReduced",
                "fewer engines than asked for are ready; the trainer waits on its queue",
            );
        } else if running && reduced(&self.s.conditions, cond::ROLLOUT_READY) {
            self.set(cond::DEGRADED, true, "RolloutReduced", "no worker is ready; the trainer waits on its queue");
        } else {
            self.set(cond::DEGRADED, false, "AsExpected", "");
        }
    }

    fn phase(&self) -> Phase {
        let c = &self.s.conditions;
        if cond::is_true(c, cond::COMPLETE) {
            return Phase::Complete;
        }
        if cond::is_true(c, cond::FAILED) {
            return Phase::Failed;
        }
        if self.job.spec.suspend {
            return if cond::is_true(c, cond::SUSPENDED) && self.s.attempt.is_none() {
                Phase::Suspended
            } else {
                Phase::Suspending
            };
        }
        match &self.s.attempt {
            Some(a) if a.ending.is_some() || a.stopping.is_some() => Phase::Restarting,
            Some(a) if queued(a) => Phase::Queued,
            Some(a) if a.ready_time.is_some() => Phase::Running,
            Some(_) => Phase::Starting,
            None => match self.s.last_attempt.as_ref().map(|l| l.outcome) {
                None if cond::is_true(c, cond::ACCEPTED) => Phase::Preparing,
                None => Phase::Pending,
                Some(Outcome::Suspended) => Phase::Preparing,
                Some(_) => Phase::Restarting,
            },
        }
    }
}
