//! The queue with its journal: each durable change is one transaction, and a whole life of tasks.

use anyhow::{Result, bail};
use straw::queue::{BatchId, Completion, Lease, LeaseTerms, NewTask, Op, Position, TaskId};
use straw::{Journal, Queue, RealFs, Ref, Writer};

use super::floor::Appender;
use super::{Case, KIB, noise, record};
use crate::line::{Line, Lines};
use crate::rounds::{by_turns, rate, seconds};

/// Tasks of a round.
const TASKS: u64 = 64;

/// A queue and its journal.
pub struct Journaled {
    journal: Journal,
    queue: Queue,
    next: u64,
    batches: u64,
    appended: u64,
    writer: Writer,
}

const TERMS: LeaseTerms = LeaseTerms { duration_ms: 60_000, per_worker_max: 4096 };

fn new_task(id: u64) -> NewTask {
    // What the conductor puts there: a row of the data and how to sample it.
    NewTask { id: TaskId(id), input: vec![7; 64], attempts_max: 3 }
}

impl Journaled {
    fn open(case: &Case, name: &str) -> Result<Self> {
        let (journal, found) = Journal::claim(RealFs::new(), case.dir.join(name), "bench")?;
        let mut queue = Queue::new();
        queue.begin_epoch(found.epoch);
        let writer = case.store(&format!("{name}-packs"))?.writer("bench")?;
        Ok(Self { journal, queue, next: 0, batches: 0, appended: 0, writer })
    }

    /// Journals and applies one change.
    fn commit(&mut self, op: &Op) -> Result<()> {
        let bytes = postcard::to_stdvec(op)?;
        self.appended += bytes.len() as u64;
        self.journal.append(&[bytes])?;
        Ok(self.queue.apply(op)?)
    }

    /// Journals many changes as one transaction, and applies them.
    fn commit_all(&mut self, ops: &[Op]) -> Result<()> {
        let records: Vec<Vec<u8>> = ops.iter().map(postcard::to_stdvec).collect::<Result<_, _>>()?;
        self.journal.append(&records)?;
        ops.iter().try_for_each(|op| Ok(self.queue.apply(op)?))
    }

    fn submit(&mut self, count: u64) -> Result<()> {
        let tasks = (self.next..self.next + count).map(new_task).collect();
        self.next += count;
        let op = self.queue.submit(tasks)?;
        self.commit(&op)
    }

    fn complete(&self, lease: &Lease, result: &[Ref]) -> Result<Op> {
        match self.queue.complete(lease.task, lease.attempt, &format!("group-{}", lease.task.0), result)? {
            Completion::Accept(op) => Ok(op),
            other => bail!("a fresh result was answered {other:?}"),
        }
    }

    /// The accepted groups become a batch, are learnt and let go.
    fn batch(&mut self) -> Result<()> {
        let positions: Vec<Position> = self.queue.unbatched().map(|(position, _)| position).collect();
        let batch = BatchId(self.batches);
        self.batches += 1;
        let plan = self.queue.plan_batch(batch, &positions)?;
        self.commit(&plan)?;
        let ready = self.queue.batch_ready(batch, &[reference(0)])?;
        self.commit(&ready)?;
        if let Some(ack) = self.queue.ack(batch)? {
            self.commit(&ack)?;
        }
        let release = self.queue.release(BatchId(batch.0 + 1))?;
        self.commit(&release)
    }
}

fn reference(n: u64) -> Ref {
    Ref { pack: format!("bench-{n:016x}"), offset: 64, len: 4096, head: 64, crc: 0, ..Ref::default() }
}

/// Single operations, operations of 64 at once, and the life of a task with its result.
pub fn run(case: &Case, lines: &mut Lines) -> Result<()> {
    if !case.wants("queue") {
        return Ok(());
    }
    let mut q = Journaled::open(case, "queue")?;
    let mut floor = Appender::create(&case.dir.join("queue-floor"))?;
    let small = noise(160); // about what a submit or a complete appends, framed
    let peer = "write+fdatasync";
    let rounds = case.options.rounds;

    let mut leases: Vec<Lease> = Vec::new();
    let mut one_by_one = [Vec::new(), Vec::new(), Vec::new(), Vec::new()];
    let mut one_floor = Vec::new();
    for round in 0..=rounds {
        let floor_seconds = |floor: &mut Appender| seconds(|| (0..TASKS).try_for_each(|_| floor.append(&small)));
        let early = if round % 2 == 0 { Some(floor_seconds(&mut floor)?) } else { None };
        let submit = seconds(|| (0..TASKS).try_for_each(|_| q.submit(1)))?;
        let acquire = seconds(|| {
            leases = (0..TASKS).flat_map(|_| q.queue.acquire("w", 1, 0, TERMS)).collect();
            Ok(())
        })?;
        let renew = seconds(|| {
            leases.iter().try_for_each(|l| q.queue.renew(l.task, l.attempt, 1, TERMS).map(drop).map_err(Into::into))
        })?;
        let complete = seconds(|| {
            leases.iter().try_for_each(|lease| {
                let op = q.complete(lease, &[reference(lease.task.0)])?;
                q.commit(&op)
            })
        })?;
        let late = match early {
            Some(seconds) => seconds,
            None => floor_seconds(&mut floor)?,
        };
        q.batch()?;
        if round > 0 {
            for (times, seconds) in one_by_one.iter_mut().zip([submit, acquire, renew, complete]) {
                times.push(seconds);
            }
            one_floor.push(late);
        }
    }
    let one_floor = crate::rounds::Times(one_floor);
    let [submit, acquire, renew, complete] = one_by_one.map(crate::rounds::Times);
    let n = TASKS as f64;
    lines.add(rate("queue", "submit 1", n, "tasks/s", &submit).against(peer, &submit, &one_floor))?;
    lines.add(rate("queue", "acquire 1 (memory)", n, "tasks/s", &acquire))?;
    lines.add(rate("queue", "renew 1 (memory)", n, "leases/s", &renew))?;
    lines.add(rate("queue", "complete 1", n, "tasks/s", &complete).against(peer, &complete, &one_floor))?;

    // 64 in one transaction.
    let (many, few) = (noise(160 * TASKS as usize), std::cell::RefCell::new(floor));
    let q = std::cell::RefCell::new(q);
    let times = by_turns(
        rounds,
        vec![
            Box::new(|| {
                let mut q = q.borrow_mut();
                let spent = seconds(|| q.submit(TASKS))?;
                let leases = q.queue.acquire("w", TASKS as usize, 0, TERMS);
                let ops: Vec<Op> =
                    leases.iter().map(|l| q.complete(l, &[reference(l.task.0)])).collect::<Result<_>>()?;
                let spent = spent + seconds(|| q.commit_all(&ops))?;
                q.batch()?;
                Ok(spent)
            }),
            Box::new(|| seconds(|| (0..2).try_for_each(|_| few.borrow_mut().append(&many)))),
        ],
    )?;
    let line = rate("queue", "submit and complete, 64 a transaction", n, "tasks/s", &times[0]);
    lines.add(line.against("2 x write+fdatasync", &times[0], &times[1]))?;

    // The whole life of a task: submitted, leased, its 4 KiB result published, completed, batched, consumed, released.
    let payload = [record(4 * KIB)?];
    let block = noise(4 * KIB);
    let times = by_turns(
        rounds,
        vec![
            Box::new(|| {
                let mut q = q.borrow_mut();
                seconds(|| {
                    for _ in 0..16 {
                        q.submit(1)?;
                        let lease = q.queue.acquire("w", 1, 0, TERMS).remove(0);
                        let refs = q.writer.publish(&format!("group-{}", lease.task.0), &payload)?;
                        let op = q.complete(&lease, &refs)?;
                        q.commit(&op)?;
                    }
                    q.batch()
                })
            }),
            Box::new(|| {
                let mut file = few.borrow_mut();
                seconds(|| {
                    for _ in 0..16 {
                        file.append(&small)?;
                        file.append(&block)?;
                        file.append(&small)?;
                    }
                    (0..4).try_for_each(|_| file.append(&small))
                })
            }),
        ],
    )?;
    let line = rate("queue", "whole life, results of 4 KiB, batches of 16", 16.0, "tasks/s", &times[0]);
    lines.add(line.against("the same syncs, raw", &times[0], &times[1]))?;
    let q = q.into_inner();
    lines.add(Line::new("queue", "journal", q.appended as f64 / q.next as f64, "bytes/task"))
}
