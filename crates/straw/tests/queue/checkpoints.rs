//! Checkpoints, rollbacks and forks.

use straw::Queue;
use straw::queue::{DropCause, LeaseTerms, Refused};

use crate::{accept, apply, naive_packs, queue, reference};

#[test]
fn a_rollback_brings_the_state_back_and_a_branch_keeps_what_it_needs() {
    let mut queue = queue();
    accept(&mut queue, 0);
    let op = queue.checkpoint("step-1", b"model 1");
    apply(&mut queue, op);
    let then = queue.accepted().map(|(p, a)| (p, a.clone())).collect::<Vec<_>>();
    let op = queue.drop_accepted(&[then[0].0], DropCause::Filtered, "");
    apply(&mut queue, op);
    let late = accept(&mut queue, 1);
    let op = queue.checkpoint("step-2", b"model 2");
    apply(&mut queue, op);
    let pack = &reference(0).pack;
    assert!(queue.retire(std::slice::from_ref(pack)).is_err(), "the checkpoint still needs it");
    let held = queue.acquire("w", 1, 0, LeaseTerms::default());
    let op = queue.rollback("step-1");
    apply(&mut queue, op);
    assert!(held.iter().all(|l| queue.lease(l.task).is_none()));
    assert_eq!(queue.accepted().map(|(p, a)| (p, a.clone())).collect::<Vec<_>>(), then);
    assert!(accept(&mut queue, 1) > late, "a position means one group for ever");
    let op = queue.checkpoint("step-2b", b"model 2b");
    apply(&mut queue, op);
    assert_eq!(queue.ancestors().map(|(name, _)| name).collect::<Vec<_>>(), ["step-2b", "step-1"]);
    assert_eq!(queue.checkpoint_named("step-2").unwrap().model(), b"model 2");
    let op = queue.drop_checkpoint("step-1");
    apply(&mut queue, op);
    assert_eq!(queue.ancestors().map(|(name, _)| name).collect::<Vec<_>>(), ["step-2b"]);
    assert_eq!(queue.live_packs(), naive_packs(&queue));
    let bytes = postcard::to_stdvec(&queue).unwrap();
    let again: Queue = postcard::from_bytes(&bytes).unwrap();
    assert_eq!(again, queue);
    assert_eq!(again.live_packs(), queue.live_packs());
}

#[test]
fn a_fork_begins_as_its_checkpoint_was_in_a_journal_of_its_own() {
    let mut queue = queue();
    accept(&mut queue, 0);
    let op = queue.checkpoint("step-1", b"model 1");
    apply(&mut queue, op);
    let op = queue.hold_for("lower-rate", "step-1");
    apply(&mut queue, op);
    accept(&mut queue, 1);
    assert!(matches!(queue.drop_checkpoint("step-1"), Err(Refused::CheckpointHeld { .. })));
    let fork = queue.fork("step-1").unwrap();
    assert_eq!(fork.accepted().count(), 1);
    assert_eq!(fork.checkpoint_named(straw::queue::FORKED).unwrap().model(), b"model 1");
    let state = postcard::to_stdvec(&fork).unwrap();
    for crash_at in 0..20 {
        let sim = straw::SimFs::new(crash_at);
        sim.crash_at(crash_at);
        let fs = |sim: &straw::SimFs| std::sync::Arc::new(sim.clone());
        let _ = straw::Journal::begin(fs(&sim), "/run/fork", "owner", &state);
        let sim = sim.power_loss(crash_at);
        let (journal, _) = straw::Journal::begin(fs(&sim), "/run/fork", "owner", &state).unwrap();
        journal.append(&[b"more"]).unwrap();
        let (_, found) = straw::Journal::begin(fs(&sim), "/run/fork", "owner", b"another").unwrap();
        assert_eq!(found.snapshot.as_deref(), Some(&state[..]));
        assert_eq!(found.txns.len(), 1);
    }
    let op = queue.end_hold("lower-rate").unwrap();
    apply(&mut queue, Ok(op));
    let op = queue.drop_checkpoint("step-1");
    apply(&mut queue, op);
}
