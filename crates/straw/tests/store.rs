//! The store on the real file system.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod support;

use std::os::unix::fs::FileExt;
use std::sync::Arc;

use straw::{Durability, Error, Options, RealFs, Record, Ref, SimFs, Store, Tensor};

fn store(dir: &std::path::Path) -> Store {
    Store::open(RealFs::new(), dir).unwrap()
}

fn record(seed: u64, rows: u64, cols: u64) -> Record {
    let values: Vec<i64> = (0..rows * cols).map(|i| (i * 31 + seed) as i64).collect();
    let scores: Vec<f32> = (0..rows).map(|i| i as f32 + seed as f32).collect();
    Record::new(format!("{{\"seed\":{seed}}}"))
        .with("tokens", Tensor::from_vec(&[rows, cols], values).unwrap())
        .with("scores", Tensor::from_vec(&[rows], scores).unwrap())
        .with("empty", Tensor::from_vec::<u8>(&[0, 7], vec![]).unwrap())
        .with("scalar", Tensor::from_vec(&[], vec![seed]).unwrap())
}

fn flip(dir: &std::path::Path, pack: &str, offset: u64) {
    let path = dir.join(format!("{pack}.pack"));
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 1], offset).unwrap();
}

#[test]
fn a_record_reads_back_identical_from_any_store() {
    let dir = tempfile::tempdir().unwrap();
    let records: Vec<Record> = (0..5).map(|i| record(i, 10 + i, 3)).collect();
    let refs = store(dir.path()).writer("w-0").unwrap().publish("s", &records).unwrap();
    let other = store(dir.path());
    for (r, record) in refs.iter().zip(&records) {
        assert_eq!(&other.read(r).unwrap(), record);
        assert_eq!(other.read_meta(r).unwrap(), record.meta);
        assert_eq!(other.tensors(r).unwrap().len(), 4);
        assert_eq!(r.offset % 64, 0);
    }
}

#[test]
fn a_row_slice_reads_only_the_blocks_it_touches() {
    let dir = tempfile::tempdir().unwrap();
    let rec = record(3, 4096, 32); // 256 B a row, 1 MiB
    let r = store(dir.path()).writer("w").unwrap().publish("s", std::slice::from_ref(&rec)).unwrap().remove(0);
    let all = rec.tensor("tokens").unwrap().to_vec::<i64>().unwrap();
    for rows in [0..1, 255..257, 256..512, 4095..4096, 0..4096, 7..7] {
        let got = store(dir.path()).read_rows(&r, "tokens", rows.clone()).unwrap();
        assert_eq!(got.shape(), [rows.end - rows.start, 32]);
        assert_eq!(got.to_vec::<i64>().unwrap(), all[rows.start as usize * 32..rows.end as usize * 32]);
    }
    // Damage the last block: other rows stay readable, those in it do not.
    flip(dir.path(), &r.pack, r.offset + (1 << 20) - 100);
    let damaged = store(dir.path());
    assert!(damaged.read_rows(&r, "tokens", 0..3840).is_ok());
    assert!(matches!(damaged.read_rows(&r, "tokens", 4095..4096), Err(Error::Corrupt { .. })));
    assert!(matches!(damaged.read(&r), Err(Error::Corrupt { .. })));
    assert!(damaged.read_rows(&r, "tokens", 0..4097).is_err());
    assert!(damaged.read_rows(&r, "nope", 0..1).is_err());
}

#[test]
fn damage_of_any_byte_of_a_record_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let rec = record(3, 3, 2);
    let r = store(dir.path()).writer("w").unwrap().publish("s", std::slice::from_ref(&rec)).unwrap().remove(0);
    let mut noticed = 0;
    for at in 0..r.len {
        flip(dir.path(), &r.pack, r.offset + at);
        match store(dir.path()).read(&r) {
            Err(Error::Corrupt { .. }) => noticed += 1,
            Ok(same) => assert_eq!(same, rec, "only padding may change unseen"),
            Err(e) => panic!("{e}"),
        }
        flip(dir.path(), &r.pack, r.offset + at);
    }
    assert!(noticed > r.len / 2);
    assert_eq!(store(dir.path()).read(&r).unwrap(), rec);
}

#[test]
fn the_same_submission_gives_the_same_references_and_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let writer = store(dir.path()).writer("w").unwrap();
    let refs = writer.publish("s", &[record(1, 2, 2)]).unwrap();
    assert_eq!(writer.publish("s", &[record(1, 2, 2)]).unwrap(), refs);
    assert!(matches!(writer.publish("s", &[record(2, 2, 2)]), Err(Error::SubmissionConflict { .. })));
    assert_ne!(writer.publish("t", &[record(1, 2, 2)]).unwrap(), refs);
}

#[test]
fn a_successor_finds_the_receipts_of_packs_open_and_sealed() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { pack_bytes_target: 4096, ..Options::default() };
    let small = Store::open_with(RealFs::new(), dir.path(), options).unwrap();
    let writer = small.writer("w").unwrap();
    let refs: Vec<Vec<Ref>> = (0..20).map(|i| writer.publish(&format!("s{i}"), &[record(i, 4, 10)]).unwrap()).collect();
    small.writer("w-other").unwrap().publish("x", &[record(0, 1, 1)]).unwrap();
    drop(writer); // dies without sealing its last pack
    let receipts = store(dir.path()).receipts("w").unwrap();
    assert_eq!(receipts.len(), 20);
    for (i, refs) in refs.iter().enumerate() {
        assert_eq!(&receipts[&format!("s{i}")], refs);
    }
    let packs: std::collections::BTreeSet<_> = refs.iter().flatten().map(|r| &r.pack).collect();
    assert!(packs.len() > 3, "the writer rotated");
}

#[test]
fn concurrent_publishes_all_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { pack_bytes_target: 64 << 10, ..Options::default() };
    let store = Store::open_with(RealFs::new(), dir.path(), options).unwrap();
    let writer = Arc::new(store.writer("w").unwrap());
    let threads: Vec<_> = (0..8u64)
        .map(|t| {
            let writer = writer.clone();
            std::thread::spawn(move || {
                let publish =
                    |i| (t * 100 + i, writer.publish(&format!("{t}-{i}"), &[record(t * 100 + i, 5, 5)]).unwrap());
                (0..25).map(publish).collect::<Vec<_>>()
            })
        })
        .collect();
    let mut seen = std::collections::BTreeSet::new();
    for (seed, refs) in threads.into_iter().flat_map(|t| t.join().unwrap()) {
        assert_eq!(store.read(&refs[0]).unwrap(), record(seed, 5, 5));
        assert!(seen.insert((refs[0].pack.clone(), refs[0].offset)), "no two records share a place");
    }
    writer.seal();
    assert_eq!(store.receipts("w").unwrap().len(), 200);
}

#[test]
fn limits_and_names_are_refused_with_their_reason() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    for bad in ["", "UP", "a/b", "..", ".a", &"x".repeat(101)] {
        assert!(matches!(store.writer(bad), Err(Error::BadName { .. })), "{bad}");
    }
    let writer = store.writer("w").unwrap();
    assert!(writer.publish("", &[]).is_err());
    assert!(matches!(writer.publish(&"x".repeat(201), &[]), Err(Error::Limit { .. })));
    let t = || Tensor::from_vec(&[1], vec![1u8]).unwrap();
    assert!(matches!(writer.publish("s", &[Record::new("").with("a", t()).with("a", t())]), Err(Error::Tensor { .. })));
    assert!(Tensor::from_vec(&[3], vec![1u8]).is_err());
    assert!(Tensor::from_vec(&[u64::MAX, 2], vec![1u16]).is_err());
    let gone = Ref { pack: "w-0123456789abcdef".into(), offset: 0, len: 10, head: 10, crc: 0, ..Ref::default() };
    assert!(matches!(store.read(&gone), Err(Error::PackMissing { .. })));
    let outside = Ref { pack: "../../etc/passwd".into(), ..gone };
    assert!(matches!(store.read(&outside), Err(Error::PackMissing { .. })));
    assert_eq!(writer.publish("nothing", &[]).unwrap(), []);
}

#[test]
fn concurrent_publishes_share_syncs() {
    let sim = SimFs::new(1);
    let fs = support::hooked(&sim, |op| {
        if op == straw::watched_fs::Operation::Sync {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    });
    let store = Store::open(fs, "/packs").unwrap();
    let writer = Arc::new(store.writer("w").unwrap());
    let publish = |t: u64| {
        let writer = writer.clone();
        let all =
            move || (0..20).map(|i| writer.publish(&format!("{t}-{i}"), &[record(t + i, 3, 3)]).unwrap()).collect();
        std::thread::spawn(all)
    };
    let threads: Vec<std::thread::JoinHandle<Vec<Vec<Ref>>>> = (0..8).map(publish).collect();
    let refs: Vec<Vec<Vec<Ref>>> = threads.into_iter().map(|t| t.join().unwrap()).collect();
    assert!(sim.syncs() < 160, "{} syncs for 160 publishes", sim.syncs());
    let after = Store::open(Arc::new(sim.power_loss(7)), "/packs").unwrap();
    for (t, refs) in refs.iter().enumerate() {
        for (i, refs) in refs.iter().enumerate() {
            assert_eq!(after.read(&refs[0]).unwrap(), record((t + i) as u64, 3, 3));
        }
    }
}

#[test]
fn one_publish_is_one_write_and_one_sync() {
    let sim = SimFs::new(1);
    let writer = Store::open(Arc::new(sim.clone()), "/packs").unwrap().writer("w").unwrap();
    writer.publish("first", &[record(0, 1, 1)]).unwrap();
    let before = sim.mutations();
    writer.publish("second", &[record(1, 100, 100), record(2, 10, 10)]).unwrap();
    assert_eq!(sim.mutations() - before, 2);
}

#[test]
fn many_records_read_together_as_they_do_alone() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { pack_bytes_target: 200 << 10, ..Options::default() };
    let store = Store::open_with(RealFs::new(), dir.path(), options).unwrap();
    let (one, two) = (store.writer("one").unwrap(), store.writer("two").unwrap());
    let mut refs = Vec::new();
    for i in 0..60u64 {
        let rows = if i % 10 == 0 { 20_000 } else { 5 + i }; // some so large that a run ends
        let writer = if i % 3 == 0 { &one } else { &two };
        refs.push((writer.publish(&format!("{i}"), &[record(i, rows, 2)]).unwrap().remove(0), record(i, rows, 2)));
    }
    refs.reverse();
    refs.push(refs[3].clone());
    let asked: Vec<Ref> = refs.iter().map(|(r, _)| r.clone()).collect();
    let read = store.read_many(&asked).unwrap();
    assert!(read.iter().eq(refs.iter().map(|(_, record)| record)));
    assert_eq!(store.read_many(&[]).unwrap(), []);
    flip(dir.path(), &asked[7].pack, asked[7].offset + 400);
    assert!(matches!(store.read_many(&asked), Err(Error::Corrupt { .. })));
}

#[test]
fn bytes_that_have_not_arrived_are_told_from_corruption() {
    let sim = SimFs::new(1);
    let open = || Store::open(Arc::new(sim.clone()), "/packs").unwrap();
    let r = open().writer("w").unwrap().publish("s", &[record(1, 50, 50)]).unwrap().remove(0);
    let path = format!("/packs/{}.pack", r.pack);
    sim.resize(&path, r.offset + 10);
    let early = open().read(&r).unwrap_err();
    assert!(matches!(early, Error::NotVisible { .. }) && early.is_retryable(), "short: {early}");
    sim.resize(&path, r.offset);
    sim.resize(&path, r.offset + r.len);
    let early = open().read(&r).unwrap_err();
    assert!(matches!(early, Error::NotVisible { .. }), "zeros: {early}");
    assert!(!Error::PackMissing { pack: "p".into(), dir: "d".into() }.is_retryable());
}

#[test]
fn process_durability_survives_the_process_and_never_lies_after_the_machine() {
    let options = Options { durability: Durability::Process, ..Options::default() };
    let sim = SimFs::new(1);
    let writer = Store::open_with(Arc::new(sim.clone()), "/packs", options).unwrap().writer("w").unwrap();
    let refs: Vec<Ref> = (0..20).flat_map(|i| writer.publish(&format!("{i}"), &[record(i, 30, 3)]).unwrap()).collect();
    assert_eq!(sim.syncs(), 0);
    let mut lost = 0;
    for seed in 0..30 {
        let alive = Store::open(Arc::new(sim.process_death()), "/packs").unwrap();
        let after = Store::open(Arc::new(sim.power_loss(seed)), "/packs").unwrap();
        for (i, r) in refs.iter().enumerate() {
            assert_eq!(alive.read(r).unwrap(), record(i as u64, 30, 3));
            match after.read(r) {
                Ok(whole) => assert_eq!(whole, record(i as u64, 30, 3)),
                Err(_) => lost += 1,
            }
        }
    }
    assert!(lost > 0, "the simulated machine loses what was not synced");
}

#[test]
fn a_retired_pack_is_forgotten_so_that_its_submission_can_be_published_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    let writer = store.writer("w").unwrap();
    let refs = writer.publish("s", &[record(1, 2, 2)]).unwrap();
    let freed = store.register("main").unwrap().remove(&[refs[0].pack.clone()].into()).unwrap();
    assert!(freed > 0 && matches!(store.read(&refs[0]), Err(Error::PackMissing { .. })));
    writer.retired(&refs[0].pack);
    let again = writer.publish("s", &[record(1, 2, 2)]).unwrap();
    assert_ne!(again[0].pack, refs[0].pack);
    assert_eq!(store.read(&again[0]).unwrap(), record(1, 2, 2));
    assert_eq!(store.packs().unwrap().len(), 1);
}

#[test]
fn long_extents_begin_at_a_page_and_their_padding_is_no_damage() {
    let dir = tempfile::tempdir().unwrap();
    let writer = store(dir.path()).writer("w").unwrap();
    let (small, long) = (Record::new("small"), Record::new(vec![7u8; 100 << 10]));
    let mut refs = Vec::new();
    for i in 0..3 {
        refs.extend(writer.publish(&format!("small-{i}"), std::slice::from_ref(&small)).unwrap());
        refs.extend(writer.publish(&format!("long-{i}"), std::slice::from_ref(&long)).unwrap());
    }
    for sealed in [false, true] {
        if sealed {
            writer.seal();
        }
        let found = straw::verify(&*RealFs::new(), dir.path()).unwrap();
        assert_eq!(
            (found.errors.len(), found.packs[0].extents, found.packs[0].gap_bytes),
            (0, 6, 0),
            "sealed: {sealed}"
        );
        for (r, record) in refs.iter().zip([&small, &long].into_iter().cycle()) {
            assert_eq!(&store(dir.path()).read(r).unwrap(), record);
            assert!(r.len < 64 << 10 || r.offset % 4096 <= 1024, "its extent begins at a page: {r:?}");
        }
    }
}

/// A pack is taken for abandoned by proof alone: the lock that its writer holds for as long as it lives.
mod abandoned {
    use super::*;
    use straw::{PackInfo, SimFs};

    fn on(sim: &SimFs) -> Store {
        Store::open(Arc::new(sim.clone()), "/packs").unwrap()
    }

    fn only(store: &Store) -> PackInfo {
        let mut packs = store.packs().unwrap();
        assert_eq!(packs.len(), 1);
        packs.remove(0)
    }

    #[test]
    fn a_writer_that_lives_is_never_taken_for_dead_and_one_that_died_is_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(RealFs::new(), dir.path()).unwrap();
        let writer = store.writer("w").unwrap();
        writer.publish("s", &[Record::new("x")]).unwrap();
        // Readers and receipts leave the lock alone, and so do other looks.
        store.receipts("w").unwrap();
        for _ in 0..2 {
            assert!(!only(&store).abandoned);
        }
        drop(writer);
        assert!(only(&store).abandoned);
        assert!(only(&store).abandoned, "the look before has let go");
    }

    #[test]
    fn a_pack_that_was_sealed_is_not_abandoned() {
        let sim = SimFs::new(1);
        let writer = on(&sim).writer("w").unwrap();
        writer.publish("s", &[Record::new("x")]).unwrap();
        writer.seal();
        let pack = only(&on(&sim.mount()));
        assert!(pack.sealed && !pack.abandoned);
    }

    #[test]
    fn a_lost_host_keeps_its_pack_until_its_session_ends() {
        let sim = SimFs::new(1);
        sim.set_lock_session_ms(1000);
        let host = sim.mount();
        let writer = on(&host).writer("w").unwrap();
        writer.publish("s", &[Record::new("x")]).unwrap();
        host.host_loss(7);
        drop(writer);
        sim.advance(999);
        assert!(!only(&on(&sim)).abandoned);
        sim.advance(1);
        assert!(only(&on(&sim)).abandoned);
    }

    #[test]
    fn a_mount_that_does_not_share_locks_keeps_every_pack() {
        let sim = SimFs::new(1);
        sim.set_locks_shared(false);
        let writer = on(&sim).writer("w").unwrap();
        writer.publish("s", &[Record::new("x")]).unwrap();
        drop(writer);
        assert!(!only(&on(&sim)).abandoned);
    }

    #[test]
    fn a_lock_that_could_not_be_had_or_asked_for_is_not_taken_for_a_proof() {
        let sim = SimFs::new(1);
        let store = on(&sim);
        let writer = store.writer("w").unwrap();
        sim.fail_next_look(); // the lock is what a publish asks first
        writer.publish("s", &[Record::new("x")]).unwrap();
        drop(writer);
        assert!(!only(&store).abandoned, "it was written without the lock");
        let writer = store.writer("w").unwrap();
        writer.publish("s", &[Record::new("x")]).unwrap();
        drop(writer);
        assert_eq!(store.packs().unwrap().iter().filter(|p| p.abandoned).count(), 1);
    }

    #[test]
    fn of_a_writer_that_died_as_it_began_nothing_is_kept() {
        // Killed at each write, sync and creation of its first publish.
        for crash in 0..6 {
            let sim = SimFs::new(crash);
            sim.crash_at(crash);
            let published = on(&sim).writer("w").unwrap().publish("s", &[Record::new("x")]);
            for after in [sim.process_death(), sim.power_loss(crash)] {
                let packs = on(&after).packs().unwrap();
                assert!(packs.iter().all(|p| p.abandoned), "crash {crash}: {packs:?}, {published:?}");
            }
        }
    }
}

#[test]
fn a_pack_that_was_torn_in_the_zeros_behind_its_header_has_no_gap() {
    let dir = tempfile::tempdir().unwrap();
    let writer = store(dir.path()).writer("w").unwrap();
    writer.publish("s", &[record(1, 1, 1)]).unwrap();
    let path = dir.path().join(format!("{}.pack", writer.pack().unwrap()));
    std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(40).unwrap();
    let found = straw::inspect(&*RealFs::new(), dir.path()).unwrap();
    assert_eq!((found.packs[0].bytes, found.packs[0].extents, found.packs[0].gap_bytes), (40, 0, 0));
    assert_eq!(found.errors, []);
}
