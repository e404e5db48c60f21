//! One prompt group: its samples are generated side by side and rewarded as each ends.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use control::wire::{GroupTask, SampleMeta, SampleStatus, VersionSpan};
use sglang::{EngineError, Finish, GenerateRequest, Generation, SamplingParams};

use crate::{EnginePool, Figures, Group, Reward, Sample, Tokenizer};

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// One generate call.
    pub generate: Duration,
    /// A sample whose calls keep failing is given up after this.
    pub give_up: Duration,
}

/// Generates and rewards a group. Never fails: a sample that cannot be had is marked [`SampleStatus::Failed`], has no
/// response and an empty mask, and says why.
pub async fn generate_group(
    task: &GroupTask,
    pool: &EnginePool,
    tokenizer: &Tokenizer,
    reward: &dyn Reward,
    limits: Limits,
    figures: &Figures,
) -> Group {
    let calls = AtomicU32::new(0);
    let samples = (0..task.samples).map(|index| {
        let calls = &calls;
        async move {
            let seed = usize::try_from(index).ok().and_then(|index| task.seeds.get(index)).copied();
            let drawn = match seed {
                Some(seed) => draw(task, index, seed, pool, limits, calls, figures).await,
                None => Err(format!("the task has {} seeds for {} samples", task.seeds.len(), task.samples)),
            };
            rewarded(task, index, drawn, tokenizer, reward)
        }
    });
    let samples = futures::future::join_all(samples).await;
    samples.iter().filter(|sample| sample.meta.status == SampleStatus::Failed).for_each(|_| figures.sample_failed());
    Group { group_index: task.group_index, kind: task.kind, samples, generate_calls: calls.load(Ordering::Relaxed) }
}

/// A response as it grows, possibly over several calls and engines.
#[derive(Default)]
struct Drawn {
    output: Vec<u32>,
    log_probs: Vec<f32>,
    versions: Vec<VersionSpan>,
    engine: String,
    truncated: bool,
}

impl Drawn {
    fn append(&mut self, generation: Generation, engine: &str) {
        let offset = u32::try_from(self.output.len()).unwrap_or(u32::MAX);
        for span in generation.versions {
            let next = VersionSpan { version: span.version, start: span.start + offset, end: span.end + offset };
            match self.versions.last_mut() {
                Some(last) if last.version == next.version => last.end = next.end,
                _ => self.versions.push(next),
            }
        }
        self.output.extend(generation.output_ids);
        self.log_probs.extend(generation.log_probs);
        engine.clone_into(&mut self.engine);
    }
}

async fn draw(
    task: &GroupTask,
    index: u32,
    seed: u64,
    pool: &EnginePool,
    limits: Limits,
    calls: &AtomicU32,
    figures: &Figures,
) -> Result<Drawn, String> {
    let mut drawn = Drawn::default();
    let mut failed_since: Option<Instant> = None;
    let mut failed: Option<String> = None;
    let mut faults = 0;
    let mut pause = Duration::from_millis(10);
    for attempt in 0u32.. {
        let left = task.sampling.max_new_tokens.saturating_sub(u32::try_from(drawn.output.len()).unwrap_or(u32::MAX));
        if left == 0 {
            drawn.truncated = true;
            return Ok(drawn);
        }
        let engine = pool.pick_or_wait(task.group_index, failed.as_deref()).await;
        let request = GenerateRequest {
            // Of fixed length, since engines abort by prefix; new at each attempt, since the old one may still run.
            rid: format!("{:016x}-{index:04x}-{attempt:08x}-{:016x}", task.group_index, seed),
            input_ids: [task.prompt_tokens.as_slice(), drawn.output.as_slice()].concat(),
            sampling_params: SamplingParams {
                temperature: task.sampling.temperature,
                max_new_tokens: left,
                stop_token_ids: task.sampling.stop_token_ids.clone(),
                sampling_seed: seed,
            },
            return_logprob: true,
        };
        calls.fetch_add(1, Ordering::Relaxed);
        figures.called();
        let error = match engine.generate(&request, limits.generate).await {
            Ok(generation) => {
                let finish = generation.finish.clone();
                drawn.append(generation, engine.url());
                match finish {
                    Finish::Stop => return Ok(drawn),
                    Finish::Length => {
                        drawn.truncated = true;
                        return Ok(drawn);
                    }
                    // Ended from outside (a pause, a drain): what was generated stands, the rest is asked for again.
                    // The seed is per position, so the sample comes out as if nothing had happened.
                    Finish::Abort(_) => {
                        failed = None;
                        failed_since = None;
                        faults = 0;
                        tokio::time::sleep(pause).await;
                        continue;
                    }
                }
            }
            Err(error) => error,
        };
        figures.call_failed(&error);
        if matches!(error, EngineError::Unreachable { .. }) {
            // Silent engines may still work on it; it must not run twice. Asked once: an engine that does not know the call
            // will not know it the next time, and our closed connection has told it too.
            if let Err(error) = engine.abort(&request.rid, ABORT_LIMIT).await {
                figures.abort_failed(&error);
                tracing::warn!(group = task.group_index, index, %error, "a request could not be aborted; it may still run");
            }
        }
        let since = *failed_since.get_or_insert_with(Instant::now);
        faults += u32::from(error.is_a_fault());
        if !error.is_transient() || faults >= FAULTS_MAX || since.elapsed() >= limits.give_up {
            return Err(error.to_string());
        }
        tracing::debug!(group = task.group_index, index, %error, "a generate call failed; trying again");
        pool.avoid(engine.url());
        failed = Some(engine.url().to_owned());
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
    Err("out of attempts".to_owned())
}

const ABORT_LIMIT: Duration = Duration::from_secs(1);
/// Engines that were there and failed at a request, in a row: whatever is wrong, waiting does not mend it.
const FAULTS_MAX: u32 = 6;
const PAUSE_MAX: Duration = Duration::from_secs(1);

fn rewarded(
    task: &GroupTask,
    index: u32,
    drawn: Result<Drawn, String>,
    tokenizer: &Tokenizer,
    reward: &dyn Reward,
) -> Sample {
    let scored = drawn.and_then(|drawn| {
        let response = tokenizer.decode(&drawn.output);
        let reward = reward.score(&task.prompt, &response, &task.label)?;
        // What is no number is no judgement, and it is not a reward of 0 either.
        if reward.is_finite() { Ok((drawn, reward)) } else { Err(format!("its reward is {reward}")) }
    });
    match scored {
        Ok((drawn, reward)) => Sample {
            meta: SampleMeta {
                index,
                status: if drawn.truncated { SampleStatus::Truncated } else { SampleStatus::Completed },
                reward,
                temperature: task.sampling.temperature,
                versions: drawn.versions,
                engine: drawn.engine,
                error: None,
            },
            response_len: drawn.output.len(),
            loss_mask: vec![1; drawn.output.len()],
            tokens: [task.prompt_tokens.as_slice(), drawn.output.as_slice()].concat(),
            log_probs: drawn.log_probs,
        },
        Err(error) => Sample {
            meta: SampleMeta {
                index,
                status: SampleStatus::Failed,
                reward: 0.0,
                temperature: task.sampling.temperature,
                versions: Vec::new(),
                engine: String::new(),
                error: Some(error),
            },
            response_len: 0,
            loss_mask: Vec::new(),
            tokens: task.prompt_tokens.clone(),
            log_probs: Vec::new(),
        },
    }
}
