//! The model as the scheduler sees it: batches in, logits, drawn tokens and log-prob statistics out.
//!
//! Everything is computed by the model code the trainer runs; nothing is computed here.

use std::{path::Path, sync::Arc};

use checkpoint::hf;
use models::{KvCache, KvSeq, Logits, Model, ModelConfig, ModelOptions};
use serde_json::Value;
use tensor::{
    Backend, CpuBackend, SingleRank, Tag, Tensor,
    ops::{SampleParams, TokenStats},
};

use crate::pages::PageId;

/// A set of weights, ready to serve.
pub(crate) struct Weights(Model);

/// The model cannot compute.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    #[error("{0}")]
    Model(#[from] models::Error),
    #[error("{0}")]
    Tensor(#[from] tensor::Error),
    #[error("an iteration began without weights")]
    NoWeights,
}

/// Reads weights for one architecture. It may do so on any thread while the scheduler computes.
pub(crate) struct Loader {
    backend: Arc<dyn Backend>,
    config: ModelConfig,
    model_type: String,
    architectures: Value,
    end_tokens: Vec<u32>,
}

impl Loader {
    /// Reads `config.json`, and `generation_config.json` if there is one.
    pub(crate) fn open(folder: &Path, threads: usize) -> Result<Self, String> {
        let text = std::fs::read_to_string(folder.join("config.json"))
            .map_err(|error| format!("config.json cannot be read: {error}"))?;
        let config = ModelConfig::from_json(&text).map_err(|error| error.to_string())?;
        let json: Value = serde_json::from_str(&text).map_err(|error| format!("config.json: {error}"))?;
        let mut end_tokens = config.eos_token_ids.clone();
        if let Ok(text) = std::fs::read_to_string(folder.join("generation_config.json")) {
            let json: Value =
                serde_json::from_str(&text).map_err(|error| format!("generation_config.json: {error}"))?;
            let ids = match json.get("eos_token_id") {
                Some(Value::Array(ids)) => ids.iter().collect(),
                Some(id) => vec![id],
                None => Vec::new(),
            };
            end_tokens.extend(ids.into_iter().filter_map(Value::as_u64).filter_map(|id| u32::try_from(id).ok()));
        }
        end_tokens.sort_unstable();
        end_tokens.dedup();
        Ok(Self {
            backend: Arc::new(CpuBackend::new(threads)),
            config,
            model_type: json.get("model_type").and_then(Value::as_str).unwrap_or_default().to_owned(),
            architectures: json.get("architectures").cloned().unwrap_or(Value::Null),
            end_tokens,
        })
    }

    pub(crate) fn vocab(&self) -> usize {
        self.config.vocab_size
    }

    pub(crate) fn context(&self) -> usize {
        self.config.max_position_embeddings
    }

    pub(crate) fn model_type(&self) -> &str {
        &self.model_type
    }

    pub(crate) fn architectures(&self) -> &Value {
        &self.architectures
    }

    /// Tokens that end a sequence, by the model's own word.
    pub(crate) fn end_tokens(&self) -> &[u32] {
        &self.end_tokens
    }

    /// Keys and values of one token over all layers, in bytes.
    pub(crate) fn kv_bytes_per_token(&self) -> usize {
        2 * self.config.layers * self.config.kv_heads * self.config.head_dim * size_of::<f32>()
    }

    /// Reads the weights of a Hugging Face folder, widened to f32.
    pub(crate) fn read(&self, folder: &Path) -> Result<Weights, String> {
        if !folder.is_dir() {
            return Err(format!("{} is not a folder this engine can see", folder.display()));
        }
        let model = self.empty_model().map_err(|error| error.to_string())?;
        let files = hf::Folder::open(folder).map_err(|error| error.to_string())?;
        hf::load_weights(&files, &*self.backend, model.params()).map_err(|error| error.to_string())?;
        Ok(Weights(model))
    }

    fn empty_model(&self) -> Result<Model, models::Error> {
        let alone = Arc::new(SingleRank::new("tp"));
        Model::new(self.backend.clone(), alone, self.config.clone(), ModelOptions::default())
    }
}

/// One iteration's work, written down flat: the new tokens of each sequence, its pages, and the rows that are wanted.
#[derive(Default)]
pub(crate) struct Batch {
    tokens: Vec<i32>,
    sequences: Vec<Sequence>,
    pages: Vec<PageId>,
    /// Rows (indices into the batch's tokens) whose next token is drawn, then rows that are only scored.
    pub(crate) rows: Vec<i32>,
}

struct Sequence {
    cached: usize,
    new: usize,
    pages: std::ops::Range<usize>,
}

impl Batch {
    pub(crate) fn clear(&mut self) {
        self.tokens.clear();
        self.sequences.clear();
        self.pages.clear();
        self.rows.clear();
    }

    /// Adds `new` tokens of a sequence whose pages hold `cached` before them. Returns the row of the first.
    pub(crate) fn push(&mut self, new: &[u32], cached: usize, pages: &[PageId]) -> usize {
        let first = self.tokens.len();
        self.tokens.extend(new.iter().map(|id| *id as i32));
        let at = self.pages.len();
        self.pages.extend_from_slice(pages);
        self.sequences.push(Sequence { cached, new: new.len(), pages: at..self.pages.len() });
        first
    }
}

/// Bytes of logits held at a time.
const LOGITS_BYTES_MAX: usize = 128 << 20;

/// Model, weights and KV pool.
pub(crate) struct Runner {
    loader: Arc<Loader>,
    model: Option<Model>,
    cache: KvCache,
    logits: Option<Logits>,
    targets: Vec<i32>,
}

impl Runner {
    pub(crate) fn new(loader: Arc<Loader>, pages: usize, weights: Option<Weights>) -> Result<Self, models::Error> {
        let cache = loader.empty_model()?.new_kv_cache(pages)?;
        Ok(Self { loader, model: weights.map(|weights| weights.0), cache, logits: None, targets: Vec::new() })
    }

    /// Pages of the KV pool.
    pub(crate) fn pages(&self) -> usize {
        self.cache.pages()
    }

    pub(crate) fn has_weights(&self) -> bool {
        self.model.is_some()
    }

    /// How many rows of logits one iteration may ask for.
    pub(crate) fn rows_max(&self) -> usize {
        (LOGITS_BYTES_MAX / size_of::<f32>() / self.loader.vocab()).max(64)
    }

    /// From now on these weights are used. What the KV pool holds is the caller's business.
    pub(crate) fn install(&mut self, weights: Weights) {
        self.model = Some(weights.0);
        self.logits = None;
    }

    /// Computes the batch: KV of its tokens into their pages, and the logits of its rows, which the other methods read.
    pub(crate) fn forward(&mut self, batch: &Batch) -> Result<(), RunError> {
        self.logits = None;
        let model = self.model.as_ref().ok_or(RunError::NoWeights)?;
        let sequences: Vec<KvSeq> = (batch.sequences.iter())
            .map(|sequence| KvSeq {
                cached: sequence.cached,
                new: sequence.new,
                pages: &batch.pages[sequence.pages.clone()],
            })
            .collect();
        let layout = model.batch(&sequences)?;
        self.logits = Some(model.step(&batch.tokens, &layout, &self.cache, &batch.rows)?);
        Ok(())
    }

    /// Draws a token for each of the first rows.
    pub(crate) fn draw(&mut self, params: &[SampleParams], drawn: &mut Vec<u32>) -> Result<(), RunError> {
        drawn.clear();
        if params.is_empty() {
            return Ok(());
        }
        let (model, logits) = self.parts()?;
        let rows =
            Logits { local: logits.local.narrow(0, 0, params.len())?, full: logits.full.narrow(0, 0, params.len())? };
        drawn.extend(model.sample(&rows, params)?.into_iter().map(|id| id as u32));
        Ok(())
    }

    /// Draws a token for one row, of all but some.
    pub(crate) fn draw_without<'a>(
        &mut self,
        row: usize,
        params: &SampleParams,
        banned: impl Iterator<Item = &'a u32>,
    ) -> Result<u32, RunError> {
        let mut logits = self.row(row)?;
        for id in banned {
            if let Some(logit) = logits.get_mut(*id as usize) {
                *logit = f32::NEG_INFINITY;
            }
        }
        let (model, _) = self.parts()?;
        let masked = Tensor::from_slice(&**model.backend(), &logits, &[1, logits.len()], Tag::Work)?;
        let masked = Logits { local: masked.clone(), full: masked };
        Ok(model.sample(&masked, std::slice::from_ref(params))?.first().map_or(0, |id| *id as u32))
    }

    /// Statistics of one target for every row; their `logp()` has the bits of the trainer's.
    pub(crate) fn stats(&mut self, targets: &[u32], temperatures: &[f32]) -> Result<Vec<TokenStats>, RunError> {
        self.targets.clear();
        self.targets.extend(targets.iter().map(|id| *id as i32));
        let (model, logits) = self.parts()?;
        Ok(model.logits_stats(logits, &self.targets, temperatures)?)
    }

    /// The logits of one row.
    pub(crate) fn row(&self, row: usize) -> Result<Vec<f32>, RunError> {
        let (model, logits) = self.parts()?;
        Ok(logits.full.narrow(0, row, 1)?.to_vec::<f32>(&**model.backend())?)
    }

    fn parts(&self) -> Result<(&Model, &Logits), RunError> {
        self.model.as_ref().zip(self.logits.as_ref()).ok_or(RunError::NoWeights)
    }
}
