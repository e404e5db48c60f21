//! Workers: leases, results, failures.

use control::wire::{
    CompleteReply, CompleteRequest, FailReply, FailRequest, Finished, GroupSummary, LeaseRequest, Outcome, RESULTS_MAX,
    RefusalKind, RenewReply, RenewRequest, Sampling, TaskKind, WorkerId,
};
use straw::queue::{AttemptId, Completion, Lane, Lease, LeaseTerms, Refused, TaskId, Wanted};

use crate::{
    Command, Conductor, Error, EvalFor, Grant, LEASE_MS, Record, Reply, ReplyId, Step,
    memory::{ParkedLease, WorkerSeen},
    mix::sample_seed,
    state::{EVAL_TASKS, row_of},
};

/// Longest reason kept in the journal, characters.
const REASON_CHARS_MAX: usize = 240;

const TERMS: LeaseTerms = LeaseTerms { duration_ms: LEASE_MS, per_worker_max: usize::MAX };

impl Conductor {
    /// Takes note of a worker. A new process under an old name holds nothing of what its predecessor held.
    fn heard(&mut self, worker: &WorkerId, now: u64, out: &mut Step) {
        if let Some(seen) = self.memory.workers.get_mut(&worker.name) {
            if seen.id == *worker {
                seen.heard_ms = now;
                return;
            }
            let before = holder(&seen.id);
            let parked = seen.parked.take();
            self.state.queue.release_worker(&before);
            if let Some(parked) = parked {
                self.answer_lease(out, parked.reply, Vec::new(), Vec::new());
            }
        }
        let seen = WorkerSeen { id: worker.clone(), heard_ms: now, parked: None, abandon: Default::default() };
        self.memory.workers.insert(worker.name.clone(), seen);
    }

    pub(crate) fn on_lease(&mut self, reply: ReplyId, request: LeaseRequest, now: u64, out: &mut Step) {
        self.heard(&request.worker, now, out);
        let parked =
            ParkedLease { reply, want: request.want as usize, until_ms: Self::hold_until(now, request.wait_ms) };
        let before = self.memory.workers.get_mut(&request.worker.name).and_then(|seen| seen.parked.replace(parked));
        if let Some(before) = before {
            self.answer_lease(out, before.reply, Vec::new(), Vec::new());
        }
    }

    pub(crate) fn on_renew(&mut self, reply: ReplyId, request: &RenewRequest, now: u64, out: &mut Step) {
        self.heard(&request.worker, now, out);
        let mut lost = Vec::new();
        for (lease, task) in &request.leases {
            let renewed = attempt_of(lease).map(|attempt| self.state.queue.renew(TaskId(*task), attempt, now, TERMS));
            if !matches!(renewed, Some(Ok(_))) {
                lost.push(lease.clone());
            }
        }
        let engines = self.engines_for_workers();
        out.commands
            .push(Command::Reply(reply, Reply::Renew(RenewReply { conductor_epoch: self.epoch, lost, engines })));
    }

    pub(crate) fn on_complete(
        &mut self,
        reply: ReplyId,
        request: &CompleteRequest,
        now: u64,
        out: &mut Step,
    ) -> Result<(), Error> {
        self.heard(&request.worker, now, out);
        if request.results.len() > RESULTS_MAX {
            let message = format!("results: {} in one call; at most {RESULTS_MAX} are taken", request.results.len());
            self.refuse(out, reply, RefusalKind::Invalid, message);
            return Ok(());
        }
        let mut outcomes = Vec::with_capacity(request.results.len());
        for finished in &request.results {
            outcomes.push(self.take_result(finished, out)?);
        }
        let complete = CompleteReply { conductor_epoch: self.epoch, outcomes };
        out.commands.push(Command::Reply(reply, Reply::Complete(complete)));
        Ok(())
    }

    fn take_result(&mut self, finished: &Finished, out: &mut Step) -> Result<Outcome, Error> {
        let task = TaskId(finished.task);
        let result = std::slice::from_ref(&finished.group);
        let attempt = attempt_of(&finished.lease);
        let held =
            attempt.filter(|attempt| self.state.queue.lease(task).is_some_and(|lease| lease.attempt == *attempt));
        let answer = match held {
            Some(attempt) => self.state.queue.complete(task, attempt, &finished.submission, result),
            // A lease of an earlier conductor, or one that ran out: the first result wins all the same.
            None => self.state.queue.offer(task, &finished.submission, result),
        };
        Ok(match answer {
            Ok(Completion::Accept(_)) => match self.judged(finished) {
                None => {
                    let (submission, group, summary) =
                        (finished.submission.clone(), finished.group.clone(), finished.summary.clone());
                    self.emit(out, Record::Completed { task: task.0, submission, group, summary, attempt: held })?;
                    Outcome::Accepted
                }
                Some(reason) => {
                    tracing::warn!(task = task.0, reason, "a group is refused");
                    let attempt = attempt.unwrap_or(AttemptId { epoch: 0, counter: 0 });
                    self.emit(out, Record::TaskFailed { task: task.0, lapsed: false, reason: cut(&reason), attempt })?;
                    Outcome::Superseded
                }
            },
            Ok(Completion::Already(_)) => Outcome::Duplicate,
            Ok(Completion::Settled) | Err(Refused::AcceptedOtherwise { .. } | Refused::UnknownTask(_)) => {
                Outcome::Superseded
            }
            Err(refused) => {
                let kind = match refused {
                    Refused::PackRetired(_) => RefusalKind::PackCollected,
                    _ => RefusalKind::Invalid,
                };
                Outcome::Refused { kind, message: refused.to_string() }
            }
        })
    }

    /// Takes note of how a result is, and says why it must not be learnt from, if so.
    fn judged(&mut self, finished: &Finished) -> Option<String> {
        let unusable = self.unusable(finished);
        if finished.task < EVAL_TASKS {
            let failed = u64::from(finished.summary.failed);
            let samples = finished.summary.rewards.len() as u64 + failed;
            self.memory.brought.note(samples, failed, unusable.as_deref());
        }
        unusable
    }

    /// Why a result must not be learnt from.
    fn unusable(&self, finished: &Finished) -> Option<String> {
        let GroupSummary { group_index, rewards, failed, version_min, version_max, .. } = &finished.summary;
        let eval = finished.task >= EVAL_TASKS;
        let samples = self.samples(finished.task);
        if *group_index != finished.task {
            return Some(format!("it is group {group_index}"));
        }
        if rewards.len() as u64 + u64::from(*failed) != u64::from(samples) {
            return Some(format!("it has {} good and {failed} failed samples of {samples}", rewards.len()));
        }
        // One sample is no baseline for itself.
        let least = if eval || samples == 1 { 1 } else { 2 };
        if rewards.len() < least {
            return Some(format!("{failed} of {samples} samples failed"));
        }
        if let Some(reward) = rewards.iter().find(|reward| !reward.is_finite()) {
            return Some(format!("it has a reward of {reward}"));
        }
        let known = |version: &u64| self.state.versions.contains_key(version);
        if version_min > version_max || !known(version_min) || !known(version_max) {
            return Some(format!(
                "it was generated with versions {version_min} to {version_max}, which the ledger does not have"
            ));
        }
        None
    }

    fn samples(&self, task: u64) -> u32 {
        let samples = self.state.run.as_ref().map_or(1, |run| run.config.frozen.samples_per_prompt);
        if task >= EVAL_TASKS { 1 } else { samples }
    }

    pub(crate) fn on_fail(
        &mut self,
        reply: ReplyId,
        request: &FailRequest,
        now: u64,
        out: &mut Step,
    ) -> Result<(), Error> {
        self.heard(&request.worker, now, out);
        self.give_up(&request.lease, request.task, &request.reason, out)?;
        out.commands.push(Command::Reply(reply, Reply::Fail(FailReply { conductor_epoch: self.epoch })));
        Ok(())
    }

    /// A leased task has failed. Without the lease there is nothing to give up: the task is somebody else's, or over.
    pub(crate) fn give_up(&mut self, lease: &str, task: u64, reason: &str, out: &mut Step) -> Result<(), Error> {
        let held = attempt_of(lease)
            .filter(|attempt| self.state.queue.lease(TaskId(task)).is_some_and(|lease| lease.attempt == *attempt));
        let Some(attempt) = held else { return Ok(()) };
        let reason = cut(reason);
        if task < EVAL_TASKS {
            let samples = u64::from(self.samples(task));
            self.memory.brought.note(samples, samples, Some(&reason));
        }
        self.emit(out, Record::TaskFailed { task, lapsed: false, reason, attempt })
    }

    /// Answers the lease requests for which there is work, something to abandon, or no time left.
    pub(crate) fn serve_leases(&mut self, now: u64, out: &mut Step) {
        let parked: Vec<String> = self
            .memory
            .workers
            .values()
            .filter(|seen| seen.parked.is_some())
            .map(|seen| seen.id.name.clone())
            .collect();
        let may_lease = self.may_lease();
        let pending = self.state.queue.pending_len();
        // Shared out, so that the first to ask does not take all.
        let share = pending.div_ceil(parked.len().max(1)).max(1);
        for name in parked {
            let Some(seen) = self.memory.workers.get_mut(&name) else { continue };
            let Some(ParkedLease { reply, want, until_ms }) = seen.parked.clone() else { continue };
            let abandon: Vec<u64> = std::mem::take(&mut seen.abandon).into_iter().collect();
            let id = seen.id.clone();
            let grants = if may_lease && !self.is_cordoned(&id.node) {
                self.grant(&id, want.min(share), now)
            } else {
                Vec::new()
            };
            if grants.is_empty() && abandon.is_empty() && now < until_ms {
                continue;
            }
            if let Some(seen) = self.memory.workers.get_mut(&name) {
                seen.parked = None;
            }
            self.answer_lease(out, reply, grants, abandon);
        }
    }

    fn answer_lease(&self, out: &mut Step, reply: ReplyId, grants: Vec<Grant>, abandon: Vec<u64>) {
        let engines = self.engines_for_workers();
        out.commands.push(Command::Reply(reply, Reply::Lease { grants, engines, abandon }));
    }

    /// There is an engine to generate with, and the run goes on.
    fn may_lease(&self) -> bool {
        let state = &self.state;
        let paused = state.run.as_ref().is_none_or(|run| run.settings.paused);
        !paused && !state.finished && state.failure.is_none() && !self.engines_for_workers().is_empty()
    }

    fn is_cordoned(&self, node: &str) -> bool {
        self.state.run.as_ref().is_some_and(|run| run.settings.cordoned_nodes.iter().any(|cordoned| cordoned == node))
    }

    fn grant(&mut self, worker: &WorkerId, want: usize, now: u64) -> Vec<Grant> {
        let holder = holder(worker);
        // Evaluations first: the trainer waits for them.
        let evals = Wanted::lanes(TaskId(EVAL_TASKS).lane()..=Lane::MAX);
        let mut leases = self.state.queue.acquire_where(&holder, want, now, TERMS, &evals);
        leases.extend(self.state.queue.acquire(&holder, want - leases.len(), now, TERMS));
        leases.iter().filter_map(|lease| self.grant_of(lease, now)).collect()
    }

    fn grant_of(&mut self, lease: &Lease, now: u64) -> Option<Grant> {
        let frozen = &self.state.run.as_ref()?.config.frozen;
        let task = lease.task.0;
        let row = row_of(&self.state.queue.task(lease.task)?.input);
        let eval = task >= EVAL_TASKS;
        let greedy = eval && self.state.eval.as_ref().is_some_and(|eval| eval.purpose == EvalFor::Rl);
        let sampling =
            Sampling { temperature: if greedy { 0.0 } else { frozen.sampling.temperature }, ..frozen.sampling.clone() };
        let samples = if eval { 1 } else { frozen.samples_per_prompt };
        let seeds = (0..samples).map(|sample| sample_seed(frozen.sampling_seed, task, sample)).collect();
        if !eval {
            self.memory.first_lease_ms.entry(task).or_insert(now);
        }
        let kind = if eval { TaskKind::Eval } else { TaskKind::Train };
        Some(Grant { lease: lease.attempt.to_string(), task, lease_ms: LEASE_MS, kind, row, seeds, sampling })
    }

    /// Tells whoever works on these tasks that nobody wants the result.
    pub(crate) fn abandon(&mut self, tasks: &[u64]) {
        for task in tasks {
            self.memory.first_lease_ms.remove(task);
            let Some(lease) = self.state.queue.lease(TaskId(*task)) else { continue };
            let seen = self.memory.workers.values_mut().find(|seen| holder(&seen.id) == lease.worker);
            if let Some(seen) = seen {
                seen.abandon.insert(*task);
            }
        }
    }
}

/// A worker's name in the queue, which is also the owner of its packs. Its processes are told apart by [`Conductor::heard`]:
/// a new one gives up what its predecessor held.
pub(crate) fn holder(worker: &WorkerId) -> String {
    worker.name.clone()
}

/// The attempt that a lease's text names.
fn attempt_of(lease: &str) -> Option<AttemptId> {
    let (epoch, counter) = lease.split_once('.')?;
    Some(AttemptId { epoch: epoch.parse().ok()?, counter: counter.parse().ok()? })
}

fn cut(reason: &str) -> String {
    reason.chars().take(REASON_CHARS_MAX).collect()
}
