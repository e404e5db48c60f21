//! A whole run on this machine, as a person would start it: `thresh run`, with all its real processes.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use control::wire::StepRecord;

/// Longest a whole run may take before a test gives up. Not a bound on speed: it only ends a test that hangs.
pub const PATIENCE: Duration = Duration::from_secs(900);

/// The quickstart's manifest, to be edited by each test.
pub fn quickstart_manifest() -> String {
    fs::read_to_string(repository().join("examples/quickstart/rljob.yaml")).unwrap()
}

/// The root of the repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Where the binaries are. `make test` builds all of them before it runs the tests.
pub fn binaries() -> PathBuf {
    let folder = Path::new(env!("CARGO_BIN_EXE_thresh")).parent().unwrap().to_owned();
    for name in ["thresh-trainer", "thresh-rollout"] {
        assert!(
            folder.join(name).is_file(),
            "{name} is not built; run `cargo build --release --workspace --bins` first"
        );
    }
    folder
}

/// A run in a folder of its own. Everything it started ends when this is dropped.
pub struct LocalRun {
    folder: tempfile::TempDir,
    child: Child,
    command: &'static str,
    environment: Vec<(String, String)>,
    arguments: Vec<String>,
    /// Uid of a run that was on the volume before.
    beside: Option<String>,
}

/// A living process of the run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Process {
    /// Process id.
    pub pid: i32,
    /// Pod it belongs to.
    pub pod: String,
    /// Rank, for a trainer's rank.
    pub rank: Option<String>,
}

impl LocalRun {
    /// Starts `thresh run` on `manifest` with the quickstart's volume beside it.
    pub fn start(manifest: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        Self::start_command("run", manifest, arguments, environment)
    }

    /// As [`LocalRun::start`], by another command of `thresh` that takes what `run` takes.
    pub fn start_command(
        command: &'static str,
        manifest: &str,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Self {
        binaries();
        let folder = tempfile::tempdir().unwrap();
        lay_out(folder.path(), manifest);
        let environment: Vec<_> = environment.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        let arguments: Vec<_> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let child = spawn(thresh(), command, folder.path(), &arguments, &environment);
        Self { folder, child, command, environment, arguments, beside: None }
    }

    /// Starts `thresh run` on `manifest` with its state folder on a disk of so many MiB, in a mount namespace of its own.
    pub fn start_on_a_disk_of(manifest: &str, mib: u32) -> Self {
        binaries();
        let folder = tempfile::tempdir().unwrap();
        lay_out(folder.path(), manifest);
        fs::create_dir_all(folder.path().join("state")).unwrap();
        let script = format!("mount -t tmpfs -o size={mib}m tmpfs \"$1\" && shift && exec \"$@\"");
        let mut unshare = Command::new("unshare");
        unshare.args(["-Urm", "sh", "-c", &script, "sh"]).arg(folder.path().join("state"));
        unshare.arg(env!("CARGO_BIN_EXE_thresh"));
        let child = spawn(unshare, "run", folder.path(), &[], &[]);
        Self { folder, child, command: "run", environment: Vec::new(), arguments: Vec::new(), beside: None }
    }

    /// Starts `thresh run` on `manifest` in a folder that a run has left.
    pub fn start_in(folder: tempfile::TempDir, manifest: &str) -> Self {
        fs::write(folder.path().join("rljob.yaml"), manifest).unwrap();
        let child = spawn(thresh(), "run", folder.path(), &[], &[]);
        Self { folder, child, command: "run", environment: Vec::new(), arguments: Vec::new(), beside: None }
    }

    /// Starts `thresh run` on `manifest` with a volume that holds what `other` has left.
    pub fn start_beside(other: &Self, manifest: &str, environment: &[(&str, &str)]) -> Self {
        binaries();
        let folder = tempfile::tempdir().unwrap();
        lay_out(folder.path(), manifest);
        copy_folder(&other.run_dir().unwrap(), &folder.path().join("volumes/thresh-data/runs").join(other.uid()));
        let environment: Vec<_> = environment.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        let child = spawn(thresh(), "run", folder.path(), &[], &environment);
        Self { folder, child, command: "run", environment, arguments: Vec::new(), beside: Some(other.uid()) }
    }

    /// Starts it again on the same state, after it ended.
    pub fn start_again(&mut self) {
        assert!(self.child.try_wait().unwrap().is_some(), "it still runs");
        self.child = spawn(thresh(), self.command, self.folder.path(), &self.arguments, &self.environment);
    }

    /// Process id of `thresh run` itself.
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    /// The state folder.
    pub fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    /// The run's folder on the volume.
    pub fn run_dir(&self) -> Option<PathBuf> {
        let runs = self.state().join("volumes/thresh-data/runs");
        let mut folders = fs::read_dir(runs).ok()?.flatten().map(|entry| entry.path());
        folders.find(|folder| self.beside.as_ref().is_none_or(|beside| !folder.ends_with(beside)))
    }

    /// The run's uid.
    pub fn uid(&self) -> String {
        self.run_dir().unwrap().file_name().unwrap().to_string_lossy().into_owned()
    }

    /// What it printed on standard output so far.
    pub fn output(&self) -> String {
        fs::read_to_string(self.folder.path().join("stdout")).unwrap_or_default()
    }

    /// What it printed on standard error so far.
    pub fn errors(&self) -> String {
        fs::read_to_string(self.folder.path().join("stderr")).unwrap_or_default()
    }

    /// Finished steps; of a replayed step the last record.
    pub fn steps(&self) -> Vec<StepRecord> {
        let text = self.run_dir().and_then(|run| fs::read_to_string(run.join("steps.jsonl")).ok()).unwrap_or_default();
        let mut steps = BTreeMap::new();
        // The last line may be in the writing.
        for record in text.lines().filter_map(|line| serde_json::from_str::<StepRecord>(line).ok()) {
            steps.insert(record.step, record);
        }
        steps.into_values().collect()
    }

    /// Living processes of the run's pods (not `thresh run` itself).
    pub fn processes(&self) -> Vec<Process> {
        let Some(run) = self.run_dir() else { return Vec::new() };
        let uid = run.file_name().unwrap().to_string_lossy().into_owned();
        let mut found: Vec<Process> = fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
            .filter_map(|pid| {
                let environ = fs::read(format!("/proc/{pid}/environ")).ok()?;
                let value = |name: &str| {
                    environ.split(|byte| *byte == 0).find_map(|entry| {
                        String::from_utf8_lossy(entry).strip_prefix(&format!("{name}=")).map(str::to_owned)
                    })
                };
                let ours = value("THRESH_RUN_UID").is_some_and(|of| of == uid)
                    || value("THRESH_VOLUME").is_some_and(|volume| run.starts_with(volume));
                let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
                let dead = stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['Z', 'X']));
                (ours && !dead).then(|| Process {
                    pid,
                    pod: value("POD_NAME").unwrap_or_default(),
                    rank: value("RANK"),
                })
            })
            .collect();
        found.sort_unstable();
        found
    }

    /// Living processes of pods whose name contains `part`.
    pub fn pods(&self, part: &str) -> Vec<Process> {
        self.processes().into_iter().filter(|process| process.pod.contains(part)).collect()
    }

    /// Waits until `ready` gives something, failing the test with what the run printed when it ends or takes too long.
    pub fn wait_for<T>(&mut self, what: &str, mut ready: impl FnMut(&Self) -> Option<T>) -> T {
        let since = Instant::now();
        loop {
            if let Some(found) = ready(self) {
                return found;
            }
            let ended = self.child.try_wait().unwrap();
            if ended.is_some() || since.elapsed() > PATIENCE {
                // One more look: it may have come true with the end.
                if let Some(found) = ready(self) {
                    return found;
                }
                panic!("waiting for {what}: {}\n{}", ended.map_or("too long".into(), |s| s.to_string()), self.report());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until `step` steps are finished.
    pub fn wait_for_steps(&mut self, count: usize) {
        self.wait_for(&format!("{count} steps"), |run| (run.steps().len() >= count).then_some(()));
    }

    /// Waits for the end; its exit code.
    pub fn wait(&mut self) -> i32 {
        let since = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code().unwrap_or(-1);
            }
            assert!(since.elapsed() < PATIENCE, "it does not end\n{}", self.report());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// What a person would look at when a test fails.
    pub fn report(&self) -> String {
        let tail = |text: String, lines: usize| {
            let all: Vec<&str> = text.lines().collect();
            all[all.len().saturating_sub(lines)..].join("\n")
        };
        let mut report = format!("stdout:\n{}\nstderr:\n{}\n", tail(self.output(), 40), tail(self.errors(), 40));
        for log in fs::read_dir(self.state().join("logs")).into_iter().flatten().flatten() {
            let text = fs::read_to_string(log.path()).unwrap_or_default();
            report += &format!("{}:\n{}\n", log.path().display(), tail(text, 25));
        }
        report
    }
}

impl Drop for LocalRun {
    fn drop(&mut self) {
        // Children die with their parent.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a signal.
pub fn signal(pid: i32, signal: rustix::process::Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// The quickstart's files, and the manifest.
pub fn lay_out(folder: &Path, manifest: &str) {
    fs::write(folder.join("rljob.yaml"), manifest).unwrap();
    copy_folder(&repository().join("examples/quickstart/volumes"), &folder.join("volumes"));
}

fn thresh() -> Command {
    Command::new(env!("CARGO_BIN_EXE_thresh"))
}

fn spawn(
    mut program: Command,
    command: &str,
    folder: &Path,
    arguments: &[String],
    environment: &[(String, String)],
) -> Child {
    let file = |name: &str| fs::OpenOptions::new().create(true).append(true).open(folder.join(name)).unwrap();
    program
        .arg(command)
        .arg(folder.join("rljob.yaml"))
        .arg("--state")
        .arg(folder.join("state"))
        .args(arguments)
        .envs(environment.iter().map(|(key, value)| (key, value)))
        .stdin(Stdio::null())
        .stdout(file("stdout"))
        .stderr(file("stderr"))
        .spawn()
        .unwrap()
}

/// Copies a folder with all it holds.
pub fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}
