//! Engines: StatefulSet and headless Service.

use std::collections::BTreeMap;

use api::{EngineKind, ServingCluster, hash};
use k8s_openapi::api::apps::v1::{
    RollingUpdateStatefulSetStrategy, StatefulSet, StatefulSetSpec, StatefulSetUpdateStrategy,
};

use super::conductor::headless;
use super::meta::{Owner, label_selector};
use super::pod::{PodParts, common_env, template, token};
use super::{ENGINE_PORT, token_secret};
use crate::Child;

const ROLE: &str = "engine";

/// Headless Service of a ServingCluster's engines.
pub fn engines_service(serving: &str) -> String {
    format!("{serving}-engines")
}

/// Service and StatefulSet. Ordinals below `partition` stay at the revision they have.
pub fn engine_objects(cluster: &ServingCluster, image: &str, partition: u32) -> Vec<Child> {
    let owner = Owner::serving(cluster);
    let spec = &cluster.spec;
    let revision = hash::engine(spec);
    let service = engines_service(&owner.name);
    let mut env = common_env();
    env.push(token("THRESH_TOKEN", token_secret(&owner.name)));
    let path = api::volume::parse_pvc(&spec.model.source).map(|(_, p)| p).unwrap_or_default();
    let drain = spec.updates.drain_timeout_seconds;
    let mut command: Vec<String> = match spec.engine.kind {
        EngineKind::Native => vec![
            "thresh-rollout".into(),
            "engine".into(),
            "--listen".into(),
            format!("$(POD_IP):{ENGINE_PORT}"),
            "--model-path".into(),
            format!("$(THRESH_VOLUME)/{path}"),
            "--max-running-requests".into(),
            spec.engine.max_running_requests.to_string(),
            "--drain-timeout-secs".into(),
            drain.to_string(),
        ],
    };
    command.extend(spec.engine.args.iter().cloned());
    let parts = PodParts {
        container: ROLE,
        image: spec.engine.image.clone().unwrap_or_else(|| image.to_owned()),
        command,
        env,
        port: ENGINE_PORT,
        resources: spec.engine.resources.clone(),
        claim: spec.storage.claim_name.clone(),
        config_map: None,
        // Longer than the drain: evictions do not ask us.
        grace_seconds: i64::from(drain) + 10,
        labels: owner.labels(ROLE),
        annotations: BTreeMap::from([(api::labels::REVISION.to_owned(), revision.clone())]),
        restart: "Always",
        startup_seconds: 1800,
    };
    let set = StatefulSet {
        metadata: owner.child(owner.name.clone(), ROLE, Some(&revision)),
        spec: Some(StatefulSetSpec {
            replicas: Some(i32::try_from(spec.replicas).unwrap_or(i32::MAX)),
            service_name: Some(service.clone()),
            selector: label_selector(owner.selector(ROLE)),
            template: template(parts, spec.engine.pod_template.as_ref()),
            pod_management_policy: Some("Parallel".into()),
            update_strategy: Some(StatefulSetUpdateStrategy {
                type_: Some("RollingUpdate".into()),
                rolling_update: Some(RollingUpdateStatefulSetStrategy {
                    partition: Some(i32::try_from(partition).unwrap_or(i32::MAX)),
                    max_unavailable: None,
                }),
            }),
            ..StatefulSetSpec::default()
        }),
        status: None,
    };
    let service = headless(&owner, service, ROLE, ENGINE_PORT, owner.selector(ROLE), "v1:engines");
    vec![Child::Service(Box::new(service)), Child::StatefulSet(Box::new(set))]
}
