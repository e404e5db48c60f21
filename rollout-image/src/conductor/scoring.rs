//! Do trainer and engines say the same of the same tokens under the same weights?

use std::time::Duration;

use anyhow::{Context, bail};
use control::wire::{ScoreSet, Scores};
use futures::future::try_join_all;
use sglang::{Engine, HttpEngine, ScoreRequest};
use straw::Store;

/// Scoring is one short prefill.
const LIMIT: Duration = Duration::from_secs(60);

/// Largest difference of two log-probs over all engines, and the tokens compared.
pub async fn compare(
    store: Store,
    engines: &[HttpEngine],
    version: u64,
    scores: Scores,
    temperature: f64,
) -> anyhow::Result<(f64, u64)> {
    let set = scores.set.clone();
    let requests = tokio::task::spawn_blocking(move || requests(&store, &set, temperature)).await??;
    if requests.len() != scores.log_probs.len() {
        bail!("the trainer scored {} samples of {}", scores.log_probs.len(), requests.len());
    }
    let pairs =
        || engines.iter().flat_map(|engine| requests.iter().zip(&scores.log_probs).map(move |pair| (engine, pair)));
    let compared =
        try_join_all(pairs().map(|(engine, (request, trainer))| one(engine, request, trainer, version))).await?;
    let gap_max = compared.iter().map(|(gap, _)| *gap).fold(0.0, f64::max);
    Ok((gap_max, compared.iter().map(|(_, tokens)| tokens).sum()))
}

async fn one(engine: &HttpEngine, request: &ScoreRequest, trainer: &[f32], version: u64) -> anyhow::Result<(f64, u64)> {
    let scored = engine.score(request, LIMIT).await?;
    if scored.weight_version != version.to_string() {
        bail!("{} scored with version {} instead of {version}", engine.url(), scored.weight_version);
    }
    if scored.log_probs.len() != trainer.len() {
        bail!("{} scored {} tokens, the trainer {}", engine.url(), scored.log_probs.len(), trainer.len());
    }
    let differences = scored.log_probs.iter().zip(trainer).map(|(a, b)| (f64::from(*a) - f64::from(*b)).abs());
    Ok((differences.fold(0.0, f64::max), trainer.len() as u64))
}

/// One request per sample: the prompt, and the beginning of the response, which is scored.
fn requests(store: &Store, set: &ScoreSet, temperature: f64) -> anyhow::Result<Vec<ScoreRequest>> {
    let bounds = |name: &str, sample: u32| -> anyhow::Result<(u64, u64)> {
        let sample = u64::from(sample);
        match *store.read_rows(&set.batch, name, sample..sample + 2)?.to_slice::<i64>()? {
            [start, end] if 0 <= start && start <= end => Ok((start as u64, end as u64)),
            _ => bail!("sample {sample} of the batch has bad offsets"),
        }
    };
    set.samples
        .iter()
        .map(|sample| {
            let (start, end) = bounds("cu_tokens", *sample)?;
            let (first, last) = bounds("cu_response", *sample)?;
            let prompt = (end - start).checked_sub(last - first).context("a response longer than its sample")?;
            let taken = prompt + (last - first).min(u64::from(set.tokens_max));
            let tokens = store.read_rows(&set.batch, "tokens", start..start + taken)?.to_vec::<i32>()?;
            let tokens = tokens.into_iter().map(u32::try_from).collect::<Result<Vec<_>, _>>()?;
            Ok(ScoreRequest { tokens, from: usize::try_from(prompt)?, temperature })
        })
        .collect()
}
