//! A conductor with nobody around it but what it needs to give out work: a volume, an engine that says it serves whatever it was
//! told to, and a trainer that publishes once. For tests and benchmarks of the conductor as a service.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use axum::{
    Json, Router,
    extract::State,
    routing::{get, post},
};
use control::{
    client::{ConductorClient, EpochMemory, Patience, patiently},
    identity::Identity,
    names::Names,
    wire::{
        ClaimRequest, Finished, GroupSummary, Layout, Lease, LeaseRequest, NextRequest, Order, Report, ReportRequest,
        Work, WorkerId,
    },
};
use serde_json::{Value, json};
use straw::Ref;

use crate::conductor::{Environment, Options};

const RUN: &str = "lone";
const TOKEN: &str = "token of the run";
/// Samples of each prompt.
const SAMPLES: u32 = 2;
/// Nothing here takes this long, unless it never comes.
const PATIENCE: Duration = Duration::from_secs(300);

/// The surroundings of a conductor.
#[derive(Debug)]
pub struct Lone {
    folder: PathBuf,
    engine: SocketAddr,
    /// Where it serves.
    pub listen: SocketAddr,
}

impl Lone {
    /// A volume in `folder` with the model of `model`, a run of `prompts_per_step` groups a step, and an engine.
    ///
    /// # Errors
    /// What could not be written or bound.
    pub async fn prepare(folder: &Path, model: &Path, prompts_per_step: u64) -> anyhow::Result<Self> {
        let volume = folder.join("volume");
        let own = volume.join("model");
        fs::create_dir_all(&own)?;
        for entry in fs::read_dir(model).with_context(|| model.display().to_string())? {
            let entry = entry?;
            fs::copy(entry.path(), own.join(entry.file_name()))?;
        }
        let rows = "{\"prompt\": \"s:59210=\", \"label\": \"01259\"}\n".repeat(64);
        fs::write(volume.join("train.jsonl"), rows)?;
        fs::write(folder.join("hosts"), "")?;
        fs::write(folder.join("rljob.json"), serde_json::to_vec(&job(prompts_per_step))?)?;
        Ok(Self { folder: folder.to_owned(), engine: serve_engine().await?, listen: free_address()? })
    }

    /// The same surroundings for another conductor, which serves elsewhere.
    ///
    /// # Errors
    /// When there is no free address.
    pub fn for_a_successor(&self) -> anyhow::Result<Self> {
        Ok(Self { folder: self.folder.clone(), engine: self.engine, listen: free_address()? })
    }

    /// The run's folder.
    #[must_use]
    pub fn run_dir(&self) -> PathBuf {
        self.folder.join("volume").join(api::volume::run_dir(RUN))
    }

    /// The volume.
    #[must_use]
    pub fn volume(&self) -> PathBuf {
        self.folder.join("volume")
    }

    /// Flags of the conductor.
    #[must_use]
    pub fn options(&self) -> Options {
        Options {
            listen: self.listen,
            config: self.folder.join("rljob.json"),
            engines: self.engine.to_string(),
            workers: "nobody:1".to_owned(),
            advertise: None,
            snapshot_bytes: 64 << 20,
            give_back: Default::default(),
        }
    }

    /// Its environment, as the pod `uid`.
    #[must_use]
    pub fn environment(&self, uid: &str) -> Environment {
        Environment {
            identity: Identity {
                pod: "lone-conductor-0".to_owned(),
                uid: uid.to_owned(),
                node: "node".to_owned(),
                address: "127.0.0.1".to_owned(),
                volume: self.volume(),
            },
            run: RUN.to_owned(),
            token: TOKEN.to_owned(),
            engine_token: None,
            worker_token: None,
            names: Names::with_hosts(self.folder.join("hosts")),
        }
    }

    /// It as a process of its own: `binary` is `thresh-rollout`.
    #[must_use]
    pub fn command(&self, binary: &Path, uid: &str) -> Command {
        let options = self.options();
        let mut command = Command::new(binary);
        command
            .args(["conductor", "--listen", &options.listen.to_string()])
            .args(["--engines", &options.engines, "--workers", &options.workers, "--config"])
            .arg(&options.config)
            .envs([("POD_NAME", "lone-conductor-0"), ("POD_UID", uid), ("NODE_NAME", "node"), ("POD_IP", "127.0.0.1")])
            .envs([("THRESH_RUN_UID", RUN), ("THRESH_TOKEN", TOKEN)])
            .env("THRESH_VOLUME", self.volume())
            .env(control::names::HOSTS_FILE, self.folder.join("hosts"));
        command
    }

    /// A client of it.
    #[must_use]
    pub fn client(&self, http: reqwest::Client, epochs: EpochMemory) -> ConductorClient {
        ConductorClient::new(http, format!("http://{}", self.listen), TOKEN, epochs)
    }

    /// Waits until it answers.
    ///
    /// # Errors
    /// When it does not for a long time.
    pub async fn wait_for(&self, client: &ConductorClient) -> anyhow::Result<()> {
        patiently(quick(), || client.progress(), |_, _| {}).await.context("the conductor does not answer")?;
        Ok(())
    }

    /// The trainer's part: claims, publishes weights that nobody looks at, and then waits for a batch that never comes.
    ///
    /// # Errors
    /// What the conductor refuses.
    pub async fn publish_once(&self, client: &ConductorClient) -> anyhow::Result<()> {
        let claim = ClaimRequest {
            run: RUN.to_owned(),
            attempt: 1,
            incarnation: "1".to_owned(),
            pod: "lone-trainer".to_owned(),
            layout: Layout { dp: 1, tp: 1, pp: 1, cp: 1 },
        };
        let trainer_epoch = patiently(quick(), || client.claim(&claim), |_, _| {}).await?.trainer_epoch;
        let mut done = 0;
        loop {
            let next = NextRequest { run: RUN.to_owned(), trainer_epoch, done, wait_ms: 1_000, waiting_for: None };
            let Some(Work { seq, order }) = client.next(&next).await?.work else { continue };
            let (report, last) = match order {
                Order::BeginRl => (Report::RlBegun, false),
                Order::Publish { .. } => {
                    (Report::Weights { weights_digest: "none".to_owned(), bytes: 0, scores: None }, true)
                }
                other => bail!("unexpected: {other:?}"),
            };
            let report = ReportRequest { run: RUN.to_owned(), trainer_epoch, seq, report };
            client.report(&report).await?;
            if last {
                return Ok(());
            }
            done = seq;
        }
    }

    /// Leases so many groups for a worker, waiting for them.
    ///
    /// # Errors
    /// What the conductor refuses.
    pub async fn lease(&self, client: &ConductorClient, worker: &WorkerId, count: usize) -> anyhow::Result<Vec<Lease>> {
        let mut leases = Vec::new();
        let since = std::time::Instant::now();
        while leases.len() < count {
            ensure!(since.elapsed() < PATIENCE, "{} of {count} leases came", leases.len());
            let want = u32::try_from(count - leases.len())?;
            let request = LeaseRequest { worker: worker.clone(), want, wait_ms: 1_000 };
            leases.extend(patiently(quick(), || client.lease(&request), |_, _| {}).await?.leases);
        }
        Ok(leases)
    }
}

/// A worker.
#[must_use]
pub fn worker(number: usize) -> WorkerId {
    WorkerId { name: format!("worker-{number}"), incarnation: "1".to_owned(), node: "node".to_owned() }
}

/// A result of a lease, in a pack that nobody reads.
#[must_use]
pub fn finished(lease: &Lease) -> Finished {
    let samples = usize::try_from(lease.group.samples).unwrap_or(1);
    Finished {
        lease: lease.lease.clone(),
        task: lease.task,
        submission: format!("lone/{}", lease.task),
        group: Ref {
            pack: "lone-0000000000000001".to_owned(),
            offset: 4096 * lease.task,
            len: 4096,
            head: 64,
            crc: 1,
            ..Ref::default()
        },
        summary: GroupSummary {
            group_index: lease.task,
            rewards: (0..samples).map(|sample| sample as f64).collect(),
            failed: 0,
            version_min: 1,
            version_max: 1,
            response_tokens: 8,
            tokens: 16,
            generate_calls: lease.group.samples,
        },
    }
}

/// Looks again at once: what is waited for is measured.
#[must_use]
pub fn quick() -> Patience {
    Patience { pause: Duration::from_millis(1), pause_max: Duration::from_millis(2), deadline: PATIENCE }
}

fn free_address() -> anyhow::Result<SocketAddr> {
    // A port that was free a moment ago.
    Ok(std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

/// An engine that serves the version it was told to, and generates nothing.
async fn serve_engine() -> anyhow::Result<SocketAddr> {
    type Version = Arc<Mutex<String>>;
    let version = Version::default();
    let routes = Router::new()
        .route(
            "/model_info",
            get(|State(version): State<Version>| async move {
                let version = version.lock().unwrap_or_else(PoisonError::into_inner).clone();
                Json(json!({"model_path": "none", "weight_version": version}))
            }),
        )
        .route(
            "/update_weights_from_disk",
            post(|State(version): State<Version>, Json(update): Json<Value>| async move {
                let to = update["weight_version"].as_str().unwrap_or_default();
                to.clone_into(&mut version.lock().unwrap_or_else(PoisonError::into_inner));
                Json(json!({"success": true, "message": ""}))
            }),
        )
        .route("/pause_generation", post(|| async { Json(json!({})) }))
        .route("/continue_generation", post(|| async { Json(json!({})) }))
        .with_state(version);
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, routes).await });
    Ok(address)
}

fn job(prompts_per_step: u64) -> Value {
    json!({
        "apiVersion": "thresh.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "lone"},
        "spec": {
            "storage": {"claimName": "volume"},
            "model": {"source": "pvc://volume/model", "init": {"kind": "Random", "seed": 0}},
            "data": {"path": "train.jsonl"},
            "mode": "Sync",
            "batch": {"promptsPerStep": prompts_per_step},
            "sampling": {"samplesPerPrompt": SAMPLES, "temperature": 1.0, "maxNewTokens": 8, "seed": 0},
            "reward": {"kind": "ExactMatch"},
            "totalSteps": 1,
            "algorithm": {"name": "grpo"},
            "optimizer": {"lr": 1e-3},
            "trainer": {"nodes": 1, "accelerator": {"vendor": "cpu", "perNode": 1}, "parallelism": {"dp": 1, "tp": 1}},
            "serving": {"template": {"spec": {"replicas": 1, "accelerator": {"vendor": "cpu"}, "engine": {"kind": "Native"}}}},
            "rollout": {"template": {"spec": {"placement": "Replicas", "replicas": 1}}},
            "checkpoint": {"everySteps": 10}
        }
    })
}
