//! The volume is full, or gone: the run waits, says why, and goes on when it can.

use std::{fs, path::PathBuf, process::Command};

use local::Fault;

use crate::{
    driven_run::DrivenRun,
    local_run::{LocalRun, repository},
};

fn manifest() -> String {
    let chaos = fs::read_to_string(repository().join("examples/chaos/rljob.yaml")).unwrap();
    assert!(chaos.contains("totalSteps: 24"));
    chaos.replace("totalSteps: 24", "totalSteps: 100000")
}

/// The state folder as a run in a mount namespace of its own sees it.
fn inside(run: &LocalRun, path: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{}/root{}", run.pid(), run.state().join(path).display()))
}

#[test]
fn a_full_disk_is_waited_for_by_every_part_and_costs_no_attempt() {
    if !Command::new("unshare").args(["-Urm", "true"]).status().is_ok_and(|status| status.success()) {
        eprintln!("left out: a disk of its own needs user namespaces, which this machine does not allow");
        return;
    }
    // Everything is on it: the volume, and what the operator and the node remember.
    let mut run = LocalRun::start_on_a_disk_of(&manifest(), 96);
    let steps = |run: &LocalRun| {
        let runs = fs::read_dir(inside(run, "volumes/thresh-data/runs")).ok()?.flatten().next()?;
        let text = fs::read_to_string(runs.path().join("steps.jsonl")).ok()?;
        Some(text.lines().count())
    };
    run.wait_for("steps", |run| steps(run).filter(|steps| *steps >= 6));

    let ballast = inside(&run, "ballast");
    let fill = || {
        use std::io::Write;
        let mut file = fs::OpenOptions::new().create(true).append(true).open(&ballast).unwrap();
        while file.write_all(&[7; 4096]).is_ok() {}
    };
    fill();
    run.wait_for("the reason", |run| {
        // What the run itself gives back is taken again.
        fill();
        run.output().contains("event=WaitingForStorage").then_some(())
    });
    let told = run.output();
    let line = told.lines().find(|line| line.contains("event=WaitingForStorage")).unwrap();
    assert!(line.contains("no space left") || line.contains("No space left"), "{line}");
    std::thread::sleep(std::time::Duration::from_secs(5));
    let stuck = steps(&run).unwrap();

    fs::remove_file(&ballast).unwrap();
    run.wait_for("steps again", |run| steps(run).filter(|steps| *steps >= stuck + 10));
    assert!(run.output().contains("event=StorageBack"), "{}", run.report());
    let status = run.wait_for("the status file", |run| {
        serde_json::from_slice::<serde_json::Value>(&fs::read(inside(run, "status.json")).ok()?).ok()
    });
    assert_eq!(status["job"]["attempts"], 1, "{}", run.report());
    let restarts: u64 = status["pods"].as_array().unwrap().iter().map(|pod| pod["restarts"].as_u64().unwrap()).sum();
    assert_eq!(restarts, 0, "nobody died of it: {status:#}");
}

#[test]
fn a_lost_mount_is_waited_for_and_the_run_goes_on_when_it_is_back() {
    let run = DrivenRun::start(&manifest(), 1, &[]);
    run.progress("steps", |now| now.step >= 6);
    let claim = || "thresh-data".to_owned();
    run.fault(Fault::MountLost { claim: claim() });
    let reason = run.until("the reason", |told| {
        told.events.iter().find(|event| event.reason == "WaitingForStorage").map(|event| event.text.clone())
    });
    assert!(!reason.is_empty());
    std::thread::sleep(std::time::Duration::from_secs(5));
    assert!(!run.volume().exists(), "nothing is written where the mount should be: {}", run.report());
    run.fault(Fault::MountBack { claim: claim() });
    let back = run.progress("the conductor", |_| true);
    run.progress("steps again", |now| now.step >= back.step + 10);
    let told = run.stop();
    assert_eq!(told.status.unwrap().attempts, 1);
}
