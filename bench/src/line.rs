//! One measured figure, as a line of JSON and as a row that a person reads.

use std::{
    fs::File,
    io::Write,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::machine;

/// A figure.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// What was measured, unique with `case`.
    pub bench: String,
    /// Which variant of it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub case: String,
    /// Median over rounds.
    pub value: f64,
    /// Unit of `value`.
    pub unit: String,
    /// Smallest and largest round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub range: Option<[f64; 2]>,
    /// What ran beside it by turns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// The peer's median, in the same unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer_value: Option<f64>,
    /// How many times as fast as the peer: median over rounds of the ratio. Above 1 ours is faster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
    /// Share of the measured peak of the cores it may use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of_peak: Option<f64>,
    /// Load of the machine (one-minute average) when it was measured.
    pub load: f64,
    /// Whatever else is known.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

impl Line {
    /// A figure without a peer.
    pub fn new(bench: &str, case: impl Into<String>, value: f64, unit: &str) -> Self {
        let (bench, unit) = (bench.to_owned(), unit.to_owned());
        Self { bench, case: case.into(), value, unit, load: machine::load(), ..Self::default() }
    }

    /// Adds a fact.
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.more.insert(name.to_owned(), value.into());
        self
    }

    /// A number among the facts.
    fn fact(&self, name: &str) -> Option<f64> {
        self.more.get(name).and_then(Value::as_f64)
    }

    /// Adds a share of the peak.
    pub fn of_peak(mut self, share: f64) -> Self {
        self.of_peak = Some(share);
        self
    }
}

/// The lines of one part, written as they come.
pub struct Lines {
    file: File,
    path: PathBuf,
}

impl Lines {
    /// Begins `OUT/NAME.jsonl` anew, with what the machine is.
    pub fn begin(out: &Path, name: &str) -> Result<Self> {
        std::fs::create_dir_all(out).with_context(|| format!("create {}", out.display()))?;
        let path = out.join(format!("{name}.jsonl"));
        let file = File::create(&path).with_context(|| format!("create {}", path.display()))?;
        let mut lines = Self { file, path };
        lines.add(machine::line(out))?;
        Ok(lines)
    }

    /// Writes and prints a line.
    pub fn add(&mut self, line: Line) -> Result<()> {
        let mut text = serde_json::to_string(&line)?;
        text.push('\n');
        self.file.write_all(text.as_bytes()).with_context(|| format!("write {}", self.path.display()))?;
        println!("{}", row(&line));
        Ok(())
    }
}

/// The lines of a part, as they were written.
pub fn read(out: &Path, name: &str) -> Result<Vec<Line>> {
    let path = out.join(format!("{name}.jsonl"));
    let text = std::fs::read_to_string(&path).with_context(|| format!("read {}: was it measured?", path.display()))?;
    text.lines().map(|line| serde_json::from_str(line).with_context(|| path.display().to_string())).collect()
}

fn row(line: &Line) -> String {
    let name = if line.case.is_empty() { line.bench.clone() } else { format!("{} [{}]", line.bench, line.case) };
    let mut row = format!("{name:<52} {:>12} {}", number(line.value), line.unit);
    if let (Some(peer), Some(ratio)) = (&line.peer, line.ratio) {
        let theirs = line.peer_value.map(number).unwrap_or_default();
        row += &format!("   {}x of {peer} ({theirs})", number(ratio));
    }
    if let (Some(ratio), Some(beside)) = (line.fact("ratio_peer"), line.more.get("beside").and_then(Value::as_str)) {
        row += &format!("   {}x of {beside}", number(ratio));
    }
    if let Some(ratio) = line.fact("ratio_floor_of_groups") {
        row += &format!("   {}x of a write and a sync for all callers", number(ratio));
    }
    if let Some(files) = line.fact("files") {
        row += &format!("   {files} files");
    }
    if let Some(bytes) = line.fact("write_amplification") {
        row += &format!("   {bytes:.3} bytes written for one");
    }
    if let Some(share) = line.of_peak {
        row += &format!("   {:.0}% of peak", 100.0 * share);
    }
    row
}

/// Three significant digits, or all of a large number.
pub fn number(x: f64) -> String {
    if x == 0.0 {
        return "0".to_owned();
    }
    let magnitude = x.abs().log10().floor();
    let decimals = (2.0 - magnitude).clamp(0.0, 6.0) as usize;
    let text = format!("{x:.decimals$}");
    let (whole, rest) = match text.split_once('.') {
        Some((whole, rest)) => (whole.to_owned(), format!(".{rest}")),
        None => (text, String::new()),
    };
    let digits = whole.len() - usize::from(whole.starts_with('-'));
    let mut out = String::new();
    for (i, c) in whole.chars().enumerate() {
        let left = whole.len() - i;
        if c != '-' && left < digits && left.is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out + &rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_thousands_are_parted() {
        let shown: Vec<String> =
            [0.0, 0.01234, 0.5, 1.0, 12.345, 999.4, 1234.6, 1_234_567.0, -1234.0].into_iter().map(number).collect();
        assert_eq!(shown, ["0", "0.0123", "0.500", "1.00", "12.3", "999", "1,235", "1,234,567", "-1,234"]);
    }

    #[test]
    fn a_line_reads_back_as_it_was_written() {
        let line = Line::new("read", "4 KiB", 12.0, "1/s").with("threads", 2).of_peak(0.5);
        let text = serde_json::to_string(&line).unwrap();
        assert_eq!(serde_json::from_str::<Line>(&text).unwrap(), line);
    }
}
