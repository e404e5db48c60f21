//! What keeps a pod from becoming ready, in a word and a sentence that stay the same while the trouble does.

use std::time::Duration;

use api::conditions as cond;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::Timestamp;

use crate::{classify, later, pod_facts};

/// Pods that are not there after this long are refused by somebody.
pub(crate) const PODS_COME: Duration = Duration::from_secs(10);

/// Who refuses pods (a quota, a limit, pod security) tells it to their maker alone.
pub(crate) fn events_say(kind: &str, name: &str) -> String {
    format!("the events of {kind} {name} say who refuses it (a ResourceQuota, a LimitRange, pod security)")
}

/// Pods of a set that nobody could make for a while, in words; and when to look again, while it may still come right.
pub(crate) fn missing(
    conditions: &[Condition],
    (there, wanted): (u32, u32),
    set: Option<(&str, &str)>,
    now: Timestamp,
) -> (Option<String>, Option<Timestamp>) {
    let begun = cond::get(conditions, cond::PROGRESSING).filter(|c| c.reason != "Idle" && c.reason != "Paused");
    let (Some((kind, name)), Some(begun), true) = (set, begun, there < wanted) else { return (None, None) };
    let until = later(begun.last_transition_time.0, PODS_COME);
    if now < until {
        return (None, Some(until));
    }
    let count = api::count(wanted - there, "pod");
    (Some(format!("{count} missing: {}", events_say(kind, name))), None)
}

/// Why a pod cannot become ready, if that can be told: `Unschedulable`, `ImagePull` or `ContainerError`, and the sentence.
pub(crate) fn of_pod(pod: &Pod) -> Option<(&'static str, String)> {
    if pod_facts::ready(pod) || pod.metadata.deletion_timestamp.is_some() {
        return None;
    }
    if let Some(("False", "Unschedulable", message)) = pod_facts::condition(pod, "PodScheduled") {
        return Some(("Unschedulable", message.to_owned()));
    }
    for c in pod.status.as_ref()?.container_statuses.as_ref()? {
        let state = c.state.as_ref();
        let why = state.and_then(|s| s.waiting.as_ref()).and_then(|w| w.reason.as_deref()).unwrap_or_default();
        // Pull errors and back-offs take turns, and back-offs grow: neither is news.
        if why.contains("ImagePull") || why.contains("ErrImage") || why == "InvalidImageName" {
            return Some(("ImagePull", format!("image {} cannot be pulled", c.image)));
        }
        if matches!(why, "CreateContainerConfigError" | "CreateContainerError" | "RunContainerError") {
            let message = state.and_then(|s| s.waiting.as_ref()).and_then(|w| w.message.clone()).unwrap_or_default();
            return Some(("ContainerError", format!("{why} {message}").trim_end().to_owned()));
        }
        let last = c.last_state.as_ref().and_then(|s| s.terminated.as_ref());
        if c.restart_count >= 2
            && !c.ready
            && let Some(last) = last
        {
            let end = classify::said(last);
            return Some(("ContainerError", format!("container {} ends again and again: {end}", c.name)));
        }
    }
    None
}

/// The first pod in trouble, by name: its name, and why.
pub(crate) fn first(pods: &[Pod]) -> Option<String> {
    let mut all: Vec<_> =
        pods.iter().filter_map(|p| of_pod(p).map(|(why, more)| (pod_facts::name(p), why, more))).collect();
    all.sort();
    all.into_iter().next().map(|(name, why, more)| format!("{name}: {why}: {more}"))
}
