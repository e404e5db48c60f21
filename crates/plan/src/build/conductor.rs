//! The conductor: StatefulSet of one, headless Service, ConfigMap with the whole RLJob.

use std::collections::BTreeMap;

use api::{Frozen, RLJob, hash, labels};
use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetSpec};
use k8s_openapi::api::core::v1::{ConfigMap, Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::{Value, json};

use super::meta::{Owner, label_selector};
use super::pod::{PodParts, run_env, template, token, var};
use super::{CONDUCTOR_PORT, CONFIG, ENGINE_PORT, WORKER_PORT, engines_service, token_secret, workers_service};
use crate::Child;

/// Name of the conductor's StatefulSet, Service and ConfigMap.
pub fn conductor_name(job: &str) -> String {
    format!("{job}-conductor")
}

/// The RLJob as the conductor reads it: identity and spec, defaults filled in, nothing that changes by itself.
pub fn run_json(job: &RLJob) -> Value {
    let job = job.defaulted();
    json!({
        "apiVersion": api::API_VERSION,
        "kind": "RLJob",
        "metadata": { "name": job.metadata.name, "namespace": job.metadata.namespace, "uid": job.metadata.uid },
        "spec": job.spec,
    })
}

pub(crate) fn headless(
    owner: &Owner,
    name: String,
    role: &str,
    port: u16,
    selector: BTreeMap<String, String>,
    revision: &str,
) -> Service {
    Service {
        metadata: owner.child(name, role, Some(revision)),
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".into()),
            // Names must resolve before their pods are ready: ranks wait for each other, the conductor brings engines up.
            publish_not_ready_addresses: Some(true),
            selector: Some(selector),
            ports: Some(vec![ServicePort {
                name: Some("http".into()),
                port: port.into(),
                target_port: Some(IntOrString::Int(port.into())),
                ..ServicePort::default()
            }]),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

/// ConfigMap, Service, StatefulSet of the conductor; in this order.
pub fn conductor_objects(job: &RLJob, frozen: &Frozen) -> Vec<Child> {
    conductor_objects_of(job, frozen, &run_json(job))
}

/// The same, given [`run_json`].
pub(crate) fn conductor_objects_of(job: &RLJob, frozen: &Frozen, run: &Value) -> Vec<Child> {
    let owner = Owner::rljob(job);
    let role = "conductor";
    let name = conductor_name(&owner.name);
    let (run_revision, revision) = (hash::of(run), hash::conductor(job));
    let config = ConfigMap {
        metadata: owner.child(name.clone(), role, Some(&run_revision)),
        data: Some(BTreeMap::from([("rljob.json".to_owned(), run.to_string())])),
        ..ConfigMap::default()
    };
    let service = headless(&owner, name.clone(), role, CONDUCTOR_PORT, owner.selector(role), &revision);
    let mut env = run_env(&owner.uid, &owner.name);
    let (serving, pool) = (job.serving_name(), job.rollout_name());
    env.push(token("THRESH_TOKEN", token_secret(&owner.name)));
    env.push(token("THRESH_ENGINE_TOKEN", token_secret(&serving)));
    env.push(token("THRESH_WORKER_TOKEN", token_secret(&pool)));
    env.push(var("THRESH_ENGINES", format!("{}:{ENGINE_PORT}", engines_service(&serving))));
    env.push(var("THRESH_WORKERS", format!("{}:{WORKER_PORT}", workers_service(&pool))));
    // The address others are told: the name outlives the pod.
    env.push(var("THRESH_CONDUCTOR", format!("http://{name}-0.{name}:{CONDUCTOR_PORT}")));
    let c = &job.spec.conductor;
    let parts = PodParts {
        container: role,
        image: c.image.clone().unwrap_or_else(|| frozen.rollout_image.clone()),
        command: [
            "thresh-rollout",
            "conductor",
            "--listen",
            &format!("$(POD_IP):{CONDUCTOR_PORT}"),
            "--config",
            &format!("{CONFIG}/rljob.json"),
        ]
        .map(str::to_owned)
        .to_vec(),
        env,
        port: CONDUCTOR_PORT,
        resources: c.resources.clone(),
        claim: job.spec.storage.claim_name.clone(),
        config_map: Some(name.clone()),
        grace_seconds: 30,
        labels: owner.labels(role),
        annotations: BTreeMap::new(),
        restart: "Always",
        startup_seconds: 120,
    };
    let set = StatefulSet {
        metadata: owner.child(name.clone(), role, Some(&revision)),
        spec: Some(StatefulSetSpec {
            replicas: Some(1),
            service_name: Some(name),
            selector: label_selector(owner.selector(role)),
            template: template(parts, c.pod_template.as_ref()),
            pod_management_policy: Some("Parallel".into()),
            ..StatefulSetSpec::default()
        }),
        status: None,
    };
    let mut all =
        vec![Child::ConfigMap(Box::new(config)), Child::Service(Box::new(service)), Child::StatefulSet(Box::new(set))];
    for child in &mut all {
        let generation = job.metadata.generation.unwrap_or(0).to_string();
        let annotations = child.metadata_mut().annotations.get_or_insert_default();
        annotations.insert(labels::RLJOB_GENERATION.into(), generation);
    }
    all
}
