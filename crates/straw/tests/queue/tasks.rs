//! Tasks: their order, their end, and what their lives cost.

use straw::queue::{BatchId, Class, Completion, DropCause, NewTask, Op, Position, Refused, TaskId, Wanted};
use straw::{Queue, Ref};

use crate::{TERMS, apply, new_task, queue};

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
