//! A queue and its journal together, for the threads of one process.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::fs::Fs;
use crate::journal::{Pipeline, Ticket};
use crate::queue::{Op, Refused};
use crate::{Error, Journal, Lsn, Queue, Result};

/// The owner of a queue: decides under a lock, commits without it.
///
/// A change is decided and applied in memory under the lock, handed to the journal, and waited for outside of it, so what
/// others decide meanwhile shares the next write and sync. What is not durable yet can be seen by those who decide and by no
/// one else: every answer waits until all that it may follow from is durable.
///
/// After a failed commit its memory is ahead of the journal, so it does nothing more: drop it and claim the journal anew.
#[derive(Debug)]
pub struct Coordinator {
    journal: Journal,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    queue: Queue,
    pipeline: Pipeline,
    /// The transaction that the queue began with.
    begun: Lsn,
    /// The newest change since.
    newest: Option<Ticket>,
    over: bool,
}

impl Coordinator {
    /// Claims the journal in `dir` for `owner` and rebuilds its queue: the snapshot, then the ops behind it.
    ///
    /// # Errors
    /// As [`Journal::claim`]; [`Error::Corrupt`] when what was found is not a queue's.
    pub fn claim(fs: Arc<dyn Fs>, dir: impl AsRef<Path>, owner: &str) -> Result<Self> {
        let (journal, found) = Journal::claim(fs, &dir, owner)?;
        let mut queue = Queue::replay(found.snapshot.as_deref(), &found.txns).map_err(|e| match e {
            Error::Corrupt { what, .. } => Error::corrupt(dir.as_ref().display().to_string(), 0, what),
            other => other,
        })?;
        queue.begin_epoch(found.epoch);
        Ok(Self::new(journal, queue))
    }

    /// An owner with a journal that it has claimed, and the queue that the journal adds up to.
    pub fn new(journal: Journal, queue: Queue) -> Self {
        let (pipeline, begun) = (journal.pipeline(), journal.last());
        let state = State { queue, pipeline, begun, newest: None, over: false };
        Coordinator { journal, state: Mutex::new(state) }
    }

    /// The journal, for its epoch, its length and [`Journal::confirm`].
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Commits the ops that `decide` gives, as one transaction, and gives its answer once they are durable. Without ops the
    /// answer waits for what was decided before it.
    ///
    /// # Errors
    /// [`Error::Refused`]: nothing changed. As [`Journal::append`] otherwise, and [`Error::Poisoned`] ever after.
    pub fn commit<T>(&self, decide: impl FnOnce(&Queue) -> Result<(Vec<Op>, T), Refused>) -> Result<T> {
        let (ticket, answer) = {
            let mut state = self.state()?;
            let (ops, answer) = decide(&state.queue)?;
            if !ops.is_empty() {
                state.change(&self.journal, &ops)?;
            }
            (state.newest.clone(), answer)
        };
        self.settle(ticket)?;
        Ok(answer)
    }

    /// Changes what is not durable: grants, renews and ends leases. Writes nothing and waits for nothing, so what it looks at
    /// may be lost yet: fine for a lease, which no successor keeps anyway, and for nothing else.
    ///
    /// # Errors
    /// [`Error::Poisoned`]: a commit has failed.
    pub fn lease<T>(&self, act: impl FnOnce(&mut Queue) -> T) -> Result<T> {
        Ok(act(&mut self.state()?.queue))
    }

    /// Makes a snapshot of the state the beginning of the journal.
    ///
    /// # Errors
    /// As [`Journal::snapshot`].
    pub fn snapshot(&self) -> Result<()> {
        // What others commit from here on is behind the snapshot, not in it.
        let (begun, ticket, bytes) = {
            let state = self.state()?;
            let bytes = postcard::to_stdvec(&state.queue);
            let bytes = bytes.unwrap_or_else(|e| unreachable!("serialising to memory cannot fail: {e}"));
            (state.begun, state.newest.clone(), bytes)
        };
        let at = self.settle(ticket)?.unwrap_or(begun);
        self.journal.snapshot(at, &bytes)
    }

    fn settle(&self, ticket: Option<Ticket>) -> Result<Option<Lsn>> {
        let waited = ticket.map(|ticket| self.journal.wait(&ticket)).transpose();
        if waited.is_err() {
            self.lock().over = true;
        }
        waited
    }

    fn state(&self) -> Result<MutexGuard<'_, State>> {
        let state = self.lock();
        let closed = || Error::Poisoned { path: format!("coordinator of epoch {}", self.journal.epoch()) };
        if state.over { Err(closed()) } else { Ok(state) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| {
            // A thread died while it decided: what it left is not known to be whole.
            let mut state = PoisonError::into_inner(poisoned);
            state.over = true;
            state
        })
    }
}

impl State {
    fn change(&mut self, journal: &Journal, ops: &[Op]) -> Result<()> {
        let records: Vec<Vec<u8>> = ops
            .iter()
            .map(|op| postcard::to_stdvec(op).unwrap_or_else(|e| unreachable!("serialising cannot fail: {e}")))
            .collect();
        for (i, op) in ops.iter().enumerate() {
            if let Err(refused) = self.queue.apply(op) {
                self.over = i > 0; // the ops before it are applied, and cannot be taken back
                return Err(refused.into());
            }
        }
        match journal.enqueue(self.pipeline, &records) {
            Ok(ticket) => {
                self.newest = Some(ticket);
                Ok(())
            }
            Err(error) => {
                self.over = true;
                Err(error)
            }
        }
    }
}
