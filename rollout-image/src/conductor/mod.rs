//! The conductor's process: the brain of `crates/conductor` wired to straw, HTTP and the volume.
//!
//! | module | what it does |
//! |---|---|
//! | [`setup`] | the RLJob and what lies on the volume: one configuration |
//! | [`rows`] | texts of the data sets, by row |
//! | [`resume`] | beginning with another run's commit |
//! | [`reign`] | one epoch: claim the journal, think, append, act, until superseded or stopped |
//! | [`scribe`] | what was thought is made durable, and then let out |
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
mod scribe;
mod setup;
mod steps_file;
mod tiles;
mod watch;

use std::{
    future::Future,
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Context;
use conductor::GiveBack;
use control::{
    health::Health,
    identity::{Identity, variable},
    names::{Names, http_client},
    server,
};
use straw::{Fs, RealFs, mount_probe::MountReport};

use inbox::Inbox;
use setup::Setup;

/// Flags of the conductor; the rest comes from the environment every pod of a run is given.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Address to serve on.
    #[arg(long, default_value = "127.0.0.1:7070")]
    pub listen: SocketAddr,
    /// The RLJob as JSON, defaults filled in.
    #[arg(long)]
    pub config: PathBuf,
    /// Name and port of the engines' Service.
    #[arg(long, env = "THRESH_ENGINES")]
    pub engines: String,
    /// Name and port of the workers' Service.
    #[arg(long, env = "THRESH_WORKERS")]
    pub workers: String,
    /// The URL under which others reach this conductor. By default the address it listens on.
    #[arg(long, env = "THRESH_CONDUCTOR")]
    pub advertise: Option<String>,
    /// Bytes of journal after which the state is written as a snapshot.
    #[arg(long, default_value_t = 64 << 20)]
    pub snapshot_bytes: u64,
    /// When space inside packs is given back.
    #[command(flatten)]
    pub give_back: GiveBackOptions,
}

/// When space inside packs is given back: what is needed of packs that are mostly dead moves to another one, and they go.
#[derive(Clone, Debug, clap::Args)]
pub struct GiveBackOptions {
    /// Milliseconds between two looks at the packs.
    #[arg(long, env = "THRESH_GIVE_BACK_LOOK_MS", default_value_t = GiveBack::default().look_every_ms)]
    pub give_back_look_ms: u64,
    /// Milliseconds for which a pack is kept that nothing refers to.
    #[arg(long, env = "THRESH_GIVE_BACK_SETTLE_MS", default_value_t = GiveBack::default().settle_ms)]
    pub give_back_settle_ms: u64,
    /// A pack is emptied when at most this share of its bytes is needed, percent.
    #[arg(long, env = "THRESH_GIVE_BACK_LIVE_PERCENT", default_value_t = GiveBack::default().live_percent_max)]
    pub give_back_live_percent: u64,
    /// Packs are emptied once that gives back so many bytes.
    #[arg(long, env = "THRESH_GIVE_BACK_GAIN_BYTES", default_value_t = GiveBack::default().gain_bytes_min)]
    pub give_back_gain_bytes: u64,
}

impl GiveBackOptions {
    fn rule(&self) -> GiveBack {
        GiveBack {
            look_every_ms: self.give_back_look_ms,
            settle_ms: self.give_back_settle_ms,
            live_percent_max: self.give_back_live_percent.min(100),
            gain_bytes_min: self.give_back_gain_bytes,
            ..GiveBack::default()
        }
    }
}

impl Default for GiveBackOptions {
    fn default() -> Self {
        let rule = GiveBack::default();
        Self {
            give_back_look_ms: rule.look_every_ms,
            give_back_settle_ms: rule.settle_ms,
            give_back_live_percent: rule.live_percent_max,
            give_back_gain_bytes: rule.gain_bytes_min,
        }
    }
}

/// What the environment of a run's pods says.
#[derive(Clone, Debug)]
pub struct Environment {
    /// Which pod this is.
    pub identity: Identity,
    /// The run's uid.
    pub run: String,
    /// The run's bearer token.
    pub token: String,
    /// The engines' bearer token.
    pub engine_token: Option<String>,
    /// The workers' bearer token; pools without one of their own use the run's.
    pub worker_token: Option<String>,
    /// How names become addresses.
    pub names: Names,
}

impl Environment {
    /// Of this process.
    ///
    /// # Errors
    /// Names the first variable that is missing.
    pub fn from_env() -> anyhow::Result<Self> {
        let optional = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        Ok(Self {
            identity: Identity::from_env()?,
            run: variable("THRESH_RUN_UID", "the run's uid")?,
            token: variable("THRESH_TOKEN", "the run's bearer token")?,
            engine_token: optional("THRESH_ENGINE_TOKEN"),
            worker_token: optional("THRESH_WORKER_TOKEN"),
            names: Names::from_env(),
        })
    }
}

/// The volume as this process reaches it. A test puts another one in its place.
#[derive(Clone, Debug)]
pub struct Volume {
    /// Where journal and packs lie.
    pub fs: Arc<dyn Fs>,
    /// What is known of the mount that a folder lies on.
    pub probe: fn(&Path) -> io::Result<MountReport>,
}

impl Volume {
    /// That of the pod.
    #[must_use]
    pub fn real() -> Self {
        Self { fs: RealFs::new(), probe: straw::mount_probe::probe }
    }
}

/// Serves until asked to stop, or superseded.
///
/// # Errors
/// What keeps it from serving, and that it is superseded.
pub async fn run(options: Options) -> anyhow::Result<()> {
    serve(options, Environment::from_env()?, Volume::real(), server::asked_to_stop()).await
}

/// Serves until `end`, or superseded.
///
/// # Errors
/// As [`run`].
pub async fn serve(
    options: Options,
    environment: Environment,
    volume: Volume,
    end: impl Future<Output = ()> + Send + 'static,
) -> anyhow::Result<()> {
    let health = Health::starting("reading the run's journal");
    let listener = tokio::net::TcpListener::bind(options.listen)
        .await
        .with_context(|| format!("listening on {}", options.listen))?;
    let advertise = options.advertise.clone().unwrap_or_else(|| format!("http://{}", options.listen));
    let (config, names) = (options.config.clone(), environment.names.clone());
    let setup = tokio::task::spawn_blocking(move || Setup::read(&config, environment)).await??;
    let setup = Arc::new(setup);
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
        end.await;
        tracing::info!("asked to stop");
        asked.stop();
    });

    let runtime = tokio::runtime::Handle::current();
    let mut throne = reign::Throne {
        setup,
        volume,
        inbox,
        events,
        http: client,
        health,
        runtime,
        snapshot_bytes: options.snapshot_bytes,
        give_back: options.give_back.rule(),
        reigned: false,
        mount_told: false,
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
