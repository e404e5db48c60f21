//! Facts of a pod, and its status from those of its containers, as the kubelet makes it.

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{
        ContainerState, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus, Pod, PodCondition, PodStatus,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};

/// Phase, `Pending` when there is none yet.
#[must_use]
pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending")
}

/// True when its containers have ended for good.
#[must_use]
pub fn terminal(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// Condition Ready.
#[must_use]
pub fn ready(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|condition| condition.status == "True")
}

/// A condition by type.
#[must_use]
pub fn condition<'a>(pod: &'a Pod, type_: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.as_ref()?.iter().find(|condition| condition.type_ == type_)
}

/// Pid of a running container.
#[must_use]
pub fn pid(pod: &Pod) -> Option<i32> {
    let status = pod.status.as_ref()?.container_statuses.as_ref()?.first()?;
    status.state.as_ref()?.running.as_ref()?;
    status.container_id.as_ref()?.strip_prefix("process://")?.parse().ok()
}

/// Sets a condition; its transition time moves only with its status.
pub fn set_condition(
    status: &mut PodStatus,
    type_: &str,
    value: bool,
    reason: Option<&str>,
    message: Option<&str>,
    now: Timestamp,
) {
    let conditions = status.conditions.get_or_insert_default();
    let text = if value { "True" } else { "False" };
    let place = conditions.iter().position(|condition| condition.type_ == type_);
    let since = place
        .map(|place| &conditions[place])
        .filter(|condition| condition.status == text)
        .and_then(|condition| condition.last_transition_time.clone());
    let new = PodCondition {
        type_: type_.into(),
        status: text.into(),
        reason: reason.map(Into::into),
        message: message.map(Into::into),
        last_transition_time: Some(since.unwrap_or(Time(now))),
        ..Default::default()
    };
    match place {
        Some(place) => conditions[place] = new,
        None => conditions.push(new),
    }
}

/// Takes a container's new status into a pod and derives phase and conditions.
pub fn merge(pod: &mut Pod, container: ContainerStatus, now: Timestamp) {
    let names: Vec<String> =
        pod.spec.iter().flat_map(|spec| &spec.containers).map(|container| container.name.clone()).collect();
    let never = pod.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref()) == Some("Never");
    let on_failure = pod.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref()) == Some("OnFailure");
    let ending = pod.metadata.deletion_timestamp.is_some();
    let status = pod.status.get_or_insert_default();
    let statuses = status.container_statuses.get_or_insert_default();
    statuses.retain(|one| one.name != container.name);
    statuses.push(container);
    statuses.sort_by_key(|one| names.iter().position(|name| *name == one.name));

    let code = |one: &ContainerStatus| one.state.as_ref()?.terminated.as_ref().map(|end| end.exit_code);
    let all_ended = statuses.len() == names.len() && statuses.iter().all(|one| code(one).is_some());
    let any_failed = statuses.iter().filter_map(code).any(|code| code != 0);
    let final_end = all_ended && (ending || never || on_failure && !any_failed);
    let started = statuses.iter().any(|one| one.restart_count > 0 || !is_waiting(one));
    status.phase = Some(
        match (final_end, any_failed, started) {
            (true, true, _) => "Failed",
            (true, false, _) => "Succeeded",
            (false, _, true) => "Running",
            (false, _, false) => "Pending",
        }
        .into(),
    );
    let unready: Vec<&str> = names
        .iter()
        .filter(|name| !statuses.iter().any(|one| one.name == **name && one.ready))
        .map(String::as_str)
        .collect();
    let ready = unready.is_empty() && !final_end;
    let (reason, message) = match (final_end, ready) {
        (true, _) if !any_failed => (Some("PodCompleted"), None),
        (true, _) => (Some("PodFailed"), None),
        (false, true) => (None, None),
        (false, false) => {
            (Some("ContainersNotReady"), Some(format!("containers with unready status: [{}]", unready.join(" "))))
        }
    };
    for type_ in ["ContainersReady", "Ready"] {
        set_condition(status, type_, ready, reason, message.as_deref(), now);
    }
}

fn is_waiting(status: &ContainerStatus) -> bool {
    status.state.as_ref().is_none_or(|state| state.running.is_none() && state.terminated.is_none())
}

/// A container that has not started.
#[must_use]
pub fn waiting(reason: &str, message: Option<String>) -> ContainerState {
    ContainerState {
        waiting: Some(ContainerStateWaiting { reason: Some(reason.into()), message }),
        ..Default::default()
    }
}

/// Ends every container of a pod whose processes are gone without anyone having seen how.
pub fn lost(pod: &mut Pod, reason: &str, message: &str, now: Timestamp) {
    let names: Vec<(String, String)> = pod
        .spec
        .iter()
        .flat_map(|spec| &spec.containers)
        .map(|container| (container.name.clone(), container.image.clone().unwrap_or_default()))
        .collect();
    let status = pod.status.get_or_insert_default();
    let statuses = status.container_statuses.get_or_insert_default();
    for (name, image) in names {
        let place = statuses.iter().position(|one| one.name == name).unwrap_or_else(|| {
            statuses.push(ContainerStatus { name, image, ..Default::default() });
            statuses.len() - 1
        });
        let one = &mut statuses[place];
        if one.state.as_ref().is_some_and(|state| state.terminated.is_some()) {
            continue;
        }
        let started_at =
            one.state.as_ref().and_then(|state| state.running.as_ref()).and_then(|running| running.started_at.clone());
        one.ready = false;
        one.state = Some(ContainerState {
            terminated: Some(ContainerStateTerminated {
                exit_code: 137,
                reason: Some("ContainerStatusUnknown".into()),
                message: Some(message.into()),
                started_at,
                finished_at: Some(Time(now)),
                ..Default::default()
            }),
            ..Default::default()
        });
    }
    status.phase = Some("Failed".into());
    status.reason = Some(reason.into());
    status.message = Some(message.into());
    for type_ in ["ContainersReady", "Ready"] {
        set_condition(status, type_, false, Some("PodFailed"), None, now);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(policy: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p"},
            "spec": {"restartPolicy": policy, "containers": [{"name": "a"}, {"name": "b"}]},
        }))
        .unwrap()
    }

    fn container(name: &str, state: serde_json::Value, ready: bool) -> ContainerStatus {
        serde_json::from_value(
            json!({"name": name, "image": "", "imageID": "", "ready": ready, "restartCount": 0, "state": state}),
        )
        .unwrap()
    }

    fn ended(name: &str, code: i32) -> ContainerStatus {
        container(name, json!({"terminated": {"exitCode": code}}), false)
    }

    #[test]
    fn a_pod_is_ready_when_each_container_is() {
        let mut pod = pod("Always");
        merge(&mut pod, container("a", json!({"running": {}}), true), Timestamp::UNIX_EPOCH);
        assert!(!ready(&pod));
        assert_eq!(condition(&pod, "Ready").unwrap().message.as_deref(), Some("containers with unready status: [b]"));
        merge(&mut pod, container("b", json!({"running": {}}), true), Timestamp::UNIX_EPOCH);
        assert!(ready(&pod));
        assert_eq!(phase(&pod), "Running");
        merge(&mut pod, ended("a", 1), Timestamp::UNIX_EPOCH);
        assert_eq!((ready(&pod), phase(&pod)), (false, "Running"), "it will be restarted");
    }

    #[test]
    fn a_pod_that_never_restarts_ends_with_its_containers() {
        for (codes, expected) in [([0, 0], "Succeeded"), ([0, 75], "Failed"), ([3, 0], "Failed")] {
            let mut pod = pod("Never");
            merge(&mut pod, ended("a", codes[0]), Timestamp::UNIX_EPOCH);
            assert_eq!(phase(&pod), "Running");
            merge(&mut pod, ended("b", codes[1]), Timestamp::UNIX_EPOCH);
            assert_eq!(phase(&pod), expected);
        }
    }

    #[test]
    fn a_transition_time_moves_only_with_the_status() {
        let mut status = PodStatus::default();
        let at = |second| Timestamp::from_second(second).unwrap();
        set_condition(&mut status, "Ready", false, None, None, at(1));
        set_condition(&mut status, "Ready", false, Some("Other"), None, at(2));
        let since = |status: &PodStatus| status.conditions.as_ref().unwrap()[0].last_transition_time.clone().unwrap().0;
        assert_eq!(since(&status), at(1));
        set_condition(&mut status, "Ready", true, None, None, at(3));
        assert_eq!(since(&status), at(3));
    }

    #[test]
    fn a_lost_pod_has_failed_without_a_code_of_its_own() {
        let mut pod = pod("Never");
        merge(&mut pod, ended("a", 0), Timestamp::UNIX_EPOCH);
        lost(&mut pod, "NodeShutdown", "the node stopped", Timestamp::UNIX_EPOCH);
        let codes: Vec<i32> = pod
            .status
            .as_ref()
            .unwrap()
            .container_statuses
            .as_ref()
            .unwrap()
            .iter()
            .map(|one| one.state.as_ref().unwrap().terminated.as_ref().unwrap().exit_code)
            .collect();
        assert_eq!((phase(&pod), codes), ("Failed", vec![0, 137]));
    }
}
