//! A small world for `decide`: keeps objects as an API server would, plays the Job controller, kubelets and a conductor, and
//! executes plans as an executor must.
#![allow(dead_code)]

use std::collections::{BTreeMap, BTreeSet};

use api::{RLJob, RLJobStatus, conditions as cond, labels};
use k8s_openapi::api::batch::v1::{Job, JobCondition, JobStatus};
use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateTerminated, ContainerStatus, Pod, PodCondition, PodSpec, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use plan::{
    Action, Child, ChildKind, Conductor, ConductorSettings, Event, Images, Listing, NodeState, Plan, Quota, Report,
    Settings, StorageState, Target, World, pod_facts, rljob,
};

/// `rljob::decide`, or something that is to be told from it.
pub type Decide = fn(&RLJob, &World, Timestamp, &Settings) -> Plan<RLJobStatus>;

/// What really happened to an attempt, whatever was seen of it.
#[derive(Clone, Debug, Default)]
pub struct Truth {
    pub exits: BTreeSet<i32>,
    pub disrupted: bool,
    pub out_of_memory: bool,
    pub pod_deleted: bool,
    pub job_deleted: bool,
    /// Its queue took the quota back.
    pub preempted: bool,
    pub node_lost: bool,
    /// First harm, by the operator's clock and by one that nobody sets.
    pub first_harm: Option<(Timestamp, i64)>,
}

/// What caches showed at an earlier look.
struct Past {
    job: RLJob,
    jobs: Vec<Child>,
    pods: Vec<Pod>,
    report: Report,
}

/// How old what a decision sees is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stale {
    pub behind: usize,
    /// The object itself is old, too: a status write is refused.
    pub object: bool,
    /// The conductor's report is old, too.
    pub report: bool,
}

pub struct Sim {
    pub decide: Decide,
    /// Faults against what an API server and its users may expect panic, or are gathered.
    pub strict: bool,
    pub faults: Vec<(&'static str, String)>,
    pub job: RLJob,
    pub now: Timestamp,
    pub settings: Settings,
    pub children: Vec<Child>,
    pub pods: Vec<Pod>,
    pub nodes: BTreeMap<String, NodeState>,
    pub report: Report,
    /// The conductor answers.
    pub conductor_up: bool,
    /// The conductor takes settings.
    pub conductor_holds: bool,
    /// The conductor fulfils checkpoint requests.
    pub checkpoints_answer: bool,
    /// Trainer pods become ready.
    pub pods_ready: bool,
    /// Deleted pods stay.
    pub pods_linger: bool,
    /// The cache does not show Jobs.
    pub hide_jobs: bool,
    /// A trainer that was asked to stops by itself after its checkpoint.
    pub stops_itself: bool,
    /// Workers are ready.
    pub workers_ready: bool,
    pub storage: Option<StorageState>,
    /// Engines the conductor calls ready, if not all.
    pub engines_ready: Option<u32>,
    /// Who holds the writer's role, if not we.
    pub writer: Option<(String, String)>,
    pub listing: Option<Listing>,
    /// The queue lets go what waits in it.
    pub queue_open: bool,
    pub quota: Option<Quota>,
    pub cordoned: BTreeSet<String>,
    /// Newest last; one for each change.
    past: Vec<Past>,
    /// What became of attempts.
    pub truth: BTreeMap<u64, Truth>,
    /// Nodes that had a pod of an attempt.
    placed: BTreeSet<(String, u64)>,
    /// How often a Job of that number was made.
    pub made: BTreeMap<u64, u32>,
    /// Attempts whose Job was removed by a hand before status had its uid.
    pub removed_unseen: BTreeSet<u64>,
    /// Writes to serving or pool that edits have given reason for.
    template_edits: u64,
    pub created: Vec<String>,
    pub applied: Vec<String>,
    pub told: Vec<ConductorSettings>,
    pub requests: Vec<(String, bool)>,
    pub last_actions: Vec<Action>,
    pub last_events: Vec<Event>,
    /// The last decision saw the present, and was executed to its end.
    pub last_whole: bool,
    /// The last decision saw a disruption of the living attempt, and all its pods ended.
    pub last_saw: (bool, bool),
    pub requeue: Option<Timestamp>,
    pub writes: usize,
    /// Rises with every change of objects or report.
    stamp: u64,
    past_stamp: u64,
    /// Milliseconds that passed, by a clock that nobody sets.
    pub mono: i64,
    uids: u64,
    versions: u64,
    rank_clock: i64,
}

impl Sim {
    pub fn new() -> Self {
        let mut job = super::cases::job();
        job.metadata.uid = Some("uid-run".into());
        job.metadata.namespace = Some("rl".into());
        job.metadata.generation = Some(1);
        let settings = Settings { poll_interval: std::time::Duration::from_millis(200), ..Settings::laptop() };
        let settings =
            Settings { images: Images { trainer_cpu: "trainer:1".into(), rollout: "rollout:1".into() }, ..settings };
        Self {
            decide: rljob::decide,
            strict: true,
            faults: vec![],
            job,
            now: Timestamp::from_second(1_800_000_000).unwrap(),
            settings,
            children: vec![],
            pods: vec![],
            nodes: BTreeMap::new(),
            report: Report { total_steps: 50, trainer_live: true, ..Report::default() },
            conductor_up: true,
            conductor_holds: true,
            checkpoints_answer: true,
            pods_ready: true,
            pods_linger: false,
            hide_jobs: false,
            stops_itself: false,
            workers_ready: true,
            storage: None,
            engines_ready: None,
            writer: None,
            listing: None,
            queue_open: true,
            quota: None,
            cordoned: BTreeSet::new(),
            past: vec![],
            truth: BTreeMap::new(),
            placed: BTreeSet::new(),
            made: BTreeMap::new(),
            removed_unseen: BTreeSet::new(),
            template_edits: 0,
            created: vec![],
            applied: vec![],
            told: vec![],
            requests: vec![],
            last_actions: vec![],
            last_events: vec![],
            last_whole: false,
            last_saw: (false, false),
            requeue: None,
            writes: 0,
            stamp: 1,
            past_stamp: 0,
            mono: 0,
            uids: 0,
            versions: 0,
            rank_clock: 0,
        }
    }

    pub fn with_nodes(nodes: u32) -> Self {
        let mut sim = Self::new();
        sim.job.spec.trainer.nodes = nodes;
        sim.job.spec.trainer.parallelism.dp = None;
        sim
    }

    pub fn status(&self) -> &RLJobStatus {
        self.job.status.as_ref().expect("no status yet")
    }

    pub fn condition(&self, type_: &str) -> (&str, &str) {
        let c = cond::get(&self.status().conditions, type_).expect("no such condition");
        (c.status.as_str(), c.reason.as_str())
    }

    pub fn last_outcome(&self) -> api::Outcome {
        self.status().last_attempt.as_ref().expect("no attempt has ended").outcome
    }

    pub fn count(&self, kind: ChildKind) -> usize {
        self.children.iter().filter(|c| c.kind() == kind).count()
    }

    pub fn finalizers(&self) -> Vec<String> {
        self.job.metadata.finalizers.clone().unwrap_or_default()
    }

    pub fn serving_writes(&self) -> usize {
        let is = |c: &&String| c.starts_with("ServingCluster") || c.starts_with("RolloutPool");
        self.created.iter().filter(is).count() + self.applied.iter().filter(is).count()
    }

    pub fn edit(&mut self, f: impl FnOnce(&mut RLJob)) {
        let templates =
            |j: &RLJob| (j.spec.serving.clone(), j.spec.rollout.clone(), j.spec.suspend, j.spec.suspend_policy.clone());
        let before = templates(&self.job);
        f(&mut self.job);
        self.written();
        // A suspension may put engines to sleep, so it counts.
        self.template_edits += u64::from(before != templates(&self.job));
        self.stamp += 1;
        *self.job.metadata.generation.as_mut().unwrap() += 1;
    }

    /// The API server gives the RLJob a new version.
    fn written(&mut self) {
        self.versions += 1;
        self.job.metadata.resource_version = Some(self.versions.to_string());
    }

    pub fn delete(&mut self) {
        self.job.metadata.deletion_timestamp = Some(Time(self.now));
        self.written();
        self.stamp += 1;
    }

    pub fn advance_ms(&mut self, ms: i64) {
        self.mono += ms;
        self.set_clock_ms(ms);
    }

    /// Somebody sets the operator's clock.
    pub fn set_clock_ms(&mut self, ms: i64) {
        self.now = self.now.checked_add(SignedDuration::from_millis(ms)).unwrap();
    }

    fn wait_until(&mut self, t: Timestamp) {
        let ms = t.duration_since(self.now).as_millis();
        self.advance_ms(i64::try_from(ms).unwrap().max(0));
        self.now = self.now.max(t);
    }

    fn fault(&mut self, rule: &'static str, what: String) {
        assert!(!self.strict, "{rule}: {what}");
        self.faults.push((rule, what));
    }

    fn serving_mut(&mut self) -> &mut api::ServingCluster {
        self.children
            .iter_mut()
            .find_map(|c| match c {
                Child::ServingCluster(s) => Some(&mut **s),
                _ => None,
            })
            .unwrap()
    }

    pub fn scale_serving(&mut self, n: u32) {
        self.serving_mut().spec.replicas = n;
    }

    pub fn serving_replicas(&mut self) -> u32 {
        self.serving_mut().spec.replicas
    }

    /// What a decision sees.
    pub fn world(&mut self) -> World {
        let mut world = self.lend();
        self.children.clone_from(&world.children);
        self.pods.clone_from(&world.pods);
        if self.hide_jobs {
            world.children.retain(|c| c.kind() != ChildKind::Job);
        }
        world
    }

    /// The same, with the very objects: they must be given back.
    fn lend(&mut self) -> World {
        let conductor = match self.conductor_answers() {
            true => Conductor::Report(Box::new(self.full_report())),
            false => Conductor::Unreachable,
        };
        World {
            children: std::mem::take(&mut self.children),
            pods: std::mem::take(&mut self.pods),
            nodes: self.nodes.clone(),
            cordoned: self.cordoned.clone(),
            conductor,
            storage: self.storage,
            quota: self.quota.clone(),
            listing: self.listing.take(),
        }
    }

    /// It lives on a node that can be reached, and nothing keeps it from answering.
    pub fn conductor_answers(&self) -> bool {
        let pod = self.pods.iter().find(|p| pod_facts::role(p) == "conductor");
        self.conductor_up && pod.is_some_and(|p| !self.on_lost_node(p))
    }

    fn full_report(&self) -> Report {
        let engines = self.children.iter().find_map(|c| match c {
            Child::ServingCluster(s) => Some(s.spec.replicas),
            _ => None,
        });
        let mut report = self.report.clone();
        report.engines = engines.unwrap_or(0);
        report.engines_ready = self.engines_ready.unwrap_or(report.engines);
        report.workers = if self.workers_ready { 2 } else { 0 };
        report
    }

    fn on_lost_node(&self, pod: &Pod) -> bool {
        pod_facts::node(pod).is_some_and(|n| self.nodes.contains_key(n))
    }

    /// One decision, executed.
    pub fn pass(&mut self) {
        self.crash_after(usize::MAX);
    }

    /// One decision; the operator dies after its status write and this many actions.
    pub fn crash_after(&mut self, actions: usize) {
        self.remember();
        let world = if self.hide_jobs { self.world() } else { self.lend() };
        self.look_at(&world);
        let plan = (self.decide)(&self.job, &world, self.now, &self.settings);
        if !self.hide_jobs {
            (self.children, self.pods) = (world.children, world.pods);
        }
        self.last_whole = actions >= plan.actions.len() && !self.hide_jobs;
        self.carry_out(plan, actions, true);
        if actions != usize::MAX {
            // What it had listed dies with it.
            self.listing = None;
        }
    }

    /// A life of the operator that ends with the first thing it writes.
    pub fn life_of_one_write(&mut self) {
        for _ in 0..8 {
            self.remember();
            let world = self.world();
            let plan = (self.decide)(&self.job, &world, self.now, &self.settings);
            if plan.status.is_some() {
                self.carry_out(plan, 0, true);
                break;
            }
            let before = self.stamp;
            for action in plan.actions {
                self.execute(action);
                if self.stamp != before {
                    break;
                }
            }
            if self.stamp != before || self.listing.is_none() {
                break;
            }
        }
        // What it had listed dies with it.
        self.listing = None;
    }

    /// Caches of a later look may still show this.
    fn remember(&mut self) {
        if self.past_stamp == self.stamp {
            return;
        }
        self.past_stamp = self.stamp;
        let (jobs, report) = (self.children.iter().filter(|c| of_attempt(c)).cloned().collect(), self.full_report());
        self.past.push(Past { job: self.job.clone(), jobs, pods: self.pods.clone(), report });
        if self.past.len() > 8 {
            self.past.remove(0);
        }
    }

    /// One decision over what caches showed some changes ago; of an old object, a status write is refused.
    pub fn stale_pass(&mut self, stale: Stale) {
        self.remember();
        // Nothing may have been decided on what is true now.
        self.last_whole = false;
        let Some(at) = self.past.len().checked_sub(stale.behind + 1) else { return };
        let mut world = self.world();
        let past = &self.past[at];
        // ServingCluster and RolloutPool are other watches; what matters here is Jobs and pods.
        world.children.retain(|c| !of_attempt(c));
        world.children.extend(past.jobs.iter().cloned());
        world.pods.clone_from(&past.pods);
        if let (Conductor::Report(r), true) = (&mut world.conductor, stale.report) {
            **r = past.report.clone();
        }
        let current = !stale.object || past.job == self.job;
        let seen = if stale.object { past.job.clone() } else { self.job.clone() };
        // It may write what an old template says, and must then write the new one again.
        self.template_edits += if current { 0 } else { 2 };
        self.look_at(&world);
        let plan = (self.decide)(&seen, &world, self.now, &self.settings);
        self.last_whole = false;
        self.carry_out(plan, usize::MAX, current);
    }

    /// Takes note of what the decision has before it, for whoever judges it.
    fn look_at(&mut self, world: &World) {
        let Some(a) = self.job.status.as_ref().and_then(|s| s.attempt.as_ref()) else { return };
        let pods = || world.pods.iter().filter(|p| pod_facts::attempt(&p.metadata) == a.id);
        let disrupted = pods().any(|p| {
            pod_facts::condition(p, "DisruptionTarget").is_some_and(|(t, why, _)| t == "True" && why != MEMORY)
        });
        let ended = pods().count() >= a.nodes as usize && pods().all(pod_facts::ended);
        self.last_saw = (disrupted, ended);
    }

    fn carry_out(&mut self, plan: Plan<RLJobStatus>, actions: usize, current: bool) {
        self.requeue = plan.requeue_at;
        self.last_events = plan.events;
        self.last_actions.clear();
        if let Some(status) = plan.status {
            if !current {
                return;
            }
            self.writes += 1;
            self.stamp += 1;
            let asleep = |s: &RLJobStatus| cond::is_true(&s.conditions, cond::SUSPENDED);
            if self.job.status.as_ref().is_some_and(asleep) != asleep(&status) {
                // What is asked of engines in a suspension begins when the trainer has ended.
                self.template_edits += 1;
            }
            // Through JSON, as the API server would keep it.
            self.job.status = Some(serde_json::from_str(&serde_json::to_string(&status).unwrap()).unwrap());
            self.written();
        }
        self.last_actions.clone_from(&plan.actions);
        for action in plan.actions.into_iter().take(actions) {
            self.execute(action);
        }
    }

    /// Attempts with a pod that may still write.
    pub fn unfenced_attempts(&self) -> BTreeSet<u64> {
        let fence = self.told.iter().map(|t| t.fence_attempts_up_to).max().unwrap_or(0);
        self.pods
            .iter()
            .filter(|p| pod_facts::role(p) == "trainer" && self.may_live(p))
            .map(|p| pod_facts::attempt(&p.metadata))
            .filter(|n| *n > fence)
            .collect()
    }

    /// Its containers are not known to have ended, and its node is not known to be gone.
    pub fn may_live(&self, p: &Pod) -> bool {
        !pod_facts::ended(p) && pod_facts::node(p).and_then(|n| self.nodes.get(n)) != Some(&NodeState::Gone)
    }

    pub fn has_pod(&self, index: u32) -> bool {
        let Some(a) = self.job.status.as_ref().and_then(|s| s.attempt.as_ref()) else { return false };
        self.pods.iter().any(|p| {
            pod_facts::attempt(&p.metadata) == a.id && pod_facts::index(p) == Some(index) && !pod_facts::ended(p)
        })
    }

    pub fn set_node(&mut self, index: u32, state: Option<NodeState>) {
        let name = format!("node-{index}");
        if state.is_some() {
            // A cache may still show pods that have ended, or are gone, as running there.
            let hit: BTreeSet<u64> = self.placed.iter().filter(|(n, _)| *n == name).map(|(_, a)| *a).collect();
            hit.into_iter().for_each(|n| self.harm(n).node_lost = true);
        }
        match state {
            // What is gone does not come back.
            _ if self.nodes.get(&name) == Some(&NodeState::Gone) => {}
            Some(s) => {
                self.nodes.insert(name, s);
            }
            None => {
                self.nodes.remove(&name);
            }
        }
    }

    /// Everything heals.
    pub fn calm(&mut self) {
        self.nodes.retain(|_, s| *s == NodeState::Gone);
        self.conductor_up = true;
        self.conductor_holds = true;
        self.checkpoints_answer = true;
        self.pods_ready = true;
        self.pods_linger = false;
        self.workers_ready = true;
        self.engines_ready = None;
        self.storage = None;
        self.writer = None;
        self.queue_open = true;
        self.quota = None;
        // Whatever had our names is gone.
        self.children.retain(|c| c.label(labels::RLJOB_UID) == Some("uid-run"));
        let gone = self.nodes.clone();
        let stays = |p: &Pod| pod_facts::node(p).is_none_or(|n| !gone.contains_key(n));
        self.drop_pods(stays, "PodFailurePolicy", "Pod has condition DisruptionTarget");
    }

    fn execute(&mut self, action: Action) {
        match action {
            Action::Create(child) => {
                let taken = self.children.iter().any(|c| c.kind() == child.kind() && c.name() == child.name());
                if let Child::Job(j) = &child {
                    self.check_creation(pod_facts::attempt(&j.metadata), taken);
                }
                // What an owner that is gone would own is collected at once.
                if !taken && !self.is_gone() {
                    self.store(child, true);
                }
            }
            Action::Apply(child) => {
                let there = self.children.iter().find(|c| c.kind() == child.kind() && c.name() == child.name());
                // Of what the decision may have seen as it was before, it cannot know.
                if !of_attempt(&child) && there.is_some_and(|c| written_from(c) > written_from(&child)) {
                    self.fault(OLDER, format!("{:?} {}", child.kind(), child.name()));
                }
                if matches!(child.kind(), ChildKind::ServingCluster | ChildKind::RolloutPool) {
                    if self.template_edits == 0 || self.children.contains(&child) {
                        let what = format!("{:?} is written although no template was edited", child.kind());
                        self.fault("nothing that happens to a trainer writes to serving or pool", what);
                    }
                    self.template_edits = self.template_edits.saturating_sub(1);
                }
                self.store(child, false)
            }
            Action::Delete(target) => self.remove(&target),
            Action::DeletePod { uid, force, .. } => self.end_pod(&uid, force),
            Action::Tell(settings) => {
                if self.conductor_answers() && self.conductor_holds && settings.number > self.report.settings_number {
                    self.stamp += 1;
                    self.report.settings_number = settings.number;
                    self.told.push(settings);
                }
            }
            Action::RequestCheckpoint { id, then_stop, attempt } => {
                if !self.requests.iter().any(|(known, _)| *known == id) {
                    self.requests.push((id.clone(), then_stop));
                }
                if self.checkpoints_answer && self.report.attempt == attempt && self.report.checkpoints_done.insert(id)
                {
                    self.stamp += 1;
                    self.report.commits += 1;
                    if then_stop && self.stops_itself {
                        let alive = |p: &&Pod| pod_facts::attempt(&p.metadata) == attempt && !pod_facts::ended(p);
                        let ranks: Vec<u32> = self.pods.iter().filter(alive).filter_map(pod_facts::index).collect();
                        ranks.into_iter().for_each(|i| self.exit_pod_of(attempt, i, 75));
                    }
                }
            }
            Action::ConfirmGone => {
                let jobs: Vec<Job> = self
                    .children
                    .iter()
                    .filter_map(|c| match c {
                        Child::Job(j) => Some((**j).clone()),
                        _ => None,
                    })
                    .collect();
                let pods: Vec<Pod> = self.pods.iter().filter(|p| pod_facts::role(p) == "trainer").cloned().collect();
                self.listing = Some(Listing::of(&jobs, &pods).at(self.job.metadata.resource_version.clone()));
            }
            Action::DeleteSelf { uid } => {
                if self.job.metadata.uid.as_ref() == Some(&uid) && self.job.metadata.deletion_timestamp.is_none() {
                    self.delete();
                }
            }
            Action::AddFinalizer(f) => {
                self.stamp += 1;
                self.written();
                let list = self.job.metadata.finalizers.get_or_insert_default();
                if !list.iter().any(|x| x == f) {
                    list.push(f.into());
                }
            }
            Action::RemoveFinalizer(f) => {
                self.stamp += 1;
                self.written();
                let alive = |p: &&Pod| !pod_facts::ended(p) && !self.on_lost_node(p);
                let left: Vec<String> = self
                    .children
                    .iter()
                    .filter(|c| matches!(c.kind(), ChildKind::Job | ChildKind::StatefulSet))
                    .map(|c| c.name().to_owned())
                    .chain(self.pods.iter().filter(alive).map(|p| pod_facts::name(p).to_owned()))
                    .collect();
                if !left.is_empty() {
                    self.fault("a deleted run is let go when nothing of it can write", format!("{left:?}"));
                }
                self.job.metadata.finalizers.get_or_insert_default().retain(|x| x != f)
            }
        }
    }

    /// It was deleted, and nothing held it any more.
    fn is_gone(&self) -> bool {
        self.job.metadata.deletion_timestamp.is_some() && self.finalizers().is_empty()
    }

    /// A Job that is asked for: once, and its number is known before.
    fn check_creation(&mut self, n: u64, taken: bool) {
        let status = self.job.status.as_ref();
        let known = status.and_then(|s| s.attempt.as_ref()).map(|a| a.id);
        if known != Some(n) || status.is_none_or(|s| s.attempts < n) {
            self.fault("status knows a number before its Job is made", format!("Job {n}, and status says {known:?}"));
        }
        if taken {
            return;
        }
        let times = self.made.entry(n).or_default();
        *times += 1;
        let again = *times > 1;
        if again && !self.removed_unseen.contains(&n) {
            self.fault("a Job is made once", format!("Job {n} is made again"));
        }
        let left = self.pods.iter().find(|p| pod_facts::attempt(&p.metadata) == n && self.may_live(p));
        if let Some(pod) = left {
            let what = format!("Job {n} is made while {} may live", pod_facts::name(pod));
            self.fault("a Job is made once", what);
        }
    }

    fn store(&mut self, mut child: Child, new: bool) {
        let line = format!("{:?} {}", child.kind(), child.name());
        self.stamp += 1;
        if new {
            self.created.push(line)
        } else {
            self.applied.push(line)
        }
        let at = self.children.iter().position(|c| c.kind() == child.kind() && c.name() == child.name());
        self.uids += 1;
        let uid = at.map_or_else(|| format!("u{}", self.uids), |i| self.children[i].uid().to_owned());
        child.metadata_mut().uid = Some(uid);
        if let (Child::Job(j), None) = (&mut child, at) {
            j.metadata.generation = Some(1);
        }
        if let (Child::ServingCluster(n), Some(Child::ServingCluster(o))) = (&mut child, at.map(|i| &self.children[i]))
        {
            n.status.clone_from(&o.status);
        }
        match at {
            Some(i) => self.children[i] = child,
            None => self.children.push(child),
        }
    }

    fn remove(&mut self, target: &Target) {
        let gone: Vec<Child> = {
            let (gone, kept) = self.children.drain(..).partition(|c| c.kind() == target.kind && c.uid() == target.uid);
            self.children = kept;
            gone
        };
        for c in gone {
            self.stamp += 1;
            let dependent = |p: &&Pod| match &c {
                Child::Job(j) => pod_facts::attempt(&p.metadata) == pod_facts::attempt(&j.metadata) && trainer(p),
                Child::StatefulSet(_) => pod_facts::role(p) == "conductor",
                _ => false,
            };
            let uids: Vec<String> = self.pods.iter().filter(dependent).filter_map(|p| p.metadata.uid.clone()).collect();
            uids.iter().for_each(|u| self.end_pod(u, false));
        }
    }

    /// Deletion of a pod: gone at once on a healthy node, marked on a lost one.
    fn end_pod(&mut self, uid: &str, force: bool) {
        let linger = self.pods_linger;
        let stamp = &mut self.stamp;
        let nodes = self.nodes.clone();
        let now = self.now;
        let lost =
            |p: &Pod| pod_facts::node(p).and_then(|n| nodes.get(n)).is_some_and(|n| *n == NodeState::Unreachable);
        self.pods.retain_mut(|p| {
            if p.metadata.uid.as_deref() != Some(uid) {
                return true;
            }
            let stays = !force && (linger && trainer(p) || lost(p));
            if !stays || p.metadata.deletion_timestamp.is_none() {
                *stamp += 1;
            }
            p.metadata.deletion_timestamp.get_or_insert(Time(now));
            stays
        });
    }

    /// Controllers and kubelets do their part.
    pub fn settle(&mut self) {
        let (uid, name) = (self.job.metadata.uid.clone().unwrap(), self.job.metadata.name.clone().unwrap());
        let claims = self.report.attempt;
        let writer = self.writer.clone().or_else(|| Some((name, uid.clone())));
        let mut new = Vec::new();
        let workers = if self.workers_ready { 2 } else { 0 };
        let stamp = &mut self.stamp;
        for c in &mut self.children {
            match c {
                Child::ServingCluster(s) => {
                    let status = s.status.get_or_insert_default();
                    let writer =
                        writer.as_ref().map(|(rljob, uid)| api::Writer { rljob: rljob.clone(), uid: uid.clone() });
                    if status.ready_replicas != s.spec.replicas || status.weights.writer != writer {
                        *stamp += 1;
                    }
                    status.ready_replicas = s.spec.replicas;
                    status.weights.writer = writer;
                }
                Child::RolloutPool(p) => {
                    let status = p.status.get_or_insert_default();
                    if status.ready_replicas != workers {
                        *stamp += 1;
                    }
                    status.replicas = 2;
                    status.ready_replicas = workers;
                }
                // Kueue: it lets go again, too, what it has taken back.
                Child::Job(j) if self.queue_open && held(j) => {
                    *stamp += 1;
                    j.metadata.generation = j.metadata.generation.map(|g| g + 1);
                    j.spec.as_mut().unwrap().suspend = Some(false);
                }
                Child::Job(j)
                    if j.status.is_none()
                        && !held(j)
                        && !self.pods.iter().any(|p| {
                            trainer(p) && pod_facts::attempt(&p.metadata) == pod_facts::attempt(&j.metadata)
                        }) =>
                {
                    *stamp += 1;
                    j.status = Some(JobStatus::default());
                    let n = pod_facts::attempt(&j.metadata);
                    for i in 0..j.spec.as_ref().and_then(|s| s.completions).unwrap_or(0) {
                        new.push((n, i, j.metadata.name.clone().unwrap()));
                    }
                }
                _ => {}
            }
        }
        self.conductor_pod(&uid);
        for (attempt, index, job) in new {
            self.uids += 1;
            // The scheduler avoids lost nodes.
            let node = format!("node-{index}");
            let node = if self.nodes.contains_key(&node) { format!("{node}-spare") } else { node };
            self.placed.insert((node.clone(), attempt));
            let labels = BTreeMap::from([
                (labels::RLJOB_UID.to_owned(), uid.clone()),
                (labels::ROLE.to_owned(), "trainer".to_owned()),
                (labels::ATTEMPT.to_owned(), attempt.to_string()),
                (labels::JOB_INDEX.to_owned(), index.to_string()),
            ]);
            self.pods.push(Pod {
                metadata: ObjectMeta {
                    name: Some(format!("{job}-{index}")),
                    uid: Some(format!("p{}", self.uids)),
                    labels: Some(labels),
                    ..ObjectMeta::default()
                },
                spec: Some(PodSpec { node_name: Some(node), ..PodSpec::default() }),
                status: Some(PodStatus { phase: Some("Running".into()), ..PodStatus::default() }),
            });
        }
        let fence = self.fence();
        let answers = self.conductor_answers();
        for p in self.pods.iter_mut().filter(|p| trainer(p) && p.metadata.deletion_timestamp.is_none()) {
            let lost = pod_facts::node(p).and_then(|n| self.nodes.get(n)).is_some();
            let running = pod_facts::phase(p) == "Running" && !lost;
            let was = pod_facts::ready(p);
            // Ready is the first claim's: it stays while the pod runs.
            let ready = running && (was || self.pods_ready);
            if ready != was {
                self.stamp += 1;
                set_condition(p, "Ready", if ready { "True" } else { "False" }, "");
            }
            let n = pod_facts::attempt(&p.metadata);
            if ready && answers && n > fence && n > self.report.attempt {
                self.stamp += 1;
                self.report.attempt = n;
            }
        }
        if self.report.attempt > claims {
            self.report.trainer_epoch += 1;
        }
        self.job_controller();
        if !self.pods_linger {
            let nodes = self.nodes.clone();
            let stays = |p: &Pod| {
                let held = pod_facts::node(p).and_then(|n| nodes.get(n)).is_some_and(|n| *n == NodeState::Unreachable);
                p.metadata.deletion_timestamp.is_none() || held || trainer(p) && pod_facts::ended(p)
            };
            self.drop_pods(stays, "BackoffLimitExceeded", "");
        }
    }

    /// The highest attempt the conductor refuses.
    pub fn fence(&self) -> u64 {
        self.told.iter().map(|t| t.fence_attempts_up_to).max().unwrap_or(0)
    }

    /// The StatefulSet's controller makes the conductor's pod, again where a node can be reached.
    fn conductor_pod(&mut self, uid: &str) {
        let wanted = self.children.iter().any(|c| c.kind() == ChildKind::StatefulSet);
        if !wanted || self.pods.iter().any(|p| pod_facts::role(p) == "conductor") {
            return;
        }
        self.stamp += 1;
        self.uids += 1;
        let node = if self.nodes.contains_key("node-2") { "node-2-spare" } else { "node-2" };
        let labels = [(labels::RLJOB_UID, uid), (labels::ROLE, "conductor")];
        self.pods.push(Pod {
            metadata: ObjectMeta {
                name: Some("sort5-grpo-conductor-0".into()),
                uid: Some(format!("p{}", self.uids)),
                labels: Some(labels.map(|(k, v)| (k.to_owned(), v.to_owned())).into()),
                ..ObjectMeta::default()
            },
            spec: Some(PodSpec { node_name: Some(node.into()), ..PodSpec::default() }),
            status: Some(PodStatus { phase: Some("Running".into()), ..PodStatus::default() }),
        });
    }

    /// Pod objects vanish; a Job that still wanted them fails.
    fn drop_pods(&mut self, stays: impl Fn(&Pod) -> bool, reason: &str, message: &str) {
        if self.pods.iter().all(&stays) {
            return;
        }
        self.stamp += 1;
        let gone: BTreeSet<u64> =
            self.pods.iter().filter(|p| trainer(p) && !stays(p)).map(|p| pod_facts::attempt(&p.metadata)).collect();
        self.pods.retain(|p| stays(p));
        for n in gone {
            if message.contains("DisruptionTarget") {
                self.harm(n).node_lost = true;
            }
            self.fail_job(n, reason, message);
        }
    }

    fn fail_job(&mut self, attempt: u64, reason: &str, message: &str) {
        for c in &mut self.children {
            if let Child::Job(j) = c
                && pod_facts::attempt(&j.metadata) == attempt
                && !held(j)
            {
                let conditions = j.status.get_or_insert_default().conditions.get_or_insert_default();
                if conditions.is_empty() {
                    self.stamp += 1;
                    conditions.push(JobCondition {
                        type_: "FailureTarget".into(),
                        status: "True".into(),
                        reason: Some(reason.into()),
                        message: Some(message.into()),
                        ..JobCondition::default()
                    });
                }
            }
        }
    }

    /// A failed pod fails its Job, and its peers are removed.
    fn job_controller(&mut self) {
        let failed: BTreeSet<u64> = self
            .pods
            .iter()
            .filter(|p| pod_facts::phase(p) == "Failed")
            .map(|p| pod_facts::attempt(&p.metadata))
            .collect();
        failed.into_iter().for_each(|n| self.fail_job(n, "BackoffLimitExceeded", ""));
    }

    /// Decides until nothing changes at this instant.
    pub fn run(&mut self) {
        self.run_watched(&mut |_| true);
    }

    /// The same; `look` sees every decision when it has been executed, and says whether to go on.
    pub fn run_watched(&mut self, look: &mut impl FnMut(&mut Sim) -> bool) {
        for _ in 0..60 {
            let before = self.stamp;
            self.pass();
            if !look(self) {
                return;
            }
            self.settle();
            if self.stamp == before && self.listing.is_none() {
                // What only waits for a short time to pass.
                let near = |t: Timestamp| t.duration_since(self.now) <= SignedDuration::from_millis(250);
                match self.requeue {
                    Some(t) if near(t) && (self.ending() || !self.last_actions.is_empty()) => self.wait_until(t),
                    _ => return,
                }
            }
        }
    }

    /// Decides again and again while time passes, at every instant a plan asks for.
    pub fn run_for_ms(&mut self, ms: i64) {
        let end = self.now.checked_add(SignedDuration::from_millis(ms)).unwrap();
        let mut passes = 0;
        loop {
            self.run();
            passes += 1;
            let next = match self.requeue {
                Some(t) if t > self.now => t,
                _ => end,
            };
            if self.now >= end || passes > 5_000 {
                return;
            }
            // Long waits are walked in twenty steps at most: polls in between find nothing new.
            let step = self.now.checked_add(SignedDuration::from_millis((ms / 20).max(100))).unwrap();
            self.wait_until(next.max(step.min(end)).min(end));
        }
    }

    fn ending(&self) -> bool {
        self.job.status.as_ref().and_then(|s| s.attempt.as_ref()).is_some_and(|a| a.ending.is_some())
    }

    fn living(&self) -> u64 {
        self.status().attempt.as_ref().expect("no attempt lives").id
    }

    fn harm(&mut self, attempt: u64) -> &mut Truth {
        self.stamp += 1;
        let t = self.truth.entry(attempt).or_default();
        t.first_harm.get_or_insert((self.now, self.mono));
        t
    }

    fn pod_mut(&mut self, attempt: u64, index: u32) -> &mut Pod {
        self.pods
            .iter_mut()
            .find(|p| pod_facts::attempt(&p.metadata) == attempt && pod_facts::index(p) == Some(index))
            .expect("no such pod")
    }

    /// The queue takes the quota of the living attempt back: its Job is suspended, and the Job controller removes its pods.
    pub fn preempt(&mut self) {
        let Some(id) = self.job.status.as_ref().and_then(|s| s.attempt.as_ref()).map(|a| a.id) else { return };
        let free = self.children.iter_mut().find_map(|c| match c {
            Child::Job(j) if pod_facts::attempt(&j.metadata) == id && !held(j) && in_queue(j) => Some(j),
            _ => None,
        });
        let Some(job) = free else { return };
        // A Job that has failed is nobody's to suspend.
        if job.status.as_ref().is_some_and(|s| s.conditions.as_ref().is_some_and(|c| !c.is_empty())) {
            return;
        }
        job.metadata.generation = job.metadata.generation.map(|g| g + 1);
        job.spec.as_mut().unwrap().suspend = Some(true);
        job.status = None;
        self.harm(id).preempted = true;
        let of = |p: &&Pod| trainer(p) && pod_facts::attempt(&p.metadata) == id && !pod_facts::ended(p);
        let uids: Vec<String> = self.pods.iter().filter(of).filter_map(|p| p.metadata.uid.clone()).collect();
        uids.iter().for_each(|u| self.end_pod(u, false));
    }

    pub fn exit_pod(&mut self, index: u32, code: i32) {
        self.exit_pod_of(self.living(), index, code);
    }

    fn exit_pod_of(&mut self, attempt: u64, index: u32, code: i32) {
        self.harm(attempt).exits.insert(code);
        self.rank_clock += 1;
        let at = Timestamp::from_second(1_700_000_000 + self.rank_clock).unwrap();
        let pod = self.pod_mut(attempt, index);
        let status = pod.status.as_mut().unwrap();
        status.phase = Some(if code == 0 { "Succeeded".into() } else { "Failed".into() });
        status.container_statuses = Some(vec![ContainerStatus {
            state: Some(ContainerState {
                terminated: Some(ContainerStateTerminated {
                    exit_code: code,
                    finished_at: Some(Time(at)),
                    ..ContainerStateTerminated::default()
                }),
                ..ContainerState::default()
            }),
            ..ContainerStatus::default()
        }]);
        set_condition(pod, "Ready", "False", "");
    }

    pub fn disrupt_pod(&mut self, index: u32, reason: &str) {
        let now = Time(self.now);
        let attempt = self.living();
        match reason {
            MEMORY => self.harm(attempt).out_of_memory = true,
            _ => self.harm(attempt).disrupted = true,
        }
        let pod = self.pod_mut(attempt, index);
        set_condition(pod, "DisruptionTarget", "True", reason);
        set_condition(pod, "Ready", "False", "");
        pod.metadata.deletion_timestamp = Some(now);
    }

    pub fn delete_pod_by_hand(&mut self, index: u32) {
        let now = Time(self.now);
        let attempt = self.living();
        self.harm(attempt).pod_deleted = true;
        self.pod_mut(attempt, index).metadata.deletion_timestamp = Some(now);
    }

    /// A hand deletes the Job but leaves its pods (`--cascade=orphan`).
    pub fn orphan_pods_by_hand(&mut self) {
        let alive = |p: &Pod| p.metadata.deletion_timestamp.is_none();
        let left: Vec<String> =
            self.pods.iter().filter(|p| trainer(p) && alive(p)).filter_map(|p| p.metadata.uid.clone()).collect();
        let linger = std::mem::replace(&mut self.pods_linger, true);
        self.delete_job_by_hand();
        self.pods_linger = linger;
        for p in self.pods.iter_mut().filter(|p| p.metadata.uid.as_ref().is_some_and(|u| left.contains(u))) {
            p.metadata.deletion_timestamp = None;
        }
    }

    pub fn delete_job_by_hand(&mut self) {
        if let Some(job) = self.children.iter().find(|c| c.kind() == ChildKind::Job) {
            let target = job.target(false);
            let n = pod_facts::attempt(job.metadata());
            let living = self.job.status.as_ref().and_then(|s| s.attempt.as_ref());
            if living.is_none_or(|a| a.id == n && a.job_uid.is_none()) {
                self.removed_unseen.insert(n);
            }
            self.harm(n).job_deleted = true;
            self.remove(&target);
        }
    }
}

/// Reason of an eviction for memory.
pub const MEMORY: &str = "TerminationByKubelet";

fn of_attempt(c: &Child) -> bool {
    matches!(c.kind(), ChildKind::Job | ChildKind::ConfigMap | ChildKind::PodGroup(_))
}

/// The rule that a lagging cache of the RLJob undoes no edit.
pub const OLDER: &str = "an older template never replaces a newer one";

fn written_from(c: &Child) -> i64 {
    c.annotation(labels::RLJOB_GENERATION).and_then(|n| n.parse().ok()).unwrap_or(0)
}

fn in_queue(job: &Job) -> bool {
    job.metadata.labels.as_ref().is_some_and(|l| l.contains_key(labels::QUEUE_NAME))
}

fn held(job: &Job) -> bool {
    job.spec.as_ref().is_some_and(|s| s.suspend == Some(true))
}

fn trainer(p: &Pod) -> bool {
    pod_facts::role(p) == "trainer"
}

fn set_condition(pod: &mut Pod, type_: &str, status: &str, reason: &str) {
    let list = pod.status.get_or_insert_default().conditions.get_or_insert_default();
    list.retain(|c| c.type_ != type_);
    list.push(PodCondition {
        type_: type_.into(),
        status: status.into(),
        reason: (!reason.is_empty()).then(|| reason.into()),
        ..PodCondition::default()
    });
}
