//! What those who share a folder of packs must know of one another: which era it is, and which queues use it.
//!
//! ```text
//! packs/pool/era-N             era N has begun: packs made from now on carry it in their names
//! packs/pool/queue-NAME        the queue NAME uses the pool
//! packs/pool/left-NAME         ... and does not any more; nobody uses the name again
//! packs/pool/gone-UNIQUE-NAME  packs that NAME gave up and whose files were there
//! ```
//!
//! # The rule of removal
//!
//! A pack's file goes only when every queue of the pool has given it up in its own journal. What a queue gave up it can never
//! refer to again, and no name is used twice, so a `gone` file is true for ever, however old: reading an outdated one, a torn one
//! (its checksum fails) or none keeps files and loses nothing. A queue registers, durably, before it refers to anything; a fork
//! registers before the queue that it came from ends its hold ([`crate::Queue::end_hold`]). Whoever removes reads the `gone`
//! files *before* it lists the queues for good (a folder's listing is no snapshot): a queue that is missing in that later list
//! registered after it, so what it refers to was held, by a queue that had not yet given it up, when the `gone` files were read.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, IoSlice};
use std::sync::Arc;

use crate::frame::{self, Salt};
use crate::fs::{Dir, Entry};
use crate::inspect::QueueReport;
use crate::limits::{HEADER_BYTES_MAX, OWNER_BYTES_MAX, name as check_name};
use crate::pack;
use crate::store::Store;
use crate::{Error, Result};

/// The queue whose journal lies beside the packs, where nothing says otherwise.
pub const MAIN: &str = "main";

const FOLDER: &str = "pool";
const MAGIC: [u8; 4] = *b"SGON";

/// A file of the pool's folder.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Name<'a> {
    Era(u32),
    Queue(&'a str),
    Left(&'a str),
    Gone(&'a str),
}

impl<'a> Name<'a> {
    fn parse(file: &'a str) -> Option<Self> {
        let (kind, rest) = file.split_once('-')?;
        match kind {
            "era" if rest.len() == 8 => u32::from_str_radix(rest, 16).ok().map(Name::Era),
            "queue" => Some(Name::Queue(rest)),
            "left" => Some(Name::Left(rest)),
            "gone" => rest.split_once('-').map(|(_, queue)| Name::Gone(queue)),
            _ => None,
        }
    }
}

fn era_file(era: u32) -> String {
    format!("era-{era:08x}")
}

/// A queue's place in a pool; see [`Store::register`].
#[derive(Clone, Debug)]
pub struct Member {
    store: Store,
    dir: Arc<dyn Dir>,
    queue: String,
}

impl Store {
    /// Enters a queue as one that uses this pool, durably; that it was entered before is no error. Do this before the queue's
    /// journal may refer to a pack here, and (for a fork) before the queue that it came from ends its hold.
    ///
    /// # Errors
    /// [`Error::QueueLeft`] when a queue of this name has left; [`Error::BadName`], [`Error::Io`], [`Error::OutOfSpace`].
    pub fn register(&self, queue: &str) -> Result<Member> {
        check_name("queue", queue, OWNER_BYTES_MAX)?;
        let path = self.inner.path.join(FOLDER);
        let dir = self.inner.fs.create_dir(&path).map_err(|e| Error::io("create", path.display().to_string(), e))?;
        let file = format!("queue-{queue}");
        let io = |e| Error::io("register", &file, e);
        let left = || dir.exists(&format!("left-{queue}")).map_err(io);
        if left()? {
            return Err(Error::QueueLeft { queue: queue.to_owned() });
        }
        match dir.create_new(&file) {
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            Err(e) => return Err(io(e)),
        }
        dir.sync().map_err(io)?;
        if left()? {
            // It left meanwhile, and this made its name anew.
            let _ = dir.remove(&file);
            return Err(Error::QueueLeft { queue: queue.to_owned() });
        }
        Ok(Member { store: self.clone(), dir, queue: queue.to_owned() })
    }

    /// The pool's folder, where there is one.
    fn pool(&self) -> Result<Option<Arc<dyn Dir>>> {
        open(&*self.inner.fs, &self.inner.path)
    }

    /// The era that a new pack is of.
    pub(crate) fn era(&self) -> Result<u32> {
        match self.pool()? {
            Some(dir) => Ok(latest_era(&list(&*dir)?)),
            None => Ok(0),
        }
    }

    /// Makes every era durable that a pack seen before this call was made in.
    pub(crate) fn settle_era(&self) -> Result<()> {
        match self.pool()? {
            Some(dir) => dir.sync().map_err(|e| Error::io("sync", FOLDER, e)),
            None => Ok(()),
        }
    }
}

impl Member {
    /// The queue's name.
    pub fn queue(&self) -> &str {
        &self.queue
    }

    /// Removes the files of packs that this queue gave up and every other queue of the pool, too, those of an interrupted
    /// removal included; tells the others which ones it gave up. Gives the bytes freed.
    ///
    /// What is passed must be durable in the queue's journal: pass [`crate::Queue::retired`] once that is so.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::OutOfSpace`]: some files may be gone, and the same call does the rest.
    pub fn remove(&self, retired: &BTreeSet<String>) -> Result<u64> {
        let files = self.store.list()?;
        let retired_file = |e: &&Entry| pack::of_file(&e.name).is_some_and(|name| retired.contains(name));
        let mine: Vec<&Entry> = files.iter().filter(retired_file).collect();
        let pool = Pool::read(&*self.dir)?;
        if !pool.queues.contains(&self.queue) {
            // A list without the one who asks is no list of all (or it has left, and removes nothing).
            tracing::warn!(queue = self.queue, "the pool's folder does not show this queue: no pack is removed");
            return Ok(0);
        }
        let names: BTreeSet<String> = mine.iter().filter_map(|e| pack::of_file(&e.name)).map(str::to_owned).collect();
        self.tell(&pool, &names)?;
        let free: Vec<&Entry> = mine.into_iter().filter(|e| pool.is_free(&e.name, Some(&self.queue))).collect();
        // Only now: see the module's head.
        if free.is_empty() || !pool.has_all(&Pool::read(&*self.dir)?) {
            return Ok(0);
        }
        let mut freed = 0;
        for entry in &free {
            match self.store.inner.dir.remove(&entry.name) {
                Ok(()) => freed += entry.len,
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                Err(e) => return Err(Error::io("remove", &entry.name, e)),
            }
            pack::of_file(&entry.name).iter().for_each(|name| self.store.forget(name));
        }
        self.store.inner.dir.sync().map_err(|e| Error::io("sync", self.store.dir_name(), e))?;
        let newest = free.iter().filter_map(|e| pack::of_file(&e.name)).map(pack::era_of).max().unwrap_or(0);
        self.raise_era(newest.saturating_add(1))?;
        Ok(freed)
    }

    /// Leaves the pool for good: the queue's journal is not used any more, and no fork of it is being made. Its packs are the
    /// other queues' to give up.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::OutOfSpace`]: it may have left or not; call again.
    pub fn leave(self) -> Result<()> {
        let io = |e| Error::io("leave", FOLDER, e);
        match self.dir.rename(&format!("queue-{}", self.queue), &format!("left-{}", self.queue)) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(io(e)),
            _ => {}
        }
        self.dir.sync().map_err(io)?;
        for entry in list(&*self.dir)?.iter().filter(|e| Name::parse(&e.name) == Some(Name::Gone(&self.queue))) {
            let _ = self.dir.remove(&entry.name); // a name that is not used again needs none; one left behind harms nobody
        }
        Ok(())
    }

    /// Begins the era `to`, durably, if it is not there yet.
    fn raise_era(&self, to: u32) -> Result<()> {
        let before = list(&*self.dir)?;
        if latest_era(&before) >= to {
            return Ok(());
        }
        let file = era_file(to);
        match self.dir.create_new(&file) {
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            Err(e) => return Err(Error::io("create", file, e)),
        }
        self.dir.sync().map_err(|e| Error::io("sync", FOLDER, e))?;
        for entry in before.iter().filter(|e| matches!(Name::parse(&e.name), Some(Name::Era(_)))) {
            let _ = self.dir.remove(&entry.name); // they say nothing any more
        }
        Ok(())
    }

    /// Tells the others what this queue gave up. Alone in the pool it has nobody to tell.
    fn tell(&self, pool: &Pool, names: &BTreeSet<String>) -> Result<()> {
        let told = pool.gone.get(&self.queue).is_some_and(|told| names.is_subset(told));
        let alone = pool.queues.iter().all(|queue| *queue == self.queue);
        if !(told || alone || names.is_empty()) {
            let file = format!("gone-{:016x}-{}", self.store.inner.fs.unique(), self.queue);
            let (bytes, _) = frame::encode(MAGIC, &Salt { file: &file, offset: 0 }, names);
            let made = self.dir.create_new(&file);
            let written = made.and_then(|made| {
                made.write_at(0, &mut [IoSlice::new(&bytes)])?;
                made.sync_data()?; // not for its own sake: others see it once it is synced
                self.dir.sync()
            });
            written.map_err(|e| Error::io("write", file, e))?;
        } else if !names.is_empty() {
            return Ok(());
        }
        for file in pool.gone_files.iter().filter(|file| Name::parse(file) == Some(Name::Gone(&self.queue))) {
            let _ = self.dir.remove(file); // the new one says it all
        }
        Ok(())
    }
}

/// What a pool's folder said.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    queues: BTreeSet<String>,
    left: BTreeSet<String>,
    gone: BTreeMap<String, BTreeSet<String>>,
    gone_files: Vec<String>,
}

impl Pool {
    /// Reads the pool of the packs in `packs`.
    pub(crate) fn of(fs: &dyn crate::fs::Fs, packs: &std::path::Path) -> Result<Self> {
        open(fs, packs)?.map_or_else(|| Ok(Pool::default()), |dir| Self::read(&*dir))
    }

    fn read(dir: &dyn Dir) -> Result<Self> {
        let mut pool = Pool::default();
        for entry in list(dir)? {
            match Name::parse(&entry.name) {
                Some(Name::Queue(queue)) => drop(pool.queues.insert(queue.to_owned())),
                Some(Name::Left(queue)) => drop(pool.left.insert(queue.to_owned())),
                Some(Name::Gone(queue)) => {
                    pool.gone_files.push(entry.name.clone());
                    pool.gone.entry(queue.to_owned()).or_default().extend(gone(dir, &entry.name)?);
                }
                _ => {}
            }
        }
        // Both names are there when someone died who registered the queue while it left.
        pool.queues = &pool.queues - &pool.left;
        Ok(pool)
    }

    /// Each queue, and what it gave up.
    pub(crate) fn report(&self) -> Vec<QueueReport> {
        let of = |name: &String, left| {
            let gave_up = self.gone.get(name).cloned().unwrap_or_default();
            QueueReport { name: name.clone(), left, gave_up }
        };
        let mut all: Vec<QueueReport> = self.queues.iter().map(|name| of(name, false)).collect();
        all.extend(self.left.iter().map(|name| of(name, true)));
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// True when every queue, but for `but`, has given up the pack in this file.
    pub(crate) fn is_free(&self, file: &str, but: Option<&str>) -> bool {
        let Some(name) = pack::of_file(file) else { return false };
        let others = self.queues.iter().filter(|queue| Some(queue.as_str()) != but);
        others.into_iter().all(|queue| self.gone.get(queue).is_some_and(|gone| gone.contains(name)))
    }

    /// True when every queue of a later look was known to this one.
    pub(crate) fn has_all(&self, later: &Pool) -> bool {
        later.queues.is_subset(&self.queues)
    }
}

fn open(fs: &dyn crate::fs::Fs, packs: &std::path::Path) -> Result<Option<Arc<dyn Dir>>> {
    let path = packs.join(FOLDER);
    match fs.open_dir(&path) {
        Ok(dir) => Ok(Some(dir)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Error::io("open", path.display().to_string(), e)),
    }
}

fn list(dir: &dyn Dir) -> Result<Vec<Entry>> {
    dir.list().map_err(|e| Error::io("list", FOLDER, e))
}

fn latest_era(entries: &[Entry]) -> u32 {
    let eras = entries.iter().filter_map(|e| match Name::parse(&e.name) {
        Some(Name::Era(era)) => Some(era),
        _ => None,
    });
    eras.max().unwrap_or(0)
}

/// The packs in a `gone` file; none when it is torn, or not visible yet.
pub(crate) fn gone(dir: &dyn Dir, file: &str) -> Result<BTreeSet<String>> {
    let io = |e| Error::io("read", file, e);
    let open = match dir.open(file) {
        Ok(open) => open,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(BTreeSet::new()), // there is a newer one
        Err(e) => return Err(io(e)),
    };
    let len = open.len().map_err(io)?.min(HEADER_BYTES_MAX);
    let bytes = open.read_at(0, usize::try_from(len).unwrap_or(usize::MAX)).map_err(io)?;
    let decoded = frame::decode::<BTreeSet<String>>(MAGIC, &Salt { file, offset: 0 }, &bytes);
    Ok(decoded.map(|frame| frame.body).unwrap_or_default())
}
