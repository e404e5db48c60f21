//! PyTorch, the peer of the cores' work.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::process::Process;

const PROGRAM: &str = include_str!("../../peers/torch_peer.py");

/// PyTorch as a process that obeys.
pub type Torch = Process;

/// Starts it; `None`, and a word why, where it is not installed.
pub fn start(out: &Path) -> Result<Option<Torch>> {
    Process::start("PyTorch", PROGRAM, &out.join("venv/bin/python"), "target/bench/torch")
}

/// A number of an answer.
pub fn number(answer: &Value, name: &str) -> Result<f64> {
    answer[name].as_f64().with_context(|| format!("PyTorch answered {answer}, without {name}"))
}
