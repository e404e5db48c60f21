//! A whole run with real processes whose node is in this process, so that a test can lose nodes and mounts, which no signal
//! can play.

use std::{
    collections::BTreeMap,
    fs,
    path::PathBuf,
    sync::{Arc, Mutex},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use api::RLJobStatus;
use control::wire::{Progress, StepRecord};
use k8s_openapi::api::core::v1::Pod;
use local::{
    Fault,
    event::Event,
    preflight::{self, Volumes},
    run::{Command, Finish, Run, Setup, Update, of_role},
    template::Binaries,
};
use rustix::process::Signal;
use tokio::sync::{mpsc, oneshot};

use crate::local_run::{PATIENCE, binaries, lay_out, signal};

/// What the run has told.
#[derive(Default)]
pub struct Told {
    /// Last word of the conductor.
    pub progress: Option<Progress>,
    /// Last status of the RLJob.
    pub status: Option<RLJobStatus>,
    /// Finished steps as they came.
    pub steps: Vec<StepRecord>,
    /// Everything that happened.
    pub events: Vec<Event>,
}

/// See the module. Everything it started ends when it is dropped.
pub struct DrivenRun {
    folder: tempfile::TempDir,
    orders: mpsc::Sender<Command>,
    told: Arc<Mutex<Told>>,
    thread: Option<JoinHandle<local::Result<Finish>>>,
}

impl DrivenRun {
    /// Starts `manifest` on `nodes` nodes, with the quickstart's volume, and with faults in the environment of every pod.
    pub fn start(manifest: &str, nodes: usize, environment: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        lay_out(folder.path(), manifest);
        let seeds = folder.path().join("volumes");
        let volumes = Volumes { given: BTreeMap::new(), seeds: Some(seeds), state: folder.path().join("state") };
        let binaries = Binaries::in_folder(binaries());
        let checked = preflight::check_file(&folder.path().join("rljob.yaml"), &volumes, &binaries).unwrap();
        let mut env: BTreeMap<String, String> =
            environment.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        env.insert("THRESH_LOG".into(), "human".into());
        let setup = Setup { checked, volumes, binaries, nodes, settings: plan::Settings::laptop(), env };
        let (orders, commands) = mpsc::channel(16);
        let (tell, mut updates) = mpsc::unbounded_channel();
        let told = Arc::new(Mutex::new(Told::default()));
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
            runtime.block_on(async {
                let mut run = Run::start(setup, commands, tell)?;
                run.drive().await
            })
        });
        let ears = told.clone();
        std::thread::spawn(move || {
            while let Some(update) = updates.blocking_recv() {
                let mut told = ears.lock().unwrap();
                match update {
                    Update::Event(event) => told.events.push(event),
                    Update::Step(step) => told.steps.push(*step),
                    Update::Progress(progress) => told.progress = Some(*progress),
                    Update::Status(status) => told.status = Some(*status),
                }
            }
        });
        Self { folder, orders, told, thread: Some(thread) }
    }

    /// The run's folder on the volume.
    pub fn run_dir(&self) -> PathBuf {
        let runs = self.volume().join("runs");
        fs::read_dir(runs).unwrap().flatten().map(|entry| entry.path()).next().unwrap()
    }

    /// The claim's folder.
    pub fn volume(&self) -> PathBuf {
        self.folder.path().join("state/volumes/thresh-data")
    }

    /// Waits until `ready` gives something of what was told.
    pub fn until<T>(&self, what: &str, ready: impl Fn(&Told) -> Option<T>) -> T {
        let since = Instant::now();
        loop {
            if let Some(found) = ready(&self.told.lock().unwrap()) {
                return found;
            }
            let ended = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
            assert!(!ended && since.elapsed() < PATIENCE, "waiting for {what} (ended: {ended})\n{}", self.report());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits for a word of the conductor that satisfies `is_so`.
    pub fn progress(&self, what: &str, is_so: impl Fn(&Progress) -> bool) -> Progress {
        self.until(what, |told| told.progress.as_ref().filter(|progress| is_so(progress)).cloned())
    }

    /// Pods that live, of a role.
    pub fn pods(&self, role: &str) -> Vec<Pod> {
        let (answer, pods) = oneshot::channel();
        self.orders.blocking_send(Command::Pods(answer)).unwrap();
        let pods = pods.blocking_recv().unwrap();
        of_role(&pods, role).into_iter().cloned().collect()
    }

    /// Pids of a pod's processes.
    pub fn processes(&self, pod: &str) -> Vec<i32> {
        let (answer, pids) = oneshot::channel();
        self.orders.blocking_send(Command::Processes(pod.to_owned(), answer)).unwrap();
        pids.blocking_recv().unwrap()
    }

    /// Plays a fault on something that is there.
    pub fn fault(&self, fault: Fault) {
        let (answer, played) = oneshot::channel();
        self.orders.blocking_send(Command::Fault(fault.clone(), answer)).unwrap();
        assert!(played.blocking_recv().unwrap(), "{fault:?} names nothing that is there");
    }

    /// Ends it as Ctrl-C does, and checks that nothing was lost or done twice.
    pub fn stop(mut self) -> Told {
        self.orders.blocking_send(Command::Suspend).unwrap();
        let finish = self.thread.take().unwrap().join().unwrap().unwrap();
        assert_eq!(finish, Finish::Suspended, "{}", self.report());
        let verified = std::process::Command::new(env!("CARGO_BIN_EXE_thresh"))
            .args(["straw", "verify"])
            .arg(self.run_dir())
            .output()
            .unwrap();
        let (out, err) = (String::from_utf8_lossy(&verified.stdout), String::from_utf8_lossy(&verified.stderr));
        assert!(verified.status.success(), "{out}\n{err}");
        std::mem::take(&mut *self.told.lock().unwrap())
    }

    /// What a person would look at when a test fails.
    pub fn report(&self) -> String {
        let told = self.told.lock().unwrap();
        let mut report = String::new();
        for event in told.events.iter().rev().take(30).rev() {
            report += &format!("{}: {}\n", event.reason, event.text);
        }
        report += &format!("{:#?}\n", told.progress);
        for log in fs::read_dir(self.folder.path().join("state/logs")).into_iter().flatten().flatten() {
            let text = fs::read_to_string(log.path()).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            let tail = lines[lines.len().saturating_sub(15)..].join("\n");
            report += &format!("{}:\n{tail}\n", log.path().display());
        }
        report
    }
}

impl Drop for DrivenRun {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        // It may be gone already.
        let _ = self.orders.blocking_send(Command::Kill);
        let _ = thread.join();
    }
}

/// A process that may have ended, and whose number another may have by then.
pub struct Zombie {
    pid: i32,
    born: String,
}

impl Zombie {
    /// The living process `pid`.
    pub fn of(pid: i32) -> Self {
        Self { pid, born: stat(pid).unwrap().1 }
    }

    /// Whether it lives.
    pub fn lives(&self) -> bool {
        stat(self.pid).is_some_and(|(state, born)| born == self.born && !"ZX".contains(&state))
    }

    /// Sends it a signal, if it lives.
    pub fn signal(&self, which: Signal) {
        if self.lives() {
            signal(self.pid, which);
        }
    }
}

/// Whether a process was stopped by SIGSTOP.
pub fn is_stopped(pid: i32) -> bool {
    stat(pid).is_some_and(|(state, _)| state == "T")
}

/// State and start time of a process.
fn stat(pid: i32) -> Option<(String, String)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = text.rsplit_once(") ")?.1.split(' ').collect();
    Some(((*fields.first()?).to_owned(), (*fields.get(19)?).to_owned()))
}
