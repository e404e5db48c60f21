//! Data sets: JSON lines, one row each, checked when loaded.

use std::path::{Path, PathBuf};

/// A row to generate from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptRow {
    /// The prompt's text.
    pub prompt: String,
    /// What the reward compares with.
    pub label: String,
}

/// A row to imitate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SupervisedRow {
    /// The prompt's text; not learnt.
    pub prompt: String,
    /// The text to learn, without the end-of-sequence token.
    pub completion: String,
}

/// Why a data set cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DatasetError {
    /// The file cannot be read.
    #[error("{}: {source}; is the path right, and relative to the root of the volume?", .path.display())]
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A line is not a row.
    #[error("{}:{line}: {message}; each line is a JSON object with {fields}", .path.display())]
    BadRow {
        /// Which file.
        path: PathBuf,
        /// Line, counted from 1.
        line: usize,
        /// What is wrong.
        message: String,
        /// What a row has.
        fields: &'static str,
    },
    /// There are no rows.
    #[error("{}: no rows", .path.display())]
    Empty {
        /// Which file.
        path: PathBuf,
    },
}

/// Rows of a file, in the order of the file.
#[derive(Clone, Debug)]
pub struct Dataset<Row> {
    rows: Vec<Row>,
}

/// What a row may be read into: two fields, the second one with a name of its own.
trait TwoFields: Sized {
    /// For messages.
    const NAMES: &'static str;
    fn new(prompt: String, second: String) -> Self;
}

impl TwoFields for PromptRow {
    const NAMES: &'static str = "the prompt and the label, both strings";
    fn new(prompt: String, label: String) -> Self {
        Self { prompt, label }
    }
}

impl TwoFields for SupervisedRow {
    const NAMES: &'static str = "the prompt and the completion, both strings";
    fn new(prompt: String, completion: String) -> Self {
        Self { prompt, completion }
    }
}

impl Dataset<PromptRow> {
    /// Reads rows whose prompt and label are in the fields `prompt_key` and `label_key`.
    ///
    /// # Errors
    /// Names the file and the line.
    pub fn prompts(path: &Path, prompt_key: &str, label_key: &str) -> Result<Self, DatasetError> {
        load(path, prompt_key, label_key)
    }
}

impl Dataset<SupervisedRow> {
    /// Reads rows whose prompt and completion are in the fields `prompt_key` and `completion_key`.
    ///
    /// # Errors
    /// Names the file and the line.
    pub fn supervised(path: &Path, prompt_key: &str, completion_key: &str) -> Result<Self, DatasetError> {
        load(path, prompt_key, completion_key)
    }
}

impl<Row> Dataset<Row> {
    /// Number of rows, at least one.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Never: an empty file is an error.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// A row.
    #[must_use]
    pub fn get(&self, row: usize) -> Option<&Row> {
        self.rows.get(row)
    }
}

fn load<Row: TwoFields>(path: &Path, first_key: &str, second_key: &str) -> Result<Dataset<Row>, DatasetError> {
    let text =
        std::fs::read_to_string(path).map_err(|source| DatasetError::Unreadable { path: path.to_owned(), source })?;
    let mut rows = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let bad = |message: String| DatasetError::BadRow {
            path: path.to_owned(),
            line: index + 1,
            message,
            fields: Row::NAMES,
        };
        let mut row: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(line).map_err(|error| bad(error.to_string()))?;
        let mut field = |key: &str| match row.remove(key) {
            Some(serde_json::Value::String(text)) => Ok(text),
            Some(other) => Err(bad(format!("field `{key}` is {other}, not a string"))),
            None => Err(bad(format!("missing field `{key}`"))),
        };
        rows.push(Row::new(field(first_key)?, field(second_key)?));
    }
    if rows.is_empty() {
        return Err(DatasetError::Empty { path: path.to_owned() });
    }
    Ok(Dataset { rows })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_row_is_named_by_file_and_line() {
        let path = std::env::temp_dir().join(format!("thresh-rows-{}.jsonl", std::process::id()));
        std::fs::write(&path, "{\"prompt\":\"a\",\"label\":\"b\"}\n\n{\"label\":\"b\"}\n").unwrap();
        let error = Dataset::prompts(&path, "prompt", "label").unwrap_err().to_string();
        assert!(error.contains(".jsonl:3: missing field `prompt`"), "{error}");
        std::fs::write(&path, "{\"prompt\":\"a\",\"label\":\"b\"}\n\n").unwrap();
        assert_eq!(Dataset::prompts(&path, "prompt", "label").unwrap().len(), 1);
        std::fs::write(&path, "\n").unwrap();
        assert!(matches!(Dataset::prompts(&path, "prompt", "label"), Err(DatasetError::Empty { .. })));
        std::fs::remove_file(path).unwrap();
    }
}
