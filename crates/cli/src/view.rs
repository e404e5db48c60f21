//! What `thresh run` shows, as text: the header, the live block, one line a step. Pure: updates in, text out.

use std::{collections::BTreeMap, path::Path, time::Duration};

use api::{RLJob, RLJobStatus, conditions as cond};
use control::wire::{Progress, RunPhase, StepRecord, Wait};
use jiff::{Timestamp, tz::TimeZone};

const BAR: usize = 20;
const SPARK: usize = 16;
/// Steps that the time left is estimated from.
const RECENT: usize = 10;
const LONG_WAIT_MS: i64 = 3000;

/// What is known of a run so far.
#[derive(Clone, Debug, Default)]
pub struct View {
    progress: Option<Progress>,
    status: Option<RLJobStatus>,
    steps: BTreeMap<u64, StepRecord>,
    stopping: bool,
}

impl View {
    /// The conductor's news.
    pub fn progress(&mut self, progress: Progress) {
        self.progress = Some(progress);
    }

    /// The RLJob's news.
    pub fn status(&mut self, status: RLJobStatus) {
        self.status = Some(status);
    }

    /// A finished step.
    pub fn step(&mut self, step: StepRecord) {
        self.steps.insert(step.step, step);
    }

    /// The person asked to stop.
    pub fn stopping(&mut self) {
        self.stopping = true;
    }

    /// The live block.
    pub fn block(&self, now: Timestamp) -> String {
        let mut lines = Vec::new();
        let progress = self.progress.as_ref();
        if let Some(progress) = progress.filter(|progress| progress.phase == RunPhase::WarmStart) {
            lines.push(warm(progress));
        }
        if let Some(step) = self.steps.values().next_back() {
            lines.push(" step  reward                  gap      version  tokens/s  gen / train / publish".into());
            lines.push(self.row(step));
        }
        if let Some(wait) = self.wait(now) {
            lines.push(format!(" {wait}"));
        }
        let stop = if self.stopping {
            "stopping after a checkpoint; Ctrl-C again stops at once"
        } else {
            "Ctrl-C: checkpoint and stop; run again to go on"
        };
        match progress.filter(|progress| progress.phase == RunPhase::Rl) {
            Some(progress) => {
                let (step, total) = (progress.step, progress.total_steps);
                let eta = self.eta(progress).map_or(String::new(), |left| format!("eta {}", clock(left)));
                lines.push(format!(" step {step}/{total}  {}  {eta:<9}  {stop}", bar(step, total)));
            }
            None => lines.push(format!(" {stop}")),
        }
        lines.join("\n")
    }

    fn row(&self, step: &StepRecord) -> String {
        let rewards: Vec<f64> = self.steps.values().map(|step| step.reward).collect();
        let version = self.progress.as_ref().map_or(step.weight_version, |progress| progress.weight_version);
        format!(
            " {:>4}  {:<5.2} {:<16}  {:<7}  {:<7}  {:<8}  {} / {} / {} s",
            step.step,
            step.reward,
            spark(&rewards[rewards.len().saturating_sub(SPARK)..]),
            gap(step.train.gap_max),
            version,
            thousands(step.tokens_per_second),
            seconds(step.generate_seconds),
            seconds(step.train.seconds),
            seconds(step.publish_seconds),
        )
    }

    /// The one thing the run waits for, if it does not simply train.
    fn wait(&self, now: Timestamp) -> Option<String> {
        let status = self.status.as_ref()?;
        let ready = cond::get(&status.conditions, cond::TRAINER_READY);
        if let Some(condition) = ready.filter(|condition| condition.status != "True" && !condition.message.is_empty()) {
            return Some(format!("{}: {}", status.phase, condition.message));
        }
        let wait = long_wait(self.progress.as_ref()?, now)?;
        Some(format!("waiting for {} ({})", wait.what, wait.owner))
    }

    fn eta(&self, progress: &Progress) -> Option<Duration> {
        // The last few: what came before may have waited for a person, or ran in another layout.
        let first = self.steps.values().nth(self.steps.len().saturating_sub(RECENT))?;
        let last = self.steps.values().next_back()?;
        let done = last.step.checked_sub(first.step).filter(|done| *done > 0)?;
        let each = (last.elapsed_seconds - first.elapsed_seconds) / done as f64;
        let left = progress.total_steps.saturating_sub(progress.step) as f64 * each;
        Duration::try_from_secs_f64(left).ok()
    }
}

/// The first thing waited for, if that takes so long that it is worth a look: work under way is waited for all the time.
pub fn long_wait(progress: &Progress, now: Timestamp) -> Option<&Wait> {
    let since = |wait: &Wait| now.as_millisecond() - i64::try_from(wait.since_ms).unwrap_or(i64::MAX);
    progress.waits.iter().find(|wait| since(wait) >= LONG_WAIT_MS)
}

/// The first line: what runs where.
pub fn header(job: &RLJob, uid: &str, state: &Path) -> String {
    let trainer = &job.spec.trainer;
    let engines = job.spec.serving.template.as_ref().map_or_else(
        || format!("engines of {}", job.serving_name()),
        |template| {
            format!("engines {} {}", template.spec.replicas, format!("{:?}", template.spec.engine.kind).to_lowercase())
        },
    );
    let workers = job.spec.rollout.template.as_ref().map_or_else(
        || format!("workers of {}", job.rollout_name()),
        |template| format!("workers {}", template.spec.replicas.unwrap_or(1)),
    );
    let vendor = format!("{:?}", trainer.accelerator.vendor).to_lowercase();
    format!(
        "{}  run {}  trainer {vendor} {} ranks (dp {}, tp {})  {engines}  {workers}  state {}",
        job.metadata.name.as_deref().unwrap_or_default(),
        uid.get(..8).unwrap_or(uid),
        trainer.world_size(),
        trainer.dp(),
        trainer.parallelism.tp,
        state.display(),
    )
}

/// One step as `key=value`, for pipes and logs.
pub fn plain(step: &StepRecord) -> String {
    let train = &step.train;
    format!(
        "step={} reward={:.4} reward_std={:.4} gap={:?} gap_tokens={} version={} attempt={} replay={} loss={:.5} \
         entropy={:.4} grad_norm={:.4} response_len={:.2} tokens_per_second={:.0} generate_s={:.3} train_s={:.3} \
         publish_s={:.3} elapsed_s={:.1}",
        step.step,
        step.reward,
        step.reward_std,
        train.gap_max,
        train.gap_tokens,
        step.weight_version,
        step.attempt,
        step.replay,
        train.loss,
        train.entropy,
        train.grad_norm,
        step.response_len,
        step.tokens_per_second,
        step.generate_seconds,
        train.seconds,
        step.publish_seconds,
        step.elapsed_seconds,
    )
}

/// One look at the warm start as `key=value`.
pub fn plain_warm(progress: &Progress) -> String {
    let rate = progress.pass_rate.map_or_else(|| "unknown".into(), |rate| format!("{rate:.4}"));
    format!("warm_step={} warm_steps_max={} pass_rate={rate}", progress.warm_step, progress.warm_steps_max)
}

fn warm(progress: &Progress) -> String {
    let rate = progress.pass_rate.map_or(String::new(), |rate| format!("  pass rate {rate:.2}"));
    let (step, most) = (progress.warm_step, progress.warm_steps_max);
    format!(" warm start  {}  {step}/{most}{rate}", bar(step, most))
}

fn bar(done: u64, total: u64) -> String {
    let filled = (done.min(total) as usize * BAR).checked_div(total as usize).unwrap_or(0);
    format!("{}{}", "━".repeat(filled), "─".repeat(BAR - filled))
}

/// Eight heights between the lowest and the highest value.
pub fn spark(values: &[f64]) -> String {
    const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let (low, high) = values
        .iter()
        .filter(|value| value.is_finite())
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(*value), high.max(*value)));
    let height = |value: &f64| {
        let share = if high > low { (value - low) / (high - low) } else { 0.0 };
        HEIGHTS[((share * 7.0).round() as usize).min(7)]
    };
    values.iter().map(|value| if value.is_finite() { height(value) } else { '·' }).collect()
}

fn gap(gap: f64) -> String {
    if gap == 0.0 { "0".into() } else { format!("{gap:.1e}") }
}

fn thousands(value: f64) -> String {
    if value >= 1000.0 { format!("{:.1}k", value / 1000.0) } else { format!("{value:.0}") }
}

fn seconds(value: f64) -> String {
    if value >= 0.1 { format!("{value:.1}") } else { format!("{value:.2}") }
}

fn clock(left: Duration) -> String {
    let seconds = left.as_secs();
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 { format!("{hours}:{minutes:02}:{seconds:02}") } else { format!("{minutes:02}:{seconds:02}") }
}

/// Time of day on this machine.
pub fn time_of_day(time: Timestamp) -> String {
    time.to_zoned(TimeZone::system()).strftime("%H:%M:%S").to_string()
}

/// How long ago, as `kubectl` writes it.
pub fn age(seconds: i64) -> String {
    match seconds {
        ..120 => format!("{}s", seconds.max(0)),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use control::wire::TrainMetrics;

    use super::*;

    fn step(step: u64, reward: f64) -> StepRecord {
        StepRecord {
            step,
            reward,
            weight_version: step + 1,
            tokens_per_second: 18_400.0,
            generate_seconds: 0.61,
            publish_seconds: 0.05,
            elapsed_seconds: 2.0 * step as f64,
            train: TrainMetrics { seconds: 0.32, ..Default::default() },
            ..Default::default()
        }
    }

    #[test]
    fn the_live_block_shows_step_reward_gap_version_and_what_to_press() {
        let mut view = View::default();
        for number in 0..13 {
            view.step(step(number, 0.2 + 0.02 * number as f64));
        }
        view.progress(Progress {
            phase: RunPhase::Rl,
            step: 13,
            total_steps: 50,
            weight_version: 13,
            ..Default::default()
        });
        insta::assert_snapshot!(view.block(Timestamp::UNIX_EPOCH));
    }

    #[test]
    fn the_warm_start_has_a_bar_and_a_pass_rate() {
        let mut view = View::default();
        view.progress(Progress {
            phase: RunPhase::WarmStart,
            warm_step: 60,
            warm_steps_max: 120,
            pass_rate: Some(0.27),
            ..Default::default()
        });
        insta::assert_snapshot!(view.block(Timestamp::UNIX_EPOCH));
    }

    #[test]
    fn a_run_that_does_not_train_says_what_it_waits_for() {
        let mut view = View::default();
        let mut status = RLJobStatus { phase: api::Phase::Restarting, ..Default::default() };
        cond::set(
            &mut status.conditions,
            cond::TRAINER_READY,
            cond::Truth::False,
            "WaitingForOldPods",
            "r-t1-0 of an earlier attempt has not ended yet",
            Some(1),
            Timestamp::UNIX_EPOCH,
        );
        view.status(status);
        let block = view.block(Timestamp::UNIX_EPOCH);
        assert!(block.contains("Restarting: r-t1-0 of an earlier attempt has not ended yet"), "{block}");
    }

    #[test]
    fn work_under_way_is_no_wait_until_it_takes_long() {
        let wait = |since_ms| Wait { what: "x".into(), owner: "o".into(), since_ms, until_ms: None };
        let progress = Progress { waits: vec![wait(9000), wait(1000)], ..Default::default() };
        let at = |millisecond| Timestamp::from_millisecond(millisecond).unwrap();
        assert_eq!(long_wait(&progress, at(3500)), None);
        assert_eq!(long_wait(&progress, at(4000)).map(|wait| wait.since_ms), Some(1000));
    }

    #[test]
    fn a_step_is_one_line_of_key_and_value() {
        let line = plain(&step(3, 0.5));
        assert!(line.starts_with("step=3 reward=0.5000 "), "{line}");
        assert!(line.split(' ').all(|pair| pair.split_once('=').is_some_and(|(_, value)| !value.is_empty())), "{line}");
    }

    #[test]
    fn sparks_span_their_own_range_and_survive_what_is_no_number() {
        assert_eq!(spark(&[0.0, 0.5, 1.0]), "▁▅█");
        assert_eq!(spark(&[0.3, 0.3]), "▁▁");
        assert_eq!(spark(&[f64::NAN, 1.0]), "·▁");
        assert_eq!(spark(&[]), "");
    }

    #[test]
    fn times_are_short() {
        assert_eq!(clock(Duration::from_secs(31)), "00:31");
        assert_eq!(clock(Duration::from_secs(3700)), "1:01:40");
        assert_eq!((age(59), age(200), age(7300), age(200_000)), ("59s".into(), "3m".into(), "2h".into(), "2d".into()));
    }
}
