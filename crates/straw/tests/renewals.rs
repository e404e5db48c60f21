//! Heartbeats: ten thousand leases are renewed in memory alone.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use straw::queue::{Lease, LeaseTerms, NewTask, Refused, TaskId};
use straw::{Coordinator, SimFs};
use support::hooked;

const LEASES: u64 = 10_000;
const WORKERS: u64 = 100;
const EVERY_MS: u64 = 10_000;
const TERMS: LeaseTerms = LeaseTerms { duration_ms: 3 * EVERY_MS, per_worker_max: 4096 };

#[test]
fn ten_thousand_leases_are_renewed_without_touching_the_volume() {
    let operations = Arc::new(AtomicU64::new(0));
    let hook = {
        let operations = operations.clone();
        move |_| {
            operations.fetch_add(1, Ordering::SeqCst);
        }
    };
    let fs = hooked(&SimFs::new(1), hook);
    let coordinator = Coordinator::claim(fs, "/run/journal", "owner").unwrap();
    let task = |id| NewTask { id: TaskId(id), input: vec![7; 64], attempts_max: 3 };
    coordinator.commit(|queue| Ok((vec![queue.submit((0..LEASES).map(task).collect())?], ()))).unwrap();
    let each = (LEASES / WORKERS) as usize;
    let held: Vec<Vec<Lease>> = (0..WORKERS)
        .map(|w| coordinator.lease(|queue| queue.acquire(&format!("worker-{w}"), each, 0, TERMS)).unwrap())
        .collect();
    assert!(held.iter().all(|leases| leases.len() == each));

    let before = operations.load(Ordering::SeqCst);
    let rounds = 30;
    for round in 1..=rounds {
        let now_ms = round * EVERY_MS;
        for leases in &held {
            // One call of a worker names all that it holds.
            let renewed = coordinator.lease(|queue| {
                let renew = |l: &Lease| queue.renew(l.task, l.attempt, now_ms, TERMS);
                leases.iter().map(renew).collect::<Result<Vec<u64>, Refused>>()
            });
            assert!(renewed.unwrap().unwrap().iter().all(|end| *end == now_ms + TERMS.duration_ms));
        }
        assert!(coordinator.lease(|queue| queue.lapsed(now_ms)).unwrap().is_empty());
    }
    assert_eq!(operations.load(Ordering::SeqCst), before, "a heartbeat is in memory only");

    // Those that are not renewed end, together with their worker.
    let last = rounds * EVERY_MS + TERMS.duration_ms;
    assert_eq!(coordinator.lease(|queue| queue.lapsed(last).len()).unwrap() as u64, LEASES);
}
