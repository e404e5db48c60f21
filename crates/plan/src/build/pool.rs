//! Workers: StatefulSet or DaemonSet, and headless Service.

use std::collections::BTreeMap;

use api::{Placement, RolloutPool, hash, labels};
use k8s_openapi::api::apps::v1::{
    DaemonSet, DaemonSetSpec, DaemonSetUpdateStrategy, RollingUpdateDaemonSet, StatefulSet, StatefulSetSpec,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::conductor::headless;
use super::meta::{Owner, label_selector};
use super::pod::{PodParts, common_env, template, token};
use super::serving::down_to;
use super::{REVISIONS_KEPT, WORKER_PORT, token_secret};
use crate::Child;

const ROLE: &str = "worker";

/// Headless Service of a RolloutPool's workers.
pub fn workers_service(pool: &str) -> String {
    format!("{pool}-workers")
}

/// Workers a pool of placement Replicas is to have now.
pub(crate) fn replicas(pool: &RolloutPool) -> u32 {
    if pool.spec.paused { 0 } else { pool.spec.replicas.unwrap_or(1) }
}

/// Service, and StatefulSet or DaemonSet. Ordinals below `partition` stay at the revision they have.
pub fn pool_objects(pool: &RolloutPool, image: &str, partition: u32) -> Vec<Child> {
    let owner = Owner::pool(pool);
    let spec = &pool.spec;
    let revision = hash::worker(spec);
    let service = workers_service(&owner.name);
    let mut env = common_env();
    env.push(token("THRESH_TOKEN", token_secret(&owner.name)));
    let w = &spec.worker;
    let parts = PodParts {
        container: ROLE,
        image: w.image.clone().unwrap_or_else(|| image.to_owned()),
        command: [
            "thresh-rollout",
            "worker",
            "--listen",
            &format!("$(POD_IP):{WORKER_PORT}"),
            "--max-concurrent-groups",
            &w.max_concurrent_groups.to_string(),
        ]
        .map(str::to_owned)
        .to_vec(),
        env,
        port: WORKER_PORT,
        resources: w.resources.clone(),
        claim: spec.storage.claim_name.clone(),
        config_map: None,
        grace_seconds: 30,
        labels: owner.labels(ROLE),
        annotations: BTreeMap::from([(labels::REVISION.to_owned(), revision.clone())]),
        restart: "Always",
        startup_seconds: 120,
    };
    let mut template = template(parts, w.pod_template.as_ref());
    let meta = owner.child(owner.name.clone(), ROLE, Some(&revision));
    let selector = label_selector(owner.selector(ROLE));
    let set = match spec.placement {
        Placement::Replicas => Child::StatefulSet(Box::new(StatefulSet {
            metadata: meta,
            spec: Some(StatefulSetSpec {
                replicas: Some(i32::try_from(replicas(pool)).unwrap_or(i32::MAX)),
                service_name: Some(service.clone()),
                selector,
                template,
                pod_management_policy: Some("Parallel".into()),
                revision_history_limit: Some(REVISIONS_KEPT),
                update_strategy: Some(down_to(partition)),
                ..StatefulSetSpec::default()
            }),
            status: None,
        })),
        Placement::PerNode => {
            if spec.paused {
                // A DaemonSet has no count: it runs nowhere when no node is good enough.
                let selector = template.spec.get_or_insert_default().node_selector.get_or_insert_default();
                selector.insert(labels::PAUSED.into(), "true".into());
            }
            let share = format!("{}%", spec.updates.max_unavailable_percent);
            let update_strategy = DaemonSetUpdateStrategy {
                type_: Some("RollingUpdate".into()),
                rolling_update: Some(RollingUpdateDaemonSet {
                    max_unavailable: Some(IntOrString::String(share)),
                    max_surge: None,
                }),
            };
            let spec = DaemonSetSpec {
                selector,
                template,
                revision_history_limit: Some(REVISIONS_KEPT),
                update_strategy: Some(update_strategy),
                ..DaemonSetSpec::default()
            };
            Child::DaemonSet(Box::new(DaemonSet { metadata: meta, spec: Some(spec), status: None }))
        }
    };
    let service = headless(&owner, service, ROLE, WORKER_PORT, owner.selector(ROLE), "v1:workers");
    vec![Child::Service(Box::new(service)), set]
}
