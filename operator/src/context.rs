//! What every reconcile shares.

use std::{
    collections::HashMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use api::{RLJob, RolloutPool, ServingCluster};
use k8s_openapi::api::{
    apps::v1::{DaemonSet, StatefulSet},
    batch::v1::Job,
    core::v1::{ConfigMap, Node, PersistentVolumeClaim, Pod, Service},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Client, Resource,
    core::error_boundary::DeserializeGuard,
    runtime::reflector::{ObjectRef, Store},
};
use plan::Settings;
use tokio::sync::mpsc::UnboundedSender;

use crate::{cache::Cache, events::Events, links::Links, metrics::Metrics};

/// Versions that are remembered as replaced.
const REPLACED: usize = 32;

/// One of our own objects; one that cannot be decoded must not stop the watch of the others.
pub type Guarded<K> = DeserializeGuard<K>;
/// Asks for a look at an object.
pub type Requests<K> = UnboundedSender<ObjectRef<Guarded<K>>>;

/// What every reconcile of one set of namespaces shares.
pub struct Context {
    /// The API server.
    pub client: Client,
    /// Inputs of `decide`.
    pub settings: Settings,
    /// Metrics.
    pub metrics: Metrics,
    /// For people.
    pub events: Events,
    /// Lines to conductors.
    pub links: Links,
    /// Children and what else is watched.
    pub caches: Caches,
    /// Our own kinds.
    pub stores: Stores,
    /// Asks for a look at one of our own objects.
    pub requests: AllRequests,
    /// Writes of ours that the watch has not brought back yet, and failures in a row.
    pub rljobs: Memory<RLJob>,
    /// The same of ServingClusters.
    pub servings: Memory<ServingCluster>,
    /// The same of RolloutPools.
    pub pools: Memory<RolloutPool>,
    /// The served CRDs have what we need. Nothing is touched otherwise.
    pub schema_is_current: AtomicBool,
    /// Requests are made only while somebody works on them.
    pub active: AtomicBool,
}

impl Context {
    /// True while reconcilers run.
    pub fn is_active(&self) -> bool {
        self.active.load(Ordering::Relaxed)
    }
}

/// Children and what else is watched, by kind.
pub struct Caches {
    /// Trainer, conductor, engines, workers.
    pub pods: Cache<Pod>,
    /// Attempts.
    pub jobs: Cache<Job>,
    /// Conductors' and attempts'.
    pub config_maps: Cache<ConfigMap>,
    /// All of ours.
    pub services: Cache<Service>,
    /// Conductors, engines, workers.
    pub stateful_sets: Cache<StatefulSet>,
    /// Workers.
    pub daemon_sets: Cache<DaemonSet>,
    /// Of engines.
    pub budgets: Cache<PodDisruptionBudget>,
    /// All claims.
    pub claims: Cache<PersistentVolumeClaim>,
    /// All nodes.
    pub nodes: Cache<Node>,
}

/// Our own kinds.
pub struct Stores {
    /// RLJobs.
    pub rljobs: Store<Guarded<RLJob>>,
    /// ServingClusters.
    pub servings: Store<Guarded<ServingCluster>>,
    /// RolloutPools.
    pub pools: Store<Guarded<RolloutPool>>,
}

/// Asks for a look at one of our own objects.
pub struct AllRequests {
    /// RLJobs.
    pub rljobs: Requests<RLJob>,
    /// ServingClusters.
    pub servings: Requests<ServingCluster>,
    /// RolloutPools.
    pub pools: Requests<RolloutPool>,
}

/// What is remembered of objects of one kind between two looks. None of it decides anything: it only saves a refused write,
/// and spaces out what fails.
pub struct Memory<K>(Mutex<HashMap<String, Remembered<K>>>);

struct Remembered<K> {
    written: Option<Written<K>>,
    failures: u32,
    /// What its Secret holds, and when that was last seen there.
    token: Option<(String, Instant)>,
}

/// Our last write.
struct Written<K> {
    /// The version that it made.
    version: Option<String>,
    /// The versions that it has replaced: the watch may still show any of them,
    replaced: Vec<String>,
    /// until it has shown the one that was made; then the object is not needed any more.
    object: Option<Box<K>>,
}

impl<K> Default for Memory<K> {
    fn default() -> Self {
        Self(Mutex::new(HashMap::new()))
    }
}

impl<K: Resource + Clone> Memory<K> {
    fn with<T>(&self, uid: &str, act: impl FnOnce(&mut Remembered<K>) -> T) -> T {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = || Remembered { written: None, failures: 0, token: None };
        act(all.entry(uid.to_owned()).or_insert_with(fresh))
    }

    /// The object as we last wrote it, if the watch shows a version that our writes have replaced; else as the watch shows it.
    pub fn latest(&self, seen: &K) -> K {
        let meta = seen.meta();
        let (Some(uid), Some(version)) = (&meta.uid, &meta.resource_version) else { return seen.clone() };
        self.with(uid, |one| {
            let Some(written) = &mut one.written else { return seen.clone() };
            if written.version.as_ref() == Some(version) {
                written.object = None;
            }
            let newer = written.object.as_ref().filter(|_| written.replaced.contains(version));
            newer.map_or(seen, |object| &**object).clone()
        })
    }

    /// Takes note of a write: `object` is what it made of `from`.
    pub fn wrote(&self, from: &K, object: &K) {
        let (Some(uid), Some(version)) = (&from.meta().uid, &from.meta().resource_version) else { return };
        if object.meta().resource_version.as_ref() == Some(version) {
            // It changed nothing, and so made no version.
            return;
        }
        self.with(uid, |one| {
            let mut replaced = match one.written.take() {
                Some(last) if last.version.as_ref() == Some(version) => last.replaced,
                _ => Vec::new(),
            };
            replaced.push(version.clone());
            // A watch that is so far behind is not waited for.
            let excess = replaced.len().saturating_sub(REPLACED);
            replaced.drain(..excess);
            let mut object = object.clone();
            crate::slim::no_managers(&mut object);
            let version = object.meta().resource_version.clone();
            one.written = Some(Written { version, replaced, object: Some(Box::new(object)) });
        });
    }

    /// True if this is what we wrote ourselves.
    pub fn is_own(&self, seen: &K) -> bool {
        let meta = seen.meta();
        let Some(uid) = &meta.uid else { return false };
        self.with(uid, |one| one.written.as_ref().is_some_and(|written| written.version == meta.resource_version))
    }

    /// One more failure in a row; how many that makes.
    pub fn failed(&self, uid: &str) -> u32 {
        self.with(uid, |one| {
            one.failures = one.failures.saturating_add(1);
            one.failures
        })
    }

    /// No failure.
    pub fn succeeded(&self, uid: &str) {
        self.with(uid, |one| one.failures = 0);
    }

    /// What its Secret holds, if it was read before, and when that was.
    pub fn token(&self, uid: &str) -> Option<(String, Instant)> {
        self.with(uid, |one| one.token.clone())
    }

    /// Takes note of what its Secret holds.
    pub fn set_token(&self, uid: &str, token: &str) {
        self.with(uid, |one| one.token = Some((token.to_owned(), Instant::now())));
    }

    /// The object is gone.
    pub fn forget(&self, uid: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    fn version(version: &str) -> ConfigMap {
        let mut object = ConfigMap::default();
        object.metadata.uid = Some("u".into());
        object.metadata.resource_version = Some(version.into());
        object
    }

    fn latest(memory: &Memory<ConfigMap>, seen: &str) -> String {
        memory.latest(&version(seen)).metadata.resource_version.unwrap_or_default()
    }

    #[test]
    fn no_decision_is_made_on_a_version_that_we_have_replaced_ourselves() {
        let memory = Memory::default();
        memory.wrote(&version("1"), &version("2"));
        memory.wrote(&version("2"), &version("5"));
        for replaced in ["1", "2"] {
            assert_eq!(latest(&memory, replaced), "5", "the watch still shows {replaced}");
        }
        assert_eq!(latest(&memory, "5"), "5");
        assert_eq!(latest(&memory, "2"), "2", "the watch has shown the write, and it is not held any longer");
        assert_eq!(latest(&memory, "7"), "7", "somebody else wrote since");
        memory.wrote(&version("7"), &version("8"));
        assert_eq!(latest(&memory, "2"), "2", "of another line of writes nothing is known");
        assert!(memory.is_own(&version("8")) && !memory.is_own(&version("7")));
    }
}
