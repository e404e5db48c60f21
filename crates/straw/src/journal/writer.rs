//! The owner's side: group commit, rotation, snapshot and truncation.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use super::frames::{self, push_txn, txn_bytes_max};
use super::names::{Name, SegmentId};
use super::segment::{Seal, Segment};
use super::snapshot::write_snapshot;
use super::{Lsn, Options, recovery};
use crate::fs::Dir;
use crate::limits::{RECORDS_PER_TXN_MAX, TXN_BYTES_MAX, at_most};
use crate::{Error, Result};

/// Claims of this many last epochs are kept, so that a zombie finds its successor's.
const CLAIMS_KEPT: u64 = 256;
/// A group grows to this many bytes at most; later transactions wait for the next one.
const GROUP_BYTES_MAX: usize = 64 << 20;

/// An owned journal. May be shared by any number of threads: concurrent appends share one write and one sync.
#[derive(Debug)]
pub struct Journal {
    dir: Arc<dyn Dir>,
    epoch: u64,
    options: Options,
    state: Mutex<State>,
    changed: Condvar,
    snapshotting: Mutex<()>,
}

#[derive(Debug)]
struct State {
    segment: Segment,
    /// Older segments that may still be needed, and the first transaction of each.
    before: BTreeMap<SegmentId, Lsn>,
    /// Last acknowledged transaction.
    last: Lsn,
    waiting: Arc<Group>,
    body: Vec<u8>,
    count: u64,
    /// The last group's buffer, to be used again.
    spare: Vec<u8>,
    /// Someone is writing (or rotating).
    busy: bool,
    closed: Option<Closed>,
    appended_bytes: u64,
}

/// Transactions that share one frame.
#[derive(Debug, Default)]
struct Group {
    outcome: OnceLock<std::result::Result<Lsn, Failure>>,
}

/// An outcome that every waiter can have a copy of.
#[derive(Clone, Debug)]
enum Failure {
    Io(std::io::ErrorKind, String),
    Closed(Closed),
}

#[derive(Clone, Copy, Debug)]
enum Closed {
    Fenced { by: u64 },
    Poisoned,
}

impl Journal {
    pub(super) fn new(
        dir: Arc<dyn Dir>,
        epoch: u64,
        segment: Segment,
        before: BTreeMap<SegmentId, Lsn>,
        options: Options,
    ) -> Self {
        let state = State {
            last: segment.first - 1,
            segment,
            before,
            waiting: Arc::default(),
            body: Vec::new(),
            count: 0,
            spare: Vec::new(),
            busy: false,
            closed: None,
            appended_bytes: 0,
        };
        let (state, changed, snapshotting) = (Mutex::new(state), Condvar::new(), Mutex::new(()));
        Journal { dir, epoch, options, state, changed, snapshotting }
    }

    /// The epoch of this owner.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The last acknowledged transaction, 0 if there is none.
    pub fn last(&self) -> Lsn {
        self.state().last
    }

    /// Bytes appended by this owner since its claim or its last snapshot: the measure of when to take the next one.
    pub fn bytes_since_snapshot(&self) -> u64 {
        self.state().appended_bytes
    }

    /// Appends records as one transaction: all of them, or none, survive. It is durable and no higher epoch had claimed
    /// the journal when this returns `Ok`.
    ///
    /// Errors: [`Error::OutOfSpace`] leaves the journal usable, and the transaction is not in it once a later one is;
    /// [`Error::Fenced`] and [`Error::Poisoned`] are for good, and whether this transaction is in the journal only the
    /// next claim tells.
    pub fn append<R: AsRef<[u8]>>(&self, records: &[R]) -> Result<Lsn> {
        at_most("records of a transaction", records.len() as u64, RECORDS_PER_TXN_MAX as u64)?;
        at_most("bytes of a transaction", txn_bytes_max(records), TXN_BYTES_MAX)?;
        let mut state = self.state();
        while state.body.len() > GROUP_BYTES_MAX && state.closed.is_none() {
            state = self.wait(state);
        }
        if let Some(closed) = state.closed {
            return Err(self.failed(&Failure::Closed(closed)));
        }
        push_txn(&mut state.body, records);
        let place = state.count;
        state.count += 1;
        let group = state.waiting.clone();
        loop {
            if let Some(outcome) = group.outcome.get() {
                return outcome.as_ref().map(|first| first + place).map_err(|failure| self.failed(failure));
            }
            state = if state.busy { self.wait(state) } else { self.commit(state) };
        }
    }

    /// Writes the waiting group, syncs it, and looks for a successor before anyone is told.
    fn commit<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        assert!(!state.busy, "one group is written at a time");
        state.busy = true;
        let group = std::mem::take(&mut state.waiting);
        let spare = std::mem::take(&mut state.spare);
        let body = std::mem::replace(&mut state.body, spare);
        let count = std::mem::take(&mut state.count);
        let closed = state.closed;
        let mut segment = state.segment.clone();
        let first = state.last + 1;
        drop(state);

        let written = match closed {
            Some(closed) => Err(Failure::Closed(closed)),
            None => self.write(&mut segment, first, &body),
        };

        let mut state = self.state();
        state.busy = false;
        self.note_segment(&mut state, &segment);
        match &written {
            Ok(()) => {
                state.last += count;
                state.appended_bytes += body.len() as u64;
                assert_eq!(state.last, first + count - 1, "transactions are numbered without a gap");
            }
            Err(Failure::Closed(closed)) => state.closed = Some(*closed),
            Err(Failure::Io(..)) => {}
        }
        state.spare = body;
        state.spare.clear();
        let set = group.outcome.set(written.map(|()| first));
        assert!(set.is_ok(), "a group has one outcome");
        self.changed.notify_all();
        state
    }

    fn write(&self, segment: &mut Segment, first: Lsn, body: &[u8]) -> std::result::Result<(), Failure> {
        let len = (frames::HEADER + body.len()) as u64;
        if segment.tail + len > self.options.segment_bytes_target && segment.tail > super::segment::FRAMES_AT {
            *segment = self.next_segment(segment, first)?;
        }
        let header = frames::header(&segment.name, segment.tail, first, body);
        let place = || format!("{} at {}", segment.name, segment.tail);
        let written = segment.file.write_at(segment.tail, &mut [IoSlice::new(&header), IoSlice::new(body)]);
        // After a full volume the same bytes are written again at the same place, so nothing depends on what is there now.
        written.and_then(|()| segment.file.sync_data()).map_err(|e| Failure::of(Error::io("append", place(), e)))?;
        fence(&*self.dir, self.epoch, &segment.name).map_err(Failure::of)?;
        segment.tail += len;
        Ok(())
    }

    fn next_segment(&self, segment: &Segment, first: Lsn) -> std::result::Result<Segment, Failure> {
        let id = SegmentId { epoch: segment.id.epoch, index: segment.id.index + 1 };
        let seal = Seal { id: segment.id, len: segment.tail };
        Segment::create(&*self.dir, id, first, Some(seal)).map_err(Failure::of)
    }

    fn note_segment(&self, state: &mut State, now: &Segment) {
        if now.id != state.segment.id {
            let (id, first) = (state.segment.id, state.segment.first);
            state.before.insert(id, first);
        }
        assert!(now.id >= state.segment.id, "segments only go forward");
        state.segment = now.clone();
    }

    /// Makes `snapshot` the beginning of the journal: it must be the owner's state after transaction `at` (an acknowledged
    /// one). Durable when this returns; then what it covers is removed. Appends go on meanwhile.
    pub fn snapshot(&self, at: Lsn, snapshot: &[u8]) -> Result<()> {
        let _one = self.snapshotting.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(at <= self.last(), "a snapshot covers acknowledged transactions only");
        self.rotate()?;
        let kept = write_snapshot(&*self.dir, self.epoch, at, snapshot)?;
        let own = self.state().segment.name.clone();
        fence(&*self.dir, self.epoch, &own)?;
        self.state().appended_bytes = 0;
        self.truncate(at, &kept)
    }

    /// Begins a new segment, so that the current one can be removed.
    fn rotate(&self) -> Result<()> {
        let mut state = self.state();
        while state.busy {
            state = self.wait(state);
        }
        if let Some(closed) = state.closed {
            return Err(self.failed(&Failure::Closed(closed)));
        }
        if state.last + 1 == state.segment.first {
            return Ok(()); // nothing in it yet
        }
        state.busy = true;
        let (segment, first) = (state.segment.clone(), state.last + 1);
        drop(state);
        let next = self.next_segment(&segment, first);
        let mut state = self.state();
        state.busy = false;
        let done = match next {
            Ok(next) => {
                self.note_segment(&mut state, &next);
                Ok(())
            }
            Err(failure) => {
                if let Failure::Closed(closed) = &failure {
                    state.closed = Some(*closed);
                }
                Err(self.failed(&failure))
            }
        };
        self.changed.notify_all();
        done
    }

    /// Removes what the snapshot at `at` covers, oldest first: a zombie that still finds its own segment has not missed its
    /// successor's claim.
    fn truncate(&self, at: Lsn, kept: &str) -> Result<()> {
        let needed = {
            let mut state = self.state();
            let State { before, segment, .. } = &mut *state;
            // A segment is needed unless the next one begins at or before the first transaction behind the snapshot.
            let nexts: Vec<Lsn> = before.values().skip(1).copied().chain([segment.first]).collect();
            let needed = before.iter().zip(nexts).find(|(_, next)| *next > at + 1).map(|((id, _), _)| *id);
            let needed = needed.unwrap_or(segment.id);
            before.retain(|id, _| *id >= needed);
            needed
        };
        let gone = |name: &Name| match name {
            Name::Segment(id) => *id < needed,
            Name::Snapshot { lsn, .. } => *lsn <= at && name.text() != kept,
            Name::Temporary { epoch } => *epoch < self.epoch,
            Name::Claim { epoch } => epoch + CLAIMS_KEPT < self.epoch,
        };
        let mut names: Vec<Name> = recovery::list(&*self.dir)?.into_iter().filter(gone).collect();
        names.sort_by_key(|name| matches!(name, Name::Claim { .. })); // list() gives each kind in its order
        for name in names {
            let name = name.text();
            match self.dir.remove(&name) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(Error::io("remove", name, e)),
                _ => {}
            }
        }
        self.dir.sync().map_err(|e| Error::io("sync", "the journal", e))
    }

    fn failed(&self, failure: &Failure) -> Error {
        match failure {
            Failure::Io(kind, path) => Error::io("append", path, (*kind).into()),
            Failure::Closed(Closed::Fenced { by }) => Error::Fenced { epoch: self.epoch, by: *by },
            Failure::Closed(Closed::Poisoned) => Error::Poisoned { path: format!("journal of epoch {}", self.epoch) },
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }
}

impl Failure {
    /// Only a full volume leaves the journal usable.
    fn of(error: Error) -> Self {
        match error {
            Error::OutOfSpace { path, .. } => Failure::Io(std::io::ErrorKind::StorageFull, path),
            Error::Fenced { by, .. } => Failure::Closed(Closed::Fenced { by }),
            other => {
                tracing::error!("the journal is closed: {other}");
                Failure::Closed(Closed::Poisoned)
            }
        }
    }
}

/// Fails when a higher epoch has claimed the journal. Asked after a sync and before its acknowledgement.
///
/// The next epoch's claim is looked for first and our own segment second: a successor removes our segment before its claim
/// could ever be removed, so a zombie of any age finds one of the two.
pub(super) fn fence(dir: &dyn Dir, epoch: u64, own_segment: &str) -> Result<()> {
    let next = Name::Claim { epoch: epoch + 1 }.text();
    if dir.exists(&next).map_err(|e| Error::io("look for", next, e))? {
        return Err(Error::Fenced { epoch, by: epoch + 1 });
    }
    if !dir.exists(own_segment).map_err(|e| Error::io("look for", own_segment, e))? {
        return Err(Error::Fenced { epoch, by: epoch });
    }
    Ok(())
}
