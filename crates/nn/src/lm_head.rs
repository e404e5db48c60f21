//! The vocab-parallel head: logits for sampling, and log-probs with entropies that never hold more than one chunk of
//! logits. The backward pass computes a chunk again, unless all of it fitted into one and was kept.
//!
//! Rows are gathered before the head: only positions that carry a loss pay for it.

use tensor::ops::{LogprobDlogits, LogprobMerge, LogprobStats};
use tensor::{Tag, Tensor};

use crate::{Cx, ParamId, Result, Saved, blocks, linear};

#[derive(Debug)]
pub struct LmHead {
    /// `[V, H]`, vocabulary cut; the embedding's when tied
    pub weight: ParamId,
    /// rows of logits held at a time
    pub chunk: usize,
}

const H: usize = 0;
const LOGITS: usize = 1;
const TARGETS: usize = 2;
const TEMPERATURE: usize = 3;
const STATS: usize = 4;
const NAME: &str = "LmHead";
/// Shortest block of the vocabulary.
const BLOCK: usize = 16;

impl LmHead {
    fn first(&self, cx: &Cx) -> usize {
        cx.params.layout().entries[self.weight.0].rect.offset[0]
    }

    /// This rank's columns of the logits, `[n, V / tp]`, of the rows `h [n, H]`.
    pub fn local_logits(&self, cx: &Cx, h: &Tensor) -> Result<Tensor> {
        linear::forward(cx, h, cx.param(self.weight))
    }

    /// All columns on every rank, `[n, V]`.
    pub fn gather_logits(&self, cx: &Cx, local: &Tensor) -> Result<Tensor> {
        let (tp, n) = (cx.tp.size(), local.dim(0));
        if tp == 1 {
            return Ok(local.clone());
        }
        // Shards may differ in width, so every rank sends the width of the first.
        let vocab = cx.params.specs()[self.weight.0].shape[0];
        let part = vocab.div_ceil(tp);
        let padded = Tensor::zeros(cx.be, local.dtype(), &[n, part], Tag::Work)?;
        cx.be.copy(cx.stream, &padded.narrow(1, 0, local.dim(1))?, local)?;
        let all = Tensor::empty(cx.be, local.dtype(), &[tp, n, part], Tag::Work)?;
        cx.tp.all_gather(cx.stream, &padded, &all)?;
        let out = cx.act(&[n, vocab])?;
        for r in 0..tp {
            let width = part.min(vocab - r * part);
            let src = all.select(0, r)?.narrow(1, 0, width)?;
            cx.be.copy(cx.stream, &out.narrow(1, r * part, width)?, &src)?;
        }
        Ok(out)
    }

    /// [`tensor::ops::TokenStats`] rows `[n, 4]`, folded in pairs over blocks of the vocabulary. The one way from logits
    /// to a log-prob, for trainer and engine. `targets [n]` i32, `temperature [n]`.
    pub fn stats(&self, cx: &Cx, local_logits: &Tensor, targets: &Tensor, temperature: &Tensor) -> Result<Tensor> {
        let (n, width, ranks) = (local_logits.dim(0), local_logits.dim(1), cx.tp.size());
        let vocab = cx.params.specs()[self.weight.0].shape[0];
        // With unequal shards the blocks of one rank are not those of another.
        let count = if width * ranks == vocab { blocks::on_each_rank(vocab, ranks, BLOCK) } else { 1 };
        let width = width / count;
        let parts = cx.stat(&[count, n, 4])?;
        for i in 0..count {
            let logits = &local_logits.narrow(1, i * width, width)?;
            let stats = &parts.select(0, i)?;
            let args = LogprobStats { logits, targets, first: self.first(cx) + i * width, temperature, stats };
            cx.be.logprob_stats(cx.stream, &args)?;
        }
        let stats = self.merged(cx, parts)?;
        if ranks == 1 {
            return Ok(stats);
        }
        let parts = cx.stat(&[ranks, n, 4])?;
        cx.tp.all_gather(cx.stream, &stats, &parts)?;
        self.merged(cx, parts)
    }

    /// `[parts, n, 4]` to `[n, 4]`
    fn merged(&self, cx: &Cx, parts: Tensor) -> Result<Tensor> {
        if parts.dim(0) == 1 {
            return Ok(parts.select(0, 0)?);
        }
        let stats = cx.stat(&parts.dims()[1..])?;
        cx.be.logprob_merge(cx.stream, &LogprobMerge { parts: &parts, stats: &stats })?;
        Ok(stats)
    }

    /// Statistics `[n, 4]` of the rows `h [n, H]`, chunk by chunk.
    pub fn forward(
        &self,
        cx: &Cx,
        h: &Tensor,
        targets: &Tensor,
        temperature: &Tensor,
        sv: &mut Saved,
    ) -> Result<Tensor> {
        let n = h.dim(0);
        let stats = if n <= self.chunk {
            let logits = self.local_logits(cx, h)?;
            let stats = self.stats(cx, &logits, targets, temperature)?;
            sv.put(LOGITS, &logits);
            stats
        } else {
            let stats = cx.stat(&[n, 4])?;
            for (at, len) in chunks(n, self.chunk) {
                let logits = self.local_logits(cx, &h.narrow(0, at, len)?)?;
                let part = self.stats(cx, &logits, &targets.narrow(0, at, len)?, &temperature.narrow(0, at, len)?)?;
                cx.be.copy(cx.stream, &stats.narrow(0, at, len)?, &part)?;
            }
            stats
        };
        for (slot, t) in [(H, h), (TARGETS, targets), (TEMPERATURE, temperature), (STATS, &stats)] {
            sv.put(slot, t);
        }
        Ok(stats)
    }

    /// `dh [n, H]` from `dlogp [n]` and `dentropy [n]`; adds the weight gradient. The result is this rank's part of a
    /// sum over the tensor-parallel ranks.
    pub fn backward(&self, cx: &Cx, dlogp: &Tensor, dentropy: Option<&Tensor>, mut sv: Saved) -> Result<Tensor> {
        let (h, targets) = (sv.take(H, NAME, "h")?, sv.take(TARGETS, NAME, "targets")?);
        let (temperature, stats) = (sv.take(TEMPERATURE, NAME, "temperature")?, sv.take(STATS, NAME, "stats")?);
        let kept = sv.take(LOGITS, NAME, "logits").ok();
        let n = h.dim(0);
        let dh = cx.act(h.dims())?;
        for (at, len) in chunks(n, self.chunk) {
            let rows = h.narrow(0, at, len)?;
            let logits = match &kept {
                Some(l) => l.clone(),
                None => self.local_logits(cx, &rows)?,
            };
            let dentropy = dentropy.map(|d| d.narrow(0, at, len)).transpose()?;
            let args = LogprobDlogits {
                logits: &logits,
                targets: &targets.narrow(0, at, len)?,
                first: self.first(cx),
                temperature: &temperature.narrow(0, at, len)?,
                stats: &stats.narrow(0, at, len)?,
                dlogp: &dlogp.narrow(0, at, len)?,
                dentropy: dentropy.as_ref(),
            };
            cx.be.logprob_dlogits(cx.stream, &args)?;
            let part = linear::grad_input(cx, &logits, cx.param(self.weight))?;
            cx.be.copy(cx.stream, &dh.narrow(0, at, len)?, &part)?;
            linear::grad_weight(cx, &logits, &rows, self.weight)?;
        }
        Ok(dh)
    }
}

/// `(start, length)` of each chunk.
fn chunks(n: usize, chunk: usize) -> impl Iterator<Item = (usize, usize)> {
    let chunk = chunk.max(1);
    (0..n.div_ceil(chunk)).map(move |i| (i * chunk, chunk.min(n - i * chunk)))
}
