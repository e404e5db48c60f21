//! Which model and which tokenizer a checkpoint belongs to.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::digest::sha256_hex;
use crate::error::{Error, Result};

/// Short names of a model's architecture and of its tokenizer. Equal for folders that differ only in weights.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// E.g. "qwen3-h64-l4-5f2c9a10b3d4e6f7".
    pub model: String,
    /// E.g. "7d1f0e2c4b6a8899"; "none" for a folder without a tokenizer.
    pub tokenizer: String,
}

/// Fields of config.json that say nothing about the shape or the function of the model.
const NOTES: [&str; 7] =
    ["_name_or_path", "transformers_version", "torch_dtype", "dtype", "use_cache", "architectures", "_commit_hash"];

/// Hexadecimal digits kept of a hash.
const DIGITS: usize = 16;

impl Fingerprint {
    /// Of a Hugging Face folder: the meaning of config.json, the bytes of tokenizer.json.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Damaged`] if config.json is not JSON.
    pub fn of_folder(folder: &Path) -> Result<Fingerprint> {
        let path = folder.join("config.json");
        let bytes = fs::read(&path).map_err(|e| Error::io("read", &path, e))?;
        let mut config: serde_json::Map<String, serde_json::Value> =
            serde_json::from_slice(&bytes).map_err(|e| Error::damaged(&path, e.to_string()))?;
        config.retain(|key, _| !NOTES.contains(&key.as_str()));
        let text = |key: &str| config.get(key).map_or_else(|| "?".to_owned(), |v| v.to_string().replace('"', ""));
        let (kind, hidden, layers) = (text("model_type"), text("hidden_size"), text("num_hidden_layers"));
        let hash = sha256_hex(canonical(&serde_json::Value::Object(config)).as_bytes());
        let tokenizer = folder.join("tokenizer.json");
        let tokenizer = match fs::read(&tokenizer) {
            Ok(bytes) => sha256_hex(&bytes)[..DIGITS].to_owned(),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => "none".to_owned(),
            Err(e) => return Err(Error::io("read", &tokenizer, e)),
        };
        Ok(Fingerprint { model: format!("{kind}-h{hidden}-l{layers}-{}", &hash[..DIGITS]), tokenizer })
    }

    /// Refuses a checkpoint at `path`, made for `self`, that this job, made for `wanted`, would misread.
    ///
    /// # Errors
    /// [`Error::Fingerprint`] names both.
    pub fn check(&self, path: &Path, wanted: &Fingerprint) -> Result<()> {
        for (what, saved, wanted) in
            [("model", &self.model, &wanted.model), ("tokenizer", &self.tokenizer, &wanted.tokenizer)]
        {
            if saved != wanted {
                let (path, saved, wanted) = (path.to_owned(), saved.clone(), wanted.clone());
                return Err(Error::Fingerprint { path, what, saved, wanted });
            }
        }
        Ok(())
    }
}

/// JSON text that does not depend on the order of keys in the file.
fn canonical(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::Object(map) => {
            let sorted: std::collections::BTreeMap<&String, String> =
                map.iter().map(|(k, v)| (k, canonical(v))).collect();
            let fields: Vec<String> = sorted.iter().map(|(k, v)| format!("{k:?}:{v}")).collect();
            format!("{{{}}}", fields.join(","))
        }
        serde_json::Value::Array(items) => {
            format!("[{}]", items.iter().map(canonical).collect::<Vec<_>>().join(","))
        }
        plain => plain.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(config: &str, tokenizer: &str) -> Fingerprint {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("config.json"), config).unwrap();
        fs::write(dir.path().join("tokenizer.json"), tokenizer).unwrap();
        Fingerprint::of_folder(dir.path()).unwrap()
    }

    #[test]
    fn order_and_notes_do_not_matter_but_sizes_do() {
        let a =
            folder(r#"{"model_type":"qwen3","hidden_size":64,"num_hidden_layers":2,"torch_dtype":"float32"}"#, "{}");
        let b = folder(r#"{"num_hidden_layers":2, "hidden_size":64,"model_type":"qwen3","dtype":"bfloat16"}"#, "{}");
        assert_eq!(a, b);
        let c = folder(r#"{"model_type":"qwen3","hidden_size":128,"num_hidden_layers":2}"#, "{}");
        let error = a.check(Path::new("tiles/x"), &c).unwrap_err().to_string();
        assert!(error.contains(&a.model) && error.contains(&c.model), "{error}");
        assert!(c.model.starts_with("qwen3-h128-l2-"), "{}", c.model);
        let d = folder(r#"{"model_type":"qwen3","hidden_size":64,"num_hidden_layers":2}"#, "{ }");
        assert!(a.check(Path::new("x"), &d).unwrap_err().to_string().contains("tokenizer"));
    }
}
