//! The operator of this machine: reads the world from the node, lets `plan` decide, and carries the plan out.

use std::collections::BTreeSet;

use api::{RLJob, RolloutPool, ServingCluster, conditions as cond, labels};
use conductor_link::{ConductorLink, Order, Target, report};
use control::wire::Progress;
use jiff::Timestamp;
use k8s_openapi::{
    ByteString,
    api::core::v1::{Pod, Secret},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::Resource;
use plan::{
    Action, Child, ChildKind, Conductor, Event, Listing, NodeState, Plan, PoolWorld, ServingWorld, Settings,
    StorageState, World, build,
};

use crate::{
    error::{Error, Result},
    node::{Health, Node},
    objects::{self, Table, name},
    pod_group::PodGroup,
};

/// Passes in a row before the rest waits for the next turn; a plan that never comes to rest is a bug that must not spin.
const PASSES: usize = 50;
/// How often the conductor is asked for its progress.
const ASK: std::time::Duration = std::time::Duration::from_millis(100);

/// Objects of our own kinds, and what it takes to act on them.
#[derive(Debug)]
pub struct Operator {
    jobs: Table<RLJob>,
    servings: Table<ServingCluster>,
    pools: Table<RolloutPool>,
    settings: Settings,
    link: ConductorLink,
    listing: Option<Listing>,
    succeeded: BTreeSet<String>,
    requeue: Option<Timestamp>,
    events: Vec<Event>,
}

impl Operator {
    /// Opens the store of `node`'s folder.
    ///
    /// # Errors
    /// [`crate::Error::File`], [`crate::Error::Damaged`].
    pub fn open(node: &Node, settings: Settings) -> Result<Self> {
        let folder = node.folder().objects();
        let names = control::names::Names::with_hosts(node.folder().hosts());
        let http = control::names::http_client(names)
            .map_err(|error| Error::Spawn { program: "HTTP client".into(), source: std::io::Error::other(error) })?;
        Ok(Self {
            jobs: objects::table(&folder)?,
            servings: objects::table(&folder)?,
            pools: objects::table(&folder)?,
            settings,
            link: ConductorLink::start(http, ASK),
            listing: None,
            succeeded: BTreeSet::new(),
            requeue: None,
            events: Vec::new(),
        })
    }

    /// The run's RLJob.
    #[must_use]
    pub fn job(&self) -> Option<&RLJob> {
        self.jobs.iter().next()
    }

    /// The ServingClusters.
    #[must_use]
    pub fn servings(&self) -> &Table<ServingCluster> {
        &self.servings
    }

    /// The RolloutPools.
    #[must_use]
    pub fn pools(&self) -> &Table<RolloutPool> {
        &self.pools
    }

    /// What the conductor last said; `None` while it does not answer.
    #[must_use]
    pub fn progress(&self) -> Option<Progress> {
        self.link.progress()
    }

    /// Waits for news from the conductor. Cancel-safe.
    pub async fn changed(&mut self) {
        self.link.changed().await;
    }

    /// When [`Operator::reconcile`] must run again even if nothing is seen to change.
    #[must_use]
    pub fn requeue_at(&self) -> Option<Timestamp> {
        self.requeue
    }

    /// What plans wanted people to know, since the last call.
    pub fn events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// `kubectl apply` of one object that has been validated.
    ///
    /// # Errors
    /// [`crate::Error::File`].
    pub fn apply(&mut self, object: &api::manifest::Kind) -> Result<objects::Applied> {
        use api::manifest::Kind;
        let now = Timestamp::now();
        match object {
            Kind::RLJob(job) => self.jobs.apply((**job).clone(), now),
            Kind::ServingCluster(cluster) => self.servings.apply((**cluster).clone(), now),
            Kind::RolloutPool(pool) => self.pools.apply((**pool).clone(), now),
        }
    }

    /// Sets `spec.suspend` of the run, as `kubectl patch` would.
    ///
    /// # Errors
    /// [`crate::Error::File`].
    pub fn suspend(&mut self, on: bool) -> Result<()> {
        let Some(job) = self.job().cloned() else { return Ok(()) };
        let suspended = RLJob { spec: api::RLJobSpec { suspend: on, ..job.spec.clone() }, ..job };
        self.jobs.apply(suspended, Timestamp::now()).map(drop)
    }

    /// Decides and acts until nothing changes any more, with the node settled in between.
    ///
    /// # Errors
    /// [`crate::Error::File`].
    pub fn reconcile(&mut self, node: &mut Node) -> Result<()> {
        for _ in 0..PASSES {
            node.settle()?;
            self.secrets(node)?;
            self.follow(node);
            self.requeue = None;
            let mut acted = false;
            let now = Timestamp::now();
            for cluster in self.servings.list() {
                let world = self.serving_world(&cluster, node);
                let plan = plan::serving::decide(&cluster, &world, now, &self.settings);
                acted |= self.execute(&cluster, plan, node, |operator, status| {
                    operator.servings.update(name(&cluster), |cluster| cluster.status = Some(status))
                })?;
            }
            for pool in self.pools.list() {
                let world = self.pool_world(&pool, node);
                let plan = plan::pool::decide(&pool, &world, now, &self.settings);
                acted |= self.execute(&pool, plan, node, |operator, status| {
                    operator.pools.update(name(&pool), |pool| pool.status = Some(status))
                })?;
            }
            for job in self.jobs.list() {
                if self.must_ask_first(&job, node) {
                    continue;
                }
                let world = self.world(&job, node)?;
                let plan = plan::rljob::decide(&job, &world, now, &self.settings);
                acted |= self.execute(&job, plan, node, |operator, status| {
                    operator.jobs.update(name(&job), |job| job.status = Some(status))
                })?;
            }
            let before = self.servings.changes();
            self.collect_garbage(node)?;
            // What is deleted now drains first.
            acted |= self.servings.changes() != before;
            if !acted {
                return Ok(());
            }
        }
        tracing::warn!("the plan does not come to rest");
        let soon = Timestamp::now().checked_add(self.settings.poll_interval).unwrap_or(Timestamp::MAX);
        self.requeue = Some(self.requeue.map_or(soon, |at| at.min(soon)));
        Ok(())
    }

    /// A rank that ended well says that `finished` is journaled. What the conductor said before that end does not know it
    /// yet, so the verdict waits for what it says after: news, or silence.
    fn must_ask_first(&mut self, job: &RLJob, node: &Node) -> bool {
        let uid = job.metadata.uid.as_deref().unwrap_or_default();
        let succeeded: BTreeSet<String> = node
            .objects()
            .pods
            .iter()
            .filter(|pod| labelled(&pod.metadata, labels::RLJOB_UID, uid) && crate::pod::phase(pod) == "Succeeded")
            .filter_map(|pod| pod.metadata.uid.clone())
            .collect();
        if !succeeded.is_subset(&self.succeeded) {
            self.link.refresh();
        }
        self.succeeded = succeeded;
        !self.link.is_fresh()
    }

    // ------------------------------------------------------------ worlds

    fn world(&mut self, job: &RLJob, node: &Node) -> Result<World> {
        let uid = job.metadata.uid.as_deref().unwrap_or_default();
        let (serving, pool) = (job.serving_name(), job.rollout_name());
        let mut children = children(node, labels::RLJOB_UID, uid);
        children.extend(
            self.servings
                .iter()
                .filter(|one| labelled(&one.metadata, labels::RLJOB_UID, uid) || name(*one) == serving)
                .map(|one| Child::ServingCluster(Box::new(one.clone()))),
        );
        children.extend(
            self.pools
                .iter()
                .filter(|one| labelled(&one.metadata, labels::RLJOB_UID, uid) || name(*one) == pool)
                .map(|one| Child::RolloutPool(Box::new(one.clone()))),
        );
        let storage = node.volume(&job.spec.storage.claim_name)?;
        Ok(World {
            children,
            pods: pods(node, labels::RLJOB_UID, uid),
            nodes: nodes(node),
            cordoned: node.cordoned().clone(),
            conductor: match self.link.progress() {
                Some(progress) => Conductor::Report(Box::new(report(&progress))),
                None => Conductor::Unreachable,
            },
            quota: None,
            storage: Some(if storage.is_dir() { StorageState::Bound } else { StorageState::Missing }),
            listing: self.listing.take(),
        })
    }

    fn serving_world(&self, cluster: &ServingCluster, node: &Node) -> ServingWorld {
        let uid = cluster.metadata.uid.as_deref().unwrap_or_default();
        ServingWorld {
            children: children(node, labels::SERVING_UID, uid),
            pods: pods(node, labels::SERVING_UID, uid),
            nodes: nodes(node),
            users: self.jobs.iter().filter(|job| job.serving_name() == name(cluster)).cloned().collect(),
        }
    }

    fn pool_world(&self, pool: &RolloutPool, node: &Node) -> PoolWorld {
        let uid = pool.metadata.uid.as_deref().unwrap_or_default();
        PoolWorld {
            children: children(node, labels::POOL_UID, uid),
            pods: pods(node, labels::POOL_UID, uid),
            nodes: nodes(node),
        }
    }

    // ------------------------------------------------------------ execution

    /// Carries a plan out; true when something was done, so that the world must be looked at again.
    fn execute<K: Resource<DynamicType = ()>, S>(
        &mut self,
        object: &K,
        plan: Plan<S>,
        node: &mut Node,
        write: impl FnOnce(&mut Self, S) -> Result<bool>,
    ) -> Result<bool> {
        // Without `..`: a part that a plan gains must be carried out here.
        let Plan { status, actions, requeue_at, events } = plan;
        let mut acted = match status {
            Some(status) => write(self, status)?,
            None => false,
        };
        for action in actions {
            acted |= self.act(object, action, node)?;
        }
        self.events.extend(events);
        self.requeue = match (self.requeue, requeue_at) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        Ok(acted)
    }

    fn act<K: Resource<DynamicType = ()>>(&mut self, object: &K, action: Action, node: &mut Node) -> Result<bool> {
        let own = name(object).to_owned();
        match action {
            // A name that another owner has is free after this turn: what has no owner any more is collected at its end.
            Action::Create(child) => {
                if exists(self, node, child.kind(), child.name()) {
                    return Ok(false);
                }
                self.apply_child(child, node)
            }
            Action::Apply(child) => self.apply_child(child, node),
            Action::Delete(target) => {
                let plan::Target { kind, name, uid, foreground } = target;
                self.delete(kind, &name, &uid, foreground, node)
            }
            Action::DeletePod { name, uid, force } => {
                let before = node.objects().pods.changes();
                node.delete_pod(&name, Some(&uid), force)?;
                Ok(node.objects().pods.changes() != before)
            }
            Action::Tell(settings) => {
                self.link.order(Order::Settings(settings));
                Ok(false)
            }
            Action::RequestCheckpoint { id, attempt, then_stop } => {
                self.link.order(Order::Checkpoint { id, attempt, then_stop });
                Ok(false)
            }
            Action::ConfirmGone => {
                let uid = object.meta().uid.as_deref().unwrap_or_default();
                let jobs: Vec<_> = node
                    .objects()
                    .jobs
                    .iter()
                    .filter(|one| labelled(&one.metadata, labels::RLJOB_UID, uid))
                    .cloned()
                    .collect();
                let mut pods = pods(node, labels::RLJOB_UID, uid);
                pods.retain(|pod| plan::pod_facts::role(pod) == "trainer");
                // Nobody else writes here: what is looked at is current.
                self.listing = Some(Listing::of(&jobs, &pods).at(object.meta().resource_version.clone()));
                Ok(true)
            }
            // It goes with its run's folder, which is the user's.
            Action::DeleteSelf { uid: _ } => Ok(false),
            Action::AddFinalizer(finalizer) => self.change_meta(K::kind(&()).as_ref(), &own, |meta| {
                let list = meta.finalizers.get_or_insert_default();
                if !list.iter().any(|one| one == finalizer) {
                    list.push(finalizer.to_owned());
                }
            }),
            Action::RemoveFinalizer(finalizer) => self.change_meta(K::kind(&()).as_ref(), &own, |meta| {
                if let Some(list) = &mut meta.finalizers {
                    list.retain(|one| one != finalizer);
                }
            }),
        }
    }

    /// Changes the metadata of an object of one of our own kinds.
    fn change_meta(&mut self, kind: &str, name: &str, change: impl FnOnce(&mut ObjectMeta)) -> Result<bool> {
        match kind {
            "ServingCluster" => self.servings.update(name, |one| change(&mut one.metadata)),
            "RolloutPool" => self.pools.update(name, |one| change(&mut one.metadata)),
            _ => self.jobs.update(name, |one| change(&mut one.metadata)),
        }
    }

    /// Deletes a ServingCluster: marked, for as long as something holds it.
    fn delete_serving(&mut self, name: &str) -> Result<bool> {
        let Some(one) = self.servings.get(name) else { return Ok(false) };
        if one.metadata.finalizers.as_ref().is_none_or(Vec::is_empty) {
            return self.servings.remove(name).map(|one| one.is_some());
        }
        self.servings.update(name, |one| {
            one.metadata.deletion_timestamp.get_or_insert_with(|| Time(Timestamp::now()));
        })
    }

    fn apply_child(&mut self, child: Child, node: &mut Node) -> Result<bool> {
        let now = Timestamp::now();
        let objects = node.objects_mut();
        let applied = match child {
            Child::ConfigMap(one) => objects.config_maps.apply(*one, now),
            Child::Service(one) => objects.services.apply(*one, now),
            Child::StatefulSet(one) => objects.stateful_sets.apply(*one, now),
            Child::DaemonSet(one) => objects.daemon_sets.apply(*one, now),
            Child::Job(one) => objects.jobs.apply(*one, now),
            Child::PodDisruptionBudget(one) => objects.disruption_budgets.apply(*one, now),
            Child::PodGroup(_, one) => objects.pod_groups.apply(PodGroup(*one), now),
            Child::ServingCluster(one) => self.servings.apply(*one, now),
            Child::RolloutPool(one) => self.pools.apply(*one, now),
        }?;
        Ok(applied != objects::Applied::Unchanged)
    }

    fn delete(&mut self, kind: ChildKind, name: &str, uid: &str, foreground: bool, node: &mut Node) -> Result<bool> {
        if uid_of(self, node, kind, name).as_deref() != Some(uid) {
            return Ok(false);
        }
        match kind {
            ChildKind::ConfigMap => node.objects_mut().config_maps.remove(name).map(|one| one.is_some()),
            ChildKind::Service => node.objects_mut().services.remove(name).map(|one| one.is_some()),
            ChildKind::StatefulSet => node.delete_stateful_set(name, foreground),
            ChildKind::DaemonSet => node.delete_daemon_set(name, foreground),
            ChildKind::Job => node.delete_job(name, foreground),
            ChildKind::PodDisruptionBudget => {
                node.objects_mut().disruption_budgets.remove(name).map(|one| one.is_some())
            }
            ChildKind::ServingCluster => self.delete_serving(name),
            ChildKind::PodGroup(_) => node.objects_mut().pod_groups.remove(name).map(|one| one.is_some()),
            ChildKind::RolloutPool => self.pools.remove(name).map(|one| one.is_some()),
        }
    }

    /// One Secret for the run, one for each ServingCluster and each RolloutPool; made once.
    fn secrets(&self, node: &mut Node) -> Result<()> {
        let owners = self
            .jobs
            .iter()
            .map(|one| (name(one).to_owned(), objects::owner_reference(one), one.metadata.namespace.clone()))
            .chain(
                self.servings
                    .iter()
                    .map(|one| (name(one).to_owned(), objects::owner_reference(one), one.metadata.namespace.clone())),
            )
            .chain(
                self.pools
                    .iter()
                    .map(|one| (name(one).to_owned(), objects::owner_reference(one), one.metadata.namespace.clone())),
            );
        for (owner, reference, namespace) in owners.collect::<Vec<_>>() {
            let secret_name = build::token_secret(&owner);
            if node.objects().secrets.get(&secret_name).is_some() {
                continue;
            }
            let mut bytes = [0; 32];
            objects::random(&mut bytes);
            let token: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            let secret = Secret {
                metadata: ObjectMeta {
                    name: Some(secret_name),
                    namespace,
                    owner_references: Some(vec![reference]),
                    ..Default::default()
                },
                data: Some([(build::TOKEN_KEY.to_owned(), ByteString(token.into_bytes()))].into()),
                ..Default::default()
            };
            node.objects_mut().secrets.apply(secret, Timestamp::now())?;
        }
        Ok(())
    }

    /// Tells the link where the conductor is, if it runs where it can be reached.
    fn follow(&self, node: &Node) {
        self.link.follow(self.job().and_then(|job| conductor_of(job, node)));
    }

    fn collect_garbage(&mut self, node: &mut Node) -> Result<()> {
        for job in self.jobs.list() {
            let meta = &job.metadata;
            if meta.deletion_timestamp.is_some() && meta.finalizers.as_ref().is_none_or(Vec::is_empty) {
                self.jobs.remove(name(&job))?;
            }
        }
        let jobs: BTreeSet<String> = self.jobs.iter().filter_map(|one| one.metadata.uid.clone()).collect();
        let orphaned = |meta: &ObjectMeta| {
            meta.owner_references.iter().flatten().any(|one| one.controller == Some(true) && !jobs.contains(&one.uid))
        };
        for one in self.servings.list() {
            if orphaned(&one.metadata) || one.metadata.deletion_timestamp.is_some() {
                self.delete_serving(name(&one))?;
            }
        }
        for one in self.pools.list().into_iter().filter(|one| orphaned(&one.metadata)) {
            self.pools.remove(name(&one))?;
        }
        let mut alive = jobs;
        alive.extend(self.servings.iter().filter_map(|one| one.metadata.uid.clone()));
        alive.extend(self.pools.iter().filter_map(|one| one.metadata.uid.clone()));
        node.collect_garbage(&alive)
    }

    /// Deletes the run's object, as `kubectl delete` would.
    ///
    /// # Errors
    /// [`crate::Error::File`].
    pub fn delete_job(&mut self) -> Result<()> {
        let Some(job) = self.job().map(|job| name(job).to_owned()) else { return Ok(()) };
        self.jobs
            .update(&job, |job| {
                job.metadata.deletion_timestamp.get_or_insert_with(|| Time(Timestamp::now()));
            })
            .map(drop)
    }
}

/// How a run has ended, by its own status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// Everything is done.
    Complete,
    /// It cannot go on; reason and message.
    Failed(String, String),
    /// No trainer runs, by request.
    Suspended,
}

/// The end of a run, if it has one.
#[must_use]
pub fn end_of(job: &RLJob) -> Option<End> {
    let conditions = &job.status.as_ref()?.conditions;
    if cond::is_true(conditions, cond::COMPLETE) {
        return Some(End::Complete);
    }
    if cond::is_true(conditions, cond::FAILED) {
        let failed = cond::get(conditions, cond::FAILED)?;
        return Some(End::Failed(failed.reason.clone(), failed.message.clone()));
    }
    let suspended = job.spec.suspend && cond::is_true(conditions, cond::SUSPENDED);
    suspended.then_some(End::Suspended)
}

/// Where the conductor of a run is.
#[must_use]
pub fn conductor_of(job: &RLJob, node: &Node) -> Option<Target> {
    let run = name(job);
    let pod = node.objects().pods.get(&format!("{}-0", build::conductor_name(run)))?;
    let secret = node.objects().secrets.get(&build::token_secret(run))?;
    if !node.reachable(pod) || crate::pod::terminal(pod) {
        return None;
    }
    target(pod, secret)
}

/// URL and token from a conductor's pod and the run's Secret.
#[must_use]
pub fn target(pod: &Pod, secret: &Secret) -> Option<Target> {
    let address = pod.status.as_ref()?.pod_ip.as_ref()?;
    let token = crate::mount::secrets_of(secret).remove(build::TOKEN_KEY)?;
    let url = format!("http://{address}:{}", build::CONDUCTOR_PORT);
    Some(Target { url, token: String::from_utf8(token).ok()? })
}

fn labelled(meta: &ObjectMeta, key: &str, value: &str) -> bool {
    meta.labels.as_ref().and_then(|labels| labels.get(key)).is_some_and(|found| found == value)
}

fn children(node: &Node, key: &str, uid: &str) -> Vec<Child> {
    let objects = node.objects();
    let mut all = Vec::new();
    let mine = |meta: &ObjectMeta| labelled(meta, key, uid);
    all.extend(
        objects.config_maps.iter().filter(|one| mine(&one.metadata)).map(|one| Child::ConfigMap(Box::new(one.clone()))),
    );
    all.extend(
        objects.services.iter().filter(|one| mine(&one.metadata)).map(|one| Child::Service(Box::new(one.clone()))),
    );
    all.extend(
        objects
            .stateful_sets
            .iter()
            .filter(|one| mine(&one.metadata))
            .map(|one| Child::StatefulSet(Box::new(one.clone()))),
    );
    all.extend(
        objects.daemon_sets.iter().filter(|one| mine(&one.metadata)).map(|one| Child::DaemonSet(Box::new(one.clone()))),
    );
    all.extend(
        objects
            .pod_groups
            .iter()
            .filter(|one| mine(&one.0.metadata))
            .map(|one| Child::PodGroup(one.api(), Box::new(one.0.clone()))),
    );
    all.extend(objects.jobs.iter().filter(|one| mine(&one.metadata)).map(|one| Child::Job(Box::new(one.clone()))));
    all.extend(
        objects
            .disruption_budgets
            .iter()
            .filter(|one| mine(&one.metadata))
            .map(|one| Child::PodDisruptionBudget(Box::new(one.clone()))),
    );
    all
}

fn pods(node: &Node, key: &str, uid: &str) -> Vec<Pod> {
    node.objects().pods.iter().filter(|pod| labelled(&pod.metadata, key, uid)).cloned().collect()
}

fn nodes(node: &Node) -> std::collections::BTreeMap<String, NodeState> {
    let state = |health: &Health| match health {
        Health::Ready => NodeState::Ready,
        Health::Unreachable => NodeState::Unreachable,
    };
    node.nodes().iter().map(|(name, health)| (name.clone(), state(health))).collect()
}

fn uid_of(operator: &Operator, node: &Node, kind: ChildKind, name: &str) -> Option<String> {
    fn uid<K: objects::Object>(table: &Table<K>, name: &str) -> Option<String> {
        table.get(name).and_then(|one| one.meta().uid.clone())
    }
    let objects = node.objects();
    match kind {
        ChildKind::ConfigMap => uid(&objects.config_maps, name),
        ChildKind::Service => uid(&objects.services, name),
        ChildKind::StatefulSet => uid(&objects.stateful_sets, name),
        ChildKind::DaemonSet => uid(&objects.daemon_sets, name),
        ChildKind::Job => uid(&objects.jobs, name),
        ChildKind::PodDisruptionBudget => uid(&objects.disruption_budgets, name),
        ChildKind::PodGroup(_) => uid(&objects.pod_groups, name),
        ChildKind::ServingCluster => uid(&operator.servings, name),
        ChildKind::RolloutPool => uid(&operator.pools, name),
    }
}

fn exists(operator: &Operator, node: &Node, kind: ChildKind, name: &str) -> bool {
    uid_of(operator, node, kind, name).is_some()
}
