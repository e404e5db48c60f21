//! A queue is what its journal adds up to, however it is read.

use straw::queue::{Completion, Op, Refused, TaskId};
use straw::{Error, Queue};

use crate::{new_task, queue, reference};

const TASKS: u64 = 2000;

fn journal() -> (Queue, Vec<Vec<Vec<u8>>>) {
    let mut q = queue();
    let mut txns = Vec::new();
    let mut commit = |q: &mut Queue, op: Op| {
        q.apply(&op).unwrap();
        txns.push(vec![postcard::to_stdvec(&op).unwrap()]);
    };
    for id in 0..TASKS {
        let op = q.submit(vec![new_task(id, 3)]).unwrap();
        commit(&mut q, op);
        if id % 3 == 0 {
            let Ok(Completion::Accept(op)) = q.offer(TaskId(id), &format!("s{id}"), &[reference(id)]) else { panic!() };
            commit(&mut q, op);
        }
    }
    (q, txns)
}

#[test]
fn a_journal_gives_what_its_ops_gave_one_by_one_from_any_snapshot_on() {
    let (q, txns) = journal();
    assert_eq!(Queue::replay(None, &txns).unwrap(), q);
    // From a snapshot in the middle.
    let (before, behind) = txns.split_at(txns.len() / 2);
    let snapshot = postcard::to_stdvec(&Queue::replay(None, before).unwrap()).unwrap();
    assert_eq!(Queue::replay(Some(&snapshot), behind).unwrap(), q);
    assert_eq!(
        Queue::replay(Some(&snapshot), &behind[..10]).unwrap(),
        Queue::replay(None, &txns[..before.len() + 10]).unwrap()
    );
}

#[test]
fn a_record_that_is_no_op_and_an_op_that_does_not_follow_end_a_replay() {
    let (_, mut txns) = journal();
    let middle = txns.len() / 2;
    let good = txns[middle].clone();
    txns[middle] = vec![vec![0xff; 3]];
    assert!(matches!(Queue::replay(None, &txns), Err(Error::Corrupt { .. })));
    txns[middle] = good;
    txns.insert(middle, txns[0].clone());
    assert!(matches!(Queue::replay(None, &txns), Err(Error::Refused(Refused::TaskExists(TaskId(0))))));
    assert!(matches!(Queue::replay(Some(b"none"), &[]), Err(Error::Corrupt { .. })));
}
