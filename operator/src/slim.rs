//! What of an object is kept in a cache: a run of a thousand pods must not cost a gigabyte.

use api::labels;
use k8s_openapi::api::{
    batch::v1::{Job, JobSpec},
    core::v1::{
        ContainerState, ContainerStateTerminated, ContainerStatus, Node, NodeSpec, NodeStatus, Pod, PodSpec, PodStatus,
    },
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
        // What cannot be pulled, and how it ended before: both are told.
        image: c.image,
        last_state: c.last_state.and_then(|s| s.terminated).map(|t| ContainerState {
            terminated: Some(ContainerStateTerminated {
                exit_code: t.exit_code,
                message: t.message,
                reason: t.reason,
                signal: t.signal,
                ..ContainerStateTerminated::default()
            }),
            ..ContainerState::default()
        }),
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_told_of_a_pod_in_trouble_outlives_the_cut() {
        let mut whole: Pod = serde_json::from_value(json!({
            "metadata": {"name": "a-conductor-0"},
            "status": {"phase": "Running", "containerStatuses": [{
                "name": "conductor", "image": "registry/rollout:1", "imageID": "", "ready": false, "restartCount": 3,
                "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                "lastState": {"terminated": {"exitCode": 1, "reason": "Error", "message": "no such file"}}}]},
        }))
        .unwrap();
        pod(&mut whole);
        let status = &whole.status.unwrap().container_statuses.unwrap()[0];
        assert_eq!(status.image, "registry/rollout:1");
        let last = status.last_state.as_ref().unwrap().terminated.as_ref().unwrap();
        assert_eq!((last.exit_code, last.message.as_deref()), (1, Some("no such file")));
    }
}
