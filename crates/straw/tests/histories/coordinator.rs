//! An owner of the journal, or one that believes to be.

use straw::queue::{BatchId, Completion, DropCause, LeaseTerms, NewTask, Op, Position, Queue, Refused, TaskId};
use straw::{Collector, Error, Journal, Member, Options, Ref, SimFs, Store, Writer, compact};

use crate::facts::content;
use crate::world::World;

pub const TERMS: LeaseTerms = LeaseTerms { duration_ms: 200, per_worker_max: 8 };

pub struct Coordinator {
    /// Of the run's journal (0) or of the fork's (1).
    pub line: usize,
    pub sim: SimFs,
    member: Member,
    pub store: Store,
    pub journal: Journal,
    pub queue: Queue,
    pub writer: Writer,
    collector: Collector,
    /// It was told that it is not the owner, or its journal is closed.
    pub over: bool,
}

/// Names of the queues in the pool, and where their journals are.
pub const NAMES: [&str; 2] = ["main", "fork"];
const JOURNALS: [&str; 2] = ["/run/journal", "/run/fork"];

pub fn store(world: &World, sim: &SimFs) -> Result<Store, Error> {
    let options = Options { pack_bytes_target: 2500, ..Options::default() };
    Store::open_with(world.hooked(sim), "/run/packs", options)
}

impl Coordinator {
    /// Claims the journal. `None` when it failed on the way.
    pub fn start(world: &World, sim: SimFs, line: usize) -> Option<Box<Self>> {
        let store = store(world, &sim).ok()?;
        let member = store.register(NAMES[line]).ok()?;
        world.facts().registered[line] = true;
        let acked = world.facts().lines[line].acked;
        let options = straw::journal::Options { segment_bytes_target: 900 };
        let (journal, found) = match Journal::claim_with(world.hooked(&sim), JOURNALS[line], "conductor", options) {
            Ok(claimed) => claimed,
            Err(Error::Corrupt { path, offset, what }) => panic!("no damage was done: {path} at {offset}: {what}"),
            Err(_) => return None,
        };
        let mut queue = world.facts().lines[line].claimed(&found, acked);
        world.facts().note_removable();
        if world.facts().leaving[line] {
            return None; // it was told to leave meanwhile: its journal is not used any more
        }
        queue.begin_epoch(found.epoch);
        world.count(|c| c.claims += 1);
        let writer = store.writer(&format!("conductor-{line}")).unwrap();
        let collector = Collector::new(40);
        Some(Box::new(Coordinator { line, member, sim, store, journal, queue, writer, collector, over: false }))
    }

    /// One transaction: journal first, then apply. `false` when it was not acknowledged.
    pub fn commit(&mut self, world: &World, ops: &[Op]) -> bool {
        if self.over {
            return false;
        }
        if world.random.below(3) == 0 {
            return self.commit_behind_others(world, ops);
        }
        let txn: Vec<Vec<u8>> = ops.iter().map(|op| postcard::to_stdvec(op).unwrap()).collect();
        let lsn = self.journal.last() + 1;
        world.facts().lines[self.line].trying(lsn, &txn);
        match self.journal.append(&txn) {
            Ok(given) => {
                assert_eq!(given, lsn, "transactions are numbered without a gap");
                world.facts().lines[self.line].acknowledged(lsn, &txn);
                world.facts().note_removable();
                world.count(|c| c.txns += 1);
                ops.iter().for_each(|op| self.queue.apply(op).unwrap());
                true
            }
            Err(Error::OutOfSpace { .. }) => {
                world.count(|c| c.full += 1);
                false
            }
            Err(Error::Fenced { .. }) => {
                world.count(|c| c.fenced += 1);
                self.over = true;
                false
            }
            Err(_) => {
                self.over = true;
                false
            }
        }
    }

    /// As [`Coordinator::commit`], behind others that nobody has waited for: each is applied as soon as it was handed in. Whoever
    /// is told of a failure has a queue that is ahead of the journal, and is over.
    fn commit_behind_others(&mut self, world: &World, ops: &[Op]) -> bool {
        let pipeline = self.journal.pipeline();
        let mut handed_in = Vec::new();
        let others = world.random.below(4);
        for i in 0..=others {
            let ops = if i == others { ops.to_vec() } else { vec![self.queue.submit(new_tasks(world)).unwrap()] };
            let txn: Vec<Vec<u8>> = ops.iter().map(|op| postcard::to_stdvec(op).unwrap()).collect();
            let lsn = self.journal.last() + 1 + i;
            world.facts().lines[self.line].trying(lsn, &txn);
            match self.journal.enqueue(pipeline, &txn) {
                Ok(ticket) => handed_in.push((ticket, lsn, txn)),
                Err(_) => {
                    self.over = true;
                    return false;
                }
            }
            ops.iter().for_each(|op| self.queue.apply(op).unwrap());
            world.pause(&self.sim);
        }
        // All at once, or one after the other.
        if world.random.below(2) == 0 {
            let _ = self.journal.wait(&handed_in.last().unwrap().0);
        }
        for (ticket, lsn, txn) in &handed_in {
            match self.journal.wait(ticket) {
                Ok(given) => {
                    assert!(!self.over, "a transaction is acknowledged behind one that was not");
                    assert_eq!(given, *lsn, "transactions are numbered in the order they were handed in");
                    world.facts().lines[self.line].acknowledged(*lsn, txn);
                    world.facts().note_removable();
                    world.count(|c| c.pipelined += 1);
                }
                Err(_) => self.over = true,
            }
        }
        if self.over {
            world.count(|c| c.pipelines_lost += 1);
            assert!(self.journal.enqueue(pipeline, &[b"behind a failure"]).is_err(), "a pipeline ends with a failure");
        }
        !self.over
    }

    fn publish(&mut self, world: &World, submission: &str, records: usize) -> Option<Vec<Ref>> {
        publish(world, &self.writer, submission, records)
    }

    pub fn step(&mut self, world: &World) {
        let random = &world.random;
        let now_ms = world.now_ms();
        match random.below(28) {
            0..5 => self.submit(world),
            5..9 => self.batch(world),
            9 | 10 => {
                let due = self.queue.consumed();
                if let Ok(Some(op)) = self.queue.ack(due) {
                    self.commit(world, &[op]);
                }
            }
            11 => {
                let to = BatchId(random.below(4) + self.queue.released().0);
                if let Ok(op) = self.queue.rewind(to) {
                    self.commit(world, &[op]);
                }
            }
            12 | 13 => {
                let below = BatchId(random.below(3) + self.queue.released().0);
                if let Ok(op) = self.queue.release(below) {
                    self.commit(world, &[op]);
                }
            }
            14 => self.owners(world),
            15 | 16 => self.snapshot(world),
            17..19 => self.collect(world),
            19 => {
                let lapsed = self.queue.lapsed(now_ms);
                if !lapsed.is_empty() {
                    self.commit(world, &lapsed);
                }
            }
            20 => {
                let position = self.queue.unbatched().map(|(p, _)| p).next();
                if let Some(position) = position {
                    let op = self.queue.drop_accepted(&[position], DropCause::Filtered, "all rewards equal").unwrap();
                    self.commit(world, &[op]);
                }
            }
            21 => self.checkpoints(world),
            22 => self.consumers(world),
            23 => self.fork(world),
            24 => self.compact(world),
            25 => self.leave(world),
            _ => {
                let task = self.queue.tasks().next().map(|t| t.id);
                if let Some(task) = task {
                    let op = self.queue.cancel(task, DropCause::Cancelled, "not wanted").unwrap();
                    self.commit(world, &[op]);
                }
            }
        }
    }

    /// Whatever was given up and forgotten: what is published now is accepted.
    pub fn accepts_new_work(&mut self, world: &World) {
        self.submit(world);
        let Some(task) = self.queue.tasks().map(|t| t.id).last().filter(|_| !self.over) else { return };
        let submission = format!("last-{}-{}", task.0, self.line);
        let writer = self.store.writer(&format!("last-{}", self.line)).unwrap();
        let refs = publish(world, &writer, &submission, 1).expect("a quiet volume takes it");
        match self.queue.offer(task, &submission, &refs) {
            Ok(Completion::Accept(op)) => assert!(self.commit(world, &[op]), "a quiet volume takes it"),
            other => panic!("a fresh result was not accepted: {other:?}"),
        }
    }

    fn submit(&mut self, world: &World) {
        let op = self.queue.submit(new_tasks(world)).unwrap();
        self.commit(world, &[op]);
    }

    fn batch(&mut self, world: &World) {
        let unready: Option<BatchId> = self.queue.batches().find(|(_, b)| !b.ready).map(|(id, _)| id);
        let batch = match unready {
            Some(batch) => batch,
            None => {
                let positions: Vec<_> = self.queue.unbatched().map(|(p, _)| p).take(3).collect();
                if positions.is_empty() {
                    return;
                }
                let batch = self.queue.next_batch();
                let op = self.queue.plan_batch(batch, &positions).unwrap();
                if !self.commit(world, &[op]) {
                    return;
                }
                batch
            }
        };
        let submission = format!("batch-{}-{}-{}", batch.0, self.journal.epoch(), self.line);
        let Some(payload) = self.publish(world, &submission, 2) else { return };
        match self.queue.batch_ready(batch, &payload) {
            Ok(op) => drop(self.commit(world, &[op])),
            Err(straw::queue::Refused::PackRetired(pack)) => self.writer.retired(&pack),
            Err(e) => panic!("a planned batch takes its payload: {e}"),
        }
    }

    fn owners(&mut self, world: &World) {
        let payload = self.queue.batches().flat_map(|(_, b)| b.payload.clone()).next();
        let op = match payload {
            Some(r) if world.random.below(2) == 0 => self.queue.retain("commit", &[r]).ok(),
            _ => self.queue.release_owner("commit"),
        };
        if let Some(op) = op {
            self.commit(world, &[op]);
        }
    }

    fn checkpoints(&mut self, world: &World) {
        let names: Vec<String> = self.queue.checkpoints().map(|(name, _)| name.to_owned()).collect();
        let any = world.random.pick(&names);
        let op = match (world.random.below(4), any) {
            (0, Some(name)) => self.queue.rollback(name).unwrap(),
            (1, Some(name)) => match self.queue.drop_checkpoint(name) {
                Ok(op) => op,
                Err(_) => return, // held for the fork
            },
            _ => {
                let name = format!("step-{}-{}", self.journal.last(), self.journal.epoch());
                match self.queue.checkpoint(&name, name.as_bytes()) {
                    Ok(op) => op,
                    Err(Refused::CheckpointExists(_)) => return, // taken, and not committed yet
                    Err(e) => panic!("{e}"),
                }
            }
        };
        let (back, count) = (matches!(op, Op::Rollback { .. }), names.len());
        if self.commit(world, &[op]) {
            world.count(|c| c.rollbacks += u64::from(back));
            world.count(|c| c.checkpoints += u64::from(self.queue.checkpoints().count() > count));
        }
    }

    fn consumers(&mut self, world: &World) {
        let Ok(groups) = self.queue.fetch("eval", Position(0), 3) else {
            let op = self.queue.open_consumer("eval", Position(0)).unwrap();
            self.commit(world, &[op]);
            return;
        };
        let positions: Vec<Position> = groups.iter().map(|(p, _)| *p).collect();
        let op = match world.random.below(8) {
            0 => self.queue.close_consumer("eval").unwrap(),
            _ => self.queue.ack_consumer("eval", &positions, Some(b"cursor")).unwrap(),
        };
        self.commit(world, &[op]);
    }

    fn snapshot(&mut self, world: &World) {
        if self.over {
            return;
        }
        let state = postcard::to_stdvec(&self.queue).unwrap();
        match self.journal.snapshot(self.journal.last(), &state) {
            Ok(()) => world.count(|c| c.snapshots += 1),
            Err(Error::Fenced { .. } | Error::Poisoned { .. }) => self.over = true,
            Err(_) => {}
        }
    }

    fn collect(&mut self, world: &World) {
        let Ok(packs) = self.store.packs() else { return };
        let open = self.writer.pack();
        let mine = packs.iter().find(|p| Some(&p.name) == open.as_ref());
        let lives = !self.over && !world.was_locked_out(&self.sim);
        assert!(!lives || mine.is_none_or(|p| !p.abandoned), "a writer that lives was taken for dead");
        world.count(|c| c.abandoned += packs.iter().filter(|p| p.abandoned).count() as u64);
        let names = self.collector.candidates(&packs, &self.queue, world.now_ms());
        if !names.is_empty() {
            let Ok(op) = self.queue.retire(&names) else { panic!("a candidate is not live") };
            if self.commit(world, &[op]) {
                world.count(|c| c.retired += names.len() as u64);
            }
        }
        if self.over {
            return; // its queue may be ahead of the journal: what it believes retired may not be
        }
        let live = world.facts().lines[self.line].model.live_packs();
        assert!(self.queue.retired().iter().all(|pack| !live.contains(pack)), "a live pack is about to be removed");
        if self.member.remove(self.queue.retired()).is_ok_and(|bytes| bytes > 0) {
            world.count(|c| c.removals += 1);
        }
        let Ok(packs) = self.store.packs() else { return };
        if let Some(below) = self.collector.horizon(&packs, &self.queue, world.now_ms()) {
            let before = self.queue.retired().len();
            let op = self.queue.forget(below).expect("the horizon rises");
            if self.commit(world, &[op]) {
                world.count(|c| c.forgotten += (before - self.queue.retired().len()) as u64);
            }
        }
    }

    /// Moves what is needed out of some pack.
    fn compact(&mut self, world: &World) {
        let Ok(packs) = self.store.packs() else { return };
        let sparse = compact::sparse(&packs, &self.queue, 100, |_| false);
        let Some(one) = world.random.pick(&sparse) else { return };
        let Ok(moves) = compact::copy(&self.store, &self.writer, &one.pack, &one.live) else { return };
        // Others acted while it was copied: what is not needed any more stays, and the copies may have been collected.
        let op = match self.queue.move_records(&moves) {
            Ok(op) => op,
            Err(Refused::PackRetired(pack)) => return self.writer.retired(&pack),
            Err(e) => panic!("copies are the same records: {e}"),
        };
        if self.commit(world, &[op]) {
            world.count(|c| c.moves += moves.len() as u64);
            let left = self.queue.live_refs().any(|r| moves.iter().any(|(from, _)| from == r));
            assert!(!left, "a reference was not moved");
        }
    }

    /// It has not been succeeded, as far as anyone knows.
    pub fn is_newest(&self, world: &World) -> bool {
        !self.over && world.facts().lines[self.line].newest_epoch() == self.journal.epoch()
    }

    /// Begins the fork, or goes on where an earlier coordinator was interrupted: hold, register, begin, end the hold.
    fn fork(&mut self, world: &World) {
        if self.line == 1 || self.over {
            return;
        }
        let held = self.queue.forks().next().map(|(_, checkpoint)| checkpoint.to_owned());
        let Some(checkpoint) = held else {
            let newest = self.queue.head().map(str::to_owned);
            if let Some(newest) = newest.filter(|_| !world.facts().lines[1].begun) {
                let op = self.queue.hold_for(NAMES[1], &newest).unwrap();
                self.commit(world, &[op]);
            }
            return;
        };
        match self.store.register(NAMES[1]) {
            Ok(_) => {}
            // It had begun, and is over already.
            Err(Error::QueueLeft { .. }) => {
                assert!(world.facts().leaving[1], "a queue has left that nobody told to");
                let op = self.queue.end_hold(NAMES[1]).expect("it was held");
                self.commit(world, &[op]);
                return;
            }
            Err(_) => return,
        }
        let state = postcard::to_stdvec(&self.queue.fork(&checkpoint).unwrap()).unwrap();
        {
            let mut facts = world.facts();
            facts.registered[1] = true;
            facts.begun_with.push(state.clone());
        }
        let before = world.facts().lines[1].acked;
        let Ok((journal, found)) = Journal::begin(world.hooked(&self.sim), JOURNALS[1], "forker", &state) else {
            return;
        };
        drop(journal);
        {
            let mut facts = world.facts();
            if !facts.lines[1].begun {
                let first = found.snapshot.as_ref().expect("a journal that began has a state");
                assert_eq!(found.last, 0);
                facts.begun(first);
                world.count(|c| c.forks += 1);
            }
            facts.lines[1].claimed(&found, before);
            facts.note_removable();
        }
        let op = self.queue.end_hold(NAMES[1]).expect("it was held");
        self.commit(world, &[op]);
    }
}

impl Coordinator {
    /// Leaves the pool for good, if another queue stays in it: the run is over, and its fork goes on, or the other way round.
    fn leave(&mut self, world: &World) {
        let other_stays = |world: &World| {
            let other = 1 - self.line;
            let facts = world.facts();
            facts.in_use().contains(&other) && facts.registered[other]
        };
        if self.over || self.queue.forks().next().is_some() || self.journal.confirm().is_err() {
            return;
        }
        if other_stays(world) && self.is_newest(world) {
            world.facts().leaving[self.line] = true;
            self.over = true;
            leave(world, self.member.clone(), self.line);
        }
    }
}

fn leave(world: &World, member: Member, line: usize) {
    if member.leave().is_ok() {
        world.facts().left[line] = true;
        world.facts().note_removable();
        world.count(|c| c.left += 1);
    }
}

/// Ends a leave that was interrupted.
pub fn leave_again(world: &World, sim: &SimFs, line: usize) {
    let Ok(store) = store(world, sim) else { return };
    let left = world.facts().left[line];
    match store.register(NAMES[line]) {
        Ok(member) => {
            assert!(!left, "a queue that had left came back");
            leave(world, member, line);
        }
        Err(Error::QueueLeft { .. }) => world.facts().left[line] = true,
        Err(_) => {}
    }
}

fn new_tasks(world: &World) -> Vec<NewTask> {
    let first = {
        let mut facts = world.facts();
        facts.next_task += 3;
        facts.next_task
    };
    let task = |i| NewTask { id: TaskId(first + i), input: format!("row {i}").into_bytes(), attempts_max: 3 };
    (0..1 + world.random.below(3)).map(task).collect()
}

/// Publishes what `submission` always has.
pub fn publish(world: &World, writer: &Writer, submission: &str, records: usize) -> Option<Vec<Ref>> {
    world.facts().publishing(writer.owner(), submission, records);
    published(world, submission, writer.publish(submission, &content(submission, records)))
}

/// The same content, as one that shares what it can with `base`.
pub fn publish_on(world: &World, store: &Store, writer: &Writer, submission: &str, base: &Ref) -> Option<Vec<Ref>> {
    world.facts().publishing(writer.owner(), submission, 1);
    let want = content(submission, 1).remove(0);
    let update = store.update(base).and_then(|mut update| {
        update.set("tokens", want.tensor("tokens")?)?;
        update.set_meta(want.meta.clone());
        Ok(update)
    });
    let refs = published(world, submission, update.and_then(|update| writer.publish_updates(submission, &[update])))?;
    world.count(|c| c.shared += refs.iter().filter(|r| !r.shares.is_empty()).count() as u64);
    Some(refs)
}

fn published(world: &World, submission: &str, refs: straw::Result<Vec<Ref>>) -> Option<Vec<Ref>> {
    match refs {
        Ok(refs) => {
            world.facts().published(submission, &refs);
            world.count(|c| c.publishes += 1);
            Some(refs)
        }
        Err(Error::SubmissionConflict { .. }) => panic!("a submission has one content"),
        Err(_) => None,
    }
}
