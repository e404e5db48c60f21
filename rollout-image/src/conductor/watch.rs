//! Who is there: engines are resolved and probed, workers are resolved and invited, for ever.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use conductor::{Event, Unreached};
use control::{
    client::{ClientError, invite},
    names::Names,
    wire::{EngineAddress, Invite},
};
use sglang::{Engine, EngineError, HttpEngine};

use super::{inbox::Inbox, setup::Setup};

/// Time between two looks at who is there.
const PERIOD: Duration = Duration::from_millis(300);
/// An engine that answers is asked this seldom.
const PROBE_LIVE_EVERY: Duration = Duration::from_millis(900);
/// A worker that has accepted is invited again this seldom: it may have been restarted.
const INVITE_KNOWN_EVERY: Duration = Duration::from_millis(900);
/// An engine that does not say what it serves within this time is slow.
const PROBE_LIMIT: Duration = Duration::from_secs(3);

/// What is watched.
pub struct Watch {
    /// How names become addresses.
    pub names: Names,
    /// For all calls.
    pub http: reqwest::Client,
    /// Service of the engines.
    pub engines: String,
    /// Service of the workers.
    pub workers: String,
    /// Our own URL, for invitations.
    pub advertise: String,
    /// The run.
    pub setup: Arc<Setup>,
    /// Where what is seen is handed in.
    pub inbox: Inbox,
}

/// When each address is to be called again; absent while a call is under way.
type Due = Arc<Mutex<BTreeMap<String, tokio::time::Instant>>>;

impl Watch {
    /// Watches until dropped.
    pub async fn forever(self) {
        let (engines_due, workers_due) = (Due::default(), Due::default());
        let mut reign = 0;
        loop {
            let epoch = self.inbox.epoch();
            if epoch > 0 {
                if epoch != reign {
                    // A new reign knows nobody.
                    reign = epoch;
                    lock(&engines_due).values_mut().for_each(|due| *due = tokio::time::Instant::now());
                    lock(&workers_due).values_mut().for_each(|due| *due = tokio::time::Instant::now());
                }
                self.look_at_engines(&engines_due).await;
                self.look_at_workers(&workers_due, epoch).await;
            }
            tokio::time::sleep(PERIOD).await;
        }
    }

    /// Base URLs of a Service's pods; nothing when names cannot be looked up: what is known stays as it is.
    async fn resolve(&self, service: &str) -> Option<Vec<String>> {
        match self.names.lookup_endpoint(service).await {
            Ok(found) => Some(found.into_iter().map(|address| format!("http://{address}")).collect()),
            Err(error) => {
                tracing::warn!(service, %error, "a Service cannot be looked up");
                None
            }
        }
    }

    async fn look_at_engines(&self, due: &Due) {
        let Some(urls) = self.resolve(&self.engines).await else { return };
        let name = |url: &String| url.trim_start_matches("http://").to_owned();
        self.inbox
            .post(Event::Engines(urls.iter().map(|url| EngineAddress { name: name(url), url: url.clone() }).collect()));
        for url in take_due(due, urls) {
            let engine = HttpEngine::new(self.http.clone(), &url, self.setup.engine_token.clone());
            let (inbox, due) = (self.inbox.clone(), due.clone());
            tokio::spawn(async move {
                let result = engine.model_info(PROBE_LIMIT).await;
                let again = if result.is_ok() { PROBE_LIVE_EVERY } else { Duration::ZERO };
                let result = result.map(|info| info.version()).map_err(|error| unreached(&error));
                inbox.post(Event::EngineProbed { url: url.clone(), result });
                lock(&due).insert(url, tokio::time::Instant::now() + again);
            });
        }
    }

    async fn look_at_workers(&self, due: &Due, epoch: u64) {
        let Some(urls) = self.resolve(&self.workers).await else { return };
        for url in take_due(due, urls) {
            let invitation = Invite {
                run: self.setup.found.run.clone(),
                conductor: self.advertise.clone(),
                token: self.setup.token.clone(),
                conductor_epoch: epoch,
                run_dir: self.setup.found.run_dir.clone(),
                rollout: self.setup.rollout(),
            };
            let (http, token, due) = (self.http.clone(), self.setup.worker_token.clone(), due.clone());
            tokio::spawn(async move {
                let again = match invite(&http, &url, &token, &invitation).await {
                    Ok(ack) => {
                        if !ack.known {
                            tracing::info!(worker = ack.worker.name, node = ack.worker.node, "a worker joined");
                        }
                        INVITE_KNOWN_EVERY
                    }
                    Err(error @ (ClientError::Refused { .. } | ClientError::BadReply { .. })) => {
                        tracing::warn!(%error, "a worker refused");
                        INVITE_KNOWN_EVERY
                    }
                    Err(_) => Duration::ZERO,
                };
                lock(&due).insert(url, tokio::time::Instant::now() + again);
            });
        }
    }
}

/// Those whose time has come; they are marked as being called.
fn take_due(due: &Due, urls: Vec<String>) -> Vec<String> {
    let now = tokio::time::Instant::now();
    let mut due = lock(due);
    // A year from now: a call is under way, and says itself when the next is due.
    let never = now + Duration::from_secs(365 * 24 * 3600);
    due.retain(|url, _| urls.contains(url));
    urls.into_iter()
        .filter(|url| {
            let at = due.entry(url.clone()).or_insert(now);
            let is_due = *at <= now;
            if is_due {
                *at = never;
            }
            is_due
        })
        .collect()
}

fn lock(due: &Due) -> std::sync::MutexGuard<'_, BTreeMap<String, tokio::time::Instant>> {
    due.lock().unwrap_or_else(PoisonError::into_inner)
}

fn unreached(error: &EngineError) -> Unreached {
    match error {
        // Nobody listens at the port: the process is gone, not slow.
        EngineError::Unreachable { reason, .. } if reason.contains("refused") => Unreached::gone(error.to_string()),
        _ => Unreached::slow(error.to_string()),
    }
}
