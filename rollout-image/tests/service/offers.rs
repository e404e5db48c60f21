//! Results: many in one call, many calls at once, few syncs, and no answer before the sync.

use std::time::Duration;

use control::{
    client::ClientError,
    wire::{CompleteReply, CompleteRequest, Outcome, RefusalKind, RenewRequest},
};
use futures::future::join_all;
use thresh_rollout::lone::{finished, worker};

use crate::{Service, gate::Gate};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_answer_goes_out_before_its_sync_and_what_comes_meanwhile_shares_the_next() {
    const CALLS: usize = 32;
    let gate = Gate::new();
    let service = Service::start(1_000, gate.fs()).await;
    let leases = service.lone.lease(&service.client, &worker(0), 2 * CALLS + 1).await.unwrap();
    let offer = |leases: &[control::wire::Lease]| {
        let request = CompleteRequest { worker: worker(0), results: leases.iter().map(finished).collect() };
        let client = service.client.clone();
        tokio::spawn(async move { client.complete(&request).await })
    };
    let syncs = gate.counted().syncs;
    gate.close();
    let first = offer(&leases[..1]);
    let watched = gate.clone();
    tokio::task::spawn_blocking(move || watched.until_held()).await.unwrap();

    // The first sync is under way. Two results in each call, all calls at once, over as many connections.
    let calls: Vec<_> = leases[1..].chunks(2).map(offer).collect();
    // What is finished is leased no more: the conductor has thought about all of them, and renewals are answered meanwhile.
    let pairs = leases.iter().map(|lease| (lease.lease.clone(), lease.task)).collect();
    let renew = RenewRequest { worker: worker(0), leases: pairs };
    loop {
        let renewed = service.client.renew(&renew).await.unwrap();
        if renewed.lost.len() == leases.len() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(!first.is_finished() && calls.iter().all(|call| !call.is_finished()), "nothing is durable");

    gate.open();
    let answers: Vec<Result<CompleteReply, ClientError>> =
        join_all(std::iter::once(first).chain(calls)).await.into_iter().map(Result::unwrap).collect();
    for answer in answers {
        assert!(answer.unwrap().outcomes.iter().all(|outcome| *outcome == Outcome::Accepted));
    }
    assert_eq!(gate.counted().syncs - syncs, 2, "the first, and one for all {CALLS} calls behind it");

    // Asked again, nothing is written.
    let request = CompleteRequest { worker: worker(0), results: leases.iter().map(finished).collect() };
    let before = gate.counted();
    let again = service.client.complete(&request).await.unwrap();
    assert!(again.outcomes.iter().all(|outcome| *outcome == Outcome::Duplicate), "{again:?}");
    assert_eq!(gate.counted(), before);
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_without_the_runs_token_reaches_no_result() {
    let gate = Gate::new();
    let service = Service::start(8, gate.fs()).await;
    let lease = service.lone.lease(&service.client, &worker(0), 1).await.unwrap().remove(0);
    let stranger = control::client::ConductorClient::new(
        crate::http(),
        service.client.base(),
        "another token",
        control::client::EpochMemory::default(),
    );
    let request = CompleteRequest { worker: worker(0), results: vec![finished(&lease)] };
    let refused = stranger.complete(&request).await.unwrap_err();
    assert_eq!(refused.refusal(), Some(RefusalKind::Unauthorized), "{refused}");
    assert_eq!(
        service.client.complete(&request).await.unwrap().outcomes,
        [Outcome::Accepted],
        "it was not taken before"
    );
    service.stop().await;
}
