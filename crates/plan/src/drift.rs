//! Whether a child is still as it was rendered: somebody may have edited it by hand.
//!
//! A live object has more than we rendered (defaults of the API server, what other managers own), so only what we rendered is
//! looked at. And only an object that this very version of the rendering made is looked at: one that an older operator made
//! differs from what this one would render although nobody touched it, and an upgrade must roll nothing. Such an object is left
//! alone until its meaning changes; then it is rendered anew, whole.

use api::labels;
use k8s_openapi::api::apps::v1::StatefulSetSpec;
use serde_json::{Map, Value};

use crate::Child;

/// Version of the rendering in [`crate::build`] (and of the values of [`crate::Settings`] that it renders). Any change of what is
/// rendered for a spec that stays the same is a new version; a test holds the two together.
pub const RENDER_VERSION: &str = "1";

/// Whether `live` must be brought to the form of `rendered`: it was made for another meaning, or somebody has changed what we
/// rendered. What is on its way out is not brought to any form.
pub fn outdated(live: &Child, rendered: &Child) -> bool {
    if live.metadata().deletion_timestamp.is_some() {
        return false;
    }
    let same = |key| live.annotation(key) == rendered.annotation(key);
    !same(labels::REVISION)
        || (same(labels::RENDER_VERSION)
            && (paused(live) != paused(rendered)
                || !(equal(live, rendered) || holds(&live.to_json(), &without_generation(rendered).to_json()))))
}

/// Which generation of the RLJob it was rendered for says nothing of what it should be: an edit of something else changes no child.
fn without_generation(rendered: &Child) -> Child {
    let mut rendered = rendered.clone();
    if let Some(annotations) = &mut rendered.metadata_mut().annotations {
        annotations.remove(labels::RLJOB_GENERATION);
    }
    rendered
}

/// The same to the letter, which an API server that fills in nothing gives: seen without looking at every field as JSON.
fn equal(live: &Child, rendered: &Child) -> bool {
    let (l, r) = (live.metadata(), rendered.metadata());
    let meta = l.labels == r.labels && l.annotations == r.annotations && l.owner_references == r.owner_references;
    meta && match (live, rendered) {
        (Child::ConfigMap(l), Child::ConfigMap(r)) => l.data == r.data && l.immutable == r.immutable,
        (Child::Service(l), Child::Service(r)) => l.spec == r.spec,
        (Child::StatefulSet(l), Child::StatefulSet(r)) => l.spec == r.spec,
        _ => false,
    }
}

/// A DaemonSet that runs nowhere, by request.
fn paused(child: &Child) -> bool {
    let Child::DaemonSet(set) = child else { return false };
    let pod = set.spec.as_ref().and_then(|s| s.template.spec.as_ref());
    pod.and_then(|p| p.node_selector.as_ref()).is_some_and(|s| s.contains_key(labels::PAUSED))
}

/// What must be applied so that `live` is as wanted, if anything. An object of another version of the rendering keeps the pods it
/// has, template and all; only what a person may turn while it runs is brought up to date: its count, and how it rolls.
pub fn mended(live: &Child, rendered: Child) -> Option<Child> {
    if outdated(live, &rendered) {
        return Some(rendered);
    }
    let ours = live.annotation(labels::RENDER_VERSION) == rendered.annotation(labels::RENDER_VERSION);
    if ours || live.metadata().deletion_timestamp.is_some() {
        return None;
    }
    let version = live.annotation(labels::RENDER_VERSION).map(str::to_owned);
    let pause = paused(&rendered);
    let mut kept = match (live, rendered) {
        (Child::StatefulSet(live), Child::StatefulSet(mut set)) => {
            let (old, new) = (live.spec.clone()?, set.spec.take()?);
            let spec = StatefulSetSpec { replicas: new.replicas, update_strategy: new.update_strategy, ..old };
            set.spec = Some(spec);
            Child::StatefulSet(set)
        }
        (Child::DaemonSet(live), Child::DaemonSet(mut set)) => {
            let (mut spec, new) = (live.spec.clone()?, set.spec.take()?);
            spec.update_strategy = new.update_strategy;
            let selector = &mut spec.template.spec.get_or_insert_default().node_selector;
            match pause {
                true => selector.get_or_insert_default().insert(labels::PAUSED.into(), "true".into()),
                false => selector.as_mut().and_then(|s| s.remove(labels::PAUSED)),
            };
            set.spec = Some(spec);
            Child::DaemonSet(set)
        }
        _ => return None,
    };
    let annotations = kept.metadata_mut().annotations.get_or_insert_default();
    match version {
        Some(version) => annotations.insert(labels::RENDER_VERSION.into(), version),
        None => annotations.remove(labels::RENDER_VERSION),
    };
    let spec = |c: &Child| c.to_json().get("spec").cloned().unwrap_or_default();
    let same = within(&spec(live), &spec(&kept)) && paused(live) == pause;
    (!same).then_some(kept)
}

/// Whether the live object has everything that the rendered one has, as the API server writes it.
pub fn holds(live: &Value, rendered: &Value) -> bool {
    match (live, rendered) {
        // Of the object itself, the status is not ours.
        (Value::Object(live), Value::Object(rendered)) => {
            rendered.iter().filter(|(key, _)| *key != "status").all(|(key, wanted)| field(live, key, wanted))
        }
        _ => false,
    }
}

fn field(live: &Map<String, Value>, key: &str, wanted: &Value) -> bool {
    match live.get(key) {
        // What is empty or zero is left out when an API server writes it.
        None | Some(Value::Null) => says_nothing(wanted),
        Some(Value::Object(there)) if matches!(key, "limits" | "requests") => {
            wanted.as_object().is_some_and(|w| w.iter().all(|(k, w)| there.get(k).is_some_and(|l| same_quantity(l, w))))
        }
        // One value, as server-side apply has it.
        Some(there) if matches!(key, "selector" | "nodeSelector") => there == wanted,
        Some(there) if matches!(key, "sizeLimit" | "divisor") => same_quantity(there, wanted),
        Some(there) => within(there, wanted),
    }
}

fn within(live: &Value, wanted: &Value) -> bool {
    match (live, wanted) {
        (Value::Object(live), Value::Object(wanted)) => wanted.iter().all(|(key, w)| field(live, key, w)),
        (Value::Array(live), Value::Array(wanted)) => list(live, wanted),
        (live, wanted) => live == wanted,
    }
}

/// Keys that tell the elements of a list apart, as server-side apply does: other managers may have elements of their own in it.
/// Any other list is one value. A mount is known by its path: its name is that of the volume.
const KEYS: [&str; 5] = ["uid", "mountPath", "name", "containerPort", "port"];

fn list(live: &[Value], wanted: &[Value]) -> bool {
    match KEYS.iter().find(|key| wanted.iter().all(|w| w.get(**key).is_some())) {
        Some(key) if !wanted.is_empty() => {
            wanted.iter().all(|w| live.iter().any(|l| l.get(*key) == w.get(*key) && within(l, w)))
        }
        _ => live.len() == wanted.len() && live.iter().zip(wanted).all(|(l, w)| within(l, w)),
    }
}

fn says_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(b) => !b,
        Value::Number(n) => n.as_f64() == Some(0.0),
        Value::String(s) => s.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.values().all(says_nothing),
    }
}

fn same_quantity(live: &Value, wanted: &Value) -> bool {
    live == wanted
        || match (amount(live), amount(wanted)) {
            // Suffixes are powers of 2 or of 10: the error of a double is far below any step.
            (Some(l), Some(w)) => (l - w).abs() <= 1e-9 * l.abs().max(w.abs()),
            _ => false,
        }
}

/// A quantity as a number: `1500m`, `2Gi`, `1e3`.
fn amount(value: &Value) -> Option<f64> {
    let text = match value {
        Value::String(s) => s.trim(),
        Value::Number(n) => return n.as_f64(),
        _ => return None,
    };
    if let Ok(plain) = text.parse() {
        return Some(plain);
    }
    const SUFFIXES: [(&str, f64); 15] = [
        ("Ki", 1024.0),
        ("Mi", 1_048_576.0),
        ("Gi", 1_073_741_824.0),
        ("Ti", 1_099_511_627_776.0),
        ("Pi", 1_125_899_906_842_624.0),
        ("Ei", 1_152_921_504_606_846_976.0),
        ("n", 1e-9),
        ("u", 1e-6),
        ("m", 1e-3),
        ("k", 1e3),
        ("M", 1e6),
        ("G", 1e9),
        ("T", 1e12),
        ("P", 1e15),
        ("E", 1e18),
    ];
    let (suffix, factor) = SUFFIXES.iter().find(|(suffix, _)| text.ends_with(suffix))?;
    text.strip_suffix(suffix)?.parse::<f64>().ok().map(|n| n * factor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::Service;
    use serde_json::json;

    #[test]
    fn what_the_api_server_adds_is_no_drift() {
        let rendered = json!({"metadata": {"name": "a", "labels": {"x": "y"}}, "spec": {
            "clusterIP": "None", "publishNotReadyAddresses": false, "selector": {"role": "engine"},
            "ports": [{"name": "http", "port": 1, "targetPort": 1}]}});
        let live = json!({"metadata": {"name": "a", "uid": "u", "labels": {"x": "y", "theirs": "1"}, "generation": 3}, "spec": {
            "clusterIP": "None", "clusterIPs": ["None"], "selector": {"role": "engine"}, "type": "ClusterIP",
            "ports": [{"name": "http", "port": 1, "targetPort": 1, "protocol": "TCP"}]}, "status": {"loadBalancer": {}}});
        assert!(holds(&live, &rendered));
    }

    #[test]
    fn a_changed_removed_or_retyped_field_is_drift() {
        let rendered =
            json!({"spec": {"selector": {"role": "engine", "uid": "u"}, "replicas": 2, "command": ["a", "b"]}});
        for (path, value) in [
            ("/spec/selector/role", json!("other")),
            ("/spec/replicas", json!(3)),
            ("/spec/replicas", json!(null)),
            ("/spec/selector", json!({"role": "engine"})),
            ("/spec/selector", json!({"role": "engine", "uid": "u", "more": "x"})),
            ("/spec/command", json!(["a"])),
            ("/spec/command", json!(["a", "b", "c"])),
            ("/spec/command", json!(["b", "a"])),
            ("/spec", json!(7)),
        ] {
            let mut live = rendered.clone();
            *live.pointer_mut(path).unwrap() = value.clone();
            assert!(!holds(&live, &rendered), "{path} = {value}");
        }
    }

    #[test]
    fn others_may_add_to_a_list_that_has_keys_and_may_not_change_ours() {
        let rendered = json!({"containers": [{"name": "engine", "image": "a",
            "env": [{"name": "A", "value": "1"}, {"name": "EMPTY", "value": ""}],
            "volumeMounts": [{"name": "v", "mountPath": "/v"}, {"name": "v", "mountPath": "/w"}]}]});
        let mut live = json!({"containers": [{"name": "sidecar", "image": "s"}, {"name": "engine", "image": "a",
            "env": [{"name": "THEIRS", "value": "x"}, {"name": "A", "value": "1"}, {"name": "EMPTY"}],
            "volumeMounts": [{"name": "v", "mountPath": "/w"}, {"name": "v", "mountPath": "/v"}]}]});
        assert!(holds(&live, &rendered));
        live["containers"][1]["env"][1]["value"] = "2".into();
        assert!(!holds(&live, &rendered));
    }

    #[test]
    fn quantities_are_compared_as_amounts_and_only_where_quantities_stand() {
        let r = |cpu: &str, memory: &str| json!({"resources": {"limits": {"cpu": cpu, "memory": memory}}});
        for (live, wanted) in
            [(r("1", "1Gi"), r("1000m", "1024Mi")), (r("500m", "1k"), r("0.5", "1000")), (r("2", "1G"), r("2", "1e9"))]
        {
            assert!(holds(&live, &wanted), "{live} {wanted}");
        }
        assert!(!holds(&r("1", "1Gi"), &r("1", "1G")));
        assert!(!holds(&r("1", "1Gi"), &r("100m", "1Gi")));
        assert!(!holds(&json!({"image": "1"}), &json!({"image": "1000m"})));
    }

    fn service(revision: &str, version: &str, role: &str) -> Child {
        let json = json!({"metadata": {"name": "a", "annotations": {
                "thresh.dev/revision": revision, "thresh.dev/render-version": version}},
            "spec": {"selector": {"role": role}}});
        Child::Service(Box::new(serde_json::from_value::<Service>(json).unwrap()))
    }

    #[test]
    fn what_another_version_rendered_is_left_alone_until_its_meaning_changes() {
        let rendered = service("v1:a", RENDER_VERSION, "engine");
        assert!(!outdated(&service("v1:a", RENDER_VERSION, "engine"), &rendered));
        assert!(outdated(&service("v1:a", RENDER_VERSION, "other"), &rendered), "edited by hand");
        assert!(!outdated(&service("v1:a", "0", "other"), &rendered), "an upgrade writes nothing");
        assert!(outdated(&service("v1:b", "0", "other"), &rendered), "another meaning");
        let mut leaving = service("v1:b", RENDER_VERSION, "other");
        leaving.metadata_mut().deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH));
        assert!(!outdated(&leaving, &rendered));
    }
}
