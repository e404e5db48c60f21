//! A small run to train: a volume with a tiny model, batches in a real store, and a conductor's side that serves a script
//! of orders over the real HTTP types.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use control::client::{ConductorClient, EpochMemory};
use control::names::{Names, http_client};
use control::server::with_bearer;
use control::wire::{
    BatchMeta, ClaimReply, ClaimRequest, Layout, NextReply, NextRequest, Order, Phase, Refusal, RefusalKind, Report,
    ReportReply, ReportRequest, Start, TrainConfig, TrainMetrics, TrainOrder, UpdatePlan, Work,
};
use rl::{LossConfig, LossReduction, OptimizerConfig, ScheduleKind};
use straw::{RealFs, Record, Ref, Store, Tensor};
use tensor::CpuBackend;
use train::faults::Faults;
use train::link::LinkConfig;
use train::{Claimant, Ended, Failure, RankConfig};

pub const RUN: &str = "0b7c7d1e-run";
pub const TOKEN: &str = "secret";
pub const VOCAB: i32 = 96;

/// A volume on disk with the model folder `model` and the run folder `runs/<uid>`.
pub struct Volume {
    pub dir: tempfile::TempDir,
    pub store: Store,
}

impl Volume {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let model = dir.path().join("model");
        std::fs::create_dir_all(&model).unwrap();
        std::fs::write(model.join("config.json"), CONFIG).unwrap();
        std::fs::write(model.join("tokenizer.json"), "{\"version\":\"1.0\"}").unwrap();
        let run = dir.path().join("runs").join(RUN);
        std::fs::create_dir_all(&run).unwrap();
        let store = Store::open(RealFs::new(), run.join("packs")).unwrap();
        Self { dir, store }
    }

    pub fn run_dir(&self) -> PathBuf {
        self.dir.path().join("runs").join(RUN)
    }
}

/// Grouped queries, per-head norms, tied embedding; every size divides by 2.
pub const CONFIG: &str = r#"{
  "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 32, "intermediate_size": 64,
  "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 96,
  "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 512, "tie_word_embeddings": true,
  "attention_bias": false, "hidden_act": "silu", "initializer_range": 0.05, "torch_dtype": "float32",
  "bos_token_id": 0, "eos_token_id": 1
}"#;

pub fn optimizer() -> OptimizerConfig {
    OptimizerConfig {
        lr: 3e-3,
        beta1: 0.9,
        beta2: 0.95,
        eps: 1e-8,
        weight_decay: 0.01,
        clip_grad_norm: 1.0,
        schedule: ScheduleKind::Cosine,
        warmup_steps: 2,
        decay_steps: 50,
        min_lr: 1e-4,
    }
}

pub fn loss() -> LossConfig {
    LossConfig {
        clip_low: 0.2,
        clip_high: 0.28,
        clip_c: None,
        kl: None,
        entropy_coef: 0.0,
        tis: None,
        reduction: LossReduction::TokenMean,
    }
}

pub fn config() -> TrainConfig {
    TrainConfig {
        model_dir: "model".into(),
        run_dir: format!("runs/{RUN}"),
        loss: loss(),
        optimizer: optimizer(),
        warm_optimizer: None,
        temperature: 0.9,
        recompute: false,
    }
}

/// One sample of a batch.
#[derive(Clone, Debug)]
pub struct Sample {
    pub prompt: Vec<i32>,
    pub response: Vec<i32>,
    pub mask: Vec<u8>,
    pub log_probs: Vec<f32>,
    pub version: i64,
    pub advantage: f32,
    pub rollout_id: i64,
}

/// A repeatable stream of 64-bit numbers (SplitMix64).
pub struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// Samples of mixed lengths with a few masked tokens; the answer repeats the prompt, so that it can be learnt.
pub fn samples(n: usize, seed: u64) -> Vec<Sample> {
    let mut numbers = Numbers(seed);
    (0..n)
        .map(|i| {
            let prompt: Vec<i32> = (0..3 + numbers.below(5)).map(|_| 2 + numbers.below(94) as i32).collect();
            let response: Vec<i32> = prompt.iter().rev().copied().chain([1]).collect();
            let mask = (0..response.len()).map(|_| u8::from(numbers.below(8) != 0)).collect();
            let log_probs = response.iter().map(|_| -4.0 - (numbers.below(1000) as f32) / 1000.0).collect();
            let advantage = (numbers.below(4001) as f32 - 2000.0) / 1000.0;
            Sample { prompt, response, mask, log_probs, version: 0, advantage, rollout_id: i as i64 }
        })
        .collect()
}

/// Writes a converted batch, as the conductor does.
pub fn write_batch(store: &Store, phase: Phase, step: u64, samples: &[Sample]) -> Ref {
    let mut tokens: Vec<i32> = Vec::new();
    let (mut cu_tokens, mut cu_response) = (vec![0i64], vec![0i64]);
    let (mut mask, mut log_probs, mut versions): (Vec<u8>, Vec<f32>, Vec<i64>) = Default::default();
    let mut sums: BTreeMap<i64, i64> = BTreeMap::new();
    for s in samples {
        tokens.extend(&s.prompt);
        tokens.extend(&s.response);
        cu_tokens.push(tokens.len() as i64);
        mask.extend(&s.mask);
        cu_response.push(mask.len() as i64);
        log_probs.extend(&s.log_probs);
        versions.extend(vec![s.version; s.response.len()]);
        *sums.entry(s.rollout_id).or_default() += s.mask.iter().map(|m| i64::from(*m)).sum::<i64>();
    }
    let n = samples.len();
    let column = |f: &dyn Fn(&Sample) -> i64| samples.iter().map(f).collect::<Vec<_>>();
    let t = |v: Vec<i64>| Tensor::from_vec(&[v.len() as u64], v).unwrap();
    let f = |v: Vec<f32>| Tensor::from_vec(&[v.len() as u64], v).unwrap();
    let meta = BatchMeta { phase, step, samples: n as u64 };
    let record = Record::new(serde_json::to_vec(&meta).unwrap())
        .with("tokens", Tensor::from_vec(&[tokens.len() as u64], tokens).unwrap())
        .with("cu_tokens", t(cu_tokens))
        .with("cu_response", t(cu_response))
        .with("loss_mask", Tensor::from_vec(&[mask.len() as u64], mask).unwrap())
        .with("rollout_log_probs", f(log_probs))
        .with("versions", t(versions))
        .with("advantages", f(samples.iter().map(|s| s.advantage).collect()))
        .with("rewards", f(vec![0.0; n]))
        .with("group_index", t(column(&|s| s.rollout_id)))
        .with("rollout_id", t(column(&|s| s.rollout_id)))
        .with("rollout_mask_sum", t(column(&|s| sums[&s.rollout_id])));
    store.writer("test").unwrap().publish(&format!("{phase:?}-{step}"), &[record]).unwrap().remove(0)
}

/// `samples` dealt round-robin to `dp` ranks, in micro-batches of `size`.
pub fn plan(samples: &[Sample], members: &[u32], dp: usize, size: usize) -> UpdatePlan {
    let mut ranks: Vec<Vec<Vec<u32>>> = vec![Vec::new(); dp];
    for (r, rank) in ranks.iter_mut().enumerate() {
        let mine: Vec<u32> = members.iter().copied().skip(r).step_by(dp).collect();
        *rank = mine.chunks(size).map(<[u32]>::to_vec).collect();
    }
    let most = ranks.iter().map(Vec::len).max().unwrap();
    ranks.iter_mut().for_each(|r| r.resize(most, Vec::new()));
    let of = |m: &u32| &samples[*m as usize];
    let rollouts: std::collections::BTreeSet<i64> = members.iter().map(|m| of(m).rollout_id).collect();
    UpdatePlan {
        rollouts: rollouts.len() as u64,
        loss_tokens: members.iter().flat_map(|m| &of(m).mask).map(|m| u64::from(*m)).sum(),
        micro_batches: ranks,
    }
}

/// An order to learn `samples` in one update.
pub fn train_order(store: &Store, phase: Phase, step: u64, samples: &[Sample], dp: usize, size: usize) -> Order {
    let members: Vec<u32> = (0..samples.len() as u32).collect();
    Order::Train(TrainOrder {
        phase,
        step,
        replay: false,
        batch: write_batch(store, phase, step, samples),
        updates: vec![plan(samples, &members, dp, size)],
        version_digests: BTreeMap::new(),
    })
}

pub fn save(step: u64, folder: &str) -> Order {
    Order::Save { step, warm_step: 0, warming: false, folder: folder.into() }
}

pub fn publish(version: u64, folder: &str) -> Order {
    Order::Publish { version, folder: folder.into(), score: None }
}

// ---------------------------------------------------------------- the conductor's side

#[derive(Default)]
pub struct Desk {
    pub orders: Vec<Order>,
    pub reports: Vec<(u64, Report)>,
    pub claims: Vec<ClaimRequest>,
    pub polls: u64,
    pub fenced: bool,
    /// Refuse this many calls as unavailable first.
    pub away: u64,
    /// Acknowledge this report once without keeping it, as a conductor does that has been superseded.
    pub forget: Option<u64>,
}

#[derive(Clone)]
struct Served {
    desk: Arc<Mutex<Desk>>,
    start: Start,
    config: TrainConfig,
    epoch: u64,
}

/// A script being served; ends when dropped.
pub struct Conductor {
    pub desk: Arc<Mutex<Desk>>,
    pub url: String,
    pub runtime: tokio::runtime::Runtime,
}

pub fn conduct(start: Start, config: TrainConfig, epoch: u64, orders: Vec<Order>) -> Conductor {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let desk = Arc::new(Mutex::new(Desk { orders, ..Desk::default() }));
    let routes = Router::new()
        .route("/v1/claim", post(claim))
        .route("/v1/next", post(next))
        .route("/v1/report", post(report))
        .with_state(Served { desk: desk.clone(), start, config, epoch });
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    runtime.spawn(control::server::serve(listener, with_bearer(routes, TOKEN), std::future::pending()));
    Conductor { desk, url, runtime }
}

fn refusal(kind: RefusalKind) -> Response {
    Refusal { kind, message: "scripted".into(), conductor_epoch: 1 }.into_response()
}

fn refused(desk: &mut Desk) -> Option<Response> {
    if desk.away > 0 {
        desk.away -= 1;
        return Some(refusal(RefusalKind::Unavailable));
    }
    desk.fenced.then(|| refusal(RefusalKind::Fenced))
}

async fn claim(State(s): State<Served>, Json(request): Json<ClaimRequest>) -> Response {
    let mut desk = s.desk.lock().unwrap();
    if let Some(refused) = refused(&mut desk) {
        return refused;
    }
    desk.claims.push(request);
    Json(ClaimReply {
        conductor_epoch: 1,
        trainer_epoch: s.epoch,
        start: s.start.clone(),
        config: s.config.clone(),
        heartbeat_timeout_ms: 2_000,
    })
    .into_response()
}

async fn next(State(s): State<Served>, Json(request): Json<NextRequest>) -> Response {
    let mut desk = s.desk.lock().unwrap();
    if let Some(refused) = refused(&mut desk) {
        return refused;
    }
    assert_eq!(request.trainer_epoch, s.epoch);
    desk.polls += 1;
    // What follows what is on record, whatever the caller believes to have reported.
    let done = request.done.min(desk.reports.len() as u64);
    let order = desk.orders.get(done as usize).cloned();
    let work = order.map(|order| Work { seq: done + 1, order });
    let waiting_for = work.is_none().then(|| "the script".to_owned());
    Json(NextReply { conductor_epoch: 1, work, waiting_for }).into_response()
}

async fn report(State(s): State<Served>, Json(request): Json<ReportRequest>) -> Response {
    let mut desk = s.desk.lock().unwrap();
    if let Some(refused) = refused(&mut desk) {
        return refused;
    }
    if desk.forget == Some(request.seq) {
        desk.forget = None;
        return Json(ReportReply { conductor_epoch: 1 }).into_response();
    }
    assert_eq!(request.seq, desk.reports.len() as u64 + 1, "each order is reported once, in turn");
    desk.reports.push((request.seq, request.report));
    Json(ReportReply { conductor_epoch: 1 }).into_response()
}

// ---------------------------------------------------------------- an attempt

/// How ranks talk to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    Threads,
    Tcp,
}

pub struct Attempt {
    pub volume: PathBuf,
    pub layout: Layout,
    pub wire: Wire,
    pub faults: String,
    pub threads: usize,
    pub stop: train::Stop,
}

pub fn layout(dp: usize, tp: usize) -> Layout {
    Layout { dp, tp, pp: 1, cp: 1 }
}

impl Attempt {
    pub fn new(volume: &Volume, dp: usize, tp: usize) -> Self {
        Self {
            volume: volume.dir.path().to_owned(),
            layout: layout(dp, tp),
            wire: Wire::Threads,
            faults: String::new(),
            threads: 1,
            stop: train::Stop::default(),
        }
    }

    /// Runs all ranks against `conductor`; one result a rank.
    pub fn run(&self, conductor: &Conductor) -> Vec<Result<Ended, Failure>> {
        let size = self.layout.dp * self.layout.tp;
        let timeout = Duration::from_secs(60);
        let mut worlds: Vec<Option<comm::Group>> = match self.wire {
            Wire::Threads => comm::thread::world(size, timeout).unwrap().into_iter().map(Some).collect(),
            Wire::Tcp => (0..size).map(|_| None).collect(),
        };
        let master = {
            let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            free.local_addr().unwrap().to_string()
        };
        std::thread::scope(|scope| {
            let ranks: Vec<_> = worlds
                .iter_mut()
                .enumerate()
                .map(|(rank, world)| {
                    let world = world.take();
                    let master = &master;
                    scope.spawn(move || self.rank(rank, size, world, master, conductor))
                })
                .collect();
            ranks.into_iter().map(|r| r.join().unwrap()).collect()
        })
    }

    fn rank(
        &self,
        rank: usize,
        size: usize,
        world: Option<comm::Group>,
        master: &str,
        conductor: &Conductor,
    ) -> Result<Ended, Failure> {
        let (world, abort) = match world {
            Some(world) => {
                let abort = world.abort_handle();
                (world, abort)
            }
            None => {
                let abort = comm::Abort::new();
                let bind = "127.0.0.1".parse().unwrap();
                let config = comm::tcp::TcpConfig::new(RUN, 1, rank, size, master, bind).unwrap();
                (comm::tcp::join(&config, &abort).unwrap(), abort)
            }
        };
        let claimant = (rank == 0).then(|| Claimant {
            link: LinkConfig {
                runtime: conductor.runtime.handle().clone(),
                client: ConductorClient::new(
                    http_client(Names::default()).unwrap(),
                    conductor.url.clone(),
                    TOKEN,
                    EpochMemory::default(),
                ),
                away_max: Duration::from_secs(20),
                abort,
            },
            request: ClaimRequest {
                run: RUN.into(),
                attempt: 1,
                incarnation: "i".into(),
                pod: "p".into(),
                layout: self.layout,
            },
        });
        let config = RankConfig {
            world,
            layout: self.layout,
            backend: Arc::new(CpuBackend::new(self.threads)),
            volume: self.volume.clone(),
            attempt: 1,
            faults: Faults::parse(&self.faults, rank, 1).unwrap(),
            stop: self.stop.clone(),
        };
        train::run(config, claimant, &mut |_| {})
    }

    /// Runs the script to its end and gives the reports.
    pub fn play(&self, start: Start, config: TrainConfig, mut orders: Vec<Order>) -> Vec<Report> {
        orders.push(Order::Finish);
        let conductor = conduct(start, config, 1, orders);
        for end in self.run(&conductor) {
            assert_eq!(end.unwrap(), Ended::Finished);
        }
        let desk = conductor.desk.lock().unwrap();
        assert!(matches!(desk.reports.last(), Some((_, Report::Finished))));
        desk.reports.iter().map(|(_, r)| r.clone()).collect()
    }
}

pub fn trained(report: &Report) -> &TrainMetrics {
    match report {
        Report::Trained(metrics) => metrics,
        other => panic!("{other:?}"),
    }
}

pub fn weights_digest(report: &Report) -> &str {
    match report {
        Report::Weights { weights_digest, .. } | Report::Tiles { weights_digest, .. } => weights_digest,
        other => panic!("{other:?}"),
    }
}

/// The metrics without what a clock says.
pub fn timeless(report: &Report) -> Report {
    match report {
        Report::Trained(m) => Report::Trained(Box::new(TrainMetrics { seconds: 0.0, ..(**m).clone() })),
        other => other.clone(),
    }
}

/// All tensors of a folder's safetensors files, by name, as f32.
pub fn read_safetensors(folder: &Path) -> BTreeMap<String, (Vec<usize>, Vec<f32>)> {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "safetensors") {
            continue;
        }
        let bytes = std::fs::read(&path).unwrap();
        for (name, view) in safetensors::SafeTensors::deserialize(&bytes).unwrap().tensors() {
            assert_eq!(view.dtype(), safetensors::Dtype::F32, "{name}");
            let values = view.data().chunks_exact(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect();
            assert!(all.insert(name, (view.shape().to_vec(), values)).is_none());
        }
    }
    all
}
