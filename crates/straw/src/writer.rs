//! A writer: appends extents to a pack of its own. Concurrent publishes write side by side and share one sync.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::compression::Compression;
use crate::durability::Durability;
use crate::extent::Encoded;
use crate::fs::File;
use crate::group::{Group, let_join};
use crate::laid::Laid;
use crate::limits::RECEIPTS_MAX;
use crate::pack::{self, Footer, file_name};
use crate::record::Record;
use crate::store::Store;
use crate::update::Update;
use crate::{Error, Ref, Result};

/// Publishes records. May be shared by any number of threads.
#[derive(Debug)]
pub struct Writer {
    store: Store,
    owner: String,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    pack: Option<Arc<OpenPack>>,
    receipts: HashMap<String, Vec<Ref>>,
    receipt_order: VecDeque<String>,
}

impl Writer {
    pub(crate) fn new(store: Store, owner: &str) -> Self {
        Writer { store, owner: owner.to_owned(), state: Mutex::default() }
    }

    /// The owner's name.
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// Name of the pack being written, if there is one: it must not be taken for an abandoned one.
    pub fn pack(&self) -> Option<String> {
        self.state().pack.as_ref().map(|p| p.name.clone())
    }

    /// Publishes records as one extent: all of them are there after a crash, or none. They are as durable as the store's
    /// [`crate::Options::durability`] says when this returns, and readable by everyone.
    ///
    /// `submission` names the call for a retry: the same id with the same content gives the same references again and
    /// writes nothing; with other content it is refused ([`Error::SubmissionConflict`]). After an error the call may be
    /// repeated; what a failed call left in the pack is never referred to.
    pub fn publish(&self, submission: &str, records: &[Record]) -> Result<Vec<Ref>> {
        let laid: Result<Vec<Laid<'_>>> = records.iter().map(|record| Laid::of(record, self.compression())).collect();
        self.publish_laid(submission, laid?)
    }

    /// Publishes records that are made of older ones, as [`Writer::publish`] publishes whole ones: of what did not change nothing is
    /// written. To be kept (retained, completed, ...) before the packs that they share blocks of are collected: after that the queue
    /// refuses them ([`crate::queue::Refused::PackRetired`]), and they must be published whole.
    ///
    /// # Errors
    /// As [`Writer::publish`]; as [`Store::read_rows`] for blocks that lie in too many packs to be shared; [`Error::PackMissing`] when
    /// the older record is of another store.
    pub fn publish_updates(&self, submission: &str, updates: &[Update]) -> Result<Vec<Ref>> {
        let mut laid = Vec::with_capacity(updates.len());
        for update in updates {
            let one = update.lay(self.compression())?;
            if let Some(share) = one.slot.shares.first()
                && !self.store.is_same_folder(update.store())
            {
                return Err(Error::PackMissing { pack: share.pack.clone(), dir: self.store.dir_name() });
            }
            laid.push(one);
        }
        self.publish_laid(submission, laid)
    }

    fn compression(&self) -> Compression {
        self.store.inner.options.compression
    }

    pub(crate) fn publish_laid(&self, submission: &str, laid: Vec<Laid<'_>>) -> Result<Vec<Ref>> {
        let extent = Encoded::new(submission, laid)?;
        let (pack, place, full) = match self.reserve(submission, &extent)? {
            Reserved::Known(refs) => return Ok(refs),
            Reserved::Place { pack, place, full } => (pack, place, full),
        };
        let published = pack.append(place, submission, extent, self.store.inner.options.durability);
        if let Some(full) = full {
            full.seal();
        }
        let refs = published?;
        self.remember(submission, &refs);
        Ok(refs)
    }

    /// Seals the current pack, so that it can be collected once nothing refers to it. The next publish begins another.
    pub fn seal(&self) {
        let pack = self.state().pack.take();
        if let Some(pack) = pack {
            pack.seal();
        }
    }

    /// The queue refused a reference because its pack, or one that it shares blocks of, was collected: forgets the pack and the
    /// receipts that need it, so that the same submission can be published again, into another pack and whole.
    pub fn retired(&self, pack: &str) {
        let mut state = self.state();
        if state.pack.as_ref().is_some_and(|p| p.name == pack) {
            state.pack = None;
        }
        state.receipts.retain(|_, refs| !refs.iter().any(|r| r.needs(pack)));
        let State { receipts, receipt_order, .. } = &mut *state;
        receipt_order.retain(|submission| receipts.contains_key(submission));
    }

    /// A place for the extent in a pack with room for it; or what this submission was published as before.
    fn reserve(&self, submission: &str, extent: &Encoded<'_>) -> Result<Reserved> {
        let target = self.store.inner.options.pack_bytes_target;
        let mut state = self.state();
        if let Some(refs) = state.receipts.get(submission) {
            let conflict = || Error::SubmissionConflict { submission: submission.to_owned() };
            return if extent.same_content(refs) { Ok(Reserved::Known(refs.clone())) } else { Err(conflict()) };
        }
        if let Some(pack) = &state.pack
            && let Some(place) = pack.reserve(extent.len, target)
        {
            return Ok(Reserved::Place { pack: pack.clone(), place, full: None });
        }
        let pack = Arc::new(OpenPack::create(&self.store, &self.owner)?);
        let full = state.pack.replace(pack.clone());
        let place = pack.reserve(extent.len, u64::MAX).ok_or_else(|| pack.poisoned())?;
        Ok(Reserved::Place { pack, place, full })
    }

    fn remember(&self, submission: &str, refs: &[Ref]) {
        let (name, refs) = (submission.to_owned(), refs.to_vec());
        let mut state = self.state();
        if state.receipts.insert(name.clone(), refs).is_none() {
            state.receipt_order.push_back(name);
        }
        if state.receipt_order.len() > RECEIPTS_MAX
            && let Some(oldest) = state.receipt_order.pop_front()
        {
            state.receipts.remove(&oldest);
        }
        assert!(state.receipts.len() <= RECEIPTS_MAX, "receipts are bounded");
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a submission is given.
enum Reserved {
    /// The references that it had before.
    Known(Vec<Ref>),
    Place {
        pack: Arc<OpenPack>,
        place: Place,
        /// The pack that was full, to be sealed.
        full: Option<Arc<OpenPack>>,
    },
}

/// Where an extent goes, and below which offset all others were settled by then.
struct Place {
    offset: u64,
    settled_below: u64,
}

/// A pack being written.
#[derive(Debug)]
struct OpenPack {
    name: String,
    file: Arc<dyn File>,
    tail: Mutex<Tail>,
    /// Told when a sync is over, for the one who makes the next.
    turn: Condvar,
    /// Told when no append is in flight.
    idle: Condvar,
}

/// Extents up to this length are copied and written by whoever makes the sync, all in one gathered write: of threads that write
/// to one file at once all but one sleep, and to wake each costs more than to copy its bytes. 32 publishers of 4 KiB, by turns in
/// one run: 0.33x to 0.48x of as many threads with a file each when each wrote its own; see `publish_4k_32callers` of the bench.
const GATHERED_BYTES_MAX: u64 = 64 << 10;

/// Appends that share a sync, and how it went.
type Synced = Group<std::result::Result<(), io::ErrorKind>>;

#[derive(Debug)]
struct Tail {
    /// Offset of the next extent.
    next: u64,
    /// Offsets of appends that have a place and have not returned.
    in_flight: BTreeSet<u64>,
    /// The first append that returned without being durable.
    lost_from: u64,
    /// Appends whose bytes are written, or handed in to be, since the last sync began: the next one covers them, and the first of
    /// them makes it.
    group: Arc<Synced>,
    joined: Vec<pack::Slot>,
    /// Bytes of those of them that are still to be written, by offset.
    gathered: BTreeMap<u64, Vec<u8>>,
    /// How many the last sync covered: as many will likely come again.
    covered_count: u64,
    syncing: bool,
    /// A write or a sync failed: the file's state is unknown and nothing is added to it any more.
    failed: Option<io::ErrorKind>,
    footer: Footer,
}

impl Tail {
    fn new(next: u64) -> Self {
        Tail {
            next,
            in_flight: BTreeSet::new(),
            lost_from: u64::MAX,
            group: Arc::default(),
            joined: Vec::new(),
            gathered: BTreeMap::new(),
            covered_count: 0,
            syncing: false,
            failed: None,
            footer: Footer::default(),
        }
    }

    /// Appends that begin below this offset are durable, as seen by the one in flight at `own`.
    fn settled_below(&self, own: u64) -> u64 {
        self.in_flight.first().map_or(own, |first| own.min(*first)).min(self.lost_from)
    }

    /// The append at `offset` is over: durable or not, and in the pack or not.
    fn end(&mut self, offset: u64, durable: bool, slot: Option<pack::Slot>) {
        self.in_flight.remove(&offset);
        if !durable {
            self.lost_from = self.lost_from.min(offset);
        }
        self.footer.extents.extend(slot);
    }
}

impl OpenPack {
    /// Creates the file, locks it while it is open here, and makes its name durable. Its header becomes durable with the first
    /// extent.
    fn create(store: &Store, owner: &str) -> Result<Self> {
        let inner = &store.inner;
        let name = pack::name(owner, store.era()?, inner.fs.unique());
        let file_name = file_name(&name);
        let file = inner.dir.create_new(&file_name).map_err(|e| Error::io("create", &file_name, e))?;
        // Without the lock it is written all the same, and kept until it is sealed: nobody could tell that its writer died.
        let locked = matches!(file.try_lock(), Ok(true));
        let header = pack::encode_header(&name, owner, locked);
        let written = file.write_at(0, &mut [io::IoSlice::new(&header)]);
        let told = written.and_then(|()| if locked { Ok(()) } else { file.sync_data() });
        let made = told.and_then(|()| inner.dir.sync());
        if let Err(e) = made {
            // Nothing refers to it. If it cannot be removed either, it is left as an abandoned pack.
            let _ = inner.dir.remove(&file_name);
            return Err(Error::io("create", file_name, e));
        }
        let tail = Tail::new(header.len() as u64);
        Ok(OpenPack { name, file, tail: Mutex::new(tail), turn: Condvar::new(), idle: Condvar::new() })
    }

    fn reserve(&self, len: u64, target: u64) -> Option<Place> {
        let mut tail = self.tail();
        let offset = pack::place(tail.next, len);
        let end = offset.checked_add(len)?;
        let empty = tail.footer.extents.is_empty() && tail.in_flight.is_empty();
        if tail.failed.is_some() || (end > target && !empty) {
            return None;
        }
        tail.next = end;
        tail.in_flight.insert(offset);
        let settled_below = tail.settled_below(offset);
        assert!(settled_below <= offset, "an append is not settled before it begins");
        Some(Place { offset, settled_below })
    }

    /// Writes an extent at its place and waits until it is durable.
    fn append(&self, place: Place, submission: &str, extent: Encoded<'_>, durability: Durability) -> Result<Vec<Ref>> {
        let Place { offset, settled_below } = place;
        let gathers = durability == Durability::Machine && extent.len <= GATHERED_BYTES_MAX;
        let mut copy = gathers.then(|| Vec::with_capacity(usize::try_from(extent.len).unwrap_or(0)));
        let written = extent.write(&self.name, offset, settled_below, |bufs| match &mut copy {
            Some(copy) => {
                bufs.iter().for_each(|buf| copy.extend_from_slice(buf));
                Ok(())
            }
            None => self.file.write_at(offset, bufs).map_err(|e| Error::io("write", self.place(offset), e)),
        });
        let (refs, header_len) = match written {
            Ok(written) => written,
            Err(e) => {
                let error = self.write_failed(e);
                self.end(offset, None);
                return Err(error);
            }
        };
        let slot = pack::Slot { offset, header_len, submission: submission.to_owned() };
        match durability {
            Durability::Process => self.end(offset, Some(slot)),
            Durability::Machine => self.settle(slot, copy)?,
        }
        Ok(refs)
    }

    /// An append is over without being durable.
    fn end(&self, offset: u64, slot: Option<pack::Slot>) {
        let mut tail = self.tail();
        tail.end(offset, false, slot);
        let idle = tail.in_flight.is_empty();
        drop(tail);
        if idle {
            self.idle.notify_all();
        }
    }

    /// A full volume leaves the file usable: the place stays a gap, and is never written again, since whoever looks for
    /// receipts may have seen what is there. Any other failure ends the file.
    fn write_failed(&self, error: Error) -> Error {
        if let Error::Io { source, .. } = &error {
            self.tail().failed = Some(source.kind());
        }
        error
    }

    /// Group commit: the first of a group waits until no sync is under way, and makes one for all that have joined by then. The
    /// others sleep until it is over, and need no lock to go on: what there is to note of them is noted by the first.
    ///
    /// 32 publishers of 4 KiB on ext4, nine runs by turns on a busy machine: 26,800 records/s (median), and 22,600 when each took the
    /// lock as it woke. Of 9 to 14 ms for eight groups 6 to 10 are the disk's sync, and 2.2 is what a barrier takes to wake as many.
    fn settle(&self, slot: pack::Slot, unwritten: Option<Vec<u8>>) -> Result<()> {
        let offset = slot.offset;
        let mut tail = self.tail();
        let group = tail.group.clone();
        tail.joined.push(slot);
        if let Some(bytes) = unwritten {
            tail.gathered.insert(offset, bytes);
        }
        if tail.joined.len() == 1 {
            while tail.syncing {
                tail = self.turn.wait(tail).unwrap_or_else(PoisonError::into_inner);
            }
            self.sync(tail);
        } else {
            drop(tail);
        }
        (*group.wait_for_outcome()).map_err(|kind| Error::io("write", self.place(offset), kind.into()))
    }

    fn sync<'a>(&'a self, mut tail: MutexGuard<'a, Tail>) {
        tail.syncing = true;
        let before = tail.covered_count;
        tail = let_join(&self.tail, tail, before, |tail| tail.joined.len() as u64);
        let group = std::mem::take(&mut tail.group);
        let joined = std::mem::take(&mut tail.joined);
        let gathered = std::mem::take(&mut tail.gathered);
        tail.covered_count = joined.len() as u64;
        let failed = tail.failed;
        drop(tail);
        let synced = match failed {
            Some(kind) => Err((kind, true)),
            None => self.write_and_sync(&gathered),
        };
        let mut tail = self.tail();
        tail.syncing = false;
        if let Err((kind, true)) = synced {
            tail.failed = Some(kind);
        }
        for slot in joined {
            tail.end(slot.offset, synced.is_ok(), synced.is_ok().then_some(slot));
        }
        let (next, idle) = (!tail.joined.is_empty(), tail.in_flight.is_empty());
        drop(tail);
        // The next sync first: it is what the others wait for longest.
        if next {
            self.turn.notify_one();
        }
        group.settle(synced.map_err(|(kind, _)| kind));
        if idle {
            self.idle.notify_all();
        }
    }

    /// What failed, and whether that ends the file. A full volume leaves it usable, see `write_failed`. The kernel may have dropped
    /// the pages of a sync that failed: this file is never synced again.
    fn write_and_sync(&self, gathered: &BTreeMap<u64, Vec<u8>>) -> std::result::Result<(), (io::ErrorKind, bool)> {
        let full = |kind| matches!(kind, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        self.write_gathered(gathered).map_err(|e| (e.kind(), !full(e.kind())))?;
        self.file.sync_data().map_err(|e| (e.kind(), true))
    }

    /// One write for each run of extents without a gap between them: mostly one.
    fn write_gathered(&self, gathered: &BTreeMap<u64, Vec<u8>>) -> io::Result<()> {
        let mut rest = gathered.iter().peekable();
        while let Some((&offset, first)) = rest.next() {
            let mut end = offset + first.len() as u64;
            let mut bufs = vec![io::IoSlice::new(first)];
            while let Some((_, bytes)) = rest.next_if(|(at, _)| **at == end) {
                end += bytes.len() as u64;
                bufs.push(io::IoSlice::new(bytes));
            }
            self.file.write_at(offset, &mut bufs)?;
        }
        Ok(())
    }

    /// Writes the footer once no append is under way. A pack that cannot be sealed stays as if its writer had died.
    fn seal(&self) {
        let mut tail = self.tail();
        while !tail.in_flight.is_empty() {
            tail = self.idle.wait(tail).unwrap_or_else(PoisonError::into_inner);
        }
        if tail.failed.is_some() {
            return;
        }
        tail.failed = Some(io::ErrorKind::Other); // closed to appends
        tail.footer.extents.sort_by_key(|slot| slot.offset);
        let footer = pack::encode_footer(&self.name, tail.next, &tail.footer);
        let written = self.file.write_at(tail.next, &mut [io::IoSlice::new(&footer)]);
        if let Err(e) = written.and_then(|()| self.file.sync_data()) {
            tracing::warn!(pack = self.name, "cannot seal the pack, it stays open: {e}");
        }
    }

    fn poisoned(&self) -> Error {
        Error::Poisoned { path: file_name(&self.name) }
    }

    fn place(&self, offset: u64) -> String {
        format!("{} at {offset}", file_name(&self.name))
    }

    fn tail(&self) -> MutexGuard<'_, Tail> {
        self.tail.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
