//! The node: API store, controllers and kubelet in one, for one run on this machine.
//!
//! It is driven from one task: [`Node::settle`] brings objects and processes to rest, [`Node::changed`] waits until something
//! happens to a process. What it did and saw for people comes out of [`Node::notices`].

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        apps::v1::{ControllerRevision, DaemonSet, StatefulSet},
        batch::v1::Job,
        core::v1::{Container as ContainerTemplate, ContainerStatus, Lifecycle, Pod, PodStatus},
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::Instant,
};

use crate::{
    address::Subnet,
    container::{self, Container, PreStop, Restart},
    controllers::{self, Change, daemon_set, job, stateful_set},
    error::{At, Result},
    fault::Fault,
    folder::{self, Folder},
    hosts, leftovers, mount,
    mount::Claims,
    objects::{self, Objects, name},
    pod,
    probe::{Check, Probe, Prober},
    process::{MARK, Spawner},
    template::{self, Binaries, Identity, NODE},
};

/// A pod that could not be prepared is tried again after this.
const PREPARE_AGAIN: Duration = Duration::from_secs(1);
/// A cluster gives a pod this long on a lost node when it does not say.
const TOLERATION: Duration = Duration::from_secs(300);
const DEFAULT_GRACE: i64 = 30;
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

/// What the control plane knows of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// Its kubelet answers.
    Ready,
    /// Its kubelet does not answer; pods there may live on.
    Unreachable,
}

/// How a node is set up.
#[derive(Clone, Debug)]
pub struct Options {
    /// Folders of claims.
    pub claims: Claims,
    /// Where our binaries are.
    pub binaries: Binaries,
    /// Nodes to play. More than one only matters to faults and to DaemonSets.
    pub nodes: usize,
    /// Environment of every process beside its template's, which loses against this.
    pub env: BTreeMap<String, String>,
}

/// Something a person may want to know.
#[derive(Clone, Debug)]
pub enum Notice {
    /// A container runs.
    Started {
        /// Its pod.
        pod: Box<Pod>,
        /// Its process.
        pid: i32,
        /// How often it was started before.
        restarts: i32,
    },
    /// A container's process has ended.
    Ended {
        /// Its pod, as it was then.
        pod: Box<Pod>,
        /// The container's status.
        status: Box<ContainerStatus>,
    },
    /// A container is started again, only later: it has ended too often.
    BackingOff {
        /// Its pod.
        pod: Box<Pod>,
        /// How often it was started before.
        restarts: i32,
        /// When.
        wait: Duration,
    },
    /// A pod cannot be started.
    CannotStart {
        /// Its name.
        pod: String,
        /// Why.
        why: String,
    },
}

#[derive(Debug)]
struct Runtime {
    pod: String,
    node: String,
    address: Ipv4Addr,
    stop: watch::Sender<Option<Instant>>,
    ended: bool,
    /// What happened while nobody could see it.
    unseen: Vec<ContainerStatus>,
}

/// See the module.
#[derive(Debug)]
pub struct Node {
    folder: Folder,
    objects: Objects,
    options: Options,
    subnet: Subnet,
    spawner: Spawner,
    prober: Prober,
    mark: String,
    nodes: BTreeMap<String, Health>,
    unreachable_since: BTreeMap<String, Instant>,
    cordoned: BTreeSet<String>,
    runtimes: BTreeMap<String, Runtime>,
    again: BTreeMap<String, Instant>,
    tasks: JoinSet<String>,
    reports: mpsc::UnboundedReceiver<(String, ContainerStatus)>,
    report: mpsc::UnboundedSender<(String, ContainerStatus)>,
    notices: Vec<Notice>,
    hosts: Option<String>,
    killed_leftovers: usize,
}

impl Node {
    /// Starts the node of a state folder: leftovers are killed, pods of the past are closed.
    ///
    /// # Errors
    /// As of its parts: see [`crate::Error`].
    pub fn start(folder: Folder, options: Options) -> Result<Self> {
        let mark = leftovers::mark_of(&folder)?;
        let killed_leftovers = leftovers::sweep(&folder, &mark)?;
        let objects = Objects::open(&folder.objects())?;
        let seed = mark.bytes().fold(0_u64, |seed, byte| seed.wrapping_mul(31).wrapping_add(byte.into()));
        let spawner = Spawner::start(folder.processes())?;
        let prober = Prober::new(spawner.clone())?;
        let (report, reports) = mpsc::unbounded_channel();
        let nodes = match options.nodes {
            0 | 1 => BTreeMap::from([(NODE.to_owned(), Health::Ready)]),
            count => (0..count).map(|place| (format!("{NODE}-{place}"), Health::Ready)).collect(),
        };
        let mut node = Self {
            subnet: Subnet::take(seed)?,
            folder,
            objects,
            options,
            spawner,
            prober,
            mark,
            nodes,
            unreachable_since: BTreeMap::new(),
            cordoned: BTreeSet::new(),
            runtimes: BTreeMap::new(),
            again: BTreeMap::new(),
            tasks: JoinSet::new(),
            reports,
            report,
            notices: Vec::new(),
            hosts: None,
            killed_leftovers,
        };
        node.close_the_past()?;
        Ok(node)
    }

    /// Processes of an earlier node that were killed at the start.
    #[must_use]
    pub fn killed_leftovers(&self) -> usize {
        self.killed_leftovers
    }

    /// The state folder.
    #[must_use]
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// The API store.
    #[must_use]
    pub fn objects(&self) -> &Objects {
        &self.objects
    }

    /// The API store, to write. [`Node::settle`] acts on it.
    pub fn objects_mut(&mut self) -> &mut Objects {
        &mut self.objects
    }

    /// State of each node.
    #[must_use]
    pub fn nodes(&self) -> &BTreeMap<String, Health> {
        &self.nodes
    }

    /// Nodes that are cordoned.
    #[must_use]
    pub fn cordoned(&self) -> &BTreeSet<String> {
        &self.cordoned
    }

    /// Cordons a node, or lifts it.
    pub fn cordon(&mut self, node: &str, on: bool) {
        if on {
            self.cordoned.insert(node.to_owned());
        } else {
            self.cordoned.remove(node);
        }
    }

    /// False for a pod on a node that cannot be reached.
    #[must_use]
    pub fn reachable(&self, pod: &Pod) -> bool {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        node.is_none_or(|node| self.nodes.get(node) == Some(&Health::Ready))
    }

    /// What happened since the last call.
    pub fn notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    /// Folder of a claim.
    ///
    /// # Errors
    /// [`crate::Error::File`].
    pub fn volume(&self, claim: &str) -> Result<PathBuf> {
        self.options.claims.folder(claim, &self.folder)
    }

    /// Pids of a pod's process group, the first process first.
    #[must_use]
    pub fn processes(&self, pod: &str) -> Vec<i32> {
        let Some(first) = self.objects.pods.get(pod).and_then(pod::pid) else { return Vec::new() };
        let mut pids = vec![first];
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let pid = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok());
            let Some(pid) = pid.filter(|pid| *pid != first).and_then(Pid::from_raw) else { continue };
            if rustix::process::getpgid(Some(pid)).is_ok_and(|group| group.as_raw_pid() == first) {
                pids.push(pid.as_raw_pid());
            }
        }
        pids[1..].sort_unstable();
        pids
    }

    /// Waits until something happens to a process of this node, and takes it in. Cancel-safe.
    ///
    /// # Errors
    /// [`crate::Error::File`].
    pub async fn changed(&mut self) -> Result<()> {
        tokio::select! {
            Some((uid, status)) = self.reports.recv() => self.reported(&uid, status)?,
            Some(Ok(uid)) = self.tasks.join_next() => {
                self.drain()?;
                if let Some(runtime) = self.runtimes.get_mut(&uid) {
                    runtime.ended = true;
                }
            }
        }
        self.drain()
    }

    /// When [`Node::settle`] has something to do even if nothing happens.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let taints = self.objects.pods.iter().filter_map(|pod| self.evicted_at(pod));
        self.again.values().copied().chain(taints).min()
    }

    /// Runs controllers and kubelet until nothing is left to do.
    ///
    /// # Errors
    /// [`crate::Error::File`]: the state folder cannot be written.
    pub fn settle(&mut self) -> Result<()> {
        loop {
            let before = self.objects.changes();
            self.run_controllers()?;
            self.evict()?;
            self.run_kubelet()?;
            self.finish_deletions()?;
            if self.objects.changes() == before {
                break;
            }
        }
        self.write_hosts()
    }

    /// Deletes a pod: with grace, or (`force`) its record at once, whatever becomes of its processes.
    ///
    /// # Errors
    /// [`crate::Error::File`].
    pub fn delete_pod(&mut self, pod: &str, uid: Option<&str>, force: bool) -> Result<()> {
        let Some(found) = self.objects.pods.get(pod) else { return Ok(()) };
        if uid.is_some_and(|uid| found.metadata.uid.as_deref() != Some(uid)) {
            return Ok(());
        }
        if force {
            let gone = self.objects.pods.remove(pod)?;
            if let Some(runtime) = gone.and_then(|pod| pod.metadata.uid).and_then(|uid| self.runtimes.get(&uid))
                && self.nodes.get(&runtime.node) == Some(&Health::Ready)
            {
                runtime.stop.send_replace(Some(Instant::now()));
            }
            return Ok(());
        }
        self.objects.pods.update(pod, |pod| mark_deleted(&mut pod.metadata))?;
        Ok(())
    }

    /// Deletes a Job: its pods before it (`foreground`), or after it.
    ///
    /// # Errors
    /// [`crate::Error::File`].
    pub fn delete_job(&mut self, name: &str, foreground: bool) -> Result<bool> {
        let table = &mut self.objects.jobs;
        if foreground {
            table.update(name, |object| mark_deleted(&mut object.metadata))
        } else {
            Ok(table.remove(name)?.is_some())
        }
    }

    /// Deletes a StatefulSet: its pods before it (`foreground`), or after it.
    ///
    /// # Errors
    /// [`crate::Error::File`].
    pub fn delete_stateful_set(&mut self, name: &str, foreground: bool) -> Result<bool> {
        let table = &mut self.objects.stateful_sets;
        if foreground {
            table.update(name, |object| mark_deleted(&mut object.metadata))
        } else {
            Ok(table.remove(name)?.is_some())
        }
    }

    /// Deletes a DaemonSet: its pods before it (`foreground`), or after it.
    ///
    /// # Errors
    /// [`crate::Error::File`].
    pub fn delete_daemon_set(&mut self, name: &str, foreground: bool) -> Result<bool> {
        let table = &mut self.objects.daemon_sets;
        if foreground {
            table.update(name, |object| mark_deleted(&mut object.metadata))
        } else {
            Ok(table.remove(name)?.is_some())
        }
    }

    /// Deletes everything that is controlled by an object that is not in `alive` and is not one of this node's own kinds.
    ///
    /// # Errors
    /// [`crate::Error::File`].
    pub fn collect_garbage(&mut self, alive: &BTreeSet<String>) -> Result<()> {
        fn orphans<K: objects::Object>(table: &objects::Table<K>, alive: &BTreeSet<String>) -> Vec<String> {
            let orphan = |object: &&K| objects::controller(*object).is_some_and(|owner| !alive.contains(&owner.uid));
            table.iter().filter(orphan).map(|object| name(object).to_owned()).collect()
        }
        for name in orphans(&self.objects.jobs, alive) {
            self.delete_job(&name, false)?;
        }
        for name in orphans(&self.objects.stateful_sets, alive) {
            self.delete_stateful_set(&name, false)?;
        }
        for name in orphans(&self.objects.daemon_sets, alive) {
            self.delete_daemon_set(&name, false)?;
        }
        for name in orphans(&self.objects.pod_groups, alive) {
            self.objects.pod_groups.remove(&name)?;
        }
        for name in orphans(&self.objects.services, alive) {
            self.objects.services.remove(&name)?;
        }
        for name in orphans(&self.objects.config_maps, alive) {
            self.objects.config_maps.remove(&name)?;
        }
        for name in orphans(&self.objects.disruption_budgets, alive) {
            self.objects.disruption_budgets.remove(&name)?;
        }
        for name in orphans(&self.objects.secrets, alive) {
            self.objects.secrets.remove(&name)?;
        }
        Ok(())
    }

    /// Plays a fault. Returns false when what it names does not exist.
    ///
    /// # Errors
    /// [`crate::Error::File`].
    pub fn fault(&mut self, fault: &Fault) -> Result<bool> {
        match fault {
            Fault::Signal { pod, signal } => Ok(self.signal(pod, 0, *signal)),
            Fault::SignalProcess { pod, place, signal } => Ok(self.signal(pod, *place, *signal)),
            Fault::Unreachable { node } => {
                let Some(state) = self.nodes.get_mut(node) else { return Ok(false) };
                *state = Health::Unreachable;
                self.unreachable_since.insert(node.clone(), Instant::now());
                let there = self.pods_on(node);
                for pod in there {
                    self.objects.pods.update(&pod, |pod| {
                        let status = pod.status.get_or_insert_default();
                        pod::set_condition(status, "Ready", false, Some("NodeStatusUnknown"), None, Timestamp::now());
                    })?;
                }
                Ok(true)
            }
            Fault::Reachable { node } => {
                let Some(state) = self.nodes.get_mut(node) else { return Ok(false) };
                *state = Health::Ready;
                self.unreachable_since.remove(node);
                self.catch_up(node)?;
                Ok(true)
            }
            Fault::MountLost { claim } => Ok(self.move_claim(claim, "", ".lost")),
            Fault::MountBack { claim } => Ok(self.move_claim(claim, ".lost", "")),
        }
    }

    /// Stops every pod within `grace` (shorter of this and the pod's own) and waits until all have ended. May be called again
    /// with a shorter grace by dropping the future.
    ///
    /// # Errors
    /// [`crate::Error::File`].
    pub async fn stop_all(&mut self, grace: Duration) -> Result<()> {
        self.order_all_to_stop(grace);
        while self.runtimes.values().any(|runtime| !runtime.ended) {
            self.changed().await?;
        }
        Ok(())
    }

    /// Orders every pod to be gone within `grace` at most, without waiting.
    pub fn order_all_to_stop(&mut self, grace: Duration) {
        for runtime in self.runtimes.values() {
            let own = self.objects.pods.get(&runtime.pod).map_or(grace, grace_of);
            let until = Instant::now() + own.min(grace);
            runtime.stop.send_if_modified(|stop| {
                let sooner = stop.is_none_or(|before| until < before);
                if sooner {
                    *stop = Some(until);
                }
                sooner
            });
        }
    }

    /// Pods whose processes live.
    #[must_use]
    pub fn running(&self) -> Vec<String> {
        self.runtimes.values().filter(|runtime| !runtime.ended).map(|runtime| runtime.pod.clone()).collect()
    }

    fn signal(&self, pod: &str, place: usize, signal: Signal) -> bool {
        let pid = self.processes(pod).get(place).copied().and_then(Pid::from_raw);
        pid.is_some_and(|pid| kill_process(pid, signal).is_ok())
    }

    fn move_claim(&self, claim: &str, from: &str, to: &str) -> bool {
        let path = self.folder.volume(claim);
        let with = |suffix: &str| path.with_file_name(format!("{claim}{suffix}"));
        fs::rename(with(from), with(to)).is_ok()
    }

    /// No process lives when a node starts: pods of sets are made anew, those of Jobs ended with the node.
    fn close_the_past(&mut self) -> Result<()> {
        let now = Timestamp::now();
        for pod in self.objects.pods.list() {
            if objects::controller(&pod).is_some_and(|owner| owner.kind == "Job") {
                if !pod::terminal(&pod) {
                    self.objects.pods.update(name(&pod), |pod| {
                        let message = "the node that ran it has ended";
                        pod::lost(pod, "NodeShutdown", message, now);
                        let status = pod.status.get_or_insert_default();
                        pod::set_condition(status, "DisruptionTarget", true, Some("NodeShutdown"), Some(message), now);
                    })?;
                }
            } else {
                self.objects.pods.remove(name(&pod))?;
            }
        }
        let scratch = self.folder.root().join("pods");
        for entry in fs::read_dir(&scratch).at("read", &scratch)?.flatten() {
            let _ = fs::remove_dir_all(entry.path());
        }
        Ok(())
    }

    fn drain(&mut self) -> Result<()> {
        while let Ok((uid, status)) = self.reports.try_recv() {
            self.reported(&uid, status)?;
        }
        Ok(())
    }

    fn reported(&mut self, uid: &str, status: ContainerStatus) -> Result<()> {
        let Some(runtime) = self.runtimes.get_mut(uid) else { return Ok(()) };
        if self.nodes.get(&runtime.node) != Some(&Health::Ready) {
            runtime.unseen.push(status);
            return Ok(());
        }
        let pod = runtime.pod.clone();
        self.take_status(&pod, uid, status)
    }

    fn take_status(&mut self, pod: &str, uid: &str, status: ContainerStatus) -> Result<()> {
        let Some(found) = self.objects.pods.get(pod).filter(|pod| pod.metadata.uid.as_deref() == Some(uid)) else {
            return Ok(());
        };
        let state = status.state.as_ref();
        if let Some(pid) = state
            .filter(|state| state.running.is_some())
            .and(status.container_id.as_deref())
            .and_then(|id| id.strip_prefix("process://")?.parse().ok())
            .filter(|pid| pod::pid(found) != Some(*pid))
        {
            self.notices.push(Notice::Started { pod: Box::new(found.clone()), pid, restarts: status.restart_count });
        }
        if state.is_some_and(|state| state.terminated.is_some()) && !pod::terminal(found) {
            self.notices.push(Notice::Ended { pod: Box::new(found.clone()), status: Box::new(status.clone()) });
        }
        if let Some(wait) = container::backing_off(&status) {
            let (pod, restarts) = (Box::new(found.clone()), status.restart_count);
            self.notices.push(Notice::BackingOff { pod, restarts, wait });
        }
        self.objects.pods.update(pod, |pod| pod::merge(pod, status, Timestamp::now())).map(drop)
    }

    fn catch_up(&mut self, node: &str) -> Result<()> {
        let there: Vec<String> =
            self.runtimes.iter().filter(|(_, runtime)| runtime.node == node).map(|(uid, _)| uid.clone()).collect();
        for uid in there {
            let Some(runtime) = self.runtimes.get_mut(&uid) else { continue };
            let (pod, unseen) = (runtime.pod.clone(), std::mem::take(&mut runtime.unseen));
            for status in unseen {
                self.take_status(&pod, &uid, status)?;
            }
            let live = self.objects.pods.get(&pod).filter(|pod| pod.metadata.uid.as_deref() == Some(&uid));
            if live.is_none()
                && let Some(runtime) = self.runtimes.get(&uid)
            {
                // Its record was forced away: until now it was a zombie.
                runtime.stop.send_replace(Some(Instant::now()));
            }
        }
        for pod in self.pods_on(node) {
            self.objects.pods.update(&pod, |pod| {
                let last = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref()?.first().cloned());
                if let Some(status) = last.filter(|_| !pod::terminal(pod)) {
                    pod::merge(pod, status, Timestamp::now());
                }
            })?;
        }
        Ok(())
    }

    fn pods_on(&self, node: &str) -> Vec<String> {
        let there = |pod: &&Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node);
        self.objects.pods.iter().filter(there).map(|pod| name(pod).to_owned()).collect()
    }

    // ------------------------------------------------------------ controllers

    fn run_controllers(&mut self) -> Result<()> {
        let pods = self.objects.pods.list();
        let now = Timestamp::now();
        for mut job in self.objects.jobs.list() {
            if let Some(free) = controllers::queue::admitted(&job) {
                self.objects.jobs.put(free.clone())?;
                job = free;
            }
            let owned = controllers::owned(&job, pods.iter());
            let (changes, status) = job::reconcile(&job, &owned, now);
            self.carry_out(changes)?;
            self.objects.jobs.update(name(&job), |job| job.status = Some(status))?;
        }
        let revisions: Vec<ControllerRevision> = self.objects.revisions.list();
        for set in self.objects.stateful_sets.list() {
            let owned = controllers::owned(&set, pods.iter());
            let own = revisions.iter().filter(|one| objects::owns(&set, *one)).map(|one| (name(one), one)).collect();
            let (changes, status, revision) = stateful_set::reconcile(&set, &owned, &own);
            if let Some(revision) = revision {
                self.objects.revisions.apply(revision, now)?;
            }
            self.carry_out(changes)?;
            self.objects.stateful_sets.update(name(&set), |set| set.status = Some(status))?;
        }
        let nodes: Vec<String> = self.nodes.keys().cloned().collect();
        for set in self.objects.daemon_sets.list() {
            let owned = controllers::owned(&set, pods.iter());
            let (changes, status) = daemon_set::reconcile(&set, &owned, &nodes);
            self.carry_out(changes)?;
            self.objects.daemon_sets.update(name(&set), |set| set.status = Some(status))?;
        }
        Ok(())
    }

    fn carry_out(&mut self, changes: Vec<Change>) -> Result<()> {
        for change in changes {
            match change {
                Change::Create(pod) => {
                    if self.objects.pods.get(name(&*pod)).is_none() {
                        self.create(*pod)?;
                    }
                }
                Change::Delete(pod) => self.delete_pod(&pod, None, false)?,
                Change::Release(pod) => {
                    self.objects.pods.update(&pod, |pod| {
                        let finalizers = pod.metadata.finalizers.take().unwrap_or_default();
                        let rest: Vec<String> = finalizers.into_iter().filter(|one| one != job::TRACKING).collect();
                        pod.metadata.finalizers = (!rest.is_empty()).then_some(rest);
                    })?;
                }
            }
        }
        Ok(())
    }

    fn create(&mut self, mut pod: Pod) -> Result<()> {
        let now = Timestamp::now();
        if pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_none()) {
            let load =
                |node: &str| self.runtimes.values().filter(|runtime| !runtime.ended && runtime.node == node).count();
            let free =
                self.nodes.iter().filter(|(node, state)| **state == Health::Ready && !self.cordoned.contains(*node));
            let node =
                free.min_by_key(|(node, _)| (load(node), self.pods_on(node).len())).map(|(node, _)| node.clone());
            let Some(spec) = &mut pod.spec else { return Ok(()) };
            spec.node_name = node;
        }
        let mut status = PodStatus { phase: Some("Pending".into()), ..Default::default() };
        let scheduled = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
        let why = (!scheduled).then_some("Unschedulable");
        pod::set_condition(&mut status, "PodScheduled", scheduled, why, None, now);
        pod.status = Some(status);
        self.objects.pods.apply(pod, now).map(drop)
    }

    /// What the taint manager does to pods of a node that stays unreachable.
    fn evict(&mut self) -> Result<()> {
        let due: Vec<String> = self
            .objects
            .pods
            .iter()
            .filter(|pod| self.evicted_at(pod).is_some_and(|at| at <= Instant::now()))
            .map(|pod| name(pod).to_owned())
            .collect();
        for pod in due {
            self.objects.pods.update(&pod, |pod| {
                mark_deleted(&mut pod.metadata);
                let status = pod.status.get_or_insert_default();
                let message = Some("Taint manager: deleting due to NoExecute taint");
                pod::set_condition(
                    status,
                    "DisruptionTarget",
                    true,
                    Some("DeletionByTaintManager"),
                    message,
                    Timestamp::now(),
                );
            })?;
        }
        Ok(())
    }

    fn evicted_at(&self, pod: &Pod) -> Option<Instant> {
        if pod.metadata.deletion_timestamp.is_some() || pod::terminal(pod) {
            return None;
        }
        let spec = pod.spec.as_ref()?;
        let since = *self.unreachable_since.get(spec.node_name.as_deref()?)?;
        if objects::controller(pod).is_some_and(|owner| owner.kind == "DaemonSet") {
            return None;
        }
        let seconds = spec.tolerations.iter().flatten().find_map(|one| {
            let fits = one.key.as_deref().is_none_or(|key| key == UNREACHABLE)
                && one.effect.as_deref().is_none_or(|effect| effect == "NoExecute");
            fits.then_some(one.toleration_seconds)
        });
        match seconds {
            None => Some(since + TOLERATION),
            Some(None) => None,
            Some(Some(seconds)) => Some(since + Duration::from_secs(seconds.max(0).unsigned_abs())),
        }
    }

    // ------------------------------------------------------------ kubelet

    fn run_kubelet(&mut self) -> Result<()> {
        for pod in self.objects.pods.list() {
            let Some(uid) = pod.metadata.uid.clone() else { continue };
            if !self.reachable(&pod) {
                continue;
            }
            let deleted = pod.metadata.deletion_timestamp.is_some();
            match self.runtimes.get(&uid) {
                Some(runtime) if deleted && runtime.stop.borrow().is_none() => {
                    runtime.stop.send_replace(Some(Instant::now() + grace_of(&pod)));
                }
                Some(_) => {}
                None if !deleted && !pod::terminal(&pod) && self.due(&uid) => self.start_pod(&pod, &uid)?,
                None if deleted && !pod::terminal(&pod) => {
                    // Deleted before it ever ran.
                    self.objects.pods.update(name(&pod), |pod| {
                        pod::lost(pod, "Deleted", "deleted before it was started", Timestamp::now());
                    })?;
                }
                None => {}
            }
        }
        Ok(())
    }

    fn due(&self, uid: &str) -> bool {
        self.again.get(uid).is_none_or(|at| *at <= Instant::now())
    }

    fn start_pod(&mut self, pod: &Pod, uid: &str) -> Result<()> {
        if pod.spec.as_ref().is_none_or(|spec| spec.node_name.is_none()) {
            return Ok(());
        }
        let address = self.subnet.assign(name(pod))?;
        match self.prepare(pod, uid, address) {
            Ok(containers) => {
                self.again.remove(uid);
                let (stop, orders) = watch::channel(None);
                let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
                self.runtimes.insert(
                    uid.to_owned(),
                    Runtime { pod: name(pod).to_owned(), node, address, stop, ended: false, unseen: Vec::new() },
                );
                self.objects.pods.update(name(pod), |pod| {
                    let status = pod.status.get_or_insert_default();
                    status.pod_ip = Some(address.to_string());
                    status.host_ip = Some(address.to_string());
                    status.start_time = Some(Time(Timestamp::now()));
                    pod::set_condition(status, "Initialized", true, None, None, Timestamp::now());
                })?;
                let (spawner, prober, report) = (self.spawner.clone(), self.prober.clone(), self.report.clone());
                let uid = uid.to_owned();
                self.tasks.spawn(async move {
                    let mut lives = JoinSet::new();
                    for container in containers {
                        let (spawner, prober, report) = (spawner.clone(), prober.clone(), report.clone());
                        lives.spawn(container::run(container, uid.clone(), spawner, prober, orders.clone(), report));
                    }
                    lives.join_all().await;
                    uid
                });
                Ok(())
            }
            Err(error @ crate::Error::Template { .. }) => {
                self.subnet.release(address);
                if self.again.insert(uid.to_owned(), Instant::now() + PREPARE_AGAIN).is_none() {
                    self.notices.push(Notice::CannotStart { pod: name(pod).to_owned(), why: error.to_string() });
                }
                self.objects.pods.update(name(pod), |pod| {
                    let containers: Vec<_> = pod.spec.iter().flat_map(|spec| spec.containers.clone()).collect();
                    for container in containers {
                        let status = ContainerStatus {
                            name: container.name,
                            image: container.image.unwrap_or_default(),
                            state: Some(pod::waiting("CreateContainerConfigError", Some(error.to_string()))),
                            ..Default::default()
                        };
                        pod::merge(pod, status, Timestamp::now());
                    }
                })?;
                Ok(())
            }
            Err(error) => {
                self.subnet.release(address);
                Err(error)
            }
        }
    }

    fn prepare(&self, pod: &Pod, uid: &str, address: Ipv4Addr) -> Result<Vec<Container>> {
        let address = address.to_string();
        let refused = |field: &str, reason: &str| {
            Err(crate::Error::Template { pod: name(pod).into(), field: field.into(), reason: reason.into() })
        };
        let Some(spec) = &pod.spec else { return refused("spec", "is missing") };
        if spec.init_containers.as_ref().is_some_and(|list| !list.is_empty()) {
            return refused("spec.initContainers", "do not run on a laptop: remove them from the podTemplate here");
        }
        let folder = self.folder.pod(name(pod), uid);
        fs::create_dir_all(&folder).at("create", &folder)?;
        let volumes = mount::materialise(pod, &address, &self.folder, &self.objects, &self.options.claims)?;
        let identity = Identity { pod, address: &address };
        let mut env = self.options.env.clone();
        env.insert(control::names::HOSTS_FILE.into(), self.folder.hosts().display().to_string());
        env.insert(MARK.into(), self.mark.clone());
        let restart = Restart::read(spec.restart_policy.as_deref());
        let grace = grace_of(pod);
        spec.containers
            .iter()
            .enumerate()
            .map(|(place, container)| {
                let mounts = mount::mounts(pod, container, &volumes)?;
                let binaries = &self.options.binaries;
                let program = template::program(identity, container, &self.objects, &mounts, binaries, &env, &folder)?;
                let exec = |command: &[String]| {
                    let field = format!("spec.containers[{}]", container.name);
                    template::exec(&program, command, &mounts, binaries, name(pod), &field)
                };
                let probe = |probe: &Option<k8s_openapi::api::core::v1::Probe>| {
                    probe.as_ref().map(|probe| Probe::read(probe, container, &address, name(pod), exec)).transpose()
                };
                Ok(Container {
                    startup: probe(&container.startup_probe)?,
                    readiness: probe(&container.readiness_probe)?,
                    liveness: probe(&container.liveness_probe)?,
                    pre_stop: pre_stop(container.lifecycle.as_ref(), container, &address, name(pod), exec)?,
                    name: container.name.clone(),
                    image: container.image.clone().unwrap_or_default(),
                    log: self.folder.log(name(pod), (place > 0).then_some(container.name.as_str())),
                    program,
                    restart,
                    grace,
                })
            })
            .collect()
    }

    fn finish_deletions(&mut self) -> Result<()> {
        let (objects, runtimes, subnet, folder) =
            (&mut self.objects, &mut self.runtimes, &mut self.subnet, &self.folder);
        // Pods whose controller is gone (deleted in the background) or waits for them (in the foreground).
        let owners: BTreeSet<String> = uids(objects.jobs.iter())
            .chain(uids(objects.stateful_sets.iter()))
            .chain(uids(objects.daemon_sets.iter()))
            .collect();
        for pod in objects.pods.list() {
            let orphan = objects::controller(&pod).is_some_and(|owner| !owners.contains(&owner.uid));
            if orphan {
                objects.pods.update(name(&pod), |pod| {
                    pod.metadata.finalizers = None;
                    mark_deleted(&mut pod.metadata);
                })?;
            }
        }
        for pod in objects.pods.list() {
            let meta = &pod.metadata;
            let held = meta.finalizers.as_ref().is_some_and(|list| !list.is_empty());
            let running = meta.uid.as_ref().and_then(|uid| runtimes.get(uid)).is_some_and(|runtime| !runtime.ended);
            let seen_to_end =
                self.nodes.get(pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default())
                    != Some(&Health::Unreachable);
            if meta.deletion_timestamp.is_some() && !held && !running && seen_to_end && pod::terminal(&pod) {
                objects.pods.remove(name(&pod))?;
            }
        }
        runtimes.retain(|uid, runtime| {
            let known = objects.pods.get(&runtime.pod).is_some_and(|pod| pod.metadata.uid.as_ref() == Some(uid));
            let keep = !runtime.ended || known;
            if !keep {
                subnet.release(runtime.address);
                let _ = fs::remove_dir_all(folder.pod(&runtime.pod, uid));
            }
            keep
        });
        self.again.retain(|uid, _| objects.pods.iter().any(|pod| pod.metadata.uid.as_ref() == Some(uid)));
        let pods = objects.pods.list();
        for job in childless::<Job>(objects.jobs.iter(), &pods) {
            objects.jobs.remove(&job)?;
        }
        for set in childless::<StatefulSet>(objects.stateful_sets.iter(), &pods) {
            objects.stateful_sets.remove(&set)?;
        }
        for set in childless::<DaemonSet>(objects.daemon_sets.iter(), &pods) {
            objects.daemon_sets.remove(&set)?;
        }
        let sets: BTreeSet<String> = uids(objects.stateful_sets.iter()).collect();
        for revision in objects.revisions.list() {
            if objects::controller(&revision).is_none_or(|owner| !sets.contains(&owner.uid)) {
                objects.revisions.remove(name(&revision))?;
            }
        }
        Ok(())
    }

    fn write_hosts(&mut self) -> Result<()> {
        let pods: Vec<&Pod> = self.objects.pods.iter().collect();
        let text = hosts::render(self.objects.services.iter(), &pods, |pod| !self.reachable(pod));
        if self.hosts.as_ref() != Some(&text) {
            folder::replace(&self.folder.hosts(), text.as_bytes())?;
            self.hosts = Some(text);
        }
        Ok(())
    }
}

/// Uids of objects that are there to stay.
fn uids<'a, K: objects::Object + 'a>(objects: impl Iterator<Item = &'a K>) -> impl Iterator<Item = String> {
    objects.filter(|object| object.meta().deletion_timestamp.is_none()).filter_map(|object| object.meta().uid.clone())
}

/// Objects under deletion without pods left.
fn childless<'a, K: objects::Object + 'a>(all: impl Iterator<Item = &'a K>, pods: &[Pod]) -> Vec<String> {
    all.filter(|object| {
        object.meta().deletion_timestamp.is_some() && !pods.iter().any(|pod| objects::owns(*object, pod))
    })
    .map(|object| name(object).to_owned())
    .collect()
}

fn mark_deleted(meta: &mut k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta) {
    meta.deletion_timestamp.get_or_insert_with(|| Time(Timestamp::now()));
}

fn grace_of(pod: &Pod) -> Duration {
    let seconds = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds).unwrap_or(DEFAULT_GRACE);
    Duration::from_secs(seconds.max(0).unsigned_abs())
}

fn pre_stop(
    lifecycle: Option<&Lifecycle>,
    container: &ContainerTemplate,
    address: &str,
    pod: &str,
    exec: impl Fn(&[String]) -> Result<crate::process::Program>,
) -> Result<Option<PreStop>> {
    let Some(hook) = lifecycle.and_then(|lifecycle| lifecycle.pre_stop.as_ref()) else { return Ok(None) };
    if let Some(run) = &hook.exec {
        return Ok(Some(PreStop::Do(Check::Exec(exec(run.command.as_deref().unwrap_or_default())?))));
    }
    if let Some(get) = &hook.http_get {
        return Ok(Some(PreStop::Do(crate::probe::http(get, container, address, pod)?)));
    }
    if let Some(pause) = &hook.sleep {
        return Ok(Some(PreStop::Sleep(Duration::from_secs(pause.seconds.max(0).unsigned_abs()))));
    }
    Ok(None)
}

/// Folder beside a manifest whose sub-folders fill new claims.
#[must_use]
pub fn seeds_beside(manifest: &Path) -> Option<PathBuf> {
    let folder = manifest.canonicalize().ok()?.parent()?.join("volumes");
    folder.is_dir().then_some(folder)
}
