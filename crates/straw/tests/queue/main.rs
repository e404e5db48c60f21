//! The queue against a naive model, and its rules one by one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod acceptance;
mod checkpoints;
mod consumers;
mod leases;
mod model;
mod moves;
mod packs;
mod replay;
mod settled;
mod tasks;

use std::collections::BTreeSet;

use straw::queue::{Completion, LeaseTerms, NewTask, Op, Position, Refused, TaskId};
use straw::{Queue, Ref};

const TERMS: LeaseTerms = LeaseTerms { duration_ms: 50, per_worker_max: 3 };

fn reference(n: u64) -> Ref {
    Ref { pack: format!("w-{n:016x}"), offset: 64, len: 100, head: 30, crc: n as u32, ..Ref::default() }
}

fn new_task(id: u64, attempts_max: u32) -> NewTask {
    NewTask { id: TaskId(id), input: vec![id as u8], attempts_max }
}

fn queue() -> Queue {
    let mut queue = Queue::new();
    queue.begin_epoch(1);
    queue
}

fn apply(queue: &mut Queue, op: Result<Op, Refused>) {
    queue.apply(&op.unwrap()).unwrap();
}

fn accept(queue: &mut Queue, id: u64) -> Position {
    let op = queue.submit(vec![new_task(id, 3)]);
    apply(queue, op);
    let Ok(Completion::Accept(op)) = queue.offer(TaskId(id), &format!("s{id}"), &[reference(id)]) else { panic!() };
    queue.apply(&op).unwrap();
    queue.accepted_of(TaskId(id)).unwrap().0
}

fn naive_packs(queue: &Queue) -> BTreeSet<String> {
    queue.live_refs().map(|r| r.pack.clone()).collect()
}
