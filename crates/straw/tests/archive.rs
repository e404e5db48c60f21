//! Archives: what was put under a key is found under it, little is read for it, and it is kept until it is let go.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use straw::fs::Fs;
use straw::queue::{NewTask, Refused, TaskId};
use straw::watched_fs::Operation;
use straw::{Archive, Coordinator, Entry, Error, Queue, Record, Ref, SimFs, Store, Tensor};
use support::hooked;

fn group(n: u64) -> Record {
    Record::new(format!("group {n}")).with("tokens", Tensor::from_vec(&[4], vec![n; 4]).unwrap())
}

/// Groups of four samples: each sample under its own key, and all of a group under that of its task.
fn entries(groups: &[Ref]) -> Vec<Entry> {
    let of = |(n, r): (usize, &Ref)| {
        let entry = |key: String, part| Entry { key: key.into_bytes(), part, reference: r.clone() };
        (0..4)
            .flat_map(move |s| [entry(format!("sample/{n}/{s}"), s), entry(format!("task/{n}"), s)])
            .collect::<Vec<_>>()
    };
    groups.iter().enumerate().flat_map(of).collect()
}

fn apply(queue: &mut Queue, ops: &[straw::queue::Op]) {
    ops.iter().for_each(|op| queue.apply(op).unwrap());
}

#[test]
fn every_key_finds_what_was_put_under_it_with_bounded_reads_and_no_copy() {
    let sim = SimFs::new(1);
    let reads = Arc::new(AtomicU64::new(0));
    let hook = {
        let reads = reads.clone();
        move |op| {
            reads.fetch_add(u64::from(op == Operation::Read), Ordering::SeqCst);
        }
    };
    let fs = hooked(&sim, hook);
    let store = Store::open(fs, "/run/packs").unwrap();
    let writer = store.writer("w").unwrap();
    let records: Vec<Record> = (0..3000).map(group).collect();
    let refs = writer.publish("groups", &records).unwrap();
    let mut all = entries(&refs);
    let index = Archive::write(&writer, "archive", &all).unwrap();
    assert_eq!(Archive::write(&writer, "archive", &all).unwrap(), index, "the same archive is written once");
    let bytes = index.len as f64 / all.len() as f64;
    assert!(bytes < 40.0, "{bytes} bytes an entry");

    let archive = Archive::open(&store, &index).unwrap();
    assert_eq!((archive.len(), archive.is_empty()), (24_000, false));
    all.sort();
    assert_eq!(archive.entries().collect::<Result<Vec<_>, _>>().unwrap(), all);
    let before = reads.load(Ordering::SeqCst);
    let found = archive.load(&["sample/1234/2", "task/77", "task/3000", "", "zzz", "sample/1234/2"]).unwrap();
    assert!(reads.load(Ordering::SeqCst) - before <= 7, "a page for each key, and the records");
    assert_eq!(found[0].len(), 1);
    assert_eq!((found[0][0].0.part, &found[0][0].1), (2, &records[1234]));
    assert_eq!(found[1].iter().map(|(e, _)| e.part).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert!(found[1].iter().all(|(_, record)| *record == records[77]));
    assert!(found[2..5].iter().all(Vec::is_empty));
    assert_eq!(found[5], found[0]);
}

#[test]
fn a_key_whose_entries_fill_many_pages_is_found_whole() {
    let store = Store::open(Arc::new(SimFs::new(2)) as Arc<dyn Fs>, "/run/packs").unwrap();
    let writer = store.writer("w").unwrap();
    let r = writer.publish("g", &[group(1)]).unwrap().remove(0);
    let entry = |key: &str, part| Entry { key: key.into(), part, reference: r.clone() };
    let mut all: Vec<Entry> = (0..5000).map(|part| entry("many", part)).collect();
    all.extend([entry("a", 1), entry("mani", 2), entry("many!", 3), entry("z", 4)]);
    let archive = Archive::open(&store, &Archive::write(&writer, "a", &all).unwrap()).unwrap();
    let found = archive.lookup(&["many", "a", "mani", "many!", "z"]).unwrap();
    assert_eq!(found.iter().map(Vec::len).collect::<Vec<_>>(), [5000, 1, 1, 1, 1]);
    let empty = Archive::open(&store, &Archive::write(&writer, "e", &[]).unwrap()).unwrap();
    assert!(empty.is_empty() && empty.lookup(&["a"]).unwrap()[0].is_empty());
    assert_eq!(empty.entries().count(), 0);
}

#[test]
fn an_archive_keeps_its_records_until_it_is_released() {
    let store = Store::open(Arc::new(SimFs::new(3)) as Arc<dyn Fs>, "/run/packs").unwrap();
    let (groups, indices) = (store.writer("g").unwrap(), store.writer("i").unwrap());
    let refs = groups.publish("groups", &[group(1), group(2)]).unwrap();
    let all = entries(&refs);
    let index = Archive::write(&indices, "archive", &all).unwrap();
    let mut queue = Queue::new();
    assert!(Archive::find(&queue, "step-7").is_none());
    let ops = Archive::hold(&queue, "step-7", &index, &all).unwrap();
    apply(&mut queue, &ops);
    assert_eq!(Archive::find(&queue, "step-7"), Some(&index));
    assert!(queue.owners().all(|(owner, _)| Archive::is_owner(owner)) && !Archive::is_owner("commit"));
    assert!(matches!(Archive::hold(&queue, "step-7", &index, &all), Err(Refused::Invalid(_))));
    for pack in [&refs[0].pack, &index.pack] {
        assert!(matches!(queue.retire(std::slice::from_ref(pack)), Err(Refused::PackLive(_))));
    }
    let ops = Archive::release(&queue, "step-7");
    apply(&mut queue, &ops);
    assert!(Archive::find(&queue, "step-7").is_none() && Archive::release(&queue, "step-7").is_empty());
    let op = queue.retire(&[refs[0].pack.clone()]).unwrap();
    apply(&mut queue, &[op]);
    assert!(matches!(Archive::hold(&queue, "late", &index, &all), Err(Refused::PackRetired(_))), "not in part");
    assert!(matches!(Archive::hold(&queue, &"n".repeat(90), &index, &[]), Err(Refused::Invalid(_))));
}

#[test]
fn an_archive_of_more_records_than_an_owner_may_hold_is_held_whole() {
    let reference =
        |n: u64| Ref { pack: format!("w-{:016x}", n % 3), offset: n * 64, len: 64, head: 8, crc: 0, ..Ref::default() };
    let entry = |n: u64| Entry { key: n.to_le_bytes().to_vec(), part: 0, reference: reference(n) };
    let all: Vec<Entry> = (0..70_000).map(entry).collect();
    let mut queue = Queue::new();
    let ops = Archive::hold(&queue, "big", &reference(1 << 40), &all).unwrap();
    assert_eq!(ops.len(), 2);
    apply(&mut queue, &ops);
    assert_eq!(queue.live_refs().count(), 70_001);
    let ops = Archive::release(&queue, "big");
    apply(&mut queue, &ops);
    assert_eq!(queue.live_refs().count(), 0);
}

#[test]
fn an_archive_survives_its_coordinator() {
    let fs: Arc<dyn Fs> = Arc::new(SimFs::new(4));
    let store = Store::open(fs.clone(), "/run/packs").unwrap();
    let writer = store.writer("w").unwrap();
    let refs = writer.publish("groups", &[group(1), group(2)]).unwrap();
    let all = entries(&refs);
    let coordinator = Coordinator::claim(fs.clone(), "/run/journal", "a").unwrap();
    let index = Archive::write(&writer, "archive", &all).unwrap();
    coordinator.commit(|queue| Ok((Archive::hold(queue, "x", &index, &all)?, ()))).unwrap();
    let task = NewTask { id: TaskId(0), input: vec![], attempts_max: 1 };
    coordinator.commit(|queue| Ok((vec![queue.submit(vec![task])?], ()))).unwrap();
    drop(coordinator);
    let again = Coordinator::claim(fs, "/run/journal", "b").unwrap();
    let index = again.commit(|queue| Ok((vec![], Archive::find(queue, "x").cloned()))).unwrap().unwrap();
    let loaded = Archive::open(&store, &index).unwrap().load(&["task/1"]).unwrap();
    assert_eq!(loaded[0].len(), 4);
    assert_eq!(loaded[0][3].1, group(2));
}

#[test]
fn a_record_that_is_no_index_is_refused() {
    let store = Store::open(Arc::new(SimFs::new(5)) as Arc<dyn Fs>, "/run/packs").unwrap();
    let writer = store.writer("w").unwrap();
    let refs = writer.publish("g", &[group(1), Record::new(vec![9, 0, 0, 0, 0])]).unwrap();
    for r in &refs {
        assert!(matches!(Archive::open(&store, r), Err(Error::Corrupt { .. })));
    }
}
