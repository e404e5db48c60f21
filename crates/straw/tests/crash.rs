//! Crashes at every write, sync and change of a name of a scripted run, and checks what was promised:
//!
//! * every acknowledged transaction is there, in order; the one under way is there whole or not at all;
//! * every acknowledged publish reads back identical, and its receipt is found;
//! * no reference that durable state holds dangles;
//! * the store goes on: the recovered run works, and survives another crash.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::collections::BTreeMap;
use std::sync::Arc;

use straw::queue::{BatchId, Class, Completion, DropCause, LeaseTerms, NewTask, Op, TaskId};
use straw::{
    Collector, Error, Fault, Journal, Options, Queue, Record, Ref, SimFs, Store, Tensor, compact, inspect, verify,
};

const TERMS: LeaseTerms = LeaseTerms { duration_ms: 100, per_worker_max: 64 };

/// The machine stopped; the step is not over.
#[derive(Debug)]
struct Stopped;

/// What was promised so far, kept outside of the machine that crashes.
#[derive(Clone, Default)]
struct Promised {
    /// State after the last acknowledged transaction, and its number.
    state: Queue,
    last: u64,
    /// State after the transaction that was under way.
    under_way: Option<Queue>,
    /// Acknowledged publishes, by submission.
    published: BTreeMap<String, (Vec<Ref>, Vec<Record>)>,
    /// Publishes that were tried: what a receipt may give.
    tried: BTreeMap<String, Vec<Record>>,
    epoch: u64,
}

/// A process: the owner of the journal and a worker in one.
struct Process<'a> {
    sim: SimFs,
    promised: &'a mut Promised,
    store: Store,
    member: straw::Member,
    writer: straw::Writer,
    journal: Journal,
    queue: Queue,
    now_ms: u64,
    /// Dies of the first error instead of trying again.
    frail: bool,
}

fn store(sim: &SimFs) -> Result<Store, Error> {
    let options = Options { pack_bytes_target: 3000, ..Options::default() };
    Store::open_with(Arc::new(sim.clone()), "/run/packs", options)
}

fn claim(sim: &SimFs) -> Result<(Journal, straw::Recovered), Error> {
    let options = straw::journal::Options { segment_bytes_target: 1200 };
    Journal::claim_with(Arc::new(sim.clone()), "/run/journal", "conductor-0", options)
}

fn rebuild(found: &straw::Recovered) -> Queue {
    let snapshot = found.snapshot.as_ref();
    let mut queue: Queue = snapshot.map(|bytes| postcard::from_bytes(bytes).unwrap()).unwrap_or_default();
    for record in found.txns.iter().flatten() {
        queue.apply(&postcard::from_bytes::<Op>(record).unwrap()).expect("a journal replays");
    }
    queue
}

impl<'a> Process<'a> {
    /// Starts, recovers, and compares with what was promised.
    fn start(sim: &SimFs, promised: &'a mut Promised) -> Result<Self, Error> {
        let store = store(sim)?;
        let (journal, found) = claim(sim)?;
        let queue = check_journal(&found, promised);
        check_store(&store, &queue, promised)?;
        let member = store.register("main")?;
        member.remove(queue.retired())?;
        let writer = store.writer("worker-0")?;
        let mut process =
            Process { sim: sim.clone(), promised, store, member, writer, journal, queue, now_ms: 0, frail: false };
        process.queue.begin_epoch(found.epoch);
        Ok(process)
    }

    /// Handles what a real owner would: waits out a full volume, claims anew after a lost sync, stops at a crash.
    fn retry<T>(&mut self, mut f: impl FnMut(&mut Self) -> Result<T, Error>) -> Result<T, Stopped> {
        for _ in 0..8 {
            match f(self) {
                Ok(done) => return Ok(done),
                Err(_) if self.frail || self.sim.is_crashed() => return Err(Stopped),
                Err(Error::OutOfSpace { .. } | Error::Io { .. }) => {}
                Err(Error::Poisoned { .. }) => self.reclaim()?,
                Err(e) => panic!("unexpected: {e}"),
            }
        }
        panic!("no progress although faults are rare");
    }

    fn reclaim(&mut self) -> Result<(), Stopped> {
        let (journal, found) = loop {
            match claim(&self.sim) {
                Ok(claimed) => break claimed,
                Err(_) if self.sim.is_crashed() => return Err(Stopped),
                Err(Error::OutOfSpace { .. } | Error::Io { .. } | Error::Poisoned { .. }) => {}
                Err(e) => panic!("unexpected: {e}"),
            }
        };
        self.queue = check_journal(&found, self.promised);
        self.queue.begin_epoch(found.epoch);
        self.journal = journal;
        Ok(())
    }

    /// One transaction. It may find, after a claim anew, that it had gone through.
    fn commit(&mut self, ops: &[Op]) -> Result<(), Stopped> {
        let mut after = self.promised.state.clone();
        ops.iter().for_each(|op| after.apply(op).unwrap());
        self.promised.under_way = Some(after.clone());
        let records: Vec<Vec<u8>> = ops.iter().map(|op| postcard::to_stdvec(op).unwrap()).collect();
        self.retry(|p| {
            if p.promised.state == after {
                return Ok(()); // recovered with the claim anew
            }
            p.promised.under_way = Some(after.clone());
            let lsn = p.journal.append(&records)?;
            assert_eq!(lsn, p.promised.last + 1, "transactions are numbered without a gap");
            p.promised.last = lsn;
            p.promised.state = after.clone();
            ops.iter().for_each(|op| p.queue.apply(op).unwrap());
            Ok(())
        })?;
        self.promised.under_way = None;
        assert_eq!(self.queue, self.promised.state);
        Ok(())
    }

    fn publish(&mut self, submission: &str, records: Vec<Record>) -> Result<Vec<Ref>, Stopped> {
        self.promised.tried.insert(submission.to_owned(), records.clone());
        let refs = self.retry(|p| p.writer.publish(submission, &records))?;
        self.promised.published.insert(submission.to_owned(), (refs.clone(), records));
        Ok(refs)
    }

    /// Publishes weights that share all but a few rows with those of `base`, whose rows were of `seed`.
    fn update(&mut self, submission: &str, base: &Ref, (before, seed): (u64, u64)) -> Result<Vec<Ref>, Stopped> {
        let mut expected = weights(before);
        let mut bytes = expected.tensors[0].tensor.bytes().to_vec();
        let new = vec![seed as u8; 100];
        bytes[66_000..66_100].copy_from_slice(&new);
        expected.tensors[0].tensor = Tensor::from_vec(&[WEIGHTS], bytes).unwrap();
        self.promised.tried.insert(submission.to_owned(), vec![expected.clone()]);
        let new = Tensor::from_vec(&[100], new).unwrap();
        let refs = self.retry(|p| {
            let mut update = p.store.update(base)?;
            update.set_rows("weights", 66_000..66_100, &new)?;
            p.writer.publish_updates(submission, &[update])
        })?;
        self.promised.published.insert(submission.to_owned(), (refs.clone(), vec![expected]));
        Ok(refs)
    }

    fn lease(&mut self) -> straw::queue::Lease {
        self.now_ms += 1;
        let leases = self.queue.acquire("worker-0", 1, self.now_ms, TERMS);
        leases.into_iter().next().expect("a task is pending")
    }

    fn complete(&mut self, size: u64) -> Result<(), Stopped> {
        let lease = self.lease();
        let submission = format!("g{}-{}", lease.task.0, lease.attempt);
        let refs = self.publish(&submission, vec![record(lease.task.0, size), record(lease.task.0 + 1, 3)])?;
        // The claim may have been lost meanwhile; a finished result is offered then.
        match self.queue.offer(lease.task, &submission, &refs).unwrap() {
            Completion::Accept(op) => self.commit(&[op]),
            other => panic!("unexpected: {other:?}"),
        }
    }

    fn snapshot(&mut self) -> Result<(), Stopped> {
        self.retry(|p| {
            let state = postcard::to_stdvec(&p.queue).unwrap();
            p.journal.snapshot(p.promised.last, &state)
        })
    }

    fn collect(&mut self) -> Result<(), Stopped> {
        let packs = self.retry(|p| p.store.packs())?;
        let mut collector = Collector::new(0);
        let names = collector.candidates(&packs, &self.queue, 0);
        let names: Vec<String> = names.into_iter().filter(|n| packs.iter().any(|p| &p.name == n)).collect();
        if names.is_empty() {
            return Ok(());
        }
        let op = self.queue.retire(&names).unwrap();
        self.commit(&[op])?;
        self.retry(|p| p.member.remove(p.queue.retired()).map(drop))?;
        let packs = self.retry(|p| p.store.packs())?;
        if let Some(below) = collector.horizon(&packs, &self.queue, 0) {
            let op = self.queue.forget(below).unwrap();
            self.commit(&[op])?;
        }
        Ok(())
    }

    /// Moves what is needed out of the emptiest pack.
    fn compact(&mut self) -> Result<(), Stopped> {
        self.compact_one(|_| true)
    }

    fn compact_one(&mut self, which: impl Fn(&compact::Sparse) -> bool) -> Result<(), Stopped> {
        self.writer.seal();
        let packs = self.retry(|p| p.store.packs())?;
        let one = compact::sparse(&packs, &self.queue, 100, |_| false).into_iter().find(which).expect("it is needed");
        let copier = self.store.writer("copier").unwrap();
        let moves = self.retry(|p| compact::copy(&p.store, &copier, &one.pack, &one.live))?;
        let op = self.queue.move_records(&moves).unwrap();
        self.commit(&[op])?;
        assert!(!self.queue.is_live(&one.pack), "nothing is left behind");
        Ok(())
    }

    fn batch(&mut self) -> Result<(), Stopped> {
        let batch = self.queue.next_batch();
        let positions: Vec<_> = self.queue.unbatched().map(|(p, _)| p).collect();
        let plan = self.queue.plan_batch(batch, &positions).unwrap();
        let task = NewTask { id: TaskId(1000 + batch.0), input: vec![7; 20], attempts_max: 2 };
        let submit = self.queue.submit(vec![task]).unwrap();
        self.commit(&[plan, submit])?; // a batch and the cursor of the source, in one transaction
        let payload = self.publish(&format!("batch-{}", batch.0), vec![record(50 + batch.0, 40)])?;
        let ready = self.queue.batch_ready(batch, &payload).unwrap();
        self.commit(&[ready])?;
        let ack = self.queue.ack(batch).unwrap().unwrap();
        self.commit(&[ack])
    }

    /// The scripted run.
    fn script(&mut self) -> Result<(), Stopped> {
        let task = |i| NewTask { id: TaskId(i), input: format!("row {i}").into_bytes(), attempts_max: 2 };
        let submit = self.queue.submit((0..6).map(task).collect()).unwrap();
        self.commit(&[submit])?;
        self.complete(5)?;
        self.complete(200)?;
        let lease = self.lease();
        let parts = self.publish("part-0", vec![record(9, 10)])?;
        if self.queue.lease(lease.task).is_some() {
            let op = self.queue.yield_partial(lease.task, lease.attempt, Class::Partial, Some(3), &parts).unwrap();
            self.commit(&[op])?;
        }
        self.batch()?;
        // Weights, and others that share blocks of them and outlive them.
        let base = self.publish("weights-0", vec![weights(0)])?;
        self.writer.seal();
        let shared = self.update("weights-1", &base[0], (0, 9))?;
        assert_eq!(shared[0].shares.len(), 1);
        let retain = self.queue.retain("weights", &shared).unwrap();
        self.commit(&[retain])?;
        self.snapshot()?;
        let lease = self.lease();
        let op = self.queue.fail(lease.task, lease.attempt, "no answer", true).unwrap();
        self.commit(&[op])?;
        self.complete(300)?;
        let held = self.lease();
        self.now_ms += 1000;
        for op in self.queue.lapsed(self.now_ms) {
            self.commit(&[op])?;
        }
        assert!(self.queue.lease(held.task).is_none());
        self.batch()?;
        let release = self.queue.release(BatchId(1)).unwrap();
        let retain = self.queue.retain("commit-0", &self.queue.batch(BatchId(1)).unwrap().payload).unwrap();
        self.commit(&[release, retain])?;
        self.compact()?;
        self.collect()?;
        self.reclaim_gently()?;
        self.complete(1)?;
        let position = self.queue.unbatched().next().unwrap().0;
        let op = self.queue.drop_accepted(&[position], DropCause::Filtered, "all rewards equal").unwrap();
        self.commit(&[op])?;
        let rewind = self.queue.rewind(BatchId(1)).unwrap();
        self.commit(&[rewind])?;
        self.compact()?;
        self.snapshot()?;
        let ack = self.queue.ack(BatchId(1)).unwrap().unwrap();
        let release = Op::Release { below: BatchId(2) };
        self.commit(&[ack, release])?;
        let op = self.queue.release_owner("commit-0").unwrap();
        self.commit(&[op])?;
        self.writer.seal();
        self.collect()?;
        // The pack that they share is given up: what they need of it moves.
        let shares = |r: &Ref| r.shares.first().map(|share| share.pack.clone());
        if let Some(pack) = shares(&self.queue.owner("weights").unwrap()[0]) {
            self.compact_one(|one| one.pack == pack)?;
            assert!(!self.queue.is_live(&pack));
            self.collect()?;
        }
        let op = self.queue.release_owner("weights").unwrap();
        self.commit(&[op])?;
        self.collect()?;
        self.complete(2)
    }

    /// A new owner takes over; the old one, still alive, must be told.
    fn reclaim_gently(&mut self) -> Result<(), Stopped> {
        let (journal, found) = self.retry(|p| claim(&p.sim))?;
        let zombie = std::mem::replace(&mut self.journal, journal);
        self.queue = check_journal(&found, self.promised);
        self.queue.begin_epoch(found.epoch);
        match zombie.append(&[b"a zombie's".to_vec()]) {
            Err(_) if self.sim.is_crashed() => Err(Stopped),
            Err(Error::Fenced { .. } | Error::OutOfSpace { .. } | Error::Poisoned { .. }) => Ok(()),
            other => panic!("a zombie was answered {other:?}"),
        }
    }
}

/// Bytes of weights: two blocks.
const WEIGHTS: u64 = 70_000;

fn weights(seed: u64) -> Record {
    let bytes: Vec<u8> = (0..WEIGHTS).map(|i| (i * 31 + seed) as u8).collect();
    Record::new("weights").with("weights", Tensor::from_vec(&[WEIGHTS], bytes).unwrap())
}

fn record(seed: u64, rows: u64) -> Record {
    let values: Vec<u32> = (0..rows * 3).map(|i| (i * 7 + seed) as u32).collect();
    Record::new(format!("{{\"seed\":{seed}}}")).with("tokens", Tensor::from_vec(&[rows, 3], values).unwrap())
}

/// The recovered history is the promised one, or has the transaction that was under way besides.
fn check_journal(found: &straw::Recovered, promised: &mut Promised) -> Queue {
    assert!(found.epoch > promised.epoch, "epochs only rise");
    promised.epoch = found.epoch;
    let queue = rebuild(found);
    if found.last == promised.last + 1 {
        assert_eq!(Some(&queue), promised.under_way.as_ref(), "a transaction is there whole");
    } else {
        assert_eq!(found.last, promised.last, "an acknowledged transaction was lost, or one was made up");
        assert_eq!(queue, promised.state);
    }
    promised.last = found.last;
    promised.state = queue.clone();
    promised.under_way = None;
    queue
}

fn check_store(store: &Store, queue: &Queue, promised: &mut Promised) -> Result<(), Error> {
    let receipts = store.receipts("worker-0")?;
    let retired = |refs: &[Ref]| refs.iter().flat_map(Ref::packs).any(|pack| queue.is_given_up(pack));
    for (submission, (refs, records)) in &promised.published {
        if retired(refs) {
            continue;
        }
        let found = receipts.get(submission).expect("an acknowledged publish has a receipt");
        assert_eq!(found.len(), refs.len());
        for (r, record) in refs.iter().zip(records) {
            assert_eq!(&store.read(r)?, record, "an acknowledged record changed");
        }
    }
    // A receipt without an acknowledgement is a promise from now on, and must be whole.
    for (submission, refs) in receipts {
        let records = promised.tried.get(&submission).expect("a receipt of something that was never published");
        // Blocks that it shares may have been collected: the queue would refuse it.
        let shared = refs.iter().flat_map(|r| &r.shares);
        if shared.into_iter().any(|share| queue.is_given_up(&share.pack)) {
            continue;
        }
        for (r, record) in refs.iter().zip(records) {
            assert_eq!(&store.read(r)?, record, "an unacknowledged publish is visible in part");
        }
        assert_eq!(refs.len(), records.len());
        if !retired(&refs) {
            promised.published.entry(submission).or_insert((refs, records.clone()));
        }
    }
    for r in queue.live_refs() {
        store.read(r).expect("durable state refers to it");
    }
    Ok(())
}

/// Recovers on `sim`, runs a little, and checks once more after another loss of power.
fn recover_and_go_on(sim: &SimFs, mut promised: Promised, seed: u64) {
    assert_eq!(verify(sim, "/run").map(|v| v.errors).unwrap_or_default(), [], "a crash is not damage");
    // The recovery itself may be cut short.
    sim.crash_at(seed % 40);
    let mut sim = sim.clone();
    let outcome = Process::start(&sim, &mut promised).map(|mut p| p.script_tail());
    if let Err(e) = outcome {
        assert!(sim.is_crashed(), "recovery failed without a crash: {e}");
    }
    if sim.is_crashed() {
        sim = sim.power_loss(seed + 1);
        Process::start(&sim, &mut promised).expect("recovers after a crash in its recovery").script_tail().unwrap();
    }
    let sim = sim.power_loss(seed + 2);
    Process::start(&sim, &mut promised).expect("recovers again");
    assert_eq!(inspect(&sim, "/run").unwrap().errors, []);
}

impl Process<'_> {
    /// Whatever state the crash left, this much must work.
    fn script_tail(&mut self) -> Result<(), Stopped> {
        let id = (5000..).map(TaskId).find(|id| self.queue.task(*id).is_none() && !self.queue.is_settled(*id)).unwrap();
        if self.queue.accepted_of(id).is_none() {
            let submit = self.queue.submit(vec![NewTask { id, input: vec![], attempts_max: 1 }]).unwrap();
            self.commit(&[submit])?;
        }
        if self.queue.pending_len() > 0 {
            self.complete(4)?;
        }
        self.snapshot()
    }
}

/// Runs the script on a machine that crashes at `crash_at`, if it gets that far. Says whether it did.
fn run_until(crash_at: Option<u64>, seed: u64) -> (SimFs, Promised) {
    let sim = SimFs::new(seed);
    if let Some(at) = crash_at {
        sim.crash_at(at);
    }
    let mut promised = Promised::default();
    let outcome = Process::start(&sim, &mut promised).map(|mut p| p.script());
    match outcome {
        Ok(Ok(())) => {}
        Ok(Err(Stopped)) | Err(_) => assert!(sim.is_crashed()),
    }
    (sim, promised)
}

#[test]
fn a_crash_at_every_point_loses_nothing_acknowledged_and_shows_nothing_in_part() {
    let (sim, promised) = run_until(None, 1);
    let points = sim.mutations();
    assert!(points > 120, "the script is long enough to be worth it: {points}");
    assert!(!promised.state.retired().is_empty() && promised.state.horizon() >= 2, "the script collects, and forgets");
    assert!(promised.published.len() > 6);
    for point in 0..points {
        let (sim, promised) = run_until(Some(point), 1);
        assert!(sim.is_crashed());
        // The process died, the machine lives; then the machine dies too.
        recover_and_go_on(&sim.process_death(), promised.clone(), point);
        for seed in 0..25 {
            recover_and_go_on(&sim.power_loss(point * 100 + seed), promised.clone(), point * 100 + seed);
        }
    }
}

#[test]
fn a_failed_write_or_sync_at_every_point_is_survived() {
    let (sim, _) = run_until(None, 1);
    for point in 0..sim.mutations() {
        for fault in [Fault::NoSpace, Fault::Io] {
            let sim = SimFs::new(point);
            sim.fail_at(point, fault);
            let mut promised = Promised::default();
            let mut tries = 0;
            let mut process = loop {
                match Process::start(&sim, &mut promised) {
                    Ok(process) => break process,
                    Err(e) => assert!(tries < 3, "does not start: {e}"),
                }
                tries += 1;
            };
            process.script().expect("one failure does not stop the run");
            for seed in 0..3 {
                recover_and_go_on(&sim.power_loss(point * 10 + seed), promised.clone(), seed);
            }
        }
    }
}

#[test]
fn a_process_that_dies_of_a_failed_write_or_sync_leaves_nothing_that_only_looks_durable() {
    let (sim, _) = run_until(None, 1);
    for point in 0..sim.mutations() {
        for fault in [Fault::NoSpace, Fault::Io] {
            let sim = SimFs::new(point);
            sim.fail_at(point, fault);
            let mut promised = Promised::default();
            if let Ok(mut process) = Process::start(&sim, &mut promised) {
                process.frail = true;
                let _ = process.script();
            }
            for seed in [3, 17, 39] {
                recover_and_go_on(&sim.process_death(), promised.clone(), seed);
            }
        }
    }
}

#[test]
fn a_full_volume_waits_and_goes_on() {
    for bytes_max in (600..9000).step_by(150) {
        let sim = SimFs::new(bytes_max);
        let mut promised = Promised::default();
        let process = Process::start(&sim, &mut promised).unwrap();
        sim.set_bytes_max(Some(bytes_max));
        let task = |i| NewTask { id: TaskId(i), input: vec![1; 40], attempts_max: 2 };
        let op = process.queue.submit((0..3).map(task).collect()).unwrap();
        let records = [postcard::to_stdvec(&op).unwrap()];
        let mut appended = 0;
        while let Ok(lsn) = process.journal.append(&records) {
            appended += 1;
            assert_eq!(lsn, appended);
        }
        assert!(matches!(process.journal.append(&records), Err(Error::OutOfSpace { .. })));
        let published = process.writer.publish("s", &[record(1, 400)]);
        assert!(matches!(published, Err(Error::OutOfSpace { .. })), "{published:?}");
        sim.set_bytes_max(None);
        assert_eq!(process.journal.append(&records).unwrap(), appended + 1, "no gap and no repeat");
        let refs = process.writer.publish("s", &[record(1, 400)]).unwrap();
        let after = sim.power_loss(bytes_max);
        assert_eq!(claim(&after).unwrap().1.txns.len() as u64, appended + 1);
        assert_eq!(store(&after).unwrap().read(&refs[0]).unwrap(), record(1, 400));
    }
}
