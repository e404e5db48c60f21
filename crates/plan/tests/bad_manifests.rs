//! Bad manifests: each is refused before anything starts, and each message is on record.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::Path;

use serde_json::{Value, json};

#[test]
fn every_bad_manifest_is_refused_with_a_message_that_names_line_field_and_fix() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bad");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 30, "{} fixtures", files.len());
    for path in files {
        let text = std::fs::read_to_string(&path).unwrap();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let Err(problems) = plan::check(&text, "rljob.yaml", &[]) else {
            panic!("{name} is accepted");
        };
        assert!(!problems.is_empty(), "{name}");
        for p in &problems {
            assert!(!p.message.is_empty() && !p.fix.is_empty(), "{name}: {p:?}");
            assert!(p.line.is_some() || name == "01-empty", "{name}: {p:?}");
        }
        insta::with_settings!({ prepend_module_to_snapshot => false, snapshot_path => "bad_snapshots" }, {
            insta::assert_snapshot!(name, api::render(&problems));
        });
    }
}

/// A valid manifest that says every field that rules compare with one another.
fn good() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/quickstart/rljob.yaml");
    serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Pointers to everything in `spec` that is not an object.
fn leaves(value: &Value, at: &str, out: &mut Vec<String>) {
    match value {
        Value::Object(map) => map.iter().for_each(|(key, inner)| leaves(inner, &format!("{at}/{key}"), out)),
        _ => out.push(at.to_owned()),
    }
}

/// What is said of a manifest beyond the one problem at `path`; all of it, if that is not said.
fn said_beyond(manifest: &Value, path: &str) -> Vec<String> {
    let problems = plan::check(&serde_json::to_string_pretty(manifest).unwrap(), "rljob.yaml", &[]).unwrap_err();
    let others = problems.iter().filter(|problem| problem.path != path).map(|problem| format!("{path}: {problem}"));
    let others: Vec<String> = others.collect();
    if others.len() + 1 == problems.len() { others } else { vec![format!("{path}: {problems:?}")] }
}

#[test]
fn a_value_of_a_wrong_type_is_one_problem_wherever_it_stands() {
    let mut places = Vec::new();
    leaves(&good()["spec"], "/spec", &mut places);
    assert!(places.len() > 50, "{places:?}");
    let mut beyond = Vec::new();
    for place in places {
        let mut manifest = good();
        *manifest.pointer_mut(&place).unwrap() = json!({ "not": "this" });
        beyond.extend(said_beyond(&manifest, &place[1..].replace('/', ".")));
    }
    assert!(beyond.is_empty(), "{}", beyond.join("\n"));
}

#[test]
fn a_misspelt_name_is_one_problem_wherever_it_stands() {
    let mut places = Vec::new();
    leaves(&good()["spec"], "/spec", &mut places);
    let mut beyond = Vec::new();
    for place in places {
        let mut manifest = good();
        let (parent, key) = place.rsplit_once('/').unwrap();
        let map = manifest.pointer_mut(parent).unwrap().as_object_mut().unwrap();
        let value = map.remove(key).unwrap();
        map.insert(format!("{key}s"), value);
        beyond.extend(said_beyond(&manifest, &format!("{}s", place[1..].replace('/', "."))));
    }
    assert!(beyond.is_empty(), "{}", beyond.join("\n"));
}
