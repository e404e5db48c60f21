//! Text in and out, by the model folder's tokenizer.json.

use std::path::Path;

use tokenizers::Tokenizer;

/// A tokenizer.
pub(crate) struct Text {
    tokenizer: Tokenizer,
}

/// What a cut multi-byte character decodes to.
const REPLACEMENT: char = '\u{fffd}';

impl Text {
    /// Reads `tokenizer.json`; `None` when the folder has none.
    pub(crate) fn load(folder: &Path) -> Result<Option<Self>, String> {
        let file = folder.join("tokenizer.json");
        if !file.exists() {
            return Ok(None);
        }
        let tokenizer =
            Tokenizer::from_file(&file).map_err(|error| format!("tokenizer.json cannot be read: {error}"))?;
        Ok(Some(Self { tokenizer }))
    }

    pub(crate) fn encode(&self, text: &str) -> Result<Vec<u32>, String> {
        let encoding =
            self.tokenizer.encode(text, true).map_err(|error| format!("the text cannot be tokenized: {error}"))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The text of `ids`; ids without a token are left out.
    pub(crate) fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> String {
        self.tokenizer.decode(ids, skip_special_tokens).unwrap_or_default()
    }

    /// The text of `ids` while more will follow: without a character that is not whole yet.
    pub(crate) fn decode_unfinished(&self, ids: &[u32], skip_special_tokens: bool) -> String {
        let mut ids = ids;
        // A character has at most four bytes, so at most three trailing tokens are a part of one.
        for _ in 0..4 {
            let text = self.decode(ids, skip_special_tokens);
            match ids.split_last() {
                Some((_, rest)) if text.ends_with(REPLACEMENT) => ids = rest,
                _ => return text,
            }
        }
        self.decode(ids, skip_special_tokens)
    }

    /// The text of one token, special or not.
    pub(crate) fn token(&self, id: u32) -> String {
        self.decode(&[id], false)
    }
}
