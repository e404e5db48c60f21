//! The quickstart reaches its reward, in both modes, and its closing line cannot be had any other way.

use crate::local_run::{LocalRun, quickstart_manifest};

/// The closing line's numbers: A, B, steps, gap, tokens.
fn closing_line(output: &str) -> Option<(f64, f64, u64, f64, u64)> {
    let line = output.lines().last()?.strip_prefix("quickstart: ok, reward ")?;
    let (a, rest) = line.split_once(" -> ")?;
    let (b, rest) = rest.split_once(", ")?;
    let (steps, rest) = rest.split_once(" steps, gap ")?;
    let (gap, rest) = rest.split_once(" over ")?;
    let (tokens, _) = rest.split_once(" tokens, ")?;
    Some((a.parse().ok()?, b.parse().ok()?, steps.parse().ok()?, gap.parse().ok()?, tokens.parse().ok()?))
}

fn reaches_its_reward(manifest: &str) -> LocalRun {
    let mut run = LocalRun::start(manifest, &["--quickstart-check"], &[]);
    let code = run.wait();
    let (a, b, steps, gap, tokens) =
        closing_line(&run.output()).unwrap_or_else(|| panic!("no closing line\n{}", run.report()));
    assert_eq!(code, 0, "{}", run.report());
    assert!(b - a >= 0.25 && b >= 0.75, "{a} -> {b}");
    assert_eq!(steps, 50);
    assert!(gap == 0.0 && tokens > 0, "gap {gap} over {tokens}");
    let records = run.steps();
    assert_eq!(records.len(), 50);
    assert!(records.windows(2).all(|pair| pair[0].weight_version <= pair[1].weight_version), "versions only rise");
    assert!(run.state().join("reward.svg").is_file());
    assert!(run.processes().is_empty(), "nothing outlives the run: {:?}", run.processes());
    run
}

#[test]
fn the_quickstart_reaches_its_reward_with_a_gap_of_zero() {
    let run = reaches_its_reward(&quickstart_manifest());
    // In Sync mode every generated token is compared.
    for record in run.steps() {
        assert_eq!(record.train.gap_tokens, record.train.loss_tokens, "step {}", record.step);
        assert_eq!(record.staleness_max, 0, "step {}", record.step);
    }
}

#[test]
fn the_asynchronous_loop_reaches_the_same_reward() {
    // Samples of older weights are learnt from, so their importance is corrected for.
    let manifest = quickstart_manifest()
        .replace("mode: Sync", "mode: Async\n  maxStaleness: 1\n  stalenessPolicy: Drop")
        .replace("name: grpo", "name: grpo\n    tis: {low: 0.0, high: 2.0}");
    let run = reaches_its_reward(&manifest);
    let steps = run.steps();
    assert!(steps.iter().all(|record| record.staleness_max <= 1), "staleness stays within its bound");
    assert!(steps.iter().any(|record| record.staleness_max > 0), "it really ran ahead");
}

#[test]
fn without_a_learning_rate_the_quickstart_fails() {
    let manifest = quickstart_manifest().replace("lr: 5e-4", "lr: 0").replace("totalSteps: 50", "totalSteps: 12");
    let mut run = LocalRun::start(&manifest, &["--quickstart-check"], &[]);
    assert_ne!(run.wait(), 0, "{}", run.report());
    let last = run.output().lines().last().unwrap_or_default().to_owned();
    assert!(last.starts_with("quickstart: failed"), "{last}");
}

#[test]
fn one_changed_weight_in_one_published_folder_shows_in_the_gap() {
    let manifest = quickstart_manifest().replace("totalSteps: 50", "totalSteps: 6");
    let mut clean = LocalRun::start(&manifest, &[], &[]);
    assert_eq!(clean.wait(), 0, "{}", clean.report());
    let version = clean.steps()[3].weight_version;
    let fault = format!("flip-weight:version={version}");
    let mut run = LocalRun::start(&manifest, &["--quickstart-check"], &[("THRESH_FAULTS", &fault)]);
    assert_ne!(run.wait(), 0, "{}", run.report());
    for record in run.steps() {
        let flipped = record.weight_version == version;
        assert_eq!(record.train.gap_max > 0.0, flipped, "step {}: gap {}", record.step, record.train.gap_max);
    }
    let last = run.output().lines().last().unwrap_or_default().to_owned();
    assert!(last.starts_with("quickstart: failed") && last.contains("gap"), "{last}");
}
