//! A model folder made from a seed, an engine on it, and a client.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use engine::{Engine, EngineOptions, Error};
use futures::StreamExt;
use models::{Model, ModelConfig, ModelOptions};
use serde_json::{Value, json};
use tempfile::TempDir;
use tensor::{CpuBackend, Philox, SingleRank};
use tokio::{sync::oneshot, task::JoinHandle};

pub const VOCAB: u32 = 96;
/// Ends sequences, by generation_config.json.
pub const END: u32 = 1;
/// Ids from here on are the characters from space on.
pub const FIRST_CHARACTER: u32 = 2;

/// A long generation: its test ends it early.
pub const LONG: usize = 12_000;

pub fn config() -> Value {
    json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": VOCAB, "hidden_size": 32,
        "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 16384, "tie_word_embeddings": true,
        "hidden_act": "silu", "attention_bias": false, "torch_dtype": "float32",
    })
}

/// A tokenizer with one token per character.
fn tokenizer() -> Value {
    let mut vocab = serde_json::Map::new();
    vocab.insert("<|pad|>".into(), json!(0));
    vocab.insert("<|end|>".into(), json!(END));
    for id in FIRST_CHARACTER..VOCAB {
        let character = char::from_u32(u32::from(b' ') + id - FIRST_CHARACTER).unwrap();
        vocab.insert(character.to_string(), json!(id));
    }
    let special = |id: u32, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
               "special": true})
    };
    json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": [special(0, "<|pad|>"), special(END, "<|end|>")],
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": false},
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<|pad|>"},
    })
}

/// A folder with config and tokenizer, and no weights.
pub fn bare_folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), config().to_string()).unwrap();
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer().to_string()).unwrap();
    std::fs::write(folder.path().join("generation_config.json"), json!({"eos_token_id": [END]}).to_string()).unwrap();
    folder
}

/// A folder with weights from a seed, large enough that tokens differ in probability.
pub fn model_folder(seed: u64) -> TempDir {
    let folder = bare_folder();
    write_weights(folder.path(), seed);
    folder
}

pub fn write_weights(folder: &Path, seed: u64) {
    let config = ModelConfig::from_json(&config().to_string()).unwrap();
    let mut tensors = HashMap::new();
    for piece in models::param_specs(&config).into_iter().flat_map(|spec| spec.hf) {
        let random = Philox::named(seed, &piece.name);
        let count: usize = piece.shape.iter().product();
        let (mean, deviation) = match piece.shape.len() {
            1 => (1.0, 0.1),
            _ => (0.0, 1.2 / (*piece.shape.last().unwrap() as f64).sqrt()),
        };
        let bytes: Vec<u8> = (0..count as u64)
            .flat_map(|index| ((mean + deviation * random.normal(index)) as f32).to_le_bytes())
            .collect();
        tensors.insert(piece.name, (piece.shape, bytes));
    }
    let views = tensors.iter().map(|(name, (shape, bytes))| {
        (name.clone(), safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.clone(), bytes).unwrap())
    });
    safetensors::serialize_to_file(views.collect::<Vec<_>>(), None, &folder.join("model.safetensors")).unwrap();
}

/// The trainer's model, with the weights of a folder.
pub fn trainers_model(folder: &Path) -> Model {
    let text = std::fs::read_to_string(folder.join("config.json")).unwrap();
    let config = ModelConfig::from_json(&text).unwrap();
    let backend = Arc::new(CpuBackend::new(2));
    let model = Model::new(backend, Arc::new(SingleRank::new("tp")), config, ModelOptions::default()).unwrap();
    let files = checkpoint::hf::Folder::open(folder).unwrap();
    checkpoint::hf::load_weights(&files, &**model.backend(), model.params()).unwrap();
    model
}

/// An engine on a port of its own.
pub struct Live {
    pub url: String,
    pub http: reqwest::Client,
    stop: Option<oneshot::Sender<()>>,
    ended: JoinHandle<Result<(), Error>>,
}

pub type Answer = (u16, Value);

impl Live {
    pub async fn start(folder: &Path) -> Self {
        Self::start_with(folder, |_| {}).await
    }

    pub async fn start_with(folder: &Path, change: impl FnOnce(&mut EngineOptions)) -> Self {
        let mut options = EngineOptions::new("127.0.0.1:0".parse().unwrap(), PathBuf::from(folder));
        options.weight_version = "v0".to_owned();
        options.kv_cache_mib = 16;
        options.control_timeout_secs = 60;
        options.drain_timeout_secs = 30;
        change(&mut options);
        let engine = Engine::start(options).await.unwrap();
        let url = format!("http://{}", engine.address());
        let (stop, stopped) = oneshot::channel();
        let ended = tokio::spawn(engine.run_until(async { drop(stopped.await) }));
        Self { url, http: reqwest::Client::new(), stop: Some(stop), ended }
    }

    /// What SIGTERM does, up to the end.
    pub async fn stop(mut self) -> Result<(), Error> {
        self.begin_stop();
        self.ended.await.unwrap()
    }

    pub fn begin_stop(&mut self) {
        drop(self.stop.take());
    }

    /// Until readiness says that it is stopping.
    pub async fn until_not_ready(&self) {
        while self.get("/readyz").await.0 != 503 {
            tokio::task::yield_now().await;
        }
    }

    pub async fn send(&self, request: reqwest::RequestBuilder) -> Answer {
        let response = request.timeout(Duration::from_secs(120)).send().await.unwrap();
        let status = response.status().as_u16();
        let text = response.text().await.unwrap();
        let value = serde_json::from_str(&text).unwrap_or(Value::String(text));
        (status, value)
    }

    pub async fn post(&self, path: &str, body: Value) -> Answer {
        self.send(self.http.post(format!("{}{path}", self.url)).json(&body)).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(self.http.get(format!("{}{path}", self.url))).await
    }

    /// A generation that must succeed.
    pub async fn generate(&self, body: Value) -> Value {
        let (status, value) = self.post("/generate", body).await;
        assert_eq!(status, 200, "{value}");
        value
    }

    /// A generation in the background.
    pub fn spawn(&self, body: Value) -> JoinHandle<Answer> {
        let request = self.http.post(format!("{}/generate", self.url)).json(&body);
        tokio::spawn(async move {
            let response = request.send().await.unwrap();
            let status = response.status().as_u16();
            (status, response.json().await.unwrap())
        })
    }

    /// A stream; its events are read one by one.
    pub async fn stream(&self, body: Value) -> Events {
        let mut body = body;
        body["stream"] = json!(true);
        let response = self.http.post(format!("{}/generate", self.url)).json(&body).send().await.unwrap();
        assert_eq!(response.status().as_u16(), 200);
        Events { bytes: Box::pin(response.bytes_stream()), buffer: Vec::new() }
    }

    pub async fn pause(&self, mode: &str) {
        assert_eq!(self.post("/pause_generation", json!({"mode": mode})).await.0, 200);
    }

    pub async fn go_on(&self) {
        assert_eq!(self.post("/continue_generation", json!({})).await.0, 200);
    }

    pub async fn update(&self, folder: &Path, version: &str, flush_cache: bool) -> Answer {
        self.post(
            "/update_weights_from_disk",
            json!({"model_path": folder, "weight_version": version, "flush_cache": flush_cache}),
        )
        .await
    }

    pub async fn abort(&self, rid: &str) {
        assert_eq!(self.post("/abort_request", json!({"rid": rid})).await, (200, json!("")));
    }

    /// (running, waiting)
    pub async fn load(&self) -> (u64, u64) {
        let load = &self.get("/v1/loads").await.1["loads"][0];
        (load["num_running_reqs"].as_u64().unwrap(), load["num_waiting_reqs"].as_u64().unwrap())
    }

    /// Waits until the engine holds so many requests.
    pub async fn until_load(&self, wanted: (u64, u64)) {
        for _ in 0..2000 {
            if self.load().await == wanted {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("load is {:?}, not {wanted:?}", self.load().await);
    }
}

/// Server-sent events.
pub struct Events {
    bytes: std::pin::Pin<Box<dyn futures::Stream<Item = reqwest::Result<axum::body::Bytes>> + Send>>,
    buffer: Vec<u8>,
}

impl Events {
    /// The next event; `[DONE]` as a string; `None` after it.
    pub async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(at) = self.buffer.windows(2).position(|pair| pair == b"\n\n") {
                let event: Vec<u8> = self.buffer.drain(..at + 2).collect();
                let text = std::str::from_utf8(&event).unwrap().trim().strip_prefix("data: ").unwrap();
                return Some(serde_json::from_str(text).unwrap_or_else(|_| json!(text)));
            }
            self.buffer.extend_from_slice(&self.bytes.next().await?.unwrap());
        }
    }

    /// Reads until there are at least so many output tokens.
    pub async fn until_tokens(&mut self, count: usize) -> Value {
        loop {
            let event = self.next().await.unwrap();
            if output_ids(&event).len() >= count {
                return event;
            }
        }
    }

    /// The last event before `[DONE]`.
    pub async fn last(&mut self) -> Value {
        let mut last = Value::Null;
        while let Some(event) = self.next().await {
            if event == "[DONE]" {
                return last;
            }
            last = event;
        }
        panic!("the stream ended without [DONE]: {last}");
    }
}

pub fn output_ids(answer: &Value) -> Vec<u32> {
    answer["output_ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// A log-prob as the bits it was computed in: the JSON number is that f32, widened (a parser may be off in the last place of an
/// f64, which does not reach the f32).
pub fn bits(value: &Value) -> u32 {
    (value.as_f64().unwrap() as f32).to_bits()
}

/// Bits of the log-probs of the output tokens, with their ids checked.
pub fn log_prob_bits(answer: &Value) -> Vec<u32> {
    let rows = answer["meta_info"]["output_token_logprobs"].as_array().unwrap();
    let ids: Vec<u32> = rows.iter().map(|row| row[1].as_u64().unwrap() as u32).collect();
    assert_eq!(ids, output_ids(answer));
    rows.iter().map(|row| bits(&row[0])).collect()
}

pub fn finish(answer: &Value) -> &Value {
    &answer["meta_info"]["finish_reason"]
}

/// A prompt of so many tokens, from a seed.
pub fn prompt(seed: u64, tokens: usize) -> Vec<u32> {
    let random = Philox::named(seed, "prompt");
    let characters = u64::from(VOCAB - FIRST_CHARACTER);
    (0..tokens as u64).map(|at| FIRST_CHARACTER + (u64::from(random.block(at)[0]) % characters) as u32).collect()
}
