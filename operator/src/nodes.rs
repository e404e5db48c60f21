//! How a node is, from its object.

use k8s_openapi::api::core::v1::Node;
use plan::NodeState;

const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// Its state. Condition Ready is Unknown when the kubelet has not been heard of; False is a kubelet that answers.
pub fn state(node: &Node) -> NodeState {
    let taints = node.spec.as_ref().and_then(|s| s.taints.as_ref());
    if taints.is_some_and(|list| list.iter().any(|t| t.key == OUT_OF_SERVICE)) {
        return NodeState::Gone;
    }
    let conditions = node.status.as_ref().and_then(|s| s.conditions.as_ref());
    let unknown = conditions.is_some_and(|list| list.iter().any(|c| c.type_ == "Ready" && c.status == "Unknown"));
    if unknown { NodeState::Unreachable } else { NodeState::Ready }
}

/// No new pods there, by somebody's wish.
pub fn cordoned(node: &Node) -> bool {
    node.spec.as_ref().is_some_and(|s| s.unschedulable == Some(true))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(ready: &str, taint: Option<&str>) -> Node {
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": "n"},
            "spec": {"taints": taint.map(|key| vec![serde_json::json!({"key": key, "effect": "NoExecute"})])},
            "status": {"conditions": [{"type": "Ready", "status": ready}]},
        }))
        .unwrap()
    }

    #[test]
    fn a_node_is_lost_only_when_its_kubelet_is_silent_and_gone_only_when_somebody_says_so() {
        assert_eq!(state(&node("True", None)), NodeState::Ready);
        assert_eq!(state(&node("False", Some("node.kubernetes.io/not-ready"))), NodeState::Ready);
        assert_eq!(state(&node("Unknown", Some("node.kubernetes.io/unreachable"))), NodeState::Unreachable);
        assert_eq!(state(&node("Unknown", Some(OUT_OF_SERVICE))), NodeState::Gone);
    }
}
