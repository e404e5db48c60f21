//! `steps.jsonl` of a run: one line a finished step, appended by the conductor. The last line of a step counts, since a step
//! that is replayed after a restart is written again.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use control::wire::StepRecord;

use crate::error::{At, Error, Result};

/// File name in the run's folder.
pub const FILE: &str = "steps.jsonl";

/// Reads the whole file: the steps that count, in order. A last line without its newline is still being written.
///
/// # Errors
/// [`Error::File`] when there is none, [`Error::Damaged`] for a line that is no step.
pub fn read(path: &Path) -> Result<Vec<StepRecord>> {
    let text = std::fs::read_to_string(path).at("read", path)?;
    let mut steps = BTreeMap::new();
    for (place, line) in whole_lines(&text).enumerate() {
        let step: StepRecord = serde_json::from_str(line)
            .map_err(|error| Error::Damaged { path: path.into(), reason: format!("line {}: {error}", place + 1) })?;
        steps.insert(step.step, step);
    }
    Ok(steps.into_values().collect())
}

fn whole_lines(text: &str) -> impl Iterator<Item = &str> {
    let end = text.rfind('\n').map_or(0, |at| at + 1);
    text[..end].lines().filter(|line| !line.trim().is_empty())
}

/// Follows the file as it grows.
#[derive(Debug)]
pub struct StepTail {
    path: PathBuf,
    offset: u64,
    partial: Vec<u8>,
}

impl StepTail {
    /// Follows the file from its beginning.
    #[must_use]
    pub fn new(run_dir: &Path) -> Self {
        Self { path: run_dir.join(FILE), offset: 0, partial: Vec::new() }
    }

    /// Lines finished since the last call, in the order they were written; lines that are no steps are left out here (and
    /// refused by [`read`]).
    pub fn poll(&mut self) -> Vec<StepRecord> {
        let Ok(mut file) = File::open(&self.path) else { return Vec::new() };
        if file.metadata().is_ok_and(|meta| meta.len() < self.offset) {
            // Cut back by a new conductor that found a torn line.
            self.offset = 0;
            self.partial.clear();
        }
        let mut new = Vec::new();
        if file.seek(SeekFrom::Start(self.offset)).is_err() || file.read_to_end(&mut new).is_err() {
            return Vec::new();
        }
        self.offset += new.len() as u64;
        self.partial.extend(new);
        let Some(end) = self.partial.iter().rposition(|byte| *byte == b'\n') else { return Vec::new() };
        let rest = self.partial.split_off(end + 1);
        let lines = std::mem::replace(&mut self.partial, rest);
        lines.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Write};

    use super::*;

    fn line(step: u64, attempt: u64) -> String {
        serde_json::to_string(&StepRecord { step, attempt, ..Default::default() }).unwrap()
    }

    #[test]
    fn the_last_line_of_a_step_counts_and_a_torn_one_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        fs::write(&path, format!("{}\n{}\n{}\n{}", line(0, 1), line(1, 1), line(1, 2), line(2, 2))).unwrap();
        let steps: Vec<_> = read(&path).unwrap().into_iter().map(|step| (step.step, step.attempt)).collect();
        assert_eq!(steps, [(0, 1), (1, 2)]);
        fs::write(&path, "{}\n{\"step\":\n").unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("line 1"), "the first wrong line is named");
    }

    #[test]
    fn a_tail_gives_each_line_once_when_it_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let mut tail = StepTail::new(folder.path());
        assert!(tail.poll().is_empty());
        let mut file = fs::File::create(folder.path().join(FILE)).unwrap();
        let (first, second) = (line(0, 1) + "\n", line(1, 1) + "\n");
        file.write_all(first.as_bytes()).unwrap();
        file.write_all(&second.as_bytes()[..9]).unwrap();
        assert_eq!(tail.poll().len(), 1);
        assert!(tail.poll().is_empty());
        file.write_all(&second.as_bytes()[9..]).unwrap();
        assert_eq!(tail.poll()[0].step, 1);
    }
}
