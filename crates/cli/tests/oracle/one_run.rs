//! `thresh run` to its end.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use control::{run_dir::RunDir, wire::StepRecord};

pub struct OneRun {
    run: RunDir,
}

impl OneRun {
    /// Runs a manifest on a volume, showing its progress.
    pub fn to_its_end(manifest: &Path, state: &Path, claim: &str, volume: &Path) -> Self {
        let status = Command::new(env!("CARGO_BIN_EXE_thresh"))
            .arg("run")
            .arg(manifest)
            .arg("--state")
            .arg(state)
            .arg("--volume")
            .arg(format!("{claim}={}", volume.display()))
            .stdin(Stdio::null())
            .status()
            .unwrap();
        assert!(status.success(), "thresh run: {status}");
        let runs: Vec<PathBuf> = fs::read_dir(volume.join("runs")).unwrap().flatten().map(|run| run.path()).collect();
        assert_eq!(runs.len(), 1, "one run on a volume of its own");
        Self { run: RunDir::new(volume, &runs[0]) }
    }

    pub fn steps(&self) -> Vec<StepRecord> {
        let text = fs::read_to_string(self.run.steps()).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    pub fn export(&self) -> PathBuf {
        self.run.export()
    }
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
