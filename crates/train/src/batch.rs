//! A converted batch as its ranks see it: each reads the rows of its own samples, in few reads, and packs them.

use std::ops::Range;

use control::wire::{BatchMeta, Phase, TrainOrder, UpdatePlan};
use straw::{BLOCK_BYTES, Element, ReadAhead, Ref, Store, Tensor};

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
        let ahead = Ahead::start(store, &at)?;
        ahead.want::<i64>("cu_tokens", 0..n + 1);
        ahead.want::<i64>("cu_response", 0..n + 1);
        ahead.want::<f32>("advantages", 0..n);
        ahead.want::<i64>("rollout_mask_sum", 0..n);
        let mut batch = Self {
            cu_tokens: ahead.take()?,
            cu_response: ahead.take()?,
            advantages: ahead.take()?,
            rollout_mask_sum: ahead.take()?,
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
        let tokens = Spans::<i32>::want(&ahead, "tokens", &tokens);
        let loss_mask = Spans::<u8>::want(&ahead, "loss_mask", &responses);
        let rollout = (batch.meta.phase == Phase::Rl).then(|| {
            let log_probs = Spans::<f32>::want(&ahead, "rollout_log_probs", &responses);
            (log_probs, Spans::<i64>::want(&ahead, "versions", &responses))
        });
        batch.tokens = tokens.take(&ahead)?;
        batch.loss_mask = loss_mask.take(&ahead)?;
        if let Some((log_probs, versions)) = rollout {
            batch.rollout_log_probs = log_probs.take(&ahead)?;
            batch.versions = versions.take(&ahead)?;
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

/// Reads of one batch, side by side, in the order in which they are taken. Its threads end with it, before the batch is used.
struct Ahead {
    reads: ReadAhead<Tensor>,
    at: Ref,
}

impl Ahead {
    /// Where each read waits for a network, four wait together: eight columns of 256 KiB 3.4x as fast when each read waits 1 ms
    /// (`read_ahead` of the bench, by turns in one run). On a local disk they are read one after the other, as they are taken.
    const THREADS: usize = 4;
    /// Bytes that are read and not converted yet: two spans of some tens of MiB.
    const BYTES: u64 = 64 << 20;

    fn start(store: &Store, at: &Ref) -> Result<Self, Error> {
        let threads = if store.is_of_one_host() { 0 } else { Self::THREADS };
        Ok(Self { reads: ReadAhead::start(store, threads, Self::BYTES)?, at: at.clone() })
    }

    /// Asks for rows of a tensor of one dimension.
    fn want<T: Element>(&self, name: &'static str, rows: Range<u64>) {
        let at = self.at.clone();
        let bytes = rows.end.saturating_sub(rows.start).saturating_mul(size_of::<T>() as u64);
        self.reads.want(bytes, move |store| store.read_rows(&at, name, rows));
    }

    /// What was asked first.
    fn take<T: Element>(&self) -> Result<Vec<T>, Error> {
        match self.reads.take() {
            Some(read) => Ok(read?.to_vec()?),
            None => unreachable!("what is taken was asked for"),
        }
    }
}

/// Where the spans of a column begin that were asked for.
struct Spans<T> {
    starts: Vec<u64>,
    of: std::marker::PhantomData<T>,
}

impl<T: Element> Spans<T> {
    /// Asks for `wanted` (ascending). Rows between two of them are read too when skipping them would save no block.
    fn want(ahead: &Ahead, name: &'static str, wanted: &[Range<u64>]) -> Self {
        let near = BLOCK_BYTES / size_of::<T>() as u64;
        let mut spans: Vec<Range<u64>> = Vec::new();
        for range in wanted {
            match spans.last_mut() {
                Some(last) if range.start <= last.end + near => last.end = last.end.max(range.end),
                _ => spans.push(range.clone()),
            }
        }
        let starts = spans.iter().map(|span| span.start).collect();
        spans.into_iter().for_each(|span| ahead.want::<T>(name, span));
        Self { starts, of: std::marker::PhantomData }
    }

    fn take(self, ahead: &Ahead) -> Result<Column<T>, Error> {
        let read = |start| Ok((start, ahead.take()?));
        Ok(Column { spans: self.starts.into_iter().map(read).collect::<Result<_, Error>>()? })
    }
}

impl<T> Column<T> {
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

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use straw::{Fs, RealFs, Record, SimFs};

    use super::*;

    const SAMPLES: u64 = 40;
    const RESPONSE: i32 = 3000;

    /// Samples that are longer than a block together, so that some ranks' rows are read as several spans.
    fn write(store: &Store) -> Ref {
        let range = |end: i32| (0..end).collect::<Vec<i32>>();
        let rows = SAMPLES as i32 * RESPONSE;
        let t = |v: Vec<i64>| Tensor::from_vec(&[v.len() as u64], v).unwrap();
        let cu = |each: i64| (0..=SAMPLES as i64).map(|i| i * each).collect::<Vec<_>>();
        let meta = BatchMeta { phase: Phase::Rl, step: 3, samples: SAMPLES };
        let record = Record::new(serde_json::to_vec(&meta).unwrap())
            .with("tokens", Tensor::from_vec(&[2 * rows as u64], range(2 * rows)).unwrap())
            .with("cu_tokens", t(cu(2 * i64::from(RESPONSE))))
            .with("cu_response", t(cu(i64::from(RESPONSE))))
            .with(
                "loss_mask",
                Tensor::from_vec(&[rows as u64], range(rows).iter().map(|i| u8::from(i % 7 != 0)).collect()).unwrap(),
            )
            .with(
                "rollout_log_probs",
                Tensor::from_vec(&[rows as u64], range(rows).iter().map(|i| -(*i as f32)).collect()).unwrap(),
            )
            .with("versions", t(range(rows).into_iter().map(i64::from).collect()))
            .with(
                "advantages",
                Tensor::from_vec(&[SAMPLES], range(SAMPLES as i32).iter().map(|i| *i as f32).collect()).unwrap(),
            )
            .with("rollout_mask_sum", t((0..SAMPLES as i64).collect()));
        store.writer("test").unwrap().publish("batch", &[record]).unwrap().remove(0)
    }

    #[test]
    fn a_batch_that_is_read_by_threads_is_the_same_as_one_that_is_not() {
        let micro_batches = vec![vec![vec![0, 1], vec![17, 39]], vec![vec![2], vec![30, 31, 3]]];
        let dir = tempfile::tempdir().unwrap();
        let packed = |fs: Arc<dyn Fs>, path: &std::path::Path| {
            let store = Store::open(fs, path).unwrap();
            let order = TrainOrder {
                phase: Phase::Rl,
                step: 3,
                replay: false,
                batch: write(&store),
                updates: vec![UpdatePlan { rollouts: 40, loss_tokens: 1, micro_batches: micro_batches.clone() }],
                version_digests: BTreeMap::new(),
            };
            let ranks = micro_batches.iter().enumerate().map(|(rank, mine)| {
                let batch = Batch::open(&store, &order, rank).unwrap();
                mine.iter().map(|samples| batch.pack(samples).unwrap()).collect::<Vec<_>>()
            });
            (store.is_of_one_host(), ranks.collect::<Vec<_>>())
        };
        // Of a simulated volume it is not known what it is, as of any share.
        let (_, local) = packed(RealFs::new(), dir.path());
        let (of_one_host, shared) = packed(Arc::new(SimFs::new(1)), std::path::Path::new("/packs"));
        assert!(!of_one_host, "it is read by threads");
        assert_eq!(shared, local);
        let last = &local[1][1];
        assert_eq!(last.cu_seqlens, [0, 6000, 12000, 18000]);
        assert_eq!((last.tokens[0], last.tokens[12000]), (30 * 6000, 3 * 6000));
        assert!(last.advantage.ends_with(&[3.0]) && last.advantage.starts_with(&[30.0]));
    }
}
