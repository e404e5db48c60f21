//! What to do about it.

use api::{RolloutPool, ServingCluster};
use k8s_openapi::api::apps::v1::{DaemonSet, StatefulSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use kube::core::DynamicObject;
use serde_json::Value;

/// A decision. The executor
///
/// 1. writes `status` first, if there is one, with the resourceVersion it decided on; if that is refused (someone wrote since),
///    it does nothing else and decides again. So what is in status is known to every later decision before it is acted on;
/// 2. does `actions` in order and stops at the first that fails (it will be planned again); the failure is told with
///    [`crate::apply_failed`], and its end with [`crate::applied`];
/// 3. publishes `events`;
/// 4. decides again when something it watches changes, at once after a status write, and at `requeue_at` at the latest.
#[derive(Clone, Debug)]
pub struct Plan<S> {
    /// The new status, if it differs from the old one.
    pub status: Option<S>,
    /// In order. All are idempotent.
    pub actions: Vec<Action>,
    /// When to decide again even if nothing is seen to change.
    pub requeue_at: Option<Timestamp>,
    /// For people.
    pub events: Vec<Event>,
}

impl<S> Plan<S> {
    /// Nothing to do.
    pub fn none() -> Self {
        Self { status: None, actions: Vec::new(), requeue_at: None, events: Vec::new() }
    }
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Make the object as it is here, or do nothing if one of that name with the same owner exists. Never updates.
    ///
    /// The owner is the controller's uid in its ownerReferences, and where it has none the uid label of its kind. If what is
    /// there has another, it is a leftover of an object that had our name, or a stranger's: it is neither adopted nor changed.
    /// The action fails with [`crate::ApplyError::NameTaken`] and is planned again until the name is free. Secrets, which the
    /// executor makes by itself, are held to the same rule: a leftover's token would let its pods in.
    Create(Child),
    /// Make the object, or bring the one there to this form (server-side apply with force on our fields). Of another owner it
    /// fails with [`crate::ApplyError::NameTaken`], as `Create` does.
    Apply(Child),
    /// Delete the object if it still has this uid. Its dependents go first (foreground) or with it.
    Delete(Target),
    /// Delete a pod. With `force` without waiting for its node.
    DeletePod {
        /// Its name.
        name: String,
        /// Its uid.
        uid: String,
        /// Without waiting for its node.
        force: bool,
    },
    /// Send the conductor its settings; repeats are harmless.
    Tell(ConductorSettings),
    /// Ask the conductor for a commit as soon as the batch at hand is learnt; repeats of an id are the same request.
    RequestCheckpoint {
        /// Name of the request.
        id: String,
        /// Attempt it is meant for.
        attempt: u64,
        /// Stop the trainer (exit 75) after the commit.
        then_stop: bool,
    },
    /// List this run's trainer Jobs and pods from the API server itself, and put the answer into the next world
    /// ([`crate::World::listing`]).
    ConfirmGone,
    /// Add a finalizer.
    AddFinalizer(&'static str),
    /// Remove a finalizer.
    RemoveFinalizer(&'static str),
    /// Delete the object that is decided on, if it still has this uid: its time after the end is over. Its finalizers work as
    /// ever. On a laptop nothing is done: there the object goes with its run's folder, which is the user's.
    DeleteSelf {
        /// Its uid: a precondition.
        uid: String,
    },
}

/// An object to delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its kind.
    pub kind: ChildKind,
    /// Its name.
    pub name: String,
    /// Its uid: a precondition.
    pub uid: String,
    /// Dependents first.
    pub foreground: bool,
}

/// What the conductor must know beyond the run's own configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct ConductorSettings {
    /// Strictly rising with every change.
    pub number: u64,
    /// Attempts up to this one may not claim, report or write any more.
    pub fence_attempts_up_to: u64,
    /// No task is leased to workers on these nodes.
    pub cordoned_nodes: Vec<String>,
    /// Admit no new groups.
    pub paused: bool,
    /// The RLJob's spec, defaults filled in.
    pub spec: Value,
}

/// Something to tell people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Normal, or worth a look.
    pub warning: bool,
    /// Stable word.
    pub reason: &'static str,
    /// What happened.
    pub note: String,
}

/// Whose PodGroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GangApi {
    /// scheduling.volcano.sh/v1beta1.
    Volcano,
    /// scheduling.x-k8s.io/v1alpha1.
    SchedulerPlugins,
}

impl GangApi {
    /// API group and version of its PodGroups; the resource is `podgroups`.
    pub fn group_version(self) -> (&'static str, &'static str) {
        match self {
            GangApi::Volcano => ("scheduling.volcano.sh", "v1beta1"),
            GangApi::SchedulerPlugins => ("scheduling.x-k8s.io", "v1alpha1"),
        }
    }
}

/// Kinds of object we make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChildKind {
    /// v1.
    ConfigMap,
    /// v1.
    Service,
    /// apps/v1.
    StatefulSet,
    /// apps/v1.
    DaemonSet,
    /// batch/v1.
    Job,
    /// policy/v1.
    PodDisruptionBudget,
    /// Of a gang scheduler.
    PodGroup(GangApi),
    /// thresh.dev/v1alpha1.
    ServingCluster,
    /// thresh.dev/v1alpha1.
    RolloutPool,
}

/// An object we make, or observe.
#[derive(Clone, Debug, PartialEq)]
pub enum Child {
    /// Configuration of a conductor or an attempt.
    ConfigMap(Box<ConfigMap>),
    /// Headless, or the engines' endpoint for others.
    Service(Box<Service>),
    /// Conductor, engines, workers.
    StatefulSet(Box<StatefulSet>),
    /// Workers, one per node.
    DaemonSet(Box<DaemonSet>),
    /// A trainer attempt.
    Job(Box<Job>),
    /// What evictions may take of the engines.
    PodDisruptionBudget(Box<PodDisruptionBudget>),
    /// The pods of an attempt that are placed together, or not at all.
    PodGroup(GangApi, Box<DynamicObject>),
    /// Engines of a run.
    ServingCluster(Box<ServingCluster>),
    /// Workers of a run.
    RolloutPool(Box<RolloutPool>),
}

impl Child {
    /// Its kind.
    pub fn kind(&self) -> ChildKind {
        match self {
            Child::ConfigMap(_) => ChildKind::ConfigMap,
            Child::Service(_) => ChildKind::Service,
            Child::StatefulSet(_) => ChildKind::StatefulSet,
            Child::DaemonSet(_) => ChildKind::DaemonSet,
            Child::Job(_) => ChildKind::Job,
            Child::PodDisruptionBudget(_) => ChildKind::PodDisruptionBudget,
            Child::PodGroup(api, _) => ChildKind::PodGroup(*api),
            Child::ServingCluster(_) => ChildKind::ServingCluster,
            Child::RolloutPool(_) => ChildKind::RolloutPool,
        }
    }

    /// Its metadata.
    pub fn metadata(&self) -> &ObjectMeta {
        match self {
            Child::ConfigMap(o) => &o.metadata,
            Child::Service(o) => &o.metadata,
            Child::StatefulSet(o) => &o.metadata,
            Child::DaemonSet(o) => &o.metadata,
            Child::Job(o) => &o.metadata,
            Child::PodDisruptionBudget(o) => &o.metadata,
            Child::PodGroup(_, o) => &o.metadata,
            Child::ServingCluster(o) => &o.metadata,
            Child::RolloutPool(o) => &o.metadata,
        }
    }

    /// Its metadata, to change.
    pub fn metadata_mut(&mut self) -> &mut ObjectMeta {
        match self {
            Child::ConfigMap(o) => &mut o.metadata,
            Child::Service(o) => &mut o.metadata,
            Child::StatefulSet(o) => &mut o.metadata,
            Child::DaemonSet(o) => &mut o.metadata,
            Child::Job(o) => &mut o.metadata,
            Child::PodDisruptionBudget(o) => &mut o.metadata,
            Child::PodGroup(_, o) => &mut o.metadata,
            Child::ServingCluster(o) => &mut o.metadata,
            Child::RolloutPool(o) => &mut o.metadata,
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.metadata().name.as_deref().unwrap_or_default()
    }

    /// Its uid; empty before it exists.
    pub fn uid(&self) -> &str {
        self.metadata().uid.as_deref().unwrap_or_default()
    }

    /// An annotation.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.metadata().annotations.as_ref().and_then(|a| a.get(key)).map(String::as_str)
    }

    /// A label.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.metadata().labels.as_ref().and_then(|l| l.get(key)).map(String::as_str)
    }

    /// As a target of deletion.
    pub fn target(&self, foreground: bool) -> Target {
        Target { kind: self.kind(), name: self.name().to_owned(), uid: self.uid().to_owned(), foreground }
    }

    /// As the API would store it.
    pub fn to_json(&self) -> Value {
        let json = match self {
            Child::ConfigMap(o) => serde_json::to_value(o),
            Child::Service(o) => serde_json::to_value(o),
            Child::StatefulSet(o) => serde_json::to_value(o),
            Child::DaemonSet(o) => serde_json::to_value(o),
            Child::Job(o) => serde_json::to_value(o),
            Child::PodDisruptionBudget(o) => serde_json::to_value(o),
            Child::PodGroup(_, o) => serde_json::to_value(o),
            Child::ServingCluster(o) => serde_json::to_value(o),
            Child::RolloutPool(o) => serde_json::to_value(o),
        };
        json.unwrap_or(Value::Null)
    }
}
