//! Workers: StatefulSet or DaemonSet, and headless Service.

use std::collections::BTreeMap;

use api::{Placement, RolloutPool, hash};
use k8s_openapi::api::apps::v1::{DaemonSet, DaemonSetSpec, StatefulSet, StatefulSetSpec};

use super::conductor::headless;
use super::meta::{Owner, label_selector};
use super::pod::{PodParts, common_env, template, token};
use super::{WORKER_PORT, token_secret};
use crate::Child;

const ROLE: &str = "worker";

/// Headless Service of a RolloutPool's workers.
pub fn workers_service(pool: &str) -> String {
    format!("{pool}-workers")
}

/// Service, and StatefulSet or DaemonSet.
pub fn pool_objects(pool: &RolloutPool, image: &str) -> Vec<Child> {
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
        annotations: BTreeMap::from([(api::labels::REVISION.to_owned(), revision.clone())]),
        restart: "Always",
        startup_seconds: 120,
    };
    let template = template(parts, w.pod_template.as_ref());
    let meta = owner.child(owner.name.clone(), ROLE, Some(&revision));
    let selector = label_selector(owner.selector(ROLE));
    let set = match spec.placement {
        Placement::Replicas => Child::StatefulSet(Box::new(StatefulSet {
            metadata: meta,
            spec: Some(StatefulSetSpec {
                replicas: Some(i32::try_from(spec.replicas.unwrap_or(1)).unwrap_or(i32::MAX)),
                service_name: Some(service.clone()),
                selector,
                template,
                pod_management_policy: Some("Parallel".into()),
                ..StatefulSetSpec::default()
            }),
            status: None,
        })),
        Placement::PerNode => Child::DaemonSet(Box::new(DaemonSet {
            metadata: meta,
            spec: Some(DaemonSetSpec { selector, template, ..DaemonSetSpec::default() }),
            status: None,
        })),
    };
    let service = headless(&owner, service, ROLE, WORKER_PORT, owner.selector(ROLE), "v1:workers");
    vec![Child::Service(Box::new(service)), set]
}
