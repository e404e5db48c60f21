//! Carries out the actions of a plan on the API server.
//!
//! Children that live long are applied server-side, so that a field we no longer render goes away and a field that is somebody
//! else's stays. Attempts are created once and never touched again. Nothing that belongs to another owner is ever adopted.

use std::time::Duration;

use api::labels;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{
        ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, Preconditions,
        PropagationPolicy,
    },
};
use plan::{Child, ChildKind, GangApi, Listing, Target};
use serde_json::Value;

use crate::{
    error::{Error, Result},
    metrics::Metrics,
    secrets::owner_of,
};

/// An API server that is silent for longer does not answer.
pub const ANSWER: Duration = Duration::from_secs(20);

/// Waits for the API server, but not for ever.
pub async fn ask<T>(doing: &str, call: impl Future<Output = kube::Result<T>>) -> Result<T> {
    match tokio::time::timeout(ANSWER, call).await {
        Ok(answer) => answer.map_err(Error::api(doing)),
        Err(_) => Err(Error::Silent { doing: doing.to_owned(), after: ANSWER }),
    }
}

/// Hands of one controller in one namespace.
pub struct Hands<'a> {
    /// The API server.
    pub client: &'a Client,
    /// Counts writes.
    pub metrics: &'a Metrics,
    /// Where.
    pub namespace: &'a str,
    /// Field manager.
    pub manager: &'static str,
}

impl Hands<'_> {
    fn api(&self, kind: ChildKind) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), self.namespace, &resource(kind))
    }

    fn count(&self, kind: ChildKind, verb: &str) {
        self.metrics.writes.with_label_values(&[resource(kind).kind.as_str(), verb]).inc();
    }

    /// Makes the child; true if it was not there.
    pub async fn create(&self, child: &Child) -> Result<bool> {
        match self.api(child.kind()).get_opt_in_time(child.name()).await? {
            Some(there) => belongs(child, &there).map(|()| false),
            None if is_frozen(child) => self.post(child).await,
            None => self.patch(child).await.map(|()| true),
        }
    }

    /// Makes the child, or brings the one there to this form.
    pub async fn apply(&self, child: &Child) -> Result<()> {
        if let Some(there) = self.api(child.kind()).get_opt_in_time(child.name()).await? {
            belongs(child, &there)?;
        }
        self.patch(child).await
    }

    async fn post(&self, child: &Child) -> Result<bool> {
        let doing = format!("create {} {}", resource(child.kind()).kind, child.name());
        let object: DynamicObject =
            serde_json::from_value(body(child)).map_err(|source| Error::Json { doing: doing.clone(), source })?;
        let params = PostParams { field_manager: Some(self.manager.into()), ..PostParams::default() };
        self.count(child.kind(), "create");
        match ask(&doing, self.api(child.kind()).create(&params, &object)).await {
            Ok(_) => Ok(true),
            // Somebody was faster: is it ours?
            Err(error) if error.is_conflict() => match self.api(child.kind()).get_opt_in_time(child.name()).await? {
                Some(there) => belongs(child, &there).map(|()| false),
                None => Err(error),
            },
            Err(error) => Err(error),
        }
    }

    async fn patch(&self, child: &Child) -> Result<()> {
        let doing = format!("apply {} {}", resource(child.kind()).kind, child.name());
        let params = PatchParams::apply(self.manager).force();
        self.count(child.kind(), "apply");
        ask(&doing, self.api(child.kind()).patch(child.name(), &params, &Patch::Apply(body(child)))).await.map(drop)
    }

    /// Deletes what is still that very object.
    pub async fn delete(&self, target: &Target) -> Result<()> {
        let params = DeleteParams {
            propagation_policy: Some(if target.foreground {
                PropagationPolicy::Foreground
            } else {
                PropagationPolicy::Background
            }),
            ..exactly(&target.uid)
        };
        self.count(target.kind, "delete");
        let doing = format!("delete {} {}", resource(target.kind).kind, target.name);
        gone(ask(&doing, self.api(target.kind).delete(&target.name, &params)).await.map(drop))
    }

    /// Deletes a pod; with `force` without waiting for its node.
    pub async fn delete_pod(&self, name: &str, uid: &str, force: bool) -> Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), self.namespace);
        let params = DeleteParams { grace_period_seconds: force.then_some(0), ..exactly(uid) };
        self.metrics.writes.with_label_values(&["Pod", "delete"]).inc();
        gone(ask(&format!("delete Pod {name}"), pods.delete(name, &params)).await.map(drop))
    }

    /// The PodGroups of this run; none where the cluster knows no such kind.
    pub async fn pod_groups(&self, api: GangApi, uid: &str) -> Result<Vec<Child>> {
        let params = ListParams::default().labels(&format!("{}={uid}", labels::RLJOB_UID));
        match ask("list PodGroups", self.api(ChildKind::PodGroup(api)).list(&params)).await {
            Ok(list) => Ok(list.items.into_iter().map(|one| Child::PodGroup(api, Box::new(one))).collect()),
            Err(error) if error.is_not_found() => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// This run's trainer Jobs and pods, from the API server itself and not from a cache.
    pub async fn list(&self, uid: &str) -> Result<Listing> {
        let params = ListParams::default().labels(&format!("{}={uid},{}=trainer", labels::RLJOB_UID, labels::ROLE));
        let jobs: Api<k8s_openapi::api::batch::v1::Job> = Api::namespaced(self.client.clone(), self.namespace);
        let jobs = ask("list Jobs", jobs.list(&params)).await?;
        // Jobs first: a Job that is gone makes no pod that the second list would miss.
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), self.namespace);
        let pods = ask("list Pods", pods.list(&params)).await?;
        Ok(Listing::of(&jobs.items, &pods.items))
    }
}

/// A question with a deadline.
trait InTime {
    async fn get_opt_in_time(&self, name: &str) -> Result<Option<DynamicObject>>;
}

impl InTime for Api<DynamicObject> {
    async fn get_opt_in_time(&self, name: &str) -> Result<Option<DynamicObject>> {
        ask(&format!("get {name}"), self.get_opt(name)).await
    }
}

/// Deletion of what is gone, or is another object by now, has succeeded.
pub fn gone(result: Result<()>) -> Result<()> {
    match result {
        Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
        other => other,
    }
}

/// Deletes only this very object.
pub fn exactly(uid: &str) -> DeleteParams {
    let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
    DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() }
}

/// Attempts are created once and never applied again.
fn is_frozen(child: &Child) -> bool {
    child.label(labels::ATTEMPT).is_some()
}

const OWNERS: [&str; 3] = [labels::RLJOB_UID, labels::SERVING_UID, labels::POOL_UID];

/// Ok if the object there has the owner that `child` will have.
fn belongs(child: &Child, there: &DynamicObject) -> Result<()> {
    let has = there.metadata.labels.as_ref();
    let wanted = OWNERS.iter().find_map(|uid| child.label(uid).map(|value| (*uid, value)));
    if let Some((key, value)) = wanted
        && has.and_then(|l| l.get(key)).is_some_and(|v| v == value)
    {
        return Ok(());
    }
    let owner = owner_of(&there.metadata);
    Err(Error::NameTaken { kind: resource(child.kind()).kind, name: child.name().to_owned(), owner })
}

/// The object as it is sent: without status, and without nulls, which would claim fields.
fn body(child: &Child) -> Value {
    let mut json = child.to_json();
    if let Value::Object(map) = &mut json {
        map.remove("status");
    }
    api::without_nulls(&mut json);
    json
}

/// How the API server calls a kind.
pub fn resource(kind: ChildKind) -> ApiResource {
    use k8s_openapi::api::{apps::v1 as apps, batch::v1 as batch, core::v1 as core, policy::v1 as policy};
    match kind {
        ChildKind::ConfigMap => ApiResource::erase::<core::ConfigMap>(&()),
        ChildKind::Service => ApiResource::erase::<core::Service>(&()),
        ChildKind::StatefulSet => ApiResource::erase::<apps::StatefulSet>(&()),
        ChildKind::DaemonSet => ApiResource::erase::<apps::DaemonSet>(&()),
        ChildKind::Job => ApiResource::erase::<batch::Job>(&()),
        ChildKind::PodDisruptionBudget => ApiResource::erase::<policy::PodDisruptionBudget>(&()),
        ChildKind::PodGroup(api) => {
            let (group, version) = api.group_version();
            let kind = kube::api::GroupVersionKind::gvk(group, version, "PodGroup");
            ApiResource::from_gvk_with_plural(&kind, "podgroups")
        }
        ChildKind::ServingCluster => ApiResource::erase::<api::ServingCluster>(&()),
        ChildKind::RolloutPool => ApiResource::erase::<api::RolloutPool>(&()),
    }
}
