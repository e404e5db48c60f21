//! The trainer: claims, orders, reports. An order follows from the state, is journaled, and is then given again to every
//! poll until its report is journaled.

use control::{
    run_dir::weights_folder,
    wire::{
        CheckpointReply, CheckpointRequest, ClaimReply, ClaimRequest, CommitRef, NextReply, NextRequest, RefusalKind,
        Report, ReportReply, ReportRequest, SettingsReply, Start, Work,
    },
};

use crate::{
    Command, Conductor, Error, Record, Reply, ReplyId, SAVED_HOLD_MS, SettingsAsked, State, Step, TRAINER_HEARTBEAT_MS,
    TilesProblem,
    config::first_difference,
    memory::{ParkedNext, Verifying},
    order::{OrderKind, tiles_folder},
    state::Trainer,
};

/// Folder of the final checkpoint.
pub const EXPORT_FOLDER: &str = "export";
/// Pause before tiles that could not be read are checked again.
const VERIFY_AGAIN_MS: u64 = 500;

impl Conductor {
    pub(crate) fn on_claim(
        &mut self,
        reply: ReplyId,
        request: ClaimRequest,
        now: u64,
        out: &mut Step,
    ) -> Result<(), Error> {
        if self.refuse_other_run(out, reply, &request.run) {
            return Ok(());
        }
        let Some(run) = &self.state.run else { return Ok(()) };
        let (attempt, fenced) = (request.attempt, run.settings.fence_attempts_up_to);
        if attempt <= fenced || attempt < self.state.attempt {
            let why = if attempt <= fenced {
                "was fenced by the operator".to_owned()
            } else {
                format!("is superseded by attempt {}", self.state.attempt)
            };
            self.refuse(out, reply, RefusalKind::Fenced, format!("attempt {attempt} {why}"));
            return Ok(());
        }
        let world = [request.layout.dp, request.layout.tp, request.layout.pp, request.layout.cp];
        if world.contains(&0) {
            self.refuse(
                out,
                reply,
                RefusalKind::Invalid,
                format!("a layout of {world:?} (dp, tp, pp, cp) has no ranks"),
            );
            return Ok(());
        }
        // The same process asks again: its first reply was lost.
        let again = |trainer: &&Trainer| {
            trainer.attempt == attempt
                && trainer.incarnation == request.incarnation
                && trainer.layout == request.layout
                && trainer.done == 0
        };
        if self.state.trainer.as_ref().filter(again).is_none_or(|trainer| trainer.refused.is_some()) {
            let start = self
                .state
                .commits
                .back()
                .map_or_else(|| run.config.frozen.init.clone(), |commit| Start::Commit(commit.commit.clone()));
            let claimed = Record::Claimed {
                trainer_epoch: self.state.trainer_epoch + 1,
                attempt,
                incarnation: request.incarnation,
                pod: request.pod,
                layout: request.layout,
                start,
                time_ms: now,
            };
            self.emit(out, claimed)?;
            self.turn_predecessor_away(out);
            out.commands.push(Command::ListFolders);
            self.memory.trainer_waits = None;
        }
        self.memory.trainer_heard_ms = Some(now);
        if let (Some(trainer), Some(run)) = (&self.state.trainer, &self.state.run) {
            let claim = ClaimReply {
                conductor_epoch: self.epoch,
                trainer_epoch: trainer.epoch,
                start: trainer.start.clone(),
                config: run.config.train_config(&trainer.config),
                heartbeat_timeout_ms: TRAINER_HEARTBEAT_MS,
            };
            out.commands.push(Command::Reply(reply, Reply::Claim(Box::new(claim))));
        }
        Ok(())
    }

    fn turn_predecessor_away(&mut self, out: &mut Step) {
        let epoch = self.state.trainer_epoch;
        if let Some(parked) = self.memory.parked_next.take() {
            self.refuse(
                out,
                parked.reply,
                RefusalKind::Fenced,
                format!("trainer epoch {} is superseded by {epoch}", parked.trainer_epoch),
            );
        }
        if let Some(verifying) = self.memory.verifying.take() {
            for reply in verifying.replies {
                self.refuse(
                    out,
                    reply,
                    RefusalKind::Fenced,
                    format!("trainer epoch {} is superseded by {epoch}", verifying.trainer_epoch),
                );
            }
        }
    }

    /// Why a trainer of `epoch` may not go on, if it may not.
    fn fenced(&self, epoch: u64) -> Option<(RefusalKind, String)> {
        let own = self.state.trainer_epoch;
        if epoch > own {
            // Only a later conductor can have given it.
            return Some((RefusalKind::ConductorSuperseded, format!("trainer epoch {epoch} is not known here")));
        }
        let trainer = self.state.trainer.as_ref().filter(|trainer| trainer.epoch == epoch);
        let Some(trainer) = trainer else {
            return Some((RefusalKind::Fenced, format!("trainer epoch {epoch} is superseded by {own}")));
        };
        if let Some(reason) = &trainer.refused {
            return Some((RefusalKind::Fenced, reason.clone()));
        }
        let fenced = self.state.run.as_ref().is_some_and(|run| trainer.attempt <= run.settings.fence_attempts_up_to);
        fenced.then(|| (RefusalKind::Fenced, format!("attempt {} was fenced by the operator", trainer.attempt)))
    }

    /// A trainer that says it did more than was ever ordered here followed a conductor whose journal nobody reads.
    fn refuse_diverged(&mut self, reply: ReplyId, epoch: u64, did: u64, out: &mut Step) -> Result<(), Error> {
        let reason = format!("it did order {did}, which is in no journal: it followed a superseded conductor");
        self.emit(out, Record::TrainerRefused { trainer_epoch: epoch, reason: reason.clone() })?;
        self.refuse(out, reply, RefusalKind::Fenced, reason);
        Ok(())
    }

    pub(crate) fn on_next(
        &mut self,
        reply: ReplyId,
        request: &NextRequest,
        now: u64,
        out: &mut Step,
    ) -> Result<(), Error> {
        if self.refuse_other_run(out, reply, &request.run) {
            return Ok(());
        }
        if let Some((kind, message)) = self.fenced(request.trainer_epoch) {
            self.refuse(out, reply, kind, message);
            return Ok(());
        }
        let Some(trainer) = &self.state.trainer else { return Ok(()) };
        self.memory.trainer_heard_ms = Some(now);
        self.memory.trainer_waits.clone_from(&request.waiting_for);
        let (done, ordered) = (trainer.done, trainer.done + u64::from(trainer.order.is_some()));
        if request.done > ordered {
            return self.refuse_diverged(reply, request.trainer_epoch, request.done, out);
        }
        if request.done < done {
            let message =
                format!("order {done} is reported and journaled, and this poll knows only of {}", request.done);
            self.refuse(out, reply, RefusalKind::Invalid, message);
            return Ok(());
        }
        // With `done == ordered` the report of the order at hand is not in the journal: it is given again, to be offered again.
        let attempt = trainer.attempt;
        let until_ms = Self::hold_until(now, request.wait_ms);
        let parked = ParkedNext { reply, trainer_epoch: request.trainer_epoch, attempt, until_ms };
        if let Some(before) = self.memory.parked_next.replace(parked) {
            self.answer_next(before.reply, out)?;
        }
        Ok(())
    }

    pub(crate) fn serve_next(&mut self, now: u64, out: &mut Step) -> Result<(), Error> {
        let Some(parked) = self.memory.parked_next.clone() else { return Ok(()) };
        if let Some((kind, message)) = self.fenced(parked.trainer_epoch) {
            tracing::debug!(attempt = parked.attempt, "a poll is refused");
            self.memory.parked_next = None;
            self.refuse(out, parked.reply, kind, message);
            return Ok(());
        }
        let ordered = self.state.trainer.as_ref().is_some_and(|trainer| trainer.order.is_some());
        if ordered || now >= parked.until_ms {
            self.memory.parked_next = None;
            self.answer_next(parked.reply, out)?;
        }
        Ok(())
    }

    fn answer_next(&self, reply: ReplyId, out: &mut Step) -> Result<(), Error> {
        let ordered = self.state.trainer.as_ref().is_some_and(|trainer| trainer.order.is_some());
        let work = self.state.wire_order().map(|(seq, order)| Work { seq, order });
        if ordered && work.is_none() {
            let what = "the order at hand names a batch that is not there".to_owned();
            return Err(Error::Inconsistent { record: "Ordered", what });
        }
        let waiting_for = if work.is_none() { self.waits().into_iter().next().map(|wait| wait.what) } else { None };
        let next = NextReply { conductor_epoch: self.epoch, work, waiting_for };
        out.commands.push(Command::Reply(reply, Reply::Next(Box::new(next))));
        Ok(())
    }

    pub(crate) fn on_report(
        &mut self,
        reply: ReplyId,
        request: ReportRequest,
        now: u64,
        out: &mut Step,
    ) -> Result<(), Error> {
        if self.refuse_other_run(out, reply, &request.run) {
            return Ok(());
        }
        let (epoch, seq) = (request.trainer_epoch, request.seq);
        if let Some((kind, message)) = self.fenced(epoch) {
            self.refuse(out, reply, kind, message);
            return Ok(());
        }
        let Some(trainer) = &self.state.trainer else { return Ok(()) };
        self.memory.trainer_heard_ms = Some(now);
        self.memory.trainer_waits = None;
        if seq <= trainer.done {
            // Journaled before; the reply was lost.
            out.commands.push(self.reported(reply));
            return Ok(());
        }
        let Some(order) = trainer.order.as_ref().filter(|_| seq == trainer.done + 1) else {
            return self.refuse_diverged(reply, epoch, seq, out);
        };
        if !answers(order, &request.report) {
            let message =
                format!("report {} does not answer order {seq}: {}", kind_of(&request.report), order.describe());
            self.refuse(out, reply, RefusalKind::Invalid, message);
            return Ok(());
        }
        if let Report::Tiles { index_digest, weights_digest, .. } = request.report {
            self.on_tiles(reply, epoch, seq, index_digest, weights_digest, out);
            return Ok(());
        }
        self.emit(out, Record::Reported { trainer_epoch: epoch, seq, report: request.report, time_ms: now })?;
        out.commands.push(self.reported(reply));
        Ok(())
    }

    fn reported(&self, reply: ReplyId) -> Command {
        Command::Reply(reply, Reply::Report(ReportReply { conductor_epoch: self.epoch }))
    }

    /// Tiles are looked at before they are believed.
    fn on_tiles(
        &mut self,
        reply: ReplyId,
        epoch: u64,
        seq: u64,
        index_digest: String,
        weights_digest: String,
        out: &mut Step,
    ) {
        if let Some(verifying) = self.memory.verifying.as_mut().filter(|v| v.trainer_epoch == epoch && v.seq == seq) {
            verifying.replies.push(reply);
            return;
        }
        self.memory.verifying = Some(Verifying {
            trainer_epoch: epoch,
            seq,
            index_digest,
            weights_digest,
            replies: vec![reply],
            again_ms: None,
            problem: None,
        });
        self.verify(epoch, seq, out);
    }

    pub(crate) fn verify(&self, trainer_epoch: u64, seq: u64, out: &mut Step) {
        let order = self.state.trainer.as_ref().and_then(|trainer| trainer.order.as_ref());
        if let (Some(OrderKind::Save { folder, .. }), Some(verifying)) = (order, &self.memory.verifying) {
            let (folder, index_digest) = (folder.clone(), verifying.index_digest.clone());
            out.commands.push(Command::VerifyTiles { trainer_epoch, seq, folder, index_digest });
        }
    }

    pub(crate) fn on_verified(
        &mut self,
        trainer_epoch: u64,
        seq: u64,
        result: Result<(), TilesProblem>,
        now: u64,
        out: &mut Step,
    ) -> Result<(), Error> {
        let Some(verifying) = self.memory.verifying.take_if(|v| v.trainer_epoch == trainer_epoch && v.seq == seq)
        else {
            return Ok(());
        };
        if let Err(TilesProblem::Unreadable(problem)) = result {
            self.memory.verifying =
                Some(Verifying { again_ms: Some(now + VERIFY_AGAIN_MS), problem: Some(problem), ..verifying });
            return Ok(());
        }
        let order = self
            .state
            .trainer
            .as_ref()
            .filter(|trainer| trainer.epoch == trainer_epoch)
            .and_then(|trainer| trainer.order.clone());
        let refused = self.fenced(trainer_epoch).map(|(_, message)| message);
        let wrong = if let Err(TilesProblem::Wrong(problem)) = result {
            Some(format!("its tiles are not what it reported: {problem}"))
        } else {
            None
        };
        match (wrong, refused, order) {
            (Some(reason), None, _) => {
                self.emit(out, Record::TrainerRefused { trainer_epoch, reason: reason.clone() })?;
                for reply in verifying.replies {
                    self.refuse(out, reply, RefusalKind::Fenced, reason.clone());
                }
            }
            (None, None, Some(OrderKind::Save { position, folder })) => {
                let commit = CommitRef {
                    step: position.step,
                    warm_step: position.warm_step,
                    warming: !position.rl,
                    folder,
                    index_digest: verifying.index_digest,
                    weights_digest: verifying.weights_digest,
                };
                let (cursor, queue) = (self.state.cursor, self.state.queued());
                let record = Record::Committed {
                    trainer_epoch,
                    seq,
                    conductor_epoch: self.epoch,
                    commit,
                    cursor,
                    queue,
                    time_ms: now,
                };
                self.hold_trainer(now);
                self.emit(out, record)?;
                for reply in verifying.replies {
                    out.commands.push(self.reported(reply));
                }
            }
            (_, reason, _) => {
                for reply in verifying.replies {
                    self.refuse(
                        out,
                        reply,
                        RefusalKind::Fenced,
                        reason.clone().unwrap_or_else(|| "superseded".to_owned()),
                    );
                }
            }
        }
        Ok(())
    }

    pub(crate) fn on_settings(&mut self, reply: ReplyId, asked: SettingsAsked, out: &mut Step) -> Result<(), Error> {
        let Some(run) = &self.state.run else { return Ok(()) };
        if asked.number > run.settings.number {
            let config = match asked.config {
                Ok(config) => config,
                Err(error) => {
                    self.refuse(out, reply, RefusalKind::Invalid, error.to_string());
                    return Ok(());
                }
            };
            if let Some((field, before, after)) = first_difference(&run.config.frozen, &config.frozen) {
                let error = Error::Changed { field, before, after };
                self.refuse(out, reply, RefusalKind::Invalid, error.to_string());
                return Ok(());
            }
            let record = Record::Settings {
                number: asked.number,
                // A fence is never lifted.
                fence_attempts_up_to: asked.fence_attempts_up_to.max(run.settings.fence_attempts_up_to),
                cordoned_nodes: asked.cordoned_nodes,
                paused: asked.paused,
                attempt: Box::new(config.attempt),
                live: config.live,
            };
            self.emit(out, record)?;
        }
        let number = self.state.run.as_ref().map_or(0, |run| run.settings.number);
        out.commands
            .push(Command::Reply(reply, Reply::Settings(SettingsReply { conductor_epoch: self.epoch, number })));
        Ok(())
    }

    pub(crate) fn on_checkpoint(
        &mut self,
        reply: ReplyId,
        request: CheckpointRequest,
        out: &mut Step,
    ) -> Result<(), Error> {
        let known = self.state.checkpoints.iter().any(|asked| asked.id == request.id);
        // What is asked of an attempt that is gone cannot be had; it is not held against the caller.
        if !known && request.attempt >= self.state.attempt {
            let CheckpointRequest { id, attempt, then_stop } = request;
            self.emit(out, Record::CheckpointAsked { id, attempt, then_stop })?;
        }
        out.commands.push(Command::Reply(reply, Reply::Checkpoint(CheckpointReply { conductor_epoch: self.epoch })));
        Ok(())
    }

    /// A checkpoint that was asked for is about to be there: its trainer waits to be ended.
    fn hold_trainer(&mut self, now: u64) {
        let attempt = self.state.attempt;
        if self.state.checkpoints.iter().any(|asked| asked.attempt == attempt && !asked.done && !asked.then_stop) {
            self.memory.held = Some((attempt, now + SAVED_HOLD_MS));
        }
    }

    /// Gives the trainer its next order, when it has none.
    pub(crate) fn drive_trainer(&mut self, now: u64, out: &mut Step) -> Result<(), Error> {
        if let Some(id) = self.state.checkpoint_reached() {
            self.hold_trainer(now);
            self.emit(out, Record::CheckpointReached { id })?;
        }
        self.memory.held.take_if(|(_, until)| *until <= now);
        if self.state.failure.is_none()
            && let Some(reason) = self.state.hopeless()
        {
            self.emit(out, Record::Failed { reason, time_ms: now })?;
        }
        let Some(trainer) = &self.state.trainer else { return Ok(()) };
        let (trainer_epoch, seq) = (trainer.epoch, trainer.done + 1);
        if self.fenced(trainer_epoch).is_some() {
            return Ok(());
        }
        let stops = self.state.checkpoints.iter().any(|asked| asked.attempt == trainer.attempt && asked.then_stop);
        if !stops && self.memory.held.is_some_and(|(attempt, _)| attempt == trainer.attempt) {
            return Ok(());
        }
        let Some(order) = self.state.next_order() else { return Ok(()) };
        self.emit(out, Record::Ordered { trainer_epoch, seq, order, conductor_epoch: self.epoch })
    }
}

impl State {
    /// The order that follows from the state, if the trainer has none and something is to be done.
    #[must_use]
    pub fn next_order(&self) -> Option<OrderKind> {
        let trainer = self
            .trainer
            .as_ref()
            .filter(|trainer| trainer.order.is_none() && !trainer.stopped && trainer.refused.is_none())?;
        let position = trainer.position;
        if let Some(reason) = &self.failure {
            return Some(OrderKind::Stop { reason: reason.clone() });
        }
        if self.finished {
            return Some(OrderKind::Finish);
        }
        let committed = self.committed_position() == Some(position);
        let asked = || self.checkpoints.iter().filter(|asked| asked.attempt == trainer.attempt);
        if asked().any(|asked| !asked.done) {
            return (!committed).then(|| save(trainer));
        }
        if asked().any(|asked| asked.then_stop) {
            return Some(OrderKind::Stop { reason: "asked to stop after a checkpoint".to_owned() });
        }
        if position.rl { self.next_rl_order(trainer, committed) } else { self.next_warm_order(trainer) }
    }

    fn next_warm_order(&self, trainer: &Trainer) -> Option<OrderKind> {
        let run = self.run.as_ref()?;
        let warm = run.config.frozen.warm.as_ref()?;
        let update = trainer.position.warm_step;
        if self.warm_check_due(warm, update) {
            if !self.warm_checked(update) {
                return self.publish(trainer);
            }
            let rate = self
                .warm_result
                .filter(|result| result.position.warm_step == update)
                .and_then(|result| result.pass_rate());
            if rate.zip(warm.stop_at_pass_rate).is_some_and(|(rate, enough)| rate >= enough) {
                return Some(OrderKind::BeginRl);
            }
            let since_commit = update - self.boundary().warm_step.min(update);
            if update < warm.max_steps && since_commit >= run.settings.live.checkpoint_every {
                return Some(save(trainer));
            }
        }
        if update >= warm.max_steps {
            return Some(OrderKind::BeginRl);
        }
        let batch = self.warm_batches.get(&update)?;
        Some(OrderKind::TrainWarm { update, replay: batch.given_to.is_some_and(|epoch| epoch < trainer.epoch) })
    }

    fn next_rl_order(&self, trainer: &Trainer, committed: bool) -> Option<OrderKind> {
        let live = &self.run.as_ref()?.settings.live;
        let position = trainer.position;
        let step = position.step;
        let regular = step > 0 && (step.is_multiple_of(live.checkpoint_every) || step >= live.total_steps);
        if !committed && (regular || !self.boundary().rl) {
            return Some(save(trainer));
        }
        let train = || {
            let batch = self.batches.get(&step).filter(|batch| batch.converted.is_some())?;
            Some(OrderKind::Train { step, replay: batch.given_to.is_some_and(|epoch| epoch < trainer.epoch) })
        };
        // What earlier attempts left comes first; engines wait with the weights they have.
        if !trainer.caught_up && step < self.accepted() && self.batches.contains_key(&step) {
            return train();
        }
        let served = self.versions.get(&self.version).is_some_and(|version| version.position == position);
        if step >= live.total_steps {
            return match () {
                () if !served => self.publish(trainer),
                () if self.eval.is_some() || self.eval_due(position).is_some() => None,
                () if self.exported != Some(position) => Some(OrderKind::Export { folder: EXPORT_FOLDER.to_owned() }),
                () => Some(OrderKind::Finish),
            };
        }
        if trainer.published.is_none() {
            return self.publish(trainer);
        }
        train()
    }

    /// Publishes what the trainer holds, unless that was done, another publication is under way, or an evaluation of the
    /// current version is.
    fn publish(&self, trainer: &Trainer) -> Option<OrderKind> {
        if trainer.published.is_some() || self.publishing.is_some() || self.eval.is_some() {
            return None;
        }
        let version = self.version_last + 1;
        Some(OrderKind::Publish {
            version,
            folder: weights_folder(version, trainer.epoch),
            score: self.score_set(trainer),
        })
    }

    /// A checkpoint that was asked for and is there already.
    pub(crate) fn checkpoint_reached(&self) -> Option<String> {
        let trainer = self
            .trainer
            .as_ref()
            .filter(|trainer| trainer.order.is_none() && self.committed_position() == Some(trainer.position))?;
        self.checkpoints
            .iter()
            .find(|asked| !asked.done && asked.attempt == trainer.attempt)
            .map(|asked| asked.id.clone())
    }

    /// Why the RL phase must not begin.
    pub(crate) fn hopeless(&self) -> Option<String> {
        let warm = self.run.as_ref()?.config.frozen.warm.as_ref()?;
        let result = self.warm_result.filter(|result| result.position.warm_step >= warm.max_steps)?;
        if self.boundary().rl || result.passed > 0 {
            return None;
        }
        if result.answered == 0 {
            let why = self.last_failure.as_deref().unwrap_or("no reason was told");
            return Some(format!(
                "the pass rate after all {} warm-start updates could not be measured, since no prompt was answered: {why}. \
                 Mend that, and start a new run",
                warm.max_steps
            ));
        }
        Some(format!(
            "the pass rate after all {} warm-start updates is 0 of {}; reinforcement cannot learn from answers that are all wrong. \
             Give warmStart more maxSteps, better data or another learning rate, and start a new run",
            warm.max_steps, result.answered
        ))
    }
}

fn save(trainer: &Trainer) -> OrderKind {
    OrderKind::Save { position: trainer.position, folder: tiles_folder(trainer.position, trainer.epoch) }
}

fn answers(order: &OrderKind, report: &Report) -> bool {
    matches!(
        (order, report),
        (OrderKind::Train { .. } | OrderKind::TrainWarm { .. }, Report::Trained(_))
            | (OrderKind::Save { .. }, Report::Tiles { .. })
            | (OrderKind::Publish { .. }, Report::Weights { .. })
            | (OrderKind::BeginRl, Report::RlBegun)
            | (OrderKind::Export { .. }, Report::Exported { .. })
            | (OrderKind::Stop { .. }, Report::Stopping)
            | (OrderKind::Finish, Report::Finished)
    )
}

fn kind_of(report: &Report) -> &'static str {
    match report {
        Report::Trained(_) => "trained",
        Report::Tiles { .. } => "tiles",
        Report::Weights { .. } => "weights",
        Report::RlBegun => "rlBegun",
        Report::Exported { .. } => "exported",
        Report::Stopping => "stopping",
        Report::Finished => "finished",
    }
}
