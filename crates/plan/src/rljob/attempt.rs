//! A living attempt: from its number to its end.

use api::{
    AttemptStatus, CheckpointAsked, Ending, FailureAction, LastAttempt, Outcome, PodEnd, StopReason, Stopping,
    UpdateType, conditions as cond, labels,
};
use k8s_openapi::api::batch::v1::Job;
use std::time::Duration;

use super::queue::queued;
use super::{Pass, later};
use crate::{Action, Child, backoff, build, classify, micro, pod_facts, trouble};

const TAKEN_BACK: &str = "its queue suspended the Job";

impl Pass<'_> {
    /// Numbers in use, whatever wrote them; and the end of every Job that is not the living attempt's.
    pub(super) fn note_attempts(&mut self) {
        let in_children = self.jobs().map(|(n, _)| n).max().unwrap_or(0);
        let claimed = self.report().map_or(0, |r| r.attempt);
        self.s.attempts = self.s.attempts.max(in_children).max(claimed);
        self.delete_superseded();
    }

    fn is_living(&self, number: u64, uid: &str) -> bool {
        self.s.attempt.as_ref().is_some_and(|a| a.id == number && a.job_uid.as_deref().is_none_or(|known| known == uid))
    }

    fn delete_superseded(&mut self) {
        let (mut targets, mut after) = (Vec::new(), Vec::new());
        for c in &self.world.children {
            if c.label(labels::RLJOB_UID) != Some(self.uid) || c.metadata().deletion_timestamp.is_some() {
                continue;
            }
            let number = match c {
                Child::Job(_) => pod_facts::attempt_of_job(c.metadata()),
                _ => pod_facts::attempt(c.metadata()),
            };
            let dead = match c {
                Child::Job(_) => !self.is_living(number, c.uid()),
                Child::ConfigMap(_) | Child::PodGroup(..) if number > 0 => {
                    self.s.attempt.as_ref().is_none_or(|a| a.id != number)
                }
                _ => false,
            };
            if dead {
                // In the background: in the foreground a Job with a lost pod would stay for ever. Whether the pods are gone
                // is asked of a list, not of the Job.
                let list = if matches!(c, Child::Job(_)) { &mut targets } else { &mut after };
                list.push(Action::Delete(c.target(false)));
            }
        }
        // What a Job refers to goes after it.
        self.actions.extend(targets);
        self.actions.extend(after);
    }

    pub(super) fn live(&mut self) {
        let Some(mut a) = self.s.attempt.clone() else { return };
        let job = self
            .jobs()
            .find(|(n, j)| *n == a.id && a.job_uid.as_ref().is_none_or(|u| j.metadata.uid.as_ref() == Some(u)))
            .map(|(_, j)| j);
        if let Some(j) = job {
            a.job_uid = j.metadata.uid.clone();
            self.note_release(&mut a, j);
        }
        self.ranks(&mut a);
        self.s.attempt = Some(a);
        if self.finished() || self.ended(job) || self.given_up() {
            return;
        }
        self.reasons_to_stop();
        if self.stopped() {
            return;
        }
        if job.is_none() {
            self.create_or_confirm();
        }
    }

    fn ranks(&mut self, a: &mut AttemptStatus) {
        let per_node = self.job.spec.trainer.accelerator.per_node;
        let ready = self.trainer_pods().filter(|(n, p)| *n == a.id && pod_facts::ready(p)).count();
        let all = ready >= a.nodes as usize;
        if all && a.ready_time.is_none() {
            a.ready_time = Some(micro(self.now));
        }
        let ready = u32::try_from(ready).unwrap_or(u32::MAX).saturating_mul(per_node);
        let desired = a.nodes.saturating_mul(per_node);
        self.s.ranks = Some(api::Ranks { desired, ready, summary: format!("{ready}/{desired}") });
    }

    /// `finished` is journaled: the run is complete when its ranks have ended, or have had time to.
    fn finished(&mut self) -> bool {
        if !self.report().is_some_and(|r| r.finished) {
            return false;
        }
        let now = micro(self.now);
        let id = self.s.attempt.as_ref().map_or(0, |a| a.id);
        let alive = self.trainer_pods().any(|(n, p)| n == id && !pod_facts::ended(p));
        let Some(a) = &mut self.s.attempt else { return true };
        let ending = a.ending.get_or_insert_with(|| Ending { first_seen: now, pods: Default::default() });
        let until = later(ending.first_seen.0, self.settings.finish_grace);
        if alive && self.now < until {
            self.at(until);
            return true;
        }
        self.end(Outcome::Complete, None, "finished");
        true
    }

    /// Gathers what is seen of pods that end, and names the cause when it is settled.
    fn ended(&mut self, job: Option<&Job>) -> bool {
        let Some(mut a) = self.s.attempt.clone() else { return true };
        let failing = job.and_then(classify::job_failing);
        let mut seen = Vec::new();
        let mut pods = 0;
        let mut alive = 0;
        for (_, pod) in self.trainer_pods().filter(|(n, _)| *n == a.id) {
            pods += 1;
            match classify::evidence(pod, &self.world.nodes, failing.is_some(), self.now) {
                Some(end) => seen.push((pod_facts::name(pod).to_owned(), end)),
                None => alive += 1,
            }
        }
        let gone = a.job_uid.is_some()
            && job.is_none()
            && self.world.listing.as_ref().is_some_and(|l| !l.jobs.iter().any(|j| j.attempt == a.id));
        // An ending without evidence is one that `finished` has begun: what nobody has seen end has not ended.
        let evident = !seen.is_empty() || a.ending.as_ref().is_some_and(|e| !e.pods.is_empty());
        let taken = job.is_some_and(|j| self.taken_back(&a, j));
        if !evident && failing.is_none() && !gone {
            if taken {
                self.end(Outcome::Preempted, None, TAKEN_BACK);
            }
            return taken;
        }
        let now = micro(self.now);
        let ending = a.ending.get_or_insert_with(|| Ending { first_seen: now, pods: Default::default() });
        if ending.pods.is_empty() && !seen.is_empty() {
            // It may have been begun without evidence; the time to gather runs from the first.
            ending.first_seen = micro(self.now);
        }
        for (name, end) in seen {
            classify::note(ending, &name, end);
        }
        let all = pods >= a.nodes as usize && alive == 0 && ending.pods.values().all(|e| e.exit_code.is_some());
        let until = later(ending.first_seen.0, self.settings.settle_window);
        let ending = ending.clone();
        self.s.attempt = Some(a);
        if !(all || gone || self.now >= until) {
            self.wait("ContainerError", "a rank has ended; gathering what is known of it");
            self.at(until);
            return true;
        }
        // Whoever heard of a silent peer ends long before Kubernetes says that the peer's node is lost. The next attempt cannot
        // begin before that pod has ended or its node is known to be lost, so nothing is gained by guessing the cause now.
        let until = later(ending.first_seen.0, self.settings.lost_node_timeout);
        if let Some(silent) = self.silent_peer(&ending).filter(|_| !gone && self.now < until) {
            self.wait("ContainerError", format!("ranks ended because {silent} fell silent; waiting to hear why"));
            self.at(until);
            return true;
        }
        let (outcome, first) = classify::verdict(&ending, failing);
        if taken && classify::by_preemption(outcome, first.map(|(_, e)| e)) {
            self.end(Outcome::Preempted, None, TAKEN_BACK);
            return true;
        }
        if outcome == Outcome::Complete {
            // Exit 0 without `finished`: only the conductor can say, and its silence is no reason to fail.
            if self.report().is_none() {
                self.wait("StatusUnreachable", "the ranks ended well; waiting for the conductor to confirm");
                self.poll();
                return true;
            }
            if alive > 0 && self.now < later(ending.first_seen.0, self.settings.finish_grace) {
                self.at(later(ending.first_seen.0, self.settings.finish_grace));
                return false;
            }
            self.end(Outcome::Failed, first, "exited with 0, but the run's journal does not say that it is finished");
            return true;
        }
        let message = match (first, failing) {
            (Some((pod, end)), _) => format!("{pod}: {}", end.message),
            (None, Some((reason, message))) => format!("{reason}: {message}"),
            (None, None) => "its Job is gone".to_owned(),
        };
        self.end(outcome, first, &message);
        true
    }

    /// A rank of the living attempt that has not ended, although all ends seen so far are of peers that gave it up.
    fn silent_peer(&self, ending: &Ending) -> Option<&str> {
        let a = self.s.attempt.as_ref().filter(|_| classify::only_peers(ending))?;
        let (_, pod) = self.trainer_pods().find(|(n, p)| *n == a.id && !pod_facts::ended(p))?;
        Some(pod_facts::name(pod))
    }

    /// Deadlines, and a run that its conductor gives up.
    fn given_up(&mut self) -> bool {
        if let Some(failure) = self.report().and_then(|r| r.failure.clone()) {
            self.end(Outcome::UserError, None, &failure);
            return true;
        }
        let t = &self.job.spec.trainer;
        let Some(a) = self.s.attempt.clone() else { return true };
        if a.stopping.is_some() {
            return false;
        }
        // It does not run while a queue holds the Job.
        let start = a.released_time.as_ref().or(a.start_time.as_ref().filter(|_| !queued(&a)));
        if let (None, Some(start)) = (&a.ready_time, start) {
            let deadline = later(start.0, Duration::from_secs(t.startup_deadline_seconds.into()));
            if self.now >= deadline {
                let why = self.what_is_missing();
                self.end(
                    Outcome::StartupDeadline,
                    None,
                    &format!("not all ranks ready within {} s: {why}", t.startup_deadline_seconds),
                );
                return true;
            }
            self.at(deadline);
        }
        let step_time = self.s.progress.as_ref().and_then(|p| p.step_time.clone());
        if let (Some(ready), seconds @ 1..) = (&a.ready_time, t.progress_deadline_seconds) {
            let since = step_time.map_or(ready.0, |s| s.0.max(ready.0));
            let deadline = later(since, Duration::from_secs(seconds.into()));
            // While the volume takes nothing there is no progress, and another attempt would make none either.
            if self.now >= deadline && self.report().is_some_and(|report| report.storage.is_none()) {
                self.end(Outcome::NoProgress, None, &format!("no finished step for {seconds} s"));
                return true;
            }
            self.at(deadline.max(later(self.now, self.settings.poll_interval)));
        }
        false
    }

    /// The same for an attempt that is given up: what it holds is not enough, and how much is missing.
    fn what_is_missing(&self) -> String {
        let Some(a) = &self.s.attempt else { return String::new() };
        match (self.missing_pods(), self.pods_say()) {
            (0, _) => self.why_not_ready(),
            (missing, Some(said)) => format!("{missing} of {} pods do not exist; {said}", a.nodes),
            (missing, None) => self.refused_pods(missing),
        }
    }

    /// Why its ranks are not ready.
    pub(super) fn why_not_ready(&self) -> String {
        let Some(a) = &self.s.attempt else { return String::new() };
        if let Some(said) = self.pods_say() {
            return said;
        }
        // A Job that a queue holds back makes none yet.
        let due = a.released_time.as_ref().or(a.created_time.as_ref().filter(|_| !queued(a)));
        let late = due.is_some_and(|t| self.now >= later(t.0, trouble::PODS_COME)) && a.job_uid.is_some();
        match self.missing_pods() {
            missing if missing > 0 && late => self.refused_pods(missing),
            _ => "its ranks have not said that they are ready".into(),
        }
    }

    /// What the pods of the attempt themselves say.
    fn pods_say(&self) -> Option<String> {
        let a = self.s.attempt.as_ref()?;
        for (_, pod) in self.trainer_pods().filter(|(n, _)| *n == a.id) {
            let name = pod_facts::name(pod);
            if let Some((reason, message)) = pod_facts::waiting(pod)
                && !matches!(reason, "ContainerCreating" | "PodInitializing")
            {
                return Some(format!("{name}: {reason} {message}").trim_end().to_owned());
            }
            if let Some(("False", reason, message)) = pod_facts::condition(pod, "PodScheduled") {
                let unplaced = self.trainer_pods().filter(|(n, p)| *n == a.id && pod_facts::node(p).is_none()).count();
                let said = format!("{unplaced} of {} pods have no node; {name}: {reason} {message}", a.nodes);
                return Some(said.trim_end().to_owned());
            }
        }
        None
    }

    /// Pods of the attempt that are not there.
    fn missing_pods(&self) -> usize {
        let Some(a) = &self.s.attempt else { return 0 };
        (a.nodes as usize).saturating_sub(self.trainer_pods().filter(|(n, _)| *n == a.id).count())
    }

    fn refused_pods(&self, missing: usize) -> String {
        let Some(a) = &self.s.attempt else { return String::new() };
        format!("{missing} of {} pods do not exist: {}", a.nodes, trouble::events_say("Job", &a.job_name))
    }

    fn reasons_to_stop(&mut self) {
        let Some(a) = &self.s.attempt else { return };
        if self.job.spec.suspend {
            if a.stopping.as_ref().is_none_or(|s| s.reason != StopReason::Suspend) {
                self.stop(StopReason::Suspend);
            }
            return;
        }
        let differs = self.wanted_trainer() != a.revision;
        match &a.stopping {
            // What is not valid restarts nothing: the next attempt could not begin.
            None if differs && self.valid && self.job.spec.trainer.update_policy.type_ != UpdateType::OnNextFailure => {
                self.stop(StopReason::SpecChange)
            }
            // Reverted before anything was stopped: nothing happens.
            Some(s) if s.reason == StopReason::SpecChange && !differs => {
                if let Some(a) = &mut self.s.attempt {
                    a.stopping = None;
                }
            }
            _ => {}
        }
    }

    /// Begins to end the living attempt by our own decision: with a checkpoint, if there is something to save.
    pub(super) fn stop(&mut self, reason: StopReason) {
        let policy = &self.job.spec.trainer.update_policy;
        let claimed = self.report().map(|r| r.attempt);
        let Some(a) = &mut self.s.attempt else { return };
        let has_state = match claimed {
            Some(attempt) => attempt >= a.id,
            // Nobody can say: a rank that was ready had something to save.
            None => a.ready_time.is_some(),
        };
        let wants = reason == StopReason::Suspend || policy.type_ != UpdateType::Immediate;
        let checkpoint = (wants && has_state && policy.checkpoint_timeout_seconds > 0).then(|| CheckpointAsked {
            id: format!(
                "t{}-g{}-{}",
                a.id,
                self.job.metadata.generation.unwrap_or(0),
                if reason == StopReason::Suspend { "stop" } else { "save" }
            ),
            deadline: micro(later(self.now, Duration::from_secs(policy.checkpoint_timeout_seconds.into()))),
        });
        a.stopping = Some(Stopping { reason, since: micro(self.now), checkpoint });
    }

    /// Waits for the checkpoint of an attempt that is being ended, and ends it.
    fn stopped(&mut self) -> bool {
        let Some(a) = &self.s.attempt else { return true };
        let Some(stopping) = a.stopping.clone() else { return false };
        if let Some(asked) = &stopping.checkpoint {
            let done = self.report().is_some_and(|r| r.checkpoints_done.contains(&asked.id));
            if !done && self.now < asked.deadline.0 {
                let then_stop = stopping.reason == StopReason::Suspend;
                let attempt = a.id;
                if self.report().is_some() {
                    self.actions.push(Action::RequestCheckpoint { id: asked.id.clone(), attempt, then_stop });
                }
                self.at(asked.deadline.0);
                self.poll();
                return true;
            }
            if !done {
                let id = asked.id.clone();
                self.event(
                    true,
                    "CheckpointTimedOut",
                    format!("checkpoint {id} was not confirmed in time: going on from the last commit"),
                );
            }
        }
        let (outcome, message) = match stopping.reason {
            StopReason::SpecChange => (Outcome::SpecChange, "the spec was edited"),
            StopReason::Token => (Outcome::Requested, "a new restart token"),
            StopReason::Suspend => (Outcome::Suspended, "suspended"),
        };
        self.end(outcome, None, message);
        true
    }

    /// The attempt's Job is not to be seen.
    fn create_or_confirm(&mut self) {
        let Some(a) = self.s.attempt.clone() else { return };
        let asked = a.created_time.as_ref().map(|t| later(t.0, self.settings.settle_window));
        if a.job_uid.is_none()
            && let Some(until) = asked
            && self.now < until
        {
            // Asked for a moment ago: a cache may lag behind.
            self.at(until);
            return;
        }
        match &self.world.listing {
            // Absence in a cache is not absence: ask.
            None => {
                self.actions.push(Action::ConfirmGone);
                self.poll();
            }
            Some(l) if a.job_uid.is_none() && !l.jobs.iter().any(|j| j.attempt == a.id) => {
                if a.created_time.is_some() && l.is_of(self.job) {
                    // An operator before us wrote that and came no further. Were it written again each time, one that dies
                    // after every write would never come to the Job.
                    self.create_children(&a);
                } else {
                    self.create();
                }
            }
            Some(_) => self.poll(),
        }
    }

    /// Asks for the attempt's children. The number is in the status that is written before.
    pub(super) fn create(&mut self) {
        let now = micro(self.now);
        let Some(a) = &mut self.s.attempt else { return };
        a.created_time = Some(now);
        let a = a.clone();
        self.create_children(&a);
    }

    fn create_children(&mut self, a: &AttemptStatus) {
        let frozen = self.s.frozen.clone().unwrap_or_default();
        for child in build::attempt_objects(self.job, a, &frozen, self.settings) {
            self.actions.push(Action::Create(child));
        }
        self.poll();
    }

    /// Records the end of the living attempt: its cause, the counters, and when the next may begin.
    pub(super) fn end(&mut self, outcome: Outcome, first: Option<(&str, &PodEnd)>, message: &str) {
        let Some(a) = self.s.attempt.take() else { return };
        // An end that we had asked for is what we asked for, whatever the ranks made of it.
        let outcome = match (&a.stopping, outcome) {
            (_, Outcome::Complete) => Outcome::Complete,
            (Some(s), _) => match s.reason {
                StopReason::SpecChange => Outcome::SpecChange,
                StopReason::Token => Outcome::Requested,
                StopReason::Suspend => Outcome::Suspended,
            },
            (None, o) => o,
        };
        self.s.ranks = self.s.ranks.take().map(|r| api::Ranks { summary: format!("0/{}", r.desired), ready: 0, ..r });
        self.s.last_attempt = Some(LastAttempt {
            id: a.id,
            end_time: micro(self.now),
            outcome,
            exit_code: first.and_then(|(_, e)| e.exit_code),
            rank: first.and_then(|(_, e)| e.index),
            pod_name: first.map(|(n, _)| n.to_owned()),
            node_name: first.and_then(|(_, e)| e.node.clone()),
            message: message.to_owned(),
        });
        if outcome == Outcome::Complete {
            self.finish(cond::COMPLETE, "TrainingFinished", "every step is done and journaled");
            self.delete_superseded();
            return;
        }
        let asked = matches!(outcome, Outcome::SpecChange | Outcome::Suspended | Outcome::Requested);
        let why = if asked { String::new() } else { format!(": {message}") };
        self.event(!asked, "AttemptEnded", format!("attempt {} {}{why}", a.id, outcome.in_words()));
        let action = self.action_for(outcome, first.and_then(|(_, e)| e.exit_code));
        let c = &mut self.s.counters;
        match outcome {
            Outcome::Disrupted | Outcome::Deleted => c.disruptions += 1,
            Outcome::Preempted => c.preemptions += 1,
            Outcome::SpecChange => c.spec_restarts += 1,
            Outcome::Suspended => c.requested += 1,
            _ => {}
        }
        let commits = self
            .s
            .progress
            .as_ref()
            .map_or(0, |p| p.commits)
            .max(self.world.conductor.report().map_or(0, |r| r.commits));
        let progressed = commits > a.commits_at_start;
        // Whatever the cause, a restart without a new commit since the attempt began waits.
        c.restarts_since_progress = if progressed { 0 } else { c.restarts_since_progress.saturating_add(1) };
        if action == FailureAction::RestartTrainer {
            c.failures += 1;
            c.failures_since_progress = if progressed { 1 } else { c.failures_since_progress.saturating_add(1) };
        }
        let (restarts, failures) = (c.restarts_since_progress, c.failures_since_progress);
        let policy = &self.job.spec.trainer.failure_policy;
        let mut delay = backoff::delay(policy, restarts, self.uid, a.id);
        if matches!(outcome, Outcome::Stopped | Outcome::Preempted) {
            // The conductor told it to stop, and says why: that must be heard before another begins.
            delay = delay.max(self.settings.poll_interval * 3);
        }
        self.s.next_retry_time = (!delay.is_zero()).then(|| micro(later(self.now, delay)));
        match action {
            FailureAction::FailJob => self.finish(cond::FAILED, "FailJobRule", message),
            FailureAction::RestartTrainer if failures > policy.backoff_limit => {
                let said = format!(
                    "{} without a new commit, backoffLimit is {}; the last: {message}",
                    api::count(failures, "failure"),
                    policy.backoff_limit
                );
                self.finish(cond::FAILED, "BackoffLimitExceeded", &said);
            }
            _ => {}
        }
        self.delete_superseded();
        self.poll();
    }

    fn action_for(&self, outcome: Outcome, exit_code: Option<i32>) -> FailureAction {
        let own = matches!(outcome, Outcome::Failed | Outcome::OutOfMemory | Outcome::UserError);
        for rule in &self.job.spec.trainer.failure_policy.rules {
            let by_code =
                own && rule.on_exit_codes.as_ref().is_some_and(|c| exit_code.is_some_and(|e| c.values.contains(&e)));
            let by_disruption = outcome == Outcome::Disrupted && rule.on_disruption == Some(true);
            if by_code || by_disruption {
                return rule.action;
            }
        }
        match outcome {
            Outcome::UserError => FailureAction::FailJob,
            Outcome::Failed | Outcome::OutOfMemory | Outcome::StartupDeadline | Outcome::NoProgress => {
                FailureAction::RestartTrainer
            }
            _ => FailureAction::RestartTrainerUncounted,
        }
    }
}
