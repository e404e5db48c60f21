//! No name is made twice: whatever a client remembers of a name is what it has always been.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use straw::queue::{BatchId, Op};
use straw::watched_fs::{Call, Operation, Watch, WatchedFs};
use straw::{Collector, Journal, Queue, Record, SimFs, Store, journal};

/// Names that were made.
type Made = Arc<Mutex<BTreeSet<String>>>;

struct Noting(Made);

impl Watch for Noting {
    fn after(&self, call: &Call<'_>) {
        // What is not finished is read by nobody, under whatever name.
        if matches!(call.operation, Operation::Create | Operation::Rename) && !call.name.ends_with(".tmp") {
            let name = call.dir.join(call.name).display().to_string();
            assert!(self.0.lock().unwrap().insert(name.clone()), "{name} was made a second time");
        }
    }
}

/// One owner's life: it publishes under a worker's name, commits, snapshots, collects, and makes a fork that leaves.
fn live(sim: &SimFs, made: &Made, life: u64) {
    let fs = WatchedFs::new(Arc::new(sim.clone()), Arc::new(Noting(made.clone())));
    let store = Store::open(fs.clone(), "/run/packs").unwrap();
    let member = store.register("main").unwrap();
    let options = journal::Options { segment_bytes_target: 400 };
    let (journal, found) = Journal::claim_with(fs.clone(), "/run/journal", "owner", options).unwrap();
    let mut queue: Queue = found.snapshot.map_or_else(Queue::new, |bytes| postcard::from_bytes(&bytes).unwrap());
    for op in found.txns.iter().flatten() {
        queue.apply(&postcard::from_bytes(op).unwrap()).unwrap();
    }
    queue.begin_epoch(found.epoch);
    let commit = |queue: &mut Queue, op: Op| {
        journal.append(&[postcard::to_stdvec(&op).unwrap()]).unwrap();
        queue.apply(&op).unwrap();
    };
    let mut collector = Collector::new(0);
    for turn in 0..6 {
        // Two processes of one name, on one host.
        for _ in 0..2 {
            let writer = store.writer("worker").unwrap();
            let refs = writer.publish("s", &[Record::new(vec![7; 300])]).unwrap();
            writer.seal();
            let op = queue.retain("last", &refs).unwrap();
            commit(&mut queue, op);
        }
        let packs = store.packs().unwrap();
        let chosen = collector.candidates(&packs, &queue, 0);
        let op = queue.retire(&chosen).unwrap();
        commit(&mut queue, op);
        member.remove(queue.retired()).unwrap();
        journal.snapshot(journal.last(), &postcard::to_stdvec(&queue).unwrap()).unwrap();
        if turn == 3 {
            let name = format!("fork-{life}");
            let fork = store.register(&name).unwrap();
            let state = postcard::to_stdvec(&Queue::beginning_at(BatchId(0))).unwrap();
            drop(Journal::begin(fs.clone(), format!("/run/{name}"), "forker", &state).unwrap());
            fork.remove(queue.retired()).unwrap();
            fork.leave().unwrap();
        }
    }
}

#[test]
fn no_name_that_anyone_reads_is_ever_made_twice_whoever_dies_in_between() {
    let mut sim = SimFs::new(1);
    let made = Made::default();
    for life in 0..12 {
        live(&sim, &made, life);
        sim = if life % 2 == 0 { sim.power_loss(life) } else { sim.process_death() };
    }
    let made = made.lock().unwrap();
    assert!(made.iter().filter(|name| name.ends_with(".pack")).count() == 12 * 12, "a pack for each writer: {made:?}");
    assert!(made.iter().filter(|name| name.ends_with(".snap")).count() >= 12, "{made:?}");
}
