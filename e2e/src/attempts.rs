//! Sees to it, by a watch, that never two attempts of a run live at a time, and that none is made twice.

use std::{
    collections::{BTreeMap, BTreeSet},
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::ensure;
use api::labels;
use futures::StreamExt;
use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};
use kube::{
    Api, ResourceExt,
    runtime::watcher::{Config, Event, watcher},
};
use plan::pod_facts;
use tokio::task::JoinHandle;

use crate::stage::Stage;

#[derive(Default)]
struct Seen {
    /// Attempt of each pod whose containers may run, by uid.
    alive: BTreeMap<String, u64>,
    /// Uids of the Jobs of each attempt.
    jobs: BTreeMap<u64, BTreeSet<String>>,
    wrong: Vec<String>,
}

/// A watch over the only run of a stage.
pub struct Attempts {
    seen: Arc<Mutex<Seen>>,
    tasks: [JoinHandle<()>; 2],
}

impl Drop for Attempts {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Attempts {
    /// Begins to watch.
    pub fn watch(stage: &Stage) -> Self {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let (pods, jobs): (Api<Pod>, Api<Job>) = (stage.api(), stage.api());
        let config = Config::default().labels(&format!("{}=trainer", labels::ROLE));
        let (one, other) = (seen.clone(), seen.clone());
        let pod_config = config.clone();
        let pods = tokio::spawn(async move {
            let mut events = pin!(watcher(pods, pod_config));
            while let Some(event) = events.next().await {
                match event {
                    Ok(Event::Apply(pod) | Event::InitApply(pod)) => one.lock_up().pod(&pod, false),
                    Ok(Event::Delete(pod)) => one.lock_up().pod(&pod, true),
                    Ok(Event::Init | Event::InitDone) => {}
                    Err(error) => one.lock_up().wrong.push(format!("the watch of pods: {error}")),
                }
            }
        });
        let jobs = tokio::spawn(async move {
            let mut events = pin!(watcher(jobs, config));
            while let Some(event) = events.next().await {
                if let Ok(Event::Apply(job) | Event::InitApply(job)) = event {
                    other.lock_up().job(&job);
                }
            }
        });
        Self { seen, tasks: [pods, jobs] }
    }

    /// Nothing was wrong so far, and these are the attempts that were made.
    ///
    /// # Errors
    /// With what was wrong.
    pub fn made(&self) -> anyhow::Result<BTreeSet<u64>> {
        let seen = self.seen.lock_up();
        ensure!(seen.wrong.is_empty(), "{}", seen.wrong.join("; "));
        Ok(seen.jobs.keys().copied().collect())
    }
}

trait LockUp {
    fn lock_up(&self) -> std::sync::MutexGuard<'_, Seen>;
}

impl LockUp for Mutex<Seen> {
    fn lock_up(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seen {
    fn pod(&mut self, pod: &Pod, gone: bool) {
        let uid = pod.uid().unwrap_or_default();
        if gone || pod_facts::ended(pod) {
            self.alive.remove(&uid);
            return;
        }
        self.alive.insert(uid, pod_facts::attempt(&pod.metadata));
        let attempts: BTreeSet<_> = self.alive.values().collect();
        if attempts.len() > 1 {
            self.wrong.push(format!("attempts {attempts:?} live at the same time"));
        }
    }

    fn job(&mut self, job: &Job) {
        let attempt = pod_facts::attempt(&job.metadata);
        let uids = self.jobs.entry(attempt).or_default();
        uids.insert(job.uid().unwrap_or_default());
        if uids.len() > 1 {
            self.wrong.push(format!("attempt {attempt} was made {} times", uids.len()));
        }
    }
}
