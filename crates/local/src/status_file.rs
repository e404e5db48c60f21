//! `status.json` of a state folder: the run as it was last seen, for `thresh status` and for whoever comes later.

use std::path::PathBuf;

use api::RLJobStatus;
use control::wire::Progress;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use serde::{Deserialize, Serialize};

use crate::{objects::name, pod};

/// The run as it was last seen.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusFile {
    /// Name of the RLJob.
    pub name: String,
    /// Uid of the run.
    pub uid: String,
    /// The manifest it was started with.
    pub manifest: PathBuf,
    /// Process that holds, or last held, the folder.
    pub pid: u32,
    /// When that process began.
    pub since: Option<Timestamp>,
    /// When this was written.
    pub updated: Option<Timestamp>,
    /// `complete`, `failed` or `stopped` once `thresh run` has ended.
    pub ended: Option<String>,
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
