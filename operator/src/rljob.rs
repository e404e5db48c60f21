//! RLJob: its world, and who must hear of it.

use std::{collections::BTreeMap, sync::Arc};

use api::{Gang, RLJob, RLJobStatus, conditions as cond};
use k8s_openapi::{
    api::core::v1::{Node, PersistentVolumeClaim, Pod},
    apimachinery::pkg::apis::meta::v1::{Condition, OwnerReference},
};
use kube::{
    Api,
    runtime::reflector::{ObjectRef, Store},
};
use plan::{Child, GangApi, Listing, NodeState, Plan, Settings, StorageState, World, build::Owner, pod_facts};

use crate::{
    apply::{Hands, ask},
    context::{Context, Guarded, Memory, Requests},
    error::Result,
    kind::{Kind, identity},
    nodes, queue, secrets,
};

impl Kind for RLJob {
    type Status = RLJobStatus;
    type World = World;
    const NAME: &'static str = "RLJob";
    const MANAGER: &'static str = "thresh-operator/rljob";

    async fn dereference(
        &self,
        context: &Arc<Context>,
        token: &str,
        listing: Option<Listing>,
    ) -> Result<Option<World>> {
        let (namespace, name, uid) = identity(self);
        let caches = &context.caches;
        let pods = owned_pods(context, uid);
        let tell = {
            let (context, namespace, name) = (Arc::downgrade(context), namespace.to_owned(), name.to_owned());
            move || {
                if let Some(context) = context.upgrade() {
                    RLJob::request(&context, &namespace, &name);
                }
            }
        };
        let Some(conductor) = context.links.hear(uid, &pods, token, tell) else { return Ok(None) };
        let mut children = owned_children(context, uid);
        children.extend(caches.jobs.owned_by(uid).iter().map(|o| Child::Job(Box::new((**o).clone()))));
        children.extend(caches.config_maps.owned_by(uid).iter().map(|o| Child::ConfigMap(Box::new((**o).clone()))));
        if let Some(api) = gang(self) {
            let hands = Hands { client: &context.client, metrics: &context.metrics, namespace, manager: Self::MANAGER };
            // Not watched: a cluster need not have the kind.
            children.extend(hands.pod_groups(api, uid).await?);
        }
        // The conductor needs three tokens, and those who own the others may have no pod that begins.
        secrets::restore_missed(context, self, &pods).await?;
        let serving = context.stores.servings.get(&ObjectRef::new(&self.serving_name()).within(namespace));
        if let Some(Ok(one)) = serving.as_deref().map(|one| &one.0) {
            secrets::restore_missed(context, one, &pods).await?;
            children.push(Child::ServingCluster(Box::new(context.servings.latest(one))));
        }
        let pool = context.stores.pools.get(&ObjectRef::new(&self.rollout_name()).within(namespace));
        if let Some(Ok(one)) = pool.as_deref().map(|one| &one.0) {
            secrets::restore_missed(context, one, &pods).await?;
            children.push(Child::RolloutPool(Box::new(context.pools.latest(one))));
        }
        let quota = match held_by_queue(self) {
            Some(job) => queue::quota(&context.client, namespace, job).await?,
            None => None,
        };
        let nodes = nodes_of(context, &pods).await?;
        let all = caches.nodes.all();
        let cordoned = all.iter().filter(|n| nodes::cordoned(n)).filter_map(|n| n.metadata.name.clone());
        let claim = &self.spec.storage.claim_name;
        let storage = match caches.claims.get(namespace, claim) {
            Some(claim) => storage_state(&claim),
            None => {
                // Absence in a cache is not absence.
                let api: Api<PersistentVolumeClaim> = Api::namespaced(context.client.clone(), namespace);
                let there = ask(&format!("get PersistentVolumeClaim {claim}"), api.get_opt(claim)).await?;
                there.as_ref().map_or(StorageState::Missing, storage_state)
            }
        };
        Ok(Some(World {
            children,
            nodes,
            cordoned: cordoned.collect(),
            conductor,
            storage: Some(storage),
            quota,
            listing,
            pods,
        }))
    }

    fn decide(&self, world: &World, now: jiff::Timestamp, settings: &Settings) -> Plan<RLJobStatus> {
        plan::rljob::decide(self, world, now, settings)
    }

    fn status_or_default(&self) -> RLJobStatus {
        self.status.clone().unwrap_or_default()
    }

    fn conditions(status: &mut RLJobStatus) -> &mut Vec<Condition> {
        &mut status.conditions
    }

    fn owner(&self) -> OwnerReference {
        Owner::rljob(self).reference()
    }

    fn is_managed(&self) -> bool {
        self.spec.managed_by.as_deref().is_none_or(|manager| manager == api::MANAGER)
    }

    fn changed(&self, context: &Context) {
        let namespace = self.metadata.namespace.as_deref().unwrap_or_default();
        api::ServingCluster::request(context, namespace, &self.serving_name());
    }

    fn gauge(&self, context: &Context, gone: bool) {
        let (namespace, name, uid) = identity(self);
        let run = [namespace, name];
        let m = &context.metrics;
        if gone {
            for gauge in [&m.run_failures, &m.run_step, &m.run_stalled] {
                // It may never have been set.
                let _ = gauge.remove_label_values(&run);
            }
            let _ = m.run_backoff_share.remove_label_values(&run);
            context.links.forget(uid);
            return;
        }
        let Some(s) = &self.status else { return };
        let whole = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        m.run_failures.with_label_values(&run).set(s.counters.failures.into());
        m.run_step.with_label_values(&run).set(s.progress.as_ref().map_or(0, |p| whole(p.step)));
        let survived = self.spec.trainer.failure_policy.backoff_limit.saturating_add(1);
        let share = f64::from(s.counters.failures_since_progress) / f64::from(survived);
        m.run_backoff_share.with_label_values(&run).set(share);
        let ready = s.attempt.as_ref().is_some_and(|a| a.ready_time.is_some());
        let stalled = ready && cond::get(&s.conditions, cond::PROGRESSING).is_some_and(|c| c.status == "False");
        m.run_stalled.with_label_values(&run).set(stalled.into());
    }

    fn memory(context: &Context) -> &Memory<Self> {
        &context.rljobs
    }

    fn store(context: &Context) -> &Store<Guarded<Self>> {
        &context.stores.rljobs
    }

    fn requests(context: &Context) -> &Requests<Self> {
        &context.requests.rljobs
    }
}

/// The Job of an attempt that a queue has not let go yet.
fn held_by_queue(job: &RLJob) -> Option<&str> {
    job.spec.scheduling.as_ref()?.queue_name.as_ref()?;
    let attempt = job.status.as_ref()?.attempt.as_ref()?;
    attempt.job_uid.as_deref().filter(|_| attempt.released_time.is_none())
}

/// Whose PodGroups the run has.
fn gang(job: &RLJob) -> Option<GangApi> {
    match job.spec.scheduling.as_ref()?.gang {
        Gang::None => None,
        Gang::Volcano => Some(GangApi::Volcano),
        Gang::SchedulerPlugins => Some(GangApi::SchedulerPlugins),
    }
}

fn storage_state(claim: &PersistentVolumeClaim) -> StorageState {
    match claim.status.as_ref().and_then(|s| s.phase.as_deref()) {
        Some("Bound") => StorageState::Bound,
        Some("Lost") => StorageState::Missing,
        _ => StorageState::Pending,
    }
}

/// Pods that carry the owner's uid.
pub fn owned_pods(context: &Context, uid: &str) -> Vec<Pod> {
    context.caches.pods.owned_by(uid).iter().map(|pod| (**pod).clone()).collect()
}

/// Services and sets that carry the owner's uid.
pub fn owned_children(context: &Context, uid: &str) -> Vec<Child> {
    let caches = &context.caches;
    let services = caches.services.owned_by(uid).into_iter().map(|o| Child::Service(Box::new((*o).clone())));
    let sets = caches.stateful_sets.owned_by(uid).into_iter().map(|o| Child::StatefulSet(Box::new((*o).clone())));
    let daemons = caches.daemon_sets.owned_by(uid).into_iter().map(|o| Child::DaemonSet(Box::new((*o).clone())));
    let budgets = caches.budgets.owned_by(uid).into_iter().map(|o| Child::PodDisruptionBudget(Box::new((*o).clone())));
    services.chain(sets).chain(daemons).chain(budgets).collect()
}

/// Nodes of these pods. One that is not in the cache is asked for: only the API server can say that it is gone.
pub async fn nodes_of(context: &Context, pods: &[Pod]) -> Result<BTreeMap<String, NodeState>> {
    let mut states = BTreeMap::new();
    for name in pods.iter().filter_map(pod_facts::node) {
        if states.contains_key(name) {
            continue;
        }
        let state = match context.caches.nodes.get("", name) {
            Some(node) => nodes::state(&node),
            None => {
                let api: Api<Node> = Api::all(context.client.clone());
                let there = ask(&format!("get Node {name}"), api.get_opt(name)).await?;
                there.as_ref().map_or(NodeState::Gone, nodes::state)
            }
        };
        states.insert(name.to_owned(), state);
    }
    Ok(states)
}
