//! What was observed. A world holds evidence, never conclusions: a cache may be stale, so absence in it proves nothing, and
//! whatever must be certain is asked for with an action and answered in the next world.

use std::collections::{BTreeMap, BTreeSet};

use api::{RLJob, RolloutPool, ServingCluster};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;

use crate::Child;

/// What is observed of an RLJob.
#[derive(Clone, Debug, Default)]
pub struct World {
    /// Objects that carry this RLJob's uid label, whatever their name, and the ServingCluster and RolloutPool it uses.
    pub children: Vec<Child>,
    /// Pods that carry this RLJob's uid label (trainer and conductor).
    pub pods: Vec<Pod>,
    /// Nodes those pods are on. A node that is not here is healthy as far as anyone knows.
    pub nodes: BTreeMap<String, NodeState>,
    /// Unschedulable nodes: no work is leased to workers there.
    pub cordoned: BTreeSet<String>,
    /// What the conductor says.
    pub conductor: Conductor,
    /// Whether the claim exists and is bound; `None` where it was not looked at.
    pub storage: Option<StorageState>,
    /// What the queue says of the living attempt; `None` where it was not asked, or has nothing.
    pub quota: Option<Quota>,
    /// Answer to [`crate::Action::ConfirmGone`], given to the one `decide` that follows.
    pub listing: Option<Listing>,
}

/// State of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// Its kubelet answers.
    Ready,
    /// Its kubelet does not answer; pods there may live on.
    Unreachable,
    /// The object is gone, or carries the out-of-service taint: nothing lives there.
    Gone,
}

/// State of the claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorageState {
    /// Bound.
    Bound,
    /// There, not bound.
    Pending,
    /// Not there.
    Missing,
}

/// What a queue says of the Job of the living attempt: of Kueue, two conditions of its Workload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// Condition QuotaReserved: the quota is set aside for it.
    pub reserved: bool,
    /// Reason of that condition; `Inadmissible` when its queue is not there, or is stopped.
    pub reason: String,
    /// Its message.
    pub message: String,
}

/// What the conductor says.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Conductor {
    /// It does not answer (or does not exist yet). Never a reason to fail.
    #[default]
    Unreachable,
    /// Its report.
    Report(Box<Report>),
}

impl Conductor {
    /// The report, if there is one.
    pub fn report(&self) -> Option<&Report> {
        match self {
            Conductor::Report(r) => Some(r),
            Conductor::Unreachable => None,
        }
    }
}

/// Progress of the run, as its conductor has it in the journal.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Settings number held.
    pub settings_number: u64,
    /// RL step to run next.
    pub step: u64,
    /// RL steps wanted.
    pub total_steps: u64,
    /// Warm-start update to run next.
    pub warm_step: u64,
    /// Version every admitted engine has acknowledged.
    pub weight_version: u64,
    /// Commits so far: rises with each.
    pub commits: u64,
    /// Step of the last commit.
    pub commit_step: Option<u64>,
    /// `finished` is journaled.
    pub finished: bool,
    /// Why the run cannot go on without its user.
    pub failure: Option<String>,
    /// Highest attempt that has claimed.
    pub attempt: u64,
    /// Its epoch.
    pub trainer_epoch: u64,
    /// The trainer has been heard of within the heartbeat time-out.
    pub trainer_live: bool,
    /// Ids of checkpoint requests fulfilled.
    pub checkpoints_done: BTreeSet<String>,
    /// Engines that answer and are current (before the first publication: that answer).
    pub engines_ready: u32,
    /// Engines known.
    pub engines: u32,
    /// Oldest version an engine serves.
    pub min_weight_version: Option<u64>,
    /// Workers heard of.
    pub workers: u32,
    /// Groups leased now.
    pub inflight: u64,
    /// Of the last step.
    pub tokens_per_second: Option<f64>,
    /// Of the last step.
    pub reward_mean: Option<f64>,
    /// What the run waits for on its volume (full, away): it waits as long as that takes, and nobody is to blame.
    pub storage: Option<String>,
    /// More of the last samples than may be could not be generated or judged.
    pub samples_invalid: bool,
}

/// A consistent list (not from a cache) of this run's trainer objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Jobs of attempts.
    pub jobs: Vec<ListedJob>,
    /// Pods of attempts.
    pub pods: Vec<ListedPod>,
    /// Version of the RLJob, asked for after the two lists; `None` where it was not asked for.
    pub rljob_version: Option<String>,
}

/// A Job in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedJob {
    /// Name.
    pub name: String,
    /// Uid.
    pub uid: String,
    /// Attempt by its label; 0 if it cannot be read.
    pub attempt: u64,
}

/// A pod in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedPod {
    /// Name.
    pub name: String,
    /// Uid.
    pub uid: String,
    /// Attempt by its label; 0 if it cannot be read.
    pub attempt: u64,
    /// Where it is.
    pub node: Option<String>,
    /// Its containers are known to have ended (phase Succeeded or Failed).
    pub ended: bool,
}

impl Listing {
    /// From listed objects.
    pub fn of(jobs: &[k8s_openapi::api::batch::v1::Job], pods: &[Pod]) -> Self {
        let jobs = jobs
            .iter()
            .map(|j| ListedJob {
                name: j.metadata.name.clone().unwrap_or_default(),
                uid: j.metadata.uid.clone().unwrap_or_default(),
                attempt: crate::pod_facts::attempt_of_job(&j.metadata),
            })
            .collect();
        let pods = pods
            .iter()
            .map(|p| ListedPod {
                name: p.metadata.name.clone().unwrap_or_default(),
                uid: p.metadata.uid.clone().unwrap_or_default(),
                attempt: crate::pod_facts::attempt(&p.metadata),
                node: p.spec.as_ref().and_then(|s| s.node_name.clone()),
                ended: crate::pod_facts::ended(p),
            })
            .collect();
        Self { jobs, pods, rljob_version: None }
    }

    /// With the version that the RLJob was found to have after the lists were made.
    #[must_use]
    pub fn at(self, rljob_version: Option<String>) -> Self {
        Self { rljob_version, ..self }
    }

    /// When the lists were made, nobody had written anything that this RLJob does not say.
    pub fn is_of(&self, job: &api::RLJob) -> bool {
        self.rljob_version.is_some() && self.rljob_version == job.metadata.resource_version
    }
}

/// What is observed of a ServingCluster.
#[derive(Clone, Debug, Default)]
pub struct ServingWorld {
    /// Objects that carry its uid label.
    pub children: Vec<Child>,
    /// Its engine pods.
    pub pods: Vec<Pod>,
    /// Nodes those pods are on.
    pub nodes: BTreeMap<String, NodeState>,
    /// RLJobs of the namespace that name it (by ref or template), with their status: who may write.
    pub users: Vec<RLJob>,
}

/// What is observed of a RolloutPool.
#[derive(Clone, Debug, Default)]
pub struct PoolWorld {
    /// Objects that carry its uid label.
    pub children: Vec<Child>,
    /// Its worker pods.
    pub pods: Vec<Pod>,
    /// Nodes those pods are on.
    pub nodes: BTreeMap<String, NodeState>,
}

impl World {
    /// The ServingCluster of that name.
    pub fn serving(&self, name: &str) -> Option<&ServingCluster> {
        self.children.iter().find_map(|c| match c {
            Child::ServingCluster(s) if s.metadata.name.as_deref() == Some(name) => Some(&**s),
            _ => None,
        })
    }

    /// The RolloutPool of that name.
    pub fn pool(&self, name: &str) -> Option<&RolloutPool> {
        self.children.iter().find_map(|c| match c {
            Child::RolloutPool(p) if p.metadata.name.as_deref() == Some(name) => Some(&**p),
            _ => None,
        })
    }
}

/// An instant in the API's form.
pub fn micro(t: Timestamp) -> k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime {
    // As the API stores it, so that a comparison with what was read back finds no difference.
    k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime(
        Timestamp::from_microsecond(t.as_microsecond()).unwrap_or(t),
    )
}
