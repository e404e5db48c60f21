//! Raw groups to one converted batch, once: rewards become advantages over `group_index`, masks become per-rollout sums.
//! Pure: the binary reads the groups and writes the batch.

use std::collections::BTreeMap;

use control::wire::{BatchMeta, Phase, SampleStatus};
use rl::{GroupAdvantage, RewardedSample};
use rollout::{Group, Sample};
use serde::{Deserialize, Serialize};
use straw::{Record, Ref, Tensor};

use crate::{Error, microbatch::Shape};

/// A batch ready to be written, and what is journaled about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Conversion {
    /// See [`BatchMeta`] for its tensors.
    pub record: Record,
    /// What the plan needs.
    pub shapes: Vec<Shape>,
    /// What people are shown.
    pub stats: BatchStats,
    /// Samples left out, by cause.
    pub left_out: BTreeMap<&'static str, u64>,
}

/// A converted batch as the journal knows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Converted {
    /// Where it lies.
    pub batch: Ref,
    /// Tokens of each sample.
    pub tokens: Vec<u32>,
    /// Tokens under the mask of each sample.
    pub loss_tokens: Vec<u32>,
    /// Rollout of each sample, as differences to the one before (they rise slowly, and small numbers are short).
    pub rollout_ids: Vec<u64>,
    /// What people are shown.
    pub stats: BatchStats,
}

impl Converted {
    /// Of a conversion that was written to `batch`.
    #[must_use]
    pub fn new(batch: Ref, shapes: &[Shape], stats: BatchStats) -> Self {
        let before = std::iter::once(0).chain(shapes.iter().map(|shape| shape.rollout_id));
        Self {
            batch,
            tokens: shapes.iter().map(|shape| shape.tokens).collect(),
            loss_tokens: shapes.iter().map(|shape| shape.loss_tokens).collect(),
            rollout_ids: shapes
                .iter()
                .zip(before)
                .map(|(shape, before)| shape.rollout_id.wrapping_sub(before))
                .collect(),
            stats,
        }
    }

    /// What the plan needs.
    #[must_use]
    pub fn shapes(&self) -> Vec<Shape> {
        let mut rollout_id = 0u64;
        let tokens = self.tokens.iter().zip(&self.loss_tokens);
        tokens
            .zip(&self.rollout_ids)
            .map(|((tokens, loss_tokens), difference)| {
                rollout_id = rollout_id.wrapping_add(*difference);
                Shape { tokens: *tokens, loss_tokens: *loss_tokens, rollout_id }
            })
            .collect()
    }
}

/// Figures of a batch that do not depend on how it is trained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BatchStats {
    /// Samples in it.
    pub samples: u64,
    /// Samples left out because they failed or did not hold together.
    pub left_out: u64,
    /// Mean raw reward.
    pub reward: f64,
    /// Population standard deviation of it.
    pub reward_std: f64,
    /// Share of groups whose rewards are all alike.
    pub zero_std_groups: f64,
    /// Mean response length, tokens.
    pub response_len: f64,
    /// Share of truncated samples.
    pub truncated: f64,
    /// Prompt and response tokens.
    pub tokens: u64,
    /// Response tokens.
    pub response_tokens: u64,
}

/// Rollout ids of a group's samples are `group_index * SAMPLES_MAX + index`.
pub const SAMPLES_MAX: u64 = 1024;

/// The batch of RL step `step`, for a trainer that computes at `temperature`. Samples that failed, whose parts do not fit
/// together, or that were drawn at another temperature (their log-probs are of another distribution), take no part: neither
/// in the baseline of their group nor in the loss.
///
/// # Errors
/// When no sample is usable, or a tensor cannot be made.
pub fn rl_batch(step: u64, groups: &[Group], advantage: GroupAdvantage, temperature: f64) -> Result<Conversion, Error> {
    let bad = |what: String| Error::Conversion { step: format!("step {step}"), what };
    let mut rows = Rows::default();
    let mut rewarded = Vec::new();
    let mut left_out = BTreeMap::new();
    for group in groups {
        for sample in &group.samples {
            if let Err(cause) = usable(sample, temperature) {
                *left_out.entry(cause).or_insert(0) += 1;
                continue;
            }
            let rollout_id = group.group_index * SAMPLES_MAX + u64::from(sample.meta.index);
            rewarded.push(RewardedSample {
                group_index: group.group_index,
                rollout_id,
                reward: Some(sample.meta.reward),
            });
            rows.push(group.group_index, rollout_id, sample);
        }
    }
    if rewarded.is_empty() {
        return Err(bad(format!("none of {} samples is usable: {left_out:?}", left_out.values().sum::<u64>())));
    }
    let advantages = advantage.advantages(&rewarded).map_err(|error| bad(error.to_string()))?;
    let n = rewarded.len() as f64;
    let rewards: Vec<f64> = rewarded.iter().filter_map(|sample| sample.reward).collect();
    let mean = rewards.iter().sum::<f64>() / n;
    let zero = advantages.groups.iter().filter(|group| group.zero_variance).count();
    let stats = BatchStats {
        samples: rewarded.len() as u64,
        left_out: left_out.values().sum(),
        reward: mean,
        reward_std: (rewards.iter().map(|r| (r - mean) * (r - mean)).sum::<f64>() / n).sqrt(),
        zero_std_groups: zero as f64 / advantages.groups.len().max(1) as f64,
        response_len: rows.mask.len() as f64 / n,
        truncated: rows.truncated as f64 / n,
        tokens: rows.tokens.len() as u64,
        response_tokens: rows.mask.len() as u64,
    };
    rows.advantages = advantages.values.iter().map(|value| *value as f32).collect();
    let made = rows.into_conversion(Phase::Rl, step, stats).map_err(|error| bad(error.to_string()))?;
    Ok(Conversion { left_out, ..made })
}

/// A row to imitate, as tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WarmRow {
    /// Row of the data set.
    pub row: u64,
    /// Not learnt.
    pub prompt: Vec<u32>,
    /// Learnt; with its end-of-sequence token.
    pub response: Vec<u32>,
}

/// The batch of warm-start update `step`.
///
/// # Errors
/// When there is nothing to learn in it, or a tensor cannot be made.
pub fn warm_batch(step: u64, rows: &[WarmRow]) -> Result<Conversion, Error> {
    let bad = |what: String| Error::Conversion { step: format!("warm-start update {step}"), what };
    let mut batch = Rows::default();
    for (position, row) in (0u64..).zip(rows) {
        batch.tokens.extend(row.prompt.iter().chain(&row.response).map(|token| *token as i32));
        batch.mask.extend(std::iter::repeat_n(1, row.response.len()));
        batch.end_of_sample(row.row, position, row.response.len(), (row.prompt.len() + row.response.len()) as u32);
        batch.log_probs.extend(std::iter::repeat_n(0.0, row.response.len()));
        batch.versions.extend(std::iter::repeat_n(0, row.response.len()));
        batch.rewards.push(0.0);
        batch.advantages.push(0.0);
    }
    if batch.mask.is_empty() {
        return Err(bad("its rows have no response tokens".to_owned()));
    }
    let n = rows.len() as f64;
    let stats = BatchStats {
        samples: rows.len() as u64,
        response_len: batch.mask.len() as f64 / n,
        tokens: batch.tokens.len() as u64,
        response_tokens: batch.mask.len() as u64,
        ..BatchStats::default()
    };
    batch.into_conversion(Phase::WarmStart, step, stats).map_err(|error| bad(error.to_string()))
}

/// Why a sample must not be learnt from at `temperature`.
fn usable(sample: &Sample, temperature: f64) -> Result<(), &'static str> {
    let response = sample.response_len;
    let covered =
        sample.meta.versions.iter().try_fold(0u32, |at, span| (span.start == at && span.end > at).then_some(span.end));
    match sample.meta.status {
        SampleStatus::Failed => Err("failed"),
        _ if !sample.meta.reward.is_finite() => Err("reward is not finite"),
        _ if response == 0 || response > sample.tokens.len() => Err("no response"),
        _ if sample.log_probs.len() > response => Err("more log-probs than ids"),
        _ if sample.log_probs.len() < response => Err("fewer log-probs than ids"),
        _ if sample.loss_mask.len() != response => Err("a mask of another length"),
        _ if (sample.meta.temperature - temperature).abs() > 1e-9 => Err("drawn at another temperature"),
        _ if covered.map(|end| end as usize) != Some(response) => Err("versions do not cover the response"),
        _ if sample.log_probs.iter().any(|log_prob| !log_prob.is_finite()) => Err("log-prob is not finite"),
        _ if !sample.loss_mask.contains(&1) => Err("nothing under the mask"),
        _ => Ok(()),
    }
}

#[derive(Default)]
struct Rows {
    shapes: Vec<Shape>,
    tokens: Vec<i32>,
    cu_tokens: Vec<i64>,
    cu_response: Vec<i64>,
    mask: Vec<u8>,
    log_probs: Vec<f32>,
    versions: Vec<i64>,
    advantages: Vec<f32>,
    rewards: Vec<f32>,
    group_index: Vec<i64>,
    rollout_id: Vec<i64>,
    truncated: u64,
}

impl Rows {
    fn push(&mut self, group_index: u64, rollout_id: u64, sample: &Sample) {
        self.tokens.extend(sample.tokens.iter().map(|token| *token as i32));
        let masked: u32 = sample.loss_mask.iter().map(|m| u32::from(*m != 0)).sum();
        self.mask.extend(sample.loss_mask.iter().map(|m| u8::from(*m != 0)));
        self.end_of_sample(group_index, rollout_id, masked as usize, sample.tokens.len() as u32);
        self.log_probs.extend(&sample.log_probs);
        for span in &sample.meta.versions {
            self.versions.extend((span.start..span.end).map(|_| span.version as i64));
        }
        self.rewards.push(sample.meta.reward as f32);
        self.truncated += u64::from(sample.meta.status == SampleStatus::Truncated);
    }

    fn end_of_sample(&mut self, group_index: u64, rollout_id: u64, loss_tokens: usize, tokens: u32) {
        self.cu_tokens.push(self.tokens.len() as i64);
        self.cu_response.push(self.mask.len() as i64);
        self.group_index.push(group_index as i64);
        self.rollout_id.push(rollout_id as i64);
        self.shapes.push(Shape { tokens, loss_tokens: loss_tokens as u32, rollout_id });
    }

    fn into_conversion(mut self, phase: Phase, step: u64, stats: BatchStats) -> straw::Result<Conversion> {
        let n = self.shapes.len() as u64;
        let mut sums = BTreeMap::<u64, i64>::new();
        for shape in &self.shapes {
            *sums.entry(shape.rollout_id).or_default() += i64::from(shape.loss_tokens);
        }
        let mask_sums: Vec<i64> =
            self.shapes.iter().map(|shape| sums.get(&shape.rollout_id).copied().unwrap_or(0)).collect();
        self.cu_tokens.insert(0, 0);
        self.cu_response.insert(0, 0);
        let meta = serde_json::to_vec(&BatchMeta { phase, step, samples: n }).unwrap_or_default();
        let (tokens, responses) = (self.tokens.len() as u64, self.mask.len() as u64);
        let record = Record::new(meta)
            .with("tokens", Tensor::from_vec(&[tokens], self.tokens)?)
            .with("cu_tokens", Tensor::from_vec(&[n + 1], self.cu_tokens)?)
            .with("cu_response", Tensor::from_vec(&[n + 1], self.cu_response)?)
            .with("loss_mask", Tensor::from_vec(&[responses], self.mask)?)
            .with("rollout_log_probs", Tensor::from_vec(&[responses], self.log_probs)?)
            .with("versions", Tensor::from_vec(&[responses], self.versions)?)
            .with("advantages", Tensor::from_vec(&[n], self.advantages)?)
            .with("rewards", Tensor::from_vec(&[n], self.rewards)?)
            .with("group_index", Tensor::from_vec(&[n], self.group_index)?)
            .with("rollout_id", Tensor::from_vec(&[n], self.rollout_id)?)
            .with("rollout_mask_sum", Tensor::from_vec(&[n], mask_sums)?);
        Ok(Conversion { record, shapes: self.shapes, stats, left_out: BTreeMap::new() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::wire::{SampleMeta, TaskKind, VersionSpan};

    const T: f64 = 0.7;

    fn sample(index: u32, reward: f64, response: &[u32]) -> Sample {
        let end = response.len() as u32;
        let versions = if end > 0 { vec![VersionSpan { version: 4, start: 0, end }] } else { vec![] };
        Sample {
            meta: SampleMeta {
                index,
                status: SampleStatus::Completed,
                reward,
                temperature: T,
                versions,
                engine: "e".into(),
                error: None,
            },
            tokens: [&[1, 2, 3], response].concat(),
            response_len: response.len(),
            loss_mask: vec![1; response.len()],
            log_probs: vec![-0.5; response.len()],
        }
    }

    fn group(group_index: u64, samples: Vec<Sample>) -> Group {
        Group { group_index, kind: TaskKind::Train, samples, generate_calls: 0 }
    }

    fn advantages(rewards: &[f64], kind: rl::StdKind) -> Vec<f32> {
        let samples = (0u32..).zip(rewards).map(|(n, reward)| sample(n, *reward, &[7, 8])).collect();
        let made = rl_batch(0, &[group(0, samples)], GroupAdvantage { std_kind: kind }, T).unwrap();
        made.record.tensor("advantages").unwrap().to_vec().unwrap()
    }

    #[test]
    fn the_tensors_of_a_batch_fit_together() {
        let mut second = sample(1, 0.0, &[9]);
        second.meta.status = SampleStatus::Truncated;
        let mut third = sample(0, 1.0, &[7, 8, 9]);
        third.loss_mask = vec![1, 0, 1];
        third.meta.versions =
            vec![VersionSpan { version: 4, start: 0, end: 2 }, VersionSpan { version: 5, start: 2, end: 3 }];
        let groups = [group(10, vec![sample(0, 1.0, &[7, 8]), second]), group(12, vec![third])];
        let made = rl_batch(3, &groups, GroupAdvantage { std_kind: rl::StdKind::None }, T).unwrap();
        let ints = |name: &str| made.record.tensor(name).unwrap().to_vec::<i64>().unwrap();
        assert_eq!(
            made.record.tensor("tokens").unwrap().to_vec::<i32>().unwrap(),
            [1, 2, 3, 7, 8, 1, 2, 3, 9, 1, 2, 3, 7, 8, 9]
        );
        assert_eq!(ints("cu_tokens"), [0, 5, 9, 15]);
        assert_eq!(ints("cu_response"), [0, 2, 3, 6]);
        assert_eq!(ints("versions"), [4, 4, 4, 4, 4, 5]);
        assert_eq!(ints("group_index"), [10, 10, 12]);
        assert_eq!(ints("rollout_mask_sum"), [2, 1, 2]);
        assert_eq!(made.record.tensor("loss_mask").unwrap().to_vec::<u8>().unwrap(), [1, 1, 1, 1, 0, 1]);
        let ids = ints("rollout_id");
        assert_eq!(
            ids.iter().collect::<std::collections::BTreeSet<_>>().len(),
            3,
            "each rollout has an id of its own: {ids:?}"
        );
        let meta: BatchMeta = serde_json::from_slice(&made.record.meta).unwrap();
        assert_eq!((meta.phase, meta.step, meta.samples), (Phase::Rl, 3, 3));
        assert_eq!((made.stats.samples, made.stats.response_tokens, made.stats.tokens), (3, 6, 15));
        assert_eq!((made.stats.truncated, made.stats.zero_std_groups), (1.0 / 3.0, 0.5));
        let journaled = Converted::new(
            Ref { pack: "p".into(), offset: 0, len: 1, head: 1, crc: 0, ..Ref::default() },
            &made.shapes,
            made.stats,
        );
        assert_eq!(journaled.shapes(), made.shapes, "shapes survive the journal");
    }

    #[test]
    fn statistics_are_over_the_group_and_a_group_of_equals_teaches_nothing() {
        let near = |got: Vec<f32>, wanted: &[f32]| {
            assert_eq!(got.len(), wanted.len());
            assert!(got.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-4), "{got:?}, expected {wanted:?}");
        };
        near(advantages(&[1.0, 0.0, 0.0, 0.0, 0.0], rl::StdKind::Biased), &[2.0, -0.5, -0.5, -0.5, -0.5]);
        near(
            advantages(&[1.0, 0.0, 0.0, 0.0, 0.0], rl::StdKind::Unbiased),
            &[1.78885, -0.447214, -0.447214, -0.447214, -0.447214],
        );
        near(advantages(&[0.7, 0.7, 0.7, 0.7], rl::StdKind::Unbiased), &[0.0; 4]);
    }

    #[test]
    fn a_reward_that_is_no_number_enters_neither_the_baseline_nor_the_batch() {
        assert_eq!(advantages(&[2.0, f64::NAN, 4.0, f64::NAN], rl::StdKind::None), [-1.0, 1.0]);
        let samples = (0..2).map(|n| sample(n, f64::NAN, &[7])).collect();
        let refused = rl_batch(0, &[group(0, samples)], GroupAdvantage { std_kind: rl::StdKind::None }, T);
        assert!(refused.unwrap_err().to_string().contains("none of 2 samples"));
    }

    #[test]
    fn a_failed_sample_does_not_pull_the_baseline_down() {
        let mut failed = sample(3, 0.0, &[]);
        failed.meta.status = SampleStatus::Failed;
        let samples = vec![sample(0, 2.0, &[7]), sample(1, 4.0, &[7]), sample(2, 6.0, &[7]), failed];
        let made = rl_batch(0, &[group(0, samples)], GroupAdvantage { std_kind: rl::StdKind::None }, T).unwrap();
        assert_eq!(made.record.tensor("advantages").unwrap().to_vec::<f32>().unwrap(), [-2.0, 0.0, 2.0]);
        assert_eq!(made.stats.left_out, 1);
    }

    #[test]
    fn samples_whose_parts_do_not_fit_are_left_out_by_cause_and_never_learnt_from() {
        let mut wrong = Vec::new();
        let mut add = |damage: &dyn Fn(&mut Sample)| {
            let mut one = sample(1 + wrong.len() as u32, 1.0, &[7, 8]);
            damage(&mut one);
            wrong.push(one);
        };
        add(&|s| s.log_probs.push(0.0));
        add(&|s| s.log_probs.truncate(1));
        add(&|s| s.loss_mask.truncate(1));
        add(&|s| s.log_probs[1] = f32::NAN);
        add(&|s| s.log_probs[1] = f32::NEG_INFINITY);
        add(&|s| s.meta.versions = vec![VersionSpan { version: 4, start: 0, end: 1 }]);
        add(&|s| s.meta.status = SampleStatus::Failed);
        add(&|s| s.meta.reward = f64::NAN);
        add(&|s| s.meta.temperature = 1.0);
        let samples = [vec![sample(0, 1.0, &[7, 8])], wrong, vec![sample(20, 0.0, &[7])]].concat();
        let made = rl_batch(0, &[group(0, samples)], GroupAdvantage { std_kind: rl::StdKind::None }, T).unwrap();
        assert_eq!((made.stats.samples, made.stats.left_out), (2, 9));
        let causes = [
            ("a mask of another length", 1),
            ("drawn at another temperature", 1),
            ("failed", 1),
            ("fewer log-probs than ids", 1),
            ("log-prob is not finite", 2),
            ("more log-probs than ids", 1),
            ("reward is not finite", 1),
            ("versions do not cover the response", 1),
        ];
        assert_eq!(made.left_out, BTreeMap::from(causes));
        assert_eq!(made.record.tensor("advantages").unwrap().to_vec::<f32>().unwrap(), [0.5, -0.5]);
    }

    #[test]
    fn a_token_that_the_policy_did_not_draw_carries_no_loss() {
        // An end token that somebody appended: it has no log-prob of its own, and its mask is 0.
        let mut appended = sample(0, 1.0, &[7, 8, 0]);
        (appended.loss_mask[2], appended.log_probs[2]) = (0, 0.0);
        let samples = vec![appended, sample(1, 0.0, &[7])];
        let made = rl_batch(0, &[group(0, samples)], GroupAdvantage { std_kind: rl::StdKind::None }, T).unwrap();
        assert_eq!(made.shapes.iter().map(|shape| shape.loss_tokens).collect::<Vec<_>>(), [2, 1]);
        assert_eq!(made.record.tensor("loss_mask").unwrap().to_vec::<u8>().unwrap(), [1, 1, 0, 1]);
        assert_eq!(made.record.tensor("rollout_mask_sum").unwrap().to_vec::<i64>().unwrap(), [2, 1]);
    }
}
