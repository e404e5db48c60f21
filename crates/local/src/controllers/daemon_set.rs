//! DaemonSets: one pod on each node; an update replaces them one node at a time. Nodes here carry every label, so node
//! selectors choose nothing, but for the one of a pause; cordons do not hold a DaemonSet's pods off.

use std::collections::BTreeMap;

use k8s_openapi::api::{
    apps::v1::{DaemonSet, DaemonSetStatus},
    core::v1::Pod,
};

use super::{Change, label, pod_of, template_hash};
use crate::{
    controllers::stateful_set::REVISION,
    objects::{name, uid},
    pod,
};

/// Looks at a set and its pods on `nodes`: what to do, and its new status.
#[must_use]
pub fn reconcile(set: &DaemonSet, pods: &BTreeMap<&str, &Pod>, nodes: &[String]) -> (Vec<Change>, DaemonSetStatus) {
    let mut changes = Vec::new();
    let mut status = set.status.clone().unwrap_or_default();
    let Some(spec) = &set.spec else { return (changes, status) };
    if set.metadata.deletion_timestamp.is_some() {
        return (changes, status);
    }
    let selector = spec.template.spec.as_ref().and_then(|pod| pod.node_selector.as_ref());
    let paused = selector.is_some_and(|selector| selector.contains_key(api::labels::PAUSED));
    let nodes = if paused { &[] } else { nodes };
    let revision = template_hash(&spec.template);
    let node_of = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
    let living = |pod: &&&Pod| pod.metadata.deletion_timestamp.is_none();
    for node in nodes {
        let here: Vec<&Pod> = pods.values().copied().filter(|pod| node_of(pod) == *node).collect();
        if here.is_empty() {
            let suffix: String = uid().chars().filter(char::is_ascii_hexdigit).take(5).collect();
            let mut pod =
                pod_of(set, &spec.template, &format!("{}-{suffix}", name(set)), [(REVISION, revision.clone())]);
            if let Some(spec) = &mut pod.spec {
                spec.node_name = Some(node.clone());
            }
            changes.push(Change::Create(Box::new(pod)));
        }
        for pod in here.iter().filter(|pod| living(pod) && pod::terminal(pod)) {
            changes.push(Change::Delete(name(*pod).to_owned()));
        }
    }
    for pod in pods.values().filter(living).filter(|pod| !nodes.contains(&node_of(pod))) {
        changes.push(Change::Delete(name(*pod).to_owned()));
    }
    let on_delete = spec.update_strategy.as_ref().and_then(|strategy| strategy.type_.as_deref()) == Some("OnDelete");
    let outdated = |pod: &&&Pod| label(pod, REVISION) != Some(&revision);
    if changes.is_empty() && !on_delete {
        // One that is away anyway is replaced first and costs nothing.
        let unready = pods.values().filter(living).filter(outdated).find(|pod| !pod::ready(pod));
        let all_ready = pods.values().all(|pod| pod::ready(pod) && pod.metadata.deletion_timestamp.is_none());
        let next = unready.or_else(|| pods.values().filter(living).find(outdated).filter(|_| all_ready));
        changes.extend(next.map(|pod| Change::Delete(name(*pod).to_owned())));
    }
    let count = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
    let ready = count(pods.values().filter(living).filter(|pod| pod::ready(pod)).count());
    status.observed_generation = set.metadata.generation;
    status.desired_number_scheduled = count(nodes.len());
    status.current_number_scheduled = count(pods.len());
    status.number_ready = ready;
    status.number_available = Some(ready);
    status.number_unavailable = Some(status.desired_number_scheduled - ready).filter(|count| *count > 0);
    status.updated_number_scheduled = Some(count(pods.values().filter(|pod| !outdated(pod)).count()));
    (changes, status)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_node_has_one_pod_and_an_update_replaces_one_at_a_time() {
        let mut set: DaemonSet = serde_json::from_value(json!({
            "metadata": {"name": "workers", "uid": "u"},
            "spec": {"selector": {}, "template": {"spec": {"containers": [{"name": "worker", "image": "v1"}]}}},
        }))
        .unwrap();
        let nodes = ["n0".to_owned(), "n1".to_owned()];
        let mut pods: BTreeMap<String, Pod> = BTreeMap::new();
        let turn = |set: &mut DaemonSet, pods: &mut BTreeMap<String, Pod>, nodes: &[String]| {
            let (changes, status) =
                reconcile(set, &pods.iter().map(|(name, pod)| (name.as_str(), pod)).collect(), nodes);
            set.status = Some(status);
            for change in &changes {
                match change {
                    Change::Create(pod) => {
                        let mut pod = (**pod).clone();
                        pod::set_condition(
                            pod.status.get_or_insert_default(),
                            "Ready",
                            true,
                            None,
                            None,
                            jiff::Timestamp::UNIX_EPOCH,
                        );
                        pods.insert(name(&pod).to_owned(), pod);
                    }
                    Change::Delete(name) => drop(pods.remove(name)),
                    Change::Release(_) => unreachable!(),
                }
            }
            changes.len()
        };
        assert_eq!(turn(&mut set, &mut pods, &nodes), 2);
        assert_eq!(turn(&mut set, &mut pods, &nodes), 0);
        assert_eq!(set.status.as_ref().unwrap().number_ready, 2);
        set.spec.as_mut().unwrap().template.spec.as_mut().unwrap().containers[0].image = Some("v2".into());
        for expected in [1, 1, 1, 1, 0] {
            assert_eq!(turn(&mut set, &mut pods, &nodes), expected);
        }
        assert_eq!(set.status.as_ref().unwrap().updated_number_scheduled, Some(2));
        assert_eq!(turn(&mut set, &mut pods, &nodes[..1]), 1);
        assert_eq!(pods.len(), 1);
    }
}
