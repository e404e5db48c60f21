//! A value against a structural schema: what the API server would say, all of it at once, and what it would silently drop.

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

use super::nearest;
use crate::Problem;

/// Fields people will look for that come with a later release, by name.
const PLANNED: [(&str, &str); 8] = [
    ("pp", "pipeline parallelism"),
    ("cp", "context parallelism"),
    ("ep", "expert parallelism"),
    ("etp", "expert parallelism"),
    ("topP", "nucleus sampling"),
    ("topK", "top-k sampling"),
    ("router", "a router before the engines"),
    ("secretRef", "a token for a model hub"),
];

/// Values people will look for that come with a later release.
const PLANNED_VALUES: [&str; 4] = ["nvidia", "ascend", "biren", "SGLang"];

/// Compares a value with a schema, adds what is wrong to `problems`, and mends it: fields the schema does not know are removed,
/// values that do not fit are replaced by one that does.
pub fn check_against(value: &mut Value, schema: &Value, path: &str, problems: &mut Vec<Problem>) {
    let before = problems.len();
    compare(value, schema, path, problems);
    // A problem of this very value, not of something inside it.
    if problems[before..].iter().any(|p| p.path == path && p.rule != "known field" && p.rule != "required") {
        *value = stand_in(schema);
    }
}

/// A value that fits the schema.
fn stand_in(schema: &Value) -> Value {
    if schema.get("nullable").and_then(Value::as_bool) == Some(true) {
        return Value::Null;
    }
    if let Some(first) = schema.get("enum").and_then(|e| e.get(0)) {
        return first.clone();
    }
    match schema.get("type").and_then(Value::as_str).unwrap_or_default() {
        "object" => {
            let mut map = Map::new();
            let required =
                schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
            for key in required {
                map.insert(key.to_owned(), stand_in(&schema["properties"][key]));
            }
            Value::Object(map)
        }
        "array" => {
            let least = schema.get("minItems").and_then(Value::as_u64).unwrap_or(0);
            Value::Array((0..least).map(|_| stand_in(&schema["items"])).collect())
        }
        "string" => "x".into(),
        "boolean" => false.into(),
        "integer" => schema.get("minimum").and_then(Value::as_f64).map_or(1, |m| m as i64).into(),
        "number" => 0.5.into(),
        _ => Value::Null,
    }
}

fn compare(value: &mut Value, schema: &Value, path: &str, problems: &mut Vec<Problem>) {
    let s = |key: &str| schema.get(key);
    if s("x-kubernetes-int-or-string").and_then(Value::as_bool) == Some(true) {
        if !(value.is_i64() || value.is_u64() || value.is_string()) {
            problems.push(type_problem(path, value, "an integer or a string"));
        }
        return;
    }
    if value.is_null() {
        if s("nullable").and_then(Value::as_bool) != Some(true) {
            problems.push(Problem::new(path, "has no value", "type", "give it a value or remove the line"));
        }
        return;
    }
    match s("type").and_then(Value::as_str).unwrap_or_default() {
        "object" => match value {
            Value::Object(map) => object(map, schema, path, problems),
            _ => problems.push(type_problem(path, value, "an object")),
        },
        "array" => match value {
            Value::Array(list) => array(list, schema, path, problems),
            _ => problems.push(type_problem(path, value, "a list")),
        },
        "string" => string(value, schema, path, problems),
        "boolean" if !value.is_boolean() => problems.push(type_problem(path, value, "true or false")),
        "integer" => integer(value, schema, path, problems),
        "number" => match value.as_f64() {
            Some(n) if value.is_number() && n.is_finite() => range(n, schema, path, problems),
            _ => problems.push(type_problem(path, value, "a number")),
        },
        _ => {}
    }
}

fn object(map: &mut Map<String, Value>, schema: &Value, path: &str, problems: &mut Vec<Problem>) {
    let none = Map::new();
    let known = schema.get("properties").and_then(Value::as_object).unwrap_or(&none);
    let rest = schema.get("additionalProperties").filter(|a| a.is_object());
    let any = schema.get("x-kubernetes-preserve-unknown-fields").and_then(Value::as_bool) == Some(true)
        || schema.get("additionalProperties").and_then(Value::as_bool) == Some(true)
        // `metadata: {type: object}` in a CRD: checked on its own.
        || (known.is_empty() && rest.is_none());
    let required: Vec<&str> =
        schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    let mut missing: Vec<&str> = required.into_iter().filter(|key| !map.contains_key(*key)).collect();
    let mut unknown = Vec::new();
    for (key, v) in map.iter_mut() {
        let at = join(path, key);
        if let Some(s) = known.get(key) {
            check_against(v, s, &at, problems);
        } else if let Some(s) = rest {
            check_against(v, s, &at, problems);
        } else if !any {
            let problem = unknown_field(path, key, known, nearest(key, missing.iter().copied()));
            // One slip of the pen is one problem.
            missing.retain(|name| problem.meant.as_deref() != Some(&join(path, name)));
            problems.push(problem);
            unknown.push(key.clone());
        }
    }
    for key in unknown {
        map.remove(&key);
    }
    for key in missing {
        let about = known.get(key).map(describe).unwrap_or_default();
        let fix = format!("set {}{about}", join(path, key));
        problems.push(Problem::new(join(path, key), "is required", "required", fix));
    }
}

/// `required` is a field that is missing and has nearly this name.
fn unknown_field(path: &str, key: &str, known: &Map<String, Value>, required: Option<&str>) -> Problem {
    let mut names: Vec<&str> = known.keys().map(String::as_str).collect();
    names.sort_unstable();
    let mut meant = None;
    let fix = if let Some((_, what)) = PLANNED.iter().find(|(name, _)| *name == key && !known.contains_key(*name)) {
        format!("remove it: {what} is not supported yet")
    } else if let Some(near) = required.or_else(|| nearest(key, names.iter().copied())) {
        meant = Some(join(path, near));
        format!("did you mean `{near}`?")
    } else if names.len() <= 16 {
        format!("the fields here are {}", names.join(", "))
    } else {
        "remove it".to_owned()
    };
    Problem { meant, ..Problem::new(join(path, key), "unknown field", "known field", fix) }
}

fn array(list: &mut [Value], schema: &Value, path: &str, problems: &mut Vec<Problem>) {
    let bound = |key: &str| schema.get(key).and_then(Value::as_u64);
    let n = list.len() as u64;
    let (min, max) = (bound("minItems").unwrap_or(0), bound("maxItems").unwrap_or(u64::MAX));
    if n < min || n > max {
        let (limit, word) = if n < min { (min, "at least") } else { (max, "at most") };
        let word = if min == max { "exactly" } else { word };
        problems.push(Problem::new(
            path,
            format!("has {}", entries(n)),
            "length",
            format!("give {word} {}", entries(limit)),
        ));
    }
    if let Some(items) = schema.get("items") {
        for (i, v) in list.iter_mut().enumerate() {
            check_against(v, items, &format!("{path}[{i}]"), problems);
        }
    }
}

fn entries(n: u64) -> String {
    format!("{n} {}", if n == 1 { "entry" } else { "entries" })
}

fn string(value: &Value, schema: &Value, path: &str, problems: &mut Vec<Problem>) {
    let allowed: Vec<&str> =
        schema.get("enum").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    let Some(text) = value.as_str() else {
        let wanted = if allowed.is_empty() { "a string".to_owned() } else { format!("one of {}", allowed.join(", ")) };
        problems.push(type_problem(path, value, &wanted));
        return;
    };
    if !allowed.is_empty() && !allowed.contains(&text) {
        let fix = match nearest(text, allowed.iter().copied()) {
            _ if PLANNED_VALUES.contains(&text) => {
                format!("write {}: {text} is not supported yet", allowed.join(" or "))
            }
            Some(n) => format!("did you mean {n}?"),
            None if allowed.len() == 1 => format!("write {}", allowed[0]),
            None => format!("use one of {}", allowed.join(", ")),
        };
        problems.push(Problem::new(path, format!("`{text}` is not one of {}", allowed.join(", ")), "enum", fix));
    }
    let n = text.chars().count() as u64;
    let bound = |key: &str| schema.get(key).and_then(Value::as_u64);
    if let Some(min) = bound("minLength")
        && n < min
    {
        let what = if n == 0 { "is empty".to_owned() } else { format!("has {}", crate::count(n, "character")) };
        problems.push(Problem::new(path, what, "length", format!("use at least {}", crate::count(min, "character"))));
    }
    if let Some(max) = bound("maxLength")
        && n > max
    {
        problems.push(Problem::new(
            path,
            format!("has {n} characters"),
            "length",
            format!("use at most {max} characters"),
        ));
    }
}

fn integer(value: &Value, schema: &Value, path: &str, problems: &mut Vec<Problem>) {
    let whole = value.is_i64() || value.is_u64();
    match value.as_f64() {
        Some(n) if whole => range(n, schema, path, problems),
        _ => problems.push(type_problem(path, value, "a whole number")),
    }
}

fn range(n: f64, schema: &Value, path: &str, problems: &mut Vec<Problem>) {
    let bound = |key: &str| schema.get(key).and_then(Value::as_f64);
    if let Some(min) = bound("minimum")
        && n < min
    {
        problems.push(Problem::new(
            path,
            format!("{n} is below the minimum {min}"),
            "range",
            format!("use at least {min}"),
        ));
    }
    if let Some(max) = bound("maximum")
        && n > max
    {
        problems.push(Problem::new(
            path,
            format!("{n} is above the maximum {max}"),
            "range",
            format!("use at most {max}"),
        ));
    }
}

fn type_problem(path: &str, value: &Value, wanted: &str) -> Problem {
    let (is, quotes) = match value {
        Value::Null => ("nothing".to_owned(), false),
        Value::Bool(b) => (format!("{b}"), false),
        Value::Number(n) => (format!("the number {n}"), false),
        Value::String(s) => (format!("the string \"{s}\""), s.parse::<f64>().is_ok() || s == "true" || s == "false"),
        Value::Array(_) => ("a list".to_owned(), false),
        Value::Object(_) => ("an object".to_owned(), false),
    };
    let fix = if quotes && wanted != "an object" && wanted != "a list" {
        "remove the quotes".to_owned()
    } else {
        format!("write {wanted}")
    };
    Problem::new(path, format!("is {is}, not {wanted}"), "type", fix)
}

fn describe(schema: &Value) -> String {
    let kind = match schema.get("type").and_then(Value::as_str).unwrap_or_default() {
        "integer" => "a whole number",
        "number" => "a number",
        "string" => match schema.get("enum").and_then(Value::as_array) {
            Some(list) => {
                let names: Vec<&str> = list.iter().filter_map(Value::as_str).collect();
                return format!(" (one of {})", names.join(", "));
            }
            None => "a string",
        },
        "boolean" => "true or false",
        "array" => "a list",
        _ => return String::new(),
    };
    format!(" ({kind})")
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

/// A schema without references, as a CRD has it.
pub(crate) fn inline<T: schemars::JsonSchema>() -> Value {
    let generator = SchemaSettings::openapi3()
        .with(|s| {
            s.inline_subschemas = true;
            s.meta_schema = None;
        })
        .into_generator();
    generator.into_root_schema_for::<T>().to_value()
}

/// `metadata` of a manifest: the API server's own type.
pub(super) fn check_metadata(meta: &mut Value, problems: &mut Vec<Problem>) {
    let schema = inline::<k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta>();
    check_against(meta, &schema, "metadata", problems);
}
