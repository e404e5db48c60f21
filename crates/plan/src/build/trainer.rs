//! A trainer attempt: an Indexed Job that never retries by itself, its frozen ConfigMap, and the run's headless Service.

use std::collections::BTreeMap;

use api::{AttemptStatus, Frozen, RLJob, Vendor, hash, labels};
use k8s_openapi::api::batch::v1::{
    Job, JobSpec, PodFailurePolicy, PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyOnPodConditionsPattern,
    PodFailurePolicyRule,
};
use k8s_openapi::api::core::v1::{ConfigMap, Service, Toleration};
use serde_json::json;

use super::conductor::{conductor_name, headless, run_json};
use super::gang;
use super::meta::Owner;
use super::pod::{PodParts, node_rank, run_env, template, token, var};
use super::{CONDUCTOR_PORT, MASTER_PORT, TRAINER_PORT, token_secret};
use crate::{Child, Settings};

const ROLE: &str = "trainer";

/// Name of an attempt's Job and ConfigMap.
pub fn job_name(job: &str, attempt: u64) -> String {
    format!("{job}-t{attempt}")
}

fn service_name(job: &str) -> String {
    format!("{job}-trainer")
}

/// The headless Service all attempts of a run share; names differ per attempt (`JOB-tN-INDEX.JOB-trainer`), so an old rank
/// cannot dial into a new gang.
pub fn trainer_service(job: &RLJob) -> Service {
    let owner = Owner::rljob(job);
    headless(&owner, service_name(&owner.name), ROLE, TRAINER_PORT, owner.selector(ROLE), "v1:trainer")
}

/// The ConfigMap (immutable), the PodGroup (with a gang scheduler) and the Job of an attempt, in this order. Created once, never
/// applied again: the Job's `suspend` belongs to its queue.
pub fn attempt_objects(job: &RLJob, attempt: &AttemptStatus, frozen: &Frozen, settings: &Settings) -> Vec<Child> {
    let owner = Owner::rljob(job);
    let t = &job.spec.trainer;
    let name = attempt.job_name.clone();
    let mut meta = owner.child(name.clone(), ROLE, Some(&attempt.revision));
    meta.labels.get_or_insert_default().insert(labels::ATTEMPT.into(), attempt.id.to_string());
    let p = attempt.parallelism;
    let parallelism = json!({ "dp": p.dp, "tp": p.tp, "pp": 1, "cp": 1 });

    let config = ConfigMap {
        metadata: meta.clone(),
        immutable: Some(true),
        data: Some(BTreeMap::from([
            ("rljob.json".to_owned(), run_json(job).to_string()),
            ("parallelism.json".to_owned(), parallelism.to_string()),
        ])),
        ..ConfigMap::default()
    };

    let service = service_name(&owner.name);
    let conductor = conductor_name(&owner.name);
    let mut env = run_env(&owner.uid, &owner.name);
    env.push(token("THRESH_TOKEN", token_secret(&owner.name)));
    env.push(node_rank());
    env.push(var("NNODES", t.nodes.to_string()));
    env.push(var("NPROC_PER_NODE", t.accelerator.per_node.to_string()));
    env.push(var("MASTER_ADDR", format!("{name}-0.{service}")));
    env.push(var("MASTER_PORT", MASTER_PORT.to_string()));
    env.push(var("THRESH_ATTEMPT", attempt.id.to_string()));
    env.push(var("THRESH_PARALLELISM", parallelism.to_string()));
    env.push(var("THRESH_CONDUCTOR", format!("http://{conductor}-0.{conductor}:{CONDUCTOR_PORT}")));
    env.push(var("THRESH_PORT", TRAINER_PORT.to_string()));

    let image = t.image.clone().unwrap_or_else(|| match t.accelerator.vendor {
        Vendor::Cpu => frozen.trainer_image.clone(),
    });
    let mut pod_labels = owner.labels(ROLE);
    pod_labels.insert(labels::ATTEMPT.into(), attempt.id.to_string());
    let mut selector = owner.selector(ROLE);
    selector.insert(labels::ATTEMPT.into(), attempt.id.to_string());
    let parts = PodParts {
        container: ROLE,
        image,
        command: vec!["thresh-trainer".into()],
        env,
        port: TRAINER_PORT,
        resources: t.resources.clone(),
        claim: job.spec.storage.claim_name.clone(),
        config_map: Some(name.clone()),
        grace_seconds: t.termination_grace_period_seconds.into(),
        labels: pod_labels,
        annotations: BTreeMap::from([(labels::REVISION.to_owned(), hash::trainer(job))]),
        restart: "Never",
        startup_seconds: i32::try_from(t.startup_deadline_seconds).unwrap_or(i32::MAX),
    };
    let mut template = template(parts, t.pod_template.as_ref());
    gang::place(&mut template, job, &name, attempt.id, selector);
    let spec = template.spec.get_or_insert_default();
    spec.subdomain = Some(service);
    spec.restart_policy = Some("Never".into());
    let seconds = i64::try_from(settings.node_toleration.as_secs()).unwrap_or(i64::MAX);
    let tolerations = spec.tolerations.get_or_insert_default();
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        if !tolerations.iter().any(|t| t.key.as_deref() == Some(key)) {
            tolerations.push(Toleration {
                key: Some(key.into()),
                operator: Some("Exists".into()),
                effect: Some("NoExecute".into()),
                toleration_seconds: Some(seconds),
                value: None,
            });
        }
    }

    let group = gang::pod_group(job, &meta, attempt.id);
    let nodes = i32::try_from(t.nodes).unwrap_or(i32::MAX);
    let mut made = Job {
        metadata: meta,
        spec: Some(JobSpec {
            completion_mode: Some("Indexed".into()),
            completions: Some(nodes),
            parallelism: Some(nodes),
            backoff_limit: Some(0),
            pod_replacement_policy: Some("Failed".into()),
            // Fail-fast belongs to the Job controller: it frees the peers' devices even while the operator is down.
            pod_failure_policy: Some(PodFailurePolicy {
                rules: vec![
                    PodFailurePolicyRule {
                        action: "FailJob".into(),
                        on_pod_conditions: Some(vec![PodFailurePolicyOnPodConditionsPattern {
                            type_: "DisruptionTarget".into(),
                            status: Some("True".into()),
                        }]),
                        on_exit_codes: None,
                    },
                    PodFailurePolicyRule {
                        action: "FailJob".into(),
                        on_exit_codes: Some(PodFailurePolicyOnExitCodesRequirement {
                            container_name: Some(ROLE.into()),
                            operator: "In".into(),
                            values: vec![3],
                        }),
                        on_pod_conditions: None,
                    },
                ],
            }),
            template,
            ..JobSpec::default()
        }),
        status: None,
    };
    gang::enqueue(job, &mut made);
    // The group before the Job that refers to it.
    let mut all = vec![Child::ConfigMap(Box::new(config))];
    all.extend(group);
    all.push(Child::Job(Box::new(made)));
    all
}
