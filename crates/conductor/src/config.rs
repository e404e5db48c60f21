//! What a run is: resolved once from the RLJob, split by what an edit may do.

use std::path::Path;

use api::{DynamicFilter, InitKind, Mode, RLJob, StalenessPolicy};
use control::wire::{RewardConfig, Sampling, Start, TrainConfig};
use rl::{GroupAdvantage, KlConfig, LossConfig, OptimizerConfig, TisConfig};
use serde::{Deserialize, Serialize};

use crate::{Error, resumed::Wanted};

/// A data set as the run began with it. Rows and digest are frozen: a cursor means nothing over other rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataFile {
    /// File, relative to the volume's root.
    pub path: String,
    /// Fields of a row that are read.
    pub keys: [String; 2],
    /// Rows.
    pub rows: u64,
    /// SHA-256 of the file, hex.
    pub sha256: String,
}

/// What is done with a group that is too stale for the step it would be trained in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TooStale {
    /// Dropped and listed.
    Drop,
    /// Its prompt is generated again.
    Requeue,
}

/// Supervised training before step 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Warm {
    /// Rows to imitate.
    pub data: DataFile,
    /// Rows per update.
    pub batch_size: u64,
    /// Most updates.
    pub max_steps: u64,
    /// Updates between two measurements.
    pub check_every: u64,
    /// Begin the RL phase at this share of right answers.
    pub stop_at_pass_rate: Option<f64>,
    /// Held-out prompts per measurement.
    pub eval_prompts: u64,
}

/// What may never change while a run lives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Frozen {
    /// Run uid.
    pub run: String,
    /// Folder of the model, relative to the volume's root.
    pub model_dir: String,
    /// Fingerprint of the model's config and tokenizer: another model in the same folder is another run.
    pub model: String,
    /// Folder of the run, relative to the volume's root.
    pub run_dir: String,
    /// Where the very first attempt begins, unless it is with another run's commit.
    pub init: Start,
    /// Another run's commit to begin with.
    pub resume_from: Option<Wanted>,
    /// Training prompts.
    pub data: DataFile,
    /// Held-out prompts.
    pub held_out: Option<DataFile>,
    /// Seed of the order of rows.
    pub shuffle_seed: u64,
    /// Seed of all sampling.
    pub sampling_seed: u64,
    /// How samples are drawn.
    pub sampling: Sampling,
    /// Size of a group.
    pub samples_per_prompt: u32,
    /// Groups wait for their step's own weights (Sync), or are generated while the trainer works (Async).
    pub asynchronous: bool,
    /// Most steps between the weights a group was generated with and the step that trains it; 0 in Sync mode.
    pub max_staleness: u64,
    /// What becomes of a group beyond that.
    pub too_stale: TooStale,
    /// Groups of a step.
    pub prompts_per_step: u64,
    /// Rollouts of an optimizer update.
    pub rollouts_per_update: u64,
    /// Groups asked for at a time in Sync mode, at least `prompts_per_step`.
    pub over_sampling: u64,
    /// Drop groups whose rewards are all alike.
    pub drop_zero_std: bool,
    /// How responses are judged.
    pub reward: RewardConfig,
    /// The warm start.
    pub warm: Option<Warm>,
}

/// What a new attempt takes; an edit restarts the trainer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttemptConfig {
    /// Objective of the RL phase.
    pub loss: LossConfig,
    /// Baseline of a group.
    pub advantage: GroupAdvantage,
    /// Optimizer of the RL phase.
    pub optimizer: OptimizerConfig,
    /// Optimizer of the warm start.
    pub warm_optimizer: Option<OptimizerConfig>,
    /// Run the forward pass again instead of keeping activations.
    pub recompute: bool,
    /// Most tokens of a micro-batch of one rank.
    pub tokens_max: u64,
}

/// What takes effect at the next step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Live {
    /// RL steps wanted.
    pub total_steps: u64,
    /// Steps between commits.
    pub checkpoint_every: u64,
    /// Commits kept, at least one.
    pub checkpoint_keep: u64,
    /// Steps between evaluations and prompts of each.
    pub eval: Option<EvalEvery>,
}

/// When to evaluate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvalEvery {
    /// Steps between two.
    pub steps: u64,
    /// Prompts: the first ones of the held-out file.
    pub prompts: u64,
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunConfig {
    /// What may never change.
    pub frozen: Frozen,
    /// What a new attempt takes.
    pub attempt: AttemptConfig,
    /// What is live.
    pub live: Live,
}

/// What the RLJob does not say itself: found on the volume by the binary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Run uid.
    pub run: String,
    /// Folder of the run, relative to the volume's root.
    pub run_dir: String,
    /// See [`Frozen::model`].
    pub model: String,
    /// Training prompts.
    pub data: DataFile,
    /// Held-out prompts.
    pub held_out: Option<DataFile>,
    /// Rows to imitate.
    pub warm: Option<DataFile>,
    /// Ids of `sampling.stop`.
    pub stop_token_ids: Vec<u32>,
}

impl RunConfig {
    /// Resolves a defaulted RLJob.
    ///
    /// # Errors
    /// Names the field that contradicts what was found on the volume.
    pub fn resolve(job: &RLJob, found: Found) -> Result<Self, Error> {
        let spec = &job.spec;
        let bad = |field: &str, what: String| Error::BadConfig { field: field.to_owned(), what };
        let (_, model_dir) = api::volume::parse_pvc(&spec.model.source)
            .ok_or_else(|| bad("model.source", format!("{} is not pvc://CLAIM/PATH", spec.model.source)))?;
        if Path::new(model_dir).is_absolute() {
            return Err(bad("model.source", format!("{model_dir} is not relative to the volume's root")));
        }
        let init = match (spec.model.init.kind, spec.model.init.seed) {
            (InitKind::Pretrained, _) => Start::Pretrained,
            (InitKind::Random, Some(seed)) => Start::Random { seed },
            (InitKind::Random, None) => return Err(bad("model.init.seed", "kind Random needs a seed".to_owned())),
        };
        // The file that was read is the one the spec names now; an edited path is seen as the change it is.
        let named = |file: DataFile, path: &str, keys: [&String; 2]| DataFile {
            path: path.to_owned(),
            keys: keys.map(Clone::clone),
            ..file
        };
        let data = named(found.data, &spec.data.path, [&spec.data.prompt_key, &spec.data.label_key]);
        let held_out = match (&spec.data.eval_path, found.held_out) {
            (None, _) => None,
            (Some(_), None) => return Err(bad("data.evalPath", "was not loaded".to_owned())),
            (Some(path), Some(file)) => Some(named(file, path, [&spec.data.prompt_key, &spec.data.label_key])),
        };
        let warm = match (&spec.warm_start, found.warm) {
            (None, _) => None,
            (Some(_), None) => return Err(bad("warmStart.data", "was not loaded".to_owned())),
            (Some(warm), Some(file)) => Some(Warm {
                data: named(file, &warm.data, [&warm.prompt_key, &warm.completion_key]),
                batch_size: u64::from(warm.batch_size.max(1)),
                max_steps: warm.max_steps.max(1),
                check_every: warm.check_every_steps.max(1),
                stop_at_pass_rate: warm.stop_at_pass_rate,
                eval_prompts: u64::from(warm.eval_prompts),
            }),
        };
        let asynchronous = spec.mode == Mode::Async;
        let prompts_per_step = u64::from(spec.batch.prompts_per_step.max(1));
        let samples = spec.sampling.samples_per_prompt.max(1);
        let rollouts = prompts_per_step * u64::from(samples);
        let frozen = Frozen {
            run: found.run,
            model_dir: model_dir.to_owned(),
            model: found.model,
            run_dir: found.run_dir,
            init,
            resume_from: spec.resume_from.as_ref().map(|from| Wanted { run: from.run.clone(), step: from.step }),
            data,
            held_out,
            shuffle_seed: spec.data.shuffle_seed,
            sampling_seed: spec.sampling.seed,
            sampling: Sampling {
                temperature: spec.sampling.temperature,
                max_new_tokens: spec.sampling.max_new_tokens,
                stop_token_ids: found.stop_token_ids,
            },
            samples_per_prompt: samples,
            asynchronous,
            max_staleness: if asynchronous {
                u64::from(spec.max_staleness.unwrap_or(api::defaults::MAX_STALENESS))
            } else {
                0
            },
            too_stale: match spec.staleness_policy.unwrap_or(api::defaults::STALENESS_POLICY) {
                StalenessPolicy::Drop => TooStale::Drop,
                StalenessPolicy::Requeue => TooStale::Requeue,
            },
            prompts_per_step,
            rollouts_per_update: spec.batch.global_batch_size.map_or(rollouts, |size| u64::from(size.max(1))),
            over_sampling: spec.batch.over_sampling.map_or(prompts_per_step, |n| u64::from(n).max(prompts_per_step)),
            drop_zero_std: spec.batch.dynamic_filter == Some(DynamicFilter::NonZeroStd),
            reward: match spec.reward.kind {
                api::RewardKind::ExactMatch => RewardConfig::ExactMatch,
            },
            warm,
        };
        let updates_per_step = rollouts.div_ceil(frozen.rollouts_per_update.max(1));
        Ok(Self { attempt: attempt(job, spec.total_steps * updates_per_step), live: live(job), frozen })
    }

    /// What the trainer is told.
    #[must_use]
    pub fn train_config(&self, attempt: &AttemptConfig) -> TrainConfig {
        TrainConfig {
            model_dir: self.frozen.model_dir.clone(),
            run_dir: self.frozen.run_dir.clone(),
            loss: attempt.loss,
            optimizer: attempt.optimizer,
            warm_optimizer: attempt.warm_optimizer,
            temperature: self.frozen.sampling.temperature,
            recompute: attempt.recompute,
        }
    }
}

fn attempt(job: &RLJob, updates: u64) -> AttemptConfig {
    let spec = &job.spec;
    let algorithm = &spec.algorithm;
    AttemptConfig {
        loss: LossConfig {
            clip_low: algorithm.clip_low,
            clip_high: algorithm.clip_high,
            clip_c: algorithm.clip_c,
            kl: algorithm.kl.as_ref().map(|kl| KlConfig {
                coef: kl.coef,
                kind: match kl.kind {
                    api::KlKind::K1 => rl::KlKind::K1,
                    api::KlKind::K2 => rl::KlKind::K2,
                    api::KlKind::K3 => rl::KlKind::K3,
                    api::KlKind::LowVar => rl::KlKind::LowVar,
                },
            }),
            entropy_coef: algorithm.entropy_coef,
            tis: algorithm.tis.as_ref().map(|tis| TisConfig { low: tis.low, high: tis.high }),
            reduction: match algorithm.loss_reduction {
                api::LossReduction::TokenMean => rl::LossReduction::TokenMean,
                api::LossReduction::RolloutMean => rl::LossReduction::RolloutMean,
            },
        },
        advantage: GroupAdvantage {
            std_kind: match algorithm.std_kind {
                api::StdKind::Unbiased => rl::StdKind::Unbiased,
                api::StdKind::Biased => rl::StdKind::Biased,
                api::StdKind::None => rl::StdKind::None,
            },
        },
        optimizer: optimizer(&spec.optimizer, updates),
        warm_optimizer: spec.warm_start.as_ref().map(|warm| optimizer(&warm.optimizer, warm.max_steps)),
        recompute: spec.trainer.recompute,
        tokens_max: spec.trainer.max_tokens_per_micro_batch.max(1),
    }
}

/// A decay ends at the last update of its phase.
fn optimizer(optimizer: &api::Optimizer, updates: u64) -> OptimizerConfig {
    let [beta1, beta2] = optimizer.betas;
    OptimizerConfig {
        lr: optimizer.lr,
        beta1,
        beta2,
        eps: optimizer.eps,
        weight_decay: optimizer.weight_decay,
        clip_grad_norm: optimizer.clip_grad_norm,
        schedule: match optimizer.schedule.kind {
            api::ScheduleKind::Constant => rl::ScheduleKind::Constant,
            api::ScheduleKind::Linear => rl::ScheduleKind::Linear,
            api::ScheduleKind::Cosine => rl::ScheduleKind::Cosine,
        },
        warmup_steps: optimizer.schedule.warmup_steps,
        decay_steps: updates,
        min_lr: optimizer.schedule.min_lr,
    }
}

fn live(job: &RLJob) -> Live {
    let spec = &job.spec;
    Live {
        total_steps: spec.total_steps,
        checkpoint_every: spec.checkpoint.every_steps.max(1),
        checkpoint_keep: u64::from(spec.checkpoint.keep.max(1)),
        eval: spec
            .eval
            .as_ref()
            .map(|eval| EvalEvery { steps: eval.every_steps.max(1), prompts: u64::from(eval.prompts) }),
    }
}

/// The first frozen field in which two configurations differ, with both values.
#[must_use]
pub fn first_difference(began_with: &Frozen, asked_for: &Frozen) -> Option<(String, String, String)> {
    let (Ok(before), Ok(after)) = (serde_json::to_value(began_with), serde_json::to_value(asked_for)) else {
        return Some(("frozen".to_owned(), "?".to_owned(), "?".to_owned()));
    };
    difference("", &before, &after)
}

fn difference(path: &str, before: &serde_json::Value, after: &serde_json::Value) -> Option<(String, String, String)> {
    if before == after {
        return None;
    }
    if let (Some(before), Some(after)) = (before.as_object(), after.as_object()) {
        let keys: std::collections::BTreeSet<&String> = before.keys().chain(after.keys()).collect();
        return keys.into_iter().find_map(|key| {
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            difference(
                &path,
                before.get(key).unwrap_or(&serde_json::Value::Null),
                after.get(key).unwrap_or(&serde_json::Value::Null),
            )
        });
    }
    Some((path.to_owned(), before.to_string(), after.to_string()))
}
