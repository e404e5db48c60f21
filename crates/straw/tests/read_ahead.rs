//! Reading ahead: in order, within its bounds, and over when its owner is.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Barrier, mpsc};

use straw::{Error, ReadAhead, Record, Ref, SimFs, Store, Tensor};

fn record(i: u64) -> Record {
    Record::new(format!("{i}")).with("t", Tensor::from_vec(&[1000], vec![i; 1000]).unwrap())
}

fn store(records: u64) -> (Store, Vec<Ref>) {
    let store = Store::open(Arc::new(SimFs::new(1)), "/packs").unwrap();
    let writer = store.writer("w").unwrap();
    let refs = (0..records).map(|i| writer.publish(&format!("s{i}"), &[record(i)]).unwrap().remove(0)).collect();
    (store, refs)
}

#[test]
fn batches_come_in_the_order_in_which_they_were_asked() {
    let (store, refs) = store(60);
    for threads in [0, 1, 3] {
        let ahead = ReadAhead::start(&store, threads, 100_000).unwrap();
        assert!(ahead.take().is_none(), "nothing was asked");
        let mut batches = refs.chunks(4).map(<[Ref]>::to_vec);
        batches.by_ref().take(2).for_each(|batch| ahead.want_records(batch));
        let mut next = 0;
        while let Some(batch) = ahead.take() {
            for read in batch.unwrap() {
                assert_eq!(read, record(next));
                next += 1;
            }
            batches.by_ref().take(1).for_each(|batch| ahead.want_records(batch));
        }
        assert_eq!(next, 60);
    }
}

#[test]
fn the_next_one_is_read_while_the_present_one_is_used() {
    let (store, _) = store(0);
    let ahead = ReadAhead::start(&store, 1, 100).unwrap();
    let (begun, told) = mpsc::channel();
    for i in 0..2 {
        let begun = begun.clone();
        ahead.want(10, move |_| {
            begun.send(i).unwrap();
            Ok(i)
        });
    }
    assert_eq!(ahead.take().unwrap().unwrap(), 0);
    // It is not taken, and begins all the same: this would wait for ever otherwise.
    assert_eq!((told.recv().unwrap(), told.recv().unwrap()), (0, 1));
}

#[test]
fn no_more_is_held_than_was_allowed_but_for_one_that_is_larger_alone() {
    let (store, _) = store(0);
    let (held, most) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicI64::new(0)));
    let sizes = [40i64, 40, 30, 500, 10, 60, 30, 10, 100, 100, 1, 1, 1];
    let ahead = ReadAhead::start(&store, 4, 100).unwrap();
    for bytes in sizes {
        let (held, most) = (held.clone(), most.clone());
        ahead.want(bytes as u64, move |_| {
            let now = held.fetch_add(bytes, SeqCst) + bytes;
            if bytes <= 100 {
                most.fetch_max(now, SeqCst);
            } else {
                assert!(now <= bytes, "it is alone");
            }
            Ok(bytes)
        });
    }
    for bytes in sizes {
        // Before it lets go of it, so that the count is never above what is held.
        held.fetch_sub(bytes, SeqCst);
        assert_eq!(ahead.take().unwrap().unwrap(), bytes);
    }
    assert!(ahead.take().is_none());
    assert!(most.load(SeqCst) <= 100, "{most:?} were held");
}

#[test]
fn an_error_is_the_readers_at_its_turn_and_the_next_one_is_read() {
    let (store, refs) = store(3);
    let ahead = ReadAhead::start(&store, 2, 1 << 20).unwrap();
    let gone = Ref { pack: "w-000000000000000000000099".into(), ..refs[1].clone() };
    for refs in [&refs[..1], &[gone], &refs[2..]] {
        ahead.want_records(refs.to_vec());
    }
    assert_eq!(ahead.take().unwrap().unwrap(), [record(0)]);
    assert!(matches!(ahead.take().unwrap(), Err(Error::PackMissing { .. })));
    assert_eq!(ahead.take().unwrap().unwrap(), [record(2)]);
}

#[test]
fn a_read_that_panics_panics_where_it_is_taken_and_not_for_ever_nowhere() {
    let (store, _) = store(0);
    let ahead: ReadAhead<u32> = ReadAhead::start(&store, 1, 10).unwrap();
    ahead.want(1, |_| panic!("of the reader"));
    ahead.want(1, |_| Ok(7));
    let taken = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| ahead.take().map(drop)));
    assert_eq!(taken.unwrap_err().downcast_ref::<&str>(), Some(&"of the reader"));
    assert_eq!(ahead.take().unwrap().unwrap(), 7);
}

#[test]
fn its_threads_end_with_it_and_what_was_not_begun_is_not_read() {
    let (store, _) = store(0);
    let read = Arc::new(AtomicU64::new(0));
    let at_hand = Arc::new(Barrier::new(2));
    let ahead = ReadAhead::start(&store, 1, 10).unwrap();
    let (count, met) = (read.clone(), at_hand.clone());
    ahead.want(10, move |_| {
        met.wait();
        count.fetch_add(1, SeqCst);
        Ok(())
    });
    for _ in 0..5 {
        let count = read.clone();
        ahead.want(10, move |_| {
            count.fetch_add(1, SeqCst);
            Ok(())
        });
    }
    at_hand.wait();
    drop(ahead);
    // Each thread had a share of this: they are gone.
    assert_eq!((Arc::strong_count(&read), read.load(SeqCst)), (1, 1));
}
