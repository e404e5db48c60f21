//! The brain: state, memory, and what an event does to both.

use control::wire::{EngineAddress, Refusal, RefusalKind};

use crate::{
    Command, Error, Event, Record, Reply, ReplyId, Resumed, RunConfig, Source, State, Step, Unreached,
    config::first_difference, memory::Memory,
};

/// A lease lasts this long from its grant or its last renewal. Workers renew at a third of it.
pub const LEASE_MS: u64 = 15_000;
/// A trainer that was not heard of for this long is shown as lost.
pub const TRAINER_HEARTBEAT_MS: u64 = 15_000;
/// An engine that has not acknowledged a version after this long does not hold the others up any more.
pub const PUBLISH_PATIENCE_MS: u64 = 60_000;
/// A trainer that has saved as asked waits this long for whoever asked to end it: what it learnt meanwhile would be learnt
/// again by its successor. Longer than an operator takes to look again.
pub const SAVED_HOLD_MS: u64 = 5_000;
/// Longest time a request is held back, whatever it asks for.
const HOLD_MS_MAX: u64 = 30_000;
/// Told apart from the stream of the training data.
const WARM_STREAM: u64 = 0x7761_726d_0000_0000;

/// One conductor: the run's state and its own memory.
///
/// [`Conductor::step`] does no I/O and reads no clock. It changes the state at once; nothing of what it returns may leave
/// the process before its records are durable. If they cannot be made durable, this value is of no use any more: the next
/// conductor begins with what the journal holds.
#[derive(Clone, Debug)]
pub struct Conductor {
    pub(crate) state: State,
    pub(crate) memory: Memory,
    pub(crate) epoch: u64,
}

impl Conductor {
    /// Takes a run over: `state` is what the journal adds up to, `epoch` the journal's new epoch, `config` the run as its
    /// manifest says it is now. `resumed` is what became of its `resumeFrom`, and nothing once the run has begun.
    ///
    /// # Errors
    /// [`Error::Changed`] names a field that may not change in the life of a run.
    pub fn open(
        state: State,
        epoch: u64,
        pod: &str,
        config: RunConfig,
        resumed: Option<Result<Resumed, String>>,
        now_ms: u64,
    ) -> Result<(Self, Step), Error> {
        if let Some(run) = &state.run
            && let Some((field, before, after)) = first_difference(&run.config.frozen, &config.frozen)
        {
            return Err(Error::Changed { field, before, after });
        }
        let frozen = &config.frozen;
        let source = Source::new(frozen.shuffle_seed, frozen.data.rows);
        let warm_rows = frozen.warm.as_ref().map_or(0, |warm| warm.data.rows);
        let warm_source = Source::new(frozen.shuffle_seed ^ WARM_STREAM, warm_rows);
        let first = state.run.is_none();
        let (resumed, refused) = match resumed {
            Some(Ok(resumed)) => (Some(Box::new(resumed)), None),
            Some(Err(reason)) => (None, Some(reason)),
            None => (None, None),
        };
        let mut conductor = Self { state, memory: Memory::new(source, warm_source), epoch };
        let mut out = Step::default();
        let opened = Record::Opened {
            conductor_epoch: epoch,
            pod: pod.to_owned(),
            time_ms: now_ms,
            config: first.then(|| Box::new(config.clone())),
            resumed,
        };
        conductor.emit(&mut out, opened)?;
        conductor.state.queue.begin_epoch(epoch);
        if let Some(reason) = refused {
            conductor.emit(&mut out, Record::Failed { reason, time_ms: now_ms })?;
        }
        conductor.take_manifest(&mut out, config)?;
        // Whether records were moved since it was given, only the predecessor knew.
        conductor.note_given_orders();
        out.commands.push(Command::ListFolders);
        conductor.advance(now_ms, &mut out)?;
        Ok((conductor, out))
    }

    /// Settings of the operator win over the manifest the conductor was started with; without any, the manifest may have
    /// been edited between two conductors.
    fn take_manifest(&mut self, out: &mut Step, config: RunConfig) -> Result<(), Error> {
        let Some(held) = self.state.run.as_ref().map(|run| run.settings.clone()) else { return Ok(()) };
        if held.number > 0 || (held.attempt == config.attempt && held.live == config.live) {
            return Ok(());
        }
        let record = Record::Settings {
            number: 0,
            fence_attempts_up_to: held.fence_attempts_up_to,
            cordoned_nodes: held.cordoned_nodes,
            paused: held.paused,
            attempt: Box::new(config.attempt),
            live: config.live,
        };
        self.emit(out, record)
    }

    /// The durable state.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// This conductor's epoch.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// What an event does.
    ///
    /// # Errors
    /// [`Error::Inconsistent`]: a defect of this crate. The process must stop: what is in the journal is sound.
    pub fn step(&mut self, event: Event, now_ms: u64) -> Result<Step, Error> {
        self.steps([event], now_ms)
    }

    /// What several events do that came at about the same time.
    ///
    /// # Errors
    /// As [`Conductor::step`].
    pub fn steps(&mut self, events: impl IntoIterator<Item = Event>, now_ms: u64) -> Result<Step, Error> {
        let mut out = Step::default();
        for event in events {
            self.take(event, now_ms, &mut out)?;
        }
        self.advance(now_ms, &mut out)?;
        Ok(out)
    }

    fn take(&mut self, event: Event, now: u64, out: &mut Step) -> Result<(), Error> {
        match event {
            Event::Lease(reply, request) => self.on_lease(reply, request, now, out),
            Event::Renew(reply, request) => self.on_renew(reply, &request, now, out),
            Event::Complete(reply, request) => self.on_complete(reply, &request, now, out)?,
            Event::Fail(reply, request) => self.on_fail(reply, &request, now, out)?,
            Event::Unusable { lease, task, reason } => self.give_up(&lease, task, &reason, out)?,
            Event::Claim(reply, request) => self.on_claim(reply, request, now, out)?,
            Event::Next(reply, request) => self.on_next(reply, &request, now, out)?,
            Event::Report(reply, request) => self.on_report(reply, *request, now, out)?,
            Event::Settings(reply, asked) => self.on_settings(reply, *asked, out)?,
            Event::Checkpoint(reply, request) => self.on_checkpoint(reply, request, out)?,
            Event::Progress(reply) => {
                let progress = self.progress(now);
                out.commands.push(Command::Reply(reply, Reply::Progress(Box::new(progress))));
            }
            Event::Volume(away) => self.memory.volume_away = away,
            Event::Engines(engines) => self.on_engines(&engines),
            Event::EngineProbed { url, result } => self.on_probed(&url, result),
            Event::EngineUpdated { url, version, result } => self.on_updated(&url, version, result, now),
            Event::EngineResumed { url, result } => self.on_resumed(&url, result, now),
            Event::Converted { step, result } => self.on_converted(step, result, now, out)?,
            Event::WarmConverted { first, result } => self.on_warm_converted(first, result, now, out)?,
            Event::TilesVerified { trainer_epoch, seq, result } => {
                self.on_verified(trainer_epoch, seq, result, now, out)?
            }
            Event::Scored { version, result } => self.on_scored(version, result, now, out)?,
            Event::FoldersFound(folders) => self.on_folders(folders, out),
            Event::FolderDeleted { folder, result } => self.on_deleted(folder, result, now, out)?,
            Event::PacksFound(packs) => self.on_packs(&packs, now, out)?,
            Event::Compact(reply, request) => self.on_compact(reply, &request, out),
            Event::RecordsCopied(result) => self.on_copied(result, out)?,
            Event::Tick => self.on_tick(now, out)?,
        }
        Ok(())
    }

    /// Does whatever follows from the state and the memory as they are now, until nothing more does. Nothing here depends
    /// on which event came before, so a crash between two records loses nothing: the successor gets here too.
    fn advance(&mut self, now: u64, out: &mut Step) -> Result<(), Error> {
        if self.state.run.is_none() {
            return Ok(());
        }
        for _ in 0..ROUNDS_MAX {
            let before = out.records.len();
            self.drive_engines(now, out)?;
            self.drive_evals(now, out)?;
            self.drive_groups(now, out)?;
            self.drive_conversions(now, out);
            self.drive_trainer(now, out)?;
            if out.records.len() == before {
                self.drive_folders(now, out);
                self.drive_scoring(now, out);
                self.serve_next(now, out)?;
                self.serve_leases(now, out);
                self.note_waits(now);
                return Ok(());
            }
        }
        Err(Error::Inconsistent { record: "advance", what: format!("still changing after {ROUNDS_MAX} rounds") })
    }

    /// When to call [`Conductor::step`] with [`Event::Tick`] at the latest.
    #[must_use]
    pub fn next_deadline_ms(&self) -> Option<u64> {
        let memory = &self.memory;
        let leases = memory.workers.values().filter_map(|worker| worker.parked.as_ref()).map(|parked| parked.until_ms);
        let next = memory.parked_next.as_ref().map(|parked| parked.until_ms);
        let efforts = [&memory.converting, &memory.warm_converting, &memory.scoring]
            .into_iter()
            .filter(|effort| effort.failures > 0 && effort.busy.is_none());
        let efforts = efforts.map(|effort| effort.retry_ms);
        let verifying = memory.verifying.as_ref().and_then(|verifying| verifying.again_ms);
        let held = memory.held.map(|(_, until)| until);
        let engines = memory
            .engines
            .values()
            .filter(|engine| engine.live && engine.updating.is_none() && engine.failed_updates > 0);
        let engines = engines.map(|engine| engine.retry_ms);
        let publication = memory.publication.map(|(_, since)| since + PUBLISH_PATIENCE_MS);
        let deleting = memory.deleting.values().filter_map(|again| *again);
        let expiry = self.state.queue.next_expiry_ms();
        leases
            .chain(next)
            .chain(efforts)
            .chain(verifying)
            .chain(held)
            .chain(engines)
            .chain(publication)
            .chain(deleting)
            .chain(expiry)
            .min()
    }

    /// Applies a record and hands it out.
    pub(crate) fn emit(&mut self, out: &mut Step, record: Record) -> Result<(), Error> {
        let applied = self.state.apply(&record)?;
        out.records.push(record);
        out.step_records.extend(applied.step_record);
        Ok(())
    }

    pub(crate) fn refuse(&self, out: &mut Step, reply: ReplyId, kind: RefusalKind, message: impl Into<String>) {
        let refusal = Refusal { kind, message: message.into(), conductor_epoch: self.epoch };
        out.commands.push(Command::Reply(reply, Reply::Refused(refusal)));
    }

    /// True when the request names another run, which is then refused.
    pub(crate) fn refuse_other_run(&self, out: &mut Step, reply: ReplyId, run: &str) -> bool {
        let own = self.state.run.as_ref().map_or("", |run| run.config.frozen.run.as_str());
        if own == run {
            return false;
        }
        self.refuse(out, reply, RefusalKind::Invalid, format!("this is run {own}, not {run}"));
        true
    }

    pub(crate) fn hold_until(now: u64, wait_ms: u64) -> u64 {
        now.saturating_add(wait_ms.min(HOLD_MS_MAX))
    }

    pub(crate) fn engines_for_workers(&self) -> Vec<EngineAddress> {
        self.memory.admitted(self.state.version)
    }

    fn on_tick(&mut self, now: u64, out: &mut Step) -> Result<(), Error> {
        // Who is not heard of waits for nothing any more: the next attempt would wait for it for ever.
        if self.memory.trainer_heard_ms.is_none_or(|heard| now.saturating_sub(heard) >= TRAINER_HEARTBEAT_MS) {
            self.memory.trainer_waits = None;
        }
        self.look_at_packs(now, out);
        for op in self.state.queue.lapsed(now) {
            if let straw::queue::Op::Fail { task, reason, attempt, .. } = op {
                self.emit(out, Record::TaskFailed { task: task.0, lapsed: true, reason, attempt })?;
            }
        }
        if let Some(verifying) = &mut self.memory.verifying
            && verifying.again_ms.is_some_and(|at| at <= now)
        {
            verifying.again_ms = None;
            let (trainer_epoch, seq) = (verifying.trainer_epoch, verifying.seq);
            self.verify(trainer_epoch, seq, out);
        }
        Ok(())
    }
}

/// More rounds than any real chain of consequences has.
const ROUNDS_MAX: usize = 10_000;

impl Unreached {
    /// Nobody listens there.
    #[must_use]
    pub fn gone(message: impl Into<String>) -> Self {
        Self { gone: true, message: message.into() }
    }

    /// No answer in time.
    #[must_use]
    pub fn slow(message: impl Into<String>) -> Self {
        Self { gone: false, message: message.into() }
    }
}
