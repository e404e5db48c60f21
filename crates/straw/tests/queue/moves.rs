//! Records that are moved to other packs.

use straw::queue::{BatchId, Class, Completion, DropCause, Position, Refused, TaskId};
use straw::{Collector, PackInfo, Queue, Ref};

use crate::{TERMS, apply, naive_packs, new_task, queue, reference};

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
