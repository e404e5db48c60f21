//! Ranks that are threads: the suite, and how it ends when something is wrong.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod suite;

use std::time::Duration;

use comm::{Group, thread};
use tensor::{Comm, DType, Error, ReferenceBackend, Stream, Tag, Tensor};

const LONG: Duration = Duration::from_secs(600);
const SHORT: Duration = Duration::from_millis(200);

fn on_ranks<T: Send>(world: Vec<Group>, run: impl Fn(Group) -> T + Sync) -> Vec<T> {
    std::thread::scope(|s| {
        let threads: Vec<_> = world.into_iter().map(|g| s.spawn(|| run(g))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

#[test]
fn threads_move_and_sum_in_rank_order() {
    let bits = on_ranks(thread::world(4, LONG).unwrap(), suite::run);
    assert!(bits.windows(2).all(|w| w[0] == w[1]));
    on_ranks(thread::world(1, LONG).unwrap(), |g| g.barrier().unwrap());
}

/// Three ranks, each waiting for the next; what the first to give up says.
fn deadlock(deadline: Duration) -> String {
    let errors = on_ranks(thread::world(3, deadline).unwrap(), |g| {
        let be = ReferenceBackend::new();
        let t = Tensor::zeros(&be, DType::F32, &[4], Tag::Work).unwrap();
        // The group stays, or the others would see this rank leave.
        (g.recv(Stream::COMPUTE, &t, (g.rank() + 1) % 3).unwrap_err(), g)
    });
    let mut said = Vec::new();
    for (error, _) in errors {
        let Error::CommTimeout { rank, waiting_for, waits, .. } = error else { panic!("{error}") };
        assert_eq!(waiting_for, [(rank + 1) % 3]);
        said.push(waits);
    }
    said.join("\n")
}

#[test]
fn a_deadlock_names_who_waits_for_whom() {
    // On a busy machine a rank may come to its wait after another has given up: then once more, with more time.
    let mut said = String::new();
    for doublings in 0..8 {
        said = deadlock(SHORT * (1 << doublings));
        let all = "rank 0 waits for rank 1 (send/recv #0 of world); rank 1 waits for rank 2 (send/recv #0 of world); \
                   rank 2 waits for rank 0 (send/recv #0 of world)";
        if said.contains(all) {
            return;
        }
    }
    panic!("{said}");
}

#[test]
fn a_rank_that_panics_ends_every_wait_and_is_named() {
    let world = thread::world(3, LONG).unwrap();
    let results: Vec<_> = std::thread::scope(|s| {
        let threads: Vec<_> = world
            .into_iter()
            .map(|g| {
                s.spawn(move || {
                    assert!(g.rank() != 1, "rank 1 breaks, on purpose");
                    g.barrier()
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join()).collect()
    });
    for (rank, result) in results.into_iter().enumerate() {
        match result {
            Err(_) => assert_eq!(rank, 1),
            Ok(outcome) => {
                let error = outcome.unwrap_err();
                assert!(matches!(error, Error::CommLost { peer: 1, .. }), "{error}");
            }
        }
    }
}

#[test]
fn a_rank_that_is_done_fails_only_those_who_still_need_it() {
    let outcomes = on_ranks(thread::world(3, LONG).unwrap(), |g| {
        let be = ReferenceBackend::new();
        let t = Tensor::zeros(&be, DType::F32, &[1], Tag::Work).unwrap();
        match g.rank() {
            // Its message must still be read after it has left.
            2 => g.send(Stream::COMPUTE, &t, 0),
            1 => g.recv(Stream::COMPUTE, &t, 0),
            _ => {
                g.recv(Stream::COMPUTE, &t, 2).unwrap();
                let late = g.recv(Stream::COMPUTE, &t, 2).unwrap_err();
                assert!(matches!(late, Error::CommLost { peer: 2, .. }), "{late}");
                g.send(Stream::COMPUTE, &t, 1)
            }
        }
    });
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
}

#[test]
fn a_wait_can_be_ended_from_another_thread() {
    let mut world = thread::world(2, LONG).unwrap();
    let other = world.pop().unwrap();
    let mine = world.pop().unwrap();
    let abort = mine.abort_handle();
    std::thread::scope(|s| {
        let waiting = s.spawn(move || mine.barrier().unwrap_err());
        abort.abort("the conductor sent us away");
        let error = waiting.join().unwrap();
        assert!(matches!(&error, Error::CommAborted { reason, .. } if reason.contains("sent us away")), "{error}");
        let error = other.barrier().unwrap_err();
        assert!(
            matches!(&error, Error::CommLost { peer: 0, reason, .. } if reason.contains("sent us away")),
            "{error}"
        );
    });
}

#[test]
fn ranks_in_different_collectives_get_an_error_not_each_other_s_bytes() {
    let errors = on_ranks(thread::world(2, LONG).unwrap(), |g| {
        if g.rank() == 0 { g.barrier().unwrap_err() } else { g.all_gather_bytes(b"x").unwrap_err() }
    });
    assert!(errors.iter().any(|e| matches!(e, Error::CommDiverged { .. })), "{errors:?}");
}

#[test]
fn groups_are_checked_when_they_are_split() {
    let world = thread::world(4, LONG).unwrap();
    let g = &world[1];
    g.split("a", &[0, 1]).unwrap();
    for (name, ranks, what) in [
        ("a", &[0usize, 1][..], "exists already"),
        ("b", &[0, 2], "not a member"),
        ("c", &[1, 1], "twice"),
        ("d", &[1, 4], "not in a world of 4"),
    ] {
        let error = g.split(name, ranks).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    }
}
