//! The log of a container: a file that is rotated by size, and its last lines in memory for whoever asks what happened.

use std::{
    collections::VecDeque,
    fs::{self, File, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

/// Lines kept in memory.
const TAIL_LINES: usize = 20;
/// Longer lines are cut in memory (never in the file).
const TAIL_LINE_BYTES: usize = 2048;
/// A file this large becomes `<name>.1`, which replaces the one before.
pub const ROTATE_BYTES: u64 = 16 << 20;

/// Shared view of a container's last lines.
#[derive(Clone, Debug, Default)]
pub struct Tail(Arc<Mutex<VecDeque<String>>>);

impl Tail {
    /// The last lines, oldest first.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    fn push(&self, line: &[u8]) {
        let line = String::from_utf8_lossy(&line[..line.len().min(TAIL_LINE_BYTES)]);
        let line = line.trim_end();
        if line.is_empty() {
            return;
        }
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == TAIL_LINES {
            lines.pop_front();
        }
        lines.push_back(line.to_owned());
    }

    fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// Appends a process's output to its file.
#[derive(Debug)]
pub struct PodLog {
    path: PathBuf,
    file: Option<File>,
    bytes: u64,
    rotate: u64,
    partial: Vec<u8>,
    tail: Tail,
}

impl PodLog {
    /// Opens for append. A log that cannot be written is no reason to stop a run: only the tail is kept then.
    #[must_use]
    pub fn open(path: &Path, tail: Tail, rotate: u64) -> Self {
        tail.clear();
        let file = OpenOptions::new().create(true).append(true).open(path).ok();
        let bytes = file.as_ref().and_then(|file| file.metadata().ok()).map_or(0, |meta| meta.len());
        Self { path: path.into(), file, bytes, rotate, partial: Vec::new(), tail }
    }

    /// Takes what the process wrote, in any portions.
    pub fn write(&mut self, output: &[u8]) {
        if let Some(file) = &mut self.file {
            let _ = file.write_all(output);
            self.bytes += output.len() as u64;
        }
        for part in output.split_inclusive(|byte| *byte == b'\n') {
            if self.partial.len() < TAIL_LINE_BYTES {
                self.partial.extend_from_slice(part);
            }
            if part.ends_with(b"\n") {
                self.tail.push(&self.partial);
                self.partial.clear();
            }
        }
        // Between lines, so that no line is torn over two files.
        if self.bytes >= self.rotate && self.partial.is_empty() {
            self.rotate();
        }
    }

    /// The process is gone: an unfinished last line is a line too.
    pub fn finish(&mut self) {
        if !self.partial.is_empty() {
            self.tail.push(&self.partial);
            self.partial.clear();
        }
    }

    fn rotate(&mut self) {
        let mut old = self.path.as_os_str().to_owned();
        old.push(".1");
        let _ = fs::rename(&self.path, old);
        self.file = OpenOptions::new().create(true).append(true).open(&self.path).ok();
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_are_rotated_between_lines_and_only_one_old_file_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.log");
        let mut log = PodLog::open(&path, Tail::default(), 10);
        for text in ["0123456789ab", "cd\n", "second\n", "third line\n", "x\n"] {
            log.write(text.as_bytes());
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "x\n");
        assert_eq!(fs::read_to_string(folder.path().join("a.log.1")).unwrap(), "second\nthird line\n");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn the_tail_keeps_the_last_lines_of_the_newest_process_only() {
        let folder = tempfile::tempdir().unwrap();
        let tail = Tail::default();
        let mut log = PodLog::open(&folder.path().join("a.log"), tail.clone(), ROTATE_BYTES);
        for line in 0..50 {
            log.write(format!("line {line}\n").as_bytes());
        }
        log.write(b"panicked: no newline");
        log.finish();
        let lines = tail.lines();
        assert_eq!(lines.len(), TAIL_LINES);
        assert_eq!(lines.last().unwrap(), "panicked: no newline");
        assert_eq!(lines[0], "line 31");
        let _next = PodLog::open(&folder.path().join("a.log"), tail.clone(), ROTATE_BYTES);
        assert!(tail.lines().is_empty());
    }
}
