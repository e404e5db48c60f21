//! One rank: joins its world, then hands over to the step loop.

use std::net::{IpAddr, SocketAddr};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use anyhow::{Context, Result};
use comm::Abort;
use comm::tcp::TcpConfig;
use control::client::{ConductorClient, EpochMemory};
use control::health::Health;
use control::names::{Names, http_client};
use control::wire::ClaimRequest;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use tokio::runtime::Runtime;
use train::faults::Faults;
use train::link::LinkConfig;
use train::{Claimant, Ended, Event, RankConfig, Stop, exit};

use crate::environment::{Local, Pod};
use crate::gauges::Gauges;

/// Runs the rank; returns its exit code. Its last line on standard error is the failure, if there is one.
pub fn run(local: &Local) -> u8 {
    // Dying with the launcher, however it dies, is what keeps a killed pod from leaving ranks behind.
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        tracing::error!("cannot ask to die with the launcher: {error}");
        return exit::FAILURE;
    }
    if getppid().map(|p| p.as_raw_nonzero().get().unsigned_abs()) != Some(local.launcher) {
        tracing::error!("the launcher (process {}) is gone already", local.launcher);
        return exit::PEER_FAILED;
    }
    let outcome = set_up(local)
        .map_err(|e| (exit::USER_MUST_ACT, format!("rank {}: {}", local.rank, control::log::said_once(&*e))))
        .and_then(|(runtime, rank)| rank.run(&runtime).map_err(|failure| (failure.exit_code(), failure.to_string())));
    match outcome {
        Ok(Ended::Finished) => exit::COMPLETE,
        Ok(Ended::Stopped) => exit::STOPPED,
        Err((code, text)) => {
            // No fields: the launcher quotes this line.
            tracing::error!("{text}");
            code
        }
    }
}

struct Rank {
    local: Local,
    pod: Pod,
    names: Names,
    faults: Faults,
    health: Health,
    gauges: Gauges,
    abort: Abort,
    stop: Stop,
    /// As long as ranks are awaited.
    meeting: Arc<AtomicBool>,
}

fn set_up(local: &Local) -> Result<(Runtime, Rank)> {
    let pod = Pod::from_env()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("control")
        .enable_all()
        .build()
        .context("starting the runtime")?;
    let health = Health::starting("the ranks are meeting");
    let gauges = Gauges::register(health.registry())?;
    let faults = Faults::from_env(local.rank, pod.attempt)?;
    let stop = Stop::default();
    let abort = Abort::new();
    let meeting = Arc::new(AtomicBool::new(true));
    let (asked, aborted, met) = (stop.clone(), abort.clone(), meeting.clone());
    runtime.spawn(async move {
        control::server::asked_to_stop().await;
        asked.ask();
        // Nothing has begun that should come to its end, and those who are missing may never come.
        if met.load(Ordering::SeqCst) {
            aborted.abort("asked to end by SIGTERM");
        }
    });
    // One door per pod: that of its first rank.
    if local.local_rank == 0 {
        let address: IpAddr =
            pod.identity.address.parse().with_context(|| format!("POD_IP={}", pod.identity.address))?;
        let address = SocketAddr::new(address, pod.port);
        let listener = runtime
            .block_on(tokio::net::TcpListener::bind(address))
            .with_context(|| format!("listening on {address} for /livez, /readyz and /metrics"))?;
        runtime.spawn(control::server::serve(listener, health.router(), std::future::pending()));
    }
    let names = Names::from_env();
    Ok((runtime, Rank { local: *local, pod, names, faults, health, gauges, abort, stop, meeting }))
}

impl Rank {
    fn run(self, runtime: &Runtime) -> Result<Ended, train::Failure> {
        let Self { local, pod, names, faults, health, gauges, abort, stop, meeting } = self;
        let failed = |error| train::Failure::early(local.rank, error);
        let world = comm::tcp::join(&rendezvous(&local, &pod, &names, runtime).map_err(failed)?, &abort);
        meeting.store(false, Ordering::SeqCst);
        if stop.is_asked() {
            return Err(failed(train::Error::Terminated));
        }
        let world = world.map_err(|e| failed(e.into()))?;
        health.not_ready("loading the model");
        let claimant = if local.rank == 0 {
            let http = http_client(names).map_err(|e| failed(train::Error::Config(format!("HTTP client: {e}"))))?;
            let client = ConductorClient::new(http, pod.conductor.clone(), pod.token.clone(), EpochMemory::default());
            Some(Claimant {
                link: LinkConfig {
                    runtime: runtime.handle().clone(),
                    client,
                    away_max: pod.conductor_away_max,
                    abort: abort.clone(),
                },
                request: ClaimRequest {
                    run: pod.run.clone(),
                    attempt: pod.attempt,
                    incarnation: incarnation(),
                    pod: pod.identity.pod.clone(),
                    layout: pod.layout,
                },
            })
        } else {
            None
        };
        let config = RankConfig {
            world,
            layout: pod.layout,
            backend: Arc::new(tensor::CpuBackend::new(pod.threads)),
            volume: pod.volume(),
            attempt: pod.attempt,
            faults,
            stop,
        };
        train::run(config, claimant, &mut |event| {
            gauges.observe(&event);
            match event {
                Event::Waiting(reason) => tracing::debug!("nothing to do: {reason}"),
                Event::Loaded { .. } => health.ready(),
                _ => {}
            }
        })
    }
}

fn rendezvous(local: &Local, pod: &Pod, names: &Names, runtime: &Runtime) -> Result<TcpConfig, train::Error> {
    let bad = |what: String| train::Error::Config(what);
    let bind: IpAddr =
        pod.identity.address.parse().map_err(|e| bad(format!("POD_IP={}: {e}", pod.identity.address)))?;
    let (names, handle, master) = (names.clone(), runtime.handle().clone(), pod.master.clone());
    let resolve = move || {
        let found = handle.block_on(names.lookup_endpoint(&master))?;
        found
            .first()
            .copied()
            .ok_or_else(|| std::io::Error::new(std::io::ErrorKind::NotFound, format!("{master} has no address yet")))
    };
    Ok(TcpConfig {
        run_uid: pod.run.clone(),
        attempt: pod.attempt,
        rank: local.rank,
        world_size: pod.world_size(),
        master: pod.master.clone(),
        resolve: Arc::new(resolve),
        bind,
        join_timeout: std::time::Duration::from_secs(300),
        // The others wait while rank 0 waits for the conductor.
        wait_timeout: pod.conductor_away_max + std::time::Duration::from_secs(600),
        silence: comm::tcp::SILENCE,
    })
}

/// A name no other process has: a claim repeated after a lost reply is told from a new process's by it.
fn incarnation() -> String {
    let started =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    format!("{}-{started:x}", std::process::id())
}
