//! The owner's side: pipelined group commit, rotation, snapshot and truncation.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::frames::{self, push_txn, txn_bytes_max};
use super::names::{Name, SegmentId};
use super::segment::{FRAMES_AT, Seal, Segment, push_zeros};
use super::snapshot::write_snapshot;
use super::{Lsn, Options, recovery};
use crate::fs::Dir;
use crate::group::{Group, let_join};
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
    active: Active,
    /// Older segments that may still be needed, and the first transaction of each.
    before: BTreeMap<SegmentId, Lsn>,
    /// Last acknowledged transaction.
    last: Lsn,
    waiting: Arc<Frame>,
    body: Vec<u8>,
    count: u64,
    /// Transactions of the last group: as many will likely come again.
    group_count: u64,
    /// The last group's buffer, to be used again.
    spare: Vec<u8>,
    /// Someone is writing (or rotating).
    busy: bool,
    closed: Option<Closed>,
    /// Groups that failed so far, and how the last of them did: a pipeline ends with the first failure behind its beginning.
    failures: u64,
    last_failure: Option<Failure>,
    appended_bytes: u64,
}

/// The segment that is appended to.
#[derive(Clone, Debug)]
struct Active {
    segment: Segment,
    /// A write to it failed, or a file that seals it was begun: nothing is added to it any more. Bytes once written are never
    /// written otherwise, since a successor may have read them.
    ended: bool,
    /// The volume was full: no zeros are written ahead until a group went through again.
    lean: bool,
    /// Index of the next segment to create; each is tried once.
    next_index: u64,
}

/// Transactions that share one frame: the number of the first, or why they failed.
type Frame = Group<std::result::Result<Lsn, Failure>>;

/// A transaction that was handed in, for [`Journal::wait`].
#[derive(Clone, Debug)]
pub struct Ticket {
    group: Arc<Frame>,
    place: u64,
}

/// A line of transactions of which each builds upon those before it: once one has failed, none behind it is taken.
///
/// See [`Journal::enqueue`].
#[derive(Clone, Copy, Debug)]
pub struct Pipeline {
    failures: u64,
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
            active: Active { segment, ended: false, lean: false, next_index: 1 },
            before,
            waiting: Arc::default(),
            body: Vec::new(),
            count: 0,
            group_count: 0,
            spare: Vec::new(),
            busy: false,
            closed: None,
            failures: 0,
            last_failure: None,
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

    /// Fails with [`Error::Fenced`] when a higher epoch has claimed the journal. For an owner that is about to act on
    /// something without having anything to append; a claim right after this call is not seen, as with any lease.
    pub fn confirm(&self) -> Result<()> {
        let own = self.state().active.segment.name.clone();
        fence(&*self.dir, self.epoch, &own)
    }

    /// Appends records as one transaction: all of them, or none, survive. It is durable and no higher epoch had claimed
    /// the journal when this returns `Ok`.
    ///
    /// # Errors
    /// [`Error::OutOfSpace`] leaves the journal usable, and the transaction is not in it once a later one is;
    /// [`Error::Fenced`] and [`Error::Poisoned`] are for good, and whether this transaction is in the journal only the
    /// next claim tells. [`Error::Limit`]: it is too large.
    pub fn append<R: AsRef<[u8]>>(&self, records: &[R]) -> Result<Lsn> {
        self.wait(&self.hand_in(None, records)?)
    }

    /// Begins a pipeline: its transactions build upon whatever has been acknowledged by now.
    pub fn pipeline(&self) -> Pipeline {
        Pipeline { failures: self.state().failures }
    }

    /// Hands a transaction in and does not wait: all that were handed in while one write is under way share the next, with
    /// one sync. Nothing is durable, and nothing may be acknowledged to anyone, before [`Journal::wait`] returned `Ok` for it;
    /// then everything handed in before it is durable, too. It is written by whoever waits first.
    ///
    /// The caller goes on as if it were durable, so when any transaction of a pipeline fails, all behind it do, also those
    /// that are handed in only later: what they say may not follow from what is there. Then the owner rebuilds its state (it
    /// claims the journal anew, or keeps one that it changes only after `wait`) and begins another pipeline. Nothing outside
    /// may follow from a state that is ahead of the journal: no reply, no removal of a pack.
    ///
    /// # Errors
    /// As [`Journal::append`]; and the failure of an earlier transaction of the pipeline.
    pub fn enqueue<R: AsRef<[u8]>>(&self, pipeline: Pipeline, records: &[R]) -> Result<Ticket> {
        self.hand_in(Some(pipeline), records)
    }

    /// Waits until a transaction is durable and was seen to be the owner's; gives its number. May be asked by many threads,
    /// and again.
    ///
    /// # Errors
    /// As [`Journal::append`].
    pub fn wait(&self, ticket: &Ticket) -> Result<Lsn> {
        let mut state = None;
        loop {
            if let Some(outcome) = ticket.group.outcome() {
                return outcome.as_ref().map(|first| first + ticket.place).map_err(|failure| self.failed(failure));
            }
            let now = state.take().unwrap_or_else(|| self.state());
            if ticket.group.outcome().is_some() {
                continue;
            }
            if now.busy {
                state = Some(ticket.group.wait(now));
            } else {
                assert!(Arc::ptr_eq(&ticket.group, &now.waiting), "a ticket is given back to its own journal");
                self.commit(now);
            }
        }
    }

    fn hand_in<R: AsRef<[u8]>>(&self, pipeline: Option<Pipeline>, records: &[R]) -> Result<Ticket> {
        at_most("records of a transaction", records.len() as u64, RECORDS_PER_TXN_MAX as u64)?;
        at_most("bytes of a transaction", txn_bytes_max(records), TXN_BYTES_MAX)?;
        let mut state = self.state();
        while state.body.len() > GROUP_BYTES_MAX && state.closed.is_none() {
            state = if state.busy {
                self.idle(state)
            } else {
                self.commit(state);
                self.state()
            };
        }
        if let Some(closed) = state.closed {
            return Err(self.failed(&Failure::Closed(closed)));
        }
        if let (Some(pipeline), Some(failure)) = (pipeline, &state.last_failure)
            && pipeline.failures != state.failures
        {
            return Err(self.failed(failure));
        }
        push_txn(&mut state.body, records);
        let place = state.count;
        state.count += 1;
        Ok(Ticket { group: state.waiting.clone(), place })
    }

    /// Writes the waiting group, syncs it, and looks for a successor before anyone is told.
    fn commit<'a>(&'a self, mut state: MutexGuard<'a, State>) {
        assert!(!state.busy, "one group is written at a time");
        state.busy = true;
        let before = state.group_count;
        state = let_join(&self.state, state, before, |state| state.count);
        state.group_count = state.count;
        let group = std::mem::take(&mut state.waiting);
        let spare = std::mem::take(&mut state.spare);
        let body = std::mem::replace(&mut state.body, spare);
        let count = std::mem::take(&mut state.count);
        let closed = state.closed;
        let mut active = state.active.clone();
        let first = state.last + 1;
        drop(state);

        let written = match closed {
            Some(closed) => Err(Failure::Closed(closed)),
            None => self.write(&mut active, first, &body),
        };

        let mut state = self.state();
        state.busy = false;
        self.note_active(&mut state, active);
        let mut failed = None;
        match &written {
            Ok(()) => {
                state.last += count;
                state.appended_bytes += body.len() as u64;
                assert_eq!(state.last, first + count - 1, "transactions are numbered without a gap");
            }
            Err(failure) => {
                if let Failure::Closed(closed) = failure {
                    state.closed = Some(*closed);
                }
                state.failures += 1;
                state.last_failure = Some(failure.clone());
                // Whatever was handed in meanwhile may build upon what has failed.
                failed = Some((std::mem::take(&mut state.waiting), failure.clone()));
                state.body.clear();
                state.count = 0;
            }
        }
        state.spare = body;
        state.spare.clear();
        group.settle(written.map(|()| first));
        if let Some((behind, failure)) = &failed {
            behind.settle(Err(failure.clone()));
        }
        let next = (state.count > 0).then(|| state.waiting.clone());
        drop(state);
        // The next write first: it is what the others wait for longest.
        next.iter().for_each(|next| next.wake_one());
        group.wake_all();
        failed.iter().for_each(|(behind, _)| behind.wake_all());
        self.changed.notify_all();
    }

    fn write(&self, active: &mut Active, first: Lsn, body: &[u8]) -> std::result::Result<(), Failure> {
        let len = (frames::HEADER + body.len()) as u64;
        let full = active.segment.tail + len > self.options.segment_bytes_target;
        if active.ended || (full && active.segment.tail > FRAMES_AT) {
            self.go_on(active, first)?;
        }
        let segment = &mut active.segment;
        let header = frames::header(&segment.name, segment.tail, first, body);
        let reserved = if active.lean { segment.reserved } else { segment.reserve(segment.tail + len) };
        let mut bufs = vec![IoSlice::new(&header), IoSlice::new(body)];
        push_zeros(&mut bufs, reserved.saturating_sub(segment.tail + len).min(reserved - segment.reserved));
        let written = segment.file.write_at(segment.tail, &mut bufs);
        if let Err(e) = written.and_then(|()| segment.file.sync_data()) {
            active.ended = true;
            let failure = Failure::of(Error::io("append", format!("{} at {}", segment.name, segment.tail), e));
            active.lean = matches!(failure, Failure::Io(..));
            return Err(failure);
        }
        fence(&*self.dir, self.epoch, &segment.name).map_err(Failure::of)?;
        segment.tail += len;
        segment.reserved = reserved;
        active.lean = false;
        Ok(())
    }

    /// Begins the next segment, which seals the active one at its last acknowledged frame.
    fn go_on(&self, active: &mut Active, first: Lsn) -> std::result::Result<(), Failure> {
        let id = SegmentId { epoch: self.epoch, index: active.next_index };
        let seal = Seal { id: active.segment.id, len: active.segment.tail };
        active.next_index += 1;
        active.ended = true;
        let segment = Segment::create(&*self.dir, id, first, Some(seal)).map_err(Failure::of)?;
        *active = Active { segment, ended: false, ..*active };
        Ok(())
    }

    fn note_active(&self, state: &mut State, now: Active) {
        let before = &state.active.segment;
        assert!(now.segment.id >= before.id, "segments only go forward");
        if now.segment.id != before.id {
            state.before.insert(before.id, before.first);
        }
        state.active = now;
    }

    /// Makes `snapshot` the beginning of the journal: it must be the owner's state after transaction `at` (an acknowledged
    /// one). Durable when this returns; then what it covers is removed. Appends go on meanwhile.
    pub fn snapshot(&self, at: Lsn, snapshot: &[u8]) -> Result<()> {
        let _one = self.snapshotting.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(at <= self.last(), "a snapshot covers acknowledged transactions only");
        self.rotate()?;
        let written = write_snapshot(&*self.dir, self.epoch, at, snapshot);
        self.confirm()?; // a successor may have removed the file under our hands: then this is the reason
        written?;
        self.state().appended_bytes = 0;
        self.truncate(at)
    }

    /// Begins a new segment, so that the current one can be removed.
    fn rotate(&self) -> Result<()> {
        let mut state = self.state();
        while state.busy {
            state = self.idle(state);
        }
        if let Some(closed) = state.closed {
            return Err(self.failed(&Failure::Closed(closed)));
        }
        if state.last + 1 == state.active.segment.first && !state.active.ended {
            return Ok(()); // nothing in it yet
        }
        state.busy = true;
        let (mut active, first) = (state.active.clone(), state.last + 1);
        drop(state);
        let done = self.go_on(&mut active, first);
        let mut state = self.state();
        state.busy = false;
        self.note_active(&mut state, active);
        if let Err(Failure::Closed(closed)) = &done {
            state.closed = Some(*closed);
        }
        let next = (state.count > 0).then(|| state.waiting.clone());
        drop(state);
        next.iter().for_each(|next| next.wake_one());
        self.changed.notify_all();
        done.map_err(|failure| self.failed(&failure))
    }

    /// Removes what the snapshot at `at` covers, oldest first: a zombie that still finds its own segment has not missed its
    /// successor's claim.
    fn truncate(&self, at: Lsn) -> Result<()> {
        let needed = {
            let mut state = self.state();
            let State { before, active: Active { segment, .. }, .. } = &mut *state;
            // A segment is needed unless the next one begins at or before the first transaction behind the snapshot.
            let nexts: Vec<Lsn> = before.values().skip(1).copied().chain([segment.first]).collect();
            let needed = before.iter().zip(nexts).find(|(_, next)| *next > at + 1).map(|((id, _), _)| *id);
            let needed = needed.unwrap_or(segment.id);
            before.retain(|id, _| *id >= needed);
            needed
        };
        let gone = |name: &Name| match name {
            Name::Segment(id) => *id < needed,
            // Only what comes before our own: a successor may have written one of the same transaction, and removed ours.
            Name::Snapshot { lsn, epoch } => (*lsn, *epoch) < (at, self.epoch),
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

    /// Waits until a write is over.
    fn idle<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
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
