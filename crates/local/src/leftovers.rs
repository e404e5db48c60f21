//! Processes that an earlier node left behind. They are killed, never adopted: their pipes, their leases and whatever they
//! believe belong to a node that is gone.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::{
    error::{At, Error, Result},
    folder::{self, Folder},
    objects,
    process::{Identity, MARK},
};

const PATIENCE: Duration = Duration::from_secs(10);

/// What the processes of a state folder carry in their environment. Who copies a folder copies its mark and its record of
/// processes, too; the copy gets a mark of its own and no record, or it would end the processes of the original.
///
/// # Errors
/// [`Error::File`].
pub fn mark_of(folder: &Folder) -> Result<String> {
    let path = folder.root().join("node");
    let own = fs::metadata(folder.root()).at("look at", folder.root())?;
    let place = format!("{}:{}", own.dev(), own.ino());
    if let Ok(text) = fs::read_to_string(&path)
        && let Some((mark, marked)) = text.split_once(' ')
        && marked == place
    {
        return Ok(mark.to_owned());
    }
    match fs::remove_file(folder.processes()) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error).at("remove", folder.processes())?,
        _ => {}
    }
    let mark = objects::uid();
    folder::replace(&path, format!("{mark} {place}").as_bytes())?;
    Ok(mark)
}

/// Kills every process on the folder's record and every process that carries `mark`; returns how many there were.
///
/// # Errors
/// [`Error::Leftover`] when one does not die, [`Error::File`] when the record cannot be read.
pub fn sweep(folder: &Folder, mark: &str) -> Result<usize> {
    let recorded: Vec<Identity> = folder::read_json(&folder.processes())?.unwrap_or_default();
    let entry = format!("{MARK}={mark}");
    let start = Instant::now();
    let mut killed = 0;
    // Again until none is found: one that was forking during the first look is met in the second.
    loop {
        let found = find(&recorded, &entry);
        let Some(first) = found.first() else { return Ok(killed) };
        if start.elapsed() > PATIENCE {
            return Err(Error::Leftover { pid: first.pid });
        }
        for one in &found {
            if let Some(pid) = Pid::from_raw(one.pid) {
                killed += usize::from(kill_process(pid, Signal::KILL).is_ok());
            }
        }
        thread::sleep(Duration::from_millis(20));
    }
}

fn find(recorded: &[Identity], entry: &str) -> Vec<Identity> {
    let own = std::process::id().cast_signed();
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    processes
        .flatten()
        .filter_map(|process| process.file_name().to_str()?.parse().ok())
        .filter(|pid| *pid != own)
        .filter_map(Identity::of)
        .filter(|one| recorded.contains(one) || carries(one.pid, entry))
        .filter(|one| !zombie(one.pid))
        .collect()
}

fn carries(pid: i32, entry: &str) -> bool {
    fs::read(format!("/proc/{pid}/environ"))
        .is_ok_and(|environ| environ.split(|byte| *byte == 0).any(|one| one == entry.as_bytes()))
}

/// Dead already, only not yet reaped by whoever inherited it.
fn zombie(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['Z', 'X'])))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn leftovers_are_killed_by_record_and_by_mark_and_strangers_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let folder = Folder::open(folder.path()).unwrap();
        let start = |mark: &str| Command::new("sleep").arg("1000").env(MARK, mark).spawn().unwrap();
        let mark = format!("mark-{}", std::process::id());
        let (mut recorded, mut marked, mut stranger) = (start("none"), start(&mark), start("another"));
        let reused = Identity { started: 1, ..Identity::of(stranger.id().cast_signed()).unwrap() };
        folder::replace_json(&folder.processes(), &[Identity::of(recorded.id().cast_signed()).unwrap(), reused])
            .unwrap();
        assert_eq!(sweep(&folder, &mark).unwrap(), 2);
        assert!(recorded.try_wait().unwrap().is_some() && marked.try_wait().unwrap().is_some());
        assert!(stranger.try_wait().unwrap().is_none(), "same pid, other start time: not ours");
        stranger.kill().unwrap();
        stranger.wait().unwrap();
    }

    #[test]
    fn a_copied_folder_gets_a_mark_of_its_own_and_ends_nobody_of_the_original() {
        let both = tempfile::tempdir().unwrap();
        let original = Folder::open(&both.path().join("original")).unwrap();
        let mark = mark_of(&original).unwrap();
        folder::replace_json(&original.processes(), &[Identity::of(1).unwrap()]).unwrap();
        assert_eq!(mark_of(&original).unwrap(), mark);
        let copy = Folder::open(&both.path().join("copy")).unwrap();
        for file in ["node", "processes.json"] {
            fs::copy(original.root().join(file), copy.root().join(file)).unwrap();
        }
        assert_ne!(mark_of(&copy).unwrap(), mark);
        assert!(!copy.processes().exists() && original.processes().exists());
        // Moved, it is still the same.
        drop(original);
        fs::rename(both.path().join("original"), both.path().join("moved")).unwrap();
        let moved = Folder::open(&both.path().join("moved")).unwrap();
        assert_eq!(mark_of(&moved).unwrap(), mark);
        assert!(moved.processes().exists());
    }
}
