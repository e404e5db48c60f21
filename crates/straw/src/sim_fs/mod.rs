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
//! Several hosts may mount it ([`SimFs::mount`]). Each sees its own bytes at once and those of the others once they are synced;
//! names appear everywhere at once; lengths and removed names may be remembered for a while ([`SimFs::set_stale_ms`], on the
//! simulated clock); one host may be lost with what it had not synced ([`SimFs::host_loss`]), and then its locks stay for as
//! long as its session with the volume's server ([`SimFs::set_lock_session_ms`]).
//!
//! A crash can be set at any mutating operation by its number, and so can a failure. Everything is decided by the seeds
//! given: the same calls give the same outcome.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::fs::{Dir, Entry, File, Fs};

mod inode;
mod loss;
pub(crate) mod random;

use inode::Inode;
use loss::Mood;
use random::Random;

/// A failure to inject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The volume is full: a write leaves a part behind.
    NoSpace,
    /// An input/output error: a write leaves a part behind, a sync loses what was due.
    Io,
}

/// A simulated file system, as one host mounts it. Cloning shares it.
#[derive(Clone)]
pub struct SimFs {
    disk: Arc<Mutex<Disk>>,
    host: u32,
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
    zeros_ahead: u64,
    crashed: bool,
    unique: u64,
    random: Random,
    hosts: u32,
    lost: BTreeSet<u32>,
    blind: BTreeSet<u32>,
    now_ms: u64,
    stale_ms: u64,
    /// What hosts remember of files and names, and since when.
    lens: BTreeMap<(u32, usize), (usize, u64)>,
    entries: BTreeMap<(u32, PathBuf, String), (usize, u64)>,
    /// Locks on files: the host and the handle that have them.
    locks: BTreeMap<usize, (u32, u64)>,
    handles: u64,
    lock_session_ms: u64,
    locks_unknown: bool,
    lost_ms: BTreeMap<u32, u64>,
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

impl std::fmt::Debug for SimFs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SimFs of host {}", self.host)
    }
}

impl SimFs {
    /// An empty file system.
    pub fn new(seed: u64) -> Self {
        SimFs { disk: Arc::new(Mutex::new(Disk { random: Random::new(seed), ..Disk::default() })), host: 0 }
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

    /// Sets what files say of themselves ([`File::zeros_ahead`]); 0 at first.
    pub fn set_zeros_ahead(&self, bytes: u64) {
        self.disk().zeros_ahead = bytes;
    }

    /// Mutating operations so far: writes, syncs, creations, renames, removals.
    pub fn mutations(&self) -> u64 {
        self.disk().mutations
    }

    /// True when neither the machine nor this host has stopped.
    pub fn is_alive(&self) -> bool {
        self.disk().alive(self.host).is_ok()
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
        SimFs { disk: Arc::new(Mutex::new(disk)), host: self.host }
    }

    /// What a new process finds after the machine lost power: what was durable, and what `seed` makes of the rest.
    pub fn power_loss(&self, seed: u64) -> SimFs {
        let mut disk = self.disk().clone();
        let random = Random::new(seed);
        let mood = Mood::of(&random);
        for names in disk.dirs.values_mut() {
            names.lose(mood, &random);
        }
        for inode in &mut disk.inodes {
            inode.lose(mood, &random);
        }
        disk.restart();
        disk.random = random;
        SimFs { disk: Arc::new(Mutex::new(disk)), host: self.host }
    }

    /// Another host's mount of the same volume.
    pub fn mount(&self) -> SimFs {
        let mut disk = self.disk();
        disk.hosts += 1;
        SimFs { disk: self.disk.clone(), host: disk.hosts }
    }

    /// The host stops at once: what it had not synced is kept or lost as `seed` says, and its handles answer nothing but errors.
    /// Names that it changed stay, since the volume's own server has them.
    pub fn host_loss(&self, seed: u64) {
        let mut disk = self.disk();
        let random = Random::new(seed);
        let mood = Mood::of(&random);
        let host = self.host;
        disk.inodes.iter_mut().for_each(|inode| inode.lose_of(host, mood, &random));
        disk.lost.insert(host);
        let now_ms = disk.now_ms;
        disk.lost_ms.insert(host, now_ms);
    }

    /// The machine stops now: every operation fails from here on, as after [`SimFs::crash_at`].
    pub fn crash_now(&self) {
        self.disk().crashed = true;
    }

    /// The next operation of this host that only looks (read, open, list, exists) fails with an input/output error.
    pub fn fail_next_look(&self) {
        let mut disk = self.disk();
        disk.blind.insert(self.host);
    }

    /// Forgets the failures that were set and have not happened.
    pub fn clear_faults(&self) {
        let mut disk = self.disk();
        disk.faults.clear();
        disk.blind.clear();
    }

    /// The system writes back some bytes that nobody has synced yet.
    pub fn write_back(&self, seed: u64) {
        let mut disk = self.disk();
        let random = Random::new(seed);
        let dirty: Vec<usize> =
            disk.inodes.iter().enumerate().filter(|(_, i)| !i.pending.is_empty()).map(|(at, _)| at).collect();
        if let Some(inode) = random.pick(&dirty).and_then(|at| disk.inodes.get_mut(*at)) {
            inode.write_back(random.next() as usize);
        }
    }

    /// Lets a host remember for this long the length of a file it has looked at, and a name that was removed since. Opening a
    /// file asks anew, and a missing name is never remembered.
    pub fn set_stale_ms(&self, stale_ms: u64) {
        self.disk().stale_ms = stale_ms;
    }

    /// How long the locks of a lost host stay.
    pub fn set_lock_session_ms(&self, session_ms: u64) {
        self.disk().lock_session_ms = session_ms;
    }

    /// Whether folders say that locks are shared by all hosts ([`Dir::locks_are_shared`]); they do at first.
    pub fn set_locks_shared(&self, shared: bool) {
        self.disk().locks_unknown = !shared;
    }

    /// This host loses its locks without being told: it was frozen for longer than its session.
    pub fn lose_locks(&self) {
        let host = self.host;
        self.disk().locks.retain(|_, (of, _)| *of != host);
    }

    /// True when both are handles of one host.
    pub fn is_host_of(&self, other: &SimFs) -> bool {
        self.host == other.host
    }

    /// Lets simulated time pass.
    pub fn advance(&self, ms: u64) {
        self.disk().now_ms += ms;
    }

    /// The simulated clock.
    pub fn now_ms(&self) -> u64 {
        self.disk().now_ms
    }

    /// Changes a byte of a file, visible and durable: bit rot.
    pub fn flip(&self, path: impl AsRef<Path>, offset: u64) {
        self.edit(path.as_ref(), |bytes| {
            if let Some(byte) = bytes.get_mut(offset as usize) {
                *byte ^= 0x10;
            }
        });
    }

    /// Cuts a file to a length, or grows it with zeros, visible and durable.
    pub fn resize(&self, path: impl AsRef<Path>, len: u64) {
        self.edit(path.as_ref(), |bytes| bytes.resize(len as usize, 0));
    }

    fn edit(&self, path: &Path, change: impl Fn(&mut Vec<u8>)) {
        let mut disk = self.disk();
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        let inode = path.parent().and_then(|dir| disk.dirs.get(dir)).and_then(|d| d.visible.get(name)).copied();
        let Some(inode) = inode.and_then(|i| disk.inodes.get_mut(i)) else {
            unreachable!("no file {}", path.display())
        };
        inode.everywhere(change);
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
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
        self.lens.clear();
        self.entries.clear();
        self.locks.clear();
    }

    fn alive(&self, host: u32) -> io::Result<()> {
        let gone = self.crashed || self.lost.contains(&host);
        if gone { Err(io::Error::other("the simulated machine has crashed")) } else { Ok(()) }
    }

    /// As [`Disk::alive`], for operations that change nothing.
    fn looks(&mut self, host: u32) -> io::Result<()> {
        self.alive(host)?;
        if self.blind.remove(&host) { Err(Fault::Io.error()) } else { Ok(()) }
    }

    /// The inode a name leads a host to: what it remembers of it, or what the folder says.
    fn entry(&mut self, host: u32, path: &Path, name: &str) -> io::Result<Option<usize>> {
        let actual = self.names(path)?.visible.get(name).copied();
        if self.stale_ms == 0 {
            return Ok(actual);
        }
        let (now_ms, key) = (self.now_ms, (host, path.to_path_buf(), name.to_owned()));
        match self.entries.get(&key) {
            Some((inode, since)) if now_ms < since + self.stale_ms => return Ok(Some(*inode)),
            _ => self.entries.remove(&key),
        };
        if let Some(inode) = actual {
            self.entries.insert(key, (inode, now_ms));
        }
        Ok(actual)
    }

    /// The length a host sees; `fresh` asks the volume.
    fn len_for(&mut self, host: u32, inode: usize, fresh: bool) -> usize {
        let actual = self.inodes.get(inode).map_or(0, |i| i.seen_by(host).len());
        if self.stale_ms == 0 {
            return actual;
        }
        let now_ms = self.now_ms;
        match self.lens.get(&(host, inode)) {
            Some((len, since)) if !fresh && now_ms < since + self.stale_ms => *len,
            _ => {
                self.lens.insert((host, inode), (actual, now_ms));
                actual
            }
        }
    }

    /// Takes a lock that nobody has, or that ends with the session of a lost host.
    fn lock(&mut self, inode: usize, host: u32, handle: u64) -> bool {
        let held = self.locks.get(&inode).is_some_and(|(of, by)| {
            let ended = self.lost_ms.get(of).is_some_and(|since| self.now_ms >= since + self.lock_session_ms);
            *by != handle && !ended
        });
        if !held {
            self.locks.insert(inode, (host, handle));
        }
        !held
    }

    fn turn(&mut self, host: u32) -> io::Result<Turn> {
        self.alive(host)?;
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
        let len = |i: &usize| self.inodes.get(*i).map_or(0, |inode| inode.len_max() as u64);
        linked.iter().map(len).sum()
    }

    /// A change of names; refused changes are `Err` already.
    fn change(&mut self, host: u32, path: &Path, change: Change) -> io::Result<()> {
        let turn = self.turn(host)?;
        if let Turn::Fails(fault) = turn {
            return Err(fault.error());
        }
        let names = self.names(path)?;
        change.apply(&mut names.visible);
        if self.stale_ms > 0 {
            let (Change::Create { name, .. } | Change::Rename { to: name, .. } | Change::Remove { name, .. }) = &change;
            self.entries.remove(&(host, path.to_path_buf(), name.clone())); // a host knows its own changes
        }
        let names = self.names(path)?;
        names.pending.push(change);
        self.alive(host)
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
        disk.alive(self.host)?;
        disk.names(path)?;
        Ok(Arc::new(SimDir { fs: self.clone(), path: path.to_path_buf() }))
    }

    fn create_dir(&self, path: &Path) -> io::Result<Arc<dyn Dir>> {
        {
            let mut disk = self.disk();
            disk.alive(self.host)?;
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
    fn file(&self, disk: &mut Disk, inode: usize) -> Arc<dyn File> {
        let told = disk.inodes.get(inode).map_or(0, |i| i.failures(self.fs.host));
        disk.handles += 1;
        Arc::new(SimFile { fs: self.fs.clone(), inode, handle: disk.handles, told: AtomicU64::new(told) })
    }

    /// The file that a name leads to; a remembered one that is not the name's any more is not there.
    fn lookup(&self, disk: &mut Disk, name: &str) -> io::Result<usize> {
        disk.alive(self.fs.host)?;
        let remembered = disk.entry(self.fs.host, &self.path, name)?;
        let actual = disk.names(&self.path)?.visible.get(name).copied();
        actual.filter(|inode| remembered == Some(*inode)).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Dir for SimDir {
    fn create_new(&self, name: &str) -> io::Result<Arc<dyn File>> {
        let mut disk = self.fs.disk();
        disk.alive(self.fs.host)?;
        if disk.names(&self.path)?.visible.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let inode = disk.inodes.len();
        disk.inodes.push(Inode::default());
        disk.change(self.fs.host, &self.path, Change::Create { name: name.to_owned(), inode })?;
        Ok(self.file(&mut disk, inode))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        let mut disk = self.fs.disk();
        disk.looks(self.fs.host)?;
        let inode = self.lookup(&mut disk, name)?;
        disk.len_for(self.fs.host, inode, true);
        Ok(self.file(&mut disk, inode))
    }

    fn open_rw(&self, name: &str) -> io::Result<Arc<dyn File>> {
        self.open(name)
    }

    fn exists(&self, name: &str) -> io::Result<bool> {
        let mut disk = self.fs.disk();
        disk.looks(self.fs.host)?;
        Ok(disk.entry(self.fs.host, &self.path, name)?.is_some())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut disk = self.fs.disk();
        let inode = self.lookup(&mut disk, from)?;
        disk.change(self.fs.host, &self.path, Change::Rename { from: from.to_owned(), to: to.to_owned(), inode })
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut disk = self.fs.disk();
        let inode = self.lookup(&mut disk, name)?;
        disk.change(self.fs.host, &self.path, Change::Remove { name: name.to_owned(), inode })
    }

    fn list(&self) -> io::Result<Vec<Entry>> {
        let mut disk = self.fs.disk();
        disk.looks(self.fs.host)?;
        let visible = disk.names(&self.path)?.visible.clone();
        let mut len = |inode: usize| disk.len_for(self.fs.host, inode, false) as u64;
        Ok(visible.into_iter().map(|(name, inode)| Entry { len: len(inode), name }).collect())
    }

    fn sync(&self) -> io::Result<()> {
        let mut disk = self.fs.disk();
        match disk.turn(self.fs.host)? {
            Turn::Done => {}
            Turn::Fails(fault) => return Err(fault.error()),
            Turn::Crashes => return disk.alive(self.fs.host),
        }
        let names = disk.names(&self.path)?;
        for change in std::mem::take(&mut names.pending) {
            change.apply(&mut names.durable);
        }
        assert_eq!(names.durable, names.visible, "a synced folder has no pending names");
        Ok(())
    }

    fn locks_are_shared(&self) -> bool {
        !self.fs.disk().locks_unknown
    }
}

#[derive(Debug)]
struct SimFile {
    fs: SimFs,
    inode: usize,
    handle: u64,
    /// Failed syncs of the file that this handle has been told of.
    told: AtomicU64,
}

impl File for SimFile {
    fn write_at(&self, offset: u64, bufs: &mut [IoSlice<'_>]) -> io::Result<()> {
        let bytes: Vec<u8> = bufs.iter().flat_map(|b| b.iter()).copied().collect();
        let mut disk = self.fs.disk();
        let host = self.fs.host;
        let mut turn = disk.turn(host)?;
        let end = offset + bytes.len() as u64;
        let grows = end.saturating_sub(disk.inodes.get(self.inode).map_or(0, |i| i.len_max() as u64));
        if disk.bytes_max.is_some_and(|max| disk.used() + grows > max) && grows > 0 {
            turn = Turn::Fails(Fault::NoSpace);
        }
        let kept =
            if matches!(turn, Turn::Fails(_)) { disk.random.below(bytes.len() as u64) as usize } else { bytes.len() };
        if let Some(inode) = disk.inodes.get_mut(self.inode) {
            inode.write(host, offset as usize, bytes.get(..kept).unwrap_or_default());
        }
        disk.len_for(host, self.inode, true);
        match turn {
            Turn::Fails(fault) => Err(fault.error()),
            Turn::Done | Turn::Crashes => disk.alive(host),
        }
    }

    fn read_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut disk = self.fs.disk();
        disk.looks(self.fs.host)?;
        let known = disk.len_for(self.fs.host, self.inode, false);
        let bytes = disk.inodes.get(self.inode).map(|i| i.seen_by(self.fs.host)).unwrap_or_default();
        let known = known.min(bytes.len());
        let start = (offset as usize).min(known);
        let end = start.saturating_add(len).min(known);
        Ok(bytes.get(start..end).unwrap_or_default().to_vec())
    }

    fn len(&self) -> io::Result<u64> {
        let mut disk = self.fs.disk();
        disk.alive(self.fs.host)?;
        Ok(disk.len_for(self.fs.host, self.inode, false) as u64)
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut disk = self.fs.disk();
        let host = self.fs.host;
        let turn = disk.turn(host)?;
        disk.syncs += 1;
        let Some(inode) = disk.inodes.get_mut(self.inode) else { return Err(io::ErrorKind::NotFound.into()) };
        if self.told.swap(inode.failures(host), Ordering::Relaxed) < inode.failures(host) {
            return Err(Fault::Io.error()); // another handle's failed sync, of this file's bytes too
        }
        match turn {
            Turn::Done => inode.sync(host),
            Turn::Fails(fault) => {
                inode.doom(host);
                self.told.store(inode.failures(host), Ordering::Relaxed);
                return Err(fault.error());
            }
            Turn::Crashes => {}
        }
        disk.alive(host)
    }

    fn zeros_ahead(&self) -> u64 {
        self.fs.disk().zeros_ahead
    }

    fn try_lock(&self) -> io::Result<bool> {
        let mut disk = self.fs.disk();
        disk.looks(self.fs.host)?;
        Ok(disk.lock(self.inode, self.fs.host, self.handle))
    }
}

/// Closing a file frees its lock, unless its host is gone: then the session's end does.
impl Drop for SimFile {
    fn drop(&mut self) {
        let mut disk = self.fs.disk();
        let host = self.fs.host;
        if disk.alive(host).is_ok() && disk.locks.get(&self.inode) == Some(&(host, self.handle)) {
            disk.locks.remove(&self.inode);
        }
    }
}
