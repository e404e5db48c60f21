//! Leases are memory: renewing them costs no file operation, however many there are.

use std::time::{Duration, Instant};

use conductor::LEASE_MS;
use control::wire::{RenewReply, RenewRequest};
use futures::future::join_all;
use thresh_rollout::lone::worker;

use crate::{Service, gate::Gate};

const WORKERS: usize = 10;
const LEASES: usize = 10_000;
/// Leases renewed by one call.
const BATCH: usize = 250;
const ROUNDS: usize = 10;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewing_ten_thousand_leases_touches_no_file() {
    // A machine that stands still for longer than a lease lasts proves nothing.
    for _ in 0..5 {
        if tried().await {
            return;
        }
    }
    panic!("this machine is too slow for leases of {LEASE_MS} ms");
}

async fn tried() -> bool {
    let gate = Gate::new();
    let service = Service::start(LEASES as u64, gate.fs()).await;
    let mut heard = Instant::now();
    let per_worker = LEASES / WORKERS;
    let leased = join_all((0..WORKERS).map(|number| {
        let (lone, client) = (&service.lone, &service.client);
        async move { (worker(number), lone.lease(client, &worker(number), per_worker).await.unwrap()) }
    }));
    let requests: Vec<RenewRequest> = leased
        .await
        .into_iter()
        .flat_map(|(worker, leases)| {
            let pairs: Vec<(String, u64)> = leases.into_iter().map(|lease| (lease.lease, lease.task)).collect();
            let batch = |leases: &[(String, u64)]| RenewRequest { worker: worker.clone(), leases: leases.to_vec() };
            pairs.chunks(BATCH).map(batch).collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(requests.iter().map(|request| request.leases.len()).sum::<usize>(), LEASES);

    let mut before = None;
    let mut in_time = true;
    for _ in 0..=ROUNDS {
        let asked = Instant::now();
        let calls = requests.iter().map(|request| service.client.renew(request));
        let replies: Vec<RenewReply> = join_all(calls).await.into_iter().map(Result::unwrap).collect();
        in_time &= heard.elapsed() < Duration::from_millis(LEASE_MS);
        heard = asked;
        if !in_time {
            break;
        }
        assert!(replies.iter().all(|reply| reply.lost.is_empty()), "all are held");
        // What the leases themselves had to wait for (the groups being drawn) was before the first renewal.
        let now = gate.counted();
        assert_eq!(now, *before.get_or_insert(now), "(writes, syncs, reads, names) behind the first renewal");
    }
    let held = service.client.progress().await.unwrap().queue.leased;
    assert!(!in_time || held == LEASES as u64, "{held}");
    service.stop().await;
    in_time
}
