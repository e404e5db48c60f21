//! One owner of a queue and many workers, as the conductor and its workers are: whatever waits in the owner's inbox becomes
//! one transaction.

use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow, bail};
use straw::queue::{BatchId, Completion, Lease, LeaseTerms, NewTask, Op, Position, TaskId};
use straw::{Journal, Queue, RealFs, Ref};

const TERMS: LeaseTerms = LeaseTerms { duration_ms: 60_000, per_worker_max: 4096 };

enum Ask {
    Submit(u64, Sender<()>),
    Lease(String, Sender<Lease>),
    Complete(Lease, Vec<Ref>, Sender<()>),
    /// Everything accepted is consumed and let go.
    Ack(Sender<()>),
}

/// A handle of the owner's thread. May be cloned to each worker.
#[derive(Clone)]
pub struct Inbox(Sender<Ask>);

impl Inbox {
    fn ask<T>(&self, of: impl FnOnce(Sender<T>) -> Ask) -> Result<T> {
        let (reply, answer) = channel();
        self.0.send(of(reply)).map_err(|_| anyhow!("the owner is gone"))?;
        answer.recv().context("the owner gave no answer")
    }

    /// Adds tasks.
    pub fn submit(&self, count: u64) -> Result<()> {
        self.ask(|reply| Ask::Submit(count, reply))
    }

    /// Leases a task.
    pub fn lease(&self, worker: &str) -> Result<Lease> {
        self.ask(|reply| Ask::Lease(worker.to_owned(), reply))
    }

    /// Completes a task; durable when this returns.
    pub fn complete(&self, lease: Lease, result: Vec<Ref>) -> Result<()> {
        self.ask(|reply| Ask::Complete(lease, result, reply))
    }

    /// Consumes all that was accepted; durable when this returns.
    pub fn ack(&self) -> Result<()> {
        self.ask(Ask::Ack)
    }
}

/// Begins an owner of a new journal in `dir`. It ends when the last handle is gone, and then says what went wrong.
pub fn begin(dir: &Path) -> Result<(Inbox, JoinHandle<Result<()>>)> {
    let (journal, found) = Journal::claim(RealFs::new(), dir, "bench")?;
    let mut queue = Queue::new();
    queue.begin_epoch(found.epoch);
    let (inbox, asked) = channel();
    let owner = Owner { journal, queue, next: 0, batches: 0 };
    Ok((Inbox(inbox), std::thread::spawn(move || owner.reign(&asked))))
}

struct Owner {
    journal: Journal,
    queue: Queue,
    next: u64,
    batches: u64,
}

impl Owner {
    fn reign(mut self, asked: &Receiver<Ask>) -> Result<()> {
        while let Ok(first) = asked.recv() {
            let mut ops = Vec::new();
            let mut replies = Vec::new();
            for ask in std::iter::once(first).chain(asked.try_iter()) {
                match ask {
                    Ask::Lease(worker, reply) => {
                        let lease = self.queue.acquire(&worker, 1, 0, TERMS).pop().context("no task is left")?;
                        let _ = reply.send(lease);
                    }
                    Ask::Submit(count, reply) => {
                        ops.push(self.submit(count)?);
                        replies.push(reply);
                    }
                    Ask::Complete(lease, result, reply) => {
                        ops.push(self.complete(&lease, &result)?);
                        replies.push(reply);
                    }
                    Ask::Ack(reply) => {
                        ops.extend(self.ack());
                        replies.push(reply);
                    }
                }
            }
            if !ops.is_empty() {
                let records: Vec<Vec<u8>> = ops.iter().map(postcard::to_stdvec).collect::<Result<_, _>>()?;
                self.journal.append(&records)?;
                ops.iter().try_for_each(|op| self.queue.apply(op))?;
            }
            for reply in replies {
                let _ = reply.send(());
            }
        }
        Ok(())
    }

    fn submit(&mut self, count: u64) -> Result<Op> {
        let task = |id| NewTask { id: TaskId(id), input: vec![7; 64], attempts_max: 3 };
        let op = self.queue.submit((self.next..self.next + count).map(task).collect())?;
        self.next += count;
        Ok(op)
    }

    fn complete(&self, lease: &Lease, result: &[Ref]) -> Result<Op> {
        match self.queue.complete(lease.task, lease.attempt, &format!("group-{}", lease.task.0), result)? {
            Completion::Accept(op) => Ok(op),
            other => bail!("a fresh result was answered {other:?}"),
        }
    }

    /// All four of a batch's changes, in one transaction.
    fn ack(&mut self) -> [Op; 4] {
        let batch = BatchId(self.batches);
        self.batches += 1;
        let positions: Vec<Position> = self.queue.unbatched().map(|(position, _)| position).collect();
        [
            Op::PlanBatch { batch, positions },
            Op::BatchReady { batch, payload: vec![reference(0)] },
            Op::Consume { batch },
            Op::Release { below: BatchId(batch.0 + 1) },
        ]
    }
}

/// A reference like those that workers send.
pub fn reference(n: u64) -> Ref {
    Ref { pack: format!("bench-{n:016x}"), offset: 64, len: 4096, head: 64, crc: 0 }
}
