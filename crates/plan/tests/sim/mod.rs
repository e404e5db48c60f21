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
    Action, Child, ChildKind, Conductor, ConductorSettings, Images, Listing, NodeState, Report, Settings, Target,
    World, rljob,
};

pub struct Sim {
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
    /// Engines the conductor calls ready, if not all.
    pub engines_ready: Option<u32>,
    /// Who holds the writer's role, if not we.
    pub writer: Option<(String, String)>,
    pub listing: Option<Listing>,
    pub cordoned: BTreeSet<String>,
    /// What caches showed at earlier looks, newest last, and the object then.
    pub past: Vec<(RLJob, Vec<Child>, Vec<Pod>)>,
    pub created: Vec<String>,
    pub applied: Vec<String>,
    pub told: Vec<ConductorSettings>,
    pub requests: Vec<(String, bool)>,
    pub last_actions: Vec<Action>,
    pub requeue: Option<Timestamp>,
    pub writes: usize,
    uids: u64,
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
            engines_ready: None,
            writer: None,
            listing: None,
            cordoned: BTreeSet::new(),
            past: vec![],
            created: vec![],
            applied: vec![],
            told: vec![],
            requests: vec![],
            last_actions: vec![],
            requeue: None,
            writes: 0,
            uids: 0,
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
        f(&mut self.job);
        *self.job.metadata.generation.as_mut().unwrap() += 1;
    }

    pub fn delete(&mut self) {
        self.job.metadata.deletion_timestamp = Some(Time(self.now));
    }

    pub fn advance_ms(&mut self, ms: i64) {
        self.now = self.now.checked_add(SignedDuration::from_millis(ms)).unwrap();
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
        let mut children = self.children.clone();
        if self.hide_jobs {
            children.retain(|c| c.kind() != ChildKind::Job);
        }
        let there = self.children.iter().any(|c| c.kind() == ChildKind::StatefulSet);
        let engines = self.children.iter().find_map(|c| match c {
            Child::ServingCluster(s) => Some(s.spec.replicas),
            _ => None,
        });
        let mut report = self.report.clone();
        report.engines = engines.unwrap_or(0);
        report.engines_ready = self.engines_ready.unwrap_or(report.engines);
        report.workers = 2;
        World {
            children,
            pods: self.pods.clone(),
            nodes: self.nodes.clone(),
            cordoned: self.cordoned.clone(),
            conductor: if there && self.conductor_up {
                Conductor::Report(Box::new(report))
            } else {
                Conductor::Unreachable
            },
            storage: None,
            listing: self.listing.take(),
        }
    }

    /// One decision, executed.
    pub fn pass(&mut self) {
        self.crash_after(usize::MAX);
    }

    /// One decision; the operator dies after its status write and this many actions.
    pub fn crash_after(&mut self, actions: usize) {
        let world = self.world();
        self.past.push((self.job.clone(), self.children.clone(), self.pods.clone()));
        if self.past.len() > 12 {
            self.past.remove(0);
        }
        let plan = rljob::decide(&self.job, &world, self.now, &self.settings);
        self.carry_out(plan, actions, true);
    }

    /// One decision over what caches showed some looks ago; of an old object, a status write is refused.
    pub fn stale_pass(&mut self, behind: usize, object: bool) {
        let Some((job, children, pods)) = self.past.iter().rev().nth(behind).cloned() else { return };
        let mut world = self.world();
        // ServingCluster and RolloutPool are other watches; what matters here is Jobs and pods.
        let jobs = |c: &Child| matches!(c.kind(), ChildKind::Job | ChildKind::ConfigMap);
        world.children.retain(|c| !jobs(c));
        world.children.extend(children.into_iter().filter(jobs));
        world.pods = pods;
        let current = !object || job.status == self.job.status && job.spec == self.job.spec;
        let seen = if object { job } else { self.job.clone() };
        let plan = rljob::decide(&seen, &world, self.now, &self.settings);
        self.carry_out(plan, usize::MAX, current);
    }

    fn carry_out(&mut self, plan: plan::Plan<RLJobStatus>, actions: usize, current: bool) {
        self.requeue = plan.requeue_at;
        if let Some(status) = plan.status {
            if !current {
                return;
            }
            self.writes += 1;
            // Through JSON, as the API server would keep it.
            self.job.status = Some(serde_json::from_value(serde_json::to_value(&status).unwrap()).unwrap());
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
            .filter(|p| !plan::pod_facts::ended(p))
            .filter(|p| plan::pod_facts::node(p).and_then(|n| self.nodes.get(n)) != Some(&NodeState::Gone))
            .map(|p| plan::pod_facts::attempt(&p.metadata))
            .filter(|n| *n > fence)
            .collect()
    }

    pub fn has_pod(&self, index: u32) -> bool {
        let Some(a) = self.job.status.as_ref().and_then(|s| s.attempt.as_ref()) else { return false };
        self.pods.iter().any(|p| {
            plan::pod_facts::attempt(&p.metadata) == a.id
                && plan::pod_facts::index(p) == Some(index)
                && !plan::pod_facts::ended(p)
        })
    }

    pub fn set_node(&mut self, index: u32, state: Option<NodeState>) {
        let name = format!("node-{index}");
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
        if self.job.spec.suspend {
            self.edit(|j| j.spec.suspend = false);
        }
        let gone = self.nodes.clone();
        let stays = |p: &Pod| plan::pod_facts::node(p).is_none_or(|n| !gone.contains_key(n));
        self.drop_pods(stays, "PodFailurePolicy", "Pod has condition DisruptionTarget");
    }

    fn execute(&mut self, action: Action) {
        match action {
            Action::Create(child) => {
                if let Child::Job(j) = &child {
                    let n = plan::pod_facts::attempt(&j.metadata);
                    let known = self.job.status.as_ref().map_or(0, |s| s.attempts);
                    assert!(n <= known, "Job {n} is made when status knows of {known}");
                }
                if !self.children.iter().any(|c| c.kind() == child.kind() && c.name() == child.name()) {
                    self.store(child, true);
                }
            }
            Action::Apply(child) => self.store(child, false),
            Action::Delete(target) => self.remove(&target),
            Action::DeletePod { uid, .. } => self.end_pod(&uid),
            Action::Tell(settings) => {
                if self.conductor_up && self.conductor_holds && settings.number > self.report.settings_number {
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
                    self.report.commits += 1;
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
                let pods: Vec<Pod> =
                    self.pods.iter().filter(|p| plan::pod_facts::role(p) == "trainer").cloned().collect();
                self.listing = Some(Listing::of(&jobs, &pods));
            }
            Action::AddFinalizer(f) => self.job.metadata.finalizers.get_or_insert_default().push(f.into()),
            Action::RemoveFinalizer(f) => self.job.metadata.finalizers.get_or_insert_default().retain(|x| x != f),
        }
    }

    fn store(&mut self, mut child: Child, new: bool) {
        let line = format!("{:?} {}", child.kind(), child.name());
        if new {
            self.created.push(line)
        } else {
            self.applied.push(line)
        }
        let at = self.children.iter().position(|c| c.kind() == child.kind() && c.name() == child.name());
        self.uids += 1;
        let uid = at.map_or_else(|| format!("u{}", self.uids), |i| self.children[i].uid().to_owned());
        child.metadata_mut().uid = Some(uid);
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
            if let Child::Job(j) = &c {
                let n = plan::pod_facts::attempt(&j.metadata);
                let uids: Vec<String> = self
                    .pods
                    .iter()
                    .filter(|p| plan::pod_facts::attempt(&p.metadata) == n)
                    .filter_map(|p| p.metadata.uid.clone())
                    .collect();
                uids.iter().for_each(|u| self.end_pod(u));
            }
        }
    }

    /// Deletion of a pod: gone at once on a healthy node, marked on a lost one.
    fn end_pod(&mut self, uid: &str) {
        let linger = self.pods_linger;
        let nodes = self.nodes.clone();
        let now = self.now;
        let lost =
            |p: &Pod| plan::pod_facts::node(p).and_then(|n| nodes.get(n)).is_some_and(|n| *n == NodeState::Unreachable);
        self.pods.retain_mut(|p| {
            if p.metadata.uid.as_deref() != Some(uid) {
                return true;
            }
            p.metadata.deletion_timestamp.get_or_insert(Time(now));
            linger || lost(p)
        });
    }

    /// Controllers and kubelets do their part.
    pub fn settle(&mut self) {
        let (uid, name) = (self.job.metadata.uid.clone().unwrap(), self.job.metadata.name.clone().unwrap());
        let claims = self.report.attempt;
        let writer = self.writer.clone().or_else(|| Some((name, uid.clone())));
        let mut new = Vec::new();
        for c in &mut self.children {
            match c {
                Child::ServingCluster(s) => {
                    let status = s.status.get_or_insert_default();
                    status.ready_replicas = s.spec.replicas;
                    status.weights.writer = writer.clone().map(|(rljob, uid)| api::Writer { rljob, uid });
                }
                Child::RolloutPool(p) => {
                    let status = p.status.get_or_insert_default();
                    status.replicas = 2;
                    status.ready_replicas = 2;
                }
                Child::Job(j) if j.status.is_none() => {
                    j.status = Some(JobStatus::default());
                    let n = plan::pod_facts::attempt(&j.metadata);
                    for i in 0..j.spec.as_ref().and_then(|s| s.completions).unwrap_or(0) {
                        new.push((n, i, j.metadata.name.clone().unwrap()));
                    }
                }
                _ => {}
            }
        }
        for (attempt, index, job) in new {
            self.uids += 1;
            // The scheduler avoids lost nodes.
            let node = format!("node-{index}");
            let node = if self.nodes.contains_key(&node) { format!("{node}-spare") } else { node };
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
        if self.pods_ready {
            for p in self.pods.iter_mut().filter(|p| p.metadata.deletion_timestamp.is_none()) {
                let lost = plan::pod_facts::node(p).and_then(|n| self.nodes.get(n)).is_some();
                let running = plan::pod_facts::phase(p) == "Running" && !lost;
                set_condition(p, "Ready", if running { "True" } else { "False" }, "");
                if running {
                    self.report.attempt = self.report.attempt.max(plan::pod_facts::attempt(&p.metadata));
                }
            }
        }
        if self.report.attempt > claims {
            self.report.trainer_epoch += 1;
        }
        self.job_controller();
        if !self.pods_linger {
            let nodes = self.nodes.clone();
            let stays = |p: &Pod| {
                let held =
                    plan::pod_facts::node(p).and_then(|n| nodes.get(n)).is_some_and(|n| *n == NodeState::Unreachable);
                p.metadata.deletion_timestamp.is_none() || held || plan::pod_facts::ended(p)
            };
            self.drop_pods(stays, "BackoffLimitExceeded", "");
        }
    }

    /// Pod objects vanish; a Job that still wanted them fails.
    fn drop_pods(&mut self, stays: impl Fn(&Pod) -> bool, reason: &str, message: &str) {
        let gone: BTreeSet<u64> =
            self.pods.iter().filter(|p| !stays(p)).map(|p| plan::pod_facts::attempt(&p.metadata)).collect();
        self.pods.retain(|p| stays(p));
        gone.into_iter().for_each(|n| self.fail_job(n, reason, message));
    }

    fn fail_job(&mut self, attempt: u64, reason: &str, message: &str) {
        for c in &mut self.children {
            if let Child::Job(j) = c
                && plan::pod_facts::attempt(&j.metadata) == attempt
            {
                let conditions = j.status.get_or_insert_default().conditions.get_or_insert_default();
                if conditions.is_empty() {
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
            .filter(|p| plan::pod_facts::phase(p) == "Failed")
            .map(|p| plan::pod_facts::attempt(&p.metadata))
            .collect();
        failed.into_iter().for_each(|n| self.fail_job(n, "BackoffLimitExceeded", ""));
    }

    /// Decides until nothing changes at this instant.
    pub fn run(&mut self) {
        for _ in 0..60 {
            let before = self.snapshot();
            self.pass();
            self.settle();
            if self.snapshot() == before && self.listing.is_none() {
                // What only waits for a short time to pass.
                let near = |t: Timestamp| t.duration_since(self.now) <= SignedDuration::from_millis(250);
                match self.requeue {
                    Some(t) if near(t) && (self.ending() || !self.last_actions.is_empty()) => {
                        self.now = t.max(self.now)
                    }
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
            self.now = next.max(step.min(end)).min(end);
        }
    }

    fn ending(&self) -> bool {
        self.job.status.as_ref().and_then(|s| s.attempt.as_ref()).is_some_and(|a| a.ending.is_some())
    }

    fn snapshot(&self) -> (RLJob, Vec<Child>, Vec<Pod>, Report) {
        (self.job.clone(), self.children.clone(), self.pods.clone(), self.report.clone())
    }

    fn pod_mut(&mut self, index: u32) -> &mut Pod {
        let attempt = self.status().attempt.as_ref().expect("no attempt lives").id;
        self.pods
            .iter_mut()
            .find(|p| plan::pod_facts::attempt(&p.metadata) == attempt && plan::pod_facts::index(p) == Some(index))
            .expect("no such pod")
    }

    pub fn exit_pod(&mut self, index: u32, code: i32) {
        self.rank_clock += 1;
        let at = Timestamp::from_second(1_700_000_000 + self.rank_clock).unwrap();
        let pod = self.pod_mut(index);
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
        let pod = self.pod_mut(index);
        set_condition(pod, "DisruptionTarget", "True", reason);
        set_condition(pod, "Ready", "False", "");
        pod.metadata.deletion_timestamp = Some(now);
    }

    pub fn delete_pod_by_hand(&mut self, index: u32) {
        let now = Time(self.now);
        self.pod_mut(index).metadata.deletion_timestamp = Some(now);
    }

    pub fn delete_job_by_hand(&mut self) {
        if let Some(job) = self.children.iter().find(|c| c.kind() == ChildKind::Job) {
            let target = job.target(false);
            self.remove(&target);
        }
    }
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
