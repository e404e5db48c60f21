//! A model folder's tokenizer.

use std::path::{Path, PathBuf};

/// Why a tokenizer cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// The file is missing or not a tokenizer.
    #[error("{}: {message}", .path.display())]
    Unusable {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
    /// Text that cannot be encoded.
    #[error("cannot encode {text:?}: {message}")]
    Encode {
        /// First part of the text.
        text: String,
        /// Why.
        message: String,
    },
}

/// Text to tokens and back, as the model folder's `tokenizer.json` says, and the ids that end a sequence.
#[derive(Clone)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    end_ids: Vec<u32>,
}

impl Tokenizer {
    /// Reads `tokenizer.json`, and the end ids of `generation_config.json` and `config.json`.
    ///
    /// # Errors
    /// Names the file.
    pub fn from_folder(folder: &Path) -> Result<Self, TokenizerError> {
        let path = folder.join("tokenizer.json");
        let unusable = |message: String| TokenizerError::Unusable { path: path.clone(), message };
        if !path.is_file() {
            return Err(unusable("no such file; a model folder needs tokenizer.json".to_owned()));
        }
        let inner = tokenizers::Tokenizer::from_file(&path).map_err(|error| unusable(error.to_string()))?;
        let mut end_ids = Vec::new();
        for file in ["generation_config.json", "config.json"] {
            end_ids.extend(end_ids_of(&folder.join(file)));
        }
        end_ids.sort_unstable();
        end_ids.dedup();
        if end_ids.is_empty() {
            return Err(unusable("neither config.json nor generation_config.json names an eos_token_id".to_owned()));
        }
        Ok(Self { inner, end_ids })
    }

    /// Ids that end a sequence, sorted.
    #[must_use]
    pub fn end_ids(&self) -> &[u32] {
        &self.end_ids
    }

    /// Tokens of a text, without special tokens around it.
    ///
    /// # Errors
    /// When a part of the text is not in the vocabulary.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let shown = || text.chars().take(80).collect();
        let encoding = self
            .inner
            .encode_fast(text, false)
            .map_err(|error| TokenizerError::Encode { text: shown(), message: error.to_string() })?;
        let ids = encoding.get_ids().to_vec();
        if ids.is_empty() && !text.is_empty() {
            let message = "no character of it is in the vocabulary".to_owned();
            return Err(TokenizerError::Encode { text: shown(), message });
        }
        Ok(ids)
    }

    /// Text of tokens, special tokens left out. Ids outside the vocabulary are left out too.
    #[must_use]
    pub fn decode(&self, ids: &[u32]) -> String {
        self.inner.decode(ids, true).unwrap_or_default()
    }
}

/// `eos_token_id` of a config file: absent, a number, or a list.
fn end_ids_of(path: &Path) -> Vec<u32> {
    let Some(config) =
        std::fs::read(path).ok().and_then(|bytes| serde_json::from_slice::<serde_json::Value>(&bytes).ok())
    else {
        return Vec::new();
    };
    let id = |value: &serde_json::Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match &config["eos_token_id"] {
        serde_json::Value::Array(list) => list.iter().filter_map(id).collect(),
        one => id(one).into_iter().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quickstart_tokenizer_round_trips_and_knows_its_end() {
        let folder =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/quickstart/volumes/thresh-data/sort5/model");
        let tokenizer = Tokenizer::from_folder(&folder).unwrap();
        let ids = tokenizer.encode("s:59210=").unwrap();
        assert_eq!(ids.len(), 8);
        assert_eq!(tokenizer.decode(&ids), "s:59210=");
        assert_eq!(tokenizer.end_ids(), [0]);
        let mut ended = tokenizer.encode("01259").unwrap();
        ended.push(0);
        assert_eq!(tokenizer.decode(&ended), "01259");
    }

    #[test]
    fn a_missing_tokenizer_is_named() {
        let error = Tokenizer::from_folder(Path::new("/nowhere")).err().unwrap().to_string();
        assert!(error.contains("/nowhere/tokenizer.json"), "{error}");
    }
}
