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
fn a_queue_that_left_holds_nothing_back_whoever_died_as_he_registered_it_once_more() {
    let sim = SimFs::new(1);
    let pack = publish(&store(&sim), "w");
    let main = store(&sim).register("main").unwrap();
    store(&sim).register("fork").unwrap().leave().unwrap();
    // What dies between its two looks leaves the name that it made.
    let dir = straw::Fs::open_dir(&sim, std::path::Path::new("/run/packs/pool")).unwrap();
    dir.create_new("queue-fork").unwrap();
    dir.sync().unwrap();
    assert!(main.remove(&set(&[&pack])).unwrap() > 0);
    assert!(matches!(store(&sim).register("fork"), Err(Error::QueueLeft { .. })));
}

#[test]
fn a_crash_at_any_step_of_leaving_leaves_it_in_the_pool_or_out_of_it_and_it_can_leave_again() {
    for point in 0.. {
        let sim = SimFs::new(point);
        let (gone, needed) = (publish(&store(&sim), "w"), publish(&store(&sim), "w"));
        let main = store(&sim).register("main").unwrap();
        let fork = store(&sim).register("fork").unwrap();
        fork.remove(&set(&[&gone])).unwrap();
        sim.crash_at(sim.mutations() + point);
        let left = fork.leave();
        for after in [sim.process_death(), sim.power_loss(point)] {
            let store = store(&after);
            match store.register("fork") {
                Ok(fork) => {
                    assert!(left.is_err(), "crash {point}: an acknowledged leave was lost");
                    assert_eq!(store.register("main").unwrap().remove(&set(&[&needed])).unwrap(), 0);
                    store.read(&needed).expect("it has not left");
                    fork.leave().unwrap();
                }
                Err(e) => assert!(matches!(e, Error::QueueLeft { .. }), "crash {point}: {e}"),
            }
            assert!(matches!(store.register("fork"), Err(Error::QueueLeft { .. })));
            assert!(store.register("main").unwrap().remove(&set(&[&gone, &needed])).unwrap() > 0);
            assert!(packs(&store).is_empty());
        }
        drop(main);
        if left.is_ok() {
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
fn a_listing_that_lacks_even_the_one_who_asks_removes_nothing() {
    let sim = SimFs::new(1);
    let store = store(&sim);
    let one = publish(&store, "w");
    let main = store.register("main").unwrap();
    let dir = straw::Fs::open_dir(&sim, std::path::Path::new("/run/packs/pool")).unwrap();
    // As a mount that came back empty, or a page of a listing that was lost.
    dir.remove("queue-main").unwrap();
    assert_eq!(main.remove(&set(&[&one])).unwrap(), 0);
    assert_eq!(packs(&store), set(&[&one]));
    store.register("main").unwrap();
    assert!(main.remove(&set(&[&one])).unwrap() > 0);
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

/// A folder's listing is no snapshot: names that appear while it is read may be in it or not.
mod torn_listing {
    use std::fmt;
    use std::io;
    use std::path::Path;
    use std::sync::{Mutex, PoisonError};

    use straw::fs::{Dir, Entry, File, Fs};

    use super::*;

    type Meanwhile = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;

    /// In the middle of the next listing of the pool, once the queues' names are read, something happens.
    struct Torn(SimFs, Meanwhile);
    struct TornDir(Arc<dyn Dir>, Option<Meanwhile>);

    impl fmt::Debug for Torn {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("Torn")
        }
    }

    impl fmt::Debug for TornDir {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("TornDir")
        }
    }

    impl Torn {
        fn dir(&self, path: &Path, dir: Arc<dyn Dir>) -> Arc<dyn Dir> {
            Arc::new(TornDir(dir, path.ends_with("pool").then(|| self.1.clone())))
        }
    }

    impl Fs for Torn {
        fn open_dir(&self, path: &Path) -> io::Result<Arc<dyn Dir>> {
            Ok(self.dir(path, self.0.open_dir(path)?))
        }
        fn create_dir(&self, path: &Path) -> io::Result<Arc<dyn Dir>> {
            Ok(self.dir(path, self.0.create_dir(path)?))
        }
        fn unique(&self) -> u64 {
            self.0.unique()
        }
    }

    impl Dir for TornDir {
        fn create_new(&self, name: &str) -> io::Result<Arc<dyn File>> {
            self.0.create_new(name)
        }
        fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
            self.0.open(name)
        }
        fn open_rw(&self, name: &str) -> io::Result<Arc<dyn File>> {
            self.0.open_rw(name)
        }
        fn exists(&self, name: &str) -> io::Result<bool> {
            self.0.exists(name)
        }
        fn rename(&self, from: &str, to: &str) -> io::Result<()> {
            self.0.rename(from, to)
        }
        fn remove(&self, name: &str) -> io::Result<()> {
            self.0.remove(name)
        }
        fn sync(&self) -> io::Result<()> {
            self.0.sync()
        }
        fn list(&self) -> io::Result<Vec<Entry>> {
            let meanwhile = self.1.as_ref().and_then(|m| m.lock().unwrap_or_else(PoisonError::into_inner).take());
            let Some(meanwhile) = meanwhile else { return self.0.list() };
            let mut entries = self.0.list()?;
            meanwhile();
            entries.retain(|e| e.name.starts_with("queue-"));
            entries.extend(self.0.list()?.into_iter().filter(|e| !e.name.starts_with("queue-")));
            Ok(entries)
        }
    }

    #[test]
    fn a_fork_that_registers_while_a_remover_looks_keeps_its_packs() {
        let sim = SimFs::new(1);
        let shared = publish(&store(&sim), "w");
        let b = store(&sim).register("b").unwrap();
        let meanwhile: Meanwhile = Arc::default();
        let torn = Store::open(Arc::new(Torn(sim.clone(), meanwhile.clone())), "/run/packs").unwrap();
        let main = torn.register("main").unwrap();
        let pack = set(&[&shared]);
        // A fork of `b` begins, and `b`, whose hold it needs no more, gives the pack up.
        let (of_b, fork_store) = (pack.clone(), store(&sim));
        *meanwhile.lock().unwrap() = Some(Box::new(move || {
            fork_store.register("fork-of-b").unwrap();
            b.remove(&of_b).unwrap();
        }));
        assert_eq!(main.remove(&pack).unwrap(), 0);
        store(&sim).read(&shared).expect("the fork needs it");
        // Once the fork gives it up, too, it goes.
        assert_eq!(main.remove(&pack).unwrap(), 0);
        assert!(store(&sim).register("fork-of-b").unwrap().remove(&pack).unwrap() > 0);
    }
}
