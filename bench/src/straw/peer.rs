//! straw-queue, the peer of the store and the queue.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::process::Process;

const PROGRAM: &str = include_str!("../../peers/straw_peer.py");
/// What it is called in the lines.
pub const NAME: &str = "straw-queue";

/// The peer.
pub struct Peer(Process);

impl Peer {
    /// Starts it in the environment that `make` has installed; `None`, and a word why, without one.
    pub fn start(out: &Path) -> Result<Option<Self>> {
        let python = out.join("straw-venv/bin/python");
        Ok(Process::start(NAME, PROGRAM, &python, "target/bench/straw-peer")?.map(Self))
    }

    /// Its version.
    pub fn version(&mut self) -> Result<String> {
        self.0.version()
    }

    /// Begins a case in the folder `root`, which must not be there.
    pub fn open(&mut self, kind: &str, root: &Path, juicefs: bool, mut of: Value) -> Result<()> {
        of["kind"] = kind.into();
        of["root"] = std::path::absolute(root)?.to_string_lossy().into();
        of["profile"] = if juicefs { "juicefs" } else { "local" }.into();
        self.0.ask("open", of).map(drop)
    }

    /// Runs the case once; gives its seconds.
    pub fn round(&mut self, of: Value) -> Result<f64> {
        self.0.ask("round", of)?["seconds"].as_f64().context("a round takes seconds")
    }

    /// Files of the case on disk, and their bytes.
    pub fn usage(&mut self) -> Result<(u64, u64)> {
        let answer = self.0.ask("usage", json!({}))?;
        Ok((answer["files"].as_u64().unwrap_or(0), answer["bytes"].as_u64().unwrap_or(0)))
    }
}
