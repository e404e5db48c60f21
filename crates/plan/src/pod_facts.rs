//! Facts read from a pod object.

use api::labels;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// Attempt an object belongs to, by its label; 0 if it has none that can be read.
pub fn attempt(meta: &ObjectMeta) -> u64 {
    meta.labels.as_ref().and_then(|l| l.get(labels::ATTEMPT)).and_then(|s| s.parse().ok()).unwrap_or(0)
}

/// Attempt that a Job is of: its label's number, if the Job has that attempt's name. A label can be edited and a name cannot; a number
/// that nobody gave must not be counted on from.
pub fn attempt_of_job(meta: &ObjectMeta) -> u64 {
    let number = attempt(meta);
    let named = meta.name.as_deref().is_some_and(|name| name.ends_with(&format!("-t{number}")));
    if named { number } else { 0 }
}

/// Role of a pod, by its label.
pub fn role(pod: &Pod) -> &str {
    pod.metadata.labels.as_ref().and_then(|l| l.get(labels::ROLE)).map(String::as_str).unwrap_or_default()
}

/// Name of a pod.
pub fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

/// Uid of a pod.
pub fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

/// Node of a pod.
pub fn node(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref().and_then(|s| s.node_name.as_deref())
}

/// Index of a pod in its Indexed Job.
pub fn index(pod: &Pod) -> Option<u32> {
    let by = |m: &Option<std::collections::BTreeMap<String, String>>| {
        m.as_ref().and_then(|m| m.get(labels::JOB_INDEX)).and_then(|s| s.parse().ok())
    };
    by(&pod.metadata.labels).or_else(|| by(&pod.metadata.annotations))
}

/// The kubelet's last word on the pod's phase.
pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("Pending")
}

/// Nothing of it runs any more, by the kubelet's own word.
pub fn ended(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// Condition Ready.
pub fn ready(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|(status, _, _)| status == "True") && pod.metadata.deletion_timestamp.is_none()
}

/// Status, reason and message of a condition.
pub fn condition<'a>(pod: &'a Pod, type_: &str) -> Option<(&'a str, &'a str, &'a str)> {
    let list = pod.status.as_ref()?.conditions.as_ref()?;
    let c = list.iter().find(|c| c.type_ == type_)?;
    Some((c.status.as_str(), c.reason.as_deref().unwrap_or_default(), c.message.as_deref().unwrap_or_default()))
}

/// How its main container (the first) ended, if it has.
pub fn terminated(pod: &Pod) -> Option<&ContainerStateTerminated> {
    let list = pod.status.as_ref()?.container_statuses.as_ref()?;
    list.first()?.state.as_ref()?.terminated.as_ref()
}

/// Why its main container waits, if it does: reason and message.
pub fn waiting(pod: &Pod) -> Option<(&str, &str)> {
    let list = pod.status.as_ref()?.container_statuses.as_ref()?;
    let w = list.first()?.state.as_ref()?.waiting.as_ref()?;
    Some((w.reason.as_deref().unwrap_or_default(), w.message.as_deref().unwrap_or_default()))
}
