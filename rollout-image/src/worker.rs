//! A worker's process.

use std::{net::SocketAddr, time::Duration};

use control::{
    health::Health,
    identity::{Identity, variable},
    names::{Names, http_client},
    server,
};
use rollout::{Figures, Worker, WorkerOptions};

/// Flags of a worker; who it is and where its volume lies comes from the environment.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Address to serve on.
    #[arg(long, default_value = "127.0.0.1:7080")]
    listen: SocketAddr,
    /// Prompt groups worked on at a time, for each run.
    #[arg(long, default_value_t = 8)]
    max_concurrent_groups: usize,
    /// Seconds that work at hand may take after SIGTERM.
    #[arg(long, default_value_t = 10)]
    drain_timeout_secs: u64,
}

/// Serves until asked to stop, then finishes what is at hand.
pub async fn run(options: Options) -> anyhow::Result<()> {
    let identity = Identity::from_env()?;
    let token = variable("THRESH_TOKEN", "the pool's bearer token")?;
    let http = http_client(Names::from_env())?;
    let health = Health::starting("listening");
    let figures = Figures::register(health.registry())?;
    let worker = Worker::new(
        WorkerOptions {
            name: identity.pod,
            node: identity.node,
            volume: identity.volume,
            capacity: options.max_concurrent_groups.max(1),
            drain: Duration::from_secs(options.drain_timeout_secs),
        },
        http,
        figures,
    );
    let routes = server::with_bearer(worker.routes(), &token).merge(health.router());
    let listener = tokio::net::TcpListener::bind(options.listen).await?;
    tracing::info!(address = %options.listen, worker = %worker.id().name, "worker serves");
    health.ready();
    let leaving = worker.clone();
    let end = async move {
        server::asked_to_stop().await;
        tracing::info!("asked to stop; finishing what is at hand");
        leaving.drain().await;
    };
    Ok(server::serve(listener, routes, end).await?)
}
