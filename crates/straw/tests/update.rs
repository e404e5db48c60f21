//! Records made of older ones: what did not change is shared, and everything that keeps, moves or checks records knows of it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use straw::queue::{BatchId, Completion, NewTask, Refused, TaskId};
use straw::{
    Archive, BLOCK_BYTES, Collector, Compression, Entry, Error, Options, Queue, RealFs, Record, Ref, SimFs, Store,
    Tensor, compact, limits, verify, verify_refs,
};

const ROW: u64 = 1024;

fn on(sim: &SimFs) -> Store {
    Store::open(Arc::new(sim.clone()), "/packs").unwrap()
}

/// `rows` rows of a KiB, and some that are too few to be shared.
fn record(seed: u32, rows: u64) -> Record {
    let values: Vec<u32> = (0..rows as u32 * ROW as u32 / 4).map(|i| i.wrapping_mul(0x9E37_79B9) ^ seed).collect();
    let few = Tensor::from_vec(&[3], vec![seed, 1, 2]).unwrap();
    Record::new(format!("{{\"seed\":{seed}}}"))
        .with("weights", Tensor::from_vec(&[rows, ROW / 4], values).unwrap())
        .with("few", few)
}

fn rows(seed: u32, count: u64) -> Tensor {
    Tensor::from_vec(&[count, ROW / 4], vec![seed; (count * ROW / 4) as usize]).unwrap()
}

/// What `record` is with rows replaced.
fn with_rows(record: &Record, from: u64, new: &Tensor) -> Record {
    let mut out = Record::new(record.meta.clone());
    for t in &record.tensors {
        let mut bytes = t.tensor.bytes().to_vec();
        if t.name == "weights" {
            let at = (from * ROW) as usize;
            bytes[at..at + new.bytes().len()].copy_from_slice(new.bytes());
        }
        out = out.with(&t.name, Tensor::from_bytes(t.tensor.dtype(), t.tensor.shape(), bytes).unwrap());
    }
    out
}

fn publish(store: &Store, owner: &str, record: &Record) -> Ref {
    let writer = store.writer(owner).unwrap();
    let r = writer.publish("s", std::slice::from_ref(record)).unwrap().remove(0);
    writer.seal();
    r
}

/// Publishes `base` with rows replaced, in a sealed pack of its own.
fn changed(store: &Store, owner: &str, base: &Ref, from: u64, new: &Tensor) -> Ref {
    let mut update = store.update(base).unwrap();
    update.set_rows("weights", from..from + new.rows(), new).unwrap();
    let writer = store.writer(owner).unwrap();
    let r = writer.publish_updates("s", &[update]).unwrap().remove(0);
    writer.seal();
    r
}

#[test]
fn only_blocks_that_changed_are_written_and_the_record_reads_as_if_it_were_whole() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(RealFs::new(), dir.path()).unwrap();
    let base = record(1, 1000); // 15 blocks and a part of one
    let first = publish(&store, "a", &base);
    let new = rows(7, 70); // two blocks in part
    let r = changed(&store, "b", &first, 100, &new);
    let want = with_rows(&base, 100, &new);
    assert!(r.len < 3 * BLOCK_BYTES, "{} bytes were written", r.len);
    assert_eq!(
        r.shares.iter().map(|s| (&s.pack, s.bytes)).collect::<Vec<_>>(),
        [(&first.pack, 1000 * ROW - 2 * BLOCK_BYTES)]
    );
    assert_eq!(store.read(&r).unwrap(), want);
    assert_eq!(store.read(&first).unwrap(), base, "the older one stays as it was");
    assert_eq!(store.read_many(&[r.clone(), first.clone(), r.clone()]).unwrap(), [want.clone(), base, want.clone()]);
    assert_eq!(store.read_meta(&r).unwrap(), want.meta);
    let all = want.tensor("weights").unwrap().to_vec::<u32>().unwrap();
    for (from, to) in [(0, 1), (99, 101), (60, 70), (100, 170), (169, 171), (999, 1000), (0, 1000), (5, 5)] {
        let read = store.read_rows(&r, "weights", from..to).unwrap().to_vec::<u32>().unwrap();
        assert_eq!(read, all[(from * 256) as usize..(to * 256) as usize], "rows {from}..{to}");
    }
    // A successor finds the whole reference.
    assert_eq!(Store::open(RealFs::new(), dir.path()).unwrap().receipts("b").unwrap()["s"], std::slice::from_ref(&r));
    let found = verify(&*RealFs::new(), dir.path()).unwrap();
    assert_eq!(found.errors, []);
    let shared = |name: &str| found.packs.iter().find(|p| p.name == name).unwrap().shared_bytes;
    assert_eq!((shared(&first.pack), shared(&r.pack)), (0, 1000 * ROW - 2 * BLOCK_BYTES));
}

#[test]
fn whoever_keeps_the_new_record_keeps_the_pack_that_it_shares_blocks_of() {
    let sim = SimFs::new(1);
    let store = on(&sim);
    let base = record(1, 200);
    let first = publish(&store, "a", &base);
    let r = changed(&store, "b", &first, 0, &rows(7, 1));
    let want = with_rows(&base, 0, &rows(7, 1));
    let mut q = Queue::new();
    q.begin_epoch(1);
    let member = store.register("main").unwrap();
    let apply = |q: &mut Queue, op: Result<straw::queue::Op, Refused>| q.apply(&op.unwrap()).unwrap();
    // By every way in which a reference gets into a queue.
    let op = q.submit((1..3).map(|id| NewTask { id: TaskId(id), input: vec![], attempts_max: 3 }).collect());
    apply(&mut q, op);
    let Ok(Completion::Accept(op)) = q.offer(TaskId(1), "s1", std::slice::from_ref(&r)) else { panic!() };
    q.apply(&op).unwrap();
    let collect = |q: &mut Queue| {
        let packs = store.packs().unwrap();
        let gone = Collector::new(0).candidates(&packs, q, 0);
        if !gone.is_empty() {
            let op = q.retire(&gone).unwrap();
            q.apply(&op).unwrap();
            member.remove(q.retired()).unwrap();
        }
        gone
    };
    assert_eq!(q.live_packs(), BTreeSet::from([first.pack.clone(), r.pack.clone()]));
    assert_eq!(collect(&mut q), [""; 0]);
    assert_eq!(q.retire(std::slice::from_ref(&first.pack)), Err(Refused::PackLive(first.pack.clone())));
    // A checkpoint, and a fork of it.
    let op = q.checkpoint("step-1", b"model");
    apply(&mut q, op);
    let op = q.drop_accepted(&[straw::queue::Position(0)], straw::queue::DropCause::Filtered, "alike");
    apply(&mut q, op);
    assert_eq!(collect(&mut q), [""; 0], "the checkpoint holds both");
    let fork: Queue = postcard::from_bytes(&postcard::to_stdvec(&q.fork("step-1").unwrap()).unwrap()).unwrap();
    assert!(fork.is_live(&first.pack) && fork.is_live(&r.pack));
    let op = q.drop_checkpoint("step-1");
    apply(&mut q, op);
    // A batch.
    let op = q.plan_batch(BatchId(0), &[]);
    apply(&mut q, op);
    let op = q.batch_ready(BatchId(0), std::slice::from_ref(&r));
    apply(&mut q, op);
    assert_eq!(collect(&mut q), [""; 0]);
    assert_eq!(store.read(&r).unwrap(), want);
    assert_eq!(straw::owners::live_bytes(&q)[&first.pack], r.shares[0].bytes);
    let op = q.ack(BatchId(0)).unwrap().unwrap();
    q.apply(&op).unwrap();
    let op = q.release(BatchId(1));
    apply(&mut q, op);
    // Nobody needs either; and then it is too late for a reference that shares.
    let again = changed(&store, "c", &first, 0, &rows(8, 1));
    assert_eq!(collect(&mut q).len(), 3);
    let fresh = store.writer("d").unwrap();
    let other = fresh.publish("s", &[record(2, 1)]).unwrap().remove(0);
    let stale = Ref { pack: other.pack.clone(), ..again };
    assert_eq!(q.retain("o", &[stale]), Err(Refused::PackRetired(first.pack.clone())));
    let crowd = Ref { shares: vec![straw::Share::default(); limits::SHARES_MAX + 1], ..other };
    assert!(matches!(q.retain("o", &[crowd]), Err(Refused::Limit { .. })));
}

#[test]
fn a_writer_that_is_told_of_a_collected_pack_publishes_the_same_content_whole() {
    let sim = SimFs::new(1);
    let store = on(&sim);
    let base = record(1, 200);
    let first = publish(&store, "a", &base);
    let mut update = store.update(&first).unwrap();
    update.set_rows("weights", 3..4, &rows(7, 1)).unwrap();
    let writer = store.writer("b").unwrap();
    let r = writer.publish_updates("s", std::slice::from_ref(&update)).unwrap().remove(0);
    assert_eq!(writer.publish_updates("s", &[update]).unwrap(), std::slice::from_ref(&r), "a retry writes nothing");
    let want = with_rows(&base, 3, &rows(7, 1));
    assert_eq!(
        writer.publish("s", std::slice::from_ref(&want)).unwrap(),
        std::slice::from_ref(&r),
        "the same content, said whole"
    );
    assert!(matches!(writer.publish("s", &[base]), Err(Error::SubmissionConflict { .. })));
    store.register("main").unwrap().remove(&[first.pack.clone()].into()).unwrap();
    assert!(matches!(store.read(&r), Err(Error::PackMissing { pack, .. }) if pack == first.pack));
    writer.retired(&first.pack);
    let whole = writer.publish("s", std::slice::from_ref(&want)).unwrap().remove(0);
    assert_eq!((whole.shares.len(), store.read(&whole).unwrap()), (0, want));
}

#[test]
fn an_update_of_an_update_points_at_the_blocks_themselves_and_never_at_too_many_packs() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(RealFs::new(), dir.path()).unwrap();
    let mut want = record(1, 64 * 40); // 40 blocks
    let mut r = publish(&store, "w", &want);
    for i in 0..40 {
        // One block more of its own each time, in a pack of its own.
        let new = rows(100 + i, 64);
        want = with_rows(&want, 64 * u64::from(i), &new);
        let next = changed(&store, "w", &r, 64 * u64::from(i), &new);
        assert!(next.shares.len() <= limits::SHARES_MAX, "{} packs", next.shares.len());
        assert!(next.len < 4 * BLOCK_BYTES, "update {i} writes {} bytes", next.len);
        r = next;
        assert_eq!(store.read(&r).unwrap(), want, "update {i}");
    }
    // None of the records between is needed, only packs are.
    let keep: BTreeSet<String> = r.packs().map(str::to_owned).collect();
    for pack in store.packs().unwrap().iter().filter(|pack| !keep.contains(&pack.name)) {
        std::fs::remove_file(dir.path().join(format!("{}.pack", pack.name))).unwrap();
    }
    assert_eq!(Store::open(RealFs::new(), dir.path()).unwrap().read(&r).unwrap(), want);
}

#[test]
fn a_damaged_block_is_damage_of_those_who_share_it_and_of_nobody_else() {
    let sim = SimFs::new(1);
    let store = on(&sim);
    let base = record(1, 256);
    let first = publish(&store, "a", &base);
    let r = changed(&store, "b", &first, 0, &rows(7, 1));
    sim.flip(format!("/packs/{}.pack", first.pack), first.offset + 3 * BLOCK_BYTES);
    let store = on(&sim);
    for read in [store.read(&r).map(drop), store.read_rows(&r, "weights", 0..256).map(drop)] {
        assert!(matches!(&read, Err(Error::Corrupt { path, .. }) if *path == first.pack), "{read:?}");
    }
    assert!(store.read_rows(&r, "weights", 0..128).is_ok());
    let found = verify(&sim, "/packs").unwrap();
    assert_eq!(found.errors.len(), 1);
    assert!(found.errors[0].file.starts_with(&first.pack), "{:?}", found.errors);
    let other = publish(&store, "c", &record(2, 3));
    let refs = [r.clone(), other];
    assert_eq!(verify_refs(&store, &refs).into_iter().map(|(r, _)| r).collect::<Vec<_>>(), std::slice::from_ref(&r));
    // What would be copied of it is damaged; a row elsewhere can still be changed.
    let mut update = store.update(&r).unwrap();
    assert!(matches!(update.set_rows("weights", 190..195, &rows(1, 5)), Err(Error::Corrupt { .. })));
    let mut update = store.update(&r).unwrap();
    update.set_rows("weights", 192..256, &rows(9, 64)).unwrap();
    let mended = store.writer("d").unwrap().publish_updates("s", &[update]).unwrap().remove(0);
    assert!(store.read(&mended).is_ok() || store.read_rows(&mended, "weights", 192..256).is_ok());
}

#[test]
fn a_reference_that_does_not_name_the_packs_it_shares_gives_nothing() {
    let sim = SimFs::new(1);
    let store = on(&sim);
    let first = publish(&store, "a", &record(1, 200));
    let r = changed(&store, "b", &first, 0, &rows(7, 1));
    let bare = Ref { shares: Vec::new(), ..r.clone() };
    let other = publish(&store, "c", &record(2, 200));
    let elsewhere = Ref { shares: vec![straw::Share { pack: other.pack, bytes: 1 }], ..r.clone() };
    let untabled = Ref { table: 0, ..r };
    for wrong in [bare, elsewhere, untabled] {
        assert!(matches!(store.read(&wrong), Err(Error::Corrupt { .. })), "{wrong:?}");
    }
}

#[test]
fn values_that_do_not_fit_are_refused_with_their_reason() {
    let sim = SimFs::new(1);
    let store = on(&sim);
    let first = publish(&store, "a", &record(1, 200));
    let mut update = store.update(&first).unwrap();
    for (name, range, values) in [
        ("nothing", 0..1, rows(1, 1)),
        ("weights", 199..201, rows(1, 2)),
        ("weights", 0..2, rows(1, 1)),
        ("weights", 0..1, Tensor::from_vec(&[1, 256], vec![1i32; 256]).unwrap()),
        ("weights", 0..1, Tensor::from_vec(&[1, 255], vec![1u32; 255]).unwrap()),
        ("weights", std::ops::Range { start: 2, end: 1 }, rows(1, 1)),
    ] {
        let refused = update.set_rows(name, range, &values);
        assert!(matches!(refused, Err(Error::Tensor { .. })), "{refused:?}");
    }
    // Nothing changed: all is shared but what is short.
    let (shared, new) = update.shared_and_new();
    assert_eq!((shared, new), (200 * ROW, 12));
    update.set_rows("weights", 0..0, &rows(1, 0)).unwrap();
    update.set_rows("few", 1..2, &Tensor::from_vec(&[1], vec![9u32]).unwrap()).unwrap();
    update.set_meta("other");
    let r = store.writer("b").unwrap().publish_updates("s", &[update]).unwrap().remove(0);
    let read = store.read(&r).unwrap();
    assert_eq!(read.tensor("few").unwrap().to_vec::<u32>().unwrap(), [1, 9, 2]);
    assert_eq!(
        (&read.meta[..], read.tensor("weights").unwrap()),
        (&b"other"[..], record(1, 200).tensor("weights").unwrap())
    );
}

#[test]
fn what_another_store_has_is_not_shared() {
    let sim = SimFs::new(1);
    let (store, other) = (on(&sim), Store::open(Arc::new(sim.clone()), "/other").unwrap());
    let first = publish(&store, "a", &record(1, 200));
    let update = store.update(&first).unwrap();
    let refused = other.writer("b").unwrap().publish_updates("s", std::slice::from_ref(&update));
    assert!(matches!(&refused, Err(Error::PackMissing { pack, .. }) if *pack == first.pack), "{refused:?}");
    // Another handle of the same folder is the same store.
    assert!(on(&sim.mount()).writer("b").unwrap().publish_updates("s", &[update]).is_ok());
}

#[test]
fn a_tensor_that_is_given_whole_shares_what_is_the_same() {
    let sim = SimFs::new(1);
    let store = on(&sim);
    let base = record(1, 64 * 6);
    let first = publish(&store, "a", &base);
    let want = with_rows(&with_rows(&base, 64, &rows(3, 1)), 300, &rows(4, 2));
    let mut update = store.update(&first).unwrap();
    update.set("weights", want.tensor("weights").unwrap()).unwrap();
    assert_eq!(update.shared_and_new(), (4 * BLOCK_BYTES, 2 * BLOCK_BYTES + 12));
    let grown = Tensor::from_vec(&[65, 256], vec![5u32; 65 * 256]).unwrap();
    update.set("more", &grown).unwrap();
    let r = store.writer("b").unwrap().publish_updates("s", &[update]).unwrap().remove(0);
    assert_eq!(store.read(&r).unwrap(), want.with("more", grown));
    // Of another shape it is written whole.
    let mut update = store.update(&r).unwrap();
    update.set("weights", &rows(6, 3)).unwrap();
    let r = store.writer("b").unwrap().publish_updates("t", &[update]).unwrap().remove(0);
    assert_eq!(store.read(&r).unwrap().tensor("weights").unwrap(), &rows(6, 3));
}

#[test]
fn an_archive_keeps_and_reads_records_that_share() {
    let sim = SimFs::new(1);
    let store = on(&sim);
    let base = record(1, 200);
    let first = publish(&store, "a", &base);
    let r = changed(&store, "b", &first, 5, &rows(7, 2));
    let entries = [Entry { key: b"task 1".to_vec(), part: 0, reference: r.clone() }];
    let writer = store.writer("archive").unwrap();
    let index = Archive::write(&writer, "index", &entries).unwrap();
    let mut q = Queue::new();
    for op in Archive::hold(&q, "x", &index, &entries).unwrap() {
        q.apply(&op).unwrap();
    }
    assert!(q.is_live(&first.pack));
    let archive = Archive::open(&store, &index).unwrap();
    let loaded = archive.load(&[b"task 1"]).unwrap();
    assert_eq!(loaded[0], [(entries[0].clone(), with_rows(&base, 5, &rows(7, 2)))]);
    // Its index names places: neither pack is moved from.
    let packs = store.packs().unwrap();
    assert!(compact::sparse(&packs, &q, 100, Archive::is_owner).is_empty());
    assert!(!compact::sparse(&packs, &q, 100, |_| false).is_empty());
}

/// Copies what is needed of the pack elsewhere, gives the pack up and removes it.
fn give_up(store: &Store, q: &mut Queue, pack: &str) -> Vec<(Ref, Ref)> {
    let sparse = compact::sparse(&store.packs().unwrap(), q, 100, |_| false);
    let one = sparse.into_iter().find(|one| one.pack == pack).expect("it is needed");
    let writer = store.writer("copier").unwrap();
    let moves = compact::copy(store, &writer, &one.pack, &one.live).unwrap();
    assert_eq!(compact::copy(store, &writer, &one.pack, &one.live).unwrap(), moves, "again, and nothing is written");
    assert_eq!(moves.len(), one.live.len());
    writer.seal();
    assert!(moves.iter().all(|(_, to)| !to.needs(pack)), "{moves:?}");
    q.apply(&q.move_records(&moves).unwrap()).unwrap();
    assert!(!q.is_live(pack), "nothing is left behind");
    q.apply(&q.retire(&[pack.to_owned()]).unwrap()).unwrap();
    assert!(store.register("main").unwrap().remove(q.retired()).unwrap() > 0);
    moves
}

#[test]
fn a_pack_is_given_up_when_what_others_share_of_it_has_moved() {
    for compression in [Compression::None, Compression::Zstd(3)] {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { compression, ..Options::default() };
        let store = Store::open_with(RealFs::new(), dir.path(), options).unwrap();
        let base = record(1, 64 * 8);
        let first = publish(&store, "a", &base);
        let one = changed(&store, "b", &first, 0, &rows(7, 64));
        let two = changed(&store, "c", &one, 64, &rows(8, 64));
        let want = [base.clone(), with_rows(&base, 0, &rows(7, 64))];
        let want = [&want[..], &[with_rows(&want[1], 64, &rows(8, 64))]].concat();
        let mut q = Queue::new();
        q.apply(&q.retain("o", &[first.clone(), one.clone(), two.clone()]).unwrap()).unwrap();
        let moves = give_up(&store, &mut q, &first.pack);
        let now: Vec<Ref> = [&first, &one, &two].map(|r| q.resolve(r)).to_vec();
        for (r, want) in now.iter().zip(&want) {
            assert_eq!(&store.read(r).unwrap(), want);
        }
        // What they shared is there once: with the copy of the record that it was written with.
        let written: u64 = moves.iter().map(|(_, to)| to.len).sum();
        assert!(written < first.len + 40_000, "{written} of {}", first.len);
        assert_eq!(verify_refs(&store, &now).len(), 0);
        // The same again when nobody needs the record that they were written with.
        q.apply(&q.retain("o", &now[1..]).unwrap()).unwrap();
        give_up(&store, &mut q, &now[0].pack);
        let last: Vec<Ref> = now[1..].iter().map(|r| q.resolve(r)).collect();
        assert_eq!(store.read_many(&last).unwrap(), want[1..]);
        assert!(last[0].len + last[1].len < first.len + 4 * BLOCK_BYTES, "what both share is there once");
        assert_eq!(q.resolve(&one), last[0], "old names lead to it");
    }
}

#[test]
fn a_pack_that_old_references_share_blocks_of_is_kept_until_every_lease_from_before_is_over() {
    let sim = SimFs::new(1);
    let store = on(&sim);
    let first = publish(&store, "a", &record(1, 200));
    let r = changed(&store, "b", &first, 0, &rows(7, 1));
    let mut q = Queue::new();
    q.begin_epoch(1);
    q.apply(&q.submit(vec![NewTask { id: TaskId(1), input: vec![], attempts_max: 3 }]).unwrap()).unwrap();
    q.apply(&q.retain("o", std::slice::from_ref(&r)).unwrap()).unwrap();
    let lease = q.acquire("reader", 1, 0, Default::default()).remove(0);
    let sparse = compact::sparse(&store.packs().unwrap(), &q, 100, |_| false);
    let one = sparse.into_iter().find(|one| one.pack == first.pack).unwrap();
    let moves = compact::copy(&store, &store.writer("copier").unwrap(), &one.pack, &one.live).unwrap();
    q.apply(&q.move_records(&moves).unwrap()).unwrap();
    assert!(!q.is_live(&first.pack));
    let mut collector = Collector::new(0);
    let packs = store.packs().unwrap();
    assert!(!collector.candidates(&packs, &q, 0).contains(&first.pack), "the reader may read it by its old reference");
    assert!(!collector.candidates(&packs, &q, 1).contains(&first.pack));
    q.apply(&q.fail(lease.task, lease.attempt, "over", false).unwrap()).unwrap();
    assert!(collector.candidates(&packs, &q, 2).contains(&first.pack));
}

#[test]
fn a_crash_in_the_middle_of_an_update_leaves_the_older_record_and_no_half_of_the_new_one() {
    let base = record(1, 200);
    let want = with_rows(&base, 10, &rows(7, 3));
    let mut lost = 0;
    for crash in 0..40 {
        let sim = SimFs::new(crash);
        let first = publish(&on(&sim), "a", &base);
        sim.crash_at(sim.mutations() + crash % 8);
        let store = on(&sim);
        let mut update = store.update(&first).unwrap();
        update.set_rows("weights", 10..13, &rows(7, 3)).unwrap();
        let published = store.writer("b").and_then(|writer| writer.publish_updates("s", &[update]));
        for after in [sim.process_death(), sim.power_loss(crash)] {
            let store = on(&after);
            assert_eq!(store.read(&first).unwrap(), base);
            let receipt = store.receipt("b", "s").unwrap();
            if let Ok(refs) = &published {
                assert_eq!(receipt.as_ref(), Some(refs), "what was acknowledged is found");
            }
            match receipt {
                Some(refs) => assert_eq!(store.read(&refs[0]).unwrap(), want),
                None => lost += 1,
            }
            assert_eq!(verify(&after, Path::new("/packs")).unwrap().errors, []);
        }
    }
    assert!(lost > 0, "some crashes came before it was there");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Any changes, one behind the other, compressed or not, with packs given up in between: the record is what a copy in memory is.
    #[test]
    fn records_that_are_changed_many_times_are_what_a_copy_in_memory_is(
        changes in prop::collection::vec((0u64..300, 1u64..150, any::<u32>(), any::<bool>(), 0u8..4), 1..10),
        zstd in any::<bool>(),
    ) {
        let sim = SimFs::new(1);
        let compression = if zstd { Compression::Zstd(1) } else { Compression::None };
        let options = Options { pack_bytes_target: 300 << 10, compression, ..Options::default() };
        let store = Store::open_with(Arc::new(sim.clone()), "/packs", options).unwrap();
        let mut want = record(1, 300);
        let mut r = publish(&store, "w", &want);
        let mut q = Queue::new();
        for (i, (from, count, seed, whole, then)) in changes.into_iter().enumerate() {
            let count = count.min(300 - from);
            let new = rows(seed, count);
            want = with_rows(&want, from, &new);
            let mut update = store.update(&r).unwrap();
            if whole {
                update.set("weights", want.tensor("weights").unwrap()).unwrap();
            } else {
                update.set_rows("weights", from..from + count, &new).unwrap();
            }
            let writer = store.writer("w").unwrap();
            r = writer.publish_updates(&format!("s{i}"), &[update]).unwrap().remove(0);
            writer.seal();
            q.apply(&q.retain("o", std::slice::from_ref(&r)).unwrap()).unwrap();
            if then == 0 {
                let packs: Vec<String> = r.packs().map(str::to_owned).collect();
                give_up(&store, &mut q, &packs[seed as usize % packs.len()]);
                r = q.owner("o").unwrap()[0].clone();
            }
            prop_assert_eq!(&store.read(&r).unwrap(), &want);
            let read = store.read_rows(&r, "weights", from..from + count).unwrap();
            prop_assert_eq!(read.bytes(), new.bytes());
        }
        prop_assert_eq!(verify(&sim, "/packs").unwrap().errors, []);
    }
}
