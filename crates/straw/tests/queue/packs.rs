//! Packs that are given up.

use straw::queue::{Completion, Refused, TaskId};
use straw::{Collector, PackInfo, Ref};

use crate::{TERMS, apply, new_task, queue, reference};

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
