//! Engines that do what a test says, on loopback.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used)]

use std::{
    collections::BTreeSet,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Json, Router,
    body::Body,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::post,
};
use control::wire::{EngineAddress, GroupTask, Sampling, TaskKind};
use prometheus::{Registry, TextEncoder};
use rollout::{EnginePool, Figures, Limits, Tokenizer};
use serde_json::{Value, json};
use tokio::sync::Notify;

/// What an engine does with a request.
#[derive(Clone, Debug)]
pub enum Answer {
    /// These tokens by this weight version, and why it ended.
    Tokens(Vec<u32>, u64, &'static str),
    /// This body, whatever it is.
    Body(Value),
    /// Nothing, until it is aborted or left.
    Never,
    /// This status.
    Status(u16),
}

type Decide = dyn Fn(&Value) -> Answer + Send + Sync;

/// An engine and all that reached it.
pub struct FakeEngine {
    pub address: EngineAddress,
    pub calls: Mutex<Vec<Value>>,
    pub aborts: Mutex<Vec<String>>,
    /// Requests it works on now.
    pub running: Mutex<BTreeSet<String>>,
    /// The most at a time.
    pub most: Mutex<usize>,
    decide: Box<Decide>,
    abort_status: StatusCode,
    aborted: Notify,
    /// Every answer takes this long.
    delay: Duration,
}

/// Where a request is counted as running for as long as the engine works on it.
struct Running<'a>(&'a FakeEngine, String);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.running.lock().unwrap().remove(&self.1);
    }
}

impl FakeEngine {
    pub fn rids(&self) -> Vec<String> {
        self.calls.lock().unwrap().iter().map(|call| call["rid"].as_str().unwrap().to_owned()).collect()
    }
}

pub struct Options {
    pub abort_status: StatusCode,
    pub delay: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { abort_status: StatusCode::OK, delay: Duration::ZERO }
    }
}

pub async fn engine(decide: impl Fn(&Value) -> Answer + Send + Sync + 'static) -> Arc<FakeEngine> {
    engine_with(Options::default(), decide).await
}

pub async fn engine_with(
    options: Options,
    decide: impl Fn(&Value) -> Answer + Send + Sync + 'static,
) -> Arc<FakeEngine> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let fake = Arc::new(FakeEngine {
        address: EngineAddress { name: url.clone(), url },
        calls: Mutex::default(),
        aborts: Mutex::default(),
        running: Mutex::default(),
        most: Mutex::default(),
        decide: Box::new(decide),
        abort_status: options.abort_status,
        aborted: Notify::new(),
        delay: options.delay,
    });
    let routes =
        Router::new().route("/generate", post(generate)).route("/abort_request", post(abort)).with_state(fake.clone());
    tokio::spawn(async move { axum::serve(listener, routes).await });
    fake
}

/// An address at which nobody listens.
pub async fn dead() -> EngineAddress {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    EngineAddress { name: url.clone(), url }
}

async fn generate(State(fake): State<Arc<FakeEngine>>, Json(call): Json<Value>) -> Response {
    let answer = (fake.decide)(&call);
    let rid = call["rid"].as_str().unwrap().to_owned();
    fake.calls.lock().unwrap().push(call);
    let running = {
        let mut running = fake.running.lock().unwrap();
        running.insert(rid.clone());
        let mut most = fake.most.lock().unwrap();
        *most = running.len().max(*most);
        Running(&fake, rid.clone())
    };
    tokio::time::sleep(fake.delay).await;
    let reply = match answer {
        Answer::Tokens(ids, version, finish) => Json(reply(&ids, version, finish)).into_response(),
        Answer::Body(body) => Json(body).into_response(),
        Answer::Status(status) => (StatusCode::from_u16(status).unwrap(), Body::from("{}")).into_response(),
        Answer::Never => {
            loop {
                let aborted = fake.aborted.notified();
                if fake.aborts.lock().unwrap().contains(&rid) {
                    break;
                }
                aborted.await;
            }
            Json(reply(&[], 1, "abort")).into_response()
        }
    };
    drop(running);
    reply
}

async fn abort(State(fake): State<Arc<FakeEngine>>, Json(call): Json<Value>) -> Response {
    let rid = call["rid"].as_str().unwrap().to_owned();
    fake.aborts.lock().unwrap().push(rid.clone());
    if fake.abort_status == StatusCode::OK {
        fake.running.lock().unwrap().remove(&rid);
        fake.aborted.notify_waiters();
    }
    (fake.abort_status, Body::from("{}")).into_response()
}

/// A whole answer to `/generate`.
pub fn reply(ids: &[u32], version: u64, finish: &str) -> Value {
    let rows: Vec<Value> = ids.iter().map(|id| json!([-0.5, id, null])).collect();
    json!({"text": "", "output_ids": ids, "meta_info": {
        "id": "r", "finish_reason": {"type": finish}, "weight_version": version.to_string(),
        "output_token_logprobs": rows, "cached_tokens": 0,
    }})
}

/// What a worker has beside its engines.
pub struct Bench {
    pub pool: EnginePool,
    pub figures: Figures,
    pub tokenizer: Tokenizer,
    registry: Registry,
}

impl Bench {
    pub fn new(addresses: &[EngineAddress]) -> Self {
        let folder =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/quickstart/volumes/thresh-data/sort5/model");
        let registry = Registry::new();
        let bench = Self {
            pool: EnginePool::new(reqwest::Client::new(), None),
            figures: Figures::register(&registry).unwrap(),
            tokenizer: Tokenizer::from_folder(&folder).unwrap(),
            registry,
        };
        bench.pool.update(addresses);
        bench
    }

    /// The figure whose line in `/metrics` begins with this.
    pub fn figure(&self, name: &str) -> f64 {
        let text = TextEncoder::new().encode_to_string(&self.registry.gather()).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("thresh_worker_{name} ")));
        line.unwrap_or_else(|| panic!("no {name} in\n{text}")).parse().unwrap()
    }
}

pub fn task(group_index: u64, samples: u32, max_new_tokens: u32) -> GroupTask {
    GroupTask {
        kind: TaskKind::Train,
        group_index,
        prompt: "s:59210=".to_owned(),
        prompt_tokens: vec![3, 4, 5],
        label: "01259".to_owned(),
        samples,
        seeds: (0..u64::from(samples)).map(|sample| 1000 * group_index + sample).collect(),
        sampling: Sampling { temperature: 0.7, max_new_tokens, stop_token_ids: vec![0] },
    }
}

/// Patience that no honest answer needs.
pub fn patient() -> Limits {
    Limits { generate: Duration::from_secs(60), give_up: Duration::from_secs(120) }
}
