//! Consumers beside the batches.

use straw::Queue;
use straw::queue::{BatchId, Position, Refused, TaskId};

use crate::{accept, apply, naive_packs, queue, reference};

#[test]
fn a_group_stays_until_its_batch_and_every_consumer_have_passed_it() {
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
