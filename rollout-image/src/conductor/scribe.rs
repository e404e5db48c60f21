//! What the brain has thought, on its way to the disk: written in order, and let out once it is durable.
//!
//! The brain goes on thinking while a sync is under way, and all that it thinks meanwhile shares the next one. Its state is
//! ahead of the journal then, so whatever leaves the process (answers, commands, lines of `steps.jsonl`) goes through here,
//! behind the records that it follows from. What follows from memory alone need not: see [`is_of_memory`].
//!
//! A full volume is waited for; what is on its way stays on its way, in order. Any other failure ends the reign: the next one
//! begins with what the journal holds.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use conductor::{Command, Record, Reply, State, Step, check::Audit};
use straw::Journal;

use super::{
    faults::{Faults, Point},
    inbox::Inbox,
    perform::Performer,
    reign::{CONFIRM_EVERY, STORAGE_PAUSE, now_ms, superseded},
    steps_file::StepsFile,
};

/// Thoughts on their way at most: a brain that is further ahead of the disk waits.
const THOUGHTS_MAX: usize = 512;
/// Records and bytes of one transaction, far below what a journal takes: any record may be the last one before a crash.
const TXN_RECORDS: usize = 4096;
const TXN_BYTES: usize = 8 << 20;

/// The faults of a reign, which strike on either side.
pub type SharedFaults = Arc<Mutex<Faults>>;

/// Strikes, if a fault is due.
pub fn strike(faults: &SharedFaults, point: Point, records: &[Record]) {
    faults.lock().unwrap_or_else(PoisonError::into_inner).at(point, records);
}

/// Answers that follow from memory alone. A successor keeps no lease, so none of it has to be durable: a worker's renewal does
/// not wait for a disk.
pub fn is_of_memory(command: &Command) -> bool {
    matches!(command, Command::Reply(_, Reply::Renew(_)))
}

/// What a turn of the brain has brought forth.
#[derive(Default)]
pub struct Thought {
    /// Records, and what to do once they are durable.
    pub step: Step,
    /// The records as bytes.
    pub encoded: Vec<Vec<u8>>,
    /// The state after them is to become the journal's beginning.
    pub snapshot: Option<Box<(State, Audit)>>,
}

impl Thought {
    fn is_empty(&self) -> bool {
        self.step.records.is_empty() && self.step.commands.is_empty() && self.snapshot.is_none()
    }
}

/// How the scribe ended.
pub enum Over {
    /// All that was handed in is durable and let out; or it was asked to stop while the volume was full.
    Written,
    /// The journal's file is in an unknown state: only a new claim tells what is in it.
    JournalLost(straw::Error),
    /// For good.
    Failed(anyhow::Error),
}

/// The brain's side of the desk.
pub struct Scribe {
    desk: Arc<Desk>,
    thread: Option<JoinHandle<Over>>,
}

#[derive(Default)]
struct Desk {
    state: Mutex<Papers>,
    changed: Condvar,
}

#[derive(Default)]
struct Papers {
    waiting: VecDeque<Thought>,
    /// Being written.
    busy: bool,
    snapshot_is_on_its_way: bool,
    closed: bool,
    over: bool,
}

impl Desk {
    fn papers(&self) -> MutexGuard<'_, Papers> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, papers: MutexGuard<'a, Papers>) -> MutexGuard<'a, Papers> {
        self.changed.wait(papers).unwrap_or_else(PoisonError::into_inner)
    }
}

impl Scribe {
    /// Starts it.
    pub fn start(pen: Pen) -> std::io::Result<Self> {
        let desk = Arc::<Desk>::default();
        let its = desk.clone();
        let thread = std::thread::Builder::new().name("scribe".to_owned()).spawn(move || {
            let _leave = Leave(its.clone(), pen.inbox.clone());
            pen.work(&its)
        })?;
        Ok(Self { desk, thread: Some(thread) })
    }

    /// Hands a thought in; waits while too many are on their way. False when the scribe is over.
    pub fn hand_in(&self, thought: Thought) -> bool {
        let mut papers = self.desk.papers();
        while papers.waiting.len() >= THOUGHTS_MAX && !papers.over {
            papers = self.desk.wait(papers);
        }
        if papers.over || thought.is_empty() {
            return !papers.over;
        }
        papers.snapshot_is_on_its_way |= thought.snapshot.is_some();
        papers.waiting.push_back(thought);
        self.desk.changed.notify_all();
        true
    }

    /// Waits until all that was handed in is durable and let out. False when the scribe is over.
    pub fn settle(&self) -> bool {
        let mut papers = self.desk.papers();
        while (papers.busy || !papers.waiting.is_empty()) && !papers.over {
            papers = self.desk.wait(papers);
        }
        !papers.over
    }

    /// A snapshot was handed in and is not written yet.
    pub fn snapshot_is_on_its_way(&self) -> bool {
        self.desk.papers().snapshot_is_on_its_way
    }

    /// It has ended by itself.
    pub fn is_over(&self) -> bool {
        self.desk.papers().over
    }

    /// Waits for the rest and ends it.
    pub fn finish(mut self) -> Over {
        self.close();
        let died = || Over::Failed(anyhow::anyhow!("the scribe's thread died"));
        self.thread.take().map_or_else(died, |thread| thread.join().unwrap_or_else(|_| died()))
    }

    fn close(&self) {
        self.desk.papers().closed = true;
        self.desk.changed.notify_all();
    }
}

impl Drop for Scribe {
    fn drop(&mut self) {
        // A brain that failed lets out what it has thought before, and nothing after.
        self.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Tells the brain that nobody writes any more.
struct Leave(Arc<Desk>, Inbox);

impl Drop for Leave {
    fn drop(&mut self) {
        self.0.papers().over = true;
        self.0.changed.notify_all();
        self.1.wake();
    }
}

/// What the scribe writes with.
pub struct Pen {
    pub journal: Arc<Journal>,
    pub performer: Performer,
    pub steps: StepsFile,
    pub faults: SharedFaults,
    pub inbox: Inbox,
    /// When this epoch was last seen to be the highest.
    pub confirmed: Instant,
    /// The last question could not be asked.
    pub unsure: bool,
}

impl Pen {
    fn work(mut self, desk: &Desk) -> Over {
        loop {
            let mut papers = desk.papers();
            papers.busy = false;
            desk.changed.notify_all();
            let since = Instant::now();
            while papers.waiting.is_empty() && !papers.closed && since.elapsed() < CONFIRM_EVERY {
                let left = CONFIRM_EVERY.saturating_sub(since.elapsed());
                papers = desk.changed.wait_timeout(papers, left).unwrap_or_else(PoisonError::into_inner).0;
            }
            if papers.waiting.is_empty() && papers.closed {
                return Over::Written;
            }
            papers.busy = true;
            // What comes behind a snapshot is not in it.
            let until = papers.waiting.iter().position(|thought| thought.snapshot.is_some());
            let count = until.map_or(papers.waiting.len(), |at| at + 1);
            let thoughts: Vec<Thought> = papers.waiting.drain(..count).collect();
            desk.changed.notify_all();
            drop(papers);
            let snapshots = thoughts.iter().any(|thought| thought.snapshot.is_some());
            if let Some(over) = self.write(thoughts) {
                return over;
            }
            if snapshots {
                desk.papers().snapshot_is_on_its_way = false;
            }
        }
    }

    /// Makes the records durable, then acts.
    fn write(&mut self, thoughts: Vec<Thought>) -> Option<Over> {
        let records = |thought: &&Thought| !thought.step.records.is_empty();
        for thought in thoughts.iter().filter(records) {
            strike(&self.faults, Point::BeforeJournal, &thought.step.records);
        }
        if thoughts.iter().any(|thought| records(&thought)) {
            if let Some(over) = self.append(&thoughts) {
                return Some(over);
            }
            self.confirmed = Instant::now();
        } else if self.confirmed.elapsed() > CONFIRM_EVERY
            || thoughts.iter().flat_map(|thought| &thought.step.commands).any(reaches_out)
        {
            // A superseded conductor that has nothing to write would never learn so, and would go on commanding engines.
            if let Err(error) = self.confirm() {
                return Some(Over::Failed(error));
            }
        }
        for thought in thoughts {
            if let Some(over) = self.let_out(thought) {
                return Some(over);
            }
        }
        None
    }

    fn confirm(&mut self) -> anyhow::Result<()> {
        match self.journal.confirm() {
            Err(error @ straw::Error::Fenced { .. }) => return Err(superseded(&error)),
            // What cannot be asked now is asked again; acting is no worse than it was a moment ago.
            Err(error) => {
                // Told once, however often it is asked meanwhile.
                if !std::mem::replace(&mut self.unsure, true) {
                    tracing::warn!(%error, "the journal's owner cannot be confirmed");
                }
            }
            Ok(()) => {
                self.confirmed = Instant::now();
                if std::mem::take(&mut self.unsure) {
                    tracing::info!("the journal's owner is confirmed again");
                }
            }
        }
        Ok(())
    }

    /// Appends the records of all thoughts with as few syncs as it takes; while the volume is full, waits, and says so to whoever
    /// asks how things are.
    fn append(&mut self, thoughts: &[Thought]) -> Option<Over> {
        let all: Vec<&[Vec<u8>]> = thoughts.iter().flat_map(|thought| transactions(&thought.encoded)).collect();
        let mut rest: &[&[Vec<u8>]] = &all;
        let mut since = None;
        loop {
            let (written, ended) = self.write_some(rest);
            rest = rest.get(written..).unwrap_or_default();
            let error = match ended {
                Ok(()) => break,
                Err(error @ straw::Error::Fenced { .. }) => return Some(Over::Failed(superseded(&error))),
                Err(error @ straw::Error::OutOfSpace { .. }) => error,
                Err(error) => return Some(Over::JournalLost(error)),
            };
            let since = *since.get_or_insert_with(|| {
                tracing::warn!(%error, "the journal cannot be written; waiting");
                now_ms()
            });
            self.inbox.show_waiting(error.to_string(), since);
            let until = Instant::now() + STORAGE_PAUSE;
            while Instant::now() < until {
                if self.inbox.is_stopping() {
                    return Some(Over::Written);
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        if since.is_some() {
            self.inbox.show_nothing();
            tracing::info!("the journal can be written again");
        }
        None
    }

    /// Writes transactions in order; says how many are durable, and what became of the next.
    fn write_some(&self, transactions: &[&[Vec<u8>]]) -> (usize, straw::Result<()>) {
        let pipeline = self.journal.pipeline();
        let mut tickets = Vec::with_capacity(transactions.len());
        let mut refused = Ok(());
        for records in transactions {
            match self.journal.enqueue(pipeline, records) {
                Ok(ticket) => tickets.push(ticket),
                Err(error) => {
                    refused = Err(error);
                    break;
                }
            }
        }
        for (written, ticket) in tickets.iter().enumerate() {
            if let Err(error) = self.journal.wait(ticket) {
                return (written, Err(error));
            }
        }
        (tickets.len(), refused)
    }

    fn let_out(&mut self, thought: Thought) -> Option<Over> {
        let Thought { step: Step { records, commands, step_records }, snapshot, .. } = thought;
        if !records.is_empty() {
            strike(&self.faults, Point::AfterJournal, &records);
        }
        if let Err(error) = self.steps.append(&step_records) {
            // The journal has them; they are written when the volume takes them again, or by the next conductor.
            tracing::debug!("steps.jsonl: {error:#}");
        }
        for command in commands {
            if let Command::Reply(_, Reply::Progress(progress)) = &command {
                self.inbox.remember(progress);
            }
            self.performer.perform(command);
        }
        if !records.is_empty() {
            strike(&self.faults, Point::AfterCommands, &records);
        }
        let (state, audit) = *snapshot?;
        self.snapshot(state, audit)
    }

    /// Nothing is written behind the state's own records before this returns, so it is what the journal adds up to.
    fn snapshot(&mut self, state: State, audit: Audit) -> Option<Over> {
        let began = Instant::now();
        let steps_bytes = match self.steps.sync() {
            Ok(bytes) => bytes,
            Err(error) => {
                tracing::warn!("no snapshot: steps.jsonl: {error:#}");
                return None;
            }
        };
        let encoded = conductor::Snapshot { state, audit, steps_bytes }.encode();
        let bytes = match encoded {
            Ok(bytes) => bytes,
            Err(error) => return Some(Over::Failed(error.into())),
        };
        match self.journal.snapshot(self.journal.last(), &bytes) {
            Ok(()) => tracing::info!(bytes = bytes.len(), ms = began.elapsed().as_millis() as u64, "snapshot"),
            Err(error @ straw::Error::Fenced { .. }) => return Some(Over::Failed(superseded(&error))),
            // The journal is as good without; the next append tells whether it can go on.
            Err(error) => tracing::warn!(%error, "no snapshot"),
        }
        None
    }
}

/// Commands that change something outside this process that a successor would have to mend.
fn reaches_out(command: &Command) -> bool {
    matches!(
        command,
        Command::UpdateEngine { .. }
            | Command::ResumeEngine { .. }
            | Command::DeleteFolder { .. }
            | Command::RemovePacks { .. }
    )
}

/// Records as transactions that a journal takes.
fn transactions(records: &[Vec<u8>]) -> Vec<&[Vec<u8>]> {
    let mut all = Vec::new();
    let mut rest = records;
    while !rest.is_empty() {
        let mut bytes = 0;
        let fits = |record: &&Vec<u8>| {
            bytes += record.len();
            bytes <= TXN_BYTES
        };
        let count = rest.iter().take(TXN_RECORDS).take_while(fits).count().max(1);
        let (now, later) = rest.split_at(count);
        all.push(now);
        rest = later;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_cut_into_transactions_without_losing_one_or_their_order() {
        let small: Vec<Vec<u8>> = (0..TXN_RECORDS + 3).map(|n| n.to_le_bytes().to_vec()).collect();
        let cut = transactions(&small);
        assert_eq!(cut.len(), 2);
        assert_eq!(cut.concat(), small);
        let large = vec![vec![1; TXN_BYTES + 1], vec![2; TXN_BYTES / 2], vec![3; TXN_BYTES / 2], vec![4]];
        let cut = transactions(&large);
        assert_eq!(cut.iter().map(|records| records.len()).collect::<Vec<_>>(), [1, 2, 1]);
        assert!(transactions(&[]).is_empty());
    }
}
