//! Beginning with another run's commit: its tiles, and the reference weights they may name, become this run's own.
//!
//! Files of a commit are never written again, so a hard link is a copy that the other run cannot take away; where the volume has
//! no links the bytes are copied. A folder gets its name when all of it is durable, and is looked through before it is believed.
//! Until the first record is written nothing has happened: whoever comes next does it again.

use std::{fs, io, path::Path};

use anyhow::Context;
use conductor::{
    Resumed, State,
    resumed::{self, Wanted},
};
use control::{health::Health, run_dir::RunDir};
use straw::RealFs;

use super::{
    faults::{Faults, Point},
    setup::Setup,
    tiles,
};

/// How the name of a copy ends that is not whole: like a trainer's folder that was never finished, of the trainer epoch that
/// [`resumed::COPIED_EPOCH`] is, so that it does not stand for a run that has been learning already.
const UNFINISHED: &str = "-e0.tmp";

/// Times that a living run's newest commit is looked for.
const LOOKS_MAX: u32 = 20;

/// Runs named when the one that is asked for is not there.
const RUNS_NAMED: usize = 10;

/// What the journal in `folder` adds up to; the inner error says why it cannot be read, which no waiting mends.
pub fn read_state(folder: &Path) -> straw::Result<Result<State, String>> {
    let (snapshot, txns) = straw::journal::read(&*RealFs::new(), folder)?;
    let state = conductor::replay(snapshot.as_deref(), txns.iter().flatten().map(Vec::as_slice));
    Ok(state.map_err(|error| error.to_string()))
}

/// Fetches what the manifest asks for; nothing when it asks for nothing. The inner error is for the user.
pub fn fetch(
    setup: &Setup,
    epoch: u64,
    health: &Health,
    faults: &mut Faults,
) -> anyhow::Result<Option<Result<Resumed, String>>> {
    let Some(from) = &setup.config.frozen.resume_from else { return Ok(None) };
    let own = setup.run_dir.path();
    let Some(runs) = own.parent() else {
        return Ok(Some(Err("spec.resumeFrom: this run's folder has no parent".to_owned())));
    };
    let other = RunDir::new(runs, &from.run);
    if other.path() == own {
        return Ok(Some(Err("spec.resumeFrom.run is this run itself".to_owned())));
    }
    if !other.journal().is_dir() {
        return Ok(Some(Err(format!(
            "spec.resumeFrom.run: there is no run {} on this volume; it has {}",
            from.run,
            names_of(runs, own).context("listing the runs of this volume")?
        ))));
    }
    newest(from, || look(setup, from, epoch, health, faults, &other)).map(Some)
}

/// Looks until what it found could be copied. A living run keeps its newest commits only, so one that was let go of while it was
/// copied means that there is a newer one by now, unless a step was named.
fn newest(
    from: &Wanted,
    mut look: impl FnMut() -> anyhow::Result<Result<Resumed, Refused>>,
) -> anyhow::Result<Result<Resumed, String>> {
    for _ in 0..LOOKS_MAX {
        match look()? {
            Err(Refused::Gone(_)) if from.step.is_none() => {}
            Err(Refused::Gone(reason) | Refused::For(reason)) => return Ok(Err(reason)),
            Ok(resumed) => return Ok(Ok(resumed)),
        }
    }
    Ok(Err(format!(
        "spec.resumeFrom: run {} lets its commits go faster than they can be copied; let it keep more (spec.checkpoint.keep), or name a \
         step that it keeps",
        from.run
    )))
}

/// Why a run cannot begin.
enum Refused {
    /// For good.
    For(String),
    /// The commit was let go of meanwhile.
    Gone(String),
}

fn look(
    setup: &Setup,
    from: &Wanted,
    epoch: u64,
    health: &Health,
    faults: &mut Faults,
    other: &RunDir,
) -> anyhow::Result<Result<Resumed, Refused>> {
    let run = &from.run;
    let read = read_state(&other.journal()).with_context(|| format!("reading the journal of run {run}"));
    let found = match read {
        Ok(state) => state.and_then(|state| resumed::find(&state, from, &setup.config)),
        Err(error) if super::reign::is_of_the_volume(&error) => return Err(error),
        Err(error) => Err(format!("{error:#}")),
    };
    let found = match found {
        Ok(found) => found,
        Err(reason) => return Ok(Err(Refused::For(reason))),
    };
    health.not_ready(format!("copying the commit of run {run} at step {}", found.resumed.commit.step));
    let copy = Copy { epoch, faults };
    copy.all(other, &setup.run_dir, &found)
}

/// The other runs of the volume, for people.
fn names_of(runs: &Path, own: &Path) -> io::Result<String> {
    let mut names = Vec::new();
    for entry in fs::read_dir(runs)? {
        let entry = entry?;
        if entry.path() != own && entry.path().join("journal").is_dir() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort_unstable();
    let more = names.len().saturating_sub(RUNS_NAMED);
    names.truncate(RUNS_NAMED);
    Ok(match (names.is_empty(), more) {
        (true, _) => "no other run".to_owned(),
        (_, 0) => names.join(", "),
        (_, more) => format!("{} and {more} more", names.join(", ")),
    })
}

struct Copy<'a> {
    /// Of this conductor: two that copy at once do not write into one folder.
    epoch: u64,
    faults: &'a mut Faults,
}

impl Copy<'_> {
    fn all(mut self, other: &RunDir, own: &RunDir, found: &resumed::Found) -> anyhow::Result<Result<Resumed, Refused>> {
        let commit = &found.resumed.commit;
        // Before the tiles: whoever finds those has all.
        if let Err(gone) = self.references(other, own)? {
            return Ok(Err(Refused::For(gone)));
        }
        let to = own.path().join(&commit.folder);
        match tiles::verify(&to, &commit.index_digest) {
            Ok(()) => return Ok(Ok(found.resumed.clone())),
            Err(_) if to.exists() => remove(&to)?,
            Err(_) => {}
        }
        let from = other.path().join(&found.folder);
        if let Err(gone) = self.folder(&from, &to)? {
            let gone = format!("the commit of run {} at step {}: {gone}", found.resumed.run, commit.step);
            return Ok(Err(Refused::Gone(gone)));
        }
        match tiles::look_through(&to, &commit.index_digest) {
            Ok(()) => Ok(Ok(found.resumed.clone())),
            // A file that is not there was not there to be copied either: no waiting brings it.
            Err(checkpoint::Error::Io { source, action, path }) if source.kind() != io::ErrorKind::NotFound => {
                Err(source).with_context(|| format!("the copied commit: {action} {}", path.display()))
            }
            Err(what) => {
                let damaged =
                    format!("the commit of run {} at step {} is damaged: {what}", found.resumed.run, commit.step);
                Ok(Err(Refused::For(damaged)))
            }
        }
    }

    fn references(&mut self, other: &RunDir, own: &RunDir) -> anyhow::Result<Result<(), String>> {
        let (from, to) = (other.references(), own.references());
        let entries = match fs::read_dir(&from) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Ok(())),
            Err(error) => return Err(error).with_context(|| format!("listing {}", from.display())),
        };
        for entry in entries {
            let name = entry.with_context(|| format!("listing {}", from.display()))?.file_name();
            // The name is its contents' digest, which is checked when it is loaded. One that has none yet is unfinished.
            let whole = name.to_str().is_some_and(|name| !name.contains('.'));
            if whole
                && !to.join(&name).exists()
                && let Err(gone) = self.folder(&from.join(&name), &to.join(&name))?
            {
                return Ok(Err(gone));
            }
        }
        Ok(Ok(()))
    }

    /// Removes what conductors before this one have copied and never named. One that lives on in spite of its successor may lose it
    /// under its hands: it cannot begin the run any more.
    fn sweep(&self, parent: &Path) -> anyhow::Result<()> {
        let entries = fs::read_dir(parent).with_context(|| format!("listing {}", parent.display()))?;
        for entry in entries.flatten() {
            let copied_by = entry.file_name().to_str().and_then(copier);
            if copied_by.is_some_and(|epoch| epoch < self.epoch) {
                remove(&entry.path())?;
            }
        }
        Ok(())
    }

    /// A folder of files, whole or not at all. The inner error: it is not there (any more).
    fn folder(&mut self, from: &Path, to: &Path) -> anyhow::Result<Result<(), String>> {
        let parent = to.parent().context("a folder without a parent")?;
        straw::create_dirs_durably(parent).with_context(|| format!("creating {}", parent.display()))?;
        self.sweep(parent)?;
        let name = to.file_name().context("a folder without a name")?.to_string_lossy();
        let work = parent.join(format!("{name}-c{}{UNFINISHED}", self.epoch));
        remove(&work)?;
        fs::create_dir(&work).with_context(|| format!("creating {}", work.display()))?;
        let entries = match fs::read_dir(from) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                remove(&work)?;
                return Ok(Err(format!(
                    "{} is gone: the run has gone on and does not keep it any more",
                    from.display()
                )));
            }
            Err(error) => return Err(error).with_context(|| format!("listing {}", from.display())),
        };
        for entry in entries {
            let entry = entry.with_context(|| format!("listing {}", from.display()))?;
            let (source, copy) = (entry.path(), work.join(entry.file_name()));
            match link_or_copy(&source, &copy) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound && !source.exists() => {
                    remove(&work)?;
                    return Ok(Err(format!("{} is gone: the run does not keep it any more", source.display())));
                }
                Err(error) => return Err(error).with_context(|| format!("copying {}", source.display())),
            }
            self.faults.at(Point::Copying, &[]);
        }
        sync(&work)?;
        self.faults.at(Point::Copied, &[]);
        match fs::rename(&work, to) {
            // Another conductor was faster; what is there is looked through like anything else.
            Err(_) if to.exists() => remove(&work)?,
            other => other.with_context(|| format!("renaming {} to {}", work.display(), to.display()))?,
        }
        sync(parent)?;
        self.faults.at(Point::Named, &[]);
        Ok(Ok(()))
    }
}

/// The conductor whose unfinished copy has this name.
fn copier(name: &str) -> Option<u64> {
    name.strip_suffix(UNFINISHED)?.rsplit_once("-c")?.1.parse().ok()
}

fn link_or_copy(from: &Path, to: &Path) -> io::Result<()> {
    match fs::hard_link(from, to) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(error),
        // No links here, or none to this file: its bytes, then.
        Err(_) => {
            fs::copy(from, to)?;
            fs::File::open(to)?.sync_all()
        }
        Ok(()) => Ok(()),
    }
}

fn sync(folder: &Path) -> anyhow::Result<()> {
    fs::File::open(folder).and_then(|file| file.sync_all()).with_context(|| format!("syncing {}", folder.display()))
}

fn remove(folder: &Path) -> anyhow::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", folder.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use control::wire::CommitRef;

    use super::*;

    fn wanted(step: Option<u64>) -> Wanted {
        Wanted { run: "other".to_owned(), step }
    }

    fn commit(step: u64) -> Resumed {
        let text = String::new;
        let (folder, index_digest, weights_digest) = (text(), text(), text());
        let commit = CommitRef { step, warm_step: 0, warming: false, folder, index_digest, weights_digest };
        Resumed { run: "other".to_owned(), commit, cursor: Default::default(), groups: Vec::new() }
    }

    fn gone(step: u64) -> Refused {
        Refused::Gone(format!("the commit at step {step} is gone"))
    }

    #[test]
    fn a_commit_that_a_living_run_lets_go_of_while_it_is_copied_means_its_next_one() {
        let mut step = 0;
        let found = newest(&wanted(None), || {
            step += 1;
            Ok(if step < 4 { Err(gone(step)) } else { Ok(commit(step)) })
        });
        assert_eq!(found.unwrap().unwrap().commit.step, 4);
    }

    #[test]
    fn a_step_that_was_named_and_is_gone_is_not_looked_for_again() {
        let mut looks = 0;
        let found = newest(&wanted(Some(7)), || {
            looks += 1;
            Ok(Err(gone(7)))
        });
        assert_eq!((found.unwrap().unwrap_err(), looks), ("the commit at step 7 is gone".to_owned(), 1));
    }

    #[test]
    fn a_run_that_is_always_faster_is_not_looked_at_for_ever() {
        let mut looks = 0;
        let found = newest(&wanted(None), || {
            looks += 1;
            Ok(Err(gone(looks)))
        });
        let reason = found.unwrap().unwrap_err();
        assert!(
            reason.contains("faster than they can be copied") && reason.contains("spec.checkpoint.keep"),
            "{reason}"
        );
        assert_eq!(looks, u64::from(LOOKS_MAX));
        let refused = newest(&wanted(None), || Ok(Err(Refused::For("it has none".to_owned()))));
        assert_eq!(refused.unwrap().unwrap_err(), "it has none");
    }
}
