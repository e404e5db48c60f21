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
        problems.extend(found.into_iter().map(|p| object.source.locate(p)));
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
    problems.sort_by(|a, b| (a.document, a.line).cmp(&(b.document, b.line)));
    // A value the schema refused may break a rule too: one problem a field is enough.
    problems.dedup_by(|b, a| a.document == b.document && a.path == b.path && a.rule == b.rule);
    if problems.is_empty() { Ok(objects) } else { Err(problems) }
}
