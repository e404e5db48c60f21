//! A worker: leases, publishes, completes, dies, and offers what its predecessor left.

use straw::queue::{Class, Completion, Lease, Refused};
use straw::{Error, Ref, SimFs, Store, Writer};

use crate::coordinator::{Coordinator, TERMS, publish, publish_on, store};
use crate::facts::{LONG, is_long, records_of};
use crate::world::World;

pub struct Worker {
    pub sim: SimFs,
    /// The queue it works for.
    line: usize,
    pub name: String,
    store: Store,
    writer: Writer,
    held: Vec<Held>,
    /// Finished, and not acknowledged.
    finished: Vec<Finished>,
    /// Records that others may share a block of; the newest ones.
    long: Vec<Ref>,
}

#[derive(Clone)]
struct Held {
    lease: Lease,
    /// What earlier attempts had made, as it was told with the lease.
    parts: Vec<Ref>,
}

#[derive(Clone)]
struct Finished {
    lease: Lease,
    submission: String,
    refs: Vec<Ref>,
}

impl Worker {
    pub fn start(world: &World, sim: SimFs, name: &str, line: usize) -> Option<Box<Self>> {
        let store = store(world, &sim).ok()?;
        let writer = store.writer(name).unwrap();
        let mut worker = Worker {
            sim,
            line,
            name: name.to_owned(),
            store,
            writer,
            held: Vec::new(),
            finished: Vec::new(),
            long: Vec::new(),
        };
        worker.recover(world)?;
        Some(Box::new(worker))
    }

    /// Receipts of what earlier incarnations published: everything acknowledged is among them, and each is whole.
    fn recover(&mut self, world: &World) -> Option<()> {
        let before: Vec<String> = {
            let facts = world.facts();
            let mine = |s: &String| facts.publishing.get(s).is_some_and(|(owner, _)| *owner == self.name);
            facts.published.keys().filter(|s| mine(s)).cloned().collect()
        };
        let receipts = self.store.receipts(&self.name).ok()?;
        world.count(|c| c.receipts += receipts.len() as u64);
        for submission in before {
            let facts = world.facts();
            let kept = facts.published[&submission].iter().any(|refs| !facts.is_retired(refs));
            assert!(!kept || receipts.contains_key(&submission), "the receipt of {submission} is lost");
        }
        for (submission, refs) in receipts {
            if world.facts().is_retired(&refs) {
                continue;
            }
            world.facts().published(&submission, &refs);
            let facts = world.facts();
            facts.check_read(&self.store, &submission, &refs, || world.fails());
        }
        Some(())
    }

    pub fn step(&mut self, world: &World) {
        match world.random.below(11) {
            0 | 1 => drop(world.with_coordinator(self.line, |c| self.lease(world, c))),
            2..5 => self.publish(world),
            5 | 6 => drop(world.with_coordinator(self.line, |c| self.complete(world, c))),
            7 => drop(world.with_coordinator(self.line, |c| self.give_up(world, c))),
            8 | 9 => {
                if let Some(held) = world.random.pick(&self.held).cloned() {
                    world.with_coordinator(self.line, |c| self.read_parts(world, c, &held));
                }
            }
            _ => match world.random.below(4) {
                0 => self.writer.seal(),
                1 => drop(world.with_coordinator(self.line, |c| self.give_up(world, c))),
                2 => drop(world.with_coordinator(self.line, |c| self.renew(world, c))),
                _ => {
                    // The same submission again: the receipt, and nothing written.
                    if let Some(f) = self.finished.last().cloned() {
                        let again = publish(world, &self.writer, &f.submission, records_of(&f.submission));
                        let retired = world.facts().is_refused(&f.refs);
                        assert!(retired || again == Some(f.refs), "a receipt is another one than before");
                    }
                }
            },
        }
    }

    fn lease(&mut self, world: &World, c: &mut Coordinator) {
        let now_ms = world.now_ms();
        for lease in c.queue.acquire(&self.name, 2, now_ms, TERMS) {
            let parts = c.queue.task(lease.task).map(|t| t.parts.clone()).unwrap_or_default();
            self.note_long(&parts);
            self.held.push(Held { lease, parts });
        }
    }

    fn renew(&mut self, world: &World, c: &mut Coordinator) {
        let now_ms = world.now_ms();
        self.held.retain(|h| c.queue.renew(h.lease.task, h.lease.attempt, now_ms, TERMS).is_ok());
    }

    fn publish(&mut self, world: &World) {
        let Some(held) = self.held.first().cloned() else { return };
        world.with_coordinator(self.line, |c| self.read_parts(world, c, &held));
        let lease = held.lease;
        let submission = format!("{}g{}-{}-{}", self.kind(world), lease.task.0, lease.attempt, self.line);
        if let Some(refs) = self.publish_one(world, &submission) {
            self.held.retain(|h| h.lease.attempt != lease.attempt);
            self.finished.push(Finished { lease, submission, refs });
        }
    }

    /// Some submissions are long, and share what they can.
    fn kind(&self, world: &World) -> String {
        if world.random.below(4) == 0 { LONG.to_string() } else { String::new() }
    }

    fn publish_one(&mut self, world: &World, submission: &str) -> Option<Vec<Ref>> {
        let base = world.random.pick(&self.long).filter(|_| submission.starts_with(LONG)).cloned();
        let refs = match base {
            Some(base) => publish_on(world, &self.store, &self.writer, submission, &base),
            None => publish(world, &self.writer, submission, records_of(submission)),
        }?;
        self.note_long(&refs);
        Some(refs)
    }

    fn note_long(&mut self, refs: &[Ref]) {
        self.long.extend(refs.iter().filter(|r| is_long(r)).cloned());
        let old = self.long.len().saturating_sub(4);
        self.long.drain(..old);
    }

    /// For as long as the lease holds, what was told with it can be read where it was said to be.
    fn read_parts(&self, world: &World, c: &Coordinator, held: &Held) {
        let holds = |c: &Coordinator| {
            let lease = c.queue.lease(held.lease.task);
            c.is_newest(world) && lease.is_some_and(|lease| lease.attempt == held.lease.attempt)
        };
        for r in &held.parts {
            match self.store.read(r) {
                Ok(_) => world.count(|count| count.old_parts_read += u64::from(c.queue.resolve(r) != *r)),
                Err(Error::PackMissing { .. }) => assert!(!holds(c), "a holder's parts were removed"),
                Err(Error::Io { .. }) if world.fails() => {}
                Err(e) => panic!("parts of a lease: {e}"),
            }
        }
    }

    fn complete(&mut self, world: &World, c: &mut Coordinator) {
        let Some(done) = self.finished.first().cloned() else { return };
        let Finished { lease, submission, refs } = &done;
        let answer = match world.random.below(2) {
            0 => c.queue.complete(lease.task, lease.attempt, submission, refs),
            _ => c.queue.offer(lease.task, submission, refs),
        };
        match answer {
            Ok(Completion::Accept(op)) => {
                if !c.commit(world, &[op]) {
                    return;
                }
                let (position, group) = c.queue.accepted_of(lease.task).expect("just accepted");
                assert_eq!(&group.submission, submission);
                world.facts().lines[self.line].accepted(submission, position.0);
                world.count(|c| c.accepted += 1);
            }
            Ok(Completion::Already(position)) => {
                // Known to whom it spoke to; a zombie may know what it never was acknowledged.
                world.facts().lines[self.line].accepted(submission, position.0);
            }
            Ok(Completion::Settled) => {}
            Err(Refused::StaleAttempt { .. }) => return, // offers it later
            Err(Refused::PackRetired(pack)) => {
                self.writer.retired(&pack);
                world.count(|c| c.republished += 1);
                self.long.retain(|r| !r.needs(&pack));
                if let Some(refs) = publish(world, &self.writer, submission, records_of(submission)) {
                    self.finished[0].refs = refs;
                }
                return;
            }
            Err(Refused::AcceptedOtherwise { .. } | Refused::UnknownTask(_)) => {}
            Err(e) => panic!("unexpected: {e}"),
        }
        self.finished.remove(0);
    }

    fn give_up(&mut self, world: &World, c: &mut Coordinator) {
        let Some(Held { lease, parts: before }) = self.held.pop() else { return };
        let mut shares: Vec<String> = Vec::new();
        let op = match world.random.below(2) {
            0 => c.queue.fail(lease.task, lease.attempt, "no answer", true),
            _ => {
                let submission = format!("{}p{}-{}-{}", self.kind(world), lease.task.0, lease.attempt, self.line);
                let Some(mut parts) = self.publish_one(world, &submission) else { return };
                shares.extend(parts.iter().flat_map(|r| r.shares.clone()).map(|share| share.pack));
                parts.extend(before);
                parts.truncate(4);
                c.queue.yield_partial(lease.task, lease.attempt, Class::Partial, Some(3), &parts)
            }
        };
        match op {
            Ok(op) => drop(c.commit(world, &[op])),
            Err(Refused::PackRetired(pack)) => {
                let own = pack.starts_with(&self.name) || shares.contains(&pack);
                assert!(own || !c.is_newest(world), "progress of an earlier attempt is refused");
                self.writer.retired(&pack);
                self.long.retain(|r| !r.needs(&pack));
            }
            Err(_) => {}
        }
    }
}
