//! The process that is killed. What it begins, and what was acknowledged to it, it says in lines.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use straw::queue::{BatchId, Completion, Lease, LeaseTerms, NewTask, Op, Refused, TaskId};
use straw::{Archive, Collector, Coordinator, Error, Member, Queue, RealFs, Ref, Store, Tensor, Writer, compact};

use crate::{record, sheet, sheet_of, sheet_row, store};

/// A child whose parent is gone ends.
const LIFE: Duration = Duration::from_secs(60);
/// Forks have tasks of their own, beside those of the workers.
pub const FORKS: usize = 7;

/// One line, written at once: it is in the pipe, or it was never said.
pub fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    if out.write_all(format!("{line}\n").as_bytes()).and_then(|()| out.flush()).is_err() {
        std::process::exit(1); // nobody listens any more
    }
}

pub struct Child {
    pub dir: PathBuf,
    pub coordinator: Coordinator,
    pub store: Store,
    pub epoch: u64,
    begun: Instant,
    /// How often it went back to a checkpoint: what is said of a commit says, too, behind how many of them it was.
    pub times_back: AtomicU64,
}

/// Lives until it is killed.
pub fn live(dir: &Path) {
    let coordinator = Coordinator::claim(RealFs::new(), dir.join("journal"), "child").unwrap();
    let epoch = coordinator.journal().epoch();
    let (begun, times_back) = (Instant::now(), AtomicU64::new(0));
    let child = Child { dir: dir.to_owned(), coordinator, store: store(dir), epoch, begun, times_back };
    say("ready");
    std::thread::scope(|scope| {
        let child = &child;
        (0..3).for_each(|number| drop(scope.spawn(move || child.work(number))));
        child.govern();
    });
}

impl Child {
    fn now_us(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_micros()).unwrap()
    }

    pub fn now_ms(&self) -> u64 {
        self.now_us() / 1000
    }

    pub fn commit<T>(&self, decide: impl FnOnce(&Queue) -> Result<(Vec<Op>, T), Refused>) -> T {
        self.coordinator.commit(decide).unwrap()
    }

    /// The next number of a task: each worker has numbers of its own, in each epoch; one that is taken is tried again a little later.
    pub fn number(&self, worker: usize) -> u64 {
        self.epoch << 32 | (worker as u64) << 24 | (self.now_us() >> 6) & 0xff_ffff
    }

    /// Takes tasks, publishes what they give, completes them; adds new ones when there are few.
    fn work(&self, number: usize) {
        let owner = format!("worker-{number}");
        let writer = self.store.writer(&owner).unwrap();
        while self.begun.elapsed() < LIFE {
            let terms = LeaseTerms { per_worker_max: 2, ..LeaseTerms::default() };
            let leases = self.coordinator.lease(|queue| queue.acquire(&owner, 2, self.now_ms(), terms)).unwrap();
            if leases.is_empty() {
                self.submit(number);
            }
            leases.iter().for_each(|lease| self.finish(lease, &writer));
        }
    }

    fn finish(&self, lease: &Lease, writer: &Writer) {
        let task = lease.task.0;
        let submission = format!("{task}-of-{}", self.epoch);
        let refs = writer.publish(&submission, &[record(task)]).unwrap();
        say(&format!("published {task} {} {submission} {}", writer.owner(), refs[0].pack));
        say(&format!("completing {task} {submission}"));
        let done = self.coordinator.commit(|queue| {
            let back = self.times_back.load(SeqCst);
            let op = match queue.complete(lease.task, lease.attempt, &submission, &refs)? {
                Completion::Accept(op) => op,
                other => {
                    assert!(back > 0, "a task is completed once: {other:?}");
                    return Ok((vec![], None));
                }
            };
            // Some are kept for longer than their batch, so that packs become sparse.
            let keep = task.is_multiple_of(5).then(|| queue.retain(&format!("keep-{task:08}"), &refs)).transpose()?;
            Ok(([op].into_iter().chain(keep).collect(), Some(back)))
        });
        match done {
            Ok(Some(back)) => say(&format!("completed {task} {submission} {back}")),
            Ok(None) => {}
            Err(Error::Refused(Refused::PackRetired(pack))) => writer.retired(&pack),
            // Going back ends leases, and the task may be over there, or not yet known.
            Err(Error::Refused(Refused::StaleAttempt { .. } | Refused::AcceptedOtherwise { .. }))
                if self.times_back.load(SeqCst) > 0 => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn submit(&self, number: usize) {
        let first = self.number(number);
        let ids: Vec<u64> = (first..first + 4).collect();
        ids.iter().for_each(|id| say(&format!("submitting {id}")));
        let task = |id: &u64| NewTask { id: TaskId(*id), input: b"row".to_vec(), attempts_max: 3 };
        let done = self.coordinator.commit(|queue| {
            let back = self.times_back.load(SeqCst);
            Ok((vec![queue.submit(ids.iter().map(task).collect())?], back))
        });
        match done {
            Ok(back) => ids.iter().for_each(|id| say(&format!("submitted {id} {back}"))),
            Err(Error::Refused(Refused::TaskExists(_))) => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// Batches, collects, compacts, takes snapshots and checkpoints, and branches.
    fn govern(&self) {
        let writer = self.store.writer("governor").unwrap();
        let member = self.store.register("main").unwrap();
        let mut collector = Collector::new(0);
        let retired = self.commit(|queue| Ok((vec![], queue.retired().clone())));
        member.remove(&retired).unwrap();
        // Each life begins elsewhere, since many are short.
        let first = 5 * self.epoch % 24;
        for turn in first.. {
            if self.begun.elapsed() > LIFE {
                return;
            }
            self.batch(&writer);
            match turn % 12 {
                1 | 7 => self.collect(&mut collector, &member),
                2 => self.write_on(&writer),
                3 => self.compact(&writer),
                4 => {
                    self.coordinator.snapshot().unwrap();
                    say("snapshot");
                }
                0 | 5 => self.checkpoint(turn),
                6 => self.fork(turn),
                8 | 10 => self.work_in_forks(),
                9 => self.archive(turn, &writer),
                11 if turn % 24 == 11 => self.go_back(),
                _ => {}
            }
        }
    }

    fn batch(&self, writer: &Writer) {
        let planned = self.commit(|queue| {
            let positions: Vec<_> = queue.unbatched().map(|(position, _)| position).take(8).collect();
            let batch = queue.next_batch();
            let op = (!positions.is_empty()).then(|| queue.plan_batch(batch, &positions)).transpose()?;
            let keeps: Vec<&str> = queue.owners().map(|(owner, _)| owner).filter(|o| o.starts_with("keep-")).collect();
            let old = keeps.iter().take(keeps.len().saturating_sub(24)).filter_map(|owner| queue.release_owner(owner));
            Ok((op.iter().cloned().chain(old).collect(), op.map(|_| batch)))
        });
        // One that a process before has planned, or made ready, goes on from there.
        let (batch, ready) = self.commit(|queue| {
            let next = queue.consumed();
            Ok((vec![], (queue.batch(next).map(|_| next), queue.batch(next).is_some_and(|b| b.ready))))
        });
        let Some(batch) = batch else { return };
        assert!(planned.is_none_or(|planned| planned >= batch));
        if !ready {
            self.make_ready(batch, writer);
        }
        say(&format!("consuming {}", batch.0));
        self.commit(|queue| Ok((queue.ack(batch)?.into_iter().collect(), ())));
        say(&format!("consumed {}", batch.0));
        let below = BatchId(batch.0.saturating_sub(1));
        self.commit(|queue| Ok((vec![queue.release(below.max(queue.released()))?], ())));
    }

    fn make_ready(&self, batch: BatchId, writer: &Writer) {
        let submission = format!("batch-{}-of-{}", batch.0, self.epoch);
        loop {
            let payload: Vec<Ref> = writer.publish(&submission, &[record(batch.0)]).unwrap();
            match self.coordinator.commit(|queue| Ok((vec![queue.batch_ready(batch, &payload)?], ()))) {
                Ok(()) => return,
                // Going back made it anew, and what it was before was collected.
                Err(Error::Refused(Refused::PackRetired(pack))) => writer.retired(&pack),
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// The next version of the sheet takes the place of the one there is.
    fn write_on(&self, writer: &Writer) {
        let there = self.commit(|queue| {
            let sheet = |(owner, refs): (&str, &[Ref])| Some((owner.to_owned(), sheet_of(owner)?, refs[0].clone()));
            Ok((vec![], queue.owners().find_map(sheet)))
        });
        let version = there.as_ref().map_or(0, |(_, version, _)| version + 1);
        let submission = format!("sheet-{version}-of-{}", self.epoch);
        say(&format!("writing-on {version}"));
        loop {
            let refs = match &there {
                None => writer.publish(&submission, &[sheet(0)]).unwrap(),
                Some((_, _, base)) => {
                    let (row, value) = (sheet_row(version), Tensor::from_vec(&[1], vec![version]).unwrap());
                    let mut update = self.store.update(base).unwrap();
                    update.set_rows("values", row..row + 1, &value).unwrap();
                    assert!(update.shared_and_new().0 > 0, "two blocks of three are as they were");
                    writer.publish_updates(&submission, &[update]).unwrap()
                }
            };
            let held = self.coordinator.commit(|queue| {
                let retain = queue.retain(&format!("sheet-{version:08}"), &refs)?;
                let release = there.as_ref().and_then(|(owner, ..)| queue.release_owner(owner));
                Ok(([retain].into_iter().chain(release).collect(), ()))
            });
            match held {
                Ok(()) => return say(&format!("wrote-on {version}")),
                // Written before it went back, and collected since.
                Err(Error::Refused(Refused::PackRetired(pack))) => writer.retired(&pack),
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn collect(&self, collector: &mut Collector, member: &Member) {
        let packs = self.store.packs().unwrap();
        let (chosen, retired) = self.commit(|queue| {
            let chosen = collector.candidates(&packs, queue, self.now_ms());
            let mut ops = vec![queue.retire(&chosen)?];
            ops.extend(collector.horizon(&packs, queue, self.now_ms()).map(|below| queue.forget(below)).transpose()?);
            Ok((ops, (chosen, queue.retired().clone())))
        });
        chosen.iter().for_each(|pack| say(&format!("retired {pack}")));
        let all: BTreeSet<String> = retired.into_iter().chain(chosen).collect();
        if member.remove(&all).unwrap() > 0 {
            say("freed");
        }
    }

    fn compact(&self, writer: &Writer) {
        let packs = self.store.packs().unwrap();
        let sparse = self.commit(|queue| Ok((vec![], compact::sparse(&packs, queue, 70, Archive::is_owner))));
        let Some(one) = sparse.into_iter().find(|one| Some(&one.pack) != writer.pack().as_ref()) else { return };
        let moves = compact::copy(&self.store, writer, &one.pack, &one.live).unwrap();
        match self.coordinator.commit(|queue| Ok((vec![queue.move_records(&moves)?], ()))) {
            Ok(()) => say("moved"),
            // Copied before under this name, for what was taken back since.
            Err(Error::Refused(Refused::PackRetired(pack))) => writer.retired(&pack),
            Err(error) => panic!("{error}"),
        }
    }

    fn checkpoint(&self, turn: u64) {
        let name = format!("{:06}-{turn:06}", self.epoch);
        say(&format!("checkpointing {name}"));
        self.commit(|queue| {
            let held: BTreeSet<&str> = queue.forks().map(|(_, checkpoint)| checkpoint).collect();
            let old: Vec<&str> =
                queue.checkpoints().map(|(name, _)| name).filter(|name| !held.contains(name)).collect();
            let old = old.iter().take(old.len().saturating_sub(1)).map(|name| queue.drop_checkpoint(name));
            let ops: Result<Vec<Op>, Refused> = [queue.checkpoint(&name, b"model")].into_iter().chain(old).collect();
            Ok((ops?, ()))
        });
        say(&format!("checkpoint {name}"));
    }
}
