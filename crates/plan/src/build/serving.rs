//! Engines: StatefulSet, headless Service, endpoint for others, PodDisruptionBudget.

use std::collections::BTreeMap;
use std::time::Duration;

use api::{EngineKind, ServingCluster, hash};
use k8s_openapi::api::apps::v1::{
    RollingUpdateStatefulSetStrategy, StatefulSet, StatefulSetSpec, StatefulSetUpdateStrategy,
};
use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::json;

use super::conductor::headless;
use super::meta::{Owner, label_selector};
use super::pod::{PodParts, common_env, template, token};
use super::{ENGINE_PORT, REVISIONS_KEPT, token_secret};
use crate::Child;

const ROLE: &str = "engine";

/// Headless Service of a ServingCluster's engines.
pub fn engines_service(serving: &str) -> String {
    format!("{serving}-engines")
}

/// Where others than runs find the engines that answer. A run knows each of its engines by name.
pub fn endpoint(cluster: &ServingCluster) -> String {
    let owner = Owner::serving(cluster);
    format!("http://{}.{}.svc:{ENGINE_PORT}", owner.name, owner.namespace)
}

/// Seconds an engine's pod may take to end: it goes on taking requests, then finishes those, then answers are on their way.
/// Evictions do not ask us, so it is all in the pod.
pub(crate) fn grace_seconds(cluster: &ServingCluster, lame_duck: Duration) -> i64 {
    let lame_duck = i64::try_from(lame_duck.as_secs()).unwrap_or(i64::MAX);
    i64::from(cluster.spec.updates.drain_timeout_seconds).saturating_add(lame_duck).saturating_add(10)
}

/// Services, budget and StatefulSet. Ordinals below `partition` stay at the revision they have.
pub fn engine_objects(cluster: &ServingCluster, image: &str, partition: u32, lame_duck: Duration) -> Vec<Child> {
    let owner = Owner::serving(cluster);
    let spec = &cluster.spec;
    let revision = hash::engine(spec);
    let service = engines_service(&owner.name);
    let mut env = common_env();
    env.push(token("THRESH_TOKEN", token_secret(&owner.name)));
    let path = api::volume::parse_pvc(&spec.model.source).map(|(_, p)| p).unwrap_or_default();
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
            spec.updates.drain_timeout_seconds.to_string(),
        ],
    };
    if !lame_duck.is_zero() {
        command.extend(["--lame-duck-secs".into(), lame_duck.as_secs().to_string()]);
    }
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
        grace_seconds: grace_seconds(cluster, lame_duck),
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
            revision_history_limit: Some(REVISIONS_KEPT),
            update_strategy: Some(down_to(partition)),
            ..StatefulSetSpec::default()
        }),
        status: None,
    };
    let headless = headless(&owner, service, ROLE, ENGINE_PORT, owner.selector(ROLE), "v1:engines");
    vec![
        Child::Service(Box::new(headless)),
        Child::Service(Box::new(others(&owner))),
        Child::PodDisruptionBudget(Box::new(budget(&owner, spec.disruption.max_unavailable))),
        Child::StatefulSet(Box::new(set)),
    ]
}

/// Ordinals below stay as they are; the others are replaced.
pub(crate) fn down_to(partition: u32) -> StatefulSetUpdateStrategy {
    StatefulSetUpdateStrategy {
        type_: Some("RollingUpdate".into()),
        rolling_update: Some(RollingUpdateStatefulSetStrategy {
            partition: Some(i32::try_from(partition).unwrap_or(i32::MAX)),
            // Not on every cluster; what the partition gives free is deleted by us.
            max_unavailable: None,
        }),
    }
}

/// One address for the engines that answer. The headless Service also names those that do not: runs bring them up.
fn others(owner: &Owner) -> Service {
    Service {
        metadata: owner.child(owner.name.clone(), ROLE, Some("v1:endpoint")),
        spec: Some(ServiceSpec {
            type_: Some("ClusterIP".into()),
            selector: Some(owner.selector(ROLE)),
            ports: Some(vec![ServicePort {
                name: Some("http".into()),
                port: ENGINE_PORT.into(),
                target_port: Some(IntOrString::Int(ENGINE_PORT.into())),
                ..ServicePort::default()
            }]),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

fn budget(owner: &Owner, max_unavailable: u32) -> PodDisruptionBudget {
    let revision = hash::of(&json!({ "maxUnavailable": max_unavailable }));
    PodDisruptionBudget {
        metadata: owner.child(engines_service(&owner.name), ROLE, Some(&revision)),
        spec: Some(PodDisruptionBudgetSpec {
            max_unavailable: Some(IntOrString::Int(i32::try_from(max_unavailable).unwrap_or(i32::MAX))),
            selector: Some(label_selector(owner.selector(ROLE))),
            // An engine that does not answer must not hold up the drain of its node.
            unhealthy_pod_eviction_policy: Some("AlwaysAllow".into()),
            ..PodDisruptionBudgetSpec::default()
        }),
        status: None,
    }
}
