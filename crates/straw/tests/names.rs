//! No name is made twice: whatever a client remembers of a name is what it has always been.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use straw::fs::{Dir, Entry, File, Fs};
use straw::queue::{BatchId, Op};
use straw::{Collector, Journal, Queue, Record, SimFs, Store, journal};

/// Names that were made.
type Made = Arc<Mutex<BTreeSet<String>>>;

struct Noting(SimFs, Made);
struct NotingDir(Arc<dyn Dir>, String, Made);

impl fmt::Debug for Noting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Noting")
    }
}

impl fmt::Debug for NotingDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NotingDir")
    }
}

impl Noting {
    fn dir(&self, path: &Path, dir: Arc<dyn Dir>) -> Arc<dyn Dir> {
        Arc::new(NotingDir(dir, path.display().to_string(), self.1.clone()))
    }
}

impl Fs for Noting {
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

impl NotingDir {
    fn made(&self, name: &str) {
        // What is not finished is read by nobody, under whatever name.
        let new = name.ends_with(".tmp") || self.2.lock().unwrap().insert(format!("{}/{name}", self.1));
        assert!(new, "{}/{name} was made a second time", self.1);
    }
}

impl Dir for NotingDir {
    fn create_new(&self, name: &str) -> io::Result<Arc<dyn File>> {
        let file = self.0.create_new(name)?;
        self.made(name);
        Ok(file)
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
        self.0.rename(from, to)?;
        self.made(to);
        Ok(())
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.0.remove(name)
    }
    fn list(&self) -> io::Result<Vec<Entry>> {
        self.0.list()
    }
    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }
}

/// One owner's life: it publishes under a worker's name, commits, snapshots, collects, and makes a fork that leaves.
fn live(sim: &SimFs, made: &Made, life: u64) {
    let fs: Arc<dyn Fs> = Arc::new(Noting(sim.clone(), made.clone()));
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
