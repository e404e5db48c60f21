//! What was promised, kept outside of everything that can crash.

use std::collections::{BTreeMap, BTreeSet};

use straw::queue::{Op, Queue};
use straw::{Error, Record, Recovered, Ref, Store, Tensor};

type Txn = Vec<Vec<u8>>;

#[derive(Default)]
pub struct Facts {
    /// Transactions that were told to someone, by acknowledgement or by a claim: these never change.
    pub history: Vec<Txn>,
    /// State after them.
    pub model: Queue,
    /// The last one that was acknowledged to its author.
    pub acked: u64,
    /// Whatever was tried, by number.
    tried: BTreeMap<u64, Vec<Txn>>,
    epochs: BTreeSet<u64>,
    /// Acknowledged publishes and receipts. A process that was frozen while its successor started may publish what that one
    /// has found already: both copies are good, and the queue takes one.
    pub published: BTreeMap<String, BTreeSet<Vec<Ref>>>,
    /// Owner of each submission that was ever tried, and its number of records.
    pub publishing: BTreeMap<String, (String, usize)>,
    /// Position of each submission that was acknowledged as accepted.
    pub positions: BTreeMap<String, u64>,
    pub next_task: u64,
}

pub fn ops_of(txn: &[Vec<u8>]) -> Vec<Op> {
    txn.iter().map(|record| postcard::from_bytes(record).expect("an op parses")).collect()
}

/// The content that a submission always has.
pub fn content(submission: &str, records: usize) -> Vec<Record> {
    let seed = submission.bytes().fold(7u32, |h, b| h.wrapping_mul(31).wrapping_add(u32::from(b)));
    let one = |i: usize| {
        let rows = u64::from(seed.wrapping_add(i as u32 * 13) % 40);
        let values: Vec<u32> = (0..rows as u32 * 3).map(|v| v.wrapping_mul(seed) ^ i as u32).collect();
        Record::new(format!("{submission}/{i}")).with("tokens", Tensor::from_vec(&[rows, 3], values).unwrap())
    };
    (0..records).map(one).collect()
}

impl Facts {
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
                }
                self.history.push(txn.clone());
            }
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

    pub fn publishing(&mut self, owner: &str, submission: &str, records: usize) {
        self.publishing.insert(submission.to_owned(), (owner.to_owned(), records));
    }

    /// References became known, by an acknowledgement or as a receipt.
    pub fn published(&mut self, submission: &str, refs: &[Ref]) {
        self.published.entry(submission.to_owned()).or_default().insert(refs.to_vec());
    }

    pub fn is_retired(&self, refs: &[Ref]) -> bool {
        refs.iter().any(|r| self.model.retired().contains(&r.pack))
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
