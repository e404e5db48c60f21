//! A micro-batch read at once: the same records, by threads that share the work.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use straw::watched_fs::Operation;
use straw::{Error, Record, Ref, SimFs, Store, Tensor};
use support::hooked;

/// A store in which each read waits, as on a network, once `wait` is set; and records of some packs and sizes.
fn slow() -> (SimFs, Store, Vec<Ref>, Vec<Record>, Arc<AtomicU64>) {
    let sim = SimFs::new(1);
    let wait = Arc::new(AtomicU64::new(0));
    let hook = {
        let wait = wait.clone();
        move |op| {
            let ms = wait.load(Ordering::SeqCst);
            if op == Operation::Read && ms > 0 {
                std::thread::sleep(Duration::from_millis(ms));
            }
        }
    };
    let fs = hooked(&sim, hook);
    let store = Store::open(fs, "/run/packs").unwrap();
    let (mut refs, mut records) = (Vec::new(), Vec::new());
    for pack in 0..4u64 {
        let writer = store.writer("w").unwrap();
        for n in 0..6u64 {
            let values: Vec<u64> = (0..20_000).map(|v| v * 31 + n + pack * 7).collect();
            let record = Record::new(format!("{pack} {n}")).with("t", Tensor::from_vec(&[20_000], values).unwrap());
            refs.extend(writer.publish(&format!("{pack}-{n}"), std::slice::from_ref(&record)).unwrap());
            records.push(record);
        }
    }
    (sim, store, refs, records, wait)
}

#[test]
fn threads_read_what_one_reads_in_the_order_asked_for_and_wait_together() {
    let (_, store, mut refs, mut records, wait) = slow();
    refs.reverse();
    records.reverse();
    refs.push(refs[3].clone());
    records.push(records[3].clone());
    for threads in [0, 1, 2, 3, 8, 100] {
        assert_eq!(store.read_many_at_once(&refs, threads).unwrap(), records, "{threads} threads");
    }
    assert!(store.read_many_at_once(&[], 4).unwrap().is_empty());
    wait.store(20, Ordering::SeqCst);
    let timed = |threads| {
        let since = Instant::now();
        store.read_many_at_once(&refs, threads).unwrap();
        since.elapsed()
    };
    let each = Instant::now();
    refs.iter().for_each(|r| drop(store.read(r).unwrap()));
    let (each, eight) = (each.elapsed(), timed(8));
    assert!(eight * 3 < each, "{eight:?} by eight threads, {each:?} one by one");
}

#[test]
fn one_record_that_is_gone_fails_the_call_with_its_reason() {
    let (sim, store, refs, _, _) = slow();
    sim.flip(format!("/run/packs/{}.pack", refs[9].pack), refs[9].offset + 5000);
    for threads in [1, 4] {
        assert!(matches!(store.read_many_at_once(&refs, threads), Err(Error::Corrupt { .. })), "{threads}");
        assert!(store.read_many_at_once(&refs[..9], threads).is_ok());
    }
}
