//! Requests to engines, all the time, counted.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Secret;
use plan::build;
use serde_json::json;
use tokio::task::JoinSet;

use crate::stage::Stage;

/// Clients that ask a ServingCluster until they are told to stop.
pub struct Load {
    stop: Arc<AtomicBool>,
    counts: Arc<Counts>,
    clients: JoinSet<()>,
}

#[derive(Default)]
struct Counts {
    answered: AtomicU64,
    failed: AtomicU64,
    first: Mutex<Option<String>>,
}

/// What a load came to.
#[derive(Debug)]
pub struct Tally {
    /// Answers with text.
    pub answered: u64,
    /// Everything else.
    pub failed: u64,
    /// The first failure.
    pub first: Option<String>,
}

impl Tally {
    /// No request failed, and there were enough of them to tell.
    ///
    /// # Errors
    /// With the first failure.
    pub fn flawless(&self, least: u64) -> anyhow::Result<()> {
        let Self { answered, failed, first } = self;
        let first = first.as_deref().unwrap_or("none failed");
        anyhow::ensure!(
            *failed == 0 && *answered >= least,
            "{failed} requests failed, {answered} of at least {least} were answered: {first}"
        );
        Ok(())
    }
}

/// The bearer token of a ServingCluster, a RolloutPool or a run.
///
/// # Errors
/// When its Secret is not there.
pub async fn token(stage: &Stage, owner: &str) -> anyhow::Result<String> {
    let secret: Secret = stage.api().get(&build::token_secret(owner)).await.context("the token")?;
    let bytes = secret.data.and_then(|mut data| data.remove(build::TOKEN_KEY)).context("a token in the Secret")?;
    Ok(String::from_utf8(bytes.0)?)
}

impl Load {
    /// Starts `clients` clients; each asks `address` (`host:port`, looked up for every request) and draws `tokens` tokens.
    ///
    /// # Errors
    /// When the token is not there.
    pub async fn start(
        stage: &Stage,
        serving: &str,
        address: String,
        clients: usize,
        tokens: u32,
    ) -> anyhow::Result<Self> {
        let token = token(stage, serving).await?;
        let (stop, counts) = (Arc::new(AtomicBool::new(false)), Arc::new(Counts::default()));
        let mut set = JoinSet::new();
        for client in 0..clients {
            let (stop, counts, token, address) = (stop.clone(), counts.clone(), token.clone(), address.clone());
            set.spawn(async move {
                let mut n = 0u64;
                while !stop.load(Ordering::Relaxed) {
                    n += 1;
                    match ask(&address, &token, tokens, (client as u64) << 32 | n).await {
                        Ok(()) => drop(counts.answered.fetch_add(1, Ordering::Relaxed)),
                        Err(error) => {
                            counts.failed.fetch_add(1, Ordering::Relaxed);
                            let mut first = counts.first.lock().unwrap_or_else(PoisonError::into_inner);
                            first.get_or_insert_with(|| format!("{}: {error:#}", jiff::Timestamp::now()));
                        }
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            });
        }
        Ok(Self { stop, counts, clients: set })
    }

    /// Answers so far.
    pub fn answered(&self) -> u64 {
        self.counts.answered.load(Ordering::Relaxed)
    }

    /// Ends it and counts.
    pub async fn stop(mut self) -> Tally {
        self.stop.store(true, Ordering::Relaxed);
        while self.clients.join_next().await.is_some() {}
        let first = self.counts.first.lock().unwrap_or_else(PoisonError::into_inner).take();
        Tally {
            answered: self.counts.answered.load(Ordering::Relaxed),
            failed: self.counts.failed.load(Ordering::Relaxed),
            first,
        }
    }
}

/// One request, on a connection of its own, as a stranger's would be.
///
/// # Errors
/// When it is not answered with text.
pub async fn ask(address: &str, token: &str, tokens: u32, seed: u64) -> anyhow::Result<()> {
    let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(60)).build()?;
    let body = json!({
        "text": "s:59210=",
        "sampling_params": { "temperature": 1.0, "max_new_tokens": tokens, "sampling_seed": seed & 0x7fff_ffff, "ignore_eos": true },
    });
    let response = client.post(format!("http://{address}/generate")).bearer_auth(token).json(&body).send().await?;
    let status = response.status();
    let text = response.text().await?;
    anyhow::ensure!(status.is_success(), "{status}: {text}");
    anyhow::ensure!(text.contains("output_ids") || text.contains("\"text\""), "no answer in {text}");
    Ok(())
}
