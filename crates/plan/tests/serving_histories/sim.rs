//! A ServingCluster's world: an API server that fills in defaults, a StatefulSet controller, engines.

use std::collections::{BTreeMap, BTreeSet};

use api::{RLJob, ServingCluster, ServingClusterStatus, labels};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Pod, PodCondition, PodStatus, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use plan::{Action, Child, ChildKind, Images, Plan, ServingWorld, Settings, build, drift, pod_facts};

pub type Decide = fn(&ServingCluster, &ServingWorld, Timestamp, &Settings) -> Plan<ServingClusterStatus>;

const HASH: &str = "controller-revision-hash";

pub struct Sim {
    decide: Decide,
    pub cluster: ServingCluster,
    pub children: Vec<Child>,
    pub pods: Vec<Pod>,
    pub users: Vec<RLJob>,
    pub now: Timestamp,
    pub last: Vec<Action>,
    pub writes: usize,
    pub gone: bool,
    pub drained_at: Option<Timestamp>,
    /// Engines that drain do not end.
    pub pods_stay: bool,
    settings: Settings,
    templates: BTreeMap<String, PodTemplateSpec>,
    /// The controller stops at what is unavailable, also where replacing that is the cure (kubernetes#67250).
    trap: bool,
    uids: u64,
    rng: u64,
}

impl Sim {
    /// Engines of `good-1`, all ready.
    pub fn at_rest(decide: Decide, seed: u64) -> Self {
        let mut cluster = crate::cases::cluster();
        cluster.metadata.uid = Some("uid-serving".into());
        cluster.metadata.namespace = Some("rl".into());
        cluster.spec.engine.image = Some("good-1".into());
        let mut sim = Self {
            decide,
            cluster,
            children: vec![],
            pods: vec![],
            users: vec![],
            now: Timestamp::from_second(1_800_000_000).unwrap(),
            last: vec![],
            writes: 0,
            gone: false,
            drained_at: None,
            pods_stay: false,
            settings: Settings::cluster(Images { trainer_cpu: "t:1".into(), rollout: "r:1".into() }),
            templates: BTreeMap::new(),
            trap: seed.is_multiple_of(2),
            uids: 0,
            rng: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
        };
        sim.cluster.spec.replicas = 2 + sim.roll(4) as u32;
        sim.cluster.spec.updates.max_unavailable = 1 + sim.roll(2) as u32;
        sim.cluster.spec.updates.drain_timeout_seconds = 20;
        // By the real one: a mutant is to be caught at its fault, not before.
        sim.decide = plan::serving::decide;
        sim.come_to_rest().unwrap();
        sim.decide = decide;
        sim
    }

    pub fn roll(&mut self, below: u64) -> u64 {
        self.rng ^= self.rng << 13;
        self.rng ^= self.rng >> 7;
        self.rng ^= self.rng << 17;
        (self.rng >> 11) % below
    }

    pub fn status(&self) -> ServingClusterStatus {
        self.cluster.status.clone().unwrap_or_default()
    }

    pub fn edit(&mut self, image: &str) {
        self.cluster.spec.engine.image = Some(image.into());
    }

    pub fn ready(&self) -> u32 {
        self.pods.iter().filter(|p| pod_facts::ready(p)).count() as u32
    }

    /// Engines with this image that are not on their way out.
    pub fn at(&self, image: &str) -> usize {
        self.pods.iter().filter(|p| image_of(p) == image && p.metadata.deletion_timestamp.is_none()).count()
    }

    pub fn uids(&self) -> BTreeSet<String> {
        self.pods.iter().map(|p| pod_facts::uid(p).to_owned()).collect()
    }

    pub fn all_at(&self, image: &str) -> Result<(), String> {
        let s = self.status();
        let n = self.cluster.spec.replicas;
        let whole = self.at(image) == n as usize && self.ready() == n && s.updated_replicas == n;
        match whole && s.current_revision == s.update_revision {
            true => Ok(()),
            false => Err(format!("{} of {n} at {image}, {} answer, {s:?}", self.at(image), self.ready())),
        }
    }

    /// One thing happens.
    pub fn turn(&mut self) {
        match self.roll(4) {
            0 | 1 => self.decide(),
            2 => self.controller(),
            _ => drop(self.kubelet()),
        }
    }

    /// Time passes, as long as somebody waits for it.
    pub fn wait(&mut self) {
        self.now = self.now.checked_add(SignedDuration::from_secs(1)).unwrap();
    }

    pub fn come_to_rest(&mut self) -> Result<(), String> {
        for _ in 0..600 {
            let before = (self.writes, self.children.clone(), self.pods.clone());
            self.decide();
            let idle = self.last.is_empty();
            self.controller();
            while self.kubelet() {}
            if idle && before == (self.writes, self.children.clone(), self.pods.clone()) {
                return Ok(());
            }
        }
        Err(format!("it does not come to rest: {:?}", self.last))
    }

    pub fn decide(&mut self) {
        if self.gone {
            return;
        }
        let world = ServingWorld {
            children: self.children.clone(),
            pods: self.pods.clone(),
            users: self.users.clone(),
            ..ServingWorld::default()
        };
        let plan = (self.decide)(&self.cluster, &world, self.now, &self.settings);
        if let Some(status) = plan.status {
            self.writes += 1;
            self.cluster.status = Some(serde_json::from_str(&serde_json::to_string(&status).unwrap()).unwrap());
        }
        self.last.clone_from(&plan.actions);
        for action in plan.actions {
            match action {
                Action::Create(child) | Action::Apply(child) => self.store(child),
                Action::DeletePod { uid, force, .. } => self.end(&uid, force),
                Action::AddFinalizer(f) => self.cluster.metadata.finalizers = Some(vec![f.into()]),
                Action::RemoveFinalizer(_) => {
                    self.drained_at = Some(self.now);
                    self.gone = self.cluster.metadata.deletion_timestamp.is_some();
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// As an API server keeps it: its own fields stay, what was left out is filled in, and a new spec is a new generation.
    fn store(&mut self, child: Child) {
        let mut json = child.to_json();
        let old = self.children.iter().position(|c| c.kind() == child.kind() && c.name() == child.name());
        let before = old.map(|i| self.children.remove(i).to_json());
        for port in json.pointer_mut("/spec/ports").and_then(|p| p.as_array_mut()).into_iter().flatten() {
            port["protocol"] = "TCP".into();
        }
        if child.kind() == ChildKind::StatefulSet {
            json["spec"]["template"]["spec"]["dnsPolicy"] = "ClusterFirst".into();
            json["spec"]["minReadySeconds"] = 0.into();
        }
        self.uids += 1;
        let uid = format!("uid-{}", self.uids);
        json["metadata"]["uid"] = before.as_ref().map_or(uid.into(), |b| b["metadata"]["uid"].clone());
        let generation = before.as_ref().and_then(|b| b["metadata"]["generation"].as_i64()).unwrap_or(0);
        let changed = before.as_ref().is_none_or(|b| b["spec"] != json["spec"]);
        json["metadata"]["generation"] = (generation + i64::from(changed)).into();
        if let Some(status) = before.as_ref().and_then(|b| b.get("status")) {
            json["status"] = status.clone();
        }
        self.children.push(match child {
            Child::Service(_) => Child::Service(serde_json::from_value(json).unwrap()),
            Child::StatefulSet(_) => Child::StatefulSet(serde_json::from_value(json).unwrap()),
            Child::PodDisruptionBudget(_) => Child::PodDisruptionBudget(serde_json::from_value(json).unwrap()),
            other => panic!("{:?}", other.kind()),
        });
    }

    fn set(&mut self) -> Option<&mut StatefulSet> {
        self.children.iter_mut().find_map(|c| match c {
            Child::StatefulSet(s) => Some(&mut **s),
            _ => None,
        })
    }

    /// The StatefulSet controller, once: policy Parallel, rolling update down to a partition.
    fn controller(&mut self) {
        let Some(set) = self.set() else { return };
        let (meta, spec) = (set.metadata.clone(), set.spec.clone().unwrap());
        let mut status = set.status.clone().unwrap_or_default();
        let update = api::hash::of(&serde_json::to_value(&spec.template).unwrap());
        self.templates.entry(update.clone()).or_insert_with(|| spec.template.clone());
        let current = status.current_revision.clone().unwrap_or_else(|| update.clone());
        let replicas = spec.replicas.unwrap() as usize;
        let rolling = spec.update_strategy.as_ref().and_then(|u| u.rolling_update.as_ref());
        let partition = rolling.and_then(|r| r.partition).unwrap_or(0) as usize;
        let name = meta.name.clone().unwrap();
        let at = |pods: &[Pod], i: usize| pods.iter().position(|p| pod_facts::name(p) == format!("{name}-{i}"));
        let mut moved = false;
        for i in 0..replicas {
            if at(&self.pods, i).is_none() {
                let revision = if i < partition { &current } else { &update };
                let template = self.templates[revision].clone();
                self.uids += 1;
                let mut pod =
                    Pod { metadata: template.metadata.unwrap_or_default(), spec: template.spec, status: None };
                pod.metadata.name = Some(format!("{name}-{i}"));
                pod.metadata.uid = Some(format!("pod-{}", self.uids));
                pod.metadata.labels.get_or_insert_default().insert(HASH.into(), revision.clone());
                self.pods.push(pod);
                moved = true;
            }
        }
        for i in replicas..replicas + 8 {
            if let Some(p) = at(&self.pods, i).filter(|p| self.pods[*p].metadata.deletion_timestamp.is_none()) {
                self.pods[p].metadata.deletion_timestamp = Some(Time(self.now));
                moved = true;
            }
        }
        let healthy = |p: &Pod| pod_facts::ready(p);
        let away = (0..replicas).filter(|i| at(&self.pods, *i).is_none_or(|p| !healthy(&self.pods[p]))).count();
        let waits = self.trap && away > 0;
        if !(moved || waits) {
            for i in (partition..replicas).rev() {
                let there = at(&self.pods, i).unwrap();
                let pod = &mut self.pods[there];
                let of = pod.metadata.labels.as_ref().unwrap()[HASH].clone();
                if of != update && pod.metadata.deletion_timestamp.is_none() {
                    pod.metadata.deletion_timestamp = Some(Time(self.now));
                    break;
                }
                if !healthy(pod) {
                    break;
                }
            }
        }
        let updated = |p: &&Pod| p.metadata.labels.as_ref().unwrap()[HASH] == update;
        let complete = self.pods.len() == replicas && self.pods.iter().all(|p| updated(&p) && healthy(p));
        status.replicas = self.pods.len() as i32;
        status.observed_generation = meta.generation;
        status.current_revision = Some(if complete { update.clone() } else { current });
        status.update_revision = Some(update);
        self.set().unwrap().status = Some(status);
    }

    /// An engine gets ready, or has drained; false if nothing is left to happen.
    fn kubelet(&mut self) -> bool {
        let news: Vec<usize> = (0..self.pods.len())
            .filter(|i| {
                let p = &self.pods[*i];
                match p.metadata.deletion_timestamp.is_some() {
                    true => !self.pods_stay,
                    false => !pod_facts::ready(p) && image_of(p).starts_with("good"),
                }
            })
            .collect();
        if news.is_empty() {
            return false;
        }
        let i = news[self.roll(news.len() as u64) as usize];
        if self.pods[i].metadata.deletion_timestamp.is_some() {
            self.pods.remove(i);
        } else {
            let ready = PodCondition { type_: "Ready".into(), status: "True".into(), ..PodCondition::default() };
            self.pods[i].status = Some(PodStatus { conditions: Some(vec![ready]), ..PodStatus::default() });
        }
        true
    }

    fn end(&mut self, uid: &str, force: bool) {
        if force {
            self.pods.retain(|p| pod_facts::uid(p) != uid);
        }
        for p in self.pods.iter_mut().filter(|p| pod_facts::uid(p) == uid) {
            p.metadata.deletion_timestamp.get_or_insert(Time(self.now));
        }
    }

    /// Any engine is evicted.
    pub fn evict(&mut self) {
        if !self.pods.is_empty() {
            let i = self.roll(self.pods.len() as u64) as usize;
            let uid = pod_facts::uid(&self.pods[i]).to_owned();
            self.end(&uid, false);
        }
    }

    /// A person deletes or edits a child.
    pub fn hand(&mut self) {
        if self.children.is_empty() {
            return;
        }
        let i = self.roll(self.children.len() as u64) as usize;
        let what = self.roll(3);
        if what == 0 {
            // Its dependents stay: the controller's next set of that name adopts them.
            self.children.remove(i);
            return;
        }
        let mut json = self.children[i].to_json();
        let selector = json.pointer_mut("/spec/selector");
        let child = match &self.children[i] {
            Child::Service(_) => {
                selector.unwrap()["theirs"] = "x".into();
                Child::Service(serde_json::from_value(json).unwrap())
            }
            Child::PodDisruptionBudget(_) => {
                json["spec"]["maxUnavailable"] = 7.into();
                Child::PodDisruptionBudget(serde_json::from_value(json).unwrap())
            }
            Child::StatefulSet(_) => {
                json["spec"]["template"]["spec"]["containers"][0]["image"] =
                    if what == 1 { "good-by-hand" } else { "bad-by-hand" }.into();
                Child::StatefulSet(serde_json::from_value(json).unwrap())
            }
            other => panic!("{:?}", other.kind()),
        };
        self.children.remove(i);
        self.children.push(child);
        if let Some(set) = self.set() {
            *set.metadata.generation.as_mut().unwrap() += 1;
        }
    }

    /// All children are what would be rendered now.
    pub fn as_rendered(&self) -> Result<(), String> {
        let partition = 0;
        for wanted in build::engine_objects(&self.cluster, "r:1", partition, self.settings.lame_duck) {
            let there = self.children.iter().find(|c| c.kind() == wanted.kind() && c.name() == wanted.name());
            let Some(there) = there else { return Err(format!("{} is missing", wanted.name())) };
            if drift::outdated(there, &wanted) {
                return Err(format!("{:?} {} is not as rendered", wanted.kind(), wanted.name()));
            }
        }
        Ok(())
    }

    /// What is there was made by an older operator, which rendered otherwise; this one has other images.
    pub fn upgrade(&mut self) {
        for child in &mut self.children {
            child.metadata_mut().annotations.as_mut().unwrap().insert(labels::RENDER_VERSION.into(), "0".into());
        }
        let set = self.set().unwrap();
        let template = &mut set.spec.as_mut().unwrap().template;
        template.spec.as_mut().unwrap().containers[0].command.as_mut().unwrap().push("--older".into());
        let old = serde_json::to_value(&*template).unwrap();
        let template = template.clone();
        let revision = api::hash::of(&old);
        let status = set.status.as_mut().unwrap();
        (status.current_revision, status.update_revision) = (Some(revision.clone()), Some(revision.clone()));
        for p in &mut self.pods {
            p.metadata.labels.as_mut().unwrap().insert(HASH.into(), revision.clone());
        }
        self.templates.insert(revision, template);
        self.settings.images.rollout = "r:2".into();
    }

    /// A run takes the writer's role.
    pub fn claim(&mut self) {
        let mut job = crate::cases::job();
        job.metadata = ObjectMeta { name: job.metadata.name, uid: Some("uid-run".into()), ..ObjectMeta::default() };
        let named = api::NameRef { name: job.serving_name() };
        (job.spec.serving.ref_, job.spec.serving.template) = (Some(named), None);
        self.users.push(job);
        self.decide();
        assert!(self.status().weights.writer.is_some());
    }

    pub fn force(&mut self) {
        let annotations = self.cluster.metadata.annotations.get_or_insert_default();
        annotations.insert(labels::FORCE_DELETE.into(), "true".into());
    }
}

fn image_of(pod: &Pod) -> &str {
    pod.spec.as_ref().unwrap().containers[0].image.as_deref().unwrap()
}
