//! What keeps a pod from becoming ready, in a word and a sentence that stay the same while the trouble does.

use k8s_openapi::api::core::v1::Pod;

use crate::pod_facts;

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
            let code = last.exit_code;
            return Some(("ContainerError", format!("container {} ends again and again, exit code {code}", c.name)));
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
