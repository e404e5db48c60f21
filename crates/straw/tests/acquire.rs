//! Which tasks a lease may be of: lanes, classes, ids; and that asking costs what it gives.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::time::{Duration, Instant};

use proptest::prelude::*;
use straw::Queue;
use straw::queue::{Class, Completion, LANE_SHIFT, Lane, LeaseTerms, NewTask, Op, Position, TaskId, Wanted};

const TERMS: LeaseTerms = LeaseTerms { duration_ms: 50, per_worker_max: 4096 };

fn id(lane: u16, n: u64) -> TaskId {
    TaskId(u64::from(lane) << LANE_SHIFT | n)
}

fn queue_of(ids: impl Iterator<Item = TaskId>) -> Queue {
    let mut queue = Queue::new();
    let tasks = ids.map(|id| NewTask { id, input: Vec::new(), attempts_max: 3 }).collect();
    let op = queue.submit(tasks).unwrap();
    queue.apply(&op).unwrap();
    queue.begin_epoch(1);
    queue
}

fn ids(leases: &[straw::queue::Lease]) -> Vec<TaskId> {
    leases.iter().map(|l| l.task).collect()
}

#[test]
fn a_task_of_a_lane_is_leased_only_to_whoever_asks_for_the_lane() {
    let mut q = queue_of([id(0, 1), id(7, 1), id(0, 2), id(7, 2), id(9, 1)].into_iter());
    let work = Wanted::lanes(Lane(0)..=Lane(6));
    assert_eq!(ids(&q.acquire_where("a", 9, 0, TERMS, &work)), [id(0, 1), id(0, 2)]);
    assert!(q.acquire_where("a", 9, 0, TERMS, &work).is_empty());
    let control = Wanted::lanes(Lane(7)..=Lane(7));
    assert_eq!(q.pending_of(&control).count(), 2);
    assert_eq!(ids(&q.acquire_where("a", 1, 0, TERMS, &control)), [id(7, 1)]);
    assert_eq!(ids(&q.acquire("a", 9, 0, TERMS)), [id(7, 2), id(9, 1)], "in the order they came");
    assert_eq!(q.tasks_of(Lane(7)).map(|t| t.id).collect::<Vec<_>>(), [id(7, 1), id(7, 2)]);
    #[allow(clippy::reversed_empty_ranges)]
    let none = Wanted::lanes(Lane(9)..=Lane(0));
    assert_eq!(q.pending_of(&none).count(), 0);
}

#[test]
fn ids_are_leased_best_first_and_only_while_nobody_holds_them() {
    let mut q = queue_of((0..10).map(|n| id(0, n)));
    let held = q.acquire("b", 2, 0, TERMS);
    assert_eq!(ids(&held), [id(0, 0), id(0, 1)]);
    let op = q.yield_partial(held[1].task, held[1].attempt, Class::Partial, Some(3), &[]).unwrap();
    q.apply(&op).unwrap();
    let asked = [id(0, 5), id(0, 0), id(0, 4), id(0, 1), id(0, 5), id(3, 3)];
    assert_eq!(ids(&q.acquire_ids("a", &asked, 0, TERMS)), [id(0, 1), id(0, 4), id(0, 5)]);
    let terms = LeaseTerms { per_worker_max: 4, ..TERMS };
    assert_eq!(q.acquire_ids("a", &[id(0, 6), id(0, 7)], 0, terms).len(), 1, "a worker holds no more than it may");
}

/// Seconds of many small questions of a queue with so many tasks of another kind in front.
fn questions(others: u64) -> Duration {
    let mut q = queue_of((0..others).map(|n| id(0, n)).chain((0..1000).map(|n| id(5, n))));
    let evals = Wanted::lanes(Lane(5)..=Lane(5));
    let partial = Wanted::classes(Class::Ready..=Class::Partial);
    let since = Instant::now();
    for n in 0..1000 {
        assert_eq!(ids(&q.acquire_where("e", 1, 0, TERMS, &evals)), [id(5, n)]);
        assert_eq!(q.pending_of(&partial).count(), 0);
        assert!(q.acquire_ids("e", &[id(5, n)], 0, TERMS).is_empty());
    }
    since.elapsed()
}

#[test]
fn asking_for_a_few_tasks_costs_no_look_at_the_others() {
    // A look at each of 300,000 would take minutes, not the double.
    let (few, many) = (questions(1000), questions(300_000));
    assert!(
        many < few * 20 + Duration::from_millis(500),
        "{few:?} with a thousand in front, {many:?} with 300 thousand"
    );
}

#[test]
fn a_fetch_passes_over_what_was_processed_in_one_step() {
    let n = 50_000;
    let mut q = queue_of((0..n).map(|n| id(0, n)));
    for task in 0..n {
        let Completion::Accept(op) = q.offer(id(0, task), &format!("s{task}"), &[]).unwrap() else { panic!() };
        q.apply_owned(op).unwrap();
    }
    let op = q.open_consumer("c", Position(0)).unwrap();
    q.apply(&op).unwrap();
    // All but the first and the last.
    let positions: Vec<Position> = (1..n - 1).map(Position).collect();
    for some in positions.chunks(10_000) {
        let op = q.ack_consumer("c", some, None).unwrap();
        q.apply(&op).unwrap();
    }
    let since = Instant::now();
    for _ in 0..1000 {
        let found: Vec<Position> = q.fetch("c", Position(0), 10).unwrap().iter().map(|(p, _)| *p).collect();
        assert_eq!(found, [Position(0), Position(n - 1)]);
    }
    assert!(since.elapsed() < Duration::from_secs(2), "{:?}", since.elapsed());
}

#[test]
fn what_a_replay_did_without_is_there_when_it_is_asked_for() {
    let submit = |ids: &[u64]| Op::Submit {
        tasks: ids.iter().map(|n| NewTask { id: id(0, *n), input: Vec::new(), attempts_max: 3 }).collect(),
    };
    let complete = |n: u64| Op::Complete { task: id(0, n), submission: format!("s{n}"), result: vec![], attempt: None };
    let ops = [submit(&[5, 1, 9]), complete(1), submit(&[4]), complete(4)];
    let (mut asked, mut silent) = (Queue::new(), Queue::new());
    for op in &ops {
        asked.apply(op).unwrap();
        silent.apply(op).unwrap();
        assert_eq!(asked.pending_len(), asked.tasks_len());
        asked.unbatched().for_each(drop);
        asked.live_packs();
    }
    assert_eq!(asked, silent);
    let view = |q: &Queue| {
        let pending: Vec<TaskId> = q.pending().map(|t| t.id).collect();
        (pending, q.unbatched().map(|(p, _)| p).collect::<Vec<_>>(), q.live_packs())
    };
    assert_eq!(view(&asked), view(&silent));
}

proptest! {
    #[test]
    fn what_is_wanted_comes_in_the_order_of_all(
        tasks in proptest::collection::btree_set((0..4u16, 0..30u64), 0..60),
        first in 0..4u16, last in 0..4u16, ready in proptest::bool::ANY,
    ) {
        let mut q = queue_of(tasks.iter().map(|(lane, n)| id(*lane, *n)));
        // Some are given back with progress.
        for lease in q.acquire("w", 20, 0, TERMS) {
            let class = [Class::Ready, Class::Partial, Class::Fresh][(lease.task.0 % 3) as usize];
            let op = q.yield_partial(lease.task, lease.attempt, class, Some(lease.task.0 % 5), &[]).unwrap();
            q.apply(&op).unwrap();
        }
        let classes = if ready { Class::Ready..=Class::Partial } else { Class::Partial..=Class::Fresh };
        let wanted = Wanted { lanes: Lane(first)..=Lane(last), classes };
        let all = q.pending().filter(|t| wanted.lanes.contains(&t.id.lane()) && wanted.classes.contains(&t.class));
        let all: Vec<TaskId> = all.map(|t| t.id).collect();
        prop_assert_eq!(q.pending_of(&wanted).map(|t| t.id).collect::<Vec<_>>(), all.clone());
        prop_assert_eq!(ids(&q.acquire_where("w", 7, 0, TERMS, &wanted)), all.into_iter().take(7).collect::<Vec<_>>());
    }
}
