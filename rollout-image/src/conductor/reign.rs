//! One epoch of the journal, from its claim to its end: think, append, act.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, bail};
use conductor::{Command, Conductor, Event, Record, Reply, State, Step, check::Audit};
use control::{
    health::Health,
    wire::{Progress, Refusal, RefusalKind, Wait},
};
use straw::{Journal, RealFs, Recovered, Store};

use super::{
    faults::{Faults, Point},
    inbox::{Inbox, Input},
    perform::{Performer, list_folders},
    resume,
    setup::Setup,
    steps_file::StepsFile,
};

/// Events thought about together, at most: they share one append.
const EVENTS_MAX: usize = 512;
/// The brain looks up at least this often.
const TICK: Duration = Duration::from_millis(200);
/// Pause before a full or failing volume is tried again.
const STORAGE_PAUSE: Duration = Duration::from_millis(500);

/// An idle conductor looks this often whether it still reigns.
const CONFIRM_EVERY: Duration = Duration::from_secs(1);

/// What a conductor reigns with.
pub struct Throne {
    /// The run.
    pub setup: Arc<Setup>,
    /// Where events are handed in.
    pub inbox: Inbox,
    /// Its other end.
    pub events: Receiver<Input>,
    /// For engines.
    pub http: reqwest::Client,
    /// For the operator's probes.
    pub health: Health,
    /// For commands.
    pub runtime: tokio::runtime::Handle,
    /// See [`super::Options`].
    pub snapshot_bytes: u64,
    /// This process has held the journal.
    pub reigned: bool,
    /// What is to be said of the volume's mount was said.
    pub mount_told: bool,
    /// The last progress that was given out: shown while the volume is full or away, since what is newer is not durable.
    pub shown: Option<Progress>,
}

/// How a reign ended.
enum Ended {
    /// Asked to.
    Stopped,
    /// The journal's file is in an unknown state: only a new claim tells what is in it.
    JournalLost(straw::Error),
}

impl Throne {
    /// Reigns until stopped or superseded. A journal that failed is claimed anew.
    pub fn hold(&mut self) -> anyhow::Result<()> {
        loop {
            let claimed = self.claim();
            let ended = claimed.and_then(|(journal, recovered)| Reign::begin(self, journal, recovered)?.run());
            self.inbox.set_epoch(0);
            self.inbox.forget_all();
            let ended = match ended {
                // A volume that is full or away while a reign begins is waited for like any other.
                Err(error) if is_of_the_volume(&error) => {
                    tracing::warn!("waiting for the volume: {error:#}");
                    self.health.not_ready(format!("waiting for the volume: {error:#}"));
                    self.show_waiting(format!("{error:#}"));
                    std::thread::sleep(STORAGE_PAUSE);
                    continue;
                }
                ended => ended?,
            };
            match ended {
                Ended::Stopped => return Ok(()),
                Ended::JournalLost(error) => {
                    tracing::error!(%error, "the journal failed; claiming it anew");
                    self.health.not_ready(format!("the journal failed: {error}"));
                    self.show_waiting(error.to_string());
                    std::thread::sleep(STORAGE_PAUSE);
                }
            }
        }
    }

    /// Between two reigns whoever asks is told how the run stood, and what it waits for: a conductor that says nothing is taken for
    /// one that is gone.
    fn show_waiting(&self, what: String) {
        let waiting = self.shown.clone().map(|mut progress| {
            let wait = Wait { what, owner: "storage".to_owned(), since_ms: now_ms(), until_ms: None };
            progress.waits.insert(0, wait);
            progress
        });
        self.inbox.show(waiting);
    }

    /// Refuses a mount that can lose what was acknowledged. A folder that cannot be looked at is met again by the claim.
    fn check_mount(&mut self) -> anyhow::Result<()> {
        let Ok(report) = straw::mount_probe::probe(self.setup.run_dir.path()) else { return Ok(()) };
        if let Some(refusal) = report.refusal() {
            bail!("the run's volume is not safe: {refusal}");
        }
        if !self.mount_told {
            self.mount_told = true;
            for warning in report.warnings {
                tracing::warn!(fix = warning.fix, "{}", warning.what);
            }
        }
        Ok(())
    }

    /// Claims the journal, waiting for a volume that is full or away.
    fn claim(&mut self) -> anyhow::Result<(Journal, Recovered)> {
        let folder = self.setup.run_dir.journal();
        if !self.reigned {
            // Only now: later, a folder that is missing is a volume that is away, and a journal begun in its place would be
            // another run.
            straw::create_dirs_durably(self.setup.run_dir.path())
                .with_context(|| format!("creating {}", self.setup.run_dir.path().display()))?;
        }
        let mut said = None;
        loop {
            let fs = RealFs::new();
            if !self.setup.run_dir.path().is_dir() {
                self.health.not_ready(format!("waiting for the volume: {}", self.setup.run_dir.away()));
                std::thread::sleep(STORAGE_PAUSE);
                continue;
            }
            self.check_mount()?;
            let claimed = straw::journal::owner(&*fs, &folder).and_then(|owner| match owner {
                Some((epoch, other)) if other != self.setup.pod_uid && self.was_replaced()? => Ok(Err((epoch, other))),
                _ => Journal::claim(fs, &folder, &self.setup.pod_uid).map(Ok),
            });
            match claimed {
                Ok(Ok(claimed)) => {
                    self.reigned = true;
                    return Ok(claimed);
                }
                Ok(Err((epoch, other))) => bail!(
                    "this pod ({}) was replaced as conductor by pod {other} (epoch {epoch}) and must not take over again; \
                     it is to be deleted, and its node looked at",
                    self.setup.pod_uid
                ),
                Err(error) if error.is_retryable() => {
                    if said.is_none_or(|at: Instant| at.elapsed() > Duration::from_secs(10)) {
                        tracing::warn!(%error, "the journal cannot be claimed yet");
                        said = Some(Instant::now());
                    }
                    self.health.not_ready(format!("waiting for the volume: {error}"));
                    std::thread::sleep(STORAGE_PAUSE);
                }
                Err(error @ straw::Error::Fenced { .. }) => return Err(superseded(&error)),
                Err(error) => {
                    return Err(error).with_context(|| format!("claiming the journal in {}", folder.display()));
                }
            }
        }
    }

    /// Whether another pod took over from this one. A container that is started again on a node that is lost would otherwise
    /// take the run from its successor, and they would go on taking it from each other.
    fn was_replaced(&self) -> straw::Result<bool> {
        let state = resume::read_state(&self.setup.run_dir.journal())?;
        // Whoever claims says what is wrong with one that cannot be read.
        Ok(state.is_ok_and(|state| state.replaced_pods.contains(&self.setup.pod_uid)))
    }
}

/// Commands that change something outside this process that a successor would have to mend.
fn reaches_out(command: &Command) -> bool {
    matches!(
        command,
        Command::UpdateEngine { .. }
            | Command::ResumeEngine { .. }
            | Command::DeleteFolder { .. }
            | Command::RemovePacks { .. }
    )
}

/// Whether it may pass with time. Who may not write will not be let later either: that is an error, and must be seen.
pub fn is_of_the_volume(error: &anyhow::Error) -> bool {
    use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    let verdict = error.chain().find_map(|cause| match cause.downcast_ref::<straw::Error>() {
        Some(error) => Some(error.is_retryable()),
        None => {
            let error = cause.downcast_ref::<std::io::Error>()?;
            Some(!matches!(error.kind(), PermissionDenied | ReadOnlyFilesystem))
        }
    });
    verdict.unwrap_or(false)
}

fn superseded(error: &straw::Error) -> anyhow::Error {
    anyhow::anyhow!(
        "this conductor is superseded ({error}); its successor owns the run, and nothing done here counts any more"
    )
}

/// A conductor on its throne.
struct Reign<'a> {
    throne: &'a mut Throne,
    journal: Journal,
    conductor: Conductor,
    audit: Audit,
    performer: Performer,
    steps: StepsFile,
    faults: Faults,
    /// Received while the volume was full.
    backlog: VecDeque<Event>,
    /// When this epoch was last seen to be the highest.
    confirmed: Instant,
    /// The last question could not be asked.
    unsure: bool,
    /// When the run's folder was last looked for.
    volume_seen: Instant,
    stopping: bool,
}

impl<'a> Reign<'a> {
    fn begin(throne: &'a mut Throne, journal: Journal, recovered: Recovered) -> anyhow::Result<Self> {
        let Recovered { epoch, snapshot, txns, torn_bytes, .. } = recovered;
        let (mut state, mut audit, steps_bytes) = match snapshot {
            Some(bytes) => decode_snapshot(&bytes)?,
            None => (State::default(), Audit::default(), 0),
        };
        let mut lines = Vec::new();
        let mut records = 0u64;
        for bytes in txns.iter().flatten() {
            let record = Record::decode(bytes)?;
            audit.observe(&record);
            lines.extend(state.apply(&record)?.step_record);
            records += 1;
        }
        state.check_volume(&list_folders(throne.setup.run_dir.path()))?;
        let steps = StepsFile::open(&throne.setup.run_dir.steps(), steps_bytes, &lines)?;
        let store = Store::open(RealFs::new(), throne.setup.run_dir.packs())?;
        let performer = Performer::new(
            throne.setup.clone(),
            throne.inbox.clone(),
            throne.http.clone(),
            throne.runtime.clone(),
            store,
            epoch,
        )?;
        let mut faults = Faults::from_env(epoch)?;
        let resumed = match &state.run {
            Some(_) => None,
            None => resume::fetch(&throne.setup, epoch, &throne.health, &mut faults)?,
        };
        let (setup, config) = (&throne.setup, throne.setup.config.clone());
        let (conductor, first) = Conductor::open(state, epoch, &setup.pod_uid, config, resumed, now_ms())?;
        tracing::info!(epoch, records, torn_bytes, "conductor reigns");
        let mut reign = Self {
            throne,
            journal,
            conductor,
            audit,
            performer,
            steps,
            faults,
            backlog: VecDeque::new(),
            confirmed: Instant::now(),
            unsure: false,
            volume_seen: Instant::now(),
            stopping: false,
        };
        // Nobody may talk to us before our own first record is durable.
        match reign.commit(first)? {
            None => {}
            Some(Ended::Stopped) => reign.stopping = true,
            Some(Ended::JournalLost(error)) => bail!("the journal failed at its first record: {error}"),
        }
        reign.throne.inbox.set_epoch(epoch);
        reign.throne.inbox.show(None);
        reign.throne.health.ready();
        Ok(reign)
    }

    fn run(mut self) -> anyhow::Result<Ended> {
        while !self.stopping {
            let events = self.receive();
            if events.iter().any(|event| matches!(event, Event::EngineUpdated { result: Ok(()), .. })) {
                self.faults.at(Point::EngineUpdated, &[]);
            }
            let step = self.conductor.steps(events, now_ms())?;
            if let Some(ended) = self.commit(step)? {
                return Ok(ended);
            }
            self.snapshot_if_due()?;
        }
        Ok(Ended::Stopped)
    }

    /// What happened since the last turn: at least one event, the passing of time if nothing else.
    fn receive(&mut self) -> Vec<Event> {
        let mut events: Vec<Event> = self.backlog.drain(..).collect();
        if self.volume_seen.elapsed() > CONFIRM_EVERY {
            self.volume_seen = Instant::now();
            let run_dir = &self.throne.setup.run_dir;
            events.push(Event::Volume((!run_dir.path().is_dir()).then(|| run_dir.away())));
        }
        let deadline = self.conductor.next_deadline_ms().map(|at| Duration::from_millis(at.saturating_sub(now_ms())));
        let mut patience = if events.is_empty() { deadline.unwrap_or(TICK).min(TICK) } else { Duration::ZERO };
        while events.len() < EVENTS_MAX {
            match self.throne.events.recv_timeout(patience) {
                Ok(Input::Event(event)) => events.push(event),
                Ok(Input::Stop) | Err(RecvTimeoutError::Disconnected) => {
                    self.stopping = true;
                    break;
                }
                Err(RecvTimeoutError::Timeout) => break,
            }
            patience = Duration::ZERO;
        }
        events.push(Event::Tick);
        events
    }

    /// Makes the records durable, then acts.
    fn commit(&mut self, step: Step) -> anyhow::Result<Option<Ended>> {
        let Step { records, commands, step_records } = step;
        if !records.is_empty() {
            for record in &records {
                tracing::debug!(record = record.name(), "journal");
                if let Record::Dropped { groups, reason } = record {
                    tracing::info!(?groups, reason = reason.class(), "groups are dropped");
                }
                self.audit.observe(record);
            }
            if let Some(violation) = self.audit.first_violation() {
                bail!("refusing to journal a step that breaks a rule of the run: {violation}");
            }
            self.faults.at(Point::BeforeJournal, &records);
            let encoded = records.iter().map(Record::encode).collect::<Result<Vec<_>, _>>()?;
            if let Some(ended) = self.append(&encoded)? {
                return Ok(Some(ended));
            }
            self.faults.at(Point::AfterJournal, &records);
            self.confirmed = Instant::now();
        } else if commands.iter().any(reaches_out) || self.confirmed.elapsed() > CONFIRM_EVERY {
            // A superseded conductor that has nothing to write would never learn so, and would go on commanding engines.
            match self.journal.confirm() {
                Err(error @ straw::Error::Fenced { .. }) => return Err(superseded(&error)),
                // What cannot be asked now is asked again; acting is no worse than it was a moment ago.
                Err(error) => {
                    // Told once, however often it is asked meanwhile.
                    if !std::mem::replace(&mut self.unsure, true) {
                        tracing::warn!(%error, "the journal's owner cannot be confirmed");
                    }
                }
                Ok(()) => {
                    self.confirmed = Instant::now();
                    if std::mem::take(&mut self.unsure) {
                        tracing::info!("the journal's owner is confirmed again");
                    }
                }
            }
        }
        if let Err(error) = self.steps.append(&step_records) {
            // The journal has them; they are written when the volume takes them again, or by the next conductor.
            tracing::debug!("steps.jsonl: {error:#}");
        }
        for command in commands {
            if let Command::Reply(_, Reply::Progress(progress)) = &command {
                self.throne.shown = Some((**progress).clone());
            }
            self.performer.perform(command);
        }
        if !records.is_empty() {
            self.faults.at(Point::AfterCommands, &records);
        }
        Ok(None)
    }

    /// Appends; while the volume is full, waits, and says so to whoever asks how things are.
    fn append(&mut self, records: &[Vec<u8>]) -> anyhow::Result<Option<Ended>> {
        let mut since = None;
        loop {
            let error = match self.journal.append(records) {
                Ok(_) => {
                    if since.is_some() {
                        tracing::info!("the journal can be written again");
                    }
                    return Ok(None);
                }
                Err(error @ straw::Error::Fenced { .. }) => return Err(superseded(&error)),
                Err(error @ straw::Error::OutOfSpace { .. }) => error,
                Err(error) => return Ok(Some(Ended::JournalLost(error))),
            };
            let since = *since.get_or_insert_with(|| {
                tracing::warn!(%error, "the journal cannot be written; waiting");
                now_ms()
            });
            if self.wait_for_space(&error, since) {
                return Ok(Some(Ended::Stopped));
            }
        }
    }

    /// One pause. True when asked to stop meanwhile.
    fn wait_for_space(&mut self, error: &straw::Error, since_ms: u64) -> bool {
        let until = Instant::now() + STORAGE_PAUSE;
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            match self.throne.events.recv_timeout(left) {
                Ok(Input::Event(Event::Progress(reply))) => {
                    let answer = match &self.throne.shown {
                        Some(progress) => {
                            let mut progress = progress.clone();
                            let wait =
                                Wait { what: error.to_string(), owner: "storage".to_owned(), since_ms, until_ms: None };
                            progress.waits.insert(0, wait);
                            Reply::Progress(Box::new(progress))
                        }
                        None => Reply::Refused(Refusal {
                            kind: RefusalKind::Unavailable,
                            message: error.to_string(),
                            conductor_epoch: self.conductor.epoch(),
                        }),
                    };
                    self.throne.inbox.answer(reply, answer);
                }
                Ok(Input::Event(event)) => self.backlog.push_back(event),
                Ok(Input::Stop) | Err(RecvTimeoutError::Disconnected) => return true,
                Err(RecvTimeoutError::Timeout) => break,
            }
        }
        false
    }

    fn snapshot_if_due(&mut self) -> anyhow::Result<()> {
        if self.journal.bytes_since_snapshot() < self.throne.snapshot_bytes {
            return Ok(());
        }
        let began = Instant::now();
        let steps_bytes = match self.steps.sync() {
            Ok(bytes) => bytes,
            Err(error) => {
                tracing::warn!("no snapshot: steps.jsonl: {error:#}");
                return Ok(());
            }
        };
        let bytes = encode_snapshot(self.conductor.state(), &self.audit, steps_bytes)?;
        match self.journal.snapshot(self.journal.last(), &bytes) {
            Ok(()) => tracing::info!(bytes = bytes.len(), ms = began.elapsed().as_millis() as u64, "snapshot"),
            Err(error @ straw::Error::Fenced { .. }) => return Err(superseded(&error)),
            // The journal is as good without; the next append tells whether it can go on.
            Err(error) => tracing::warn!(%error, "no snapshot"),
        }
        Ok(())
    }
}

/// A snapshot is the state, what the audit remembers, and the length of `steps.jsonl`.
fn encode_snapshot(state: &State, audit: &Audit, steps_bytes: u64) -> anyhow::Result<Vec<u8>> {
    Ok(conductor::Snapshot { state: state.clone(), audit: audit.clone(), steps_bytes }.encode()?)
}

fn decode_snapshot(bytes: &[u8]) -> anyhow::Result<(State, Audit, u64)> {
    let conductor::Snapshot { state, audit, steps_bytes } = conductor::Snapshot::decode(bytes)?;
    Ok((state, audit, steps_bytes))
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_that_is_full_is_waited_for_and_one_that_may_not_be_written_is_not() {
        let io = |kind: std::io::ErrorKind| std::io::Error::from(kind);
        let journal = |kind| straw::Error::Io { action: "create", path: "journal".to_owned(), source: io(kind) };
        for (kind, waits) in [
            (std::io::ErrorKind::StorageFull, true),
            (std::io::ErrorKind::NotConnected, true),
            (std::io::ErrorKind::PermissionDenied, false),
            (std::io::ErrorKind::ReadOnlyFilesystem, false),
        ] {
            assert_eq!(is_of_the_volume(&anyhow::Error::from(journal(kind)).context("claiming")), waits, "{kind}");
            assert_eq!(is_of_the_volume(&anyhow::Error::from(io(kind)).context("steps.jsonl")), waits, "{kind}");
        }
        assert!(!is_of_the_volume(&anyhow::anyhow!("superseded")));
    }
}
