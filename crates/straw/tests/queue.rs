//! The queue against a naive model, and its rules one by one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use straw::queue::{
    AttemptId, BatchId, Class, Completion, DropCause, Lease, LeaseTerms, NewTask, Op, Position, Refused, Settled,
    TaskId, Wanted,
};
use straw::{Collector, PackInfo, Queue, Ref};

const TERMS: LeaseTerms = LeaseTerms { duration_ms: 50, per_worker_max: 3 };
const WORKERS: [&str; 3] = ["a", "b", "c"];

fn reference(n: u64) -> Ref {
    Ref { pack: format!("w-{n:016x}"), offset: 64, len: 100, head: 30, crc: n as u32, ..Ref::default() }
}

fn new_task(id: u64, attempts_max: u32) -> NewTask {
    NewTask { id: TaskId(id), input: vec![id as u8], attempts_max }
}

/// The queue as one would write it without a care for speed.
#[derive(Clone, Debug, Default)]
struct Model {
    tasks: Vec<ModelTask>, // in line: new and returned tasks go to the end
    accepted: Vec<ModelGroup>,
    positions: u64,
    batches: BTreeMap<u64, (Vec<u64>, bool)>,
    planned: u64,
    consumed: u64,
    released: u64,
    over: Vec<u64>,
    dropped: u64,
}

#[derive(Clone, Debug)]
struct ModelTask {
    id: u64,
    class: Class,
    key: Option<u64>,
    failures: u32,
    failures_max: u32,
    partial: bool,
    holder: Option<(AttemptId, usize, u64)>,
}

#[derive(Clone, Debug)]
struct ModelGroup {
    position: u64,
    task: u64,
    submission: String,
    result: Vec<u64>,
    batch: Option<u64>,
}

impl Model {
    fn in_order(&self) -> Vec<u64> {
        let mut free: Vec<&ModelTask> = self.tasks.iter().filter(|t| t.holder.is_none()).collect();
        free.sort_by_key(|t| (t.class, t.key.unwrap_or(u64::MAX))); // stable: the line decides ties
        free.iter().map(|t| t.id).collect()
    }

    fn task(&mut self, id: u64) -> Option<&mut ModelTask> {
        self.tasks.iter_mut().find(|t| t.id == id)
    }

    fn holds(&mut self, lease: &Lease) -> bool {
        self.task(lease.task.0).is_some_and(|t| t.holder.is_some_and(|(attempt, ..)| attempt == lease.attempt))
    }

    fn line_up(&mut self, id: u64) {
        let at = self.tasks.iter().position(|t| t.id == id).unwrap();
        let task = self.tasks.remove(at);
        self.tasks.push(task);
    }

    fn end(&mut self, id: u64) {
        self.tasks.retain(|t| t.id != id);
        assert!(!self.over.contains(&id));
        self.over.push(id);
    }

    fn fail(&mut self, id: u64, drop: bool) {
        let task = self.task(id).unwrap();
        task.failures += 1;
        task.holder = None;
        if drop || task.failures >= task.failures_max {
            self.end(id);
            self.dropped += 1;
        } else {
            self.line_up(id);
        }
    }

    fn complete(&mut self, id: u64, submission: &str, result: Vec<u64>) {
        self.tasks.retain(|t| t.id != id);
        let group =
            ModelGroup { position: self.positions, task: id, submission: submission.into(), result, batch: None };
        self.accepted.push(group);
        self.positions += 1;
    }
}

#[derive(Clone, Debug)]
enum Act {
    Submit { id: u64, attempts_max: u32 },
    Acquire { worker: usize, max: usize },
    Complete { lease: usize },
    Offer { id: u64, submission: u64 },
    Again { group: usize },
    Yield { lease: usize, class: Class, key: Option<u64> },
    Fail { lease: usize, retry: bool },
    Renew { lease: usize },
    GiveBack { lease: usize },
    Gone { worker: usize },
    Wait { ms: u64 },
    Plan { groups: usize, ahead: u64 },
    Ready { batch: u64 },
    Ack { batch: u64 },
    Rewind { to: u64 },
    Release { below: u64 },
    Drop { position: u64 },
    Cancel { id: u64 },
    Restart,
}

fn act() -> impl Strategy<Value = Act> {
    let class = prop_oneof![Just(Class::Ready), Just(Class::Partial), Just(Class::Fresh)];
    prop_oneof![
        6 => (0..60u64, 1..4u32).prop_map(|(id, attempts_max)| Act::Submit { id, attempts_max }),
        6 => (0..3usize, 1..4usize).prop_map(|(worker, max)| Act::Acquire { worker, max }),
        6 => (0..12usize).prop_map(|lease| Act::Complete { lease }),
        2 => (0..60u64, 0..80u64).prop_map(|(id, submission)| Act::Offer { id, submission }),
        2 => (0..20usize).prop_map(|group| Act::Again { group }),
        3 => (0..12usize, class, proptest::option::of(0..4u64)).prop_map(|(lease, class, key)| Act::Yield { lease, class, key }),
        2 => (0..12usize, any::<bool>()).prop_map(|(lease, retry)| Act::Fail { lease, retry }),
        1 => (0..12usize).prop_map(|lease| Act::Renew { lease }),
        1 => (0..12usize).prop_map(|lease| Act::GiveBack { lease }),
        1 => (0..3usize).prop_map(|worker| Act::Gone { worker }),
        2 => (1..60u64).prop_map(|ms| Act::Wait { ms }),
        3 => (0..4usize, 0..2u64).prop_map(|(groups, ahead)| Act::Plan { groups, ahead }),
        3 => (0..2u64).prop_map(|batch| Act::Ready { batch }),
        3 => (0..3u64).prop_map(|batch| Act::Ack { batch }),
        1 => (0..3u64).prop_map(|to| Act::Rewind { to }),
        2 => (0..3u64).prop_map(|below| Act::Release { below }),
        1 => (0..30u64).prop_map(|position| Act::Drop { position }),
        1 => (0..60u64).prop_map(|id| Act::Cancel { id }),
        1 => Just(Act::Restart),
    ]
}

/// The queue under test, beside the model.
struct Pair {
    queue: Queue,
    model: Model,
    journal: Vec<Op>,
    granted: Vec<Lease>,
    now_ms: u64,
    epoch: u64,
}

impl Pair {
    fn new() -> Self {
        let mut queue = Queue::new();
        queue.begin_epoch(1);
        Pair { queue, model: Model::default(), journal: vec![], granted: vec![], now_ms: 0, epoch: 1 }
    }

    /// Applies what was allowed; says whether it was.
    fn apply(&mut self, op: Result<Op, Refused>) -> bool {
        let Ok(op) = op else { return false };
        // Through the journal's encoding and back.
        let bytes = postcard::to_stdvec(&op).unwrap();
        let op: Op = postcard::from_bytes(&bytes).unwrap();
        self.queue.apply(&op).expect("a validated op applies");
        self.journal.push(op);
        true
    }

    fn lease(&self, pick: usize) -> Option<Lease> {
        let recent = self.granted.len().saturating_sub(12);
        self.granted.get(recent..)?.get(pick).cloned()
    }

    fn take(&mut self, act: Act) {
        match act {
            Act::Submit { id, attempts_max } => self.submit(id, attempts_max),
            Act::Acquire { worker, max } => self.acquire(worker, max),
            Act::Complete { lease } => self.complete(lease),
            Act::Offer { id, submission } => self.offer(id, submission),
            Act::Again { group } => self.again(group),
            Act::Yield { lease, class, key } => self.give_partial(lease, class, key),
            Act::Fail { lease, retry } => self.fail(lease, retry),
            Act::Renew { lease } => self.renew(lease),
            Act::GiveBack { lease } => self.give_back(lease),
            Act::Gone { worker } => self.gone(worker),
            Act::Wait { ms } => self.wait(ms),
            Act::Plan { groups, ahead } => self.plan(groups, ahead),
            Act::Ready { batch } => self.ready(batch),
            Act::Ack { batch } => self.ack(batch),
            Act::Rewind { to } => self.rewind(to),
            Act::Release { below } => self.release(below),
            Act::Drop { position } => self.drop_group(position),
            Act::Cancel { id } => self.cancel(id),
            Act::Restart => self.restart(),
        }
    }

    fn submit(&mut self, id: u64, attempts_max: u32) {
        let known = self.model.task(id).is_some()
            || self.model.over.contains(&id)
            || self.model.accepted.iter().any(|g| g.task == id);
        let done = self.apply(self.queue.submit(vec![new_task(id, attempts_max)]));
        assert_eq!(done, !known);
        if done {
            let task = ModelTask {
                id,
                class: Class::Fresh,
                key: None,
                failures: 0,
                failures_max: attempts_max,
                partial: false,
                holder: None,
            };
            self.model.tasks.push(task);
        }
    }

    fn acquire(&mut self, worker: usize, max: usize) {
        let held = self.model.tasks.iter().filter(|t| t.holder.is_some_and(|(_, w, _)| w == worker)).count();
        let expected: Vec<u64> = self.model.in_order().into_iter().take(max.min(TERMS.per_worker_max - held)).collect();
        let leases = self.queue.acquire(WORKERS[worker], max, self.now_ms, TERMS);
        assert_eq!(leases.iter().map(|l| l.task.0).collect::<Vec<_>>(), expected);
        for lease in leases {
            assert!(self.granted.iter().all(|old| old.attempt < lease.attempt), "attempts only rise");
            self.model.task(lease.task.0).unwrap().holder = Some((lease.attempt, worker, lease.expires_ms));
            self.granted.push(lease);
        }
    }

    fn complete(&mut self, pick: usize) {
        let Some(lease) = self.lease(pick) else { return };
        let (id, submission) = (lease.task.0, format!("{}-{}", lease.task.0, lease.attempt));
        let result = [reference(id)];
        let answer = self.queue.complete(lease.task, lease.attempt, &submission, &result);
        let same = self.model.accepted.iter().find(|g| g.submission == submission).map(|g| g.position);
        match answer {
            Ok(Completion::Accept(op)) => {
                assert!(self.model.holds(&lease) && same.is_none());
                self.apply(Ok(op));
                self.model.complete(id, &submission, vec![id]);
            }
            Ok(Completion::Already(position)) => assert_eq!(Some(position.0), same),
            Ok(Completion::Settled) => assert!(self.model.over.contains(&id)),
            Err(Refused::AcceptedOtherwise { .. }) => {
                assert!(self.model.accepted.iter().any(|g| g.task == id && g.submission != submission));
            }
            Err(Refused::StaleAttempt { .. }) => assert!(self.model.task(id).is_some() && !self.model.holds(&lease)),
            Err(e) => panic!("{e}"),
        }
    }

    fn offer(&mut self, id: u64, submission: u64) {
        let submission = format!("offer-{submission}");
        match self.queue.offer(TaskId(id), &submission, &[reference(id), reference(id + 1)]) {
            Ok(Completion::Accept(op)) => {
                assert!(self.model.task(id).is_some());
                assert!(self.model.accepted.iter().all(|g| g.submission != submission));
                self.apply(Ok(op));
                self.model.complete(id, &submission, vec![id, id + 1]);
            }
            Ok(Completion::Already(p)) => {
                assert!(
                    self.model.accepted.iter().any(|g| g.position == p.0 && g.task == id && g.submission == submission)
                );
            }
            Ok(Completion::Settled) => assert!(self.model.over.contains(&id)),
            Err(Refused::SubmissionTaken { task, .. }) => {
                assert!(task.0 != id && self.model.accepted.iter().any(|g| g.submission == submission));
            }
            Err(Refused::AcceptedOtherwise { .. }) => assert!(self.model.accepted.iter().any(|g| g.task == id)),
            Err(Refused::UnknownTask(_)) => assert!(self.model.task(id).is_none() && !self.model.over.contains(&id)),
            Err(e) => panic!("{e}"),
        }
    }

    fn again(&mut self, pick: usize) {
        let Some(group) = self.model.accepted.get(pick).cloned() else { return };
        let answer = self.queue.offer(TaskId(group.task), &group.submission, &[]);
        assert_eq!(answer, Ok(Completion::Already(Position(group.position))));
    }

    fn give_partial(&mut self, pick: usize, class: Class, key: Option<u64>) {
        let Some(lease) = self.lease(pick) else { return };
        let holds = self.model.holds(&lease);
        let op = self.queue.yield_partial(lease.task, lease.attempt, class, key, &[reference(7)]);
        assert_eq!(self.apply(op), holds);
        if holds {
            let task = self.model.task(lease.task.0).unwrap();
            (task.class, task.key, task.partial, task.holder) = (class, key, true, None);
            self.model.line_up(lease.task.0);
        }
    }

    fn fail(&mut self, pick: usize, retry: bool) {
        let Some(lease) = self.lease(pick) else { return };
        let holds = self.model.holds(&lease);
        let op = self.queue.fail(lease.task, lease.attempt, "no answer", retry);
        assert_eq!(self.apply(op), holds);
        if holds {
            self.model.fail(lease.task.0, !retry);
        }
    }

    fn renew(&mut self, pick: usize) {
        let Some(lease) = self.lease(pick) else { return };
        let (holds, now_ms) = (self.model.holds(&lease), self.now_ms);
        let renewed = self.queue.renew(lease.task, lease.attempt, now_ms, TERMS);
        assert_eq!(renewed.is_ok(), holds);
        if let Ok(expires_ms) = renewed {
            let holder = self.model.task(lease.task.0).unwrap().holder.as_mut().unwrap();
            holder.2 = holder.2.max(now_ms + TERMS.duration_ms);
            assert_eq!(holder.2, expires_ms);
        }
    }

    fn give_back(&mut self, pick: usize) {
        let Some(lease) = self.lease(pick) else { return };
        let holds = self.model.holds(&lease);
        assert_eq!(self.queue.give_back(lease.task, lease.attempt).is_ok(), holds);
        if holds {
            self.model.task(lease.task.0).unwrap().holder = None;
        }
    }

    fn gone(&mut self, worker: usize) {
        let mut released: Vec<u64> = self.queue.release_worker(WORKERS[worker]).iter().map(|t| t.0).collect();
        let mut expected = Vec::new();
        for task in &mut self.model.tasks {
            if task.holder.is_some_and(|(_, w, _)| w == worker) {
                task.holder = None;
                expected.push(task.id);
            }
        }
        released.sort();
        expected.sort();
        assert_eq!(released, expected);
    }

    fn wait(&mut self, ms: u64) {
        self.now_ms += ms;
        let now_ms = self.now_ms;
        let mut over: Vec<(u64, u64)> =
            self.model.tasks.iter().filter_map(|t| t.holder.map(|(.., e)| (e, t.id))).collect();
        over.retain(|(expires, _)| *expires <= now_ms);
        over.sort();
        let ops = self.queue.lapsed(now_ms);
        assert_eq!(ops.len(), over.len());
        for (op, (_, id)) in ops.into_iter().zip(over) {
            self.apply(Ok(op));
            self.model.fail(id, false);
        }
        assert!(self.queue.next_expiry_ms().is_none_or(|next| next > now_ms));
    }

    fn plan(&mut self, groups: usize, ahead: u64) {
        let free: Vec<u64> =
            self.model.accepted.iter().filter(|g| g.batch.is_none()).map(|g| g.position).take(groups).collect();
        let batch = self.model.planned + ahead;
        let positions: Vec<Position> = free.iter().rev().map(|p| Position(*p)).collect();
        let done = self.apply(self.queue.plan_batch(BatchId(batch), &positions));
        assert_eq!(done, ahead == 0);
        if done {
            self.model.accepted.iter_mut().filter(|g| free.contains(&g.position)).for_each(|g| g.batch = Some(batch));
            self.model.batches.insert(batch, (positions.iter().map(|p| p.0).collect(), false));
            self.model.planned += 1;
            if let Some(taken) = positions.first() {
                let next = BatchId(self.model.planned);
                assert!(
                    matches!(self.queue.plan_batch(next, &[*taken]), Err(Refused::Batched { .. })),
                    "in one batch only"
                );
            }
        }
    }

    fn ready(&mut self, batch: u64) {
        let batch = self.model.consumed + batch;
        let may = self.model.batches.get(&batch).is_some_and(|(_, ready)| !ready);
        assert_eq!(self.apply(self.queue.batch_ready(BatchId(batch), &[reference(1000 + batch)])), may);
        if may {
            self.model.batches.get_mut(&batch).unwrap().1 = true;
        }
    }

    fn ack(&mut self, batch: u64) {
        let batch = (self.model.consumed + 1).saturating_sub(batch);
        match self.queue.ack(BatchId(batch)) {
            Ok(None) => assert!(batch < self.model.consumed),
            Ok(Some(op)) => {
                assert!(batch == self.model.consumed && self.model.batches[&batch].1);
                self.apply(Ok(op));
                self.model.consumed += 1;
            }
            Err(_) => {
                let due =
                    batch == self.model.consumed && self.model.batches.get(&batch).is_some_and(|(_, ready)| *ready);
                assert!(batch >= self.model.consumed && !due);
            }
        }
    }

    fn rewind(&mut self, back: u64) {
        let to = (self.model.consumed + 1).saturating_sub(back);
        let may = to >= self.model.released && to <= self.model.consumed;
        assert_eq!(self.apply(self.queue.rewind(BatchId(to))), may);
        if may {
            self.model.consumed = to;
        }
    }

    fn release(&mut self, back: u64) {
        let below = (self.model.consumed + 1).saturating_sub(back);
        let may = below >= self.model.released && below <= self.model.consumed;
        assert_eq!(self.apply(self.queue.release(BatchId(below))), may);
        if may {
            self.model.released = below;
            self.model.batches.retain(|id, _| *id >= below);
            let over: Vec<u64> =
                self.model.accepted.iter().filter(|g| g.batch.is_some_and(|b| b < below)).map(|g| g.task).collect();
            self.model.accepted.retain(|g| g.batch.is_none_or(|b| b >= below));
            over.into_iter().for_each(|id| self.model.end(id));
        }
    }

    fn drop_group(&mut self, position: u64) {
        let may = self.model.accepted.iter().any(|g| g.position == position && g.batch.is_none());
        let op = self.queue.drop_accepted(&[Position(position)], DropCause::Stale, "too old");
        assert_eq!(self.apply(op), may);
        if may {
            let at = self.model.accepted.iter().position(|g| g.position == position).unwrap();
            let group = self.model.accepted.remove(at);
            self.model.end(group.task);
            self.model.dropped += 1;
        }
    }

    fn cancel(&mut self, id: u64) {
        let may = self.model.task(id).is_some();
        assert_eq!(self.apply(self.queue.cancel(TaskId(id), DropCause::Cancelled, "not wanted")), may);
        if may {
            self.model.end(id);
            self.model.dropped += 1;
        }
    }

    /// The owner dies; its successor has a snapshot.
    fn restart(&mut self) {
        let bytes = postcard::to_stdvec(&self.queue).unwrap();
        self.queue = postcard::from_bytes(&bytes).unwrap();
        self.epoch += 1;
        self.queue.begin_epoch(self.epoch);
        self.model.tasks.iter_mut().for_each(|t| t.holder = None);
    }

    fn compare(&self) {
        assert_eq!(self.queue.live_packs(), naive_packs(&self.queue), "the count of each pack is right");
        let (queue, model) = (&self.queue, &self.model);
        assert_eq!(queue.pending().map(|t| t.id.0).collect::<Vec<_>>(), model.in_order());
        assert_eq!(queue.pending_len(), model.in_order().len());
        assert_eq!(queue.tasks_len(), model.tasks.len());
        for task in &model.tasks {
            let ours = queue.task(TaskId(task.id)).unwrap();
            assert_eq!((ours.class, ours.key, ours.attempts), (task.class, task.key, task.failures));
            let holder = queue.lease(ours.id).map(|l| (l.attempt, l.worker.as_str(), l.expires_ms));
            assert_eq!(holder, task.holder.map(|(attempt, worker, expires)| (attempt, WORKERS[worker], expires)));
        }
        let accepted: Vec<_> =
            queue.accepted().map(|(p, a)| (p.0, a.task.0, a.submission.clone(), a.batch.map(|b| b.0))).collect();
        let expected: Vec<_> =
            model.accepted.iter().map(|g| (g.position, g.task, g.submission.clone(), g.batch)).collect();
        assert_eq!(accepted, expected);
        let batches: Vec<_> = queue
            .batches()
            .map(|(id, b)| (id.0, (b.positions.iter().map(|p| p.0).collect::<Vec<_>>(), b.ready)))
            .collect();
        assert_eq!(batches, model.batches.clone().into_iter().collect::<Vec<_>>());
        assert_eq!(
            (queue.next_batch().0, queue.consumed().0, queue.released().0),
            (model.planned, model.consumed, model.released)
        );
        let parts = model.tasks.iter().filter(|t| t.partial).map(|_| 7);
        let results = model.accepted.iter().flat_map(|g| g.result.clone());
        let payloads = model.batches.iter().filter(|(_, (_, ready))| *ready).map(|(id, _)| 1000 + id);
        let live: BTreeSet<String> = parts.chain(results).chain(payloads).map(|n| reference(n).pack).collect();
        assert_eq!(queue.live_packs(), live, "what durable state can reach");
        assert_eq!(queue.live_refs().map(|r| r.pack.clone()).collect::<BTreeSet<_>>(), live);
        for id in 0..60 {
            assert_eq!(queue.is_settled(TaskId(id)), model.over.contains(&id));
        }
        let causes =
            [DropCause::Failed, DropCause::Lapsed, DropCause::Filtered, DropCause::Stale, DropCause::Cancelled];
        assert_eq!(causes.into_iter().map(|c| queue.dropped_total(c)).sum::<u64>(), model.dropped);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_queue_does_what_a_naive_one_does(acts in proptest::collection::vec(act(), 1..150)) {
        let mut pair = Pair::new();
        for act in acts {
            pair.take(act);
            pair.compare();
        }
        let mut replayed = Queue::new();
        for op in &pair.journal {
            replayed.apply(op).expect("a journal replays");
        }
        prop_assert!(replayed == pair.queue, "a replay gives the same state");
    }

    #[test]
    fn settled_is_a_set(ids in proptest::collection::vec(0..200u64, 0..300)) {
        let mut naive = std::collections::BTreeSet::new();
        let mut settled = Settled::default();
        for id in ids {
            prop_assert_eq!(settled.insert(id), naive.insert(id));
        }
        prop_assert!((0..200).all(|id| settled.contains(id) == naive.contains(&id)));
        prop_assert_eq!(settled.len(), naive.len() as u64);
    }
}

fn queue() -> Queue {
    let mut queue = Queue::new();
    queue.begin_epoch(1);
    queue
}

fn apply(queue: &mut Queue, op: Result<Op, Refused>) {
    queue.apply(&op.unwrap()).unwrap();
}

#[test]
fn ready_comes_before_partial_before_fresh_and_older_weights_first() {
    let mut q = queue();
    let op = q.submit((0..5).map(|id| new_task(id, 3)).collect());
    apply(&mut q, op);
    for (class, key) in
        [(Class::Partial, Some(4)), (Class::Partial, Some(2)), (Class::Ready, Some(9)), (Class::Partial, None)]
    {
        let fresh = Wanted::classes(Class::Fresh..=Class::Fresh);
        let lease = q.acquire_where("a", 1, 0, TERMS, &fresh).remove(0);
        let op = q.yield_partial(lease.task, lease.attempt, class, key, &[]);
        apply(&mut q, op);
    }
    assert_eq!(q.pending().map(|t| t.id.0).collect::<Vec<_>>(), [2, 1, 0, 3, 4]);
}

#[test]
fn a_result_finished_under_a_dead_coordinator_is_taken_once() {
    let mut q = queue();
    let op = q.submit(vec![new_task(1, 3)]);
    apply(&mut q, op);
    let old = q.acquire("a", 1, 0, TERMS).remove(0);
    let mut q: Queue = postcard::from_bytes(&postcard::to_stdvec(&q).unwrap()).unwrap();
    q.begin_epoch(2);
    let new = q.acquire("b", 1, 0, TERMS).remove(0);
    assert!(new.attempt > old.attempt);
    assert!(matches!(q.complete(old.task, old.attempt, "s", &[]), Err(Refused::StaleAttempt { .. })));
    let Ok(Completion::Accept(op)) = q.offer(old.task, "s", &[reference(1)]) else { panic!() };
    q.apply(&op).unwrap();
    assert!(q.lease(new.task).is_none(), "the present holder is told by its next call");
    assert!(q.renew(new.task, new.attempt, 1, TERMS).is_err());
    let late = q.complete(new.task, new.attempt, "t", &[reference(2)]);
    assert_eq!(late, Err(Refused::AcceptedOtherwise { task: TaskId(1), winner: "s".into() }));
    assert_eq!(q.offer(old.task, "s", &[reference(1)]), Ok(Completion::Already(Position(0))));
}

#[test]
fn a_task_that_keeps_failing_is_dropped_with_its_reason() {
    let mut q = queue();
    let op = q.submit(vec![new_task(1, 2)]);
    apply(&mut q, op);
    for _ in 0..2 {
        let lease = q.acquire("a", 1, 0, TERMS).remove(0);
        let op = q.fail(lease.task, lease.attempt, &"é".repeat(2000), true);
        apply(&mut q, op);
    }
    assert_eq!((q.tasks_len(), q.dropped().len(), q.dropped_total(DropCause::Failed)), (0, 1, 1));
    assert!(q.dropped()[0].reason.starts_with("éé") && q.dropped()[0].reason.len() <= 1024);
    assert!(matches!(q.submit(vec![new_task(1, 2)]), Err(Refused::TaskExists(_))));
}

#[test]
fn a_pack_is_retired_only_when_nothing_refers_to_it_and_never_referred_to_again() {
    let mut q = queue();
    let (one, two) = (reference(1), reference(2));
    let op = q.retain("commit-3", std::slice::from_ref(&one));
    apply(&mut q, op);
    assert_eq!(q.retire(std::slice::from_ref(&one.pack)), Err(Refused::PackLive(one.pack.clone())));
    let op = q.retire(std::slice::from_ref(&two.pack));
    apply(&mut q, op);
    assert_eq!(q.retain("x", std::slice::from_ref(&two)), Err(Refused::PackRetired(two.pack.clone())));
    let op = q.submit(vec![new_task(1, 2)]);
    apply(&mut q, op);
    assert_eq!(q.offer(TaskId(1), "s", std::slice::from_ref(&two)), Err(Refused::PackRetired(two.pack.clone())));
    let op = q.release_owner("commit-3").unwrap();
    q.apply(&op).unwrap();
    let op = q.retire(std::slice::from_ref(&one.pack));
    apply(&mut q, op);
    assert_eq!(q.retired().len(), 2);
}

#[test]
fn a_pack_is_given_up_only_when_no_work_from_before_can_need_it() {
    let mut q = queue();
    let op = q.submit((0..3).map(|id| new_task(id, 3)).collect());
    apply(&mut q, op);
    let pack = |n: u64, sealed| PackInfo {
        name: reference(n).pack,
        owner: "w".into(),
        bytes: 100 * n,
        sealed,
        abandoned: false,
    };
    let packs = [pack(1, true), pack(2, true), pack(3, false)];
    let mut collector = Collector::new(10);
    let lease = q.acquire("w", 1, 0, TERMS).remove(0);
    assert!(collector.candidates(&packs, &q, 0).is_empty(), "first seen");
    assert!(collector.candidates(&packs, &q, 20).is_empty(), "the worker may be about to complete from it");
    let Ok(Completion::Accept(op)) = q.offer(lease.task, "s", &[reference(2)]) else { panic!() };
    q.apply(&op).unwrap();
    q.acquire("w", 1, 20, TERMS);
    assert_eq!(collector.candidates(&packs, &q, 20), [reference(1).pack], "later leases do not hold it");
    assert_eq!(collector.candidates(&packs, &q, u64::MAX / 2), [reference(1).pack], "however long a pack is idle");
    let dead = [pack(2, true), PackInfo { abandoned: true, ..pack(3, false) }];
    q.release_worker("w");
    assert!(collector.candidates(&dead, &q, u64::MAX - 10).is_empty(), "its receipts may be offered");
    assert_eq!(collector.candidates(&dead, &q, u64::MAX), [reference(3).pack]);
}

#[test]
fn an_op_that_does_not_follow_changes_nothing() {
    let mut q = queue();
    let op = q.submit(vec![new_task(1, 2)]).unwrap();
    q.apply(&op).unwrap();
    let before = q.clone();
    assert!(q.apply(&op).is_err());
    assert!(q.apply(&Op::Consume { batch: BatchId(0) }).is_err());
    assert!(q.apply(&Op::Complete { task: TaskId(9), submission: "s".into(), result: vec![], attempt: None }).is_err());
    assert!(q == before);
}

#[test]
fn a_task_life_costs_few_bytes_in_the_journal() {
    let mut q = queue();
    let mut bytes = 0;
    let mut go = |q: &mut Queue, op: Op| {
        bytes += postcard::to_stdvec(&op).unwrap().len() + 2;
        q.apply(&op).unwrap();
    };
    let groups = 64;
    let op = q
        .submit((0..groups).map(|id| NewTask { id: TaskId(id), input: vec![0; 8], attempts_max: 3 }).collect())
        .unwrap();
    go(&mut q, op);
    for id in 0..groups {
        let r = Ref {
            pack: "sort5-worker-0-0123456789abcdef".into(),
            offset: 1 << 27,
            len: 40_000,
            head: 300,
            crc: u32::MAX,
            ..Ref::default()
        };
        let Ok(Completion::Accept(op)) = q.offer(TaskId(id), &format!("g{id}-1.{id}"), &[r]) else { panic!() };
        go(&mut q, op);
    }
    let positions: Vec<Position> = q.unbatched().map(|(p, _)| p).collect();
    let op = q.plan_batch(BatchId(0), &positions).unwrap();
    go(&mut q, op);
    let per_task = bytes as u64 / groups;
    assert!(per_task <= 200, "{per_task} B");
}

fn accept(queue: &mut Queue, id: u64) -> straw::queue::Position {
    let op = queue.submit(vec![new_task(id, 3)]);
    apply(queue, op);
    let Ok(Completion::Accept(op)) = queue.offer(TaskId(id), &format!("s{id}"), &[reference(id)]) else { panic!() };
    queue.apply(&op).unwrap();
    queue.accepted_of(TaskId(id)).unwrap().0
}

fn naive_packs(queue: &Queue) -> std::collections::BTreeSet<String> {
    queue.live_refs().map(|r| r.pack.clone()).collect()
}

#[test]
fn many_completions_are_answered_as_one_by_one_and_the_first_of_two_wins() {
    use straw::queue::Finished;
    let mut queue = queue();
    let op = queue.submit((0..3).map(|i| new_task(i, 3)).collect());
    apply(&mut queue, op);
    let done = |task: u64, submission: &str| Finished {
        task: TaskId(task),
        attempt: None,
        submission: submission.into(),
        result: vec![reference(task)],
    };
    let all = [done(0, "a"), done(0, "b"), done(1, "a"), done(1, "c"), done(9, "d")];
    let answers = queue.complete_many(&all);
    assert!(matches!(answers[0], Ok(Completion::Accept(_))));
    assert!(matches!(&answers[1], Err(Refused::AcceptedOtherwise { winner, .. }) if winner == "a"));
    assert!(matches!(&answers[2], Err(Refused::SubmissionTaken { task: TaskId(0), .. })));
    assert!(matches!(answers[3], Ok(Completion::Accept(_))));
    assert!(matches!(answers[4], Err(Refused::UnknownTask(_))));
    for answer in answers.into_iter().flatten() {
        let Completion::Accept(op) = answer else { panic!() };
        queue.apply(&op).expect("the ops of one answer apply together");
    }
    assert!(queue.complete_many(&all[..1]).iter().all(|a| matches!(a, Ok(Completion::Already(_)))));
}

#[test]
fn a_group_stays_until_its_batch_and_every_consumer_have_passed_it() {
    use straw::queue::Position;
    let mut queue = queue();
    let op = queue.open_consumer("eval", Position(0));
    apply(&mut queue, op);
    let positions: Vec<_> = (0..4).map(|i| accept(&mut queue, i)).collect();
    let op = queue.plan_batch(BatchId(0), &positions[..2]);
    apply(&mut queue, op);
    let op = queue.batch_ready(BatchId(0), &[reference(50)]);
    apply(&mut queue, op);
    let op = queue.ack(BatchId(0)).unwrap().unwrap();
    apply(&mut queue, Ok(op));
    let op = queue.release(BatchId(1));
    apply(&mut queue, op);
    assert!(queue.is_settled(TaskId(0)) && queue.accepted_at(positions[0]).is_some());
    let seen =
        |queue: &Queue| queue.fetch("eval", Position(0), 9).unwrap().iter().map(|(p, _)| p.0).collect::<Vec<_>>();
    assert_eq!(seen(&queue), [0, 1, 2, 3]);
    let op = queue.ack_consumer("eval", &[positions[1], positions[2]], Some(b"cursor"));
    apply(&mut queue, op);
    assert_eq!(seen(&queue), [0, 3]);
    assert!(queue.accepted_at(positions[1]).is_none(), "batch and consumer have passed it");
    assert!(queue.accepted_at(positions[2]).is_some(), "no batch has had it");
    let op = queue.ack_consumer("eval", &[positions[0]], None);
    apply(&mut queue, op);
    assert_eq!(queue.consumer("eval").unwrap().next(), Position(3));
    assert_eq!(queue.consumer("eval").unwrap().state(), b"cursor");
    let op = queue.settle_accepted(&positions[2..]);
    apply(&mut queue, op);
    assert_eq!(queue.accepted().map(|(p, _)| p.0).collect::<Vec<_>>(), [3]);
    assert_eq!(queue.unbatched().count(), 0);
    let refused = queue.plan_batch(BatchId(1), &positions[3..]);
    assert!(matches!(refused, Err(Refused::UnknownPosition(_))), "what is settled is in no later batch: {refused:?}");
    assert!(queue.ack_consumer("eval", &[Position(4)], None).is_err(), "not accepted yet");
    let op = queue.close_consumer("eval").unwrap();
    apply(&mut queue, Ok(op));
    assert_eq!(queue.accepted().count(), 0);
    assert_eq!(queue.live_packs(), naive_packs(&queue));
}

#[test]
fn a_rollback_brings_the_state_back_and_a_branch_keeps_what_it_needs() {
    let mut queue = queue();
    accept(&mut queue, 0);
    let op = queue.checkpoint("step-1", b"model 1");
    apply(&mut queue, op);
    let then = queue.accepted().map(|(p, a)| (p, a.clone())).collect::<Vec<_>>();
    let op = queue.drop_accepted(&[then[0].0], DropCause::Filtered, "");
    apply(&mut queue, op);
    let late = accept(&mut queue, 1);
    let op = queue.checkpoint("step-2", b"model 2");
    apply(&mut queue, op);
    let pack = &reference(0).pack;
    assert!(queue.retire(std::slice::from_ref(pack)).is_err(), "the checkpoint still needs it");
    let held = queue.acquire("w", 1, 0, LeaseTerms::default());
    let op = queue.rollback("step-1");
    apply(&mut queue, op);
    assert!(held.iter().all(|l| queue.lease(l.task).is_none()));
    assert_eq!(queue.accepted().map(|(p, a)| (p, a.clone())).collect::<Vec<_>>(), then);
    assert!(accept(&mut queue, 1) > late, "a position means one group for ever");
    let op = queue.checkpoint("step-2b", b"model 2b");
    apply(&mut queue, op);
    assert_eq!(queue.ancestors().map(|(name, _)| name).collect::<Vec<_>>(), ["step-2b", "step-1"]);
    assert_eq!(queue.checkpoint_named("step-2").unwrap().model(), b"model 2");
    let op = queue.drop_checkpoint("step-1");
    apply(&mut queue, op);
    assert_eq!(queue.ancestors().map(|(name, _)| name).collect::<Vec<_>>(), ["step-2b"]);
    assert_eq!(queue.live_packs(), naive_packs(&queue));
    let bytes = postcard::to_stdvec(&queue).unwrap();
    let again: Queue = postcard::from_bytes(&bytes).unwrap();
    assert_eq!(again, queue);
    assert_eq!(again.live_packs(), queue.live_packs());
}

#[test]
fn a_fork_begins_as_its_checkpoint_was_in_a_journal_of_its_own() {
    let mut queue = queue();
    accept(&mut queue, 0);
    let op = queue.checkpoint("step-1", b"model 1");
    apply(&mut queue, op);
    let op = queue.hold_for("lower-rate", "step-1");
    apply(&mut queue, op);
    accept(&mut queue, 1);
    assert!(matches!(queue.drop_checkpoint("step-1"), Err(Refused::CheckpointHeld { .. })));
    let fork = queue.fork("step-1").unwrap();
    assert_eq!(fork.accepted().count(), 1);
    assert_eq!(fork.checkpoint_named(straw::queue::FORKED).unwrap().model(), b"model 1");
    let state = postcard::to_stdvec(&fork).unwrap();
    for crash_at in 0..20 {
        let sim = straw::SimFs::new(crash_at);
        sim.crash_at(crash_at);
        let fs = |sim: &straw::SimFs| std::sync::Arc::new(sim.clone());
        let _ = straw::Journal::begin(fs(&sim), "/run/fork", "owner", &state);
        let sim = sim.power_loss(crash_at);
        let (journal, _) = straw::Journal::begin(fs(&sim), "/run/fork", "owner", &state).unwrap();
        journal.append(&[b"more"]).unwrap();
        let (_, found) = straw::Journal::begin(fs(&sim), "/run/fork", "owner", b"another").unwrap();
        assert_eq!(found.snapshot.as_deref(), Some(&state[..]));
        assert_eq!(found.txns.len(), 1);
    }
    let op = queue.end_hold("lower-rate").unwrap();
    apply(&mut queue, Ok(op));
    let op = queue.drop_checkpoint("step-1");
    apply(&mut queue, op);
}

/// The same record elsewhere.
fn copy_of(r: &Ref, n: u64) -> Ref {
    Ref { pack: format!("copy-{n:024x}"), offset: 4096 * n, ..r.clone() }
}

#[test]
fn a_moved_record_is_moved_for_all_who_need_it_and_its_old_name_still_leads_to_it() {
    let mut q = queue();
    let op = q.submit((1..4).map(|id| new_task(id, 3)).collect());
    apply(&mut q, op);
    // Held by an accepted group, a checkpoint that remembers it, an owner, a task's progress, and a batch.
    for id in [1, 2] {
        let Ok(Completion::Accept(op)) = q.offer(TaskId(id), &format!("s{id}"), &[reference(1)]) else { panic!() };
        q.apply(&op).unwrap();
    }
    let op = q.plan_batch(BatchId(0), &[Position(0)]);
    apply(&mut q, op);
    let op = q.batch_ready(BatchId(0), &[reference(1)]);
    apply(&mut q, op);
    let op = q.checkpoint("step-1", b"model");
    apply(&mut q, op);
    let op = q.retain("commit", &[reference(1), reference(2)]);
    apply(&mut q, op);
    let lease = q.acquire("w", 1, 0, TERMS).remove(0);
    let op = q.yield_partial(lease.task, lease.attempt, Class::Partial, None, &[reference(1)]);
    apply(&mut q, op);
    assert_eq!(q.live_refs().filter(|r| **r == reference(1)).count(), 8);

    let (old, new, newer) = (reference(1), copy_of(&reference(1), 1), copy_of(&reference(1), 2));
    let op = q.move_records(&[(old.clone(), new.clone())]);
    apply(&mut q, op);
    assert_eq!(q.live_refs().filter(|r| **r == new).count(), 8);
    assert!(!q.is_live(&old.pack) && q.live_packs() == naive_packs(&q));
    let op = q.move_records(&[(new.clone(), newer.clone())]);
    apply(&mut q, op);
    assert_eq!((q.resolve(&old), q.resolve(&new)), (newer.clone(), newer.clone()), "the last place of all");
    // A snapshot knows it, a rollback and a fork too.
    let back: Queue = postcard::from_bytes(&postcard::to_stdvec(&q).unwrap()).unwrap();
    assert!(back == q && back.resolve(&old) == newer);
    assert_eq!(q.fork("step-1").unwrap().resolve(&old), newer);

    // Retired, the old pack is refused, and what is brought of it is translated.
    let op = q.retire(&[old.pack.clone(), new.pack.clone()]);
    apply(&mut q, op);
    let Ok(Completion::Accept(op)) = q.offer(TaskId(3), "s3", &[old.clone(), reference(3)]) else { panic!() };
    q.apply(&op).unwrap();
    assert_eq!(q.accepted_of(TaskId(3)).unwrap().1.result, [newer.clone(), reference(3)]);
    let op = q.rollback("step-1");
    apply(&mut q, op);
    assert_eq!(q.live_packs(), naive_packs(&q));
    assert!(!q.is_live(&old.pack));

    // What nothing needs is not remembered: the next move forgets it.
    let op = q.drop_checkpoint("step-1");
    apply(&mut q, op);
    let op = q.release_owner("commit");
    assert!(op.is_none(), "the rollback took it back");
    let op = q.ack(BatchId(0)).unwrap().unwrap();
    q.apply(&op).unwrap();
    let op = q.release(BatchId(1));
    apply(&mut q, op);
    let op = q.drop_accepted(&[Position(1)], DropCause::Filtered, "alike");
    apply(&mut q, op);
    let op = q.move_records(&[]);
    apply(&mut q, op);
    assert_eq!(q.resolve(&old), old);
}

#[test]
fn a_move_that_is_none_is_refused() {
    let mut q = queue();
    let (one, two) = (reference(1), reference(2));
    let op = q.retire(&[copy_of(&one, 9).pack]);
    apply(&mut q, op);
    assert!(matches!(q.move_records(&[(one.clone(), copy_of(&one, 9))]), Err(Refused::PackRetired(_))));
    let within = Ref { offset: 9000, ..one.clone() };
    for moves in [
        vec![(one.clone(), two)],    // other bytes
        vec![(one.clone(), within)], // the pack would stay needed
        vec![(one.clone(), copy_of(&one, 1)), (one.clone(), copy_of(&one, 2))],
    ] {
        assert!(matches!(q.move_records(&moves), Err(Refused::Invalid(_))), "{moves:?}");
    }
}

#[test]
fn a_pack_whose_records_moved_is_kept_until_every_lease_from_before_is_over() {
    let mut q = queue();
    let op = q.submit(vec![new_task(1, 3)]);
    apply(&mut q, op);
    let lease = q.acquire("a", 1, 0, TERMS).remove(0);
    let op = q.yield_partial(lease.task, lease.attempt, Class::Partial, None, &[reference(1)]);
    apply(&mut q, op);
    // Another worker than the one that wrote the pack was told where the progress is.
    q.acquire("b", 1, 0, TERMS);
    let pack = PackInfo { name: reference(1).pack, owner: "a".into(), bytes: 9, sealed: true, abandoned: false };
    let packs = [pack];
    let mut collector = Collector::new(0);
    assert!(collector.candidates(&packs, &q, 0).is_empty());
    let op = q.move_records(&[(reference(1), copy_of(&reference(1), 1))]);
    apply(&mut q, op);
    assert!(collector.candidates(&packs, &q, 1).is_empty());
    q.release_worker("b");
    q.acquire("b", 1, 0, TERMS); // is told the new place
    assert_eq!(collector.candidates(&packs, &q, 2), [reference(1).pack]);
}

#[test]
fn a_pack_that_is_written_for_long_does_not_make_the_queue_remember_without_bound() {
    let mut q = queue();
    let max = straw::limits::RETIRED_NAMES_MAX as u64;
    let name = |era: u32, n: u64| format!("w-{era:08x}{n:016x}");
    let info = |name: String, sealed| PackInfo { name, owner: "w".into(), bytes: 9, sealed, abandoned: false };
    // It was begun in era 0 and is still added to, in era 7.
    let packs = [info(name(0, 1 << 40), false), info(name(7, 1 << 41), true)];
    let op = q.retire(&(0..max).map(|n| name(1, n)).collect::<Vec<_>>());
    apply(&mut q, op);
    let mut collector = Collector::new(0);
    collector.candidates(&packs, &q, 0);
    assert_eq!(collector.horizon(&packs, &q, 0), None, "what is published into it is still welcome");
    let op = q.retire(&[name(1, max)]);
    apply(&mut q, op);
    let below = collector.horizon(&packs, &q, 0).expect("the names are too many");
    let op = q.forget(below);
    apply(&mut q, op);
    assert!(q.retired().is_empty());
    // Its writer is told to publish again, and does so into a pack of the present era.
    let old = Ref { pack: packs[0].name.clone(), ..reference(1) };
    assert_eq!(q.retain("o", &[old]), Err(Refused::PackRetired(packs[0].name.clone())));
    assert!(q.retain("o", &[Ref { pack: name(7, 5), ..reference(1) }]).is_ok());
}
