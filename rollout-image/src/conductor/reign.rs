//! One epoch of the journal, from its claim to its end: think, append, act.
//!
//! The brain thinks; the [`Scribe`](super::scribe) makes what it thought durable, and only then lets it out.

use std::{
    path::Path,
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, bail};
use conductor::{Command, Conductor, Event, GiveBack, Record, State, Step, check::Audit};
use control::{health::Health, wire::Progress};
use straw::{Journal, Recovered, Store};

use super::{
    Volume,
    faults::{Faults, Point},
    inbox::{Inbox, Input},
    perform::{Performer, list_folders},
    resume,
    scribe::{Over, Pen, Scribe, SharedFaults, Thought, is_of_memory, strike},
    setup::Setup,
    steps_file::StepsFile,
};

/// Events thought about together, at most: they share one append.
const EVENTS_MAX: usize = 512;
/// The brain looks up at least this often.
const TICK: Duration = Duration::from_millis(200);
/// Pause before a full or failing volume is tried again.
pub const STORAGE_PAUSE: Duration = Duration::from_millis(500);

/// An idle conductor looks this often whether it still reigns.
pub const CONFIRM_EVERY: Duration = Duration::from_secs(1);

/// What a conductor reigns with.
pub struct Throne {
    /// The run.
    pub setup: Arc<Setup>,
    /// The volume it is on.
    pub volume: Volume,
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
    /// When space is given back.
    pub give_back: GiveBack,
    /// This process has held the journal.
    pub reigned: bool,
    /// What is to be said of the volume's mount was said.
    pub mount_told: bool,
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
                Err(_) if self.inbox.is_stopping() => return Ok(()),
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

    /// Says that the volume is waited for to whoever asks, with how the run stood.
    fn show_waiting(&self, what: String) {
        if self.inbox.remembers_nothing()
            && let Some(stood) = self.how_it_stood()
        {
            self.inbox.remember(&stood);
        }
        // Without any word of how the run stood, nothing is shown: it would be taken for a run at its beginning.
        if !self.inbox.remembers_nothing() {
            self.inbox.show_waiting(what, now_ms());
        }
    }

    /// How the run stands as its journal says, for a conductor that cannot claim it yet.
    fn how_it_stood(&self) -> Option<Progress> {
        let journal = self.setup.run_dir.journal();
        match resume::read_state(&journal) {
            Ok(Ok(state)) if state.run.is_some() => Some(Conductor::standing(state, now_ms())),
            Ok(Err(_)) => None,
            // Nothing was written yet; but a volume that is away says so of any run.
            Ok(Ok(_)) | Err(_) => (self.setup.volume_is_there() && is_empty(&journal)).then(Progress::default),
        }
    }

    /// Refuses a mount that can lose what was acknowledged. A folder that cannot be looked at is met again by the claim.
    fn check_mount(&mut self) -> anyhow::Result<()> {
        let Ok(report) = (self.volume.probe)(self.setup.run_dir.path()) else { return Ok(()) };
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
            if self.inbox.is_stopping() {
                bail!("asked to stop, while the volume was waited for");
            }
            let fs = self.volume.fs.clone();
            if !self.setup.run_dir.path().is_dir() {
                let away = self.setup.run_dir.away();
                self.health.not_ready(format!("waiting for the volume: {away}"));
                self.show_waiting(away);
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
                    self.show_waiting(error.to_string());
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

/// No file lies in this folder, which may not be there.
fn is_empty(folder: &Path) -> bool {
    match std::fs::read_dir(folder) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}

/// Whether it may pass with time. A volume that became read-only may be mended under us, and whoever asks is told meanwhile. Who may
/// not write will not be let later either: that is an error, and ends the process.
pub fn is_of_the_volume(error: &anyhow::Error) -> bool {
    use std::io::ErrorKind::PermissionDenied;
    let passes = |error: &std::io::Error| error.kind() != PermissionDenied;
    let verdict = error.chain().find_map(|cause| match cause.downcast_ref::<straw::Error>() {
        Some(straw::Error::Io { source, .. }) => Some(passes(source)),
        Some(error) => Some(error.is_retryable()),
        None => cause.downcast_ref::<std::io::Error>().map(passes),
    });
    verdict.unwrap_or(false)
}

/// What a conductor says that has a successor.
pub fn superseded(error: &straw::Error) -> anyhow::Error {
    anyhow::anyhow!(
        "this conductor is superseded ({error}); its successor owns the run, and nothing done here counts any more"
    )
}

/// A conductor on its throne.
struct Reign<'a> {
    throne: &'a mut Throne,
    journal: Arc<Journal>,
    /// Its state is ahead of the journal by what the scribe has not written yet.
    conductor: Conductor,
    audit: Audit,
    scribe: Scribe,
    faults: SharedFaults,
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
        let store = Store::open(throne.volume.fs.clone(), throne.setup.run_dir.packs())?;
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
        let (mut conductor, first) = Conductor::open(state, epoch, &setup.pod_uid, config, resumed, now_ms())?;
        conductor.set_give_back(throne.give_back);
        tracing::info!(epoch, records, torn_bytes, "conductor reigns");
        let (journal, faults) = (Arc::new(journal), Arc::new(Mutex::new(faults)));
        let pen = Pen {
            journal: journal.clone(),
            performer,
            steps,
            faults: faults.clone(),
            inbox: throne.inbox.clone(),
            confirmed: Instant::now(),
            unsure: false,
        };
        let mut reign = Self {
            throne,
            journal,
            conductor,
            audit,
            scribe: Scribe::start(pen)?,
            faults,
            volume_seen: Instant::now(),
            stopping: false,
        };
        // Nobody may talk to us before our own first record is durable.
        reign.hand_in(first)?;
        if !reign.scribe.settle() {
            return Ok(reign);
        }
        reign.throne.inbox.set_epoch(epoch);
        reign.throne.inbox.show_nothing();
        reign.throne.health.ready();
        Ok(reign)
    }

    fn run(mut self) -> anyhow::Result<Ended> {
        while !self.stopping && !self.scribe.is_over() {
            let events = self.receive();
            if events.iter().any(|event| matches!(event, Event::EngineUpdated { result: Ok(()), .. })) {
                strike(&self.faults, Point::EngineUpdated, &[]);
            }
            let step = self.conductor.steps(events, now_ms())?;
            self.hand_in(step)?;
        }
        match self.scribe.finish() {
            Over::Written => Ok(Ended::Stopped),
            Over::JournalLost(error) => Ok(Ended::JournalLost(error)),
            Over::Failed(error) => Err(error),
        }
    }

    /// What happened since the last turn: at least one event, the passing of time if nothing else.
    fn receive(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
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
                Ok(Input::Wake) => {}
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

    /// Gives what was thought to the scribe, and lets out what need not be durable.
    fn hand_in(&mut self, mut step: Step) -> anyhow::Result<()> {
        for record in &step.records {
            tracing::debug!(record = record.name(), "journal");
            if let Record::Dropped { groups, reason } = record {
                tracing::info!(?groups, reason = reason.class(), "groups are dropped");
            }
            self.audit.observe(record);
        }
        if let Some(violation) = self.audit.first_violation() {
            bail!("refusing to journal a step that breaks a rule of the run: {violation}");
        }
        let (now, later) = std::mem::take(&mut step.commands).into_iter().partition(is_of_memory);
        step.commands = later;
        for command in now {
            if let Command::Reply(id, reply) = command {
                self.throne.inbox.answer(id, reply);
            }
        }
        let encoded = step.records.iter().map(Record::encode).collect::<Result<Vec<_>, _>>()?;
        let due =
            self.journal.bytes_since_snapshot() >= self.throne.snapshot_bytes && !self.scribe.snapshot_is_on_its_way();
        let snapshot = due.then(|| Box::new((self.conductor.state().clone(), self.audit.clone())));
        // One that takes nothing any more is seen by whoever looks next.
        self.scribe.hand_in(Thought { step, encoded, snapshot });
        Ok(())
    }
}

fn decode_snapshot(bytes: &[u8]) -> anyhow::Result<(State, Audit, u64)> {
    let conductor::Snapshot { state, audit, steps_bytes } = conductor::Snapshot::decode(bytes)?;
    Ok((state, audit, steps_bytes))
}

/// Unix milliseconds.
pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_that_is_full_or_read_only_is_waited_for_and_one_of_somebody_else_is_not() {
        let io = |kind: std::io::ErrorKind| std::io::Error::from(kind);
        let journal = |kind| straw::Error::Io { action: "create", path: "journal".to_owned(), source: io(kind) };
        for (kind, waits) in [
            (std::io::ErrorKind::StorageFull, true),
            (std::io::ErrorKind::NotConnected, true),
            (std::io::ErrorKind::PermissionDenied, false),
            (std::io::ErrorKind::ReadOnlyFilesystem, true),
        ] {
            assert_eq!(is_of_the_volume(&anyhow::Error::from(journal(kind)).context("claiming")), waits, "{kind}");
            assert_eq!(is_of_the_volume(&anyhow::Error::from(io(kind)).context("steps.jsonl")), waits, "{kind}");
        }
        assert!(!is_of_the_volume(&anyhow::anyhow!("superseded")));
    }
}
