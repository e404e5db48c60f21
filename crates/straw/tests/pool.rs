//! Queues that share a pool: a pack goes when all of them have given it up, and not before.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::collections::BTreeSet;
use std::sync::Arc;

use straw::{Collector, Error, Queue, Record, Ref, SimFs, Store};

fn store(sim: &SimFs) -> Store {
    Store::open(Arc::new(sim.clone()), "/run/packs").unwrap()
}

fn publish(store: &Store, owner: &str) -> Ref {
    let writer = store.writer(owner).unwrap();
    let r = writer.publish("s", &[Record::new(vec![7; 300])]).unwrap().remove(0);
    writer.seal();
    r
}

fn packs(store: &Store) -> BTreeSet<String> {
    store.packs().unwrap().into_iter().map(|p| p.name).collect()
}

fn set(refs: &[&Ref]) -> BTreeSet<String> {
    refs.iter().map(|r| r.pack.clone()).collect()
}

#[test]
fn a_pack_is_removed_only_when_every_registered_queue_gave_it_up() {
    let sim = SimFs::new(1);
    let store = store(&sim);
    let (one, two) = (publish(&store, "w"), publish(&store, "w"));
    let main = store.register("main").unwrap();
    let fork = store.register("fork").unwrap();
    assert_eq!(main.remove(&set(&[&one, &two])).unwrap(), 0);
    assert_eq!(packs(&store), set(&[&one, &two]), "the fork may need them");
    assert!(fork.remove(&set(&[&two])).unwrap() > 0, "the other has told that it gave it up");
    assert_eq!(packs(&store), set(&[&one]));
    assert_eq!(main.remove(&set(&[&one, &two])).unwrap(), 0);
    fork.leave().unwrap();
    assert!(main.remove(&set(&[&one, &two])).unwrap() > 0, "alone again");
    assert!(packs(&store).is_empty());
    assert!(matches!(store.register("fork"), Err(Error::QueueLeft { .. })), "names are used once");
}

#[test]
fn a_queue_that_died_as_it_registered_keeps_packs_and_loses_none() {
    for point in 0.. {
        let sim = SimFs::new(point);
        let kept = publish(&store(&sim), "w");
        store(&sim).register("main").unwrap();
        let base = sim.mutations();
        sim.crash_at(base + point);
        let registered = store(&sim).register("fork");
        for after in [sim.process_death(), sim.power_loss(point)] {
            let store = store(&after);
            store.register("main").unwrap().remove(&set(&[&kept])).unwrap();
            if registered.is_ok() {
                assert_eq!(packs(&store), set(&[&kept]), "crash {point}: an acknowledged registration was lost");
            }
            // Whatever became of it, it can be done again, and the pack goes once both agree.
            let fork = store.register("fork").unwrap();
            store.register("main").unwrap().remove(&set(&[&kept])).unwrap();
            fork.remove(&set(&[&kept])).unwrap();
            assert!(packs(&store).is_empty());
        }
        if !sim.is_crashed() {
            return;
        }
    }
}

#[test]
fn a_crash_at_any_write_of_a_removal_errs_to_keeping_and_the_next_one_finishes() {
    for point in 0.. {
        let sim = SimFs::new(point);
        let (gone, needed) = (publish(&store(&sim), "w"), publish(&store(&sim), "w"));
        let main = store(&sim).register("main").unwrap();
        let fork = store(&sim).register("fork").unwrap();
        sim.crash_at(sim.mutations() + point);
        let ended = main.remove(&set(&[&gone, &needed])).and_then(|_| fork.remove(&set(&[&gone])));
        for after in [sim.process_death(), sim.power_loss(point)] {
            let store = store(&after);
            assert!(packs(&store).contains(&needed.pack), "crash {point}: the fork needs it");
            store.read(&needed).unwrap();
            store.register("main").unwrap().remove(&set(&[&gone, &needed])).unwrap();
            store.register("fork").unwrap().remove(&set(&[&gone])).unwrap();
            assert_eq!(packs(&store), set(&[&needed]), "crash {point}");
            publish(&store, "w"); // the era is whole, whatever was lost of it
        }
        if ended.is_ok() {
            return;
        }
    }
}

#[test]
fn an_error_while_the_pool_is_listed_removes_nothing() {
    let sim = SimFs::new(1);
    let store = store(&sim);
    let one = publish(&store, "w");
    let main = store.register("main").unwrap();
    sim.fail_next_look();
    assert!(main.remove(&set(&[&one])).is_err());
    assert_eq!(packs(&store), set(&[&one]));
}

#[test]
fn a_retired_name_is_forgotten_once_its_era_is_over_and_is_refused_for_ever() {
    let sim = SimFs::new(1);
    let store = store(&sim);
    let main = store.register("main").unwrap();
    let (dead, kept) = (publish(&store, "w"), publish(&store, "w"));
    let mut queue = Queue::new();
    let apply =
        |queue: &mut Queue, op: Result<straw::queue::Op, straw::queue::Refused>| queue.apply(&op.unwrap()).unwrap();
    let op = queue.retain("commit", std::slice::from_ref(&kept));
    apply(&mut queue, op);
    let mut collector = Collector::new(0);
    let mut look = |queue: &Queue| {
        let packs = store.packs().unwrap();
        let names = collector.candidates(&packs, queue, 0);
        (names, collector.horizon(&packs, queue, 0))
    };
    assert_eq!(look(&queue), (vec![dead.pack.clone()], None));
    let op = queue.retire(std::slice::from_ref(&dead.pack));
    apply(&mut queue, op);
    assert_eq!(look(&queue).1, None, "its file is still there");
    main.remove(queue.retired()).unwrap();
    // A writer that was there before: it may still complete what it publishes.
    let open = store.writer("w").unwrap();
    let fresh = open.publish("t", &[Record::new("x")]).unwrap().remove(0);
    assert!(fresh.pack > dead.pack, "the removal began an era");
    let below = look(&queue).1.expect("the name can be forgotten");
    let op = queue.forget(below);
    apply(&mut queue, op);
    assert!(queue.retired().is_empty() && queue.is_given_up(&dead.pack));
    assert!(queue.retain("late", std::slice::from_ref(&dead)).is_err(), "a forgotten name is refused all the same");
    assert!(queue.retain("again", std::slice::from_ref(&kept)).is_ok(), "an old pack that is referred to is not");
    assert!(queue.retain("new", std::slice::from_ref(&fresh)).is_ok());
    assert!(queue.forget(below - 1).is_err(), "the horizon never goes back");
    // What only an old pack's last owner held is over with it.
    queue.apply(&queue.release_owner("commit").unwrap()).unwrap();
    assert!(queue.retain("late", std::slice::from_ref(&kept)).is_err());
    assert_eq!(look(&queue).0, vec![kept.pack.clone()], "and its file goes as any other");
}
