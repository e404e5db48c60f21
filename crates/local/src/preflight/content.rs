//! Whether the files of a run can be read at all. What is found here is a refused manifest; found by the conductor it would be
//! a process that is started again and again.

use std::{
    fs::File,
    io::{BufRead, BufReader},
    path::Path,
};

use api::{Problem, RLJob};
use serde_json::Value;

/// Rows that are looked at: a mistake is nearly always in the first one, and a large file is read once more by the conductor.
const ROWS: usize = 20_000;

/// What is wrong with the file that `field` names.
pub fn problem(job: &RLJob, field: &str, file: &Path) -> Option<Problem> {
    let spec = &job.spec;
    let wrong = match field {
        "spec.data.path" | "spec.data.evalPath" => rows(file, [&spec.data.prompt_key, &spec.data.label_key]),
        "spec.warmStart.data" => {
            let warm = spec.warm_start.as_ref()?;
            rows(file, [&warm.prompt_key, &warm.completion_key])
        }
        _ => json(file),
    };
    let (what, fix) = wrong.err()?;
    Some(Problem::new(field, format!("{}: {what}", file.display()), "can be read", fix))
}

type Wrong = (String, String);

fn unreadable(error: &std::io::Error) -> Wrong {
    (error.to_string(), "make it readable for this user".to_owned())
}

fn json(file: &Path) -> Result<(), Wrong> {
    let bytes = std::fs::read(file).map_err(|error| unreadable(&error))?;
    serde_json::from_slice::<serde::de::IgnoredAny>(&bytes)
        .map(drop)
        .map_err(|error| (format!("not JSON: {error}"), "put the model's own file there".to_owned()))
}

/// JSON Lines whose rows hold texts under two keys.
fn rows(file: &Path, keys: [&String; 2]) -> Result<(), Wrong> {
    let open = File::open(file).map_err(|error| unreadable(&error))?;
    let mut count = 0;
    for (place, line) in BufReader::new(open).split(b'\n').take(ROWS).enumerate() {
        let line = line.map_err(|error| unreadable(&error))?;
        if line.trim_ascii().is_empty() {
            continue;
        }
        let at = |what: String| format!("line {}: {what}", place + 1);
        if line.starts_with(b"\xef\xbb\xbf") {
            return Err((at("it begins with a byte order mark".into()), "save it as UTF-8 without one".into()));
        }
        let row: Value = serde_json::from_slice(&line)
            .map_err(|error| (at(format!("not JSON: {error}")), "write one JSON object a line".to_owned()))?;
        for key in keys {
            if !row.get(key.as_str()).is_some_and(Value::is_string) {
                let what = at(format!("it has no text under `{key}`"));
                return Err((what, format!("every line needs the texts `{}` and `{}`", keys[0], keys[1])));
            }
        }
        count += 1;
    }
    if count == 0 {
        return Err(("it holds no rows".to_owned(), "write one JSON object a line".to_owned()));
    }
    Ok(())
}
