//! A peer as a process that obeys: one command a line, one answer a line, both JSON.

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

/// A running peer. It ends with its input.
pub struct Process {
    name: &'static str,
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Process {
    /// Starts `program` with the Python that `make TARGET` has installed; `None`, and a word why, without one.
    pub fn start(name: &'static str, program: &str, python: &Path, target: &str) -> Result<Option<Self>> {
        if !python.exists() {
            println!("{name} is left out: {} is not there (`make {target}` installs it)", python.display());
            return Ok(None);
        }
        let mut child = Command::new(python)
            .args(["-W", "ignore", "-c", program])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| python.display().to_string())?;
        let orders = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().context("a piped child has an output")?);
        let mut peer = Self { name, child, orders, answers };
        match peer.version() {
            Ok(_) => Ok(Some(peer)),
            Err(error) => {
                println!("{name} is left out: {error:#} (what it printed is above)");
                Ok(None)
            }
        }
    }

    /// Gives an order and waits for its answer.
    pub fn ask(&mut self, what: &str, mut order: Value) -> Result<Value> {
        let name = self.name;
        order["do"] = what.into();
        let stdin = self.orders.as_mut().context("the peer was let go")?;
        writeln!(stdin, "{order}").with_context(|| format!("{name} does not listen"))?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        if line.is_empty() {
            bail!("{name} ended at `{what}`");
        }
        let answer: Value = serde_json::from_str(&line)?;
        match answer.get("error") {
            Some(error) => bail!("{name} at `{what}`: {error}"),
            None => Ok(answer),
        }
    }

    /// Its version.
    pub fn version(&mut self) -> Result<String> {
        Ok(self.ask("version", json!({}))?["version"].as_str().unwrap_or_default().to_owned())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.orders.take());
        let _ = self.child.wait();
    }
}
