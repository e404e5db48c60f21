//! `status.json` of a state folder: the run as it was last seen, for `thresh status` and for whoever comes later.
//!
//! What lies in the state folder is named relative to it, so that a folder that was copied or moved speaks of its own files.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use api::RLJobStatus;
use control::wire::{CommitRef, Progress, RunPhase};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use serde::{Deserialize, Serialize};

use crate::{
    error::{Error, Result},
    folder,
    objects::name,
    pod,
};

const FILE: &str = "status.json";

/// The run as it was last seen.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StatusFile {
    /// Name of the RLJob.
    pub name: String,
    /// Uid of the run.
    pub uid: String,
    /// The manifest it was started with.
    pub manifest: PathBuf,
    /// Claims whose folders were given with `--volume`.
    pub volumes: BTreeMap<String, PathBuf>,
    /// Nodes played.
    pub nodes: usize,
    /// Process that holds, or last held, the folder.
    pub pid: u32,
    /// When that process began.
    pub since: Option<Timestamp>,
    /// When this was written.
    pub updated: Option<Timestamp>,
    /// `complete`, `failed` or `stopped` once `thresh run` has ended.
    pub ended: Option<String>,
    /// A person has asked that process to stop.
    pub stopping: bool,
    /// Why the manifest as it was last saved was refused: the file is not what runs.
    pub refused_edit: Option<String>,
    /// Status of the RLJob, as on a cluster.
    pub job: RLJobStatus,
    /// The conductor's last word.
    pub progress: Option<Progress>,
    /// Pods.
    pub pods: Vec<PodLine>,
    /// The last events, newest last.
    pub events: Vec<EventLine>,
    /// The volume's folder.
    pub volume: PathBuf,
    /// The run's folder on it.
    pub run_dir: PathBuf,
    /// The exported model.
    pub model: Option<PathBuf>,
    /// The reward curve.
    pub curve: Option<PathBuf>,
    /// The closing line.
    pub closing: Option<String>,
}

impl StatusFile {
    /// Reads that of a state folder, with every path absolute; `None` when there is none yet.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::DamagedStatus`].
    pub fn read(state: &Path) -> Result<Option<Self>> {
        let read = folder::read_json::<Self>(&state.join(FILE)).map_err(|error| match error {
            Error::Damaged { path, reason } => Error::DamagedStatus { path, reason },
            other => other,
        });
        let Some(mut file) = read? else { return Ok(None) };
        if file.name.is_empty() {
            return Err(Error::DamagedStatus { path: state.join(FILE), reason: "it names no run".into() });
        }
        let root = state.canonicalize().unwrap_or_else(|_| state.to_owned());
        for path in file.paths().filter(|path| path.is_relative() && !path.as_os_str().is_empty()) {
            *path = root.join(&*path);
        }
        Ok(Some(file))
    }

    /// Replaces that of a state folder. A full disk is waited for.
    ///
    /// # Errors
    /// [`crate::Error::File`].
    pub fn write(&self, state: &Path) -> Result<()> {
        folder::replace_json(&state.join(FILE), &self.relative_to(state))
    }

    /// [`StatusFile::write`] for what may as well not be written.
    ///
    /// # Errors
    /// [`crate::Error::File`].
    pub fn try_write(&self, state: &Path) -> Result<()> {
        folder::try_replace_json(&state.join(FILE), &self.relative_to(state))
    }

    fn relative_to(&self, state: &Path) -> Self {
        let mut file = self.clone();
        let root = state.canonicalize().unwrap_or_else(|_| state.to_owned());
        for path in file.paths() {
            if let Ok(inside) = path.strip_prefix(&root).or_else(|_| path.strip_prefix(state)) {
                *path = inside.to_owned();
            }
        }
        file
    }

    fn paths(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        [&mut self.manifest, &mut self.volume, &mut self.run_dir]
            .into_iter()
            .chain(self.volumes.values_mut())
            .chain(self.model.as_mut())
            .chain(self.curve.as_mut())
    }
}

/// Where a run is, for people.
#[must_use]
pub fn position(progress: &Progress) -> String {
    if progress.phase == RunPhase::WarmStart {
        return format!("warm-start update {} of at most {}", progress.warm_step, progress.warm_steps_max);
    }
    format!("step {} of {}", progress.step, progress.total_steps)
}

/// Up to where a commit holds a run, for people.
#[must_use]
pub fn committed(commit: &CommitRef) -> String {
    match commit {
        CommitRef { warming: true, warm_step, .. } => format!("warm-start update {warm_step}"),
        CommitRef { step: 0, .. } => "the end of the warm start".into(),
        CommitRef { step, .. } => format!("step {step}"),
    }
}

/// An event as it is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EventLine {
    /// When.
    pub time: Timestamp,
    /// Stable word.
    pub reason: String,
    /// What happened.
    pub text: String,
}

/// A pod in short.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodLine {
    /// Its name.
    pub name: String,
    /// `conductor`, `engine`, `worker` or `trainer`.
    pub role: String,
    /// Its phase.
    pub phase: String,
    /// It answers.
    pub ready: bool,
    /// Restarts in place.
    pub restarts: i32,
    /// Its first process.
    pub pid: Option<i32>,
    /// Its address.
    pub address: Option<String>,
}

impl PodLine {
    /// From a pod.
    #[must_use]
    pub fn of(pod: &Pod) -> Self {
        let status = pod.status.as_ref();
        let containers = status.and_then(|status| status.container_statuses.as_ref());
        Self {
            name: name(pod).to_owned(),
            role: plan::pod_facts::role(pod).to_owned(),
            phase: pod::phase(pod).to_owned(),
            ready: pod::ready(pod),
            restarts: containers.map_or(0, |list| list.iter().map(|one| one.restart_count).sum()),
            pid: pod::pid(pod),
            address: status.and_then(|status| status.pod_ip.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_state_folder_that_was_copied_or_moved_speaks_of_its_own_files() {
        let desk = tempfile::tempdir().unwrap();
        let desk = desk.path().canonicalize().unwrap();
        let (old, new) = (desk.join("old"), desk.join("new"));
        fs::create_dir_all(&old).unwrap();
        let file = StatusFile {
            name: "r".into(),
            manifest: desk.join("rljob.yaml"),
            volumes: [("given".to_owned(), desk.join("given"))].into(),
            volume: old.join("volumes/c"),
            run_dir: old.join("volumes/c/runs/u"),
            curve: Some(old.join("reward.svg")),
            ..Default::default()
        };
        file.write(&old).unwrap();
        assert_eq!(StatusFile::read(&old).unwrap().unwrap().run_dir, file.run_dir);
        fs::rename(&old, &new).unwrap();
        let moved = StatusFile::read(&new).unwrap().unwrap();
        assert_eq!((moved.volume, moved.run_dir), (new.join("volumes/c"), new.join("volumes/c/runs/u")));
        assert_eq!(moved.curve, Some(new.join("reward.svg")));
        assert_eq!((moved.manifest, moved.volumes), (file.manifest, file.volumes), "what lies elsewhere stays there");
        assert_eq!(moved.model, None);
    }

    #[test]
    fn a_damaged_status_file_is_told_with_what_mends_it() {
        let state = tempfile::tempdir().unwrap();
        for (text, reason) in [("{", "EOF"), (r#"{"a":1}"#, "it names no run"), (r#"{"name":7}"#, "invalid type")] {
            fs::write(state.path().join(FILE), text).unwrap();
            let said = StatusFile::read(state.path()).unwrap_err().to_string();
            assert!(said.contains("status.json is damaged: ") && said.contains(reason), "{said}");
            assert!(said.ends_with("fix: `thresh run` writes it anew, and goes on with the run"), "{said}");
        }
    }

    #[test]
    fn the_warm_start_is_told_in_its_own_updates() {
        let progress = Progress {
            phase: RunPhase::WarmStart,
            warm_step: 135,
            warm_steps_max: 700,
            total_steps: 50,
            ..Default::default()
        };
        assert_eq!(position(&progress), "warm-start update 135 of at most 700");
        let progress = Progress { phase: RunPhase::Rl, step: 7, ..progress };
        assert_eq!(position(&progress), "step 7 of 50");
        let commit = |warming, warm_step, step| CommitRef {
            step,
            warm_step,
            warming,
            folder: "f".into(),
            index_digest: "i".into(),
            weights_digest: "w".into(),
        };
        assert_eq!(committed(&commit(true, 135, 0)), "warm-start update 135");
        assert_eq!(committed(&commit(false, 225, 0)), "the end of the warm start");
        assert_eq!(committed(&commit(false, 225, 12)), "step 12");
    }
}
