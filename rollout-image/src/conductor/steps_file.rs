//! `steps.jsonl`: one line per finished step. The journal is the truth; the file is made to say the same.

use std::{
    fs::{File, OpenOptions},
    io::{Read, Seek, SeekFrom, Write},
    path::Path,
};

use anyhow::Context;
use control::wire::StepRecord;

/// The open file, at its end.
pub struct StepsFile {
    file: File,
    bytes: u64,
    /// Lines that could not be written yet.
    pending: Vec<u8>,
}

impl StepsFile {
    /// Opens the file and makes it say, from byte `from` on, exactly `lines`: what a torn write or a superseded conductor
    /// left is cut off, what is missing is written. What agrees is not touched, so that readers never see it shrink.
    pub fn open(path: &Path, from: u64, lines: &[StepRecord]) -> anyhow::Result<Self> {
        let context = || format!("writing {}", path.display());
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).with_context(context)?;
        let wanted = render(lines)?;
        let mut there = Vec::new();
        file.seek(SeekFrom::Start(from)).with_context(context)?;
        file.read_to_end(&mut there).with_context(context)?;
        let same = wanted.iter().zip(&there).take_while(|(a, b)| a == b).count();
        let agreed = from + same as u64;
        if same < there.len() {
            file.set_len(agreed).with_context(context)?;
        }
        file.seek(SeekFrom::Start(agreed)).with_context(context)?;
        file.write_all(wanted.get(same..).unwrap_or_default()).with_context(context)?;
        Ok(Self { file, bytes: from + wanted.len() as u64, pending: Vec::new() })
    }

    /// Adds lines. What cannot be written now (a full volume) is written with the next ones, or by [`StepsFile::flush`].
    pub fn append(&mut self, lines: &[StepRecord]) -> anyhow::Result<()> {
        self.pending.extend(render(lines)?);
        self.flush()
    }

    /// Writes what is pending.
    pub fn flush(&mut self) -> anyhow::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        // At our own place and not at the end: after a failed write the place is unknown.
        self.file.seek(SeekFrom::Start(self.bytes))?;
        self.file.write_all(&self.pending)?;
        self.bytes += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }

    /// Makes the file durable; gives its length.
    pub fn sync(&mut self) -> anyhow::Result<u64> {
        self.flush()?;
        self.file.sync_data()?;
        Ok(self.bytes)
    }
}

fn render(lines: &[StepRecord]) -> anyhow::Result<Vec<u8>> {
    let mut text = Vec::new();
    for line in lines {
        serde_json::to_writer(&mut text, line)?;
        text.push(b'\n');
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(step: u64) -> StepRecord {
        StepRecord { step, ..StepRecord::default() }
    }

    #[test]
    fn the_file_says_what_the_journal_says_whatever_was_left_in_it() {
        let folder = std::env::temp_dir().join(format!("thresh-steps-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("steps.jsonl");
        let text = |lines: &[StepRecord]| String::from_utf8(render(lines).unwrap()).unwrap();
        let read = || std::fs::read_to_string(&path).unwrap();

        let mut steps = StepsFile::open(&path, 0, &[line(0)]).unwrap();
        steps.append(&[line(1)]).unwrap();
        let kept = steps.sync().unwrap();
        assert_eq!(read(), text(&[line(0), line(1)]));

        // A torn line, and one that no journal has.
        std::fs::write(&path, format!("{}{}{{\"st", text(&[line(0), line(1)]), text(&[line(7)]))).unwrap();
        StepsFile::open(&path, kept, &[line(2)]).unwrap();
        assert_eq!(read(), text(&[line(0), line(1), line(2)]));

        // Lines that are missing are written again.
        std::fs::write(&path, text(&[line(0)])).unwrap();
        StepsFile::open(&path, 0, &[line(0), line(1), line(2)]).unwrap();
        assert_eq!(read(), text(&[line(0), line(1), line(2)]));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
