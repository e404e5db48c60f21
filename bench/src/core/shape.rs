//! The models that are measured, and the work given to them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use checkpoint::{ExportTypes, FILE_BYTES_MAX, PublishTo, RealDisk, hf, publish};
use models::{Model, ModelConfig, ModelOptions};
use parallel::{Grid, Groups, Layout};
use serde_json::json;
use tensor::{CpuBackend, DType, Philox, SingleRank};

/// A dense Qwen3 and how it is used.
pub struct Shape {
    /// For the table.
    pub name: &'static str,
    hidden: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    ffn: usize,
    /// Tokens of the vocabulary.
    pub vocab: usize,
    /// Sequences of a training step.
    pub sequences: usize,
    /// Tokens of each, all alike so that a padding peer wastes nothing.
    pub length: usize,
    /// Tokens of its prompt, which are not learnt.
    pub prompt: usize,
    /// Training steps of a round.
    pub steps: usize,
    /// Context from which decode goes on, and steps of decode in a round.
    pub decode: (usize, usize),
}

/// The quickstart's model, with one rank's share of its batch; and one whose products are of the usual sizes.
pub fn all() -> [Shape; 2] {
    [
        Shape {
            name: "quickstart 77 k",
            hidden: 64,
            layers: 2,
            heads: 4,
            kv_heads: 2,
            head_dim: 16,
            ffn: 128,
            vocab: 48,
            sequences: 128,
            length: 14,
            prompt: 8,
            steps: 20,
            decode: (8, 20),
        },
        Shape {
            name: "dense 17 M",
            hidden: 512,
            layers: 4,
            heads: 8,
            kv_heads: 4,
            head_dim: 64,
            ffn: 1536,
            vocab: 8192,
            sequences: 8,
            length: 128,
            prompt: 32,
            steps: 1,
            decode: (128, 8),
        },
    ]
}

impl Shape {
    fn config(&self) -> serde_json::Value {
        json!({
            "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "dtype": "float32",
            "vocab_size": self.vocab, "hidden_size": self.hidden, "intermediate_size": self.ffn,
            "num_hidden_layers": self.layers, "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim, "hidden_act": "silu", "attention_bias": false, "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0, "max_position_embeddings": 512, "tie_word_embeddings": true, "eos_token_id": 0,
        })
    }

    /// Writes a model folder with random weights; both sides load it.
    pub fn write(&self, dir: &Path) -> Result<PathBuf> {
        let config = dir.join(format!("config-{}", self.hidden));
        std::fs::create_dir_all(&config)?;
        let text = self.config().to_string();
        std::fs::write(config.join("config.json"), &text)?;
        let folder = dir.join(format!("model-{}", self.hidden));
        write_random(&text, &config, &folder)?;
        Ok(folder)
    }

    /// Token ids, `rows` of `length`.
    pub fn tokens(&self, seed: u64, rows: usize, length: usize) -> Vec<Vec<i32>> {
        let random = Philox::new(seed, 0xbe7c);
        let id = |at: usize| (random.uniform(at as u64) * self.vocab as f64) as i32;
        (0..rows).map(|row| (0..length).map(|i| id(row * length + i)).collect()).collect()
    }

    /// Multiply-adds of the linear layers for one token, without the head.
    fn linear(&self) -> f64 {
        let wide = (self.heads + 2 * self.kv_heads) * self.head_dim;
        (self.layers * (self.hidden * wide + self.heads * self.head_dim * self.hidden + 3 * self.hidden * self.ffn))
            as f64
    }

    /// Operations of a forward pass: `tokens` through the layers, `scored` rows through the head, `pairs` of query and key
    /// in each head.
    fn forward(&self, tokens: f64, scored: f64, pairs: f64) -> f64 {
        let attention = 4.0 * (self.layers * self.heads * self.head_dim) as f64 * pairs;
        2.0 * self.linear() * tokens + 2.0 * (self.hidden * self.vocab) as f64 * scored + attention
    }

    /// Operations of a training step: forward, and twice that for backward.
    pub fn train_flops(&self) -> f64 {
        let (b, s) = (self.sequences as f64, self.length as f64);
        3.0 * self.forward(b * s, b * (self.length - self.prompt) as f64, b * s * (s + 1.0) / 2.0)
    }

    /// Operations of a decode step of `batch` sequences with about `context` keys each.
    pub fn decode_flops(&self, batch: f64, context: f64) -> f64 {
        self.forward(batch, batch, batch * context)
    }
}

fn build(config: &str, threads: usize) -> Result<Model> {
    let config = ModelConfig::from_json(config)?;
    let backend = Arc::new(CpuBackend::new(threads));
    Ok(Model::new(backend, Arc::new(SingleRank::new("tp")), config, ModelOptions::default())?)
}

/// The model of a folder.
pub fn load(folder: &Path, threads: usize) -> Result<Model> {
    let model = build(&std::fs::read_to_string(folder.join("config.json"))?, threads)?;
    hf::load_weights(&hf::Folder::open(folder)?, &**model.backend(), model.params())?;
    Ok(model)
}

/// Writes random weights of the model of `config`, with the other files of the folder `beside`, as the new folder `to`.
pub fn write_random(config: &str, beside: &Path, to: &Path) -> Result<()> {
    let model = build(config, 1)?;
    model.init_random(7)?;
    let world = comm::thread::world(1, Duration::from_secs(60))?.pop().context("a world of one")?;
    let groups = Groups::new(world, Grid::new(Layout::dp_tp(1, 1))?)?;
    let plan = PublishTo {
        folder: to,
        config_from: beside,
        types: ExportTypes::All(DType::F32),
        file_bytes_max: FILE_BYTES_MAX,
    };
    Ok(publish(&RealDisk, &plan, &groups, &**model.backend(), model.params())?)
}
