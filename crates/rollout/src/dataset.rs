//! Data sets: JSON lines, one row each, checked when loaded.

use std::path::{Path, PathBuf};

use serde::{Deserialize, de::DeserializeOwned};

/// A row to generate from.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct PromptRow {
    /// The prompt's text.
    pub prompt: String,
    /// What the reward compares with.
    #[serde(default)]
    pub label: String,
}

/// A row to imitate.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
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

impl Dataset<PromptRow> {
    /// Reads `{"prompt", "label"}` rows. `keys` renames the two fields as they stand in the file.
    ///
    /// # Errors
    /// Names the file and the line.
    pub fn prompts(path: &Path) -> Result<Self, DatasetError> {
        load(path, "\"prompt\" and \"label\", both strings")
    }
}

impl Dataset<SupervisedRow> {
    /// Reads `{"prompt", "completion"}` rows.
    ///
    /// # Errors
    /// Names the file and the line.
    pub fn supervised(path: &Path) -> Result<Self, DatasetError> {
        load(path, "\"prompt\" and \"completion\", both strings")
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

fn load<Row: DeserializeOwned>(path: &Path, fields: &'static str) -> Result<Dataset<Row>, DatasetError> {
    let text =
        std::fs::read_to_string(path).map_err(|source| DatasetError::Unreadable { path: path.to_owned(), source })?;
    let mut rows = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        rows.push(serde_json::from_str(line).map_err(|error| DatasetError::BadRow {
            path: path.to_owned(),
            line: index + 1,
            message: error.to_string(),
            fields,
        })?);
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
        let error = Dataset::prompts(&path).unwrap_err().to_string();
        assert!(error.contains(".jsonl:3: missing field `prompt`"), "{error}");
        std::fs::write(&path, "{\"prompt\":\"a\",\"label\":\"b\"}\n\n").unwrap();
        assert_eq!(Dataset::prompts(&path).unwrap().len(), 1);
        std::fs::write(&path, "\n").unwrap();
        assert!(matches!(Dataset::prompts(&path), Err(DatasetError::Empty { .. })));
        std::fs::remove_file(path).unwrap();
    }
}
