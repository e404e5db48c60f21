//! A conductor dies under load, or is taken for dead: what it acknowledged is there, and what it says later counts for nothing.

use std::{
    collections::BTreeSet,
    path::Path,
    process::{Child, Command},
};

use control::{
    client::{ConductorClient, EpochMemory, patiently},
    wire::{CompleteRequest, Finished, Outcome},
};
use futures::{StreamExt, stream};
use rustix::process::{Pid, Signal, kill_process};
use thresh_rollout::lone::{Lone, finished, quick, worker};

use crate::{http, model};

/// A conductor as a process of its own.
pub struct Process(pub Child);

impl Process {
    pub fn start(lone: &Lone, uid: &str) -> Self {
        let mut command: Command = lone.command(Path::new(env!("CARGO_BIN_EXE_thresh-rollout")), uid);
        Self(command.env("RUST_LOG", "warn").spawn().unwrap())
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(i32::try_from(self.0.id()).unwrap()).unwrap(), signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Offers results by many calls at once until the conductor is gone; gives the submissions that it acknowledged.
async fn offer_until_gone(
    client: &ConductorClient,
    results: &[Finished],
    enough: usize,
    then: impl Fn(),
) -> BTreeSet<String> {
    let acknowledged = std::sync::Mutex::new(BTreeSet::new());
    let calls = results.chunks(3).map(|few| {
        let (acknowledged, then) = (&acknowledged, &then);
        async move {
            let request = CompleteRequest { worker: worker(0), results: few.to_vec() };
            let Ok(reply) = client.complete(&request).await else { return };
            let mut acknowledged = acknowledged.lock().unwrap();
            for (result, outcome) in few.iter().zip(&reply.outcomes) {
                assert_eq!(outcome, &Outcome::Accepted);
                acknowledged.insert(result.submission.clone());
            }
            // In the middle of the others.
            if acknowledged.len() >= enough {
                then();
            }
        }
    });
    // A few at a time, so that the end comes in the middle.
    stream::iter(calls).buffer_unordered(8).collect::<()>().await;
    acknowledged.into_inner().unwrap()
}

/// Whatever was acknowledged is there; whatever was not can be offered again, and is then.
async fn nothing_is_lost(client: &ConductorClient, results: &[Finished], acknowledged: &BTreeSet<String>) {
    for few in results.chunks(100) {
        let request = CompleteRequest { worker: worker(0), results: few.to_vec() };
        let reply = patiently(quick(), || client.complete(&request), |_, _| {}).await.unwrap();
        for (result, outcome) in few.iter().zip(&reply.outcomes) {
            let known = acknowledged.contains(&result.submission);
            assert!(
                *outcome == Outcome::Duplicate || *outcome == Outcome::Accepted && !known,
                "{result:?}: {outcome:?}"
            );
        }
        let again = client.complete(&request).await.unwrap();
        assert!(again.outcomes.iter().all(|outcome| *outcome == Outcome::Duplicate), "each is there once");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_conductor_acknowledged_before_it_was_killed_its_successor_has() {
    let folder = tempfile::tempdir().unwrap();
    let lone = Lone::prepare(folder.path(), &model(), 1_000).await.unwrap();
    let first = Process::start(&lone, "pod-1");
    let epochs = EpochMemory::default();
    let client = lone.client(http(), epochs.clone());
    lone.wait_for(&client).await.unwrap();
    lone.publish_once(&client).await.unwrap();
    let leases = lone.lease(&client, &worker(0), 600).await.unwrap();
    let results: Vec<Finished> = leases.iter().map(finished).collect();
    let acknowledged = offer_until_gone(&client, &results, 60, || first.signal(Signal::KILL)).await;
    assert!(acknowledged.len() >= 60, "{}", acknowledged.len());
    drop(first);

    let lone = lone.for_a_successor().unwrap();
    let _second = Process::start(&lone, "pod-2");
    let client = lone.client(http(), epochs);
    nothing_is_lost(&client, &results, &acknowledged).await;
    assert_eq!(client.progress().await.unwrap().conductor_epoch, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_superseded_conductor_says_late_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let old = Lone::prepare(folder.path(), &model(), 1_000).await.unwrap();
    let mut zombie = Process::start(&old, "pod-1");
    let epochs = EpochMemory::default();
    let to_old = old.client(http(), epochs.clone());
    old.wait_for(&to_old).await.unwrap();
    old.publish_once(&to_old).await.unwrap();
    let leases = old.lease(&to_old, &worker(0), 300).await.unwrap();
    let results: Vec<Finished> = leases.iter().map(finished).collect();
    let acknowledged = offer_until_gone(&to_old, &results[..100], 300, || {}).await;
    assert_eq!(acknowledged.len(), 100);

    // Calls are on their way to it when it stops.
    zombie.signal(Signal::STOP);
    let late: Vec<_> = results[100..200]
        .chunks(10)
        .map(|few| {
            let request = CompleteRequest { worker: worker(0), results: few.to_vec() };
            // A caller that has met nobody else: nothing but the fence keeps it from believing the answer.
            let client = old.client(http(), EpochMemory::default());
            tokio::spawn(async move { client.complete(&request).await })
        })
        .collect();
    let new = old.for_a_successor().unwrap();
    let _successor = Process::start(&new, "pod-2");
    let to_new = new.client(http(), epochs);
    new.wait_for(&to_new).await.unwrap();

    zombie.signal(Signal::CONT);
    for call in late {
        let answer = call.await.unwrap();
        let refused = answer.as_ref().is_err_and(control::client::ClientError::is_transient);
        assert!(refused, "an acknowledgement that no journal holds: {answer:?}");
    }
    assert!(!zombie.0.wait().unwrap().success(), "it ends by itself");
    nothing_is_lost(&to_new, &results, &acknowledged).await;
}
