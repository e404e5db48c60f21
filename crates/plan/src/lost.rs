//! Pods of engines and workers on lost nodes.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;

use crate::{Action, NodeState, Settings, later, micro, pod_facts};

/// A pod on a lost node would block its name for ever: it is deleted by force, at once where its node is gone, and after a while
/// where it may only be out of reach. The version ledger and the leases make that safe. Returns when to look again.
pub(crate) fn pods(
    pods: &[Pod],
    nodes: &BTreeMap<String, NodeState>,
    since: &mut Option<MicroTime>,
    now: Timestamp,
    settings: &Settings,
    actions: &mut Vec<Action>,
) -> Option<Timestamp> {
    let on = |state: NodeState| {
        pods.iter().filter(move |p| pod_facts::node(p).and_then(|n| nodes.get(n)).is_some_and(|n| *n == state))
    };
    let mut doomed: Vec<&Pod> = on(NodeState::Gone).collect();
    let mut again = None;
    if on(NodeState::Unreachable).next().is_none() {
        *since = None;
    } else {
        let until = later(since.get_or_insert(micro(now)).0, settings.lost_node_timeout);
        if now >= until {
            doomed.extend(on(NodeState::Unreachable));
        } else {
            again = Some(until);
        }
    }
    if !doomed.is_empty() {
        again = Some(again.unwrap_or(Timestamp::MAX).min(later(now, settings.poll_interval)));
    }
    actions.extend(doomed.into_iter().map(|p| Action::DeletePod {
        name: pod_facts::name(p).into(),
        uid: pod_facts::uid(p).into(),
        force: true,
    }));
    again
}
