//! `thresh logs`

use std::{
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use glance::{LogsOf, Role, Source};
use local::folder::Folder;

use crate::{args::Logs, display::say, on_cluster::find_here_or_hand_over, one_look::OneLook};

/// Between two looks at files that are followed.
const LOOK: Duration = Duration::from_millis(200);

/// Shows what the processes that are meant said; each line with its pod before it.
pub fn logs(args: Logs) -> Result<u8> {
    let look = OneLook::at(find_here_or_hand_over(&args.which)?)?;
    let folder = look.state.join("logs");
    let mut files: Vec<Tailed> =
        picked(&look, &folder, &args.of)?.iter().map(|source| Tailed::new(&folder, source)).collect();
    for file in &mut files {
        let lines = file.lines().with_context(|| file.path.display().to_string())?;
        let first = args.of.tail.map_or(0, |n| lines.len().saturating_sub(n as usize));
        lines[first..].iter().for_each(|line| say(line));
    }
    while args.of.follow && Folder::holder(&look.state).is_some() {
        std::thread::sleep(LOOK);
        for file in &mut files {
            file.lines().unwrap_or_default().iter().for_each(|line| say(line));
        }
    }
    Ok(0)
}

fn picked(look: &OneLook, folder: &Path, of: &LogsOf) -> Result<Vec<Source>> {
    let job = look.job.as_ref().context("the run has not begun yet: nobody has said anything")?;
    let mut all = sources(look, folder);
    // What a container said before its restart is in the same file.
    let previous = of.previous && of.role == Role::Trainer;
    all.sort_by(|a, b| a.pod.cmp(&b.pod));
    match glance::pick(&all, job, &LogsOf { previous, ..of.clone() }) {
        Ok(picked) => Ok(picked),
        Err(why) => bail!("{why}\n  fix: all logs are in {}", folder.display()),
    }
}

/// Every pod that has left a log, living or not.
fn sources(look: &OneLook, folder: &Path) -> Vec<Source> {
    let Some(job) = &look.job else { return Vec::new() };
    let names = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let pods = names.filter_map(|name| name.to_str()?.strip_suffix(".log").map(str::to_owned));
    // `POD.CONTAINER.log` is of a sidecar.
    pods.filter(|pod| !pod.contains('.')).filter_map(|pod| glance::source_of_name(job, &pod)).collect()
}

/// A log that is read as it grows.
struct Tailed {
    path: PathBuf,
    prefix: String,
    read: u64,
    rest: Vec<u8>,
}

impl Tailed {
    fn new(folder: &Path, source: &Source) -> Self {
        let path = folder.join(format!("{}.log", source.pod));
        Self { path, prefix: format!("{} ", source.pod), read: 0, rest: Vec::new() }
    }

    /// Whole lines that are new since the last time.
    fn lines(&mut self) -> Result<Vec<String>> {
        let mut file = File::open(&self.path)?;
        // A shorter file is a new one: the old one was rotated away.
        if file.metadata()?.len() < self.read {
            self.read = 0;
        }
        file.seek(SeekFrom::Start(self.read))?;
        let read = file.read_to_end(&mut self.rest)?;
        self.read += read as u64;
        let whole = self.rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |place| place + 1);
        let rest = self.rest.split_off(whole);
        let text = std::mem::replace(&mut self.rest, rest);
        let lines = String::from_utf8_lossy(&text).lines().map(|line| format!("{}{line}", self.prefix)).collect();
        Ok(lines)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_log_is_followed_by_whole_lines_and_through_its_rotation() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p.log");
        std::fs::write(&path, "one\ntw").unwrap();
        let mut tailed = Tailed { path: path.clone(), prefix: "p ".into(), read: 0, rest: Vec::new() };
        assert_eq!(tailed.lines().unwrap(), ["p one"]);
        std::fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"o\nthree\n").unwrap();
        assert_eq!(tailed.lines().unwrap(), ["p two", "p three"]);
        assert!(tailed.lines().unwrap().is_empty());
        std::fs::write(&path, "new\n").unwrap();
        assert_eq!(tailed.lines().unwrap(), ["p new"]);
    }
}
