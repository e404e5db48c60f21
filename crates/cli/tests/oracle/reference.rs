//! What transformers says, as `oracle/reference.py` writes it.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use safetensors::SafeTensors;
use serde::Deserialize;
use serde_json::Value;

/// One prompt and its greedy continuation; the script says what each field is.
#[derive(Debug, Deserialize)]
pub struct Reference {
    pub prompt: String,
    pub prompt_ids: Vec<u32>,
    pub ids: Vec<u32>,
    pub text: String,
    pub decoded: String,
    pub logprobs: Vec<f64>,
    pub entropy: Vec<f64>,
    pub top10_ids: Vec<u32>,
    pub top10_logprobs: Vec<f64>,
    pub greedy_min_gap: f64,
}

impl Reference {
    /// The greedy tokens.
    pub fn answer(&self) -> &[u32] {
        &self.ids[self.prompt_ids.len()..]
    }
}

/// What `make test-oracle` has prepared.
pub fn prepared(name: &str) -> PathBuf {
    let folder = std::env::var_os("THRESH_ORACLE_DIR").expect("these tests are run by `make test-oracle`");
    PathBuf::from(folder).join(name)
}

pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Runs a script of `oracle/` in the prepared Python.
pub fn python(script: &str, arguments: &[&Path]) {
    let status = Command::new(prepared("venv/bin/python"))
        .arg("-P")
        .arg(repository().join("oracle").join(script))
        .args(arguments)
        .env("HF_HUB_OFFLINE", "1")
        .status()
        .unwrap();
    assert!(status.success(), "oracle/{script} failed");
}

/// Has transformers score and continue prompts; the references and the logits `[tokens, vocabulary]` of each.
pub fn derive(folder: &Path, prompts: &Value, max_new_tokens: u32) -> (Vec<Reference>, Vec<Vec<f32>>) {
    let work = tempfile::tempdir().unwrap();
    let asked = work.path().join("prompts.json");
    let body = serde_json::json!({"max_new_tokens": max_new_tokens, "prompts": prompts});
    std::fs::write(&asked, body.to_string()).unwrap();
    python("reference.py", &[folder, &asked, work.path()]);
    let references = read(&work.path().join("reference.json"));
    let bytes = std::fs::read(work.path().join("logits.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let logits = (0..references.len()).map(|at| {
        let words = file.tensor(&at.to_string()).unwrap().data().as_chunks::<4>().0;
        words.iter().map(|word| f32::from_le_bytes(*word)).collect()
    });
    let logits = logits.collect();
    (references, logits)
}

/// References from a file.
pub fn read(path: &Path) -> Vec<Reference> {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}
