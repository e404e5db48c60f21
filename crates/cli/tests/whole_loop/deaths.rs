//! Every part of a run dies, one after the other, and the run completes with no hand.

use crate::local_run::{LocalRun, Process, quickstart_manifest, signal};
use rustix::process::Signal;

fn ranks(run: &LocalRun) -> Vec<Process> {
    run.processes().into_iter().filter(|process| process.rank.is_some()).collect()
}

fn pids(processes: &[Process]) -> Vec<i32> {
    processes.iter().map(|process| process.pid).collect()
}

fn manifest() -> String {
    quickstart_manifest().replace("everySteps: 10", "everySteps: 4").replace("totalSteps: 50", "totalSteps: 40")
}

#[test]
fn the_run_completes_whatever_dies_and_serving_survives_every_death_but_its_own() {
    let mut run = LocalRun::start(&manifest(), &[], &[]);
    run.wait_for_steps(6);
    let engines = pids(&run.pods("-serving"));
    let workers = pids(&run.pods("-rollout"));
    assert_eq!((engines.len(), workers.len()), (2, 2), "{}", run.report());

    let rank = ranks(&run).into_iter().find(|process| process.rank.as_deref() == Some("1")).unwrap();
    signal(rank.pid, Signal::KILL);
    run.wait_for("a second attempt", |run| ranks(run).iter().any(|p| p.pod.contains("-t2-")).then_some(()));
    assert_eq!(pids(&run.pods("-serving")), engines, "a trainer's death is not the engines'");
    assert_eq!(pids(&run.pods("-rollout")), workers, "nor the workers'");
    let steps = run.steps().len();
    run.wait_for_steps(steps + 3);

    let conductor = run.pods("-conductor").pop().unwrap();
    let trainer = pids(&ranks(&run));
    signal(conductor.pid, Signal::KILL);
    let steps = run.steps().len();
    run.wait_for_steps(steps + 3);
    assert_eq!(pids(&run.pods("-serving")), engines, "a conductor's death is not the engines'");
    assert_eq!(pids(&ranks(&run)), trainer, "nor the trainer's: it waits and goes on");

    signal(workers[0], Signal::KILL);
    let steps = run.steps().len();
    run.wait_for_steps(steps + 3);

    signal(engines[0], Signal::KILL);
    let steps = run.steps().len();
    run.wait_for_steps(steps + 3);

    assert_eq!(run.wait(), 0, "{}", run.report());
    let steps = run.steps();
    assert_eq!(steps.len(), 40);
    assert!(steps.iter().all(|record| record.train.gap_max == 0.0), "the gap stays 0 through every death");
    assert!(steps.iter().any(|record| record.replay), "steps after the last commit were replayed");
    let versions: Vec<u64> = steps.iter().map(|record| record.weight_version).collect();
    assert!(versions.windows(2).all(|pair| pair[0] <= pair[1]), "versions only rise: {versions:?}");
    assert_journal_is_sound(&run);
}

#[test]
fn a_run_with_a_death_learns_exactly_what_a_run_without_learns() {
    let manifest = manifest().replace("totalSteps: 40", "totalSteps: 10");
    let mut quiet = LocalRun::start(&manifest, &[], &[]);
    assert_eq!(quiet.wait(), 0, "{}", quiet.report());
    let mut struck = LocalRun::start(&manifest, &[], &[("THRESH_FAULTS", "kill:rank=0,step=6,point=optimizer")]);
    assert_eq!(struck.wait(), 0, "{}", struck.report());
    assert!(struck.steps().iter().any(|record| record.attempt == 2), "it really died");
    assert_learnt_alike(&quiet, &struck);
}

#[test]
fn stopped_by_hand_it_goes_on_from_its_commit() {
    let manifest = manifest().replace("totalSteps: 40", "totalSteps: 30");
    let mut run = LocalRun::start(&manifest, &[], &[]);
    run.wait_for_steps(5);
    signal(run.pid(), Signal::INT);
    assert_eq!(run.wait(), 130, "{}", run.report());
    assert!(run.processes().is_empty(), "nothing lives on: {:?}", run.processes());
    let before = run.steps().len();
    assert!(before < 30, "it was stopped in the middle");
    run.start_again();
    assert_eq!(run.wait(), 0, "{}", run.report());
    let steps = run.steps();
    assert_eq!(steps.len(), 30);
    assert!(!steps.iter().any(|record| record.replay), "it was saved before it stopped: nothing was learnt twice");
    assert_journal_is_sound(&run);
}

#[test]
fn a_whole_machine_that_dies_goes_on_when_it_is_back() {
    let mut run = LocalRun::start(&manifest(), &[], &[]);
    run.wait_for_steps(7);
    signal(run.pid(), Signal::KILL);
    run.wait();
    run.start_again();
    assert_eq!(run.wait(), 0, "{}", run.report());
    assert_eq!(run.steps().len(), 40);
    assert_journal_is_sound(&run);
}

/// Both learnt the same in each step, and their weights are the same bits.
pub fn assert_learnt_alike(quiet: &LocalRun, struck: &LocalRun) {
    for (a, b) in quiet.steps().iter().zip(struck.steps().iter()) {
        assert_eq!(
            (a.step, a.reward, a.train.loss, a.train.grad_norm),
            (b.step, b.reward, b.train.loss, b.train.grad_norm)
        );
    }
    let export = |run: &LocalRun| std::fs::read(run.run_dir().unwrap().join("export/model.safetensors")).unwrap();
    assert!(export(quiet) == export(struck), "to the last bit");
}

/// Each accepted group in exactly one batch, each batch once in the committed lineage, versions only rise.
pub fn assert_journal_is_sound(run: &LocalRun) {
    let verified = std::process::Command::new(env!("CARGO_BIN_EXE_thresh"))
        .args(["straw", "verify"])
        .arg(run.run_dir().unwrap())
        .output()
        .unwrap();
    let (out, err) = (String::from_utf8_lossy(&verified.stdout), String::from_utf8_lossy(&verified.stderr));
    assert!(verified.status.success(), "{out}\n{err}");
}
