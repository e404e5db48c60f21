//! The journal: torn tails, damage, fences, group commit, truncation; and what `inspect` says of it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod support;

use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use straw::fs::Fs;
use straw::watched_fs::Operation;
use straw::{Error, Fault, Journal, RealFs, Record, Recovered, SimFs, Store, inspect, verify};
use support::hooked;

const DIR: &str = "/run/journal";

fn claim(fs: &Arc<dyn Fs>) -> (Journal, Recovered) {
    Journal::claim(fs.clone(), DIR, "owner").unwrap()
}

fn sim(seed: u64) -> (SimFs, Arc<dyn Fs>) {
    let sim = SimFs::new(seed);
    (sim.clone(), Arc::new(sim))
}

fn txn(i: u64) -> Vec<Vec<u8>> {
    (0..1 + i % 3).map(|r| format!("txn {i} record {r} {}", "x".repeat(i as usize * 7 % 50)).into_bytes()).collect()
}

/// A journal of one segment with `n` transactions, one frame each; and the offset at which each frame ends.
fn written(seed: u64, n: u64) -> (SimFs, Vec<u64>) {
    let (sim, fs) = sim(seed);
    let (journal, _) = claim(&fs);
    let mut ends = vec![128];
    for i in 1..=n {
        assert_eq!(journal.append(&txn(i)).unwrap(), i);
        let report = inspect(&sim, "/run").unwrap().journal.unwrap();
        ends.push(report.segments[0].used_bytes);
    }
    (sim, ends)
}

const SEGMENT: &str = "/run/journal/seg-0000000001-00000000.log";

#[test]
fn a_tail_cut_at_any_byte_keeps_every_whole_transaction() {
    let (sim, ends) = written(1, 6);
    for len in 128..=*ends.last().unwrap() {
        let cut = sim.process_death();
        cut.resize(SEGMENT, len);
        let whole = ends.iter().filter(|end| **end <= len).count() as u64 - 1;
        let fs: Arc<dyn Fs> = Arc::new(cut.clone());
        assert_eq!(verify(&cut, "/run").unwrap().errors, []);
        let (journal, found) = claim(&fs);
        assert_eq!(found.txns, (1..=whole).map(txn).collect::<Vec<_>>());
        let torn = fs.open_dir(DIR.as_ref()).unwrap().open("seg-0000000001-00000000.log").unwrap();
        let torn = torn.read_at(ends[whole as usize], len as usize).unwrap();
        let torn = torn.iter().rposition(|byte| *byte != 0).map_or(0, |last| last as u64 + 1);
        assert_eq!(found.torn_bytes, torn);
        assert_eq!(journal.append(&txn(99)).unwrap(), whole + 1);
        let (_, again) = claim(&fs);
        assert_eq!(again.txns.len() as u64, whole + 1);
        assert_eq!(again.txns.last().unwrap(), &txn(99));
    }
}

#[test]
fn a_tail_of_zeros_is_a_torn_tail() {
    let (sim, ends) = written(2, 4);
    for whole in 0..=4usize {
        let torn = sim.process_death();
        torn.resize(SEGMENT, ends[whole]);
        torn.resize(SEGMENT, ends[4] + 5000); // the size survived, the bytes did not
        let fs: Arc<dyn Fs> = Arc::new(torn);
        let (journal, found) = claim(&fs);
        assert_eq!(found.txns.len(), whole);
        journal.append(&txn(9)).unwrap();
        assert_eq!(claim(&fs).1.txns.len(), whole + 1);
    }
}

#[test]
fn damage_in_the_middle_is_named_with_file_and_offset() {
    let (sim, ends) = written(3, 5);
    for at in 128..ends[4] {
        let damaged = sim.process_death();
        damaged.flip(SEGMENT, at);
        let frame = ends.iter().rfind(|end| **end <= at).unwrap();
        match Journal::claim(Arc::new(damaged.clone()), DIR, "owner") {
            Err(Error::Corrupt { path, offset, .. }) => {
                assert!(SEGMENT.ends_with(&path));
                assert_eq!(offset, *frame);
            }
            other => panic!("damage at {at} gave {other:?}"),
        }
        let errors = verify(&damaged, "/run").unwrap().errors;
        assert_eq!((errors[0].file.as_str(), errors[0].offset), (&SEGMENT["/run/".len()..], *frame));
    }
}

#[test]
fn damage_in_a_header_a_sealed_segment_or_a_snapshot_is_named() {
    let (sim, _) = written(4, 3);
    let header = sim.process_death();
    header.flip(SEGMENT, 14);
    assert!(matches!(Journal::claim(Arc::new(header), DIR, "o"), Err(Error::Corrupt { .. })));

    let fs: Arc<dyn Fs> = Arc::new(sim.clone());
    let (journal, _) = claim(&fs); // seals the first segment: now even its last frame is vouched for
    let sealed = sim.process_death();
    sealed.flip(SEGMENT, inspect(&sim, "/run").unwrap().journal.unwrap().segments[0].used_bytes - 1);
    assert!(matches!(Journal::claim(Arc::new(sealed), DIR, "o"), Err(Error::Corrupt { .. })));

    journal.snapshot(3, b"the state").unwrap();
    let report = inspect(&sim, "/run").unwrap().journal.unwrap();
    let snapshot = PathBuf::from(DIR).join(report.snapshot.unwrap().file);
    for at in 0..28 + 9 {
        let damaged = sim.process_death();
        damaged.flip(&snapshot, at);
        assert!(matches!(Journal::claim(Arc::new(damaged), DIR, "o"), Err(Error::Corrupt { .. })), "{at}");
    }
    assert_eq!(claim(&fs).1.snapshot.unwrap(), b"the state");
}

#[test]
fn a_missing_segment_is_not_taken_for_an_empty_journal() {
    let (sim, fs) = sim(5);
    for i in 1..=3 {
        claim(&fs).0.append(&txn(i)).unwrap();
    }
    fs.open_dir(DIR.as_ref()).unwrap().remove("seg-0000000002-00000000.log").unwrap();
    let Err(Error::Corrupt { what, .. }) = Journal::claim(fs.clone(), DIR, "o") else { panic!("went unnoticed") };
    assert!(what.contains("seg-0000000002-00000000.log is missing"), "{what}");
    assert_eq!(inspect(&sim, "/run").unwrap().errors.len(), 1);
}

#[test]
fn truncation_keeps_exactly_what_the_snapshot_does_not_cover() {
    let (_, fs) = sim(6);
    let (journal, _) = claim(&fs);
    for i in 1..=10 {
        journal.append(&txn(i)).unwrap();
    }
    journal.snapshot(7, b"after 7").unwrap();
    journal.append(&txn(11)).unwrap();
    let (journal, found) = claim(&fs);
    assert_eq!(found.snapshot.unwrap(), b"after 7");
    assert_eq!(found.txns, (8..=11).map(txn).collect::<Vec<_>>());
    journal.snapshot(11, b"after 11").unwrap();
    journal.snapshot(11, b"after 11 too").unwrap();
    let names: Vec<String> = fs.open_dir(DIR.as_ref()).unwrap().list().unwrap().into_iter().map(|e| e.name).collect();
    assert_eq!(
        names,
        [
            "epoch-0000000001",
            "epoch-0000000002",
            "seg-0000000002-00000000.log",
            "snap-0000000000000011-0000000002.snap"
        ]
    );
    let (_, found) = claim(&fs);
    assert_eq!((found.txns.len(), found.last, found.epoch), (0, 11, 3));
    assert_eq!(found.snapshot.unwrap(), b"after 11 too");
}

#[test]
fn a_snapshot_at_any_transaction_loses_none_behind_it() {
    for at in 0..=10u64 {
        let (_, fs) = sim(at);
        for part in 0..2 {
            let (journal, _) = claim(&fs);
            for i in 1..=5 {
                journal.append(&txn(part * 5 + i)).unwrap();
            }
            if part == 1 {
                journal.snapshot(at, b"state").unwrap();
            }
        }
        let (journal, found) = claim(&fs);
        assert_eq!(found.txns, (at + 1..=10).map(txn).collect::<Vec<_>>());
        assert_eq!(journal.append(&txn(1)).unwrap(), 11);
    }
}

#[test]
fn concurrent_appends_share_syncs_and_each_is_there_once() {
    let (sim, _) = sim(7);
    let fs = hooked(&sim, |op| {
        if op == Operation::Sync {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    let (journal, _) = claim(&fs);
    let journal = Arc::new(journal);
    let before = sim.syncs();
    let threads: Vec<_> = (0..8u64)
        .map(|t| {
            let journal = journal.clone();
            let append = move |i: u64| (journal.append(&[format!("{t} {i}")]).unwrap(), format!("{t} {i}"));
            std::thread::spawn(move || (0..40).map(append).collect::<Vec<_>>())
        })
        .collect();
    let mut acked: Vec<(u64, String)> = threads.into_iter().flat_map(|t| t.join().unwrap()).collect();
    acked.sort();
    assert!(acked.iter().map(|(lsn, _)| *lsn).eq(1..=320), "numbers without gap or repeat");
    assert!(sim.syncs() - before < 320, "transactions share syncs");
    let fs: Arc<dyn Fs> = Arc::new(sim.power_loss(1));
    let found: Vec<String> = claim(&fs).1.txns.iter().map(|t| String::from_utf8(t[0].clone()).unwrap()).collect();
    assert_eq!(found, acked.into_iter().map(|(_, text)| text).collect::<Vec<_>>());
}

#[test]
fn a_full_volume_fails_the_transaction_and_not_the_journal() {
    let (sim, fs) = sim(8);
    let (journal, _) = claim(&fs);
    journal.append(&txn(1)).unwrap();
    for (i, fault) in [Fault::NoSpace; 4].into_iter().enumerate() {
        sim.fail_at(sim.mutations() + i as u64 % 2, fault); // the write, then the sync
        assert!(matches!(journal.append(&txn(50)), Err(Error::OutOfSpace { .. })));
    }
    assert_eq!(journal.append(&txn(2)).unwrap(), 2);
    assert_eq!(claim(&fs).1.txns, [txn(1), txn(2)]);
    let (journal, _) = claim(&fs);
    sim.fail_at(sim.mutations() + 1, Fault::Io);
    assert!(matches!(journal.append(&txn(3)), Err(Error::Poisoned { .. })));
    assert!(matches!(journal.append(&txn(3)), Err(Error::Poisoned { .. })));
}

/// What the first owner goes on to do; it notes what was acknowledged to it.
type ZombieDoes<'a> = &'a dyn Fn(&SimFs, &Journal, &mut Vec<Vec<u8>>);

/// What two owners did, and were told.
#[derive(Default)]
struct Told {
    zombie: Vec<Vec<u8>>,
    successor: Option<Vec<Vec<u8>>>,
}

/// Runs `zombie_does` on a journal with three transactions; at its `at`th file operation another process claims the journal
/// and appends, and takes a snapshot first if asked to. Gives false when there is no such operation. Checks that the third owner finds exactly what the second one
/// found and added, and that whatever the first was told is in it.
fn takeover_at(at: i64, snapshots: bool, zombie_does: ZombieDoes<'_>) -> bool {
    let (sim, plain) = sim(at as u64);
    let count = Arc::new(AtomicI64::new(i64::MIN)); // off until set
    let told = Arc::new(Mutex::new(Told::default()));
    let hook = {
        let (count, told, plain) = (count.clone(), told.clone(), plain.clone());
        move |_| {
            if count.fetch_add(1, Ordering::SeqCst) == at {
                let (journal, found) = loop {
                    match Journal::claim(plain.clone(), DIR, "successor") {
                        Err(Error::OutOfSpace { .. }) => {}
                        claimed => break claimed.unwrap(),
                    }
                };
                let mut history: Vec<Vec<u8>> =
                    found.snapshot.map(|s| s.chunks(1).map(<[u8]>::to_vec).collect()).unwrap_or_default();
                history.extend(found.txns.into_iter().flatten());
                if snapshots {
                    // Of the same transaction that the zombie's is of.
                    journal.snapshot(journal.last(), &history.concat()).unwrap();
                }
                journal.append(&[b"S"]).unwrap();
                journal.append(&[b"T"]).unwrap();
                history.extend([b"S".to_vec(), b"T".to_vec()]);
                told.lock().unwrap().successor = Some(history);
            }
        }
    };
    let fs = hooked(&sim, hook);
    let (journal, _) = claim(&fs);
    let mut acked: Vec<Vec<u8>> = Vec::new();
    for letter in ["a", "b", "c"] {
        journal.append(&[letter]).unwrap();
        acked.push(letter.into());
    }
    count.store(0, Ordering::SeqCst);
    zombie_does(&sim, &journal, &mut acked);
    count.store(i64::MIN, Ordering::SeqCst);
    let mut told = told.lock().unwrap();
    told.zombie = acked;
    let Some(history) = &told.successor else { return false };
    assert!(
        history.starts_with(&told.zombie),
        "the first owner was told {:?}, the second found {history:?}",
        told.zombie
    );
    assert!(history.len() <= told.zombie.len() + 3, "at most one transaction of unknown fate");
    for seed in 0..4 {
        let fs: Arc<dyn Fs> = Arc::new(if seed == 0 { sim.process_death() } else { sim.power_loss(seed) });
        let (_, found) = claim(&fs);
        let mut third: Vec<Vec<u8>> =
            found.snapshot.map(|s| s.chunks(1).map(<[u8]>::to_vec).collect()).unwrap_or_default();
        third.extend(found.txns.into_iter().flatten());
        assert_eq!(&third, history, "what a zombie adds is never read");
    }
    true
}

#[test]
fn a_takeover_at_any_moment_of_an_append_loses_nothing_and_fences_the_zombie() {
    let appends = |_: &SimFs, journal: &Journal, acked: &mut Vec<Vec<u8>>| {
        for letter in ["d", "e"] {
            match journal.append(&[letter]) {
                Ok(_) => acked.push(letter.into()),
                Err(Error::Fenced { by, .. }) => assert_eq!(by, 2),
                Err(e) => panic!("{e}"),
            }
        }
    };
    let points = (0..).take_while(|at| takeover_at(*at, false, &appends)).count();
    assert!(points >= 6, "write, sync and two looks, twice: {points}");
}

#[test]
fn a_takeover_at_any_moment_of_a_snapshot_loses_nothing() {
    let snapshots = |_: &SimFs, journal: &Journal, acked: &mut Vec<Vec<u8>>| {
        // The state of this owner is its history, a letter for each transaction.
        let done = journal.snapshot(journal.last(), &acked.concat());
        assert!(done.is_ok() || matches!(done, Err(Error::Fenced { .. })), "{done:?}");
        match journal.append(&[b"d"]) {
            Ok(_) => acked.push(b"d".to_vec()),
            Err(Error::Fenced { .. }) => {}
            Err(e) => panic!("{e}"),
        }
    };
    for successor_snapshots in [false, true] {
        let points = (0..).take_while(|at| takeover_at(*at, successor_snapshots, &snapshots)).count();
        assert!(points >= 14, "{points}");
    }
}

#[test]
fn a_takeover_at_any_moment_after_a_full_volume_loses_nothing() {
    let appends = |sim: &SimFs, journal: &Journal, acked: &mut Vec<Vec<u8>>| {
        // The first append of the zombie fails at its sync, with its bytes visible.
        sim.fail_at(sim.mutations() + 1, Fault::NoSpace);
        for letter in ["d", "e", "f"] {
            match journal.append(&[letter]) {
                Ok(_) => acked.push(letter.into()),
                Err(Error::Fenced { .. } | Error::OutOfSpace { .. }) => {}
                Err(e) => panic!("{e}"),
            }
        }
    };
    let points = (0..).take_while(|at| takeover_at(*at, false, &appends)).count();
    assert!(points >= 10, "{points}");
}

#[test]
fn of_two_racing_claims_one_owns_the_journal() {
    for at in 0..60 {
        let (sim, plain) = sim(at);
        claim(&plain).0.append(&[b"a"]).unwrap();
        let count = Arc::new(AtomicUsize::new(0));
        let other = Arc::new(Mutex::new(None));
        let hook = {
            let (count, other, plain) = (count.clone(), other.clone(), plain.clone());
            move |_| {
                if count.fetch_add(1, Ordering::SeqCst) as u64 == at {
                    *other.lock().unwrap() = Some(claim(&plain));
                }
            }
        };
        let fs = hooked(&sim, hook);
        let mine = Journal::claim(fs.clone(), DIR, "owner");
        let other = other.lock().unwrap().take();
        let Some((theirs, _)) = other else { return };
        let mut acked = vec![vec![b"a".to_vec()]];
        let mut owners = 0;
        for (letter, journal) in [("m", mine.as_ref().ok().map(|(j, _)| j)), ("t", Some(&theirs))] {
            match journal.map(|j| j.append(&[letter])) {
                Some(Ok(_)) => {
                    owners += 1;
                    acked.push(vec![letter.into()]);
                }
                Some(Err(Error::Fenced { .. })) | None => {}
                Some(Err(e)) => panic!("{e}"),
            }
        }
        assert_eq!(owners, 1, "at {at}");
        assert_eq!(claim(&plain).1.txns, acked);
    }
    panic!("a claim does fewer than 60 operations");
}

#[test]
fn a_zombie_of_any_age_is_fenced() {
    let (_, fs) = sim(9);
    let (zombie, _) = claim(&fs);
    zombie.append(&txn(1)).unwrap();
    for _ in 0..300 {
        let (journal, found) = claim(&fs);
        journal.append(&txn(2)).unwrap();
        journal.snapshot(found.last + 1, b"state").unwrap();
    }
    let claims = inspect(&*fs, "/run").unwrap().journal.unwrap().claims;
    assert!(claims[0].epoch > 2 && claims.len() <= 257, "old claims are removed");
    assert!(matches!(zombie.append(&txn(3)), Err(Error::Fenced { epoch: 1, .. })));
}

#[test]
fn the_real_file_system_keeps_the_same_rules() {
    let dir = tempfile::tempdir().unwrap();
    let fs: Arc<dyn Fs> = RealFs::new();
    let journal_dir = dir.path().join("deep").join("journal");
    let (first, found) = Journal::claim(fs.clone(), &journal_dir, "conductor-0").unwrap();
    assert_eq!((found.epoch, found.last), (1, 0));
    for i in 1..=20 {
        first.append(&txn(i)).unwrap();
    }
    first.snapshot(10, b"ten").unwrap();
    let (second, found) = Journal::claim(fs.clone(), &journal_dir, "conductor-0").unwrap();
    assert_eq!(found.txns, (11..=20).map(txn).collect::<Vec<_>>());
    assert!(matches!(first.append(&txn(1)), Err(Error::Fenced { epoch: 1, by: 2 })));
    assert!(matches!(first.snapshot(20, b"x"), Err(Error::Fenced { .. })));
    second.append(&txn(21)).unwrap();
    let store = Store::open(fs.clone(), dir.path().join("deep").join("packs")).unwrap();
    let writer = store.writer("w").unwrap();
    writer.publish("s", &[Record::new("meta")]).unwrap();
    let report = verify(&*fs, dir.path().join("deep")).unwrap();
    assert_eq!(report.errors, []);
    let journal = report.journal.as_ref().unwrap();
    assert_eq!((journal.epoch, journal.last, journal.txns), (2, 21, 11));
    assert_eq!(journal.claims[1].owner, "conductor-0");
    assert_eq!((report.packs.len(), report.packs[0].records, report.packs[0].sealed), (1, 1, false));
    writer.seal();
    let report = verify(&*fs, dir.path().join("deep").join("packs")).unwrap();
    assert!(report.packs[0].sealed && report.journal.is_none());
    assert!(serde_json::to_string(&report).unwrap().contains("\"sealed\":true"));
    assert!(inspect(&*fs, dir.path().join("nowhere")).is_err());
}
