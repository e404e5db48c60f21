//! Joint commits: the queue's state and the model that belongs to it are one op, so each row of a checkpoint protocol (immutable
//! commits, no half of one, the boundary before it kept on a failure, branches that never look past their root) holds here.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::sync::Arc;

use straw::fs::Fs;
use straw::queue::{BatchId, Completion, FORKED, LeaseTerms, NewTask, Op, Position, Refused, TaskId};
use straw::{Coordinator, Error, Fault, Queue, Ref, Result, SimFs};

const DIR: &str = "/run/journal";

fn claim(sim: &SimFs) -> Coordinator {
    Coordinator::claim(Arc::new(sim.clone()) as Arc<dyn Fs>, DIR, "owner").unwrap()
}

fn look<T>(coordinator: &Coordinator, f: impl FnOnce(&Queue) -> T) -> T {
    coordinator.commit(|queue| Ok((Vec::new(), f(queue)))).unwrap()
}

fn payload(step: u64) -> Ref {
    Ref { pack: format!("b-{step:016x}"), offset: 64, len: 1, head: 1, crc: 0, ..Ref::default() }
}

/// A step: two tasks are submitted, finished, batched, and learnt from.
fn learn(c: &Coordinator, step: u64) -> Result<()> {
    // Ids are never used twice, not even after a rollback.
    let first = look(c, |q| q.tasks().map(|t| t.id.0 + 1).max().unwrap_or(0)) + 1000 * step + c.journal().last() * 10;
    let task = |id| NewTask { id: TaskId(id), input: vec![step as u8], attempts_max: 3 };
    c.commit(|q| Ok((vec![q.submit((first..first + 2).map(task).collect())?], ())))?;
    for lease in c.lease(|q| q.acquire("w", 2, 0, LeaseTerms::default()))? {
        c.commit(|q| match q.complete(lease.task, lease.attempt, &format!("s{}", lease.task.0), &[])? {
            Completion::Accept(op) => Ok((vec![op], ())),
            other => panic!("{other:?}"),
        })?;
    }
    c.commit(|q| {
        let batch = q.next_batch();
        let positions: Vec<Position> = q.unbatched().map(|(p, _)| p).collect();
        let ready = Op::BatchReady { batch, payload: vec![payload(step)] };
        Ok((vec![Op::PlanBatch { batch, positions }, ready, Op::Consume { batch }], ()))
    })
}

/// The joint commit of a step: the checkpoint, and the boundary moves past what it makes unneeded.
fn commit(c: &Coordinator, name: &str) -> Result<()> {
    c.commit(|q| Ok((vec![q.checkpoint(name, name.as_bytes())?, Op::Release { below: q.consumed() }], ())))
}

#[test]
fn a_commit_is_immutable() {
    let c = claim(&SimFs::new(1));
    learn(&c, 0).unwrap();
    commit(&c, "step-1").unwrap();
    learn(&c, 1).unwrap();
    assert!(matches!(commit(&c, "step-1"), Err(Error::Refused(Refused::CheckpointExists(_)))));
    assert_eq!(look(&c, |q| q.checkpoint_named("step-1").unwrap().consumed()), BatchId(1));
}

#[test]
fn a_crash_at_any_moment_of_a_commit_leaves_it_whole_or_the_boundary_before_it() {
    let mut seen = [0; 2];
    for at in 0.. {
        let sim = SimFs::new(at);
        let c = claim(&sim);
        learn(&c, 0).unwrap();
        commit(&c, "step-1").unwrap();
        learn(&c, 1).unwrap();
        sim.crash_at(sim.mutations() + at);
        let told = commit(&c, "step-2").is_ok();
        if !sim.is_crashed() {
            break;
        }
        for seed in 0..8 {
            let c = claim(&if seed == 0 { sim.process_death() } else { sim.power_loss(seed) });
            let (head, released, model, kept) = look(&c, |q| {
                let model = q.head().and_then(|name| q.checkpoint_named(name)).map(|c| c.model().to_vec());
                (q.head().map(str::to_owned), q.released(), model, q.batch(BatchId(1)).is_some())
            });
            let whole = head.as_deref() == Some("step-2");
            assert!(whole || !told, "a commit that was acknowledged is lost");
            seen[usize::from(whole)] += 1;
            // State, model, and boundary: all of one commit, and the batches behind the boundary are there to be replayed.
            let want = if whole { ("step-2", 2) } else { ("step-1", 1) };
            assert_eq!(head.as_deref(), Some(want.0));
            assert_eq!(released, BatchId(want.1));
            assert_eq!(model.as_deref(), Some(want.0.as_bytes()));
            assert_eq!(kept, !whole);
        }
    }
    assert!(seen.iter().all(|n| *n > 0), "{seen:?}");
}

#[test]
fn a_commit_that_fails_keeps_the_boundary_before_it_and_can_be_made_again() {
    let sim = SimFs::new(2);
    let c = claim(&sim);
    learn(&c, 0).unwrap();
    commit(&c, "step-1").unwrap();
    learn(&c, 1).unwrap();
    sim.fail_at(sim.mutations() + 1, Fault::Io);
    assert!(commit(&c, "step-2").is_err());
    drop(c);
    let c = claim(&sim.power_loss(1));
    assert_eq!(look(&c, |q| (q.head().map(str::to_owned), q.released())), (Some("step-1".into()), BatchId(1)));
    c.commit(|q| Ok((vec![q.rewind(BatchId(1))?], ()))).unwrap();
    c.commit(|q| Ok((q.ack(BatchId(1))?.into_iter().collect(), ()))).unwrap();
    commit(&c, "step-2").unwrap();
    assert_eq!(look(&c, |q| q.released()), BatchId(2));
}

#[test]
fn whoever_was_superseded_commits_nothing_and_moves_no_branch() {
    let sim = SimFs::new(3);
    let zombie = claim(&sim);
    learn(&zombie, 0).unwrap();
    commit(&zombie, "step-1").unwrap();
    learn(&zombie, 1).unwrap();
    let c = claim(&sim);
    c.commit(|q| Ok((vec![q.rollback("step-1")?], ()))).unwrap();
    assert!(matches!(commit(&zombie, "step-2"), Err(Error::Fenced { .. })));
    drop((zombie, c));
    let c = claim(&sim);
    assert_eq!(look(&c, |q| (q.head().map(str::to_owned), q.checkpoints().count())), (Some("step-1".into()), 1));
}

#[test]
fn without_a_commit_a_restart_goes_on_where_the_journal_ends() {
    let sim = SimFs::new(4);
    let c = claim(&sim);
    learn(&c, 0).unwrap();
    let before = look(&c, Queue::clone);
    drop(c);
    let c = claim(&sim.power_loss(2));
    assert_eq!(look(&c, Queue::clone), before);
    assert_eq!(look(&c, |q| q.head().map(str::to_owned)), None);
    learn(&c, 1).unwrap();
}

#[test]
fn repeated_rollbacks_coexist_and_none_sees_the_futures_that_were_left() {
    let c = claim(&SimFs::new(5));
    learn(&c, 0).unwrap();
    commit(&c, "step-1").unwrap();
    for branch in ["a", "b", "c"] {
        learn(&c, 1).unwrap();
        commit(&c, &format!("step-2{branch}")).unwrap();
        let line: Vec<String> = look(&c, |q| q.ancestors().map(|(name, _)| name.to_owned()).collect());
        assert_eq!(line, [format!("step-2{branch}"), "step-1".to_owned()]);
        c.commit(|q| Ok((vec![q.rollback("step-1")?], ()))).unwrap();
        assert_eq!(
            look(&c, |q| (q.consumed(), q.released())),
            (BatchId(1), BatchId(0)),
            "the next step is the commit's + 1"
        );
    }
    assert_eq!(look(&c, |q| q.checkpoints().count()), 4, "nothing was written over");
    c.commit(|q| Ok((vec![q.rollback("step-2b")?], ()))).unwrap();
    assert_eq!(look(&c, |q| q.consumed()), BatchId(2));
    assert!(matches!(
        c.commit(|q| Ok((vec![q.rollback("step-9")?], ()))),
        Err(Error::Refused(Refused::UnknownCheckpoint(_)))
    ));
}

#[test]
fn forks_of_one_commit_are_apart_from_it_and_from_each_other() {
    let sim = SimFs::new(6);
    let c = claim(&sim);
    learn(&c, 0).unwrap();
    commit(&c, "step-1").unwrap();
    for fork in ["x", "y"] {
        c.commit(|q| Ok((vec![q.hold_for(fork, "step-1")?], ()))).unwrap();
        let state = postcard::to_stdvec(&look(&c, |q| q.fork("step-1").unwrap())).unwrap();
        let fs: Arc<dyn Fs> = Arc::new(sim.clone());
        drop(straw::Journal::begin(fs, format!("/{fork}/journal"), "owner", &state).unwrap());
    }
    learn(&c, 1).unwrap();
    let fork = |name: &str| {
        Coordinator::claim(Arc::new(sim.clone()) as Arc<dyn Fs>, format!("/{name}/journal"), "owner").unwrap()
    };
    let x = fork("x");
    assert_eq!(look(&x, |q| (q.consumed(), q.head().map(str::to_owned))), (BatchId(1), Some(FORKED.to_owned())));
    learn(&x, 1).unwrap();
    commit(&x, "step-2").unwrap();
    assert_eq!(look(&x, |q| q.consumed()), BatchId(2));
    assert_eq!(look(&fork("y"), |q| (q.consumed(), q.checkpoints().count())), (BatchId(1), 1));
    assert!(look(&c, |q| q.checkpoint_named("step-2").is_none()));
    assert!(matches!(
        c.commit(|q| Ok((vec![q.drop_checkpoint("step-1")?], ()))),
        Err(Error::Refused(Refused::CheckpointHeld { .. }))
    ));
}
