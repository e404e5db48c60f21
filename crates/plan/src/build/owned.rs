//! The ServingCluster and the RolloutPool an RLJob makes from its templates.

use api::{
    ChildPolicy, ModelRef, PoolTemplate, RLJob, RolloutPool, RolloutPoolSpec, ServingCluster, ServingClusterSpec,
    ServingTemplate, TemplateMeta, hash, labels,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::json;

use super::meta::Owner;

fn metadata(
    job: &RLJob,
    name: String,
    role: &str,
    revision: &str,
    replicas: u32,
    user: &TemplateMeta,
    policy: Option<ChildPolicy>,
) -> ObjectMeta {
    let owner = Owner::rljob(job);
    let mut meta = owner.child(name, role, Some(revision));
    let l = meta.labels.get_or_insert_default();
    l.extend(user.labels.iter().filter(|(k, _)| !k.starts_with(labels::PREFIX)).map(|(k, v)| (k.clone(), v.clone())));
    let a = meta.annotations.get_or_insert_default();
    a.extend(
        user.annotations.iter().filter(|(k, _)| !k.starts_with(labels::PREFIX)).map(|(k, v)| (k.clone(), v.clone())),
    );
    a.insert(labels::TEMPLATE_REPLICAS.into(), replicas.to_string());
    a.insert(labels::RLJOB_GENERATION.into(), job.metadata.generation.unwrap_or(0).to_string());
    if policy == Some(ChildPolicy::Retain) {
        meta.owner_references = None;
    }
    meta
}

/// The spec of the ServingCluster a template asks for.
pub fn serving_spec(job: &RLJob, template: &ServingTemplate, replicas: u32) -> ServingClusterSpec {
    ServingClusterSpec {
        replicas,
        model: ModelRef { source: job.spec.model.source.clone() },
        storage: job.spec.storage.clone(),
        accelerator: template.spec.accelerator.clone(),
        engine: template.spec.engine.clone(),
        updates: template.spec.updates.clone(),
        disruption: template.spec.disruption.clone(),
    }
}

/// The ServingCluster of the template, if the spec has one. `replicas` is what to write: the template's at creation and when
/// it was edited, else the child's own.
pub fn serving_cluster(job: &RLJob, replicas: Option<u32>) -> Option<ServingCluster> {
    let template = job.spec.serving.template.as_ref()?;
    let job = &job.defaulted();
    let wanted = template.spec.replicas;
    let spec = serving_spec(job, template, replicas.unwrap_or(wanted));
    let revision = hash::of(&json!({
        "engine": hash::engine(&spec),
        "updates": spec.updates,
        "disruption": (!spec.disruption.is_default()).then_some(&spec.disruption),
        "metadata": template.metadata,
        "policy": job.spec.deletion_policy.serving,
    }));
    let mut cluster = ServingCluster::new(&job.serving_name(), spec);
    cluster.metadata = metadata(
        job,
        job.serving_name(),
        "serving",
        &revision,
        wanted,
        &template.metadata,
        job.spec.deletion_policy.serving,
    );
    Some(cluster)
}

fn pool_spec(job: &RLJob, template: &PoolTemplate, replicas: Option<u32>) -> RolloutPoolSpec {
    RolloutPoolSpec {
        placement: template.spec.placement,
        replicas,
        storage: job.spec.storage.clone(),
        worker: template.spec.worker.clone(),
        updates: template.spec.updates.clone(),
        paused: false,
    }
}

/// The RolloutPool of the template, if the spec has one.
pub fn rollout_pool(job: &RLJob, replicas: Option<u32>) -> Option<RolloutPool> {
    let template = job.spec.rollout.template.as_ref()?;
    let job = &job.defaulted();
    let wanted = match template.spec.placement {
        api::Placement::Replicas => Some(template.spec.replicas.unwrap_or(1)),
        api::Placement::PerNode => None,
    };
    let spec = pool_spec(job, template, wanted.and(replicas).or(wanted));
    let revision = hash::of(&json!({
        "worker": hash::worker(&spec),
        "updates": (!spec.updates.is_default()).then_some(&spec.updates),
        "metadata": template.metadata,
        "policy": job.spec.deletion_policy.rollout,
    }));
    let mut pool = RolloutPool::new(&job.rollout_name(), spec);
    pool.metadata = metadata(
        job,
        job.rollout_name(),
        "rollout",
        &revision,
        wanted.unwrap_or(0),
        &template.metadata,
        job.spec.deletion_policy.rollout,
    );
    Some(pool)
}
