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
        if let Some(refs) = self.state().receipts.get(submission) {
            let conflict = || Error::SubmissionConflict { submission: submission.to_owned() };
            return if extent.same_content(refs) { Ok(refs.clone()) } else { Err(conflict()) };
        }
        let (pack, offset, full) = self.reserve(extent.len)?;
        let published = pack.append(offset, submission, extent, self.store.inner.options.durability);
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

    /// A place of `len` bytes in a pack with room for it; and the pack that was full, to be sealed.
    fn reserve(&self, len: u64) -> Result<(Arc<OpenPack>, u64, Option<Arc<OpenPack>>)> {
        let target = self.store.inner.options.pack_bytes_target;
        let mut state = self.state();
        if let Some(pack) = &state.pack
            && let Some(offset) = pack.reserve(len, target)
        {
            return Ok((pack.clone(), offset, None));
        }
        let pack = Arc::new(OpenPack::create(&self.store, &self.owner)?);
        let full = state.pack.replace(pack.clone());
        let offset = pack.reserve(len, u64::MAX).ok_or_else(|| pack.poisoned())?;
        Ok((pack, offset, full))
    }

    fn remember(&self, submission: &str, refs: &[Ref]) {
        let mut state = self.state();
        if state.receipts.insert(submission.to_owned(), refs.to_vec()).is_none() {
            state.receipt_order.push_back(submission.to_owned());
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

/// A pack being written.
#[derive(Debug)]
struct OpenPack {
    name: String,
    file: Arc<dyn File>,
    tail: Mutex<Tail>,
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
    /// Appends whose bytes are written since the last sync began: the next one covers them.
    written: Arc<Synced>,
    /// How many.
    written_count: u64,
    /// Those of them that are still to be written, by offset.
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
            written: Arc::default(),
            written_count: 0,
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
        Ok(OpenPack { name, file, tail: Mutex::new(tail), idle: Condvar::new() })
    }

    fn reserve(&self, len: u64, target: u64) -> Option<u64> {
        let mut tail = self.tail();
        let offset = pack::place(tail.next, len);
        let end = offset.checked_add(len)?;
        let empty = tail.footer.extents.is_empty() && tail.in_flight.is_empty();
        if tail.failed.is_some() || (end > target && !empty) {
            return None;
        }
        tail.next = end;
        tail.in_flight.insert(offset);
        Some(offset)
    }

    /// Writes an extent at its place and waits until it is durable.
    fn append(&self, offset: u64, submission: &str, extent: Encoded<'_>, durability: Durability) -> Result<Vec<Ref>> {
        let settled_below = self.tail().settled_below(offset);
        assert!(settled_below <= offset, "an append is not settled before it begins");
        let gathers = durability == Durability::Machine && extent.len <= GATHERED_BYTES_MAX;
        let mut copy = gathers.then(|| Vec::with_capacity(usize::try_from(extent.len).unwrap_or(0)));
        let written = extent.write(&self.name, offset, settled_below, |bufs| match &mut copy {
            Some(copy) => {
                bufs.iter().for_each(|buf| copy.extend_from_slice(buf));
                Ok(())
            }
            None => self.file.write_at(offset, bufs).map_err(|e| Error::io("write", self.place(offset), e)),
        });
        let outcome = match written {
            Ok(_) if durability == Durability::Process => written,
            Ok((refs, header_len)) => self.settle(offset, copy).map(|()| (refs, header_len)),
            Err(e) => Err(self.write_failed(e)),
        };
        let mut tail = self.tail();
        tail.in_flight.remove(&offset);
        if outcome.is_err() || durability == Durability::Process {
            tail.lost_from = tail.lost_from.min(offset);
        }
        if let Ok((_, header_len)) = outcome {
            tail.footer.extents.push(pack::Slot { offset, header_len, submission: submission.to_owned() });
        }
        let idle = tail.in_flight.is_empty();
        drop(tail);
        if idle {
            self.idle.notify_all();
        }
        outcome.map(|(refs, _)| refs)
    }

    /// A full volume leaves the file usable: the place stays a gap, and is never written again, since whoever looks for
    /// receipts may have seen what is there. Any other failure ends the file.
    fn write_failed(&self, error: Error) -> Error {
        if let Error::Io { source, .. } = &error {
            self.tail().failed = Some(source.kind());
        }
        error
    }

    /// Group commit: whoever finds no sync under way makes one for all that are written, or handed in to be; the others wait
    /// for it. Each sync wakes those whom it covers, and one of those who came meanwhile, to make the next one.
    fn settle(&self, offset: u64, unwritten: Option<Vec<u8>>) -> Result<()> {
        let failed = |kind: io::ErrorKind| Error::io("write", self.place(offset), kind.into());
        let mut tail = self.tail();
        let group = tail.written.clone();
        tail.written_count += 1;
        if let Some(bytes) = unwritten {
            tail.gathered.insert(offset, bytes);
        }
        loop {
            if let Some(outcome) = group.outcome() {
                return (*outcome).map_err(failed);
            }
            if let Some(kind) = tail.failed {
                drop(tail);
                group.wake_all(); // none of them will make a sync
                return Err(failed(kind));
            }
            if tail.syncing {
                tail = group.wait(tail);
            } else {
                self.sync(tail);
                tail = self.tail();
            }
        }
    }

    fn sync<'a>(&'a self, mut tail: MutexGuard<'a, Tail>) {
        tail.syncing = true;
        let before = tail.covered_count;
        tail = let_join(&self.tail, tail, before, |tail| tail.written_count);
        let covers = std::mem::take(&mut tail.written);
        let gathered = std::mem::take(&mut tail.gathered);
        tail.covered_count = std::mem::take(&mut tail.written_count);
        drop(tail);
        let written = self.write_gathered(&gathered);
        // A full volume leaves the file usable, see `write_failed`. The kernel may have dropped the pages of a sync that failed:
        // this file is never synced again.
        let full = |e: &io::Error| matches!(e.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        let ends = written.as_ref().is_err_and(|e| !full(e));
        let synced = match written {
            Ok(()) => self.file.sync_data().map_err(|e| (e.kind(), true)),
            Err(e) => Err((e.kind(), ends)),
        };
        let mut tail = self.tail();
        tail.syncing = false;
        if let Err((kind, true)) = synced {
            tail.failed = Some(kind);
        }
        covers.settle(synced.map_err(|(kind, _)| kind));
        let next = (tail.written_count > 0).then(|| tail.written.clone());
        drop(tail);
        // The next sync first: it is what the others wait for longest.
        next.iter().for_each(|next| next.wake_one());
        covers.wake_all();
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
