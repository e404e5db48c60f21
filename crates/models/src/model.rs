use std::sync::Arc;

use nn::{Cx, GradStore, KvBatch, KvCache, KvView, Layout, ParamStore, RopeTable, Saved, SeqLayout, TpGrad};
use tensor::ops::{GatherRows, Sample, SampleParams, ScatterRows, TokenStats};
use tensor::{Backend, Comm, DType, Stream, Tag, Tensor};

use crate::{Error, ModelConfig, Result, Stage, StageRange};

/// How a model runs.
#[derive(Clone, Debug)]
pub struct ModelOptions {
    /// compute type: f32 on the CPU, f64 on the reference backend for finite differences
    pub dtype: DType,
    /// Shard tokens between the linear layers. Changes no bit of a forward pass.
    pub sequence_parallel: bool,
    /// keep only the input of each block
    pub recompute: bool,
    /// rows of logits held at a time by the log-prob head
    pub logits_chunk: usize,
}

impl Default for ModelOptions {
    fn default() -> Self {
        ModelOptions { dtype: DType::F32, sequence_parallel: true, recompute: false, logits_chunk: 2048 }
    }
}

/// A whole model on one tensor-parallel rank: what trainer and engine both hold.
pub struct Model {
    be: Arc<dyn Backend>,
    tp: Arc<dyn Comm>,
    config: ModelConfig,
    options: ModelOptions,
    stage: Stage,
    params: ParamStore,
    rope: RopeTable,
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model").field("config", &self.config).field("options", &self.options).finish_non_exhaustive()
    }
}

/// A forward pass over packed sequences, between its parts.
#[derive(Debug)]
pub struct Pass<'a> {
    layout: &'a SeqLayout,
    ids: Tensor,
    hidden: Tensor,
    saved: Saved,
    head: Option<(Tensor, Saved)>,
}

impl Pass<'_> {
    /// `[T, H]` after the final norm; `[T / tp, H]` under sequence parallelism.
    pub fn hidden(&self) -> &Tensor {
        &self.hidden
    }

    /// Bytes of activations kept for the backward pass.
    pub fn saved_bytes(&self) -> usize {
        self.saved.bytes() + self.head.as_ref().map_or(0, |h| h.1.bytes())
    }
}

/// Per asked-for row, nats.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LogProbs {
    pub logp: Vec<f32>,
    pub entropy: Vec<f32>,
}

/// Logits of some rows of a cached step.
#[derive(Clone, Debug)]
pub struct Logits {
    /// `[n, V / tp]`, for log-probs
    pub local: Tensor,
    /// `[n, V]`, for sampling
    pub full: Tensor,
}

impl Model {
    /// Weights are zero until [`Model::init_random`] or a load fills [`Model::params`].
    pub fn new(be: Arc<dyn Backend>, tp: Arc<dyn Comm>, config: ModelConfig, options: ModelOptions) -> Result<Model> {
        if !be.caps().compute.contains(&options.dtype) {
            return Err(Error::Call(format!("the {} backend does not compute in {:?}", be.caps().name, options.dtype)));
        }
        let stage = Stage::new(&config, StageRange::whole(&config), options.logits_chunk, options.recompute)?;
        let params = ParamStore::new(&*be, stage.specs().to_vec(), options.dtype, tp.rank(), tp.size())?;
        let rope = RopeTable::new(config.head_dim, config.rope_theta, config.rope_scaling, options.dtype.accumulator());
        Ok(Model { be, tp, config, options, stage, params, rope })
    }

    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    pub fn options(&self) -> &ModelOptions {
        &self.options
    }

    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.be
    }

    pub fn tp(&self) -> &Arc<dyn Comm> {
        &self.tp
    }

    pub fn stage(&self) -> &Stage {
        &self.stage
    }

    pub fn params(&self) -> &ParamStore {
        &self.params
    }

    /// Normal with std 0.02, what adds to the residual stream with 0.02 / sqrt(2 L), norms 1.
    pub fn init_random(&self, seed: u64) -> Result<()> {
        Ok(self.params.init_random(&*self.be, seed)?)
    }

    /// Zeroed main gradients in the layout of the parameters.
    pub fn new_grads(&self) -> Result<GradStore> {
        Ok(GradStore::new(&*self.be, &self.params)?)
    }

    /// Lay sequences of these lengths out for [`Model::forward`], padded as the layout needs.
    pub fn pack(&self, lengths: &[usize]) -> Result<SeqLayout> {
        let multiple = if self.options.sequence_parallel { self.tp.size() } else { 1 };
        Ok(SeqLayout::new(&*self.be, lengths, multiple)?)
    }

    fn cx<'a>(&'a self, layout: Layout<'a>, grads: Option<&'a GradStore>) -> Cx<'a> {
        let cached = matches!(layout, Layout::Cached(_));
        Cx {
            be: &*self.be,
            stream: Stream::COMPUTE,
            tp: &*self.tp,
            // A decode step has few rows, and any number of them: it keeps them whole on every rank.
            sequence_parallel: self.options.sequence_parallel && !cached,
            params: &self.params,
            grads,
            layout,
            rope: &self.rope,
        }
    }

    /// The layers over packed sequences. `tokens` are those of `layout` without its padding. With `keep`, what the
    /// backward pass needs stays in the pass.
    pub fn forward<'a>(&self, tokens: &[i32], layout: &'a SeqLayout, keep: bool) -> Result<Pass<'a>> {
        if tokens.len() != layout.tokens() {
            return Err(Error::Call(format!("{} tokens for a layout of {}", tokens.len(), layout.tokens())));
        }
        let ids = self.ids(tokens, layout.padded())?;
        let mut saved = if keep { Saved::keep() } else { Saved::forget() };
        let hidden = self.stage.forward(&self.cx(Layout::Packed(layout), None), ids.clone(), &mut saved)?;
        Ok(Pass { layout, ids, hidden, saved, head: None })
    }

    fn ids(&self, tokens: &[i32], padded: usize) -> Result<Tensor> {
        let vocab = self.config.vocab_size;
        if let Some(bad) = tokens.iter().find(|&&t| t < 0 || t as usize >= vocab) {
            return Err(Error::Call(format!("token id {bad} is outside of the vocabulary of {vocab}")));
        }
        let mut ids = tokens.to_vec();
        ids.resize(padded, 0);
        Ok(Tensor::from_slice(&*self.be, &ids, &[padded], Tag::Act)?)
    }

    fn head(&self) -> Result<&nn::LmHead> {
        self.stage.head().ok_or_else(|| Error::Call("this stage has no head".into()))
    }

    /// Log-prob and entropy at some rows of the pass: row `rows[i]` (a token of the layout) scores `targets[i]`, the
    /// token after it. One temperature for all rows, as sampled with.
    pub fn log_probs(&self, pass: &mut Pass, rows: &[i32], targets: &[i32], temperature: f32) -> Result<LogProbs> {
        let stats = self.token_stats(pass, rows, targets, temperature)?;
        let stats = stats.to_f64(&*self.be)?;
        let mut out = LogProbs::default();
        for r in stats.chunks_exact(4) {
            let s = TokenStats::<f32>::from_row([r[0] as f32, r[1] as f32, r[2] as f32, r[3] as f32]);
            out.logp.push(s.logp());
            out.entropy.push(s.entropy());
        }
        Ok(out)
    }

    /// As [`Model::log_probs`], the raw statistics `[n, 4]` on the device.
    pub fn token_stats(&self, pass: &mut Pass, rows: &[i32], targets: &[i32], temperature: f32) -> Result<Tensor> {
        let n = rows.len();
        if targets.len() != n {
            return Err(Error::Call(format!("{n} rows and {} targets", targets.len())));
        }
        let cx = self.cx(Layout::Packed(pass.layout), None);
        let index = Tensor::from_slice(cx.be, rows, &[n], Tag::Act)?;
        let targets = Tensor::from_slice(cx.be, targets, &[n], Tag::Act)?;
        let temperature = self.temperatures(&vec![temperature; n])?;
        let full = cx.gather_tokens(pass.hidden.clone())?;
        let h = cx.act(&[n, self.config.hidden_size])?;
        cx.be.gather_rows(cx.stream, &GatherRows { src: &full, index: &index, dst: &h })?;
        drop(full);
        let mut saved = if pass.saved.keeps() { Saved::keep() } else { Saved::forget() };
        let stats = self.head()?.forward(&cx, &h, &targets, &temperature, &mut saved)?;
        pass.head = Some((index, saved));
        Ok(stats)
    }

    fn temperatures(&self, t: &[f32]) -> Result<Tensor> {
        if let Some(bad) = t.iter().find(|t| !(t.is_finite() && **t > 0.0)) {
            return Err(Error::Call(format!("temperature {bad} must be above 0")));
        }
        let t: Vec<f64> = t.iter().map(|&x| f64::from(x)).collect();
        Ok(Tensor::from_f64(&*self.be, self.options.dtype.accumulator(), &t, &[t.len()], Tag::Act)?)
    }

    /// Adds to `grads` the gradient of `sum(dlogp * logp + dentropy * entropy)` over the rows of the last
    /// [`Model::log_probs`] of this pass. Call [`Model::finish_grads`] once after the last micro-batch.
    pub fn backward(&self, pass: Pass, dlogp: &[f32], dentropy: Option<&[f32]>, grads: &GradStore) -> Result<()> {
        let Pass { layout, ids, hidden, saved, head } = pass;
        let (index, head_saved) = head.ok_or_else(|| Error::Call("log_probs comes before backward".into()))?;
        let n = index.numel();
        if dlogp.len() != n || dentropy.is_some_and(|d| d.len() != n) {
            return Err(Error::Call(format!("{} gradients for {n} rows", dlogp.len())));
        }
        drop(hidden);
        let cx = self.cx(Layout::Packed(layout), Some(grads));
        let vector = |d: &[f32]| {
            Tensor::from_f64(cx.be, cx.acc(), &d.iter().map(|&x| f64::from(x)).collect::<Vec<_>>(), &[n], Tag::Act)
        };
        let (dlogp, dentropy) = (vector(dlogp)?, dentropy.map(vector).transpose()?);
        let dh = self.head()?.backward(&cx, &dlogp, dentropy.as_ref(), head_saved)?;
        let full = Tensor::zeros(cx.be, cx.dtype(), &[layout.padded(), self.config.hidden_size], Tag::Act)?;
        cx.be.scatter_rows(cx.stream, &ScatterRows { src: &dh, index: &index, dst: &full })?;
        drop(dh);
        let dy = cx.reduce_tokens(full)?;
        let dx = self.stage.backward(&cx, dy, saved)?;
        match self.stage.embedding() {
            Some(e) => Ok(e.backward_weight(&cx, &ids, dx)?),
            None => Ok(()),
        }
    }

    /// Sums over the tensor-parallel ranks the gradients that are partial there: norms under sequence parallelism,
    /// q and k norms always. Once per optimizer step.
    pub fn finish_grads(&self, grads: &GradStore) -> Result<()> {
        if self.tp.size() == 1 {
            return Ok(());
        }
        for (i, spec) in self.params.specs().iter().enumerate() {
            let partial = match spec.tp_grad {
                TpGrad::Complete => false,
                TpGrad::PartialIfSequenceParallel => self.options.sequence_parallel,
                TpGrad::Partial => true,
            };
            if partial {
                self.tp.all_reduce(&*self.be, Stream::COMPUTE, grads.get(nn::ParamId(i)))?;
            }
        }
        Ok(())
    }

    /// A cache of `pages` pages for this rank's heads.
    pub fn new_kv_cache(&self, pages: usize) -> Result<KvCache> {
        let heads = self.config.kv_heads / self.tp.size();
        Ok(KvCache::new(&*self.be, self.config.layers, pages, heads, self.config.head_dim, self.options.dtype)?)
    }

    /// Lay out a cached step for [`Model::step`].
    pub fn batch(&self, seqs: &[nn::KvSeq]) -> Result<KvBatch> {
        Ok(KvBatch::new(&*self.be, seqs)?)
    }

    /// One cached step, decode or prefill or both mixed: writes the new tokens' keys and values, and gives the logits
    /// of the rows asked for (indices into `tokens`).
    pub fn step(&self, tokens: &[i32], batch: &KvBatch, cache: &KvCache, rows: &[i32]) -> Result<Logits> {
        if tokens.len() != batch.tokens() {
            return Err(Error::Call(format!("{} tokens for a batch of {}", tokens.len(), batch.tokens())));
        }
        let cx = self.cx(Layout::Cached(KvView { cache, batch }), None);
        let hidden = self.stage.forward(&cx, self.ids(tokens, tokens.len())?, &mut Saved::forget())?;
        let index = Tensor::from_slice(cx.be, rows, &[rows.len()], Tag::Act)?;
        let h = cx.act(&[rows.len(), self.config.hidden_size])?;
        cx.be.gather_rows(cx.stream, &GatherRows { src: &hidden, index: &index, dst: &h })?;
        let head = self.head()?;
        let local = head.local_logits(&cx, &h)?;
        let full = head.gather_logits(&cx, &local)?;
        Ok(Logits { local, full })
    }

    /// Statistics of one target per row of logits, each at its own temperature; `.logp()` has the bits of
    /// [`Model::log_probs`].
    pub fn logits_stats(&self, logits: &Logits, targets: &[i32], temperatures: &[f32]) -> Result<Vec<TokenStats>> {
        let n = logits.local.dim(0);
        if targets.len() != n || temperatures.len() != n {
            return Err(Error::Call(format!(
                "{} targets, {} temperatures for {n} rows",
                targets.len(),
                temperatures.len()
            )));
        }
        // Any layout will do: the head does not look at it.
        let empty = SeqLayout::new(&*self.be, &[], 1)?;
        let cx = self.cx(Layout::Packed(&empty), None);
        let targets = Tensor::from_slice(cx.be, targets, &[n], Tag::Act)?;
        let stats = self.head()?.stats(&cx, &logits.local, &targets, &self.temperatures(temperatures)?)?;
        let stats = stats.to_f64(&*self.be)?;
        Ok(stats
            .chunks_exact(4)
            .map(|r| TokenStats::<f32>::from_row([r[0] as f32, r[1] as f32, r[2] as f32, r[3] as f32]))
            .collect())
    }

    /// One token per row of logits.
    pub fn sample(&self, logits: &Logits, params: &[SampleParams]) -> Result<Vec<i32>> {
        let tokens = Tensor::empty(&*self.be, DType::I32, &[logits.full.dim(0)], Tag::Work)?;
        self.be.sample(Stream::COMPUTE, &Sample { logits: &logits.full, params, tokens: &tokens })?;
        Ok(tokens.to_vec(&*self.be)?)
    }
}
