//! straw-queue as a process that obeys: one command a line, one answer a line.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

const PROGRAM: &str = include_str!("../../peers/straw_peer.py");
/// What it is called in the lines.
pub const NAME: &str = "straw-queue";

/// The peer. It ends with its input.
pub struct Peer {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    /// Starts it in the environment that `make` has installed; `None`, and a word why, without one.
    pub fn start(out: &Path) -> Result<Option<Self>> {
        let python = out.join("straw-venv/bin/python");
        if !python.exists() {
            println!(
                "{NAME} is left out: {} is not there (`make target/bench/straw-peer` installs it)",
                python.display()
            );
            return Ok(None);
        }
        let mut child = Command::new(&python)
            .args(["-W", "ignore", "-c", PROGRAM])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| python.display().to_string())?;
        let orders = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().context("a piped child has an output")?);
        let mut peer = Self { child, orders, answers };
        match peer.version() {
            Ok(_) => Ok(Some(peer)),
            Err(error) => {
                println!("{NAME} is left out: {error:#} (what it printed is above)");
                Ok(None)
            }
        }
    }

    fn ask(&mut self, what: &str, mut order: Value) -> Result<Value> {
        order["do"] = what.into();
        let stdin = self.orders.as_mut().context("the peer was let go")?;
        writeln!(stdin, "{order}").with_context(|| format!("{NAME} does not listen"))?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        if line.is_empty() {
            bail!("{NAME} ended at `{what}`");
        }
        let answer: Value = serde_json::from_str(&line)?;
        match answer.get("error") {
            Some(error) => bail!("{NAME} at `{what}`: {error}"),
            None => Ok(answer),
        }
    }

    /// Its version.
    pub fn version(&mut self) -> Result<String> {
        Ok(self.ask("version", json!({}))?["version"].as_str().unwrap_or_default().to_owned())
    }

    /// Begins a case in the folder `root`, which must not be there.
    pub fn open(&mut self, kind: &str, root: &Path, juicefs: bool, mut of: Value) -> Result<()> {
        of["kind"] = kind.into();
        of["root"] = std::path::absolute(root)?.to_string_lossy().into();
        of["profile"] = if juicefs { "juicefs" } else { "local" }.into();
        self.ask("open", of).map(drop)
    }

    /// Runs the case once; gives its seconds.
    pub fn round(&mut self, of: Value) -> Result<f64> {
        self.ask("round", of)?["seconds"].as_f64().context("a round takes seconds")
    }

    /// Files of the case on disk, and their bytes.
    pub fn usage(&mut self) -> Result<(u64, u64)> {
        let answer = self.ask("usage", json!({}))?;
        Ok((answer["files"].as_u64().unwrap_or(0), answer["bytes"].as_u64().unwrap_or(0)))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        drop(self.orders.take());
        let _ = self.child.wait();
    }
}
