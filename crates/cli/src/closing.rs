//! The closing line of a run, computed from the step records on disk and from nothing else.

use control::wire::StepRecord;

/// Steps averaged at either end.
const ENDS: usize = 5;

/// What the steps of a run say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Closing {
    /// Mean reward of the first five steps.
    pub first: f64,
    /// Mean reward of the last five steps.
    pub last: f64,
    /// Steps on record.
    pub steps: usize,
    /// Largest |trainer - engine| log-prob difference, over the batches' own tokens and over those re-scored.
    pub gap: f64,
    /// Tokens compared for it.
    pub tokens: u64,
    /// Seconds of the whole run, all attempts included.
    pub seconds: f64,
    /// The first step number that is missing below the last one.
    pub missing: Option<u64>,
}

/// When a run counts as having learnt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Criteria {
    /// Least rise of the reward.
    pub climb: f64,
    /// Least reward at the end.
    pub last: f64,
}

/// Those of the quickstart.
pub const QUICKSTART: Criteria = Criteria { climb: 0.25, last: 0.75 };

impl Closing {
    /// From the steps that count, in order; `None` when there is none.
    pub fn of(steps: &[StepRecord]) -> Option<Self> {
        let newest = steps.last()?;
        let ends = ENDS.min(steps.len());
        let mean = |steps: &[StepRecord]| steps.iter().map(|step| step.reward).sum::<f64>() / steps.len() as f64;
        // `f64::max` would pass over a NaN, and a gap that is not a number is not 0.
        let gap = steps
            .iter()
            .flat_map(|step| [step.train.gap_max.abs(), step.rescored_gap_max.abs()])
            .fold(0.0, |most: f64, gap| if most.is_nan() || gap.is_nan() { f64::NAN } else { most.max(gap) });
        Some(Self {
            first: mean(&steps[..ends]),
            last: mean(&steps[steps.len() - ends..]),
            steps: steps.len(),
            gap,
            tokens: steps.iter().map(|step| step.train.gap_tokens + step.rescored_tokens).sum(),
            seconds: newest.elapsed_seconds,
            missing: steps.iter().zip(0..).find(|(step, place)| step.step != *place).map(|(_, place)| place),
        })
    }

    /// What is wrong with it by `criteria`; empty when nothing is.
    pub fn faults(&self, criteria: Criteria) -> Vec<String> {
        let Self { first, last, gap, tokens, missing, steps: _, seconds: _ } = *self;
        let mut faults = Vec::new();
        // Written so that a reward that is not a number is a fault.
        let climbed = last - first >= criteria.climb;
        let arrived = last >= criteria.last;
        if !climbed {
            faults.push(format!(
                "reward {first:.3} -> {last:.3} rose by {:.3}, not by {}",
                last - first,
                criteria.climb
            ));
        }
        if !arrived {
            faults.push(format!("reward at the end is {last:.3}, not {}", criteria.last));
        }
        if gap != 0.0 {
            faults.push(format!("the gap is {gap:e}, not 0"));
        }
        if tokens == 0 {
            faults.push("no token was compared".into());
        }
        if let Some(step) = missing {
            faults.push(format!("step {step} is not on record"));
        }
        faults
    }
}

impl std::fmt::Display for Closing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { first, last, steps, gap, tokens, seconds, missing: _ } = self;
        write!(f, "reward {first:.2} -> {last:.2}, {steps} steps, gap {gap:?} over {tokens} tokens, {seconds:.0} s")
    }
}

/// The last line of `make quickstart`, and whether it is a good one.
pub fn quickstart_line(steps: &[StepRecord]) -> (bool, String) {
    let Some(closing) = Closing::of(steps) else {
        return (false, "quickstart: failed, no step of reinforcement is on record".into());
    };
    let faults = closing.faults(QUICKSTART);
    if faults.is_empty() {
        (true, format!("quickstart: ok, {closing}"))
    } else {
        (false, format!("quickstart: failed, {} ({closing})", faults.join("; ")))
    }
}

#[cfg(test)]
mod tests {
    use control::wire::TrainMetrics;

    use super::*;

    fn steps(rewards: &[f64]) -> Vec<StepRecord> {
        rewards
            .iter()
            .zip(0..)
            .map(|(reward, step)| StepRecord {
                step,
                reward: *reward,
                elapsed_seconds: 3.0 * (step + 1) as f64,
                train: TrainMetrics { gap_tokens: 100, ..Default::default() },
                ..Default::default()
            })
            .collect()
    }

    fn climb(to: f64) -> Vec<StepRecord> {
        let rewards: Vec<f64> = (0..20).map(|step| 0.3 + (to - 0.3) * f64::from(step) / 19.0).collect();
        steps(&rewards)
    }

    #[test]
    fn a_good_run_has_the_agreed_line() {
        let (ok, line) = quickstart_line(&climb(0.99));
        assert!(ok);
        assert_eq!(line, "quickstart: ok, reward 0.37 -> 0.92, 20 steps, gap 0.0 over 2000 tokens, 60 s");
    }

    #[test]
    fn the_mean_of_five_steps_at_either_end_counts() {
        let mut run = steps(&[0.2, 0.2, 0.2, 0.2, 0.2, 0.9, 0.9, 0.9, 0.9, 0.9]);
        let closing = Closing::of(&run).unwrap();
        assert!((closing.first - 0.2).abs() < 1e-12 && (closing.last - 0.9).abs() < 1e-12);
        run[9].reward = 0.0;
        assert!(!quickstart_line(&run).0, "one bad step at the end may pull the mean below");
    }

    #[test]
    fn a_reward_that_did_not_climb_fails() {
        let (ok, line) = quickstart_line(&steps(&[0.8; 20]));
        assert!(!ok);
        assert_eq!(
            line,
            "quickstart: failed, reward 0.800 -> 0.800 rose by 0.000, not by 0.25 \
             (reward 0.80 -> 0.80, 20 steps, gap 0.0 over 2000 tokens, 60 s)"
        );
    }

    #[test]
    fn a_reward_that_climbed_but_not_far_enough_fails() {
        let (ok, line) = quickstart_line(&climb(0.7));
        assert!(!ok && line.contains("reward at the end is 0.658, not 0.75") && !line.contains("rose by"), "{line}");
    }

    #[test]
    fn any_gap_at_any_step_fails() {
        for gap in [1e-7, -1e-7, f64::NAN, f64::INFINITY] {
            let mut run = climb(0.99);
            run[3].train.gap_max = gap;
            let (ok, line) = quickstart_line(&run);
            assert!(!ok && line.contains("the gap is"), "{gap}: {line}");
        }
    }

    #[test]
    fn a_gap_over_no_tokens_fails() {
        let mut run = climb(0.99);
        run.iter_mut().for_each(|step| step.train.gap_tokens = 0);
        let (ok, line) = quickstart_line(&run);
        assert!(!ok && line.contains("no token was compared"), "{line}");
    }

    #[test]
    fn a_missing_step_and_no_step_fail() {
        let mut run = climb(0.99);
        run.remove(7);
        assert!(quickstart_line(&run).1.contains("step 7 is not on record"));
        assert_eq!(quickstart_line(&[]), (false, "quickstart: failed, no step of reinforcement is on record".into()));
    }

    #[test]
    fn a_reward_that_is_no_number_fails() {
        let mut run = climb(0.99);
        run[19].reward = f64::NAN;
        assert!(!quickstart_line(&run).0);
    }
}
