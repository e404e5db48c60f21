//! A client on another host that remembers what it has seen, lengths and names: it reads what is whole, or is told to come again.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::sync::Arc;

use straw::fs::Fs;
use straw::{Error, Journal, Record, SimFs, Store, journal};

const REMEMBERS_MS: u64 = 3000;

fn volume() -> (SimFs, SimFs) {
    let sim = SimFs::new(1);
    sim.set_stale_ms(REMEMBERS_MS);
    (sim.clone(), sim.mount())
}

fn record(n: u8) -> Record {
    Record::new(vec![n; 4 << 10])
}

#[test]
fn a_reader_that_has_looked_at_a_pack_before_reads_whole_what_was_added_since() {
    let (here, there) = volume();
    let writer = Store::open(Arc::new(here.clone()), "/packs").unwrap().writer("w").unwrap();
    let reader = Store::open(Arc::new(there), "/packs").unwrap();
    for n in 0..40 {
        let r = writer.publish(&format!("{n}"), &[record(n)]).unwrap().remove(0);
        match reader.read(&r) {
            Ok(whole) => assert_eq!(whole, record(n), "never a part"),
            Err(e) => panic!("a file opened anew shows it: {e}"),
        }
        here.advance(u64::from(n) * 13);
    }
}

#[test]
fn a_reader_sees_whole_states_that_never_go_back_while_the_owner_takes_snapshots() {
    let (here, there) = volume();
    let (owner, _) = Journal::claim(Arc::new(here.clone()), "/journal", "owner").unwrap();
    let there: Arc<dyn Fs> = Arc::new(there);
    let mut before = 0;
    for n in 1..=100u8 {
        owner.append(&[[n]]).unwrap();
        if n % 3 > 0 {
            // The state is all that was appended.
            owner.snapshot(owner.last(), &(1..=n).collect::<Vec<u8>>()).unwrap();
        }
        let seen = match journal::read(&*there, "/journal") {
            Ok((snapshot, txns)) => {
                snapshot.into_iter().flatten().chain(txns.into_iter().flatten().flatten()).collect::<Vec<u8>>()
            }
            Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => continue, // and asks again
            Err(e) => panic!("nothing is damaged: {e}"),
        };
        assert_eq!(seen, (1..=seen.len() as u8).collect::<Vec<u8>>(), "a whole state");
        assert!(seen.len() >= before, "{} transactions were seen, and now {}", before, seen.len());
        before = seen.len();
        here.advance(u64::from(n) % 7 * 400);
    }
    assert!(before >= 90, "it saw nearly all: {before}");
}
