//! `thresh run` of the quickstart, as a person starts it, in a folder of its own.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use control::wire::StepRecord;

use super::memory::Peaks;

/// Steps before the first kill.
pub const QUIET_STEPS: usize = 20;
/// Steps between kills.
pub const STEPS_BETWEEN: usize = 6;
/// Longest time without anything new before a run is given up.
const PATIENCE: Duration = Duration::from_secs(600);

/// A run; everything it started ends when this is dropped.
pub struct LocalRun {
    folder: tempfile::TempDir,
    child: Child,
}

/// A living process of the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Process id.
    pub pid: i32,
    /// Its pod; empty for `thresh run` itself.
    pub pod: String,
    /// Its rank, for a rank of the trainer.
    pub rank: Option<String>,
}

/// A built program, beside this one.
pub fn binary(name: &str) -> Result<PathBuf> {
    let path = std::env::current_exe()?.with_file_name(name);
    ensure!(path.is_file(), "{} is not built", path.display());
    Ok(path)
}

impl LocalRun {
    /// Starts it. The manifest is the quickstart's, with steps enough for the kills and a commit every fourth.
    pub fn start(out: &Path, manifest: &Path, kills: usize) -> Result<Self> {
        let text = fs::read_to_string(manifest).with_context(|| manifest.display().to_string())?;
        let steps = QUIET_STEPS + (kills + 1) * STEPS_BETWEEN;
        let text = replaced(&text, "totalSteps: 50", &format!("totalSteps: {steps}"))?;
        let text = replaced(&text, "everySteps: 10", "everySteps: 4")?;
        let folder = tempfile::Builder::new().prefix("run-").tempdir_in(out)?;
        fs::write(folder.path().join("rljob.yaml"), text)?;
        copy(&manifest.with_file_name("volumes"), &folder.path().join("volumes"))?;
        let file = |name: &str| fs::File::create(folder.path().join(name));
        let child = Command::new(binary("thresh")?)
            .arg("run")
            .arg(folder.path().join("rljob.yaml"))
            .arg("--state")
            .arg(folder.path().join("state"))
            .stdin(Stdio::null())
            .stdout(file("stdout")?)
            .stderr(file("stderr")?)
            .spawn()?;
        Ok(Self { folder, child })
    }

    /// The run's folder on its volume, once there is one.
    pub fn run_dir(&self) -> Option<PathBuf> {
        let runs = fs::read_dir(self.folder.path().join("state/volumes")).ok()?.flatten().next()?.path().join("runs");
        Some(fs::read_dir(runs).ok()?.flatten().next()?.path())
    }

    /// All records of finished steps, in the order they were written.
    pub fn records(&self) -> Vec<StepRecord> {
        let text = self.run_dir().and_then(|dir| fs::read_to_string(dir.join("steps.jsonl")).ok()).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Steps that are finished, the first time or again.
    pub fn steps(&self) -> usize {
        self.records().iter().map(|record| record.step as usize + 1).max().unwrap_or(0)
    }

    /// The run as `status.json` has it.
    pub fn status(&self) -> serde_json::Value {
        let text = fs::read_to_string(self.folder.path().join("state/status.json")).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    }

    /// Living processes of the run.
    pub fn processes(&self) -> Vec<Process> {
        let mut found = vec![Process { pid: self.child.id() as i32, pod: String::new(), rank: None }];
        let Some(run) = self.run_dir() else { return found };
        let uid = run.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
        for pid in pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok()) {
            let Some(environment) = environment(pid) else { continue };
            let ours = environment.get("THRESH_RUN_UID").is_some_and(|of| *of == uid)
                || environment.get("THRESH_VOLUME").is_some_and(|volume| run.starts_with(volume));
            if ours && alive(pid) {
                let pod = environment.get("POD_NAME").cloned().unwrap_or_default();
                found.push(Process { pid, pod, rank: environment.get("RANK").cloned() });
            }
        }
        found
    }

    /// Waits until `ready` gives something, with a look every `every`.
    pub fn wait_for<T>(&mut self, what: &str, every: Duration, mut ready: impl FnMut(&Self) -> Option<T>) -> Result<T> {
        let since = Instant::now();
        loop {
            if let Some(found) = ready(self) {
                return Ok(found);
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("waiting for {what}, the run ended with {status}\n{}", self.tail());
            }
            ensure!(since.elapsed() < PATIENCE, "waiting for {what} took too long\n{}", self.tail());
            std::thread::sleep(every);
        }
    }

    /// Waits until so many steps are finished, and watches memory meanwhile.
    pub fn wait_for_steps(&mut self, count: usize, peaks: &mut Peaks) -> Result<()> {
        self.wait_for(&format!("{count} steps"), Duration::from_millis(100), |run| {
            peaks.look(&run.processes());
            (run.steps() >= count).then_some(())
        })
    }

    /// Waits for its end, which must be a good one.
    pub fn finish(&mut self, peaks: &mut Peaks) -> Result<()> {
        let since = Instant::now();
        loop {
            peaks.look(&self.processes());
            if let Some(status) = self.child.try_wait()? {
                ensure!(status.success(), "the run ended with {status}\n{}", self.tail());
                return Ok(());
            }
            ensure!(since.elapsed() < PATIENCE, "the run does not end\n{}", self.tail());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn tail(&self) -> String {
        let read = |name: &str| fs::read_to_string(self.folder.path().join(name)).unwrap_or_default();
        let text = read("stdout") + &read("stderr");
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }
}

impl Drop for LocalRun {
    fn drop(&mut self) {
        // Its children die with it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn replaced(text: &str, from: &str, to: &str) -> Result<String> {
    ensure!(text.contains(from), "the manifest does not say `{from}`: it is not the quickstart's");
    Ok(text.replace(from, to))
}

fn environment(pid: i32) -> Option<BTreeMap<String, String>> {
    let bytes = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let pairs = text.split('\0').filter_map(|entry| entry.split_once('='));
    Some(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
}

fn alive(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// Copies a folder with all it holds.
pub fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| from.display().to_string())? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
