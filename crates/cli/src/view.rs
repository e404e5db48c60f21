//! What `thresh run` shows, as text: the header, the live block, one line a step. Pure: updates in, text out.

use std::{collections::BTreeMap, path::Path, time::Duration};

use api::{RLJob, RLJobStatus, conditions as cond};
use control::wire::{Progress, RunPhase, StepRecord, Wait};
use jiff::Timestamp;

const BAR: usize = 20;
/// Longest and shortest curve of the rewards.
const SPARK: (usize, usize) = (16, 8);
/// Steps that the time left is estimated from.
const RECENT: usize = 10;
const LONG_WAIT_MS: i64 = 3000;

/// What is known of a run so far.
#[derive(Clone, Debug, Default)]
pub struct View {
    progress: Option<Progress>,
    status: Option<RLJobStatus>,
    steps: BTreeMap<u64, StepRecord>,
    /// The step that was finished last; behind the others while steps are replayed.
    newest: Option<u64>,
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
        self.newest = Some(step.step);
        self.steps.insert(step.step, step);
    }

    /// The person asked to stop.
    pub fn stopping(&mut self) {
        self.stopping = true;
    }

    /// The live block, no line longer than `width`. What is least needed is left out first.
    pub fn block(&self, now: Timestamp, width: usize) -> String {
        let mut lines = Vec::new();
        let progress = self.progress.as_ref();
        if let Some(progress) = progress.filter(|progress| progress.phase == RunPhase::WarmStart) {
            lines.push(warm(progress, width));
        }
        if let Some(step) = self.newest.and_then(|newest| self.steps.get(&newest)) {
            lines.extend(self.row(step, width));
        }
        if let Some(wait) = self.wait(now) {
            lines.extend(wrapped(&format!(" {wait}"), width, 3));
        }
        let (stop, short) = if self.stopping {
            ("stopping after a checkpoint; Ctrl-C again stops at once", "stopping; Ctrl-C again: at once")
        } else {
            ("Ctrl-C: checkpoint and stop; run again to go on", "Ctrl-C: save and stop")
        };
        match progress.filter(|progress| progress.phase == RunPhase::Rl) {
            Some(progress) => {
                let (step, total) = (self.done(progress), progress.total_steps);
                let done = format!(" {step}/{total} steps");
                let eta = self.eta(progress).map_or(String::new(), |left| format!("eta {}", clock(left)));
                let whole = format!("{done}  {}  {eta:<9}", bar(step, total, BAR));
                lines.push(fitting(
                    width,
                    &[
                        format!("{whole}  {stop}"),
                        format!("{whole}  {short}"),
                        format!("{done}  {eta:<9}  {short}"),
                        format!("{done}  {short}"),
                        done,
                    ],
                ));
            }
            None => lines.push(fitting(width, &[format!(" {stop}"), format!(" {short}")])),
        }
        let lines: Vec<String> = lines.iter().map(|line| clipped(line, width)).collect();
        lines.join("\n")
    }

    /// The heading and the row of a step.
    fn row(&self, step: &StepRecord, width: usize) -> [String; 2] {
        let rewards: Vec<f64> = self.steps.range(..=step.step).map(|(_, step)| step.reward).collect();
        // One scale for the whole run: what is flat looks flat.
        let (low, high) = self
            .steps
            .values()
            .map(|step| step.reward)
            .filter(|reward| reward.is_finite())
            .fold((0.0_f64, 1.0_f64), |(low, high), reward| (low.min(reward), high.max(reward)));
        let version = self.progress.as_ref().map_or(step.weight_version, |progress| progress.weight_version);
        let times = format!(
            "{} / {} / {} s",
            seconds(step.generate_seconds),
            seconds(step.train.seconds),
            seconds(step.publish_seconds)
        );
        let table = |points: usize, columns: usize| {
            let curve = spark(&rewards[rewards.len().saturating_sub(points)..], low, high);
            let cells = [
                // As the bar counts them: so many are finished.
                (5, " step".to_owned(), format!(" {:>4}", step.step + 1)),
                (points + 6, "reward".into(), format!("{:<5.2} {curve}", step.reward)),
                (7, "gap".into(), gap(step.train.gap_max)),
                (7, "version".into(), version.to_string()),
                (8, "tokens/s".into(), thousands(step.tokens_per_second)),
                (0, "gen / train / publish".into(), times.clone()),
            ];
            let line = |pick: &dyn Fn(&(usize, String, String)) -> String| {
                let all: Vec<String> =
                    cells.iter().take(columns).map(|cell| format!("{:<1$}", pick(cell), cell.0)).collect();
                all.join("  ").trim_end().to_owned()
            };
            [line(&|cell| cell.1.clone()), line(&|cell| cell.2.clone())]
        };
        let (most, least) = SPARK;
        let shorter = (least..=most).rev().map(|points| (points, 6));
        let tables = shorter.chain((2..6).rev().map(|columns| (least, columns)));
        let fits = |table: &[String; 2]| table.iter().all(|line| line.chars().count() <= width);
        tables.map(|(points, columns)| table(points, columns)).find(fits).unwrap_or_else(|| table(0, 2))
    }

    /// The one thing the run waits for, if it does not simply train.
    fn wait(&self, now: Timestamp) -> Option<String> {
        let status = self.status.as_ref()?;
        // That no trainer runs is what was asked for.
        if self.stopping {
            return None;
        }
        let ready = cond::get(&status.conditions, cond::TRAINER_READY);
        if let Some(condition) = ready.filter(|condition| condition.status != "True" && !condition.message.is_empty()) {
            return Some(format!("{}: {}", status.phase, condition.message));
        }
        let wait = long_wait(self.progress.as_ref()?, now)?;
        Some(format!("waiting for {} ({})", wait.what, wait.owner))
    }

    /// Steps that are finished, as the row has them: the conductor is asked less often than its steps are read.
    fn done(&self, progress: &Progress) -> u64 {
        self.newest.map_or(progress.step, |newest| newest + 1)
    }

    fn eta(&self, progress: &Progress) -> Option<Duration> {
        // The last few: what came before may have waited for a person, or ran in another layout.
        let first = self.steps.values().nth(self.steps.len().saturating_sub(RECENT))?;
        let last = self.steps.values().next_back()?;
        let done = last.step.checked_sub(first.step).filter(|done| *done > 0)?;
        let each = (last.elapsed_seconds - first.elapsed_seconds) / done as f64;
        let left = progress.total_steps.saturating_sub(self.done(progress)) as f64 * each;
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

fn warm(progress: &Progress, width: usize) -> String {
    let rate = progress.pass_rate.map_or(String::new(), |rate| format!("  pass rate {rate:.2}"));
    let (step, most) = (progress.warm_step, progress.warm_steps_max);
    let whole = format!(" warm start  {}  {step}/{most}{rate}", bar(step, most, BAR));
    fitting(width, &[whole, format!(" warm start  {step}/{most}{rate}"), format!(" warm start  {step}/{most}")])
}

fn bar(done: u64, total: u64, width: usize) -> String {
    let filled = (done.min(total) as usize * width).checked_div(total as usize).unwrap_or(0);
    format!("{}{}", "━".repeat(filled), "─".repeat(width - filled))
}

/// The first of the lines that is short enough, or else the last.
fn fitting(width: usize, lines: &[String]) -> String {
    let fits = |line: &&String| line.trim_end().chars().count() <= width;
    lines.iter().find(fits).or(lines.last()).map(|line| line.trim_end().to_owned()).unwrap_or_default()
}

/// A line cut at `width`.
fn clipped(line: &str, width: usize) -> String {
    if line.chars().count() <= width {
        return line.to_owned();
    }
    let mut cut: String = line.chars().take(width.saturating_sub(1)).collect();
    cut.push('…');
    cut
}

/// One line as lines of at most `width`, broken between words; those after the first are set in by `indent`. A word that is
/// longer has a line of its own.
pub fn wrapped(line: &str, width: usize, indent: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut current = String::new();
    let mut empty = true;
    // Blanks belong to the word behind them, so that columns and what is set in already stay as they are.
    for word in line.split_inclusive(' ') {
        let length = current.chars().count() + word.trim_end().chars().count();
        if !empty && length > width && !word.trim().is_empty() {
            lines.push(current.trim_end().to_owned());
            current = " ".repeat(indent);
        }
        current.push_str(word);
        empty = current.trim().is_empty();
    }
    lines.push(current.trim_end().to_owned());
    lines
}

/// Eight heights between `low` and `high`.
fn spark(values: &[f64], low: f64, high: f64) -> String {
    const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let height = |value: &f64| {
        let share = if high > low { (value - low) / (high - low) } else { 0.0 };
        HEIGHTS[((share * 7.0).round() as usize).min(7)]
    };
    values.iter().map(|value| if value.is_finite() { height(value) } else { '·' }).collect()
}

fn gap(gap: f64) -> String {
    if gap == 0.0 { "0.0".into() } else { format!("{gap:.1e}") }
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

#[cfg(test)]
mod tests {
    use control::wire::TrainMetrics;

    use super::*;

    const WIDE: usize = 119;

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
        insta::assert_snapshot!(view.block(Timestamp::UNIX_EPOCH, WIDE));
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
        insta::assert_snapshot!(view.block(Timestamp::UNIX_EPOCH, WIDE));
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
        let block = view.block(Timestamp::UNIX_EPOCH, WIDE);
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
    fn sparks_span_the_scale_they_are_given_and_survive_what_is_no_number() {
        assert_eq!(spark(&[0.0, 0.5, 1.0], 0.0, 1.0), "▁▅█");
        assert_eq!(spark(&[0.3, 0.31], 0.0, 1.0), "▃▃");
        assert_eq!(spark(&[f64::NAN, 1.0], 0.0, 1.0), "·█");
        assert_eq!(spark(&[], 0.0, 1.0), "");
    }

    fn running() -> View {
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
        view
    }

    #[test]
    fn a_plateau_looks_flat() {
        let mut view = View::default();
        for (number, reward) in [0.1, 0.9, 0.9, 0.901, 0.899, 0.9, 0.902, 0.9, 0.9].into_iter().enumerate() {
            view.step(step(number as u64, reward));
        }
        let block = view.block(Timestamp::UNIX_EPOCH, 79);
        assert!(block.contains("▇▇▇▇▇▇▇▇"), "{block}");
    }

    #[test]
    fn no_line_of_the_block_is_wider_than_the_terminal_and_the_step_is_left_out_last() {
        let mut view = running();
        let mut status = RLJobStatus::default();
        let long = "2 of 4 engines of sort5-grpo-serving are ready, 4 are needed before the trainer begins";
        let now = Timestamp::UNIX_EPOCH;
        cond::set(&mut status.conditions, cond::TRAINER_READY, cond::Truth::False, "Waiting", long, Some(1), now);
        view.status(status);
        for width in 19..130 {
            let block = view.block(now, width);
            let widest = block.lines().map(|line| line.chars().count()).max().unwrap();
            assert!(widest <= width, "{width}:\n{block}");
            assert!(block.contains("13/50 steps"), "{width}:\n{block}");
        }
        let usual = view.block(now, 79);
        assert!(usual.contains("gen / train / publish") && usual.contains("Ctrl-C: save and stop"), "{usual}");
    }

    #[test]
    fn the_row_and_the_bar_count_the_same_steps_also_while_they_are_replayed() {
        let mut view = running();
        assert!(view.block(Timestamp::UNIX_EPOCH, WIDE).contains("\n   13  0.44"));
        view.step(step(9, 0.38));
        let block = view.block(Timestamp::UNIX_EPOCH, WIDE);
        assert!(block.contains("\n   10  0.38") && block.contains("\n 10/50 steps"), "{block}");
        view.step(step(13, 0.46));
        let block = view.block(Timestamp::UNIX_EPOCH, WIDE);
        assert!(
            block.contains("\n   14  0.46") && block.contains("\n 14/50 steps"),
            "before the conductor is asked: {block}"
        );
    }

    #[test]
    fn lines_are_broken_between_words_and_set_in() {
        assert_eq!(wrapped("14:02:11  one two three", 17, 10), ["14:02:11  one two", "          three"]);
        assert_eq!(wrapped("    set in already", 12, 6), ["    set in", "      already"]);
        assert_eq!(wrapped("a /very/long/path/of/one/word b", 12, 2), ["a", "  /very/long/path/of/one/word", "  b"]);
        assert_eq!(wrapped("", 12, 2), [""]);
    }

    #[test]
    fn who_asked_to_stop_is_not_told_that_the_run_is_suspended() {
        let mut view = running();
        let mut status = RLJobStatus { phase: api::Phase::Suspended, ..Default::default() };
        let now = Timestamp::UNIX_EPOCH;
        let message = "set spec.suspend: false to go on";
        cond::set(&mut status.conditions, cond::TRAINER_READY, cond::Truth::False, "Suspended", message, Some(1), now);
        view.status(status);
        assert!(view.block(now, WIDE).contains("Suspended: set spec.suspend: false to go on"));
        view.stopping();
        assert!(!view.block(now, WIDE).contains("spec.suspend"));
    }

    #[test]
    fn times_are_short() {
        assert_eq!(clock(Duration::from_secs(31)), "00:31");
        assert_eq!(clock(Duration::from_secs(3700)), "1:01:40");
    }
}
