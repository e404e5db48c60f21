//! Watches: they fill caches, and ask for a look at whoever a change concerns.

use std::{fmt::Debug, pin::pin, sync::Arc};

use api::{RLJob, RolloutPool, ServingCluster, labels};
use futures::StreamExt;
use k8s_openapi::{
    ClusterResourceScope, NamespaceResourceScope,
    api::core::v1::{Node, PersistentVolumeClaim},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Resource,
    runtime::{
        WatchStreamExt,
        reflector::store::Writer,
        watcher::{self, Event, watcher},
    },
};
use serde::{Serialize, de::DeserializeOwned};
use tokio::task::JoinSet;

use crate::{
    cache::Cache,
    context::{Context, Guarded},
    kind::{Kind, identity},
    slim,
    spell::Spell,
};

/// Writers of the stores of our own kinds.
pub struct Writers {
    /// RLJobs.
    pub rljobs: Writer<Guarded<RLJob>>,
    /// ServingClusters.
    pub servings: Writer<Guarded<ServingCluster>>,
    /// RolloutPools.
    pub pools: Writer<Guarded<RolloutPool>>,
}

/// Labels whose values are the uids of owners.
pub const OWNERS: &[&str] = &[labels::RLJOB_UID, labels::SERVING_UID, labels::POOL_UID];

/// Starts every watch, of one namespace or of all.
pub fn start(context: &Arc<Context>, namespace: Option<&str>, writers: Writers) -> JoinSet<()> {
    let ours = watcher::Config::default().labels(labels::ROLE);
    let mut tasks = JoinSet::new();
    let c = || context.clone();
    let Writers { rljobs, servings, pools } = writers;
    tasks.spawn(own(c(), api(context, namespace), rljobs));
    tasks.spawn(own(c(), api(context, namespace), servings));
    tasks.spawn(own(c(), api(context, namespace), pools));
    tasks.spawn(children(c(), api(context, namespace), ours.clone(), |c| &c.caches.pods, slim::pod, owner));
    tasks.spawn(children(c(), api(context, namespace), ours.clone(), |c| &c.caches.jobs, slim::job, owner));
    let maps =
        children(c(), api(context, namespace), ours.clone(), |c| &c.caches.config_maps, slim::no_managers, owner);
    tasks.spawn(maps);
    let services =
        children(c(), api(context, namespace), ours.clone(), |c| &c.caches.services, slim::no_managers, owner);
    tasks.spawn(services);
    let sets =
        children(c(), api(context, namespace), ours.clone(), |c| &c.caches.stateful_sets, slim::no_managers, owner);
    tasks.spawn(sets);
    let daemons =
        children(c(), api(context, namespace), ours.clone(), |c| &c.caches.daemon_sets, slim::no_managers, owner);
    tasks.spawn(daemons);
    let budgets = children(c(), api(context, namespace), ours, |c| &c.caches.budgets, slim::no_managers, owner);
    tasks.spawn(budgets);
    let all = watcher::Config::default();
    let claims = children(c(), api(context, namespace), all.clone(), |c| &c.caches.claims, slim::no_managers, claim);
    tasks.spawn(claims);
    let nodes: Api<Node> = Api::all(context.client.clone());
    tasks.spawn(children(c(), nodes, all, |c| &c.caches.nodes, slim::node, everybody));
    tasks
}

fn api<K: Resource<DynamicType = (), Scope = NamespaceResourceScope>>(
    context: &Context,
    namespace: Option<&str>,
) -> Api<K> {
    match namespace {
        Some(namespace) => Api::namespaced(context.client.clone(), namespace),
        None => Api::all(context.client.clone()),
    }
}

async fn children<K>(
    context: Arc<Context>,
    api: Api<K>,
    config: watcher::Config,
    cache: fn(&Context) -> &Cache<K>,
    slim: fn(&mut K),
    tell: fn(&Context, &K),
) where
    K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned + Send + Sync + 'static,
{
    let mut events = pin!(watcher(api, config).default_backoff());
    let mut spell = Spell::new(format!("watch {}s", K::kind(&())));
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                heard(&mut spell, &event);
                for change in cache(&context).take(slimmed(event, slim)) {
                    tell(&context, &change);
                }
            }
            Err(error) => spell.failed(error),
        }
    }
}

/// [`Event::Init`] comes before anything was asked.
fn heard<K>(spell: &mut Spell, event: &Event<K>) {
    if !matches!(event, Event::Init) {
        spell.over();
    }
}

fn slimmed<K>(event: Event<K>, slim: fn(&mut K)) -> Event<K> {
    let cut = |mut object: K| {
        slim(&mut object);
        object
    };
    match event {
        Event::Apply(object) => Event::Apply(cut(object)),
        Event::InitApply(object) => Event::InitApply(cut(object)),
        Event::Delete(object) => Event::Delete(cut(object)),
        other => other,
    }
}

/// Whoever the labels name.
fn owner<K: Resource>(context: &Context, object: &K) {
    let meta: &ObjectMeta = object.meta();
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    let named = |label: &str| meta.labels.as_ref().and_then(|l| l.get(label));
    if let Some(name) = named(labels::RLJOB) {
        RLJob::request(context, namespace, name);
    }
    if let Some(name) = named(labels::SERVING) {
        ServingCluster::request(context, namespace, name);
    }
    if let Some(name) = named(labels::POOL) {
        RolloutPool::request(context, namespace, name);
    }
}

/// Runs whose volume it is.
fn claim(context: &Context, claim: &PersistentVolumeClaim) {
    let name = claim.metadata.name.as_deref();
    RLJob::request_where(context, claim.metadata.namespace.as_deref(), |job| {
        name == Some(job.spec.storage.claim_name.as_str())
    });
}

/// A node is lost, back, cordoned or gone: it may matter to anybody.
fn everybody<K: Resource<Scope = ClusterResourceScope>>(context: &Context, _: &K) {
    request_all(context);
}

/// Asks for a look at everything.
pub fn request_all(context: &Context) {
    RLJob::request_where(context, None, |_| true);
    ServingCluster::request_where(context, None, |_| true);
    RolloutPool::request_where(context, None, |_| true);
}

async fn own<K: Kind>(context: Arc<Context>, api: Api<Guarded<K>>, mut writer: Writer<Guarded<K>>) {
    let mut events = pin!(watcher(api, watcher::Config::default()).default_backoff());
    let mut spell = Spell::new(format!("watch {}s", K::NAME));
    while let Some(event) = events.next().await {
        let event = match event {
            Ok(event) => {
                heard(&mut spell, &event);
                slimmed(event, slim::no_managers)
            }
            Err(error) => {
                spell.failed(error);
                continue;
            }
        };
        writer.apply_watcher_event(&event);
        match &event {
            Event::Apply(guarded) => {
                let own = guarded.0.as_ref().is_ok_and(|object| K::memory(&context).is_own(object));
                if !own {
                    ask_for(guarded, &context);
                }
            }
            Event::Delete(guarded) => {
                let (_, _, uid) = identity(guarded);
                if let Ok(object) = &guarded.0 {
                    object.gauge(&context, true);
                }
                K::memory(&context).forget(uid);
                // One made anew under the same name may wait for this.
                ask_for(guarded, &context);
            }
            Event::InitDone => {
                for guarded in K::store(&context).state() {
                    ask_for(&guarded, &context);
                }
            }
            Event::Init | Event::InitApply(_) => {}
        }
    }
}

fn ask_for<K: Kind>(guarded: &Guarded<K>, context: &Context) {
    let (namespace, name, _) = identity(guarded);
    K::request(context, namespace, name);
    if let Ok(object) = &guarded.0 {
        object.changed(context);
    }
    // A ServingCluster or RolloutPool made from a template tells its run by label.
    owner(context, guarded);
}
