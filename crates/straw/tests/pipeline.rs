//! Pipelined commits: what is handed in together, what is told to whom and when, and what a failure ends. And the coordinator,
//! which commits that way for many threads.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod support;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use straw::fs::Fs;
use straw::journal::Ticket;
use straw::queue::{Completion, LeaseTerms, NewTask, Refused, TaskId};
use straw::watched_fs::Operation;
use straw::{Coordinator, Error, Fault, Journal, RealFs, Recovered, Ref, SimFs, inspect, verify};
use support::hooked;

const DIR: &str = "/run/journal";
const SEGMENT: &str = "/run/journal/seg-0000000001-00000000.log";

fn claim(fs: &Arc<dyn Fs>) -> (Journal, Recovered) {
    Journal::claim(fs.clone(), DIR, "owner").unwrap()
}

fn texts(found: &Recovered) -> Vec<String> {
    found.txns.iter().map(|txn| String::from_utf8(txn[0].clone()).unwrap()).collect()
}

fn numbers(n: u64) -> Vec<String> {
    (0..n).map(|i| i.to_string()).collect()
}

#[test]
fn what_is_handed_in_together_shares_one_write_and_one_sync_and_keeps_its_order() {
    let sim = SimFs::new(1);
    let fs: Arc<dyn Fs> = Arc::new(sim.clone());
    let (journal, _) = claim(&fs);
    let pipeline = journal.pipeline();
    let before = (sim.mutations(), sim.syncs());
    let tickets: Vec<Ticket> = numbers(1000).iter().map(|text| journal.enqueue(pipeline, &[text]).unwrap()).collect();
    assert_eq!((sim.mutations(), journal.last()), (before.0, 0), "nothing is written before someone waits");
    assert_eq!(journal.wait(&tickets[700]).unwrap(), 701);
    assert_eq!((sim.mutations(), sim.syncs()), (before.0 + 2, before.1 + 1));
    for (i, ticket) in tickets.iter().enumerate() {
        assert_eq!(journal.wait(ticket).unwrap(), i as u64 + 1);
    }
    assert_eq!(sim.syncs(), before.1 + 1, "the others are durable with it");
    assert_eq!(journal.append(&["1000"]).unwrap(), 1001);
    let fs: Arc<dyn Fs> = Arc::new(sim.power_loss(3));
    assert_eq!(texts(&claim(&fs).1), numbers(1001));
}

#[test]
fn a_crash_at_every_point_keeps_a_prefix_with_everything_acknowledged_in_it() {
    for zeros in [0, 50, 4096] {
        let mut points = 0;
        for at in 0.. {
            let sim = SimFs::new(at);
            sim.set_zeros_ahead(zeros);
            let fs: Arc<dyn Fs> = Arc::new(sim.clone());
            let options = straw::journal::Options { segment_bytes_target: 250 };
            let Ok((journal, _)) = Journal::claim_with(fs, DIR, "owner", options) else { unreachable!("no fault yet") };
            sim.crash_at(sim.mutations() + at);
            let pipeline = journal.pipeline();
            let mut acked = 0;
            let mut handed_in = 0;
            for size in [3, 1, 5, 2, 4] {
                let tickets: Vec<_> =
                    (0..size).map_while(|i| journal.enqueue(pipeline, &[(handed_in + i).to_string()]).ok()).collect();
                handed_in += tickets.len() as u64;
                for ticket in tickets.iter().rev() {
                    if let Ok(lsn) = journal.wait(ticket) {
                        acked = acked.max(lsn);
                    }
                }
            }
            if !sim.is_crashed() {
                assert_eq!(acked, 15);
                break;
            }
            points += 1;
            for seed in 0..6 {
                let after = if seed == 0 { sim.process_death() } else { sim.power_loss(seed) };
                assert_eq!(verify(&after, "/run").unwrap().errors, [], "a crash is not damage");
                let fs: Arc<dyn Fs> = Arc::new(after);
                let found = texts(&claim(&fs).1);
                assert!(found.len() as u64 >= acked, "{acked} were acknowledged, {} are there", found.len());
                assert_eq!(found, numbers(found.len() as u64), "a prefix of what was handed in");
                assert!(found.len() as u64 <= handed_in);
            }
        }
        assert!(points >= 14, "{points}");
    }
}

#[test]
fn after_a_failed_sync_nothing_behind_it_is_acknowledged() {
    for fault in [Fault::NoSpace, Fault::Io] {
        for operation in 0..2 {
            let sim = SimFs::new(2);
            // While the group that will fail is written, another transaction is handed in.
            let journal: Arc<OnceLock<Journal>> = Arc::default();
            let meanwhile: Arc<Mutex<Option<Ticket>>> = Arc::default();
            let on = Arc::new(AtomicBool::new(false));
            let hook = {
                let (journal, meanwhile, on) = (journal.clone(), meanwhile.clone(), on.clone());
                move |op| {
                    if op == Operation::Sync && on.swap(false, Ordering::SeqCst) {
                        let journal: &Journal = journal.get().unwrap();
                        *meanwhile.lock().unwrap() = Some(journal.enqueue(journal.pipeline(), &["c"]).unwrap());
                    }
                }
            };
            let fs = hooked(&sim, hook);
            journal.set(claim(&fs).0).unwrap();
            let journal = journal.get().unwrap();
            journal.append(&["0"]).unwrap();
            let pipeline = journal.pipeline();
            let a = journal.enqueue(pipeline, &["a"]).unwrap();
            let b = journal.enqueue(pipeline, &["b"]).unwrap();
            sim.fail_at(sim.mutations() + operation, fault);
            on.store(operation == 1, Ordering::SeqCst);
            let full = |e: &Error| matches!(e, Error::OutOfSpace { .. });
            for ticket in [&b, &a] {
                let error = journal.wait(ticket).unwrap_err();
                assert_eq!(full(&error), fault == Fault::NoSpace, "{error}");
            }
            if let Some(c) = meanwhile.lock().unwrap().take() {
                journal.wait(&c).unwrap_err();
            }
            journal.enqueue(pipeline, &["d"]).unwrap_err();
            let mut want = vec!["0"];
            match fault {
                Fault::NoSpace => {
                    let again = journal.pipeline();
                    let e = journal.enqueue(again, &["e"]).unwrap();
                    assert_eq!(journal.wait(&e).unwrap(), 2);
                    want.push("e");
                    let (_, found) = claim(&fs);
                    assert_eq!(texts(&found), want);
                }
                Fault::Io => {
                    assert!(matches!(journal.append(&["e"]), Err(Error::Poisoned { .. })));
                    assert!(matches!(journal.enqueue(journal.pipeline(), &["e"]), Err(Error::Poisoned { .. })));
                    // Power is lost: the failed sync lost what was due.
                    let fs: Arc<dyn Fs> = Arc::new(sim.power_loss(1));
                    assert_eq!(texts(&claim(&fs).1), want);
                }
            }
        }
    }
}

#[test]
fn a_superseded_owner_is_told_of_no_transaction_that_it_handed_in() {
    let fs: Arc<dyn Fs> = Arc::new(SimFs::new(3));
    let (zombie, _) = claim(&fs);
    let ticket = zombie.enqueue(zombie.pipeline(), &["z"]).unwrap();
    let (journal, _) = claim(&fs);
    assert!(matches!(zombie.wait(&ticket), Err(Error::Fenced { epoch: 1, by: 2 })));
    assert!(matches!(zombie.enqueue(zombie.pipeline(), &["y"]), Err(Error::Fenced { .. })));
    journal.append(&["a"]).unwrap();
    assert_eq!(texts(&claim(&fs).1), ["a"]);
}

#[test]
fn a_full_group_is_written_by_whoever_hands_in_the_next() {
    let sim = SimFs::new(4);
    let fs: Arc<dyn Fs> = Arc::new(sim.clone());
    let (journal, _) = claim(&fs);
    let big = vec![7u8; 40 << 20];
    let pipeline = journal.pipeline();
    let tickets: Vec<Ticket> = (0..4).map(|_| journal.enqueue(pipeline, &[&big]).unwrap()).collect();
    assert!(journal.last() >= 2, "memory is bounded");
    assert_eq!(journal.wait(&tickets[3]).unwrap(), 4);
}

#[test]
fn zeros_that_were_written_ahead_are_neither_torn_bytes_nor_damage() {
    let sim = SimFs::new(5);
    sim.set_zeros_ahead(100_000);
    let fs: Arc<dyn Fs> = Arc::new(sim.clone());
    let (journal, _) = claim(&fs);
    let before = (sim.mutations(), sim.syncs());
    for text in numbers(20) {
        journal.append(&[text]).unwrap();
    }
    assert_eq!((sim.mutations() - before.0, sim.syncs() - before.1), (40, 20), "they come with the frames' own writes");
    let report = inspect(&sim, "/run").unwrap().journal.unwrap();
    assert_eq!(report.torn_bytes, 0);
    let used = report.segments[0].used_bytes;
    assert!(used < 1000);
    // A frame that was torn in the middle of the zeros.
    let torn = sim.process_death();
    torn.flip(SEGMENT, used + 30);
    let (_, found) = claim(&(Arc::new(torn) as Arc<dyn Fs>));
    assert_eq!((texts(&found), found.torn_bytes), (numbers(20), 31));
}

#[test]
fn a_volume_with_room_for_a_frame_and_none_for_zeros_takes_the_frame() {
    let sim = SimFs::new(6);
    sim.set_zeros_ahead(10_000);
    let fs: Arc<dyn Fs> = Arc::new(sim.clone());
    let (journal, _) = claim(&fs);
    sim.set_bytes_max(Some(22_000));
    let mut refused = 0;
    for i in 0..300 {
        while journal.append(&[format!("{i} {}", "x".repeat(40))]).is_err() {
            refused += 1;
            assert!(refused < 10, "at {i}");
        }
    }
    sim.set_bytes_max(None);
    assert_eq!(claim(&fs).1.txns.len(), 300);
}

// ---------------------------------------------------------------- coordinator

const TERMS: LeaseTerms = LeaseTerms { duration_ms: 1000, per_worker_max: 4096 };

fn submit(coordinator: &Coordinator, ids: std::ops::Range<u64>) -> Result<(), Error> {
    let task = |id| NewTask { id: TaskId(id), input: Vec::new(), attempts_max: 3 };
    coordinator.commit(|queue| Ok((vec![queue.submit(ids.map(task).collect())?], ())))
}

fn result(n: u64) -> Ref {
    Ref { pack: "p".into(), offset: n, len: 1, head: 1, crc: 0, ..Ref::default() }
}

/// Leases one task and completes it; gives its position, or nothing when none is left.
fn work(coordinator: &Coordinator, worker: &str) -> Result<Option<u64>, Error> {
    let Some(lease) = coordinator.lease(|queue| queue.acquire(worker, 1, 0, TERMS))?.pop() else { return Ok(None) };
    let submission = format!("s{}", lease.task.0);
    coordinator.commit(|queue| {
        match queue.complete(lease.task, lease.attempt, &submission, &[result(lease.task.0)])? {
            Completion::Accept(op) => Ok((vec![op], ())),
            _ => Ok((Vec::new(), ())),
        }
    })?;
    Ok(Some(lease.task.0))
}

#[test]
fn many_threads_complete_tasks_with_few_syncs_and_each_is_recovered() {
    let dir = tempfile::tempdir().unwrap();
    let real: Arc<dyn Fs> = RealFs::new();
    let coordinator = Coordinator::claim(real.clone(), dir.path().join("j"), "owner").unwrap();
    submit(&coordinator, 0..400).unwrap();
    std::thread::scope(|scope| {
        for i in 0..8 {
            let coordinator = &coordinator;
            scope.spawn(move || while work(coordinator, &format!("w{i}")).unwrap().is_some() {});
        }
    });
    assert_eq!(coordinator.journal().last(), 401);
    coordinator.snapshot().unwrap();
    submit(&coordinator, 400..401).unwrap();
    drop(coordinator);
    let again = Coordinator::claim(real, dir.path().join("j"), "owner").unwrap();
    let (accepted, left) = again.lease(|queue| (queue.accepted().count(), queue.tasks_len())).unwrap();
    assert_eq!((accepted, left), (400, 1));
}

#[test]
fn a_snapshot_that_is_taken_while_others_commit_covers_no_more_than_its_state() {
    for seed in 0..20 {
        let sim = SimFs::new(seed);
        let fs: Arc<dyn Fs> = Arc::new(sim.clone());
        drop(Coordinator::claim(fs.clone(), DIR, "owner").map(|c| submit(&c, 0..1)).unwrap());
        let coordinator = Coordinator::claim(fs, DIR, "owner").unwrap();
        std::thread::scope(|scope| {
            for thread in 1..4 {
                let coordinator = &coordinator;
                scope.spawn(move || {
                    (0..30).for_each(|n| submit(coordinator, thread * 100 + n..thread * 100 + n + 1).unwrap())
                });
            }
            for _ in 0..5 {
                coordinator.snapshot().unwrap();
            }
        });
        drop(coordinator);
        let again = Coordinator::claim(Arc::new(sim.power_loss(seed)), DIR, "owner").unwrap();
        assert_eq!(again.lease(|queue| queue.tasks_len()).unwrap(), 91);
    }
}

#[test]
fn an_answer_waits_until_what_it_follows_from_is_durable() {
    let sim = SimFs::new(7);
    let syncs = Arc::new(AtomicU64::new(0));
    let hook = {
        let syncs = syncs.clone();
        move |op| {
            if op == Operation::Sync {
                std::thread::sleep(Duration::from_millis(30));
                syncs.fetch_add(1, Ordering::SeqCst);
            }
        }
    };
    let fs = hooked(&sim, hook);
    let coordinator = Coordinator::claim(fs, DIR, "owner").unwrap();
    let before = syncs.load(Ordering::SeqCst);
    std::thread::scope(|scope| {
        scope.spawn(|| submit(&coordinator, 0..1).unwrap());
        // Another asks meanwhile, and sees the task before it is durable.
        loop {
            let seen = coordinator.commit(|queue| Ok((Vec::new(), queue.tasks_len()))).unwrap();
            if seen == 1 {
                assert_eq!(syncs.load(Ordering::SeqCst), before + 1, "told of a task that may be lost");
                break;
            }
        }
    });
}

#[test]
fn a_coordinator_whose_commit_failed_does_nothing_more_and_its_successor_has_what_was_acknowledged() {
    for fault in [Fault::NoSpace, Fault::Io] {
        let sim = SimFs::new(8);
        let fs: Arc<dyn Fs> = Arc::new(sim.clone());
        let coordinator = Coordinator::claim(fs.clone(), DIR, "owner").unwrap();
        submit(&coordinator, 0..2).unwrap();
        work(&coordinator, "w").unwrap();
        assert!(matches!(submit(&coordinator, 0..1), Err(Error::Refused(Refused::TaskExists(_)))), "changes nothing");
        sim.fail_at(sim.mutations() + 1, fault);
        assert!(work(&coordinator, "w").is_err());
        assert!(matches!(submit(&coordinator, 7..8), Err(Error::Poisoned { .. })));
        assert!(matches!(coordinator.lease(|_| ()), Err(Error::Poisoned { .. })));
        drop(coordinator);
        let again = Coordinator::claim(Arc::new(sim.power_loss(1)), DIR, "owner").unwrap();
        assert_eq!(again.lease(|queue| (queue.accepted().count(), queue.tasks_len())).unwrap(), (1, 1));
    }
}
