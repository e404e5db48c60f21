//! A finished group, and how straw keeps it.

use control::wire::{GroupMeta, GroupSummary, SampleMeta, SampleStatus, TaskKind};
use straw::{Record, Tensor};

/// One sample: prompt and response.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Place in the group, ending, reward, versions.
    pub meta: SampleMeta,
    /// Prompt and response tokens.
    pub tokens: Vec<u32>,
    /// How many of the tokens are response.
    pub response_len: usize,
    /// 1 where a response token may be learnt, `response_len` long.
    pub loss_mask: Vec<u8>,
    /// The engine's log-probs of the response tokens, `response_len` long, 0 where the mask is 0.
    pub log_probs: Vec<f32>,
}

/// All samples of one prompt, in order of their index.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Unique in the run.
    pub group_index: u64,
    /// Training or evaluation.
    pub kind: TaskKind,
    /// The samples.
    pub samples: Vec<Sample>,
    /// Generate calls made for it, repeats included.
    pub generate_calls: u32,
}

/// A record that is not a group.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// Straw could not give a tensor.
    #[error(transparent)]
    Straw(#[from] straw::Error),
    /// The parts do not fit together.
    #[error("not a group: {0}")]
    Malformed(String),
}

impl Group {
    /// What the conductor is told.
    #[must_use]
    pub fn summary(&self) -> GroupSummary {
        let good = || self.samples.iter().filter(|sample| sample.meta.status != SampleStatus::Failed);
        let versions = || good().flat_map(|sample| sample.meta.versions.iter().map(|span| span.version));
        let sum = |length: fn(&Sample) -> usize| self.samples.iter().map(|sample| length(sample) as u64).sum();
        let failed = self.samples.len() - good().count();
        GroupSummary {
            group_index: self.group_index,
            rewards: good().map(|sample| sample.meta.reward).collect(),
            failed: u32::try_from(failed).unwrap_or(u32::MAX),
            version_min: versions().min().unwrap_or(0),
            version_max: versions().max().unwrap_or(0),
            response_tokens: sum(|sample| sample.response_len),
            tokens: sum(|sample| sample.tokens.len()),
            generate_calls: self.generate_calls,
        }
    }
}

/// The group as a record: see [`GroupMeta`] for its tensors.
///
/// # Errors
/// When straw refuses a tensor, or the meta cannot be written.
pub fn group_record(group: &Group) -> Result<Record, GroupError> {
    let samples = &group.samples;
    let meta = GroupMeta {
        group_index: group.group_index,
        kind: group.kind,
        samples: samples.iter().map(|sample| sample.meta.clone()).collect(),
    };
    let meta = serde_json::to_vec(&meta).map_err(|error| GroupError::Malformed(error.to_string()))?;
    let mut cu_tokens = vec![0i64];
    let mut tokens = Vec::new();
    for sample in samples {
        tokens.extend(sample.tokens.iter().map(|token| i32::try_from(*token).unwrap_or(i32::MAX)));
        cu_tokens.push(tokens.len() as i64);
    }
    let lens: Vec<i32> = samples.iter().map(|sample| i32::try_from(sample.response_len).unwrap_or(i32::MAX)).collect();
    let mask: Vec<u8> = samples.iter().flat_map(|sample| sample.loss_mask.iter().copied()).collect();
    let log_probs: Vec<f32> = samples.iter().flat_map(|sample| sample.log_probs.iter().copied()).collect();
    Ok(Record::new(meta)
        .with("tokens", Tensor::from_vec(&[tokens.len() as u64], tokens)?)
        .with("cu_tokens", Tensor::from_vec(&[cu_tokens.len() as u64], cu_tokens)?)
        .with("response_lens", Tensor::from_vec(&[lens.len() as u64], lens)?)
        .with("loss_mask", Tensor::from_vec(&[mask.len() as u64], mask)?)
        .with("rollout_log_probs", Tensor::from_vec(&[log_probs.len() as u64], log_probs)?))
}

/// Reads a group back and checks that its parts fit together.
///
/// # Errors
/// Says which part does not.
pub fn read_group(record: &Record) -> Result<Group, GroupError> {
    let malformed = |what: &str| GroupError::Malformed(what.to_owned());
    let meta: GroupMeta = serde_json::from_slice(&record.meta).map_err(|error| malformed(&error.to_string()))?;
    let tokens = record.tensor("tokens")?.to_slice::<i32>()?;
    let cu_tokens = record.tensor("cu_tokens")?.to_slice::<i64>()?;
    let lens = record.tensor("response_lens")?.to_slice::<i32>()?;
    let mask = record.tensor("loss_mask")?.to_slice::<u8>()?;
    let log_probs = record.tensor("rollout_log_probs")?.to_slice::<f32>()?;
    if cu_tokens.len() != meta.samples.len() + 1 || lens.len() != meta.samples.len() {
        return Err(malformed("offsets and lengths are not one per sample"));
    }
    let mut at = 0;
    let mut samples = Vec::with_capacity(meta.samples.len());
    for ((sample, bounds), len) in meta.samples.into_iter().zip(cu_tokens.windows(2)).zip(lens.iter()) {
        let range = match bounds {
            [start, end] => usize::try_from(*start).ok().zip(usize::try_from(*end).ok()),
            _ => None,
        };
        let own = range.and_then(|(start, end)| tokens.get(start..end)).ok_or_else(|| malformed("bad offsets"))?;
        let response_len = usize::try_from(*len).map_err(|_| malformed("negative length"))?;
        let end = at + response_len;
        let (Some(mask), Some(log_probs), true) =
            (mask.get(at..end), log_probs.get(at..end), response_len <= own.len())
        else {
            return Err(malformed("mask or log-probs are shorter than the responses"));
        };
        samples.push(Sample {
            meta: sample,
            tokens: own.iter().map(|token| u32::try_from(*token).unwrap_or(u32::MAX)).collect(),
            response_len,
            loss_mask: mask.to_vec(),
            log_probs: log_probs.to_vec(),
        });
        at = end;
    }
    if at != mask.len() || at != log_probs.len() {
        return Err(malformed("mask or log-probs are longer than the responses"));
    }
    Ok(Group { group_index: meta.group_index, kind: meta.kind, samples, generate_calls: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::wire::VersionSpan;

    fn sample(index: u32, status: SampleStatus, response: &[u32]) -> Sample {
        let end = response.len() as u32;
        Sample {
            meta: SampleMeta {
                index,
                status,
                reward: f64::from(index),
                temperature: 0.7,
                versions: if end > 0 {
                    vec![VersionSpan { version: 4 + u64::from(index), start: 0, end }]
                } else {
                    vec![]
                },
                engine: "e".into(),
                error: None,
            },
            tokens: [&[1, 2, 3], response].concat(),
            response_len: response.len(),
            loss_mask: vec![1; response.len()],
            log_probs: vec![-0.25; response.len()],
        }
    }

    #[test]
    fn a_group_survives_its_record_and_failed_samples_do_not_count() {
        let group = Group {
            group_index: 9,
            kind: TaskKind::Train,
            samples: vec![
                sample(0, SampleStatus::Completed, &[7, 8]),
                sample(1, SampleStatus::Failed, &[]),
                sample(2, SampleStatus::Truncated, &[7]),
            ],
            generate_calls: 0,
        };
        let back = read_group(&group_record(&group).unwrap()).unwrap();
        assert_eq!(back, group);
        let summary = group.summary();
        assert_eq!((summary.rewards, summary.failed), (vec![0.0, 2.0], 1));
        assert_eq!((summary.version_min, summary.version_max), (4, 6));
        assert_eq!((summary.tokens, summary.response_tokens), (12, 3));
    }

    #[test]
    fn a_record_whose_parts_do_not_fit_is_refused() {
        let group = Group {
            group_index: 9,
            kind: TaskKind::Train,
            samples: vec![sample(0, SampleStatus::Completed, &[7, 8])],
            generate_calls: 1,
        };
        let mut record = group_record(&group).unwrap();
        for named in &mut record.tensors {
            if named.name == "loss_mask" {
                named.tensor = Tensor::from_slice(&[1], &[1u8]).unwrap();
            }
        }
        assert!(matches!(read_group(&record), Err(GroupError::Malformed(_))));
    }
}
