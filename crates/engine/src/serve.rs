//! Starting an engine, and ending it well.

use std::{
    net::SocketAddr,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, atomic::Ordering, mpsc},
    time::Duration,
};

use ::control::health::Health;
use axum::serve::ListenerExt;
use tokio::{net::TcpListener, sync::oneshot, task::JoinHandle};

use crate::{
    command::Command,
    error::Error,
    front::Front,
    http,
    metrics::Metrics,
    options::EngineOptions,
    pages::pages_for,
    request::Limits,
    runner::{Loader, RunError, Runner},
    scheduler::{Bounds, Scheduler},
    shared::{Served, Shared},
    text::Text,
};

/// Answers that are on their way may take this long to leave a process that ends.
const FAREWELL: Duration = Duration::from_secs(3);

/// Runs an engine until SIGTERM or SIGINT, then drains it.
///
/// # Errors
/// When it cannot start, or ends by itself.
pub async fn serve(options: EngineOptions) -> Result<(), Error> {
    Engine::start(options).await?.run_until(::control::server::asked_to_stop()).await
}

/// An engine that serves.
pub struct Engine {
    address: SocketAddr,
    front: Arc<Front>,
    health: Health,
    scheduler_ended: oneshot::Receiver<Result<(), String>>,
    end_server: oneshot::Sender<()>,
    server: JoinHandle<std::io::Result<()>>,
}

impl Engine {
    /// Reads the model folder, starts the scheduler and listens. On return requests are answered.
    ///
    /// # Errors
    /// The model folder is unusable, the options contradict it, or the address is taken.
    pub async fn start(options: EngineOptions) -> Result<Self, Error> {
        let listener = TcpListener::bind(options.listen)
            .await
            .map_err(|source| Error::Listen { address: options.listen, source })?;
        let address = listener.local_addr()?;
        let health = Health::starting("the model is being loaded");
        let opening = options.clone();
        let opened = tokio::task::spawn_blocking(move || Opened::read(&opening)).await;
        let opened = opened
            .map_err(|error| Error::Model { folder: options.model_path.clone(), reason: error.to_string() })??;
        let Opened { loader, runner, text, limits, served } = opened;

        let has_weights = served.has_weights;
        let shared = Arc::new(Shared::new(served));
        let metrics = Metrics::register(health.registry()).map_err(|error| Error::Scheduler(error.to_string()))?;
        metrics.max_total_tokens.set(limits.pool as i64);
        let bounds = Bounds {
            running: options.max_running_requests,
            waiting: options.max_queued_requests,
            prefill_tokens: options.chunked_prefill_size,
            prefix_cache: !options.disable_radix_cache,
        };
        let (commands, inbox) = mpsc::channel();
        let end_tokens = loader.end_tokens().to_vec();
        let scheduler = Scheduler::new(inbox, shared.clone(), metrics, bounds, runner, end_tokens);
        let (ended, scheduler_ended) = oneshot::channel();
        std::thread::Builder::new().name("scheduler".to_owned()).spawn(move || {
            let result = match catch_unwind(AssertUnwindSafe(|| scheduler.run())) {
                Ok(result) => result.map_err(|error: RunError| error.to_string()),
                Err(panic) => Err(panic_message(&*panic)),
            };
            let _ = ended.send(result);
        })?;

        let front = Arc::new(Front::new(options, shared, text, limits, loader, commands));
        let routes = http::router(front.clone(), &health);
        let (end_server, ended) = oneshot::channel::<()>();
        // Events of a stream are small and far apart: none waits for the one before it to be acknowledged.
        let listener = listener.tap_io(|connection| drop(connection.set_nodelay(true)));
        let server = axum::serve(listener, routes).with_graceful_shutdown(async { drop(ended.await) });
        let server = tokio::spawn(server.into_future());
        health.ready();
        tracing::info!(%address, model_path = %front.options.model_path.display(), has_weights, "engine serves");
        Ok(Self { address, front, health, scheduler_ended, end_server, server })
    }

    /// The address it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `end` resolves, then leaves: it is not ready from then on, and takes requests for the lame-duck time still.
    /// Then it drains: new requests are refused, those in flight may finish within the drain time, what is left ends with what it
    /// has.
    ///
    /// # Errors
    /// The scheduler or the server ended by itself.
    pub async fn run_until(mut self, end: impl Future<Output = ()>) -> Result<(), Error> {
        let (front, health) = (self.front.clone(), self.health.clone());
        let left = async {
            end.await;
            front.shared.leaving.store(true, Ordering::Relaxed);
            health.not_ready("the engine is stopping");
            let lame_duck = Duration::from_secs(front.options.lame_duck_secs);
            tracing::info!(seconds = lame_duck.as_secs(), "engine leaves");
            tokio::time::sleep(lame_duck).await;
        };
        let failure = tokio::select! {
            () = left => None,
            ended = &mut self.scheduler_ended => Some(Error::Scheduler(match ended {
                Ok(Ok(())) | Err(_) => "it ended without being asked to".to_owned(),
                Ok(Err(reason)) => reason,
            })),
            server = &mut self.server => {
                return Err(Error::Server(match server {
                    Ok(Ok(())) => std::io::Error::other("it ended without being asked to"),
                    Ok(Err(error)) => error,
                    Err(error) => std::io::Error::other(error),
                }));
            }
            () = watch(&front) => Some(Error::Scheduler(format!(
                "no iteration ended within {} s (--watchdog-timeout-secs)",
                front.options.watchdog_timeout_secs
            ))),
        };
        self.front.shared.leaving.store(true, Ordering::Relaxed);
        self.front.shared.draining.store(true, Ordering::Relaxed);
        match failure {
            Some(failure) => {
                tracing::error!(%failure, "engine ends");
                self.health.dead(failure.to_string());
                self.health.not_ready(failure.to_string());
                self.close_server().await;
                Err(failure)
            }
            None => {
                self.drain().await;
                self.close_server().await;
                Ok(())
            }
        }
    }

    async fn drain(&mut self) {
        let patience = Duration::from_secs(self.front.options.drain_timeout_secs);
        tracing::info!(seconds = patience.as_secs(), in_flight = self.front.shared.live_count(), "engine drains");
        let _ = self.front.tell(Command::Drain);
        if tokio::time::timeout(patience, &mut self.scheduler_ended).await.is_err() {
            tracing::warn!(
                in_flight = self.front.shared.live_count(),
                "drain time is over; requests in flight are aborted"
            );
            let _ = self.front.tell(Command::Stop);
            let _ = tokio::time::timeout(FAREWELL, &mut self.scheduler_ended).await;
        }
    }

    async fn close_server(self) {
        let _ = self.end_server.send(());
        let _ = tokio::time::timeout(FAREWELL, self.server).await;
    }
}

/// Resolves when the scheduler has been silent for too long.
async fn watch(front: &Front) {
    let limit = Duration::from_secs(front.options.watchdog_timeout_secs);
    while front.shared.silence() <= limit {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// What a model folder and the options make.
struct Opened {
    loader: Arc<Loader>,
    runner: Runner,
    text: Option<Arc<Text>>,
    limits: Limits,
    served: Served,
}

impl Opened {
    fn read(options: &EngineOptions) -> Result<Self, Error> {
        let folder = &options.model_path;
        let broken = |reason: String| Error::Model { folder: folder.clone(), reason };
        let loader = Arc::new(Loader::open(folder, options.threads.max(1)).map_err(broken)?);
        let text = Text::load(folder).map_err(broken)?.map(Arc::new);
        if options.max_running_requests == 0 || options.chunked_prefill_size == 0 {
            return Err(Error::Option {
                option: "--max-running-requests, --chunked-prefill-size",
                reason: "must be at least 1".to_owned(),
            });
        }
        let context = match options.context_length {
            Some(length) if length > loader.context() => {
                let reason = format!("{length} is longer than the model's {}; give at most that", loader.context());
                return Err(Error::Option { option: "--context-length", reason });
            }
            Some(length) => length,
            None => loader.context(),
        };
        let tokens = options.max_total_tokens.unwrap_or((options.kv_cache_mib << 20) / loader.kv_bytes_per_token());
        // No more than every running sequence can use at its longest.
        let pages = pages_for(tokens).min(options.max_running_requests.saturating_mul(pages_for(context)));
        if pages == 0 {
            let reason = "the KV pool is smaller than one page; give more".to_owned();
            return Err(Error::Option { option: "--max-total-tokens, --kv-cache-mib", reason });
        }
        let weights =
            if checkpoint::hf::has_weights(folder) { Some(loader.read(folder).map_err(broken)?) } else { None };
        let limits = Limits::new(loader.vocab(), context, pages);
        let served = Served {
            model_path: folder.clone(),
            weight_version: options.weight_version.as_str().into(),
            has_weights: weights.is_some(),
        };
        let runner = Runner::new(loader.clone(), pages, weights).map_err(|error| broken(error.to_string()))?;
        Ok(Self { loader, runner, text, limits, served })
    }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let message =
        panic.downcast_ref::<&str>().map(|text| (*text).to_owned()).or_else(|| panic.downcast_ref::<String>().cloned());
    format!("it panicked: {}", message.unwrap_or_else(|| "no message".to_owned()))
}
