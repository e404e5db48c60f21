//! The checked-in CRDs are what the types say. `UPDATE_CRDS=1 cargo test -p api --test crds` writes them anew.

#![allow(clippy::unwrap_used)]

use std::path::Path;

#[test]
fn the_checked_in_crds_are_generated_from_the_types() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crds");
    for (name, yaml) in api::crds() {
        let path = folder.join(name);
        if std::env::var_os("UPDATE_CRDS").is_some() {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(&path, &yaml).unwrap();
        }
        let there = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(there == yaml, "{} is not what the types say: run `make crds`", path.display());
    }
}

#[test]
fn a_crd_is_structural() {
    // What an API server refuses: no type, both properties and additionalProperties, references, `oneOf` with types inside.
    fn walk(path: &str, v: &serde_json::Value) {
        let Some(map) = v.as_object() else { return };
        assert!(!map.contains_key("$ref"), "{path} has a reference");
        assert!(!(map.contains_key("properties") && map.contains_key("additionalProperties")), "{path} has both");
        for key in ["oneOf", "anyOf", "allOf"] {
            for inner in map.get(key).and_then(|l| l.as_array()).into_iter().flatten() {
                assert!(inner.get("type").is_none(), "{path} has a type inside {key}");
            }
        }
        assert!(
            map.contains_key("type")
                || map.contains_key("x-kubernetes-int-or-string")
                || map.contains_key("x-kubernetes-preserve-unknown-fields"),
            "{path} has no type: {v}"
        );
        for (k, p) in map.get("properties").and_then(|p| p.as_object()).into_iter().flatten() {
            walk(&format!("{path}.{k}"), p);
        }
        for key in ["items", "additionalProperties"] {
            if let Some(inner) = map.get(key) {
                walk(&format!("{path}[]"), inner);
            }
        }
        if let Some(d) = map.get("default") {
            assert!(!has_null(d), "{path} has a default with a null in it: {d}");
        }
    }
    fn has_null(v: &serde_json::Value) -> bool {
        match v {
            serde_json::Value::Null => true,
            serde_json::Value::Array(l) => l.iter().any(has_null),
            serde_json::Value::Object(m) => m.values().any(has_null),
            _ => false,
        }
    }
    for (name, yaml) in api::crds() {
        let crd: serde_json::Value = serde_saphyr::from_str(&yaml).unwrap();
        walk(name, &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]);
    }
}
