//! What each record changes.

use std::collections::BTreeSet;

use control::wire::{Report, Start, StepRecord};
use straw::queue::{BatchId, DropCause, NewTask, Op, Queue, TaskId};

use super::{
    ATTEMPTS_MAX, Applied, Batch, CheckpointAsked, Commit, EVAL_TASKS, Eval, EvalResult, Publishing, Run, SettingsHeld,
    State, Trainer, Version, WarmBatch,
};
use crate::{Drawn, Error, EvalFor, Position, Record, Resumed, order::OrderKind, resumed};

/// Under this name the queue holds the warm-start batches.
const WARM_OWNER: &str = "warm-start";
/// Under this one, the batches whose samples are scored.
const SCORE_OWNER: &str = "scoring";
/// Events kept for people.
const EVENTS_KEPT: usize = 50;
/// Versions kept in the ledger beyond those that something refers to: a group older than this is far too stale anyway.
const VERSIONS_KEPT: u64 = 256;
/// Done checkpoint requests kept for the operator to see.
const CHECKPOINTS_KEPT: usize = 32;

impl State {
    /// The state after `record`.
    ///
    /// # Errors
    /// When the record cannot follow: the state is then of no use.
    pub fn apply(&mut self, record: &Record) -> Result<Applied, Error> {
        let mut applied = Applied::default();
        let name = record.name();
        let bad = |what: String| Error::Inconsistent { record: name, what };
        match record {
            Record::Opened { conductor_epoch, pod, time_ms, config, resumed } => {
                if *conductor_epoch <= self.conductor_epoch {
                    return Err(bad(format!("epoch {conductor_epoch} after {}", self.conductor_epoch)));
                }
                self.conductor_epoch = *conductor_epoch;
                let before = std::mem::replace(&mut self.conductor_pod, pod.clone());
                if !before.is_empty() && before != *pod {
                    self.replaced_pods.insert(before);
                }
                match (config, &self.run) {
                    (Some(config), None) => {
                        let settings = SettingsHeld {
                            number: 0,
                            fence_attempts_up_to: 0,
                            cordoned_nodes: Vec::new(),
                            paused: false,
                            attempt: config.attempt.clone(),
                            live: config.live.clone(),
                        };
                        self.run = Some(Run { config: (**config).clone(), settings, began_ms: *time_ms });
                        self.next_eval_task = EVAL_TASKS;
                        match resumed {
                            Some(resumed) => self.resume(name, resumed, *time_ms)?,
                            None => self.event(*time_ms, "the run began".to_owned()),
                        }
                    }
                    (None, Some(_)) => self.event(*time_ms, format!("conductor epoch {conductor_epoch} took over")),
                    (Some(_), Some(_)) => return Err(bad("the run began twice".to_owned())),
                    (None, None) => return Err(bad("the run never began".to_owned())),
                }
            }
            Record::Settings { number, fence_attempts_up_to, cordoned_nodes, paused, attempt, live } => {
                let settings = &mut self.run_mut(name)?.settings;
                *settings = SettingsHeld {
                    number: *number,
                    fence_attempts_up_to: *fence_attempts_up_to,
                    cordoned_nodes: cordoned_nodes.clone(),
                    paused: *paused,
                    attempt: (**attempt).clone(),
                    live: live.clone(),
                };
            }
            Record::Refilled { groups, cursor } => {
                self.submit(name, groups)?;
                self.cursor = *cursor;
            }
            Record::Completed { task, submission, group, summary, attempt } => {
                let (task, submission, result) = (TaskId(*task), submission.clone(), vec![group.clone()]);
                self.queue(name, &Op::Complete { task, submission, result, attempt: *attempt })?;
                self.summaries.insert(task.0, summary.clone());
                self.last_failure = None;
                self.generate_calls += u64::from(summary.generate_calls);
            }
            Record::TaskFailed { task, lapsed, reason, attempt } => {
                let cause = if *lapsed { DropCause::Lapsed } else { DropCause::Failed };
                let op =
                    Op::Fail { task: TaskId(*task), cause, reason: reason.clone(), drop: false, attempt: *attempt };
                self.queue(name, &op)?;
                if !lapsed {
                    self.last_failure = Some(reason.clone());
                }
                if self.queue.is_settled(TaskId(*task)) && *task < EVAL_TASKS {
                    self.count_dropped("failed", 1);
                }
            }
            Record::Requeued { groups, cursor } => {
                for (old, new) in groups {
                    let reason = format!("too stale, generated again as group {}", new.group_index);
                    self.drop_task(name, *old, DropCause::Stale, &reason)?;
                }
                let again: Vec<Drawn> = groups.iter().map(|(_, new)| *new).collect();
                self.submit(name, &again)?;
                self.cursor = *cursor;
                self.count_dropped("requeued", groups.len() as u64);
            }
            Record::Dropped { groups, reason } => {
                for group in groups {
                    self.drop_task(name, *group, reason.cause(), reason.class())?;
                }
                self.count_dropped(reason.class(), groups.len() as u64);
            }
            Record::Accepted { step, groups, cursor: _, version, generate_ms, time_ms } => {
                let mut positions = Vec::with_capacity(groups.len());
                let (mut oldest, mut newest) = (u64::MAX, 0);
                for group in groups {
                    let found = self
                        .queue
                        .accepted_of(TaskId(*group))
                        .map(|(position, _)| position)
                        .zip(self.summaries.get(group));
                    let (position, summary) = found.ok_or_else(|| bad(format!("group {group} has no result")))?;
                    positions.push(position);
                    oldest = oldest.min(summary.version_min);
                    newest = newest.max(summary.version_max);
                }
                self.queue(name, &Op::PlanBatch { batch: BatchId(*step), positions })?;
                let staleness = self.staleness(*step, oldest);
                let batch = Batch {
                    version_min: oldest,
                    version_max: newest,
                    version: *version,
                    staleness,
                    generate_ms: *generate_ms,
                    accepted_ms: *time_ms,
                    converted: None,
                    given_to: None,
                };
                self.batches.insert(*step, batch);
            }
            Record::Converted { step, batch } => {
                self.queue(name, &Op::BatchReady { batch: BatchId(*step), payload: vec![batch.batch.clone()] })?;
                let kept = self.batches.get_mut(step).ok_or_else(|| bad(format!("step {step} has no batch")))?;
                kept.converted = Some((**batch).clone());
            }
            Record::WarmConverted { first, batches } => {
                for (update, batch) in (*first..).zip(batches) {
                    let kept = WarmBatch { converted: batch.clone(), given_to: None };
                    if self.warm_batches.insert(update, kept).is_some() {
                        return Err(bad(format!("warm-start update {update} is converted twice")));
                    }
                }
                self.hold_warm(name)?;
            }
            Record::Claimed { trainer_epoch, attempt, incarnation, pod, layout, start, time_ms } => {
                if *trainer_epoch <= self.trainer_epoch || *attempt < self.attempt {
                    return Err(bad(format!("epoch {trainer_epoch}, attempt {attempt}")));
                }
                let config = self.run_ref(name)?.settings.attempt.clone();
                let asynchronous = self.run_ref(name)?.config.frozen.asynchronous;
                let resharded = self.trainer.as_ref().is_some_and(|before| before.layout != *layout);
                let position = match start {
                    Start::Commit(commit) => Position::of(commit),
                    _ => self.initial_position(),
                };
                // What was learnt after the boundary will be learnt again.
                self.queue(name, &Op::Rewind { to: BatchId(position.step) })?;
                self.trainer_epoch = *trainer_epoch;
                self.attempt = *attempt;
                // Whatever was asked of an attempt that is gone cannot be had from this one.
                self.checkpoints.retain(|asked| asked.done || asked.attempt >= *attempt);
                self.trainer = Some(Trainer {
                    epoch: *trainer_epoch,
                    attempt: *attempt,
                    incarnation: incarnation.clone(),
                    pod: pod.clone(),
                    layout: *layout,
                    tokens_max: config.tokens_max,
                    config,
                    start: start.clone(),
                    position,
                    done: 0,
                    order: None,
                    ordered_by: 0,
                    published: None,
                    caught_up: false,
                    rescore: asynchronous || resharded,
                    stopped: false,
                    refused: None,
                });
                let (dp, tp) = (layout.dp, layout.tp);
                self.event(
                    *time_ms,
                    format!("attempt {attempt} (epoch {trainer_epoch}, dp {dp}, tp {tp}) claimed, from {position}"),
                );
            }
            Record::Ordered { trainer_epoch, seq, order, conductor_epoch } => {
                match order {
                    OrderKind::Train { step, .. } => {
                        let batch =
                            self.batches.get_mut(step).ok_or_else(|| bad(format!("step {step} has no batch")))?;
                        batch.given_to = Some(*trainer_epoch);
                    }
                    OrderKind::TrainWarm { update, .. } => {
                        let batch = self
                            .warm_batches
                            .get_mut(update)
                            .ok_or_else(|| bad(format!("update {update} has no batch")))?;
                        batch.given_to = Some(*trainer_epoch);
                    }
                    OrderKind::Publish { version, .. } => {
                        if *version <= self.version_last {
                            return Err(bad(format!("version {version} after {}", self.version_last)));
                        }
                        self.version_last = *version;
                    }
                    _ => {}
                }
                let trainer = self.trainer_mut(name, *trainer_epoch)?;
                if trainer.order.is_some() || *seq != trainer.done + 1 {
                    return Err(bad(format!("order {seq} after {} with another at hand", trainer.done)));
                }
                if matches!(order, OrderKind::Publish { .. }) {
                    trainer.caught_up = true;
                }
                trainer.order = Some(order.clone());
                trainer.ordered_by = *conductor_epoch;
            }
            Record::Reported { trainer_epoch, seq, report, time_ms } => {
                applied.step_record = self.reported(*trainer_epoch, *seq, report, *time_ms)?;
            }
            Record::Committed { trainer_epoch, seq, conductor_epoch, commit, cursor, queue: _, time_ms } => {
                self.done(name, *trainer_epoch, *seq)?;
                let position = Position::of(commit);
                let attempt = self.attempt;
                for asked in self.checkpoints.iter_mut().filter(|asked| asked.attempt == attempt) {
                    asked.done = true;
                }
                while self.checkpoints.len() > CHECKPOINTS_KEPT
                    && self.checkpoints.front().is_some_and(|asked| asked.done)
                {
                    self.checkpoints.pop_front();
                }
                self.commits.push_back(Commit {
                    commit: commit.clone(),
                    trainer_epoch: *trainer_epoch,
                    conductor_epoch: *conductor_epoch,
                    cursor: *cursor,
                    unlearnt: self.unlearnt(position.step),
                });
                self.commits_total += 1;
                let keep = self.run_ref(name)?.settings.live.checkpoint_keep.max(1);
                while self.commits.len() as u64 > keep {
                    if let Some(old) = self.commits.pop_front() {
                        self.garbage.insert(old.commit.folder);
                    }
                }
                // A folder that is named again is not garbage.
                for kept in &self.commits {
                    self.garbage.remove(&kept.commit.folder);
                }
                // The boundary moved: what lies before it is released.
                if position.rl {
                    self.warm_batches.clear();
                    self.batches = self.batches.split_off(&position.step);
                    let released = self.queue.accepted().filter(|(_, a)| a.batch.is_some_and(|b| b.0 < position.step));
                    let released: Vec<u64> = released.map(|(_, accepted)| accepted.task.0).collect();
                    self.queue(name, &Op::Release { below: BatchId(position.step) })?;
                    for group in released {
                        self.summaries.remove(&group);
                    }
                } else {
                    self.warm_batches = self.warm_batches.split_off(&position.warm_step);
                }
                self.hold_warm(name)?;
                self.prune_versions();
                self.event(*time_ms, format!("commit at {position}"));
            }
            Record::VersionAdvanced { version, engines: _, publish_ms, time_ms } => {
                let publishing = self.publishing.take().ok_or_else(|| bad("nothing is being published".to_owned()))?;
                if publishing.version != *version || *version <= self.version {
                    return Err(bad(format!(
                        "version {version}, intent {}, current {}",
                        publishing.version, self.version
                    )));
                }
                // Given up here, deleted when no engine needs it any more.
                if let Some(before) = self.versions.get(&self.version) {
                    self.garbage.insert(before.folder.clone());
                }
                self.unscored = publishing.scores.map(|scores| (*version, scores));
                let (digest, position, folder) = (publishing.digest, publishing.position, publishing.folder);
                self.versions.insert(*version, Version { digest, position, folder, publish_ms: *publish_ms });
                self.version = *version;
                self.prune_versions();
                self.hold_scored(name)?;
                self.event(*time_ms, format!("version {version} is served"));
            }
            Record::Rescored { version, gap_max, tokens } => {
                if self.unscored.as_ref().is_some_and(|(of, _)| of == version) {
                    self.unscored = None;
                }
                self.rescored = (self.rescored.0.max(*gap_max), self.rescored.1 + tokens);
                self.hold_scored(name)?;
            }
            Record::EvalStarted { purpose, version, position, first_task, prompts } => {
                if self.eval.is_some() {
                    return Err(bad("another evaluation is under way".to_owned()));
                }
                let tasks = (*first_task..*first_task + *prompts).zip(0..);
                let tasks: Vec<Drawn> = tasks.map(|(group_index, row)| Drawn { group_index, row }).collect();
                self.submit(name, &tasks)?;
                self.next_eval_task = *first_task + *prompts;
                self.eval = Some(Eval {
                    purpose: *purpose,
                    version: *version,
                    position: *position,
                    first_task: *first_task,
                    prompts: *prompts,
                });
            }
            Record::EvalFinished { passed, answered, time_ms } => {
                let eval = self.eval.take().ok_or_else(|| bad("no evaluation is under way".to_owned()))?;
                for task in eval.first_task..eval.first_task + eval.prompts {
                    if !self.queue.is_settled(TaskId(task)) {
                        self.drop_task(name, task, DropCause::Cancelled, "the evaluation is over")?;
                    }
                }
                let result = EvalResult { position: eval.position, passed: *passed, answered: *answered };
                match eval.purpose {
                    EvalFor::WarmStart => self.warm_result = Some(result),
                    EvalFor::Rl => self.rl_result = Some(result),
                }
                let rate = result.pass_rate().map_or_else(|| "not measurable".to_owned(), |rate| format!("{rate:.3}"));
                self.event(*time_ms, format!("pass rate at {}: {rate} ({passed} of {answered})", eval.position));
            }
            Record::CheckpointAsked { id, attempt, then_stop } => {
                let (id, attempt, then_stop) = (id.clone(), *attempt, *then_stop);
                self.checkpoints.push_back(CheckpointAsked { id, attempt, then_stop, done: false });
            }
            Record::CheckpointReached { id } => {
                let asked = self.checkpoints.iter_mut().find(|asked| asked.id == *id);
                asked.ok_or_else(|| bad(format!("checkpoint {id} was not asked for")))?.done = true;
            }
            Record::FolderDeleted { folder } => {
                self.garbage.remove(folder);
            }
            Record::PacksRetired { packs } => self.queue(name, &Op::Retire { packs: packs.clone() })?,
            Record::PacksForgotten { below } => self.queue(name, &Op::Forget { below: *below })?,
            Record::RecordsMoved { moves } => {
                self.queue(name, &Op::Move { moves: moves.clone() })?;
                let Self { queue, batches, warm_batches, scorable, trainer, publishing, unscored, .. } = self;
                let warm = warm_batches.values_mut().map(|batch| &mut batch.converted.batch);
                let converted = batches.values_mut().filter_map(|batch| batch.converted.as_mut());
                let scored = match trainer.as_mut().and_then(|trainer| trainer.order.as_mut()) {
                    Some(OrderKind::Publish { score: Some(score), .. }) => Some(&mut score.batch),
                    _ => None,
                };
                let learnt = scorable.as_mut().map(|(batch, _)| batch);
                let intended = publishing.as_mut().and_then(|publishing| publishing.scores.as_mut());
                let compared = intended.into_iter().chain(unscored.as_mut().map(|(_, scores)| scores));
                let compared = compared.map(|scores| &mut scores.set.batch);
                let batches = converted.map(|converted| &mut converted.batch).chain(warm).chain(scored).chain(learnt);
                for batch in batches.chain(compared) {
                    *batch = queue.resolve(batch);
                }
            }
            Record::TrainerRefused { trainer_epoch, reason } => {
                self.trainer_mut(name, *trainer_epoch)?.refused = Some(reason.clone());
                let now = self.events.back().map_or(0, |(time, _)| *time);
                self.event(now, format!("trainer epoch {trainer_epoch} is refused: {reason}"));
            }
            Record::Failed { reason, time_ms } => {
                self.failure = Some(reason.clone());
                self.event(*time_ms, format!("the run failed: {reason}"));
            }
        }
        Ok(applied)
    }

    /// The first boundary is another run's commit.
    fn resume(&mut self, name: &'static str, resumed: &Resumed, time_ms: u64) -> Result<(), Error> {
        let Resumed { run, commit, cursor, groups } = resumed;
        self.queue = Queue::beginning_at(BatchId(commit.step));
        self.submit(name, groups)?;
        self.cursor = *cursor;
        self.trained = commit.step;
        self.commits.push_back(Commit {
            commit: commit.clone(),
            trainer_epoch: resumed::COPIED_EPOCH,
            conductor_epoch: self.conductor_epoch,
            cursor: *cursor,
            unlearnt: groups.clone(),
        });
        self.event(time_ms, format!("the run began with the commit of run {run} at step {}", commit.step));
        Ok(())
    }

    fn reported(&mut self, epoch: u64, seq: u64, report: &Report, time_ms: u64) -> Result<Option<StepRecord>, Error> {
        let bad = |what: String| Error::Inconsistent { record: "Reported", what };
        let order = self.done("Reported", epoch, seq)?;
        let mut step_record = None;
        match (order, report) {
            (OrderKind::TrainWarm { update, .. }, Report::Trained(_)) => {
                let trainer = self.trainer_mut("Reported", epoch)?;
                trainer.position.warm_step = update + 1;
                trainer.published = None;
            }
            (OrderKind::Train { step, replay }, Report::Trained(metrics)) => {
                let trainer = self.trainer_mut("Reported", epoch)?;
                trainer.position.step = step + 1;
                trainer.published = None;
                self.queue("Reported", &Op::Consume { batch: BatchId(step) })?;
                self.trained = self.trained.max(step + 1);
                let learnt = self.batches.get(&step).and_then(|batch| batch.converted.as_ref());
                self.scorable = learnt.map(|converted| (converted.batch.clone(), converted.stats.samples));
                self.hold_scored("Reported")?;
                let record = self.step_record(step, replay, metrics, time_ms);
                self.rescored = (0.0, 0);
                self.last_step = Some(record.clone());
                self.step_records += 1;
                step_record = Some(record);
            }
            (OrderKind::Publish { version, folder, .. }, Report::Weights { weights_digest, scores, .. }) => {
                let trainer = self.trainer_mut("Reported", epoch)?;
                trainer.published = Some(version);
                let position = trainer.position;
                let digest = weights_digest.clone();
                if self.publishing.is_some() {
                    return Err(bad("another publication is under way".to_owned()));
                }
                let mut scores = scores.clone();
                // The trainer was given the set before records were moved, perhaps.
                scores.iter_mut().for_each(|scores| scores.set.batch = self.queue.resolve(&scores.set.batch));
                self.publishing = Some(Publishing { version, folder, digest, position, since_ms: time_ms, scores });
                self.hold_scored("Reported")?;
            }
            (OrderKind::BeginRl, Report::RlBegun) => {
                self.trainer_mut("Reported", epoch)?.position.rl = true;
                self.event(time_ms, "the warm start is over, the RL phase begins".to_owned());
            }
            (OrderKind::Export { .. }, Report::Exported { .. }) => {
                let position = self.trainer_mut("Reported", epoch)?.position;
                self.exported = Some(position);
            }
            (OrderKind::Stop { .. }, Report::Stopping) => {
                let trainer = self.trainer_mut("Reported", epoch)?;
                trainer.stopped = true;
                let attempt = trainer.attempt;
                self.event(time_ms, format!("attempt {attempt} stopped as asked"));
            }
            (OrderKind::Finish, Report::Finished) => {
                if !self.finished {
                    self.event(time_ms, "finished".to_owned());
                }
                self.finished = true;
            }
            (order, report) => return Err(bad(format!("{report:?} answers {order:?}"))),
        }
        Ok(step_record)
    }

    /// Marks the order at hand as done and gives it.
    fn done(&mut self, name: &'static str, epoch: u64, seq: u64) -> Result<OrderKind, Error> {
        let trainer = self.trainer_mut(name, epoch)?;
        match trainer.order.take() {
            Some(order) if seq == trainer.done + 1 => {
                trainer.done = seq;
                Ok(order)
            }
            _ => {
                Err(Error::Inconsistent { record: name, what: format!("order {seq} of epoch {epoch} is not at hand") })
            }
        }
    }

    fn step_record(&self, step: u64, replay: bool, metrics: &control::wire::TrainMetrics, time_ms: u64) -> StepRecord {
        let batch = self.batches.get(&step);
        let stats = batch.and_then(|b| b.converted.as_ref()).map(|c| c.stats).unwrap_or_default();
        let began = self.run.as_ref().map_or(time_ms, |run| run.began_ms);
        let version = batch.map_or(0, |b| b.version);
        let before = self.last_step.as_ref().map_or(began, |last| last.time_ms);
        let seconds = time_ms.saturating_sub(before).max(1) as f64 / 1e3;
        let (attempt, trainer_epoch) = self.trainer.as_ref().map_or((0, 0), |t| (t.attempt, t.epoch));
        StepRecord {
            step,
            attempt,
            trainer_epoch,
            replay,
            weight_version: version,
            reward: stats.reward,
            reward_std: stats.reward_std,
            zero_std_groups: stats.zero_std_groups,
            response_len: stats.response_len,
            truncated: stats.truncated,
            staleness_max: batch.map_or(0, |b| b.staleness),
            train: metrics.clone(),
            rescored_gap_max: self.rescored.0,
            rescored_tokens: self.rescored.1,
            generate_seconds: batch.map_or(0, |b| b.generate_ms) as f64 / 1e3,
            publish_seconds: self.versions.get(&version).map_or(0, |v| v.publish_ms) as f64 / 1e3,
            tokens_per_second: (stats.response_tokens + metrics.tokens) as f64 / seconds,
            elapsed_seconds: time_ms.saturating_sub(began) as f64 / 1e3,
            time_ms,
        }
    }

    /// Forgets versions that nothing can refer to any more, and gives their folders up.
    fn prune_versions(&mut self) {
        let in_batches = self.batches.values().map(|batch| batch.version_min);
        let in_groups = self.summaries.values().map(|summary| summary.version_min);
        let oldest =
            in_batches.chain(in_groups).min().unwrap_or(self.version).min(self.version.saturating_sub(VERSIONS_KEPT));
        self.versions = self.versions.split_off(&oldest);
    }

    fn count_dropped(&mut self, reason: &str, groups: u64) {
        *self.dropped.entry(reason.to_owned()).or_default() += groups;
    }

    /// Changes the queue.
    fn queue(&mut self, record: &'static str, op: &Op) -> Result<(), Error> {
        self.queue.apply(op).map_err(|refused| Error::Inconsistent { record, what: refused.to_string() })
    }

    fn submit(&mut self, record: &'static str, groups: &[Drawn]) -> Result<(), Error> {
        let task = |drawn: &Drawn| NewTask {
            id: TaskId(drawn.group_index),
            input: drawn.row.to_le_bytes().to_vec(),
            attempts_max: ATTEMPTS_MAX,
        };
        self.queue(record, &Op::Submit { tasks: groups.iter().map(task).collect() })
    }

    /// Warm-start batches are not the queue's; it is told which of them are still needed, so that their packs stay.
    fn hold_warm(&mut self, record: &'static str) -> Result<(), Error> {
        let refs = self.warm_batches.values().map(|batch| batch.converted.batch.clone()).collect();
        self.queue(record, &Op::Retain { owner: WARM_OWNER.to_owned(), refs })
    }

    /// Batches whose samples are scored, or may be, stay until that is over: a later step may be learnt and committed meanwhile.
    fn hold_scored(&mut self, record: &'static str) -> Result<(), Error> {
        let learnt = self.scorable.iter().map(|(batch, _)| batch);
        let intended = self.publishing.iter().filter_map(|publishing| publishing.scores.as_ref());
        let compared = intended.chain(self.unscored.iter().map(|(_, scores)| scores)).map(|scores| &scores.set.batch);
        // One that is gone cannot be had back: scoring says so.
        let there = |batch: &&straw::Ref| !self.queue.retired().contains(&batch.pack);
        let refs: BTreeSet<straw::Ref> = learnt.chain(compared).filter(there).cloned().collect();
        let refs = refs.into_iter().collect();
        self.queue(record, &Op::Retain { owner: SCORE_OWNER.to_owned(), refs })
    }

    /// Drops a task wherever it is, but in a batch.
    fn drop_task(&mut self, record: &'static str, task: u64, cause: DropCause, reason: &str) -> Result<(), Error> {
        self.summaries.remove(&task);
        let reason = reason.to_owned();
        match self.queue.accepted_of(TaskId(task)).map(|(position, _)| position) {
            Some(position) => self.queue(record, &Op::DropAccepted { positions: vec![position], cause, reason }),
            None => self.queue(record, &Op::Cancel { task: TaskId(task), cause, reason }),
        }
    }

    fn event(&mut self, time_ms: u64, text: String) {
        self.events.push_back((time_ms, text));
        while self.events.len() > EVENTS_KEPT {
            self.events.pop_front();
        }
    }

    fn run_ref(&self, record: &'static str) -> Result<&Run, Error> {
        self.run.as_ref().ok_or_else(|| Error::Inconsistent { record, what: "the run never began".to_owned() })
    }

    fn run_mut(&mut self, record: &'static str) -> Result<&mut Run, Error> {
        self.run.as_mut().ok_or_else(|| Error::Inconsistent { record, what: "the run never began".to_owned() })
    }

    fn trainer_mut(&mut self, record: &'static str, epoch: u64) -> Result<&mut Trainer, Error> {
        let at = self.trainer.as_ref().map(|trainer| trainer.epoch);
        self.trainer.as_mut().filter(|trainer| trainer.epoch == epoch).ok_or_else(|| Error::Inconsistent {
            record,
            what: format!("of trainer epoch {epoch}, but the trainer's is {at:?}"),
        })
    }
}
