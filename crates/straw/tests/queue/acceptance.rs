//! Results: each task has one, whoever brings it.

use straw::Queue;
use straw::queue::{Completion, Finished, Position, Refused, TaskId};

use crate::{TERMS, apply, new_task, queue, reference};

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
fn many_completions_are_answered_as_one_by_one_and_the_first_of_two_wins() {
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
