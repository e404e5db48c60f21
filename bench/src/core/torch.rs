//! PyTorch as a process that obeys: one command a line, one answer a line.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

const PROGRAM: &str = include_str!("../../peers/torch_peer.py");

/// The peer. It ends with its input.
pub struct Torch {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Torch {
    /// Starts it in the environment that `make` has installed; `None`, and a word why, without one.
    pub fn start(out: &Path) -> Result<Option<Self>> {
        let python = out.join("venv/bin/python");
        if !python.exists() {
            println!("PyTorch is left out: {} is not there (`make target/bench/torch` installs it)", python.display());
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
        let mut torch = Self { child, orders, answers };
        match torch.version() {
            Ok(_) => Ok(Some(torch)),
            Err(error) => {
                println!("PyTorch is left out: {error:#} (what it printed is above)");
                Ok(None)
            }
        }
    }

    /// Gives an order and waits for its answer.
    pub fn ask(&mut self, what: &str, mut order: Value) -> Result<Value> {
        order["do"] = what.into();
        let stdin = self.orders.as_mut().context("the peer was let go")?;
        writeln!(stdin, "{order}").context("PyTorch does not listen")?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        if line.is_empty() {
            bail!("PyTorch ended at `{what}`");
        }
        let answer: Value = serde_json::from_str(&line)?;
        match answer.get("error") {
            Some(error) => bail!("PyTorch at `{what}`: {error}"),
            None => Ok(answer),
        }
    }

    /// Its version.
    pub fn version(&mut self) -> Result<String> {
        Ok(self.ask("version", json!({}))?["version"].as_str().unwrap_or_default().to_owned())
    }
}

impl Drop for Torch {
    fn drop(&mut self) {
        drop(self.orders.take());
        let _ = self.child.wait();
    }
}

/// A number of an answer.
pub fn number(answer: &Value, name: &str) -> Result<f64> {
    answer[name].as_f64().with_context(|| format!("PyTorch answered {answer}, without {name}"))
}
