//! The queue against one that is written without a care for speed.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use straw::Queue;
use straw::queue::{AttemptId, BatchId, Class, Completion, DropCause, Lease, Op, Position, Refused, TaskId};

use crate::{TERMS, naive_packs, new_task, reference};

const WORKERS: [&str; 3] = ["a", "b", "c"];

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
}
