//! What is wrong with a manifest: where, what, why, and what to do.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

/// One problem. Rendered as
///
/// ```text
/// error: rljob.yaml:31: spec.trainer.parallelism: 8 devices (2 nodes × 4) cannot be split by tp 3
///   fix: tp must divide 8
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    /// File name, where there is a file.
    pub file: Option<String>,
    /// 1-based line of the field (or of its nearest parent that is present).
    pub line: Option<u32>,
    /// Which document of the file, 0-based; links a problem to its object.
    pub document: usize,
    /// Path of the field from the object's root, `spec.trainer.parallelism`; empty for the whole document.
    pub path: String,
    /// Of a name that is not known: the path of the field that was probably meant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meant: Option<String>,
    /// What is wrong, with the values.
    pub message: String,
    /// The rule that was broken. For a rule the API server checks too, exactly its message.
    pub rule: String,
    /// What to do.
    pub fix: String,
}

impl Problem {
    /// A problem of a field, not yet placed in a file.
    pub fn new(
        path: impl Into<String>,
        message: impl Into<String>,
        rule: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            file: None,
            line: None,
            document: 0,
            path: path.into(),
            meant: None,
            message: message.into(),
            rule: rule.into(),
            fix: fix.into(),
        }
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("error: ")?;
        match (&self.file, self.line) {
            (Some(file), Some(line)) => write!(f, "{file}:{line}: ")?,
            (Some(file), None) => write!(f, "{file}: ")?,
            (None, Some(line)) => write!(f, "line {line}: ")?,
            (None, None) => {}
        }
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)?;
        if !self.fix.is_empty() {
            write!(f, "\n  fix: {}", self.fix)?;
        }
        Ok(())
    }
}

/// All problems, one after the other, in the order of the file.
pub fn render(problems: &[Problem]) -> String {
    let mut out = String::new();
    for p in problems {
        let _ = writeln!(out, "{p}");
    }
    out
}
