//! A converted batch as its ranks see it: each reads the rows of its own samples, in few reads, and packs them.

use std::ops::Range;

use control::wire::{BatchMeta, Phase, TrainOrder, UpdatePlan};
use straw::{BLOCK_BYTES, Element, Ref, Store};

use crate::error::Error;

/// What a rank reads of a batch: one number a sample of everything, and the tokens of its own samples.
pub struct Batch {
    at: Ref,
    /// Objective and step.
    pub meta: BatchMeta,
    cu_tokens: Vec<i64>,
    cu_response: Vec<i64>,
    advantages: Vec<f32>,
    rollout_mask_sum: Vec<i64>,
    tokens: Column<i32>,
    loss_mask: Column<u8>,
    rollout_log_probs: Column<f32>,
    versions: Column<i64>,
}

/// Samples of one micro-batch, packed: tokens one after the other, response rows one after the other. Only response tokens
/// under the mask have a row, and samples without any are left out: neither can change anything but the time it takes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Packed {
    /// Token ids, `[T]`.
    pub tokens: Vec<i32>,
    /// Where each sample starts, `[samples + 1]`.
    pub cu_seqlens: Vec<usize>,
    /// For each learnt token, the place in `tokens` of the one before it, whose hidden state predicts it, `[R]`.
    pub rows: Vec<i32>,
    /// The learnt tokens, `[R]`.
    pub targets: Vec<i32>,
    /// Log-probs recorded by the sampler, `[R]`, nats.
    pub rollout_log_probs: Vec<f32>,
    /// Weight versions the tokens were sampled with, `[R]`.
    pub versions: Vec<i64>,
    /// Advantage of each token, `[R]`.
    pub advantage: Vec<f64>,
    /// Unmasked tokens of each token's whole rollout, `[R]`.
    pub rollout_mask_sum: Vec<u64>,
}

impl Batch {
    /// Reads what rank `dp_rank` learns of the batch of an order, and checks that it is what the order says.
    ///
    /// # Errors
    /// [`Error::Batch`] for a batch that contradicts itself or the order, [`Error::Straw`] for one that cannot be read.
    pub fn open(store: &Store, order: &TrainOrder, dp_rank: usize) -> Result<Self, Error> {
        let at = order.batch.clone();
        let bad = |what: String| Error::Batch { batch: named(&at), what };
        let meta: BatchMeta = serde_json::from_slice(&store.read_meta(&at)?)
            .map_err(|e| bad(format!("its meta is not a BatchMeta: {e}")))?;
        if (meta.phase, meta.step) != (order.phase, order.step) {
            return Err(bad(format!(
                "it is of {:?} step {}, but ordered for {:?} step {}",
                meta.phase, meta.step, order.phase, order.step
            )));
        }
        let n = meta.samples;
        let mut batch = Self {
            cu_tokens: store.read_rows(&at, "cu_tokens", 0..n + 1)?.to_vec()?,
            cu_response: store.read_rows(&at, "cu_response", 0..n + 1)?.to_vec()?,
            advantages: store.read_rows(&at, "advantages", 0..n)?.to_vec()?,
            rollout_mask_sum: store.read_rows(&at, "rollout_mask_sum", 0..n)?.to_vec()?,
            tokens: Column::default(),
            loss_mask: Column::default(),
            rollout_log_probs: Column::default(),
            versions: Column::default(),
            at: at.clone(),
            meta,
        };
        for i in 0..n as usize {
            let (tokens, response) = (batch.len(&batch.cu_tokens, i), batch.len(&batch.cu_response, i));
            if batch.cu_tokens[0] != 0 || batch.cu_response[0] != 0 || response < 0 || tokens <= response {
                return Err(bad(format!("sample {i} has {tokens} tokens of which {response} are its response")));
            }
            if !batch.advantages[i].is_finite() {
                return Err(bad(format!("sample {i} has advantage {}", batch.advantages[i])));
            }
        }
        for (u, update) in order.updates.iter().enumerate() {
            batch.check_update(u, update).map_err(bad)?;
        }
        let mut mine: Vec<usize> = order
            .updates
            .iter()
            .filter_map(|update| update.micro_batches.get(dp_rank))
            .flatten()
            .flatten()
            .map(|sample| *sample as usize)
            .collect();
        mine.sort_unstable();
        let tokens: Vec<_> = mine.iter().map(|i| batch.tokens_of(*i)).collect();
        let responses: Vec<_> = mine.iter().map(|i| batch.response_of(*i)).collect();
        batch.tokens = Column::read(store, &at, "tokens", &tokens)?;
        batch.loss_mask = Column::read(store, &at, "loss_mask", &responses)?;
        if batch.meta.phase == Phase::Rl {
            batch.rollout_log_probs = Column::read(store, &at, "rollout_log_probs", &responses)?;
            batch.versions = Column::read(store, &at, "versions", &responses)?;
        }
        Ok(batch)
    }

    fn tokens_of(&self, sample: usize) -> Range<u64> {
        self.cu_tokens[sample] as u64..self.cu_tokens[sample + 1] as u64
    }

    fn response_of(&self, sample: usize) -> Range<u64> {
        self.cu_response[sample] as u64..self.cu_response[sample + 1] as u64
    }

    fn check_update(&self, u: usize, update: &UpdatePlan) -> Result<(), String> {
        let mut seen = vec![false; self.meta.samples as usize];
        for &sample in update.micro_batches.iter().flatten().flatten() {
            match seen.get_mut(sample as usize) {
                None => return Err(format!("update {u} names sample {sample} of {}", self.meta.samples)),
                Some(true) => return Err(format!("update {u} names sample {sample} twice")),
                Some(seen) => *seen = true,
            }
        }
        let count = |rank: &Vec<Vec<u32>>| rank.len();
        if update.micro_batches.iter().map(count).min() != update.micro_batches.iter().map(count).max() {
            return Err(format!("the ranks of update {u} have different numbers of micro-batches"));
        }
        Ok(())
    }

    fn len(&self, cu: &[i64], sample: usize) -> i64 {
        cu[sample + 1] - cu[sample]
    }

    /// Packs samples of this rank, in the order given.
    ///
    /// # Errors
    /// [`Error::Batch`] for values no sampler gives.
    pub fn pack(&self, samples: &[u32]) -> Result<Packed, Error> {
        let mut packed = Packed { cu_seqlens: vec![0], ..Packed::default() };
        for &sample in samples {
            self.add(sample as usize, &mut packed)?;
        }
        Ok(packed)
    }

    fn add(&self, i: usize, packed: &mut Packed) -> Result<(), Error> {
        let mask = self.loss_mask.rows(&self.response_of(i));
        if mask.iter().all(|m| *m == 0) {
            return Ok(());
        }
        let tokens = self.tokens.rows(&self.tokens_of(i));
        let rollout = (self.meta.phase == Phase::Rl).then(|| {
            let response = self.response_of(i);
            (self.rollout_log_probs.rows(&response), self.versions.rows(&response))
        });
        let start = packed.tokens.len();
        let prompt = tokens.len() - mask.len();
        for t in (0..mask.len()).filter(|t| mask[*t] != 0) {
            let (log_prob, version) = rollout.map_or((0.0, 0), |(log_probs, versions)| (log_probs[t], versions[t]));
            if !log_prob.is_finite() {
                let what = format!("response token {t} of sample {i} has rollout log-prob {log_prob}");
                return Err(Error::Batch { batch: named(&self.at), what });
            }
            packed.rows.push((start + prompt + t - 1) as i32);
            packed.targets.push(tokens[prompt + t]);
            packed.rollout_log_probs.push(log_prob);
            packed.versions.push(version);
            packed.advantage.push(f64::from(self.advantages[i]));
            packed.rollout_mask_sum.push(self.rollout_mask_sum[i].max(0) as u64);
        }
        packed.tokens.extend_from_slice(tokens);
        packed.cu_seqlens.push(packed.tokens.len());
        Ok(())
    }
}

/// Some rows of one tensor of a batch, as spans that were read at once.
struct Column<T> {
    spans: Vec<(u64, Vec<T>)>,
}

impl<T> Default for Column<T> {
    fn default() -> Self {
        Self { spans: Vec::new() }
    }
}

impl<T: Element> Column<T> {
    /// Reads `wanted` (ascending). Rows between two of them are read too when skipping them would save no block.
    fn read(store: &Store, at: &Ref, name: &str, wanted: &[Range<u64>]) -> Result<Self, Error> {
        let near = BLOCK_BYTES / size_of::<T>() as u64;
        let mut spans: Vec<Range<u64>> = Vec::new();
        for range in wanted {
            match spans.last_mut() {
                Some(last) if range.start <= last.end + near => last.end = last.end.max(range.end),
                _ => spans.push(range.clone()),
            }
        }
        let read = |span: Range<u64>| Ok((span.start, store.read_rows(at, name, span)?.to_vec()?));
        Ok(Self { spans: spans.into_iter().map(read).collect::<Result<_, Error>>()? })
    }

    /// Rows that lie in what was read; empty for others.
    fn rows(&self, range: &Range<u64>) -> &[T] {
        let after = self.spans.partition_point(|(start, _)| *start <= range.start);
        let Some((start, rows)) = after.checked_sub(1).map(|i| &self.spans[i]) else { return &[] };
        rows.get((range.start - start) as usize..(range.end - start) as usize).unwrap_or(&[])
    }
}

impl Packed {
    /// Tokens of each sample.
    #[must_use]
    pub fn lengths(&self) -> Vec<usize> {
        self.cu_seqlens.windows(2).map(|w| w[1] - w[0]).collect()
    }

    /// True when there is nothing to learn.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.targets.is_empty()
    }
}

fn named(at: &Ref) -> String {
    format!("{}@{}", at.pack, at.offset)
}
