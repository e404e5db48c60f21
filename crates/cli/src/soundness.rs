//! Whether a run's folder is sound: its store by its own sums, its journal by its rules, and everything that the journal
//! names by what the journal says of it. A store alone cannot tell a damaged record from a write that was never finished;
//! the journal can, since it names what was acknowledged.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use checkpoint::{Checkpoint, hf};
use conductor::{State, check};
use straw::{Damage, Inspection, Queue, RealFs, Store};

use crate::commands::straw::journaled::of_a_queue;

/// How often a folder whose owner lives is looked at anew because it moved on meanwhile.
const LOOKS: usize = 3;

/// See the module.
#[derive(Debug)]
pub struct Soundness {
    /// The store, every byte of it that its own sums cover.
    pub store: Inspection,
    /// The journal by its rules; nothing for a store without one.
    pub rules: Option<check::Report>,
    /// Records, tiles and weights that the journal names, and that were found whole.
    pub named: Named,
}

/// How much was found whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Named {
    /// Records in packs.
    pub records: u64,
    /// Folders of tiles.
    pub commits: u64,
    /// Folders of weights.
    pub weights: u64,
}

impl Soundness {
    /// Reads all of it. `folder` is a run's, or a store's packs or journal alone.
    pub fn of(folder: &Path) -> Result<Self> {
        let fs = RealFs::new();
        let mut store = straw::verify(&*fs, folder).with_context(|| folder.display().to_string())?;
        let Some(journal) = journal_in(folder) else {
            if store.packs.is_empty() && store.journal.is_none() {
                bail!(
                    "{}: there is no store here: neither packs nor a journal\n  \
                     fix: name a run's folder on its volume, or its state folder",
                    folder.display()
                );
            }
            return Ok(Self { store, rules: None, named: Named::default() });
        };
        store.errors.extend(lost_journal(folder, &store));
        if !store.errors.is_empty() || store.journal.is_none() {
            // A journal that cannot be read names nothing.
            return Ok(Self { store, rules: None, named: Named::default() });
        }
        let mut looks = 0;
        loop {
            looks += 1;
            let told = Told::by(&journal)?;
            let (named, problems) = match folder.join("journal").is_dir() {
                true => look_at(folder, &told)?,
                false => (Named::default(), Vec::new()),
            };
            if !problems.is_empty() && looks < LOOKS && Told::by(&journal)?.moved_on(&told) {
                continue;
            }
            store.errors.extend(problems);
            let rules = match told {
                Told::Run(rules, _) => Some(rules),
                Told::Queue(_) => None,
            };
            return Ok(Self { store, rules, named });
        }
    }

    /// Nothing is damaged and no rule was broken.
    pub fn is_sound(&self) -> bool {
        self.store.errors.is_empty() && self.rules.as_ref().is_none_or(check::Report::is_sound)
    }

    /// What is wrong, a line each.
    pub fn complaints(&self) -> Vec<String> {
        let broken = self.rules.iter().flat_map(|rules| &rules.violations).map(|rule| format!("broken   {rule}"));
        let damaged =
            self.store.errors.iter().map(|one| format!("damage   {} at byte {}: {}", one.file, one.offset, one.what));
        broken.chain(damaged).collect()
    }
}

/// The journal of a folder that should have one.
fn journal_in(folder: &Path) -> Option<PathBuf> {
    let inside = folder.join("journal");
    if inside.is_dir() || folder.join("packs").is_dir() || folder.join("steps.jsonl").is_file() {
        return Some(inside);
    }
    let is_one = |name: &str| name.starts_with("epoch-") || name.starts_with("seg-");
    let entries = std::fs::read_dir(folder).ok()?;
    entries.flatten().any(|entry| entry.file_name().to_str().is_some_and(is_one)).then(|| folder.to_owned())
}

/// That a run's journal is gone, or all of it but its claims. A store in which nothing was ever published is only new, and the
/// journal of a queue that left its pool is not needed.
pub fn lost_journal(folder: &Path, found: &Inspection) -> Option<Damage> {
    let begun = folder.join("steps.jsonl").is_file() || found.packs.iter().any(|pack| pack.records > 0);
    let is_run = journal_in(folder).is_some();
    let left = found.queues.iter().any(|queue| queue.left && queue.name == straw::pool::MAIN);
    let what = match &found.journal {
        None => "it is missing: nothing says what the packs hold",
        Some(journal) if journal.segments.is_empty() && journal.snapshot.is_none() => {
            "its segments are missing: nothing says what the packs hold"
        }
        Some(_) => return None,
    };
    (is_run && begun && !left).then(|| damage("journal", what))
}

/// What a journal tells: a run's, or one of straw's own operations.
enum Told {
    Run(check::Report, Box<State>),
    Queue(Box<Queue>),
}

impl Told {
    fn by(journal: &Path) -> Result<Self> {
        let (snapshot, txns) = straw::journal::read(&*RealFs::new(), journal)?;
        let records: Vec<&[u8]> = txns.iter().flatten().map(Vec::as_slice).collect();
        let run = || {
            let rules = check::journal(snapshot.as_deref(), records.iter().copied())?;
            Ok(Told::Run(rules, Box::new(conductor::replay(snapshot.as_deref(), records.iter().copied())?)))
        };
        run().or_else(|error: conductor::Error| {
            let queue = of_a_queue(snapshot.as_deref(), &records).map(|queue| Told::Queue(Box::new(queue)));
            queue.ok_or(error).with_context(|| format!("{}: a record cannot be understood", journal.display()))
        })
    }

    fn queue(&self) -> &Queue {
        match self {
            Told::Run(_, state) => &state.queue,
            Told::Queue(queue) => queue,
        }
    }

    fn moved_on(&self, from: &Self) -> bool {
        match (self, from) {
            (Told::Run(now, _), Told::Run(before, _)) => now.records != before.records,
            (now, before) => now.queue() != before.queue(),
        }
    }
}

/// Reads whatever the journal names: every record, the tiles of every commit, the weights that are served.
fn look_at(run_dir: &Path, told: &Told) -> Result<(Named, Vec<Damage>)> {
    let mut named = Named::default();
    let mut problems = Vec::new();
    let packs = run_dir.join("packs");
    let queue = told.queue();
    if packs.is_dir() {
        let store = Store::open(RealFs::new(), &packs)?;
        let broken = straw::verify_refs(&store, queue.live_refs());
        named.records = queue.live_refs().count() as u64 - broken.len() as u64;
        problems.extend(broken.into_iter().map(|(at, error)| Damage {
            file: format!("packs/{}", at.pack),
            offset: at.offset,
            what: format!("a record that the journal names: {error}"),
        }));
    } else if queue.live_refs().next().is_some() {
        problems.push(damage("packs", "the folder is missing, and the journal names records in it"));
    }
    let Told::Run(_, state) = told else { return Ok((named, problems)) };
    for commit in &state.commits {
        let commit = &commit.commit;
        let whole = Checkpoint::open(&run_dir.join(&commit.folder), Some(&commit.index_digest))
            .and_then(|tiles| tiles.verify());
        match whole {
            Ok(_) => named.commits += 1,
            Err(error) => problems.push(damage(&commit.folder, &format!("a commit: {error}"))),
        }
    }
    if let Some(version) = state.versions.get(&state.version) {
        match hf::folder_digest(&run_dir.join(&version.folder)) {
            Ok(digest) if digest == version.digest => named.weights += 1,
            Ok(digest) => {
                let what = format!("weights with digest {digest}, the journal says {}", version.digest);
                problems.push(damage(&version.folder, &what));
            }
            Err(error) => problems.push(damage(&version.folder, &format!("the weights that are served: {error}"))),
        }
    }
    Ok((named, problems))
}

/// Something that is wrong with a whole file, or folder.
pub fn damage(file: &str, what: &str) -> Damage {
    Damage { file: file.to_owned(), offset: 0, what: what.to_owned() }
}
