//! A file system in memory that loses, on a crash, whatever was not synced.
//!
//! It is for tests. It keeps what is *visible* and what is *durable* apart, for bytes and for names, and a power loss
//! ([`SimFs::power_loss`]) keeps an arbitrary part of the difference:
//!
//! * each unsynced write is dropped, kept, cut at a byte, kept in some of its 512-byte sectors, or only grows the file with
//!   zeros; each independently of the others and of other files;
//! * each unsynced creation, rename or removal of a name has happened or not, independently of the others;
//! * after a failed sync the bytes that were due are lost for good, although they stay visible: a later sync that succeeds
//!   does not bring them back.
//!
//! A crash can be set at any mutating operation by its number, and so can a failure. Everything is decided by the seeds
//! given: the same calls give the same outcome.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::fs::{Dir, Entry, File, Fs};

const SECTOR: usize = 512;

/// A failure to inject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The volume is full: a write leaves a part behind.
    NoSpace,
    /// An input/output error: a write leaves a part behind, a sync loses what was due.
    Io,
}

/// A simulated file system. Cloning shares it.
#[derive(Clone, Debug)]
pub struct SimFs {
    disk: Arc<Mutex<Disk>>,
}

#[derive(Clone, Debug, Default)]
struct Disk {
    dirs: BTreeMap<PathBuf, Names>,
    inodes: Vec<Inode>,
    mutations: u64,
    syncs: u64,
    crash_at: Option<u64>,
    faults: BTreeMap<u64, Fault>,
    bytes_max: Option<u64>,
    crashed: bool,
    unique: u64,
    random: Random,
}

#[derive(Clone, Debug, Default)]
struct Names {
    visible: BTreeMap<String, usize>,
    durable: BTreeMap<String, usize>,
    pending: Vec<Change>,
}

#[derive(Clone, Debug)]
enum Change {
    Create { name: String, inode: usize },
    Rename { from: String, to: String, inode: usize },
    Remove { name: String, inode: usize },
}

#[derive(Clone, Debug, Default)]
struct Inode {
    visible: Vec<u8>,
    durable: Vec<u8>,
    pending: Vec<(usize, Vec<u8>)>,
}

impl SimFs {
    /// An empty file system.
    pub fn new(seed: u64) -> Self {
        SimFs { disk: Arc::new(Mutex::new(Disk { random: Random(seed), ..Disk::default() })) }
    }

    /// Crash at the mutating operation of this number (the first is 0): it has an effect that may be lost, fails, and so
    /// does everything after it.
    pub fn crash_at(&self, mutation: u64) {
        self.disk().crash_at = Some(mutation);
    }

    /// Fail the mutating operation of this number.
    pub fn fail_at(&self, mutation: u64, fault: Fault) {
        self.disk().faults.insert(mutation, fault);
    }

    /// Bounds the bytes of all files; `None` lifts the bound.
    pub fn set_bytes_max(&self, bytes_max: Option<u64>) {
        self.disk().bytes_max = bytes_max;
    }

    /// Mutating operations so far: writes, syncs, creations, renames, removals.
    pub fn mutations(&self) -> u64 {
        self.disk().mutations
    }

    /// Syncs of files so far.
    pub fn syncs(&self) -> u64 {
        self.disk().syncs
    }

    /// True when the crash that was set has happened.
    pub fn is_crashed(&self) -> bool {
        self.disk().crashed
    }

    /// What a new process finds after this one died and the machine lived on: all that is visible, durable or not.
    pub fn process_death(&self) -> SimFs {
        let mut disk = self.disk().clone();
        disk.restart();
        SimFs { disk: Arc::new(Mutex::new(disk)) }
    }

    /// What a new process finds after the machine lost power: what was durable, and what `seed` makes of the rest.
    pub fn power_loss(&self, seed: u64) -> SimFs {
        let mut disk = self.disk().clone();
        let mut random = Random(seed);
        let mood = Mood::of(&mut random);
        for names in disk.dirs.values_mut() {
            names.lose(mood, &mut random);
        }
        for inode in &mut disk.inodes {
            inode.lose(mood, &mut random);
        }
        disk.restart();
        disk.random = random;
        SimFs { disk: Arc::new(Mutex::new(disk)) }
    }

    /// Changes a byte of a file, visible and durable: bit rot.
    pub fn flip(&self, path: impl AsRef<Path>, offset: u64) {
        let mut disk = self.disk();
        let path = path.as_ref();
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        let inode = path.parent().and_then(|dir| disk.dirs.get(dir)).and_then(|d| d.visible.get(name)).copied();
        let inode = inode.and_then(|i| disk.inodes.get_mut(i));
        let Some(inode) = inode else { unreachable!("no file {}", path.display()) };
        for bytes in [&mut inode.visible, &mut inode.durable] {
            if let Some(byte) = bytes.get_mut(offset as usize) {
                *byte ^= 0x10;
            }
        }
    }

    /// Cuts a file to a length, or grows it with zeros, visible and durable.
    pub fn resize(&self, path: impl AsRef<Path>, len: u64) {
        let mut disk = self.disk();
        let path = path.as_ref();
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        let inode = path.parent().and_then(|dir| disk.dirs.get(dir)).and_then(|d| d.visible.get(name)).copied();
        let inode = inode.and_then(|i| disk.inodes.get_mut(i));
        let Some(inode) = inode else { unreachable!("no file {}", path.display()) };
        inode.visible.resize(len as usize, 0);
        inode.durable.resize(len as usize, 0);
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a power loss treats what was pending, so that the extremes are met often.
#[derive(Clone, Copy, PartialEq)]
enum Mood {
    KeepsNothing,
    KeepsAll,
    Mixed,
}

impl Mood {
    fn of(random: &mut Random) -> Self {
        match random.below(8) {
            0 => Mood::KeepsNothing,
            1 => Mood::KeepsAll,
            _ => Mood::Mixed,
        }
    }

    fn keeps(self, random: &mut Random) -> bool {
        match self {
            Mood::KeepsNothing => false,
            Mood::KeepsAll => true,
            Mood::Mixed => random.below(2) == 1,
        }
    }
}

impl Names {
    /// Applies an arbitrary subset of the pending changes, as far as they make sense without the others.
    fn lose(&mut self, mood: Mood, random: &mut Random) {
        for change in std::mem::take(&mut self.pending) {
            if mood.keeps(random) {
                change.apply(&mut self.durable);
            }
        }
        self.visible = self.durable.clone();
    }
}

impl Change {
    fn apply(&self, names: &mut BTreeMap<String, usize>) {
        match self {
            Change::Create { name, inode } => {
                names.entry(name.clone()).or_insert(*inode);
            }
            Change::Rename { from, to, inode } => {
                // A rename carries the file to its new name, whether or not the old name had become durable.
                if names.get(from) == Some(inode) {
                    names.remove(from);
                }
                names.insert(to.clone(), *inode);
            }
            Change::Remove { name, inode } => {
                if names.get(name) == Some(inode) {
                    names.remove(name);
                }
            }
        }
    }
}

impl Inode {
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        put(&mut self.visible, offset, bytes);
        self.pending.push((offset, bytes.to_vec()));
    }

    fn sync(&mut self) {
        for (offset, bytes) in std::mem::take(&mut self.pending) {
            put(&mut self.durable, offset, &bytes);
        }
    }

    fn lose(&mut self, mood: Mood, random: &mut Random) {
        for (offset, bytes) in std::mem::take(&mut self.pending) {
            let tears = mood == Mood::Mixed && random.below(2) == 0;
            if tears {
                tear(&mut self.durable, offset, &bytes, random);
            } else if mood.keeps(random) {
                put(&mut self.durable, offset, &bytes);
            }
        }
        self.visible = self.durable.clone();
    }
}

/// Keeps a part of a write.
fn tear(file: &mut Vec<u8>, offset: usize, bytes: &[u8], random: &mut Random) {
    let grown = file.len().max(offset + bytes.len());
    match random.below(4) {
        0 => put(file, offset, bytes.get(..random.below(bytes.len() as u64 + 1) as usize).unwrap_or_default()),
        1 => file.resize(grown, 0), // the size reached the disk, the bytes did not
        2 => {
            file.resize(grown, 0);
            let from = random.below(bytes.len() as u64 + 1) as usize;
            put(file, offset + from, bytes.get(from..).unwrap_or_default());
        }
        _ => {
            file.resize(grown, 0);
            let first = SECTOR - offset % SECTOR;
            let (head, rest) = bytes.split_at(first.min(bytes.len()));
            let mut at = offset;
            for sector in std::iter::once(head).chain(rest.chunks(SECTOR)) {
                if random.below(2) == 0 {
                    put(file, at, sector);
                }
                at += sector.len();
            }
        }
    }
}

fn put(file: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    if bytes.is_empty() {
        return;
    }
    let end = offset + bytes.len();
    if file.len() < end {
        file.resize(end, 0);
    }
    if let Some(place) = file.get_mut(offset..end) {
        place.copy_from_slice(bytes);
    }
}

/// What a mutating operation does.
enum Turn {
    /// Goes through.
    Done,
    /// Has (part of) its effect, then fails.
    Fails(Fault),
    /// Has its effect, unsynced, and the machine stops.
    Crashes,
}

impl Disk {
    fn restart(&mut self) {
        self.crashed = false;
        self.crash_at = None;
        self.faults.clear();
        self.mutations = 0;
        self.syncs = 0;
    }

    fn alive(&self) -> io::Result<()> {
        if self.crashed { Err(io::Error::other("the simulated machine has crashed")) } else { Ok(()) }
    }

    fn turn(&mut self) -> io::Result<Turn> {
        self.alive()?;
        let number = self.mutations;
        self.mutations += 1;
        if self.crash_at == Some(number) {
            self.crashed = true;
            return Ok(Turn::Crashes);
        }
        Ok(self.faults.remove(&number).map_or(Turn::Done, Turn::Fails))
    }

    fn names(&mut self, path: &Path) -> io::Result<&mut Names> {
        self.dirs.get_mut(path).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn used(&self) -> u64 {
        let linked: BTreeSet<usize> = self.dirs.values().flat_map(|d| d.visible.values()).copied().collect();
        let len = |i: &usize| self.inodes.get(*i).map_or(0, |inode| inode.visible.len() as u64);
        linked.iter().map(len).sum()
    }

    /// A change of names; refused changes are `Err` already.
    fn change(&mut self, path: &Path, change: Change) -> io::Result<()> {
        let turn = self.turn()?;
        if let Turn::Fails(fault) = turn {
            return Err(fault.error());
        }
        let names = self.names(path)?;
        change.apply(&mut names.visible);
        names.pending.push(change);
        self.alive()
    }
}

impl Fault {
    fn error(self) -> io::Error {
        match self {
            Fault::NoSpace => io::ErrorKind::StorageFull.into(),
            Fault::Io => io::Error::other("simulated input/output error"),
        }
    }
}

impl Fs for SimFs {
    fn open_dir(&self, path: &Path) -> io::Result<Arc<dyn Dir>> {
        let mut disk = self.disk();
        disk.alive()?;
        disk.names(path)?;
        Ok(Arc::new(SimDir { fs: self.clone(), path: path.to_path_buf() }))
    }

    fn create_dir(&self, path: &Path) -> io::Result<Arc<dyn Dir>> {
        {
            let mut disk = self.disk();
            disk.alive()?;
            disk.dirs.entry(path.to_path_buf()).or_default();
        }
        self.open_dir(path)
    }

    fn unique(&self) -> u64 {
        let mut disk = self.disk();
        disk.unique += 1;
        disk.unique
    }
}

#[derive(Debug)]
struct SimDir {
    fs: SimFs,
    path: PathBuf,
}

impl SimDir {
    fn file(&self, inode: usize) -> Arc<dyn File> {
        Arc::new(SimFile { fs: self.fs.clone(), inode })
    }

    fn lookup(&self, disk: &mut Disk, name: &str) -> io::Result<usize> {
        disk.alive()?;
        disk.names(&self.path)?.visible.get(name).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Dir for SimDir {
    fn create_new(&self, name: &str) -> io::Result<Arc<dyn File>> {
        let mut disk = self.fs.disk();
        if self.lookup(&mut disk, name).is_ok() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let inode = disk.inodes.len();
        disk.inodes.push(Inode::default());
        disk.change(&self.path, Change::Create { name: name.to_owned(), inode })?;
        drop(disk);
        Ok(self.file(inode))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        let inode = self.lookup(&mut self.fs.disk(), name)?;
        Ok(self.file(inode))
    }

    fn open_rw(&self, name: &str) -> io::Result<Arc<dyn File>> {
        self.open(name)
    }

    fn exists(&self, name: &str) -> io::Result<bool> {
        let mut disk = self.fs.disk();
        disk.alive()?;
        Ok(self.lookup(&mut disk, name).is_ok())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut disk = self.fs.disk();
        let inode = self.lookup(&mut disk, from)?;
        disk.change(&self.path, Change::Rename { from: from.to_owned(), to: to.to_owned(), inode })
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut disk = self.fs.disk();
        let inode = self.lookup(&mut disk, name)?;
        disk.change(&self.path, Change::Remove { name: name.to_owned(), inode })
    }

    fn list(&self) -> io::Result<Vec<Entry>> {
        let mut disk = self.fs.disk();
        disk.alive()?;
        let visible = disk.names(&self.path)?.visible.clone();
        let len = |inode: usize| disk.inodes.get(inode).map_or(0, |i| i.visible.len() as u64);
        Ok(visible.into_iter().map(|(name, inode)| Entry { name, len: len(inode) }).collect())
    }

    fn sync(&self) -> io::Result<()> {
        let mut disk = self.fs.disk();
        match disk.turn()? {
            Turn::Done => {}
            Turn::Fails(fault) => return Err(fault.error()),
            Turn::Crashes => return disk.alive(),
        }
        let names = disk.names(&self.path)?;
        for change in std::mem::take(&mut names.pending) {
            change.apply(&mut names.durable);
        }
        assert_eq!(names.durable, names.visible, "a synced folder has no pending names");
        Ok(())
    }
}

#[derive(Debug)]
struct SimFile {
    fs: SimFs,
    inode: usize,
}

impl File for SimFile {
    fn write_at(&self, offset: u64, bufs: &mut [IoSlice<'_>]) -> io::Result<()> {
        let bytes: Vec<u8> = bufs.iter().flat_map(|b| b.iter()).copied().collect();
        let mut disk = self.fs.disk();
        let mut turn = disk.turn()?;
        let end = offset + bytes.len() as u64;
        let grows = end.saturating_sub(disk.inodes.get(self.inode).map_or(0, |i| i.visible.len() as u64));
        if disk.bytes_max.is_some_and(|max| disk.used() + grows > max) && grows > 0 {
            turn = Turn::Fails(Fault::NoSpace);
        }
        let kept =
            if matches!(turn, Turn::Fails(_)) { disk.random.below(bytes.len() as u64) as usize } else { bytes.len() };
        if let Some(inode) = disk.inodes.get_mut(self.inode) {
            inode.write(offset as usize, bytes.get(..kept).unwrap_or_default());
        }
        match turn {
            Turn::Fails(fault) => Err(fault.error()),
            Turn::Done | Turn::Crashes => disk.alive(),
        }
    }

    fn read_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let disk = self.fs.disk();
        disk.alive()?;
        let bytes = disk.inodes.get(self.inode).map(|i| i.visible.as_slice()).unwrap_or_default();
        let start = (offset as usize).min(bytes.len());
        let end = start.saturating_add(len).min(bytes.len());
        Ok(bytes.get(start..end).unwrap_or_default().to_vec())
    }

    fn len(&self) -> io::Result<u64> {
        let disk = self.fs.disk();
        disk.alive()?;
        Ok(disk.inodes.get(self.inode).map_or(0, |i| i.visible.len() as u64))
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut disk = self.fs.disk();
        let turn = disk.turn()?;
        disk.syncs += 1;
        let Some(inode) = disk.inodes.get_mut(self.inode) else { return Err(io::ErrorKind::NotFound.into()) };
        match turn {
            Turn::Done => inode.sync(),
            Turn::Fails(fault) => {
                inode.pending.clear(); // marked clean although they never reached the disk
                return Err(fault.error());
            }
            Turn::Crashes => {}
        }
        disk.alive()
    }
}

/// splitmix64 (Steele, Lea, Flood 2014).
#[derive(Clone, Debug, Default)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`; 0 when `n` is 0.
    fn below(&mut self, n: u64) -> u64 {
        self.next().checked_rem(n).unwrap_or(0)
    }
}
