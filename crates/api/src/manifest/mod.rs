//! Reading manifests strictly: every document must be one of our kinds, every field must exist, every value must fit, and
//! everything that is wrong is said at once, with file and line.

mod lines;
mod nearest;
mod schema;

use serde_json::{Map, Value};

use crate::{API_VERSION, Problem, RLJob, RolloutPool, ServingCluster};
pub use lines::Lines;
pub use nearest::nearest;
pub use schema::check_against;
pub(crate) use schema::inline;

/// An object read from a manifest, and where.
#[derive(Clone, Debug)]
pub struct Object {
    /// The object.
    pub kind: Kind,
    /// Where it was read.
    pub source: Source,
}

/// One of our kinds.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// A run.
    RLJob(Box<RLJob>),
    /// Engines.
    ServingCluster(Box<ServingCluster>),
    /// Workers.
    RolloutPool(Box<RolloutPool>),
}

impl Kind {
    /// `RLJob`, `ServingCluster` or `RolloutPool`.
    pub fn name(&self) -> &'static str {
        match self {
            Kind::RLJob(_) => "RLJob",
            Kind::ServingCluster(_) => "ServingCluster",
            Kind::RolloutPool(_) => "RolloutPool",
        }
    }

    /// `metadata.name`.
    pub fn object_name(&self) -> &str {
        let meta = match self {
            Kind::RLJob(o) => &o.metadata,
            Kind::ServingCluster(o) => &o.metadata,
            Kind::RolloutPool(o) => &o.metadata,
        };
        meta.name.as_deref().unwrap_or_default()
    }
}

/// Where an object was read: places problems of its fields.
#[derive(Clone, Debug)]
pub struct Source {
    file: String,
    document: usize,
    lines: Lines,
}

impl Source {
    /// Fills in file, document and line of a problem with a field of this object.
    pub fn locate(&self, mut problem: Problem) -> Problem {
        problem.file = Some(self.file.clone());
        problem.document = self.document;
        problem.line = self.lines.of(&problem.path);
        problem
    }
}

/// Reads all documents.
///
/// # Errors
/// Every problem that can be found, in the order of the file.
pub fn read(text: &str, file: &str) -> Result<Vec<Object>, Vec<Problem>> {
    let (objects, problems) = parse(text, file);
    if problems.is_empty() { Ok(objects) } else { Err(problems) }
}

/// Reads what can be read. An object with problems is returned too, if it can be mended (unknown fields are left out, values that
/// do not fit are replaced by some that do), so that whoever validates it can report the rest at once; never act on it.
pub fn parse(text: &str, file: &str) -> (Vec<Object>, Vec<Problem>) {
    let nothing = || Problem {
        file: Some(file.to_owned()),
        ..Problem::new("", "the file holds no object", "not empty", "write an RLJob, a ServingCluster or a RolloutPool")
    };
    let documents: Vec<Value> = match serde_saphyr::from_multiple(text) {
        Ok(d) => d,
        Err(e) => {
            let plain = e.without_snippet();
            let full = plain.to_string();
            let mut message = full.lines().next().unwrap_or_default().to_owned();
            // What the parser would do with other options is of no use here.
            for tail in [" at line ", ", set ", " rejected by the configured policy"] {
                if let Some(cut) = message.find(tail) {
                    message.truncate(cut);
                }
            }
            let line = e.location().map(|l| u32::try_from(l.line()).unwrap_or(u32::MAX));
            let there = line.and_then(|line| text.lines().nth(line.saturating_sub(1) as usize)).unwrap_or_default();
            if !there.trim().is_empty() && !message.starts_with("duplicate") {
                message = format!("{message}, at `{}`", there.trim());
            }
            let fix = if message.starts_with("duplicate") {
                "correct the YAML: keep one of them"
            } else if message.starts_with("non-finite") {
                "write a number that is finite"
            } else if there.contains('\t') {
                "correct the YAML: indent with blanks, not with tabs"
            } else {
                "correct the YAML: there, or in a line before it, a bracket or a quote is open, or an indentation is off"
            };
            return (
                Vec::new(),
                vec![Problem { file: Some(file.to_owned()), line, ..Problem::new("", message, "YAML", fix) }],
            );
        }
    };
    let mut lines = lines::documents(text).into_iter();
    let mut objects = Vec::new();
    let mut problems = Vec::new();
    if documents.is_empty() {
        problems.push(nothing());
    }
    for (document, value) in documents.into_iter().enumerate() {
        let source = Source { file: file.to_owned(), document, lines: lines.next().unwrap_or_default() };
        let (object, found) = one(value);
        let mut found: Vec<_> = found.into_iter().map(|p| source.locate(p)).collect();
        found.sort_by_key(|p| p.line);
        problems.extend(found);
        objects.extend(object.map(|kind| Object { kind, source }));
    }
    (objects, problems)
}

const KINDS: [&str; 3] = ["RLJob", "RolloutPool", "ServingCluster"];

fn one(mut value: Value) -> (Option<Kind>, Vec<Problem>) {
    let mut problems = Vec::new();
    let Some(map) = value.as_object_mut() else {
        return (
            None,
            vec![Problem::new(
                "",
                "the document is not an object",
                "object",
                "begin with apiVersion, kind, metadata and spec",
            )],
        );
    };
    match map.get("apiVersion").and_then(Value::as_str) {
        Some(API_VERSION) => {}
        Some(other) => problems.push(Problem::new(
            "apiVersion",
            format!("`{other}` is not {API_VERSION}"),
            "apiVersion",
            format!("write apiVersion: {API_VERSION}"),
        )),
        None => problems.push(Problem::new(
            "apiVersion",
            "is required",
            "required",
            format!("write apiVersion: {API_VERSION}"),
        )),
    }
    let kind = match map.get("kind").and_then(Value::as_str) {
        Some(k) if KINDS.contains(&k) => k.to_owned(),
        Some(k) => {
            let fix = match nearest(k, KINDS) {
                Some(n) => format!("did you mean {n}?"),
                None => format!("use one of {}", KINDS.join(", ")),
            };
            problems.push(Problem::new("kind", format!("`{k}` is not one of {}", KINDS.join(", ")), "kind", fix));
            return (None, problems);
        }
        None => {
            problems.push(Problem::new("kind", "is required", "required", format!("use one of {}", KINDS.join(", "))));
            return (None, problems);
        }
    };
    check_name(map, &mut problems);
    map.entry("metadata").or_insert_with(|| serde_json::json!({}));
    // Status is the operator's; the API server drops it from a manifest too.
    map.remove("status");
    let kind = match kind.as_str() {
        "RLJob" => decode::<RLJob>(&mut value, &mut problems).map(|o| Kind::RLJob(Box::new(o))),
        "ServingCluster" => {
            decode::<ServingCluster>(&mut value, &mut problems).map(|o| Kind::ServingCluster(Box::new(o)))
        }
        _ => decode::<RolloutPool>(&mut value, &mut problems).map(|o| Kind::RolloutPool(Box::new(o))),
    };
    (kind, problems)
}

fn check_name(map: &mut Map<String, Value>, problems: &mut Vec<Problem>) {
    let named = map.get("metadata").and_then(|m| m.get("name")).and_then(Value::as_str).is_some_and(|n| !n.is_empty());
    let has_name = map.get("metadata").and_then(|m| m.get("name")).is_some_and(|n| !n.is_null());
    if !named && !has_name {
        problems.push(Problem::new("metadata.name", "is required", "required", "give the object a name"));
    }
}

/// Checks the value against the kind's schema, mends it, and decodes it.
fn decode<K>(value: &mut Value, problems: &mut Vec<Problem>) -> Option<K>
where
    K: kube::CustomResourceExt + serde::de::DeserializeOwned,
{
    let crd = crate::crds::definition::<K>();
    let mut schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone();
    // The API server adds these to every kind.
    for (field, type_) in [("apiVersion", "string"), ("kind", "string"), ("metadata", "object")] {
        schema["properties"][field] = serde_json::json!({ "type": type_ });
    }
    let before = problems.len();
    schema::check_against(value, &schema, "", problems);
    if let Some(meta) = value.get_mut("metadata") {
        schema::check_metadata(meta, problems);
    }
    match serde_json::from_value(value.clone()) {
        Ok(object) => Some(object),
        Err(error) => {
            // The schema is generated from the type, so whatever does not decode was found above; this is the net below it.
            if problems.len() == before {
                problems.push(Problem::new("", error.to_string(), "decode", "correct the value"));
            }
            None
        }
    }
}
