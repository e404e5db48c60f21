//! A converted batch as its ranks see it: each reads the rows of its own samples and packs them.

use control::wire::{BatchMeta, Phase, TrainOrder, UpdatePlan};
use straw::{Ref, Store};

use crate::error::Error;

/// What every rank reads of a batch: everything that has one number a sample.
pub struct Batch {
    store: Store,
    at: Ref,
    /// Objective and step.
    pub meta: BatchMeta,
    cu_tokens: Vec<i64>,
    cu_response: Vec<i64>,
    advantages: Vec<f32>,
    rollout_mask_sum: Vec<i64>,
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
    /// Opens the batch of an order and checks that it is what the order says.
    ///
    /// # Errors
    /// [`Error::Batch`] for a batch that contradicts itself or the order, [`Error::Straw`] for one that cannot be read.
    pub fn open(store: &Store, order: &TrainOrder) -> Result<Self, Error> {
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
        let batch = Self {
            cu_tokens: store.read_rows(&at, "cu_tokens", 0..n + 1)?.to_vec()?,
            cu_response: store.read_rows(&at, "cu_response", 0..n + 1)?.to_vec()?,
            advantages: store.read_rows(&at, "advantages", 0..n)?.to_vec()?,
            rollout_mask_sum: store.read_rows(&at, "rollout_mask_sum", 0..n)?.to_vec()?,
            store: store.clone(),
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
        Ok(batch)
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

    /// Reads and packs the samples of a micro-batch, in the order given.
    ///
    /// # Errors
    /// [`Error::Straw`]; [`Error::Batch`] for values no sampler gives.
    pub fn pack(&self, samples: &[u32]) -> Result<Packed, Error> {
        let mut packed = Packed { cu_seqlens: vec![0], ..Packed::default() };
        for &sample in samples {
            self.add(sample as usize, &mut packed)?;
        }
        Ok(packed)
    }

    fn add(&self, i: usize, packed: &mut Packed) -> Result<(), Error> {
        let response = self.cu_response[i] as u64..self.cu_response[i + 1] as u64;
        let mask: Vec<u8> = self.store.read_rows(&self.at, "loss_mask", response.clone())?.to_vec()?;
        if mask.iter().all(|m| *m == 0) {
            return Ok(());
        }
        let tokens = self.cu_tokens[i] as u64..self.cu_tokens[i + 1] as u64;
        let tokens: Vec<i32> = self.store.read_rows(&self.at, "tokens", tokens)?.to_vec()?;
        let (log_probs, versions): (Vec<f32>, Vec<i64>) = if self.meta.phase == Phase::Rl {
            (
                self.store.read_rows(&self.at, "rollout_log_probs", response.clone())?.to_vec()?,
                self.store.read_rows(&self.at, "versions", response)?.to_vec()?,
            )
        } else {
            (vec![0.0; mask.len()], vec![0; mask.len()])
        };
        let start = packed.tokens.len();
        let prompt = tokens.len() - mask.len();
        for t in (0..mask.len()).filter(|t| mask[*t] != 0) {
            if !log_probs[t].is_finite() {
                let what = format!("response token {t} of sample {i} has rollout log-prob {}", log_probs[t]);
                return Err(Error::Batch { batch: named(&self.at), what });
            }
            packed.rows.push((start + prompt + t - 1) as i32);
            packed.targets.push(tokens[prompt + t]);
            packed.rollout_log_probs.push(log_probs[t]);
            packed.versions.push(versions[t]);
            packed.advantage.push(f64::from(self.advantages[i]));
            packed.rollout_mask_sum.push(self.rollout_mask_sum[i].max(0) as u64);
        }
        packed.tokens.extend_from_slice(&tokens);
        packed.cu_seqlens.push(packed.tokens.len());
        Ok(())
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
