//! How an attempt's pods are admitted and placed: queue, PodGroup, priority, topology.

use std::collections::BTreeMap;

use api::{Gang, RLJob, Scheduling, TopologyMode, labels};
use k8s_openapi::api::core::v1::{Affinity, PodAffinity, PodAffinityTerm, PodTemplateSpec, WeightedPodAffinityTerm};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use kube::core::{DynamicObject, TypeMeta};
use serde_json::json;

use crate::action::{Child, GangApi};

/// Volcano's: the PodGroup of a pod, as an annotation.
const VOLCANO_GROUP: &str = "scheduling.k8s.io/group-name";
/// The coscheduling plugin's: the PodGroup of a pod, as a label.
const PLUGINS_GROUP: &str = "scheduling.x-k8s.io/pod-group";

/// Priority class of the pods of that attempt.
fn priority(s: &Scheduling, attempt: u64) -> Option<&String> {
    let retry = s.retry_priority_class_name.as_ref().filter(|_| attempt > 1);
    retry.or(s.priority_class_name.as_ref())
}

fn gang(s: &Scheduling) -> Option<GangApi> {
    match s.gang {
        Gang::None => None,
        Gang::Volcano => Some(GangApi::Volcano),
        Gang::SchedulerPlugins => Some(GangApi::SchedulerPlugins),
    }
}

/// The PodGroup of an attempt, if a gang scheduler places its pods: all of them, or none.
pub(super) fn pod_group(job: &RLJob, meta: &ObjectMeta, attempt: u64) -> Option<Child> {
    let s = job.spec.scheduling.as_ref()?;
    let api = gang(s)?;
    let mut spec = json!({ "minMember": job.spec.trainer.nodes });
    if let (GangApi::Volcano, Some(class)) = (api, priority(s, attempt)) {
        spec["priorityClassName"] = class.as_str().into();
    }
    let (group, version) = api.group_version();
    let types = TypeMeta { api_version: format!("{group}/{version}"), kind: "PodGroup".into() };
    let data = json!({ "spec": spec });
    Some(Child::PodGroup(api, Box::new(DynamicObject { types: Some(types), metadata: meta.clone(), data })))
}

/// Label of the Job that a queue admits.
pub(super) fn queue(job: &RLJob) -> Option<&String> {
    job.spec.scheduling.as_ref()?.queue_name.as_ref()
}

/// Puts the pods under their gang, priority and topology. `name` is that of Job and PodGroup, `selector` finds the attempt's pods.
pub(super) fn place(
    template: &mut PodTemplateSpec,
    job: &RLJob,
    name: &str,
    attempt: u64,
    selector: BTreeMap<String, String>,
) {
    let Some(s) = &job.spec.scheduling else { return };
    let meta = template.metadata.get_or_insert_default();
    let spec = template.spec.get_or_insert_default();
    match gang(s) {
        Some(GangApi::Volcano) => {
            meta.annotations.get_or_insert_default().insert(VOLCANO_GROUP.into(), name.into());
            spec.scheduler_name = Some("volcano".into());
        }
        Some(GangApi::SchedulerPlugins) => {
            meta.labels.get_or_insert_default().insert(PLUGINS_GROUP.into(), name.into());
        }
        None => {}
    }
    if let Some(class) = priority(s, attempt) {
        spec.priority_class_name = Some(class.clone());
    }
    if let Some(topology) = &s.topology {
        let term = PodAffinityTerm {
            topology_key: topology.key.clone(),
            label_selector: Some(LabelSelector { match_labels: Some(selector), ..LabelSelector::default() }),
            ..PodAffinityTerm::default()
        };
        // Beside what the user's template asks for, not instead of it.
        let affinity: &mut Affinity = spec.affinity.get_or_insert_default();
        let pods: &mut PodAffinity = affinity.pod_affinity.get_or_insert_default();
        match topology.mode {
            TopologyMode::Required => {
                pods.required_during_scheduling_ignored_during_execution.get_or_insert_default().push(term)
            }
            TopologyMode::Preferred => pods
                .preferred_during_scheduling_ignored_during_execution
                .get_or_insert_default()
                .push(WeightedPodAffinityTerm { pod_affinity_term: term, weight: 100 }),
        }
    }
}

/// Puts the Job into its queue: made suspended, so that nothing runs before it is admitted.
pub(super) fn enqueue(job: &RLJob, made: &mut k8s_openapi::api::batch::v1::Job) {
    let Some(queue) = queue(job) else { return };
    made.metadata.labels.get_or_insert_default().insert(labels::QUEUE_NAME.into(), queue.clone());
    if let Some(spec) = &mut made.spec {
        spec.suspend = Some(true);
    }
}
