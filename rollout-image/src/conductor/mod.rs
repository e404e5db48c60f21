//! The conductor's process: the brain of `crates/conductor` wired to straw, HTTP and the volume.
//!
//! | module | what it does |
//! |---|---|
//! | [`setup`] | the RLJob and what lies on the volume: one configuration |
//! | [`rows`] | texts of the data sets, by row |
//! | [`resume`] | beginning with another run's commit |
//! | [`reign`] | one epoch: claim the journal, think, append, act, until superseded or stopped |
//! | [`inbox`] | where events wait, and requests for their answers |
//! | [`http`] | the protocol's routes |
//! | [`perform`] | carrying commands out |
//! | [`scoring`] | comparing trainer and engines on the same samples |
//! | [`tiles`] | looking at tiles before they are believed |
//! | [`watch`] | finding engines and workers, probing and inviting them |
//! | [`steps_file`] | `steps.jsonl`, made to say what the journal says |
//! | [`faults`] | kills at named points, for tests |

mod faults;
mod http;
mod inbox;
mod perform;
mod reign;
mod resume;
mod rows;
mod scoring;
mod setup;
mod steps_file;
mod tiles;
mod watch;

use std::{net::SocketAddr, path::PathBuf, sync::Arc};

use anyhow::Context;
use control::{
    health::Health,
    names::{Names, http_client},
    server,
};

use inbox::Inbox;
use setup::Setup;

/// Flags of the conductor; the rest comes from the environment every pod of a run is given.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Address to serve on.
    #[arg(long, default_value = "127.0.0.1:7070")]
    listen: SocketAddr,
    /// The RLJob as JSON, defaults filled in.
    #[arg(long)]
    config: PathBuf,
    /// Name and port of the engines' Service.
    #[arg(long, env = "THRESH_ENGINES")]
    engines: String,
    /// Name and port of the workers' Service.
    #[arg(long, env = "THRESH_WORKERS")]
    workers: String,
    /// The URL under which others reach this conductor. By default the address it listens on.
    #[arg(long, env = "THRESH_CONDUCTOR")]
    advertise: Option<String>,
    /// Bytes of journal after which the state is written as a snapshot.
    #[arg(long, default_value_t = 64 << 20)]
    snapshot_bytes: u64,
}

/// Serves until asked to stop, or superseded.
pub async fn run(options: Options) -> anyhow::Result<()> {
    let health = Health::starting("reading the run's journal");
    let listener = tokio::net::TcpListener::bind(options.listen)
        .await
        .with_context(|| format!("listening on {}", options.listen))?;
    let advertise = options.advertise.clone().unwrap_or_else(|| format!("http://{}", options.listen));
    let config = options.config.clone();
    let setup = tokio::task::spawn_blocking(move || Setup::read(&config)).await??;
    let setup = Arc::new(setup);
    let names = Names::from_env();
    let client = http_client(names.clone())?;
    let (inbox, events) = Inbox::new();

    let routes = server::with_bearer(http::routes(inbox.clone(), setup.clone()), &setup.token).merge(health.router());
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let mut serving_until = stopped.clone();
    let served = tokio::spawn(server::serve(listener, routes, async move {
        // An error means that the sender is gone, which is an end too.
        let _ = serving_until.wait_for(|stop| *stop).await;
    }));
    tracing::info!(address = %options.listen, run = %setup.found.run, "conductor serves");

    let watching = watch::Watch {
        names,
        http: client.clone(),
        engines: options.engines,
        workers: options.workers,
        advertise,
        setup: setup.clone(),
        inbox: inbox.clone(),
    };
    let watched = tokio::spawn(watching.forever());

    let asked = inbox.clone();
    tokio::spawn(async move {
        server::asked_to_stop().await;
        tracing::info!("asked to stop");
        asked.stop();
    });

    let runtime = tokio::runtime::Handle::current();
    let mut throne = reign::Throne {
        setup,
        inbox,
        events,
        http: client,
        health,
        runtime,
        snapshot_bytes: options.snapshot_bytes,
        reigned: false,
        mount_told: false,
        shown: None,
    };
    // The brain has a thread of its own: it waits for the disk.
    let (send, ended) = tokio::sync::oneshot::channel();
    std::thread::Builder::new().name("brain".to_owned()).spawn(move || {
        let _ = send.send(throne.hold());
    })?;
    let ended = ended.await.unwrap_or_else(|_| Err(anyhow::anyhow!("the brain's thread died")));
    watched.abort();
    // Held requests are refused by now; let the refusals out.
    let _ = stop.send(true);
    let _ = tokio::time::timeout(std::time::Duration::from_secs(1), served).await;
    ended
}
