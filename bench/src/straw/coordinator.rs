//! One owner of a queue and many workers, each on a thread of its own: what they complete while one sync is under way shares the
//! next.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use anyhow::{Context, Result};
use straw::queue::{BatchId, Completion, Lease, LeaseTerms, NewTask, Op, Position, TaskId};
use straw::{Coordinator, RealFs, Ref};

const TERMS: LeaseTerms = LeaseTerms { duration_ms: 60_000, per_worker_max: 4096 };

/// The owner.
pub struct Owner {
    coordinator: Coordinator,
    tasks: AtomicU64,
}

/// Begins a new journal in `dir`.
pub fn begin(dir: &Path) -> Result<Owner> {
    Ok(Owner { coordinator: Coordinator::claim(RealFs::new(), dir, "bench")?, tasks: AtomicU64::new(0) })
}

impl Owner {
    /// Adds tasks.
    pub fn submit(&self, count: u64) -> Result<()> {
        let first = self.tasks.fetch_add(count, Relaxed);
        let task = |id| NewTask { id: TaskId(id), input: vec![7; 64], attempts_max: 3 };
        let tasks = (first..first + count).map(task).collect();
        Ok(self.coordinator.commit(|queue| Ok((vec![queue.submit(tasks)?], ())))?)
    }

    /// Leases a task.
    pub fn lease(&self, worker: &str) -> Result<Lease> {
        let mut leases = self.coordinator.lease(|queue| queue.acquire(worker, 1, 0, TERMS))?;
        leases.pop().context("no task is left")
    }

    /// Completes a task; durable when this returns.
    pub fn complete(&self, lease: &Lease, result: &[Ref]) -> Result<()> {
        let submission = format!("group-{}", lease.task.0);
        Ok(self.coordinator.commit(|queue| {
            match queue.complete(lease.task, lease.attempt, &submission, result)? {
                Completion::Accept(op) => Ok((vec![op], ())),
                Completion::Already(_) | Completion::Settled => Ok((Vec::new(), ())),
            }
        })?)
    }

    /// Consumes all that was accepted: all four of a batch's changes, in one transaction, durable when this returns.
    pub fn ack(&self) -> Result<()> {
        Ok(self.coordinator.commit(|queue| {
            let batch = queue.next_batch();
            let positions: Vec<Position> = queue.unbatched().map(|(position, _)| position).collect();
            let ops = vec![
                Op::PlanBatch { batch, positions },
                Op::BatchReady { batch, payload: vec![reference(0)] },
                Op::Consume { batch },
                Op::Release { below: BatchId(batch.0 + 1) },
            ];
            Ok((ops, ()))
        })?)
    }
}

/// A reference like those that workers send.
pub fn reference(n: u64) -> Ref {
    Ref { pack: format!("bench-{n:016x}"), offset: 64, len: 4096, head: 64, crc: 0, ..Ref::default() }
}
