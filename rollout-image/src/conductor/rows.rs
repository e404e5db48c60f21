//! Texts of the data sets, by row. The brain only knows rows.

use std::path::Path;

use anyhow::Context;
use conductor::{DataFile, Grant, convert::WarmRow};
use control::wire::{GroupTask, Lease, TaskKind};
use rollout::{Dataset, PromptRow, SupervisedRow, Tokenizer};
use sha2::{Digest, Sha256};

/// All data of a run, and the tokenizer.
pub struct Rows {
    tokenizer: Tokenizer,
    train: Dataset<PromptRow>,
    held_out: Option<Dataset<PromptRow>>,
    warm: Option<Dataset<SupervisedRow>>,
}

impl Rows {
    /// From loaded data sets.
    pub fn new(
        tokenizer: Tokenizer,
        train: Dataset<PromptRow>,
        held_out: Option<Dataset<PromptRow>>,
        warm: Option<Dataset<SupervisedRow>>,
    ) -> Self {
        Self { tokenizer, train, held_out, warm }
    }

    /// A grant with the text of its row.
    pub fn lease(&self, grant: Grant) -> anyhow::Result<Lease> {
        let data = match grant.kind {
            TaskKind::Train => Some(&self.train),
            TaskKind::Eval => self.held_out.as_ref(),
        };
        let row = usize::try_from(grant.row).ok().and_then(|row| data?.get(row));
        let row = row.with_context(|| format!("row {} of the data is gone", grant.row))?;
        let group = GroupTask {
            kind: grant.kind,
            group_index: grant.task,
            prompt: row.prompt.clone(),
            prompt_tokens: self
                .tokenizer
                .encode(&row.prompt)
                .with_context(|| format!("row {} of the data (from 0)", grant.row))?,
            label: row.label.clone(),
            samples: u32::try_from(grant.seeds.len())?,
            seeds: grant.seeds,
            sampling: grant.sampling,
        };
        Ok(Lease { lease: grant.lease, task: grant.task, lease_ms: grant.lease_ms, group })
    }

    /// Rows to imitate, as tokens; each ends as the model ends a sequence.
    pub fn warm(&self, rows: &[u64]) -> anyhow::Result<Vec<WarmRow>> {
        let data = self.warm.as_ref().context("there is no warm-start data")?;
        let end = self.tokenizer.end_ids().first().copied();
        rows.iter()
            .map(|row| {
                let text = usize::try_from(*row)
                    .ok()
                    .and_then(|row| data.get(row))
                    .with_context(|| format!("row {row} of the warm-start data is gone"))?;
                let mut response = self.tokenizer.encode(&text.completion)?;
                response.extend(end);
                Ok(WarmRow { row: *row, prompt: self.tokenizer.encode(&text.prompt)?, response })
            })
            .collect()
    }
}

/// Rows and digest of a data file.
pub fn data_file(volume: &Path, path: &str, keys: [&String; 2], rows: usize) -> anyhow::Result<DataFile> {
    let file = volume.join(path);
    let bytes = std::fs::read(&file).with_context(|| format!("reading {}", file.display()))?;
    Ok(DataFile {
        path: path.to_owned(),
        keys: keys.map(Clone::clone),
        rows: rows as u64,
        sha256: hex(&Sha256::digest(&bytes)),
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
