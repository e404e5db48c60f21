//! Figures: lines of JSON in `target/bench/operator.jsonl`, one a name.

use std::io::Write;

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::stage::repository;

/// Adds a line; `figures` is an object of numbers.
///
/// # Errors
/// When it cannot be written.
pub fn line(name: &str, figures: &Value) -> anyhow::Result<()> {
    let folder = repository().join("target/bench");
    std::fs::create_dir_all(&folder)?;
    let mut line = json!({ "name": name });
    if let (Value::Object(line), Value::Object(figures)) = (&mut line, figures) {
        line.extend(figures.clone());
    }
    let path = folder.join("operator.jsonl");
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(&path)?;
    writeln!(file, "{line}").with_context(|| format!("write {}", path.display()))
}
