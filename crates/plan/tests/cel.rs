//! What the API server refuses by CEL, `plan::validate` refuses with the same words, and the other way round.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod cases;

use std::collections::BTreeSet;

use api::{RLJob, RolloutPool, ServingCluster};
use kube::core::cel::{validate_cel, validate_cel_update};
use plan::validate::{validate, validate_pool, validate_serving};
use serde_json::Value;

/// Messages of every CEL rule in a CRD.
fn messages(crd: &Value, out: &mut BTreeSet<String>) {
    match crd {
        Value::Object(map) => {
            for rule in map.get("x-kubernetes-validations").and_then(Value::as_array).into_iter().flatten() {
                out.insert(rule["message"].as_str().expect("every rule has a fixed message").to_owned());
            }
            map.values().for_each(|v| messages(v, out));
        }
        Value::Array(list) => list.iter().for_each(|v| messages(v, out)),
        _ => {}
    }
}

fn all<K: kube::CustomResourceExt>() -> BTreeSet<String> {
    let mut out = BTreeSet::new();
    messages(&serde_json::to_value(K::crd()).unwrap(), &mut out);
    out
}

fn cel<K>(old: Option<&K>, new: &K) -> Vec<String>
where
    K: kube::CustomResourceExt + serde::Serialize,
{
    let result = match old {
        Some(old) => validate_cel_update(new, old),
        None => validate_cel(new),
    };
    let mut said: Vec<String> =
        result.err().map(|e| e.into_vec()).unwrap_or_default().into_iter().map(|e| e.message).collect();
    said.sort();
    said
}

fn compare<K>(
    rules: &BTreeSet<String>,
    what: &str,
    old: Option<&K>,
    new: &K,
    problems: Vec<api::Problem>,
    met: &mut BTreeSet<String>,
) where
    K: kube::CustomResourceExt + serde::Serialize,
{
    let mut ours: Vec<String> = problems.into_iter().map(|p| p.rule).filter(|r| rules.contains(r)).collect();
    ours.sort();
    let theirs = cel(old, new);
    met.extend(theirs.iter().cloned());
    assert_eq!(theirs, ours, "{what}: API server (left) and validate (right) differ");
}

#[test]
fn validate_refuses_what_the_cel_rules_refuse() {
    let (jobs, clusters, pools) = (all::<RLJob>(), all::<ServingCluster>(), all::<RolloutPool>());
    let mut met = [BTreeSet::new(), BTreeSet::new(), BTreeSet::new()];
    let base = cases::job();
    compare(&jobs, "the quickstart", None, &base, validate(None, &base), &mut met[0]);
    assert_eq!(validate(None, &base), [], "the quickstart is valid");
    for (what, pointer, value) in cases::JOB {
        let new: RLJob = cases::patched(&base, pointer, value);
        compare(&jobs, &format!("create: {what}"), None, &new, validate(None, &new), &mut met[0]);
        compare(&jobs, &format!("update: {what}"), Some(&base), &new, validate(Some(&base), &new), &mut met[0]);
        compare(&jobs, &format!("undo: {what}"), Some(&new), &base, validate(Some(&new), &base), &mut met[0]);
    }
    let base = cases::cluster();
    for (what, pointer, value) in cases::CLUSTER {
        let new: ServingCluster = cases::patched(&base, pointer, value);
        compare(&clusters, what, None, &new, validate_serving(None, &new), &mut met[1]);
        compare(&clusters, what, Some(&base), &new, validate_serving(Some(&base), &new), &mut met[1]);
    }
    let held: ServingCluster = cases::patched(&base, "/status", cases::HELD);
    for (what, pointer, value) in cases::CLUSTER {
        let new: ServingCluster = cases::patched(&held, pointer, value);
        let what = format!("while a run writes: {what}");
        compare(&clusters, &what, Some(&held), &new, validate_serving(Some(&held), &new), &mut met[1]);
    }
    let base = cases::pool();
    for (what, pointer, value) in cases::POOL {
        let new: RolloutPool = cases::patched(&base, pointer, value);
        compare(&pools, what, None, &new, validate_pool(None, &new), &mut met[2]);
        compare(&pools, what, Some(&base), &new, validate_pool(Some(&base), &new), &mut met[2]);
    }
    // `vendor` has one value so far: its rules cannot be broken yet.
    let unbreakable =
        |m: &&String| m.contains("vendor") || m.contains("reward is immutable") || m.contains("algorithm.name");
    for (rules, met) in [(&jobs, &met[0]), (&clusters, &met[1]), (&pools, &met[2])] {
        let missed: Vec<_> = rules.difference(met).filter(|m| !unbreakable(m)).collect();
        assert!(missed.is_empty(), "no case breaks {missed:?}");
    }
}
