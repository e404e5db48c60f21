//! A manifest, read and validated.

use std::collections::BTreeMap;

use api::Problem;
use api::manifest::{Kind, Object, parse};

use super::{validate, validate_pool, validate_serving};

/// Reads a manifest and validates every object in it; with `old`, also the edit from the objects there are (by kind and name).
///
/// # Errors
/// Every problem that can be found, with file and line, in the order of the file.
pub fn check(text: &str, file: &str, old: &[Kind]) -> Result<Vec<Object>, Vec<Problem>> {
    let (objects, mut problems) = parse(text, file);
    let mut seen: BTreeMap<(&str, &str), ()> = BTreeMap::new();
    let mut read: Vec<(usize, String)> = problems
        .iter()
        .flat_map(|p| [Some(&p.path), p.meant.as_ref()].into_iter().flatten().map(|path| (p.document, path.clone())))
        .collect();
    read.retain(|(_, path)| !path.is_empty());
    for object in &objects {
        let name = object.kind.object_name();
        let before = old.iter().find(|o| o.name() == object.kind.name() && o.object_name() == name);
        let found = match (&object.kind, before) {
            (Kind::RLJob(n), Some(Kind::RLJob(o))) => validate(Some(o), n),
            (Kind::RLJob(n), _) => validate(None, n),
            (Kind::ServingCluster(n), Some(Kind::ServingCluster(o))) => validate_serving(Some(o), n),
            (Kind::ServingCluster(n), _) => validate_serving(None, n),
            (Kind::RolloutPool(n), Some(Kind::RolloutPool(o))) => validate_pool(Some(o), n),
            (Kind::RolloutPool(n), _) => validate_pool(None, n),
        };
        let found = found.into_iter().map(|p| object.source.locate(p));
        problems.extend(
            found.filter(|p| !read.iter().any(|(document, path)| *document == p.document && spoilt(&p.path, path))),
        );
        if seen.insert((object.kind.name(), name), ()).is_some() && !name.is_empty() {
            let p = Problem::new(
                "metadata.name",
                format!("{} `{name}` is in this file twice", object.kind.name()),
                "unique",
                "use another name",
            );
            problems.push(object.source.locate(p));
        }
    }
    problems.sort_by_key(|p| (p.document, p.line));
    if problems.is_empty() { Ok(objects) } else { Err(problems) }
}

/// Fields a rule looks at beyond its own path.
const LOOKS_AT: [(&str, &[&str]); 11] = [
    ("spec.trainer.parallelism", &["spec.trainer.nodes", "spec.trainer.accelerator"]),
    ("spec.trainer.failurePolicy.maxDelaySeconds", &["spec.trainer.failurePolicy.baseDelaySeconds"]),
    ("spec.batch", &["spec.sampling", "spec.trainer"]),
    ("spec.model", &["spec.storage"]),
    ("spec.warmStart", &["spec.data.evalPath"]),
    ("spec.warmStart.checkEverySteps", &["spec.warmStart.maxSteps"]),
    ("spec.resumeFrom", &["spec.warmStart"]),
    ("spec.totalSteps", &["spec.resumeFrom"]),
    ("spec.eval", &["spec.data.evalPath"]),
    ("spec.rollout.template.spec.replicas", &["spec.rollout.template.spec.placement"]),
    ("spec.maxStaleness", &["spec.mode"]),
];

/// Whether a rule at `rule` may have judged a value that was mended at `mended`: then it says nothing about the manifest.
fn spoilt(rule: &str, mended: &str) -> bool {
    let inside = |inner: &str, outer: &str| {
        inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    let touches = |path: &str| inside(path, mended) || inside(mended, path);
    touches(rule) || LOOKS_AT.iter().any(|(at, also)| *at == rule && also.iter().any(|a| touches(a)))
}
