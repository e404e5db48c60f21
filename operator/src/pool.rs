//! RolloutPool: its world, and who must hear of it.

use std::sync::Arc;

use api::{RLJob, RolloutPool, RolloutPoolStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, OwnerReference};
use kube::runtime::reflector::Store;
use plan::{Listing, Plan, PoolWorld, Settings, build::Owner};

use crate::{
    context::{Context, Guarded, Memory, Requests},
    error::Result,
    kind::{Kind, identity},
    rljob::{nodes_of, owned_children, owned_pods},
    secrets,
};

impl Kind for RolloutPool {
    type Status = RolloutPoolStatus;
    type World = PoolWorld;
    const NAME: &'static str = "RolloutPool";
    const MANAGER: &'static str = "thresh-operator/rolloutpool";

    async fn dereference(&self, context: &Arc<Context>, _: &str, _: Option<Listing>) -> Result<Option<PoolWorld>> {
        let uid = identity(self).2;
        let pods = owned_pods(context, uid);
        secrets::restore_missed(context, self, &pods).await?;
        let nodes = nodes_of(context, &pods).await?;
        Ok(Some(PoolWorld { children: owned_children(context, uid), nodes, pods }))
    }

    fn decide(&self, world: &PoolWorld, now: jiff::Timestamp, settings: &Settings) -> Plan<RolloutPoolStatus> {
        plan::pool::decide(self, world, now, settings)
    }

    fn status_or_default(&self) -> RolloutPoolStatus {
        self.status.clone().unwrap_or_default()
    }

    fn conditions(status: &mut RolloutPoolStatus) -> &mut Vec<Condition> {
        &mut status.conditions
    }

    fn owner(&self) -> OwnerReference {
        Owner::pool(self).reference()
    }

    fn changed(&self, context: &Context) {
        let (namespace, name, _) = identity(self);
        RLJob::request_where(context, Some(namespace), |job| job.rollout_name() == name);
    }

    fn gauge(&self, _: &Context, _: bool) {}

    fn memory(context: &Context) -> &Memory<Self> {
        &context.pools
    }

    fn store(context: &Context) -> &Store<Guarded<Self>> {
        &context.stores.pools
    }

    fn requests(context: &Context) -> &Requests<Self> {
        &context.requests.pools
    }
}
