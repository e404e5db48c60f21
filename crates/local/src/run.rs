//! A run: the node and the operator on it, a manifest that may be edited, and a person who may stop it.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    path::{Path, PathBuf},
    time::Duration,
};

use api::{RLJob, RLJobStatus, conditions as cond, manifest::Kind};
use control::wire::{Progress, StepRecord};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, MissedTickBehavior, interval, sleep_until},
};

use crate::{
    error::Result,
    event::{Event, end_in_words},
    fault::Fault,
    folder::Folder,
    full_disk,
    manifest_watch::ManifestWatch,
    mount::Claims,
    node::{Node, Notice, Options},
    objects::name,
    operator::{End, Operator, end_of},
    pod,
    preflight::{self, Checked, Volumes},
    status_file::{EventLine, PodLine, StatusFile, position},
    steps::StepTail,
    template::Binaries,
};

/// How often the manifest and the step file are looked at.
const LOOK: Duration = Duration::from_millis(200);
/// How often the status file is written at most.
const STATUS: Duration = Duration::from_secs(1);
/// After a run has ended its engines have nothing left to drain.
const GRACE_AFTER_END: Duration = Duration::from_secs(5);
const EVENTS_KEPT: usize = 50;
/// A pause before a restart that is told.
const LONG_PAUSE: Duration = Duration::from_secs(1);
const TRAINER: &str = "trainer";
/// Lines of a failed trainer's log that are shown.
const LAST_WORDS: usize = 10;

/// What to run, and how.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The manifest, found good.
    pub checked: Checked,
    /// State folder and volumes.
    pub volumes: Volumes,
    /// Where our binaries are.
    pub binaries: Binaries,
    /// Nodes to play.
    pub nodes: usize,
    /// Timings of the operator.
    pub settings: plan::Settings,
    /// Environment of every process that wins against its template's.
    pub env: BTreeMap<String, String>,
}

/// Orders to a running run.
#[derive(Debug)]
pub enum Command {
    /// Checkpoint, stop the trainer, stop everything.
    Suspend,
    /// Stop everything at once.
    Kill,
    /// Play a fault; answered with whether what it names exists.
    Fault(Fault, oneshot::Sender<bool>),
    /// The pods as they are.
    Pods(oneshot::Sender<Vec<Pod>>),
    /// Pids of a pod's process group, the first process first.
    Processes(String, oneshot::Sender<Vec<i32>>),
}

/// What a run tells.
#[derive(Clone, Debug)]
pub enum Update {
    /// Something happened.
    Event(Event),
    /// A step is finished (again, when it was replayed).
    Step(Box<StepRecord>),
    /// The conductor has news.
    Progress(Box<Progress>),
    /// The RLJob's status has changed.
    Status(Box<RLJobStatus>),
}

/// How `thresh run` ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finish {
    /// Everything is done.
    Complete,
    /// It cannot go on: reason and message.
    Failed(String, String),
    /// By hand, after a checkpoint (or none, when there was nothing to save).
    Suspended,
    /// By hand, at once: what was learnt since the last commit is replayed by the next run.
    Killed,
}

/// See the module.
#[derive(Debug)]
pub struct Run {
    node: Node,
    operator: Operator,
    watch: ManifestWatch,
    manifest: PathBuf,
    volumes: Volumes,
    nodes: usize,
    refused_edit: Option<String>,
    /// Pods that were stopped so that another of their name takes their place.
    replaced: BTreeSet<String>,
    steps: StepTail,
    past: Vec<StepRecord>,
    past_attempts: u64,
    commands: mpsc::Receiver<Command>,
    updates: mpsc::UnboundedSender<Update>,
    stopping: bool,
    over: bool,
    since: Timestamp,
    told_status: Option<RLJobStatus>,
    told_progress: Option<Progress>,
    events: VecDeque<EventLine>,
    status_due: Option<Instant>,
    before: Option<StatusFile>,
}

impl Run {
    /// Opens the state folder, starts the node and applies the manifest. Nothing runs before [`Run::drive`].
    ///
    /// # Errors
    /// As of its parts: see [`crate::Error`].
    pub fn start(
        setup: Setup,
        commands: mpsc::Receiver<Command>,
        updates: mpsc::UnboundedSender<Update>,
    ) -> Result<Self> {
        let Setup { checked, volumes, binaries, nodes, settings, env } = setup;
        full_disk::tell(&updates);
        let claims = Claims::new(volumes.given.clone(), volumes.seeds.clone())?;
        let folder = Folder::open(&volumes.state)?;
        let before = StatusFile::read(folder.root()).ok().flatten();
        let node = Node::start(folder, Options { claims, binaries, nodes, env })?;
        let mut operator = Operator::open(&node, settings)?;
        let resumed = operator.job().is_some();
        let past_attempts = operator.job().and_then(|job| job.status.as_ref()).map_or(0, |status| status.attempts);
        for object in &checked.objects {
            operator.apply(object)?;
        }
        let mut steps = StepTail::new(&run_dir(&operator, &node)?);
        let past = steps.poll();
        let mut run = Self {
            watch: ManifestWatch::new(&checked.path, &checked.text),
            manifest: checked.path.canonicalize().unwrap_or(checked.path),
            steps,
            past,
            past_attempts,
            node,
            operator,
            volumes,
            nodes,
            refused_edit: None,
            replaced: BTreeSet::new(),
            commands,
            updates,
            stopping: false,
            over: false,
            since: Timestamp::now(),
            told_status: None,
            told_progress: None,
            events: before.iter().flat_map(|before| before.events.iter().cloned()).collect(),
            status_due: None,
            before,
        };
        let leftovers = run.node.killed_leftovers();
        if leftovers > 0 {
            run.tell(true, "LeftoversKilled", format!("{leftovers} processes of an earlier `thresh run` were killed"));
        }
        if resumed {
            let was = run.before.as_ref().and_then(|before| before.progress.as_ref()).map(position);
            let was = was.map_or_else(String::new, |was| format!(" (it was at {was})"));
            run.tell(false, "Resumed", format!("the run goes on from its journal{was}"));
            let at = run.before.as_ref().and_then(|before| before.progress.as_ref()).map(|progress| progress.step);
            if let Some(late) = at.zip(run.job()).and_then(|(step, job)| too_late(job, step)) {
                run.tell(true, "EditWithoutEffect", late);
            }
        }
        Ok(run)
    }

    /// The run's RLJob.
    #[must_use]
    pub fn job(&self) -> Option<&RLJob> {
        self.operator.job()
    }

    /// Steps that were finished before this process began; they are not told again.
    #[must_use]
    pub fn past_steps(&self) -> &[StepRecord] {
        &self.past
    }

    /// The node it runs on.
    #[must_use]
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// The run's folder on its volume.
    ///
    /// # Errors
    /// [`crate::Error::File`].
    pub fn run_dir(&self) -> Result<PathBuf> {
        run_dir(&self.operator, &self.node)
    }

    /// Runs until the run has ended or is stopped, and every process with it.
    ///
    /// # Errors
    /// When the state folder cannot be written any more. Processes die when this value is dropped.
    pub async fn drive(&mut self) -> Result<Finish> {
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let finish = loop {
            if let Some(finish) = self.finish() {
                break finish;
            }
            self.operator.reconcile(&mut self.node)?;
            self.publish()?;
            if let Some(finish) = self.finish() {
                break finish;
            }
            let deadline = self.deadline();
            tokio::select! {
                changed = self.node.changed() => changed?,
                () = self.operator.changed() => {}
                () = sleep_until(deadline) => {}
                _ = looks.tick() => {
                    if let Some(text) = self.watch.poll() {
                        self.edit(&text)?;
                    }
                    self.publish_steps();
                }
                command = self.commands.recv() => {
                    // Nobody can give orders any more: nobody watches, either.
                    if !self.command(command.unwrap_or(Command::Kill))? {
                        break Finish::Killed;
                    }
                }
            }
        };
        self.over = true;
        self.stop(&finish).await?;
        self.publish_steps();
        self.publish()?;
        self.write_status(Some(&finish))?;
        Ok(finish)
    }

    /// A terminal run stays terminal, whoever looks; one that failed goes on with a new restart token.
    fn finish(&self) -> Option<Finish> {
        let job = self.operator.job()?;
        match end_of(job)? {
            End::Complete => Some(Finish::Complete),
            End::Failed(reason, message) => {
                let token = job.spec.restart.as_ref().map(|restart| &restart.token);
                let known = job.status.as_ref().and_then(|status| status.restart_token.as_ref());
                (token == known).then_some(Finish::Failed(reason, message))
            }
            End::Suspended => self.stopping.then_some(Finish::Suspended),
        }
    }

    fn deadline(&self) -> Instant {
        let requeue = self.operator.requeue_at().map(|at| {
            let wait = Duration::try_from(at.duration_since(Timestamp::now())).unwrap_or(Duration::ZERO);
            Instant::now() + wait
        });
        let hour = Instant::now() + Duration::from_secs(3600);
        [self.node.next_deadline(), requeue, self.status_due].into_iter().flatten().min().unwrap_or(hour)
    }

    /// Takes an order; false when the run is to end at once.
    fn command(&mut self, command: Command) -> Result<bool> {
        match command {
            Command::Suspend if self.stopping => return Ok(false),
            Command::Suspend => {
                self.stopping = true;
                self.operator.suspend(true)?;
                self.tell(false, "Suspending", "checkpoint and stop; Ctrl-C again stops at once");
            }
            Command::Kill => return Ok(false),
            Command::Fault(fault, answer) => {
                let played = self.node.fault(&fault)?;
                let _ = answer.send(played);
            }
            Command::Pods(answer) => {
                let _ = answer.send(self.node.objects().pods.list());
            }
            Command::Processes(pod, answer) => {
                let _ = answer.send(self.node.processes(&pod));
            }
        }
        Ok(true)
    }

    /// The manifest was saved: `kubectl apply`.
    fn edit(&mut self, text: &str) -> Result<()> {
        let mut stored: Vec<Kind> = Vec::new();
        stored.extend(self.operator.job().cloned().map(Box::new).map(Kind::RLJob));
        stored.extend(self.operator.servings().list().into_iter().map(Box::new).map(Kind::ServingCluster));
        stored.extend(self.operator.pools().list().into_iter().map(Box::new).map(Kind::RolloutPool));
        let objects = match preflight::check(text, &self.manifest, &stored, &self.volumes) {
            Ok(objects) => objects,
            Err(problems) => {
                self.refused_edit = Some(api::render(&problems).trim_end().to_owned());
                self.send(Event::edit_refused(&problems));
                return Ok(());
            }
        };
        self.refused_edit = None;
        for object in &objects {
            if let (Kind::RLJob(new), Some(old)) = (object, self.operator.job()) {
                let edits = plan::validate::edits(old, new);
                self.send(Event::edit_accepted(&edits));
            }
            self.operator.apply(object)?;
        }
        if self.stopping {
            // The person at the keyboard asked for this; the file says nothing about it.
            self.operator.suspend(true)?;
        }
        Ok(())
    }

    /// Ends every process: gently, and at once when asked again.
    async fn stop(&mut self, finish: &Finish) -> Result<()> {
        let mut grace = match finish {
            Finish::Killed => Duration::ZERO,
            Finish::Complete | Finish::Failed(..) | Finish::Suspended => GRACE_AFTER_END,
        };
        loop {
            tokio::select! {
                stopped = self.node.stop_all(grace) => return stopped,
                command = self.commands.recv() => if matches!(command, None | Some(Command::Kill | Command::Suspend)) {
                    grace = Duration::ZERO;
                    self.commands.close();
                    self.node.stop_all(grace).await?;
                    return Ok(());
                },
            }
        }
    }

    // ------------------------------------------------------------ telling

    fn tell(&mut self, warning: bool, reason: &str, text: impl Into<String>) {
        self.send(Event::now(warning, reason, text));
    }

    fn send(&mut self, event: Event) {
        let line = EventLine { time: event.time, reason: event.reason.clone(), text: event.text.clone() };
        if self.events.len() == EVENTS_KEPT {
            self.events.pop_front();
        }
        self.events.push_back(line);
        self.status_due.get_or_insert_with(|| Instant::now() + STATUS);
        let _ = self.updates.send(Update::Event(event));
    }

    fn publish(&mut self) -> Result<()> {
        for notice in self.node.notices() {
            self.publish_notice(notice);
        }
        // Who explains an end, by the status, does so before it is told.
        let status = self.operator.job().and_then(|job| job.status.clone());
        let news_of_job = status.filter(|status| self.told_status.as_ref() != Some(status));
        if let Some(status) = &news_of_job {
            let _ = self.updates.send(Update::Status(Box::new(status.clone())));
        }
        for plan::Event { warning, reason, note } in self.operator.events() {
            self.tell(warning, reason, note);
        }
        let mut news = false;
        if let Some(progress) = self.operator.progress()
            && self.told_progress.as_ref() != Some(&progress)
        {
            let _ = self.updates.send(Update::Progress(Box::new(progress.clone())));
            self.publish_evaluations(&progress);
            self.told_progress = Some(progress);
            self.publish_steps();
            news = true;
        }
        if let Some(status) = news_of_job {
            self.publish_recovery(&status);
            self.told_status = Some(status);
            news = true;
        }
        if news && self.status_due.is_none() {
            self.status_due = Some(Instant::now() + STATUS);
        }
        if self.status_due.is_some_and(|due| due <= Instant::now()) {
            self.write_status(None)?;
        }
        Ok(())
    }

    fn publish_steps(&mut self) {
        for step in self.steps.poll() {
            let _ = self.updates.send(Update::Step(Box::new(step)));
        }
    }

    /// Passes on what evaluations of the RL phase found; the warm start's pass rate has a place of its own.
    fn publish_evaluations(&mut self, progress: &Progress) {
        let before = self.before.as_ref().and_then(|before| before.progress.as_ref());
        let known =
            self.told_progress.as_ref().or(before).map(|progress| progress.events.as_slice()).unwrap_or_default();
        let new =
            progress.events.iter().filter(|event| event.starts_with("pass rate at step") && !known.contains(event));
        for event in new.cloned().collect::<Vec<_>>() {
            self.tell(false, "Evaluated", event);
        }
    }

    fn publish_notice(&mut self, notice: Notice) {
        match notice {
            Notice::Started { pod, pid, restarts } => {
                let role = plan::pod_facts::role(&pod);
                if self.replaced.remove(name(&*pod)) && restarts == 0 {
                    self.tell(false, "Started", format!("{role} {} started again, replaced (pid {pid})", name(&*pod)));
                } else if restarts > 0 && worth_telling(restarts) {
                    let text = format!("{role} {} started again (pid {pid}, restart {restarts})", name(&*pod));
                    self.tell(false, "Started", text);
                }
            }
            Notice::Ended { pod, status } => {
                let Some(end) = status.state.as_ref().and_then(|state| state.terminated.as_ref()) else { return };
                let role = plan::pod_facts::role(&pod);
                // A trainer's death is its attempt's, and is told with it.
                if self.over || role == TRAINER || !worth_telling(status.restart_count) {
                    return;
                }
                if pod.metadata.deletion_timestamp.is_some() {
                    self.replaced.insert(name(&*pod).to_owned());
                    self.tell(false, "Ended", format!("{role} {} stopped, as asked", name(&*pod)));
                    return;
                }
                let how = end_in_words(end.exit_code, end.signal);
                let last = end.message.as_deref().unwrap_or_default();
                let quiet = end.exit_code == 0;
                let said = if last.is_empty() || quiet { String::new() } else { format!(": {last}") };
                self.tell(!quiet, "Ended", format!("{role} {} {how}{said}", name(&*pod)));
            }
            Notice::BackingOff { pod, restarts, wait } => {
                // A shorter pause is over before it is read.
                if wait >= LONG_PAUSE && worth_telling(restarts + 1) {
                    let (role, wait) = (plan::pod_facts::role(&pod), wait.as_secs());
                    self.tell(false, "BackingOff", format!("{role} {} starts again in {wait} s", name(&*pod)));
                }
            }
            Notice::CannotStart { pod: _, why } => self.tell(true, "CannotStart", why),
        }
    }

    /// Says when a trainer is back, and how long it was away.
    fn publish_recovery(&mut self, status: &RLJobStatus) {
        let Some(ready) = status.attempt.as_ref().and_then(|attempt| attempt.ready_time.as_ref()) else { return };
        let told = self.told_status.as_ref().and_then(|told| told.attempt.as_ref());
        let id = status.attempt.as_ref().map_or(0, |attempt| attempt.id);
        if told.is_some_and(|told| told.id == id && told.ready_time.is_some()) {
            return;
        }
        // What ended with an earlier `thresh run` took engines and workers with it: that is nobody's recovery.
        let before = status.last_attempt.as_ref().filter(|last| last.id + 1 == id && last.id > self.past_attempts);
        let text = match before {
            Some(last) => {
                let away = ready.0.duration_since(last.end_time.0).as_secs_f64();
                format!("trainer ready again after {away:.1} s (attempt {id}); engines and workers were not touched")
            }
            None => format!("trainer ready (attempt {id})"),
        };
        self.tell(false, "TrainerReady", text);
    }

    fn write_status(&mut self, finish: Option<&Finish>) -> Result<()> {
        self.status_due = None;
        let Some(job) = self.operator.job() else { return Ok(()) };
        let run_dir = self.run_dir()?;
        let file = StatusFile {
            name: name(job).to_owned(),
            uid: job.metadata.uid.clone().unwrap_or_default(),
            manifest: self.manifest.clone(),
            volumes: self
                .volumes
                .given
                .iter()
                .map(|(claim, path)| (claim.clone(), path.canonicalize().unwrap_or_else(|_| path.clone())))
                .collect(),
            nodes: self.nodes,
            pid: std::process::id(),
            since: Some(self.since),
            updated: Some(Timestamp::now()),
            ended: finish.map(|finish| {
                match finish {
                    Finish::Complete => "complete",
                    Finish::Failed(..) => "failed",
                    Finish::Suspended | Finish::Killed => "stopped",
                }
                .to_owned()
            }),
            stopping: self.stopping,
            refused_edit: self.refused_edit.clone(),
            job: job.status.clone().unwrap_or_default(),
            // A run that had ended before this process began has its last word in the old file.
            progress: self.told_progress.clone().or_else(|| self.before.as_ref().and_then(|old| old.progress.clone())),
            pods: self.node.objects().pods.iter().map(PodLine::of).collect(),
            events: self.events.iter().cloned().collect(),
            volume: self.node.volume(&job.spec.storage.claim_name)?,
            model: exported(&run_dir),
            run_dir,
            curve: self.before.as_ref().and_then(|old| old.curve.clone()),
            closing: self.before.as_ref().and_then(|old| old.closing.clone()),
        };
        // It only tells how things are; the last word alone is worth waiting for.
        let state = self.node.folder().root();
        match finish {
            Some(_) => file.write(state),
            None => {
                if let Err(error) = file.try_write(state) {
                    tracing::debug!(%error, "no status file");
                }
                Ok(())
            }
        }
    }

    /// The last lines of the pod that ended the last attempt.
    #[must_use]
    pub fn last_words(&self) -> Vec<String> {
        let last = self.job().and_then(|job| job.status.as_ref()).and_then(|status| status.last_attempt.as_ref());
        let Some(pod) = last.and_then(|last| last.pod_name.as_ref()) else { return Vec::new() };
        tail_of(&self.node.folder().log(pod, None), LAST_WORDS)
    }
}

/// Each restart is told; of a process that does nothing but fail only every tenth in the end.
fn worth_telling(restarts: i32) -> bool {
    restarts <= 100 || restarts % 10 == 0
}

/// The last lines of a log file.
#[must_use]
pub fn tail_of(path: &Path, lines: usize) -> Vec<String> {
    let text = std::fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text[text.len().saturating_sub(64 << 10)..]);
    let all: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    all[all.len().saturating_sub(lines)..].iter().map(|line| (*line).to_owned()).collect()
}

/// The exported model under a run's folder, if there is one.
#[must_use]
pub fn exported(run_dir: &Path) -> Option<PathBuf> {
    let export = run_dir.join("export");
    let whole = |folder: &Path| folder.join("config.json").is_file();
    if whole(&export) {
        return Some(export);
    }
    let mut folders: Vec<PathBuf> =
        std::fs::read_dir(&export).ok()?.flatten().map(|entry| entry.path()).filter(|path| whole(path)).collect();
    folders.sort();
    folders.pop()
}

fn run_dir(operator: &Operator, node: &Node) -> Result<PathBuf> {
    let Some(job) = operator.job() else { return Ok(node.folder().root().to_owned()) };
    let volume = node.volume(&job.spec.storage.claim_name)?;
    Ok(volume.join(api::volume::run_dir(job.metadata.uid.as_deref().unwrap_or_default())))
}

/// Steps that were added to a run after it was complete: it stays so, and would otherwise end well without a word of them.
fn too_late(job: &RLJob, step: u64) -> Option<String> {
    let complete = job.status.as_ref().is_some_and(|status| cond::is_true(&status.conditions, cond::COMPLETE));
    let (total, uid) = (job.spec.total_steps, job.metadata.uid.as_deref().unwrap_or_default());
    (complete && total > step).then(|| {
        format!(
            "the run is complete at step {step}, and spec.totalSteps {total} changes that no more\n  \
             fix: start a new run with spec.resumeFrom: {{run: {uid}}}: it goes on from this one's last commit"
        )
    })
}

/// Whether the run has ended for good, by its stored status.
#[must_use]
pub fn is_over(status: &RLJobStatus) -> bool {
    cond::is_true(&status.conditions, cond::COMPLETE) || cond::is_true(&status.conditions, cond::FAILED)
}

/// Pods that live, of a role.
#[must_use]
pub fn of_role<'a>(pods: &'a [Pod], role: &str) -> Vec<&'a Pod> {
    pods.iter().filter(|pod| plan::pod_facts::role(pod) == role && !pod::terminal(pod)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_that_are_added_to_a_complete_run_are_not_passed_over_in_silence() {
        let text = include_str!("../../../examples/quickstart/rljob.yaml");
        let mut read = api::manifest::read(text, "rljob.yaml").unwrap();
        let Kind::RLJob(mut job) = read.remove(0).kind else { panic!("the file begins with an RLJob") };
        job.metadata.uid = Some("u-1".into());
        assert_eq!(too_late(&job, 40), None, "a run that is not over");
        let mut status = RLJobStatus::default();
        let epoch = Timestamp::UNIX_EPOCH;
        cond::set(&mut status.conditions, cond::COMPLETE, cond::Truth::True, "AllStepsDone", "m", Some(1), epoch);
        job.status = Some(status);
        assert_eq!(too_late(&job, 50), None, "a run that did all its steps");
        let said = too_late(&job, 40).unwrap();
        assert!(said.contains("complete at step 40, and spec.totalSteps 50") && said.contains("{run: u-1}"), "{said}");
    }

    #[test]
    fn no_restart_is_passed_over_until_there_are_a_hundred() {
        assert!((0..=100).all(worth_telling));
        assert_eq!((101..130).filter(|restarts| worth_telling(*restarts)).collect::<Vec<_>>(), [110, 120]);
    }
}
