//! A run that begins with another's commit goes on as that run would have, to the last bit, wherever its beginning is cut off.

use std::fs;

use crate::local_run::{LocalRun, quickstart_manifest};

const WARM_START: &str = "  warmStart:\n";

/// Eight steps with a commit after every second, a short warm start, and a KL term against the weights it ended with.
fn manifest() -> String {
    let text = quickstart_manifest()
        .replace("stopAtPassRate: 0.25", "stopAtPassRate: 0.05")
        .replace("evalPrompts: 256", "evalPrompts: 64")
        .replace("everySteps: 10", "everySteps: 2")
        .replace("keep: 2", "keep: 3")
        .replace("totalSteps: 50", "totalSteps: 8");
    let at = text.find("    lossReduction:").unwrap();
    format!("{}    kl: {{coef: 0.01, kind: lowVar}}\n{}", &text[..at], &text[at..])
}

/// The same without a warm start, from a commit of `run`.
fn resuming(run: &str, step: u64) -> String {
    let text = manifest();
    let (before, after) = text.split_once(WARM_START).unwrap();
    let rest: String = after.split_inclusive('\n').skip_while(|line| line.starts_with("   ")).collect();
    format!("{before}  resumeFrom: {{run: {run}, step: {step}}}\n{rest}")
}

#[test]
fn it_learns_what_the_other_run_went_on_to_learn_wherever_its_beginning_is_cut_off() {
    let mut first = LocalRun::start(&manifest(), &[], &[]);
    assert_eq!(first.wait(), 0, "{}", first.report());
    let export = |run: &LocalRun| fs::read(run.run_dir().unwrap().join("export/model.safetensors")).unwrap();
    let learnt = |run: &LocalRun| -> Vec<_> {
        let steps = run.steps().into_iter().filter(|record| record.step >= 4);
        steps
            .map(|record| (record.step, record.reward, record.train.loss, record.train.kl, record.train.grad_norm))
            .collect()
    };
    for fault in [
        "",
        "kill:point=copying",
        "kill:point=copying,nth=2",
        "kill:point=copied,nth=1",
        "kill:point=named,nth=1",
        "kill:point=before-journal,record=Opened",
        "kill:point=after-journal,record=Opened",
    ] {
        let mut second =
            LocalRun::start_beside(&first, &resuming(&first.uid(), 4), &[("THRESH_CONDUCTOR_FAULTS", fault)]);
        second.wait_for("the run to begin", |run| (!run.steps().is_empty()).then_some(()));
        // From here on it needs nothing of the other's.
        let runs = second.run_dir().unwrap();
        fs::remove_dir_all(runs.with_file_name(first.uid())).unwrap();
        assert_eq!(second.wait(), 0, "{fault}: {}", second.report());
        let died = second.errors().contains("a fault was ordered here") || has_log(&second, "a fault was ordered here");
        assert_eq!(died, !fault.is_empty(), "{fault}: {}", second.report());
        assert_eq!(learnt(&second), learnt(&first), "{fault}");
        assert!(export(&second) == export(&first), "{fault}: to the last bit");
        let verified = std::process::Command::new(env!("CARGO_BIN_EXE_thresh"))
            .args(["straw", "verify"])
            .arg(second.run_dir().unwrap())
            .output()
            .unwrap();
        assert!(verified.status.success(), "{fault}: {}", String::from_utf8_lossy(&verified.stdout));
        let unfinished = |kind: &str| {
            let entries = fs::read_dir(second.run_dir().unwrap().join(kind)).into_iter().flatten().flatten();
            entries.filter(|entry| entry.file_name().to_string_lossy().ends_with(".tmp")).count()
        };
        assert_eq!(unfinished("tiles") + unfinished("reference"), 0, "{fault}: something half copied was left");
    }
}

#[test]
fn a_commit_that_lacks_a_file_fails_the_run_at_once_and_is_not_waited_for() {
    let mut first = LocalRun::start(&manifest(), &[], &[]);
    assert_eq!(first.wait(), 0, "{}", first.report());
    let tiles = first.run_dir().unwrap().join("tiles");
    // The first that is kept: behind the last one nothing is left to learn.
    let commit = fs::read_dir(tiles).unwrap().flatten().map(|entry| entry.path()).min().unwrap();
    // step-000004-e1
    let step: u64 = commit.file_name().unwrap().to_str().unwrap().split('-').nth(1).unwrap().parse().unwrap();
    let mut files = fs::read_dir(&commit).unwrap().flatten().map(|entry| entry.path());
    fs::remove_file(files.find(|file| file.extension().is_some_and(|kind| kind == "safetensors")).unwrap()).unwrap();
    let mut second = LocalRun::start_beside(&first, &resuming(&first.uid(), step), &[]);
    assert_eq!(second.wait(), 1, "{}", second.report());
    let all = second.output() + &second.errors();
    assert!(
        all.contains(&format!("the commit of run {} at step {step} is damaged", first.uid())),
        "{}",
        second.report()
    );
}

fn has_log(run: &LocalRun, text: &str) -> bool {
    let logs = fs::read_dir(run.state().join("logs")).into_iter().flatten().flatten();
    logs.into_iter().any(|log| fs::read_to_string(log.path()).is_ok_and(|log| log.contains(text)))
}

#[test]
fn a_commit_that_is_not_there_fails_the_run_at_once_and_says_which_there_are() {
    let mut first = LocalRun::start(&manifest(), &[], &[]);
    assert_eq!(first.wait(), 0, "{}", first.report());
    let uid = first.uid();
    let cases = [
        (resuming("nobody", 4), format!("spec.resumeFrom.run: there is no run nobody on this volume; it has {uid}")),
        (
            resuming(&uid, 3),
            format!("spec.resumeFrom.step: run {uid} has no commit at step 3: it keeps those of step 4, 6, 8"),
        ),
    ];
    for (manifest, says) in cases {
        let mut second = LocalRun::start_beside(&first, &manifest, &[]);
        assert_eq!(second.wait(), 1, "{}", second.report());
        let all = second.output() + &second.errors();
        assert!(all.contains(&says), "{says}\n{}", second.report());
    }
}
