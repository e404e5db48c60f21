//! What an edit does.

use api::{RLJob, hash};
use serde_json::Value;

/// One edited field and its effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    /// The field, `spec.trainer.parallelism`.
    pub path: String,
    /// What the edit does.
    pub effect: Effect,
}

/// What an edit does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// Takes effect at once or at the next step; nothing restarts.
    Live,
    /// Takes effect with the next attempt.
    NextAttempt,
    /// The trainer restarts, alone.
    RestartsTrainer,
    /// The trainer saves and stops.
    Suspends,
    /// The trainer goes on from its last commit.
    Resumes,
    /// The conductor restarts, alone.
    RestartsConductor,
    /// Engines are replaced one after the other.
    RollsServing,
    /// Workers are replaced one after the other.
    RollsRollout,
    /// Refused.
    Refused,
}

/// What each edited field from `old` to `new` does, in the order of the fields' names.
pub fn edits(old: &RLJob, new: &RLJob) -> Vec<Edit> {
    let (a, b) = (old.defaulted(), new.defaulted());
    let json = |j: &RLJob| serde_json::to_value(&j.spec).unwrap_or(Value::Null);
    let (a_spec, b_spec) = (json(&a), json(&b));
    let mut out = Vec::new();
    walk(&a_spec, &b_spec, "spec", 0, &mut out);
    let refused = super::validate(Some(old), new);
    out.into_iter()
        .map(|path| {
            let hit = refused.iter().any(|p| p.path.starts_with(&path) || path.starts_with(&format!("{}.", p.path)));
            let effect = match path.as_str() {
                _ if hit => Effect::Refused,
                "spec.suspend" if new.spec.suspend => Effect::Suspends,
                "spec.suspend" => Effect::Resumes,
                path => effect(path),
            };
            Edit { path, effect }
        })
        .collect()
}

/// The hash of meaning decides what restarts; this says it field by field, and a test holds the two together.
fn effect(path: &str) -> Effect {
    let p = path.strip_prefix("spec.").unwrap_or(path);
    let under = |prefix: &str| p == prefix || p.starts_with(&format!("{prefix}."));
    const TRAINER: [&str; 8] = [
        "trainer.nodes",
        "trainer.accelerator",
        "trainer.parallelism",
        "trainer.maxTokensPerMicroBatch",
        "trainer.recompute",
        "trainer.image",
        "trainer.resources",
        "trainer.podTemplate",
    ];
    if under("algorithm") || under("optimizer") || under("restart") || TRAINER.iter().any(|t| under(t)) {
        Effect::RestartsTrainer
    } else if under("trainer.terminationGracePeriodSeconds")
        || under("trainer.failurePolicy.rules")
        || under("scheduling")
    {
        Effect::NextAttempt
    } else if under("conductor") || under("serving.ref") || under("rollout.ref") {
        Effect::RestartsConductor
    } else if under("serving.template.spec.engine") || under("serving.template.spec.accelerator") {
        Effect::RollsServing
    } else if under("rollout.template.spec.worker") {
        Effect::RollsRollout
    } else {
        Effect::Live
    }
}

/// Whether the edit restarts the trainer, by the hash that decides it.
pub fn restarts_trainer(old: &RLJob, new: &RLJob) -> bool {
    hash::trainer(old) != hash::trainer(new)
}

/// Paths that differ: three levels deep, so that a message names `spec.trainer.parallelism` and not each number in it.
fn walk(a: &Value, b: &Value, path: &str, depth: usize, out: &mut Vec<String>) {
    if a == b {
        return;
    }
    let deep = if path.contains("template") { 5 } else { 2 };
    match (a, b) {
        (Value::Object(x), Value::Object(y)) if depth < deep => {
            let mut keys: Vec<&String> = x.keys().chain(y.keys()).collect();
            keys.sort();
            keys.dedup();
            for k in keys {
                walk(
                    x.get(k).unwrap_or(&Value::Null),
                    y.get(k).unwrap_or(&Value::Null),
                    &format!("{path}.{k}"),
                    depth + 1,
                    out,
                );
            }
        }
        _ => out.push(path.to_owned()),
    }
}
