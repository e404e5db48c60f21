//! What was promised, kept outside of everything that can crash.

use std::collections::{BTreeMap, BTreeSet};

use straw::queue::{Op, Queue};
use straw::{Error, Record, Recovered, Ref, Store, Tensor};

type Txn = Vec<Vec<u8>>;

/// Journals on the volume: the run's, and that of a fork.
pub const LINES: usize = 2;

#[derive(Default)]
pub struct Facts {
    pub lines: [Line; LINES],
    /// Each state that the fork may have begun with, encoded.
    pub begun_with: Vec<Vec<u8>>,
    /// Packs that all queues have given up which were registered at the time.
    may_go: BTreeSet<String>,
    /// Lines whose registration in the pool was acknowledged.
    pub registered: [bool; LINES],
    /// Lines that were told to leave the pool. Nobody uses their journals from then on, and they keep no pack.
    pub leaving: [bool; LINES],
    /// Lines whose leave was acknowledged.
    pub left: [bool; LINES],
    /// Acknowledged publishes and receipts. A process that was frozen while its successor started may publish what that one
    /// has found already: both copies are good, and the queue takes one.
    pub published: BTreeMap<String, BTreeSet<Vec<Ref>>>,
    /// Owner of each submission that was ever tried, and its number of records.
    pub publishing: BTreeMap<String, (String, usize)>,
    pub next_task: u64,
}

/// What was promised of one journal.
#[derive(Default)]
pub struct Line {
    /// It is known to have begun.
    pub begun: bool,
    /// Transactions that were told to someone, by acknowledgement or by a claim: these never change.
    pub history: Vec<Txn>,
    /// State after them.
    pub model: Queue,
    /// The last one that was acknowledged to its author.
    pub acked: u64,
    /// Whatever was tried, by number.
    tried: BTreeMap<u64, Vec<Txn>>,
    epochs: BTreeSet<u64>,
    /// Position of each submission that was acknowledged as accepted.
    positions: BTreeMap<String, u64>,
    /// Every pack that was ever given up, also those that the queue has forgotten.
    given_up: BTreeSet<String>,
}

pub fn ops_of(txn: &[Vec<u8>]) -> Vec<Op> {
    txn.iter().map(|record| postcard::from_bytes(record).expect("an op parses")).collect()
}

/// Submissions of one record of two blocks, the first of which is the same for all of them.
pub const LONG: char = 'l';
const LONG_BYTES: u64 = straw::BLOCK_BYTES + 500;

/// Records of a submission.
pub fn records_of(submission: &str) -> usize {
    if submission.starts_with(LONG) { 1 } else { 2 }
}

/// True for a record of those.
pub fn is_long(r: &Ref) -> bool {
    r.len + r.shares.iter().map(|share| share.bytes).sum::<u64>() > LONG_BYTES
}

/// The content that a submission always has.
pub fn content(submission: &str, records: usize) -> Vec<Record> {
    let seed = submission.bytes().fold(7u32, |h, b| h.wrapping_mul(31).wrapping_add(u32::from(b)));
    if submission.starts_with(LONG) {
        let tail = |i: u64| if i < straw::BLOCK_BYTES { 0 } else { seed };
        let bytes: Vec<u8> = (0..LONG_BYTES).map(|i| (i as u32).wrapping_mul(31).wrapping_add(tail(i)) as u8).collect();
        let tokens = Tensor::from_vec(&[LONG_BYTES], bytes).unwrap();
        return vec![Record::new(format!("{submission}/0")).with("tokens", tokens)];
    }
    let one = |i: usize| {
        let rows = u64::from(seed.wrapping_add(i as u32 * 13) % 40);
        let values: Vec<u32> = (0..rows as u32 * 3).map(|v| v.wrapping_mul(seed) ^ i as u32).collect();
        Record::new(format!("{submission}/{i}")).with("tokens", Tensor::from_vec(&[rows, 3], values).unwrap())
    };
    (0..records).map(one).collect()
}

impl Line {
    pub fn trying(&mut self, lsn: u64, txn: &Txn) {
        self.tried.entry(lsn).or_default().push(txn.clone());
    }

    /// A transaction was acknowledged to its author.
    pub fn acknowledged(&mut self, lsn: u64, txn: &Txn) {
        self.told(lsn, txn);
        self.acked = self.acked.max(lsn);
    }

    fn told(&mut self, lsn: u64, txn: &Txn) {
        let at = lsn as usize - 1;
        match self.history.get(at) {
            Some(before) => assert_eq!(before, txn, "transaction {lsn} is another one than before"),
            None => {
                assert_eq!(at, self.history.len(), "a transaction was told before the one ahead of it");
                for op in ops_of(txn) {
                    self.model.apply(&op).expect("what was told follows from what was told before");
                    if let Op::Retire { packs } = op {
                        self.given_up.extend(packs);
                    }
                }
                self.history.push(txn.clone());
                self.check_given_up();
            }
        }
    }

    pub fn newest_epoch(&self) -> u64 {
        self.epochs.last().copied().unwrap_or(0)
    }

    /// What was given up once is given up for ever, remembered or not.
    fn check_given_up(&self) {
        let back = self.model.live_packs().into_iter().find(|pack| self.given_up.contains(pack));
        assert_eq!(back, None, "a pack that was given up is referred to again");
        for pack in &self.given_up {
            assert!(self.model.is_given_up(pack), "{pack} was given up and would be accepted");
        }
    }

    /// A claim returned. `acked` is what had been acknowledged when it was begun.
    pub fn claimed(&mut self, found: &Recovered, acked: u64) -> Queue {
        assert!(self.epochs.insert(found.epoch), "epoch {} was given twice", found.epoch);
        assert!(found.last >= acked, "transaction {acked} was acknowledged, and the claim ends at {}", found.last);
        let snapshot = found.snapshot.as_ref();
        let mut queue: Queue = snapshot.map(|bytes| postcard::from_bytes(bytes).unwrap()).unwrap_or_default();
        let covered = found.last - found.txns.len() as u64;
        assert!(covered as usize <= self.history.len(), "a snapshot of what was never told");
        for (lsn, txn) in (covered + 1..).zip(&found.txns) {
            if lsn as usize > self.history.len() {
                let tried = self.tried.get(&lsn).is_some_and(|all| all.contains(txn));
                assert!(tried, "transaction {lsn} was never tried");
            }
            self.told(lsn, txn);
            for op in ops_of(txn) {
                queue.apply(&op).expect("a journal replays");
            }
        }
        if found.last as usize == self.history.len() {
            assert_eq!(queue, self.model, "snapshot and transactions give another state than the history");
        }
        self.check_positions(&queue);
        queue
    }

    /// Whatever was acknowledged as accepted is at its place, or over.
    fn check_positions(&self, queue: &Queue) {
        for (submission, position) in &self.positions {
            if let Some((now, _)) = queue.submission(submission) {
                assert_eq!(now.0, *position, "submission {submission} has moved");
            }
        }
    }

    pub fn accepted(&mut self, submission: &str, position: u64) {
        let before = self.positions.insert(submission.to_owned(), position);
        assert!(before.is_none_or(|p| p == position), "submission {submission} has two positions");
    }
}

impl Facts {
    /// The fork's journal was found to begin with this state.
    pub fn begun(&mut self, state: &[u8]) {
        assert!(self.begun_with.iter().any(|tried| tried == state), "the fork began with a state that nobody gave it");
        let Line { begun, model, given_up, .. } = &mut self.lines[1];
        if !*begun {
            *begun = true;
            *model = postcard::from_bytes(state).unwrap();
            given_up.extend(model.retired().iter().cloned());
        }
    }

    pub fn publishing(&mut self, owner: &str, submission: &str, records: usize) {
        self.publishing.insert(submission.to_owned(), (owner.to_owned(), records));
    }

    /// References became known, by an acknowledgement or as a receipt.
    pub fn published(&mut self, submission: &str, refs: &[Ref]) {
        self.published.entry(submission.to_owned()).or_default().insert(refs.to_vec());
    }

    pub fn is_retired(&self, refs: &[Ref]) -> bool {
        refs.iter().flat_map(Ref::packs).any(|pack| self.may_go.contains(pack))
    }

    /// The lines whose queues are used: one that has begun, and was not told to leave.
    pub fn in_use(&self) -> Vec<usize> {
        (0..LINES).filter(|line| (*line == 0 || self.lines[*line].begun) && !self.leaving[*line]).collect()
    }

    /// A line that was told to leave, and may have left or not.
    pub fn half_left(&self) -> Option<usize> {
        (0..LINES).find(|line| self.leaving[*line] && !self.left[*line])
    }

    /// Notes the packs that every queue has given up which is registered now: who comes later does not need them.
    pub fn note_removable(&mut self) {
        let users: Vec<&Line> =
            (0..LINES).filter(|i| self.registered[*i] && !self.leaving[*i]).map(|i| &self.lines[i]).collect();
        let Some((first, rest)) = users.split_first() else { return };
        let all = first.given_up.iter().filter(|pack| rest.iter().all(|line| line.given_up.contains(*pack)));
        self.may_go.extend(all.cloned());
    }

    /// Some queue refuses it.
    pub fn is_refused(&self, refs: &[Ref]) -> bool {
        refs.iter().flat_map(Ref::packs).any(|pack| self.lines.iter().any(|line| line.given_up.contains(pack)))
    }

    /// Reads what a submission published and compares it. `may_fail`: operations are failed at random.
    pub fn check_read(&self, store: &Store, submission: &str, refs: &[Ref], may_fail: impl Fn() -> bool) {
        let (_, records) = self.publishing.get(submission).expect("published without being tried");
        let want = content(submission, *records);
        assert_eq!(refs.len(), want.len(), "a publish is there in part");
        for (r, want) in refs.iter().zip(&want) {
            match store.read(r) {
                Ok(record) => assert_eq!(&record, want, "{submission} reads back as something else"),
                Err(Error::PackMissing { .. }) if self.is_retired(refs) => {}
                Err(Error::Io { .. }) if may_fail() => {}
                Err(e) => panic!("{submission} was published and is not retired: {e}"),
            }
        }
    }
}
