//! ServingCluster: its world, and who must hear of it.

use std::sync::Arc;

use api::{RLJob, ServingCluster, ServingClusterStatus, conditions as cond};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, OwnerReference};
use kube::runtime::reflector::Store;
use plan::{Listing, Plan, ServingWorld, Settings, build::Owner};

use crate::{
    context::{Context, Guarded, Memory, Requests},
    error::Result,
    kind::{Kind, identity},
    rljob::{nodes_of, owned_children, owned_pods},
    secrets,
};

impl Kind for ServingCluster {
    type Status = ServingClusterStatus;
    type World = ServingWorld;
    const NAME: &'static str = "ServingCluster";
    const MANAGER: &'static str = "thresh-operator/servingcluster";

    async fn dereference(&self, context: &Arc<Context>, _: &str, _: Option<Listing>) -> Result<Option<ServingWorld>> {
        let (namespace, name, uid) = identity(self);
        let pods = owned_pods(context, uid);
        secrets::restore_missed(context, self, &pods).await?;
        let users = context.stores.rljobs.state();
        let users = users.iter().filter_map(|one| one.0.as_ref().ok());
        let users = users.filter(|j| j.metadata.namespace.as_deref() == Some(namespace) && j.serving_name() == name);
        Ok(Some(ServingWorld {
            children: owned_children(context, uid),
            nodes: nodes_of(context, &pods).await?,
            // As we last wrote them: a claim must not be judged by a status that we know to be old.
            users: users.map(|job| context.rljobs.latest(job)).collect(),
            pods,
        }))
    }

    fn decide(&self, world: &ServingWorld, now: jiff::Timestamp, settings: &Settings) -> Plan<ServingClusterStatus> {
        plan::serving::decide(self, world, now, settings)
    }

    fn status_or_default(&self) -> ServingClusterStatus {
        self.status.clone().unwrap_or_default()
    }

    fn conditions(status: &mut ServingClusterStatus) -> &mut Vec<Condition> {
        &mut status.conditions
    }

    fn owner(&self) -> OwnerReference {
        Owner::serving(self).reference()
    }

    fn changed(&self, context: &Context) {
        let (namespace, name, _) = identity(self);
        RLJob::request_where(context, Some(namespace), |job| job.serving_name() == name);
    }

    fn gauge(&self, context: &Context, gone: bool) {
        let (namespace, name, _) = identity(self);
        let gauge = &context.metrics.serving_available;
        if gone {
            // It may never have been set.
            let _ = gauge.remove_label_values(&[namespace, name]);
            return;
        }
        let available = self.status.as_ref().is_some_and(|s| cond::is_true(&s.conditions, cond::AVAILABLE));
        gauge.with_label_values(&[namespace, name]).set(available.into());
    }

    fn memory(context: &Context) -> &Memory<Self> {
        &context.servings
    }

    fn store(context: &Context) -> &Store<Guarded<Self>> {
        &context.stores.servings
    }

    fn requests(context: &Context) -> &Requests<Self> {
        &context.requests.servings
    }
}
