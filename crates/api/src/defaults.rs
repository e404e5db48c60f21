//! Every default, in one place. The CRD's `default:` values are generated from these functions.

use crate::{
    AlgorithmName, ChildPolicy, Gang, InitKind, KlKind, LossReduction, Mode, Placement, RLJob, ScheduleKind,
    StalenessPolicy, StdKind, TopologyMode,
};

/// 1.
pub fn one() -> u32 {
    1
}
/// Weights come from the model's folder.
pub fn init_kind() -> InitKind {
    InitKind::Pretrained
}
/// `prompt`.
pub fn prompt_key() -> String {
    "prompt".into()
}
/// `label`.
pub fn label_key() -> String {
    "label".into()
}
/// `completion`.
pub fn completion_key() -> String {
    "completion".into()
}
/// 42, as elsewhere in the field.
pub fn shuffle_seed() -> u64 {
    42
}
/// 25 updates.
pub fn check_every_steps() -> u64 {
    25
}
/// 256 prompts: a pass rate good to ±0.03.
pub fn eval_prompts() -> u32 {
    256
}
/// 8 samples per prompt.
pub fn samples_per_prompt() -> u32 {
    8
}
/// The policy itself.
pub fn temperature() -> f64 {
    1.0
}
/// 0.2 (PPO's).
pub fn clip_low() -> f64 {
    0.2
}
/// 0.2 (PPO's).
pub fn clip_high() -> f64 {
    0.2
}
/// Always positive, low variance.
pub fn kl_kind() -> KlKind {
    KlKind::K3
}
/// 2.0.
pub fn tis_high() -> f64 {
    2.0
}
/// Mean over rollouts of their token means.
pub fn loss_reduction() -> LossReduction {
    LossReduction::RolloutMean
}
/// n − 1.
pub fn std_kind() -> StdKind {
    StdKind::Unbiased
}
/// AdamW as language models use it.
pub fn betas() -> [f64; 2] {
    [0.9, 0.95]
}
/// 1e-8.
pub fn eps() -> f64 {
    1e-8
}
/// 1.0.
pub fn clip_grad_norm() -> f64 {
    1.0
}
/// Constant after the warm-up.
pub fn schedule_kind() -> ScheduleKind {
    ScheduleKind::Constant
}
/// 50 steps.
pub fn checkpoint_every() -> u64 {
    50
}
/// 3 commits.
pub fn checkpoint_keep() -> u32 {
    3
}
/// 8192 tokens.
pub fn max_tokens() -> u64 {
    8192
}
/// Half an hour: images, scheduling and loading.
pub fn startup_deadline() -> u32 {
    1800
}
/// Two minutes.
pub fn trainer_grace() -> u32 {
    120
}
/// A quarter of an hour.
pub fn checkpoint_timeout() -> u32 {
    900
}
/// 6 failures in a row.
pub fn backoff_limit() -> u32 {
    6
}
/// 10 s.
pub fn base_delay() -> u32 {
    10
}
/// 10 minutes.
pub fn max_delay() -> u32 {
    600
}
/// Three quarters of the engines.
pub fn min_ready_percent() -> u32 {
    75
}
/// Synchronous.
pub fn mode() -> Mode {
    Mode::Sync
}
/// One version behind, in Async mode.
pub const MAX_STALENESS: u32 = 1;
/// Stale groups are generated again, in Async mode.
pub const STALENESS_POLICY: StalenessPolicy = StalenessPolicy::Requeue;
/// Pods are placed one by one.
pub fn gang() -> Gang {
    Gang::None
}
/// Together where there is room.
pub fn topology_mode() -> TopologyMode {
    TopologyMode::Preferred
}
/// One at a time.
pub fn max_unavailable() -> u32 {
    1
}
/// A quarter of the workers.
pub fn max_unavailable_percent() -> u32 {
    25
}
/// Five minutes.
pub fn drain_timeout() -> u32 {
    300
}
/// 8 groups at a time.
pub fn max_concurrent_groups() -> u32 {
    8
}
/// 64 requests at a time.
pub fn max_running_requests() -> u32 {
    64
}
/// A fixed number of workers.
pub fn placement() -> Placement {
    Placement::Replicas
}
/// GRPO.
pub fn algorithm_name() -> AlgorithmName {
    AlgorithmName::Grpo
}

impl RLJob {
    /// The object with every default filled in, those that depend on other fields included. Reading a manifest or an object
    /// already fills the independent ones; this fills `parallelism.dp`, a decaying schedule's `decaySteps`, `batch.globalBatchSize`, `batch.overSampling`,
    /// `maxStaleness`, `stalenessPolicy` and `deletionPolicy`. Idempotent.
    pub fn defaulted(&self) -> RLJob {
        let mut job = self.clone();
        let s = &mut job.spec;
        s.trainer.parallelism.dp = Some(s.trainer.dp());
        let rollouts = s.batch.prompts_per_step.saturating_mul(s.sampling.samples_per_prompt);
        s.batch.global_batch_size.get_or_insert(rollouts);
        s.batch.over_sampling.get_or_insert(s.batch.prompts_per_step);
        if s.mode == Mode::Async {
            s.max_staleness.get_or_insert(MAX_STALENESS);
            s.staleness_policy.get_or_insert(STALENESS_POLICY);
        }
        let rollouts_per_update = s.batch.global_batch_size.unwrap_or(1).max(1);
        let updates = s.total_steps.saturating_mul(u64::from(rollouts / rollouts_per_update).max(1));
        if s.optimizer.schedule.kind != ScheduleKind::Constant {
            s.optimizer.schedule.decay_steps.get_or_insert(updates);
        }
        if let Some(warm) = &mut s.warm_start
            && warm.optimizer.schedule.kind != ScheduleKind::Constant
        {
            warm.optimizer.schedule.decay_steps.get_or_insert(warm.max_steps);
        }
        let of = |template: bool| if template { ChildPolicy::Delete } else { ChildPolicy::Retain };
        s.deletion_policy.serving.get_or_insert(of(s.serving.template.is_some()));
        s.deletion_policy.rollout.get_or_insert(of(s.rollout.template.is_some()));
        job
    }
}
