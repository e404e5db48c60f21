//! Mending a store by hand: only what nothing can need is taken away, and what could be needed is at most renamed.
//!
//! Each action is safe while an owner lives: it has what it needs in memory or reads it from elsewhere, and what it would
//! remove itself it finds removed.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use serde::Serialize;

use crate::fs::{Dir, Entry, File, Fs};
use crate::journal::{Name, read_history};
use crate::pool::Pool;
use crate::{Error, Result, pack};

/// What a file that was set aside is called behind its old name; no name of straw's ends so.
pub const SET_ASIDE: &str = ".damaged";

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "action")]
pub enum Action {
    /// Remove a file that nothing can need.
    Remove {
        /// The file, below the store's folder.
        file: String,
        /// Its length.
        bytes: u64,
        /// Why nothing needs it.
        why: String,
    },
    /// Rename a damaged file, so that what is behind it is read instead.
    SetAside {
        /// The file, below the store's folder.
        file: String,
        /// Why nothing is lost by it.
        why: String,
    },
}

/// What can be mended in the journal `dir`: a damaged snapshot is set aside if without it nothing less is read, and unfinished
/// snapshots of former owners are removed.
///
/// # Errors
/// [`Error::Io`].
pub fn plan_journal(fs: &dyn Fs, dir: &std::path::Path) -> Result<Vec<Action>> {
    let open = fs.open_dir(dir).map_err(|e| Error::io("open", dir.display().to_string(), e))?;
    let entries = open.list().map_err(|e| Error::io("list", dir.display().to_string(), e))?;
    let names: Vec<(Name, u64)> = entries.iter().filter_map(|e| Name::parse(&e.name).map(|n| (n, e.len))).collect();
    let epoch = names.iter().map(|(name, _)| name.epoch()).max().unwrap_or(0);
    let mut plan = Vec::new();
    for (name, bytes) in &names {
        if let Name::Temporary { epoch: of } = name
            && *of < epoch
        {
            let why = format!("an unfinished snapshot of epoch {of}, which was succeeded by epoch {epoch}");
            plan.push(Action::Remove { file: name.text(), bytes: *bytes, why });
        }
    }
    let mut snapshots: Vec<(u64, u64)> = names
        .iter()
        .filter_map(|(name, _)| if let Name::Snapshot { lsn, epoch } = name { Some((*lsn, *epoch)) } else { None })
        .collect();
    snapshots.sort_unstable();
    let mut hidden = BTreeSet::new();
    while let Some((lsn, epoch)) = snapshots.pop() {
        let name = Name::Snapshot { lsn, epoch }.text();
        match read_history(&Hiding { dir: open.clone(), hidden: hidden.clone() }) {
            // Readable, but not as far as what was set aside: then nothing must be set aside.
            Ok(history) if hidden.is_empty() || history.last >= lsn_of(&hidden) => break,
            Err(Error::Corrupt { path, .. }) if path == name => {
                hidden.insert(name);
            }
            _ => return Ok(plan),
        }
    }
    let without = read_history(&Hiding { dir: open, hidden: hidden.clone() });
    if without.is_ok_and(|history| history.last >= lsn_of(&hidden)) {
        for file in hidden {
            let why = "its checksum is wrong, and older files of the journal hold all that it held".to_owned();
            plan.push(Action::SetAside { file, why });
        }
    }
    Ok(plan)
}

/// The last transaction that any of these snapshots covered.
fn lsn_of(snapshots: &BTreeSet<String>) -> u64 {
    let lsn = |name: &String| match Name::parse(name) {
        Some(Name::Snapshot { lsn, .. }) => lsn,
        _ => 0,
    };
    snapshots.iter().map(lsn).max().unwrap_or(0)
}

/// What can be given back in the folder of packs: those that the journal of `queue` says were given up
/// ([`crate::Queue::retired`]), and that every other queue of the pool gave up, too ([`crate::pool`]).
///
/// # Errors
/// [`Error::Io`].
pub fn plan_packs(fs: &dyn Fs, dir: &std::path::Path, queue: &str, retired: &BTreeSet<String>) -> Result<Vec<Action>> {
    let pool = Pool::of(fs, dir)?;
    if !pool.has_all(&Pool::of(fs, dir)?) {
        return Ok(Vec::new()); // a queue has just come: the next plan knows it
    }
    let open = fs.open_dir(dir).map_err(|e| Error::io("open", dir.display().to_string(), e))?;
    let entries = open.list().map_err(|e| Error::io("list", dir.display().to_string(), e))?;
    let given_up = |e: &Entry| pack::of_file(&e.name).is_some_and(|name| retired.contains(name));
    let gone = entries.into_iter().filter(|e| given_up(e) && pool.is_free(&e.name, Some(queue)));
    let why = "every journal gave this pack up: nothing refers to it, and nothing may again";
    Ok(gone.map(|e| Action::Remove { file: e.name, bytes: e.len, why: why.to_owned() }).collect())
}

/// Does what was planned for the folder `dir`. What is done already is no error. Durable when this returns.
///
/// # Errors
/// [`Error::Io`]; what came before it in the plan is done.
pub fn act(fs: &dyn Fs, dir: &std::path::Path, plan: &[Action]) -> Result<()> {
    let open = fs.open_dir(dir).map_err(|e| Error::io("open", dir.display().to_string(), e))?;
    for action in plan {
        let (done, what, file) = match action {
            Action::Remove { file, .. } => (open.remove(file), "remove", file),
            Action::SetAside { file, .. } => (set_aside(&*open, file), "rename", file),
        };
        match done {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(Error::io(what, file, e)),
            _ => {}
        }
    }
    open.sync().map_err(|e| Error::io("sync", dir.display().to_string(), e))
}

fn set_aside(dir: &dyn Dir, file: &str) -> io::Result<()> {
    let aside = format!("{file}{SET_ASIDE}");
    if !dir.exists(file)? {
        return Ok(()); // done before
    }
    if dir.exists(&aside)? {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("{aside} is there already: move it away")));
    }
    dir.rename(file, &aside)
}

/// A folder without some of its names; for reading.
#[derive(Debug)]
struct Hiding {
    dir: Arc<dyn Dir>,
    hidden: BTreeSet<String>,
}

impl Hiding {
    fn refused<T>() -> io::Result<T> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }
}

impl Dir for Hiding {
    fn create_new(&self, _: &str) -> io::Result<Arc<dyn File>> {
        Self::refused()
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        if self.hidden.contains(name) { Err(io::ErrorKind::NotFound.into()) } else { self.dir.open(name) }
    }

    fn open_rw(&self, _: &str) -> io::Result<Arc<dyn File>> {
        Self::refused()
    }

    fn exists(&self, name: &str) -> io::Result<bool> {
        Ok(!self.hidden.contains(name) && self.dir.exists(name)?)
    }

    fn rename(&self, _: &str, _: &str) -> io::Result<()> {
        Self::refused()
    }

    fn remove(&self, _: &str) -> io::Result<()> {
        Self::refused()
    }

    fn list(&self) -> io::Result<Vec<Entry>> {
        let mut entries = self.dir.list()?;
        entries.retain(|entry| !self.hidden.contains(&entry.name));
        Ok(entries)
    }

    fn sync(&self) -> io::Result<()> {
        Self::refused()
    }
}
