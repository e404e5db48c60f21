//! Looking at a store and a journal from outside. Reads only; the owner may be alive.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;

use crate::fs::{Dir, Fs};
use crate::journal::{History, Lsn, Name, read_history};
use crate::pack;
use crate::pool::Pool;
use crate::scan::{Scan, scan};
use crate::store::Store;
use crate::{Error, Ref, Result};

/// Longest owner's name that is shown from a claim.
const OWNER_SHOWN: usize = 128;

/// What is in a folder.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Inspection {
    /// The folder.
    pub path: String,
    /// Packs, by name.
    pub packs: Vec<PackReport>,
    /// The journal, where there is one.
    pub journal: Option<JournalReport>,
    /// The queues that use the packs, or did, by name.
    pub queues: Vec<QueueReport>,
    /// What is damaged. Empty is good.
    pub errors: Vec<Damage>,
}

/// A damaged place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// The file, relative to the folder inspected.
    pub file: String,
    /// Offset in it, bytes.
    pub offset: u64,
    /// What is wrong.
    pub what: String,
}

/// A queue of the pool; see [`crate::pool`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct QueueReport {
    /// Its name.
    pub name: String,
    /// It does not use the packs any more, and keeps none.
    pub left: bool,
    /// The packs that it said to have given up. One that is alone in its pool says nothing.
    pub gave_up: BTreeSet<String>,
}

/// One pack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PackReport {
    /// Its name, as references give it.
    pub name: String,
    /// Who wrote it.
    pub owner: String,
    /// Length, bytes.
    pub bytes: u64,
    /// Its writer finished it.
    pub sealed: bool,
    /// Publish calls in it.
    pub extents: u64,
    /// Records in it.
    pub records: u64,
    /// Bytes of records.
    pub record_bytes: u64,
    /// Bytes of blocks that they share, of this pack or others.
    pub shared_bytes: u64,
    /// Bytes of writes that failed or were torn, and were never acknowledged.
    pub gap_bytes: u64,
}

/// A journal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct JournalReport {
    /// The highest epoch.
    pub epoch: u64,
    /// Claims whose files are still there, oldest first.
    pub claims: Vec<Claim>,
    /// The newest snapshot.
    pub snapshot: Option<SnapshotReport>,
    /// Segments, oldest first.
    pub segments: Vec<SegmentReport>,
    /// Number of the last transaction.
    pub last: Lsn,
    /// Transactions behind the snapshot.
    pub txns: u64,
    /// Records in them.
    pub records: u64,
    /// Bytes of the torn tail that the next claim cuts off.
    pub torn_bytes: u64,
}

/// A claim of an epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Claim {
    /// The epoch.
    pub epoch: u64,
    /// Who claimed it; empty when the claim was torn.
    pub owner: String,
}

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SnapshotReport {
    /// Its file.
    pub file: String,
    /// The last transaction it covers.
    pub last: Lsn,
    /// Bytes of state.
    pub bytes: u64,
}

/// A segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SegmentReport {
    /// Its file.
    pub file: String,
    /// Length of the file, bytes.
    pub bytes: u64,
    /// Bytes that count: up to its seal or its last good frame. 0 when it is not needed: a snapshot covers it, or its owner
    /// was fenced before using it.
    pub used_bytes: u64,
    /// The first transaction it can hold; 0 when it is not needed.
    pub first: Lsn,
    /// Group commits in it.
    pub frames: u64,
    /// Transactions in it.
    pub txns: u64,
}

/// Describes `root`: a folder with `packs` and `journal` in it, or either of the two itself. Payloads of sealed packs are not
/// read.
pub fn inspect(fs: &dyn Fs, root: impl AsRef<Path>) -> Result<Inspection> {
    look(fs, root.as_ref(), false)
}

/// As [`inspect`], and reads every byte that was ever acknowledged and is still there. A block that several records share is checked
/// once, where it was written; [`verify_refs`] reads records whole, with what they share.
pub fn verify(fs: &dyn Fs, root: impl AsRef<Path>) -> Result<Inspection> {
    look(fs, root.as_ref(), true)
}

/// Reads each reference whole; gives those that cannot be read.
pub fn verify_refs<'a>(store: &Store, refs: impl IntoIterator<Item = &'a Ref>) -> Vec<(Ref, Error)> {
    refs.into_iter().filter_map(|r| store.read(r).err().map(|e| (r.clone(), e))).collect()
}

fn look(fs: &dyn Fs, root: &Path, deep: bool) -> Result<Inspection> {
    let mut out = Inspection { path: root.display().to_string(), ..Inspection::default() };
    let both = [open(fs, &root.join("packs"))?, open(fs, &root.join("journal"))?];
    if both.iter().all(Option::is_none) {
        let dir = fs.open_dir(root).map_err(|e| Error::io("open", root.display().to_string(), e))?;
        look_at_packs(&*dir, "", deep, &mut out)?;
        look_at_journal(&*dir, "", &mut out)?;
        out.queues = Pool::of(fs, root)?.report();
        return Ok(out);
    }
    let [packs, journal] = both;
    if let Some(dir) = packs {
        look_at_packs(&*dir, "packs/", deep, &mut out)?;
        out.queues = Pool::of(fs, &root.join("packs"))?.report();
    }
    if let Some(dir) = journal {
        look_at_journal(&*dir, "journal/", &mut out)?;
    }
    Ok(out)
}

fn open(fs: &dyn Fs, path: &Path) -> Result<Option<Arc<dyn Dir>>> {
    match fs.open_dir(path) {
        Ok(dir) => Ok(Some(dir)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Error::io("open", path.display().to_string(), e)),
    }
}

fn look_at_packs(dir: &dyn Dir, prefix: &str, deep: bool, out: &mut Inspection) -> Result<()> {
    for entry in dir.list().map_err(|e| Error::io("list", &out.path, e))? {
        let Some(name) = pack::of_file(&entry.name) else { continue };
        let file = match dir.open(&entry.name) {
            Ok(file) => file,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue, // collected meanwhile
            Err(e) => return Err(Error::io("open", entry.name, e)),
        };
        let found = scan(name, &*file, deep)?;
        let damage = |(offset, what)| Damage { file: format!("{prefix}{}", entry.name), offset, what };
        out.errors.extend(found.errors.iter().cloned().map(damage));
        out.packs.push(report(name, entry.len, &found));
    }
    Ok(())
}

fn report(name: &str, bytes: u64, found: &Scan) -> PackReport {
    let records = || found.extents.iter().flat_map(|e| &e.refs);
    PackReport {
        name: name.to_owned(),
        owner: pack::owner_of(name).unwrap_or_default().to_owned(),
        bytes,
        sealed: found.sealed,
        extents: found.extents.len() as u64,
        records: records().count() as u64,
        record_bytes: records().map(|r| r.len).sum(),
        shared_bytes: records().flat_map(|r| &r.shares).map(|share| share.bytes).sum(),
        gap_bytes: found.gap_bytes,
    }
}

fn look_at_journal(dir: &dyn Dir, prefix: &str, out: &mut Inspection) -> Result<()> {
    let entries = dir.list().map_err(|e| Error::io("list", &out.path, e))?;
    let names: Vec<(Name, u64)> = entries.iter().filter_map(|e| Name::parse(&e.name).map(|n| (n, e.len))).collect();
    if names.is_empty() {
        return Ok(());
    }
    let history = match read_history(dir) {
        Ok(history) => history,
        Err(Error::Corrupt { path, offset, what }) => {
            out.errors.push(Damage { file: format!("{prefix}{path}"), offset, what });
            History::default()
        }
        Err(e) => return Err(e),
    };
    let mut report = JournalReport {
        epoch: names.iter().map(|(name, _)| name.epoch()).max().unwrap_or(0),
        last: history.last,
        txns: history.txns.len() as u64,
        records: history.txns.iter().map(|t| t.len() as u64).sum(),
        torn_bytes: history.torn_bytes,
        ..JournalReport::default()
    };
    if let (Some((last, state)), Some(file)) = (&history.snapshot, &history.snapshot_name) {
        report.snapshot = Some(SnapshotReport { file: file.clone(), last: *last, bytes: state.len() as u64 });
    }
    for (name, bytes) in names {
        match name {
            Name::Claim { epoch } => report.claims.push(Claim { epoch, owner: owner_of(dir, name) }),
            Name::Segment(id) => {
                let link = history.chain.iter().find(|link| link.id == id);
                report.segments.push(SegmentReport {
                    file: name.text(),
                    bytes,
                    used_bytes: link.map_or(0, |l| l.len),
                    first: link.map_or(0, |l| l.first),
                    frames: link.map_or(0, |l| l.frames),
                    txns: link.map_or(0, |l| l.txns),
                });
            }
            Name::Snapshot { .. } | Name::Temporary { .. } => {}
        }
    }
    out.journal = Some(report);
    Ok(())
}

fn owner_of(dir: &dyn Dir, claim: Name) -> String {
    let bytes = dir.open(&claim.text()).and_then(|file| file.read_at(0, OWNER_SHOWN)).unwrap_or_default();
    String::from_utf8(bytes).unwrap_or_default().trim_matches('\0').to_owned()
}
