//! What of an object is kept in a cache: a run of a thousand pods must not cost a gigabyte.

use api::labels;
use k8s_openapi::api::{
    batch::v1::{Job, JobSpec},
    core::v1::{ContainerState, ContainerStatus, Node, NodeSpec, NodeStatus, Pod, PodSpec, PodStatus},
};
use kube::Resource;

/// Annotations of pods that are read.
const POD_ANNOTATIONS: [&str; 2] = [labels::REVISION, labels::JOB_INDEX];

/// Drops who wrote which field when: half of most objects, and nothing we decide by.
pub fn no_managers<K: Resource>(object: &mut K) {
    object.meta_mut().managed_fields = None;
}

/// Keeps of an attempt's Job, which is made once and never applied again, whether it is held back and how it goes.
pub fn job(job: &mut Job) {
    no_managers(job);
    let spec = job.spec.take().unwrap_or_default();
    let JobSpec { suspend, parallelism, completions, backoff_limit, .. } = spec;
    job.spec = Some(JobSpec { suspend, parallelism, completions, backoff_limit, ..JobSpec::default() });
}

/// Keeps of a pod what `plan` and the line to the conductor read: where it is, how it is, how it ended.
pub fn pod(pod: &mut Pod) {
    no_managers(pod);
    let meta = &mut pod.metadata;
    (meta.owner_references, meta.generate_name) = (None, None);
    if let Some(annotations) = &mut meta.annotations {
        annotations.retain(|key, _| POD_ANNOTATIONS.contains(&key.as_str()));
    }
    let spec = pod.spec.take().unwrap_or_default();
    pod.spec = Some(PodSpec { node_name: spec.node_name, ..PodSpec::default() });
    let status = pod.status.take().unwrap_or_default();
    let container = |c: ContainerStatus| ContainerStatus {
        name: c.name,
        ready: c.ready,
        restart_count: c.restart_count,
        state: c.state.map(|s| ContainerState { running: None, ..s }),
        ..ContainerStatus::default()
    };
    pod.status = Some(PodStatus {
        phase: status.phase,
        reason: status.reason,
        message: status.message,
        pod_ip: status.pod_ip,
        conditions: status.conditions,
        container_statuses: status.container_statuses.map(|list| list.into_iter().map(container).collect()),
        ..PodStatus::default()
    });
}

/// Keeps of a node whether it is well and takes pods. Its kubelet writes the rest every few seconds.
pub fn node(node: &mut Node) {
    no_managers(node);
    node.metadata.annotations = None;
    node.metadata.labels = None;
    let spec = node.spec.take().unwrap_or_default();
    node.spec = Some(NodeSpec { unschedulable: spec.unschedulable, taints: spec.taints, ..NodeSpec::default() });
    let status = node.status.take().unwrap_or_default();
    let ready = status.conditions.unwrap_or_default().into_iter().filter(|c| c.type_ == "Ready");
    let ready = ready.map(|mut c| {
        // Moves with every heartbeat.
        c.last_heartbeat_time = None;
        c
    });
    node.status = Some(NodeStatus { conditions: Some(ready.collect()), ..NodeStatus::default() });
}
