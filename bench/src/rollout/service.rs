//! The conductor as a service: a process of its own, asked by many calls at once, over its HTTP interface.

use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use control::client::{ConductorClient, EpochMemory, patiently};
use control::names::{Names, http_client};
use control::wire::{CompleteRequest, Lease, Outcome, RenewRequest};
use futures::stream::{StreamExt, TryStreamExt};
use rustix::process::{Pid, Signal, kill_process};
use straw::{Journal, RealFs};
use thresh_rollout::lone::{Lone, finished, quick, worker};

use super::local_run::binary;
use crate::Options;
use crate::line::{Line, Lines};
use crate::rounds::{Times, median, rate};

const LEASES: usize = 10_000;
const WORKERS: usize = 10;
/// Leases of a call, and calls in flight.
const RENEWALS: [(usize, usize); 3] = [(250, 1), (250, 40), (10, 64)];
/// Results of a call, and calls in flight.
const OFFERS: [(usize, usize); 3] = [(1, 1), (1, 64), (64, 8)];
const OFFERED: usize = 512;

/// Ends with whoever started it.
struct Process(Child);

impl Process {
    fn start(lone: &Lone, uid: &str) -> Result<Self> {
        Ok(Self(lone.command(&binary("thresh-rollout")?, uid).env("RUST_LOG", "error").spawn()?))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A conductor with leases to give out.
struct Service {
    lone: Lone,
    client: ConductorClient,
    process: Process,
    leases: Vec<Lease>,
    _folder: tempfile::TempDir,
}

impl Service {
    async fn start(options: &Options, manifest: &Path, leases: usize) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("service-").tempdir_in(&options.out)?;
        let model = manifest.with_file_name("volumes/thresh-data/sort5/model");
        let lone = Lone::prepare(folder.path(), &model, LEASES.max(leases) as u64 + 1).await?;
        let process = Process::start(&lone, "pod-1")?;
        let client = lone.client(http_client(Names::default())?, EpochMemory::default());
        lone.wait_for(&client).await?;
        lone.publish_once(&client).await?;
        let mut all = Vec::new();
        for number in 0..WORKERS {
            all.extend(lone.lease(&client, &worker(number), leases / WORKERS).await?);
        }
        Ok(Self { lone, client, process, leases: all, _folder: folder })
    }

    /// The worker that holds a lease.
    fn holder(&self, at: usize) -> usize {
        at / (self.leases.len() / WORKERS)
    }
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?)
}

/// Renewals a second, beside calls that ask for nothing.
pub fn renewals(options: &Options, lines: &mut Lines, manifest: &Path) -> Result<()> {
    runtime()?.block_on(async {
        let service = Service::start(options, manifest, LEASES).await?;
        let http = http_client(Names::default())?;
        for (batch, at_once) in RENEWALS {
            let calls: Vec<RenewRequest> = service
                .leases
                .chunks(batch)
                .enumerate()
                .map(|(chunk, leases)| RenewRequest {
                    worker: worker(service.holder(chunk * batch)),
                    leases: leases.iter().map(|lease| (lease.lease.clone(), lease.task)).collect(),
                })
                .collect();
            let (mut ours, mut bare) = (Times::default(), Times::default());
            for round in 0..=options.rounds {
                let since = Instant::now();
                let lost: Vec<usize> = futures::stream::iter(&calls)
                    .map(async |call| service.client.renew(call).await.map(|reply| reply.lost.len()))
                    .buffer_unordered(at_once)
                    .try_collect()
                    .await?;
                let renewed = since.elapsed().as_secs_f64();
                ensure!(lost.iter().sum::<usize>() == 0, "leases ran out while they were renewed");
                let since = Instant::now();
                let url = format!("http://{}/livez", service.lone.listen);
                let _: Vec<()> = futures::stream::iter(&calls)
                    .map(async |_| http.get(&url).send().await.map(drop))
                    .buffer_unordered(at_once)
                    .try_collect()
                    .await?;
                if round > 0 {
                    ours.0.push(renewed);
                    bare.0.push(since.elapsed().as_secs_f64());
                }
            }
            let case = format!("{LEASES} leases, {batch} a call, {at_once} calls at once");
            let line = rate("lease_renewals", case, LEASES as f64, "leases/s", &ours);
            let line = line.against("as many calls of /livez", &ours, &bare);
            lines.add(line.with("requests_per_s", calls.len() as f64 / ours.median()))?;
        }
        Ok(())
    })
}

/// Results a second, each answered once it is durable.
pub fn offers(options: &Options, lines: &mut Lines, manifest: &Path) -> Result<()> {
    runtime()?.block_on(async {
        for (batch, at_once) in OFFERS {
            let rounds = options.rounds + 1;
            let service = Service::start(options, manifest, (OFFERED * rounds).next_multiple_of(WORKERS)).await?;
            let mut times = Times::default();
            for (round, leases) in service.leases.chunks(OFFERED).take(rounds).enumerate() {
                let offer = async |leases: &[Lease]| {
                    let results = leases.iter().map(finished).collect();
                    let reply = service.client.complete(&CompleteRequest { worker: worker(0), results }).await?;
                    let all = reply.outcomes.iter().all(|outcome| *outcome == Outcome::Accepted);
                    ensure!(all, "a result was not taken: {:?}", reply.outcomes);
                    Ok(())
                };
                let since = Instant::now();
                let _: Vec<()> = futures::stream::iter(leases.chunks(batch))
                    .map(offer)
                    .buffer_unordered(at_once)
                    .try_collect()
                    .await?;
                if round > 0 {
                    times.0.push(since.elapsed().as_secs_f64());
                }
            }
            let case = format!("{batch} a call, {at_once} calls at once");
            lines.add(rate("results_accepted", case, OFFERED as f64, "results/s", &times))?;
        }
        Ok(())
    })
}

/// From the `kill -9` of a conductor under load to the first result that its successor acknowledges.
pub fn failover(options: &Options, lines: &mut Lines, manifest: &Path) -> Result<()> {
    runtime()?.block_on(async {
        let (mut totals, mut listens, mut claims) = (vec![], vec![], vec![]);
        for _ in 0..options.rounds.max(1) {
            let (total, listen, claim) = one_failover(options, manifest).await?;
            totals.push(total);
            listens.push(listen);
            claims.push(claim);
        }
        let line = |bench: &str, case: &str, x: &[f64]| {
            let mut line = Line::new(bench, case, median(x), "s").with("kills", x.len());
            line.range = Some([x.iter().copied().fold(f64::INFINITY, f64::min), x.iter().copied().fold(0.0, f64::max)]);
            line
        };
        lines.add(line("conductor_failover", "to the first commit its successor acknowledges", &totals))?;
        lines.add(line("conductor_failover_part", "until it has read the volume and answers", &listens))?;
        lines.add(line("conductor_failover_part", "claim, replay and a first append, in process", &claims))
    })
}

async fn one_failover(options: &Options, manifest: &Path) -> Result<(f64, f64, f64)> {
    let service = Service::start(options, manifest, 4_000).await?;
    let (under_load, kept) = service.leases.split_at(3_000);
    // In the middle of the load.
    let acknowledged = std::sync::atomic::AtomicUsize::new(0);
    let process = &service.process.0;
    futures::stream::iter(under_load.chunks(4))
        .map(async |leases| {
            let results = leases.iter().map(finished).collect();
            if service.client.complete(&CompleteRequest { worker: worker(0), results }).await.is_ok()
                && acknowledged.fetch_add(leases.len(), std::sync::atomic::Ordering::Relaxed) >= 1_000
            {
                let pid = i32::try_from(process.id()).ok().and_then(Pid::from_raw);
                pid.map(|pid| kill_process(pid, Signal::KILL));
            }
        })
        .buffer_unordered(16)
        .collect::<()>()
        .await;

    let next = service.lone.for_a_successor()?;
    let copy = tempfile::Builder::new().prefix("journal-").tempdir_in(&options.out)?;
    super::local_run::copy(&service.lone.run_dir().join("journal"), copy.path())?;
    let client = next.client(http_client(Names::default())?, service.client.epochs().clone());
    let killed = Instant::now();
    let _successor = Process::start(&next, "pod-2")?;
    let results = kept.iter().take(1).map(finished).collect();
    let request = CompleteRequest { worker: worker(0), results };
    next.wait_for(&client).await?;
    let listens = killed.elapsed().as_secs_f64();
    let reply = patiently(quick(), || client.complete(&request), |_, _: Duration| {}).await?;
    let total = killed.elapsed().as_secs_f64();
    ensure!(reply.conductor_epoch == 2 && reply.outcomes == [Outcome::Accepted], "{reply:?}");

    let since = Instant::now();
    let (journal, found) = Journal::claim(RealFs::new(), copy.path(), "bench")?;
    let records = found.txns.iter().flatten().map(Vec::as_slice);
    let state = conductor::replay(found.snapshot.as_deref(), records).context("the journal of the killed conductor")?;
    journal.append(&[vec![0]])?;
    let claim = since.elapsed().as_secs_f64();
    ensure!(state.conductor_epoch == 1, "it was killed in its first epoch");
    Ok((total, listens, claim))
}
