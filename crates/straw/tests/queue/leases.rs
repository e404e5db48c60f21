//! Leases: who holds a task, and for how long.

use straw::queue::{Completion, Refused, TaskId};

use crate::{TERMS, apply, new_task, queue, reference};

#[test]
fn a_holder_that_renews_keeps_its_task_however_long_it_takes_and_it_is_done_once() {
    let mut q = queue();
    let op = q.submit(vec![new_task(1, 1)]);
    apply(&mut q, op);
    let lease = q.acquire("slow", 1, 0, TERMS).remove(0);
    let mut now_ms = 0;
    while now_ms < 10 * TERMS.duration_ms {
        now_ms += TERMS.duration_ms - 1;
        assert!(q.lapsed(now_ms).is_empty(), "it lives");
        assert!(q.acquire("other", 1, now_ms, TERMS).is_empty(), "one has it");
        q.renew(lease.task, lease.attempt, now_ms, TERMS).unwrap();
    }
    let Ok(Completion::Accept(op)) = q.complete(lease.task, lease.attempt, "s", &[reference(1)]) else { panic!() };
    q.apply(&op).unwrap();
    assert_eq!(q.accepted().count(), 1);
}

#[test]
fn whoever_was_superseded_has_its_result_refused_and_nothing_counts_twice() {
    let mut q = queue();
    let op = q.submit(vec![new_task(1, 3)]);
    apply(&mut q, op);
    // Two processes of one name, on one host.
    let first = q.acquire("host", 1, 0, TERMS).remove(0);
    let lapsed = q.lapsed(TERMS.duration_ms).remove(0);
    q.apply(&lapsed).unwrap();
    let second = q.acquire("host", 1, TERMS.duration_ms, TERMS).remove(0);
    assert!(second.attempt > first.attempt);
    let late = q.complete(TaskId(1), first.attempt, "late", &[reference(1)]);
    assert_eq!(late, Err(Refused::StaleAttempt { task: TaskId(1), attempt: first.attempt }));
    let Ok(Completion::Accept(op)) = q.complete(TaskId(1), second.attempt, "s", &[reference(2)]) else { panic!() };
    q.apply(&op).unwrap();
    let late = q.complete(TaskId(1), first.attempt, "late", &[reference(1)]);
    assert_eq!(late, Err(Refused::AcceptedOtherwise { task: TaskId(1), winner: "s".into() }));
    assert_eq!((q.accepted().count(), q.task(TaskId(1))), (1, None));
}
