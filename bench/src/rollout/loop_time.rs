//! Where the time of a step goes.

use anyhow::{Result, ensure};

use super::local_run::{LocalRun, QUIET_STEPS};
use crate::line::{Line, Lines};
use crate::rounds::median;

/// The undisturbed steps of the RL phase.
pub fn rl(run: &LocalRun, lines: &mut Lines) -> Result<()> {
    let records: Vec<_> = run.records().into_iter().take(QUIET_STEPS).collect();
    ensure!(records.len() > 2, "too few steps to tell");
    let pairs: Vec<_> = records.windows(2).map(|pair| (&pair[0], &pair[1])).collect();
    let wall: Vec<f64> = pairs.iter().map(|(a, b)| b.elapsed_seconds - a.elapsed_seconds).collect();
    let of = |part: fn(&control::wire::StepRecord) -> f64| {
        median(&pairs.iter().zip(&wall).map(|((_, b), wall)| part(b) / wall).collect::<Vec<_>>())
    };
    let (first, last) = (&records[0], &records[records.len() - 1]);
    let rate = pairs.len() as f64 / (last.elapsed_seconds - first.elapsed_seconds);
    let tokens: f64 = records[1..].iter().map(|r| r.train.tokens as f64).sum::<f64>() / pairs.len() as f64;
    lines.add(
        Line::new("loop", "RL steps", rate, "steps/s")
            .with("median_step_s", median(&wall))
            .with("tokens_trained_per_s", tokens * rate)
            .with("tokens_per_step", tokens),
    )?;
    let (generate, train, publish) = (of(|r| r.generate_seconds), of(|r| r.train.seconds), of(|r| r.publish_seconds));
    for (part, share) in [("generate and reward", generate), ("train", train), ("engines take weights", publish)] {
        lines.add(Line::new("loop_share", part, share, "of a step"))?;
    }
    let rest = 1.0 - generate - train - publish;
    lines.add(Line::new("loop_share", "the rest: accept, convert, save, write weights", rest, "of a step"))
}

/// The warm start before it, from the run's own clock.
pub fn warm_start(run: &LocalRun, lines: &mut Lines) -> Result<()> {
    let status = run.status();
    let (Some(steps), Some(first)) = (status["progress"]["warmStep"].as_f64(), run.records().into_iter().next()) else {
        return Ok(());
    };
    if steps == 0.0 {
        return Ok(());
    }
    // All of it: start of processes, evaluations and the warm start.
    let line = Line::new("loop", "warm start, with evaluations and start-up", steps / first.elapsed_seconds, "steps/s");
    lines.add(line.with("steps", steps))
}
