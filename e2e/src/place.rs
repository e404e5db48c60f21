//! Where the pods of a run go.

use serde_json::{Value, json};

/// Only on that node.
pub fn only_on(node: &str) -> Value {
    json!({ "nodeSelector": { "kubernetes.io/hostname": node } })
}

/// On that node as long as it takes pods, and then elsewhere.
pub fn rather_on(node: &str) -> Value {
    let term = json!({ "matchExpressions": [{ "key": "kubernetes.io/hostname", "operator": "In", "values": [node] }] });
    json!({ "affinity": { "nodeAffinity": { "preferredDuringSchedulingIgnoredDuringExecution":
        [{ "weight": 100, "preference": term }] } } })
}

/// Each on a node of its own as long as there are enough, and then together.
pub fn rather_apart(role: &str) -> Value {
    let term = json!({ "labelSelector": { "matchLabels": { api::labels::ROLE: role } }, "topologyKey": "kubernetes.io/hostname" });
    json!({ "affinity": { "podAntiAffinity": { "preferredDuringSchedulingIgnoredDuringExecution":
        [{ "weight": 100, "podAffinityTerm": term }] } } })
}

/// Puts the pods of these roles of a run's manifest there: `(role, where)`.
pub fn put(job: &mut Value, places: &[(&str, Value)]) {
    let spec = &mut job["spec"];
    for (role, place) in places {
        let template = match *role {
            "trainer" => &mut spec["trainer"]["podTemplate"],
            "conductor" => &mut spec["conductor"]["podTemplate"],
            "engine" => &mut spec["serving"]["template"]["spec"]["engine"]["podTemplate"],
            _ => &mut spec["rollout"]["template"]["spec"]["worker"]["podTemplate"],
        };
        *template = json!({ "spec": place });
    }
}
