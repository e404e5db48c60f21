//! Processes on a node that cannot be reached: taken for dead, replaced, and then they go on where they stopped.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use control::wire::{Progress, StepRecord};
use k8s_openapi::api::core::v1::Pod;
use local::{Fault, event::Event};
use rustix::process::Signal;

use crate::{
    driven_run::{DrivenRun, Told, Zombie, is_stopped},
    local_run::{PATIENCE, repository},
};

/// A node for the conductor, for each engine and for the trainer, and one for the successor of each that is lost.
const NODES: usize = 5;

fn manifest() -> String {
    let chaos = std::fs::read_to_string(repository().join("examples/chaos/rljob.yaml")).unwrap();
    assert!(chaos.contains("totalSteps: 24"));
    chaos.replace("totalSteps: 24", "totalSteps: 100000")
}

fn name(pod: &Pod) -> String {
    plan::pod_facts::name(pod).to_owned()
}

fn node(pod: &Pod) -> String {
    plan::pod_facts::node(pod).unwrap().to_owned()
}

/// Waits until one process of the only pod of `role` has stopped itself, stops the others too, and takes their node away.
fn lose(run: &DrivenRun, role: &str) -> (Vec<Zombie>, String) {
    let since = Instant::now();
    loop {
        let pods = run.pods(role);
        if let [pod] = &pods[..] {
            let pids = run.processes(&name(pod));
            if pids.iter().any(|pid| is_stopped(*pid)) {
                let zombies: Vec<Zombie> = pids.into_iter().map(Zombie::of).collect();
                zombies.iter().for_each(|zombie| zombie.signal(Signal::STOP));
                run.fault(Fault::Unreachable { node: node(pod) });
                return (zombies, node(pod));
            }
        }
        assert!(since.elapsed() < PATIENCE, "no {role} stops itself\n{}", run.report());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Lets zombies go on, and waits until they have ended by themselves, their node still lost.
fn go_on(run: &DrivenRun, zombies: &[Zombie]) {
    assert!(zombies.iter().all(Zombie::lives), "nobody may reach them\n{}", run.report());
    zombies.iter().for_each(|zombie| zombie.signal(Signal::CONT));
    let since = Instant::now();
    while zombies.iter().any(Zombie::lives) {
        assert!(since.elapsed() < PATIENCE, "a zombie does not notice that it is superseded\n{}", run.report());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until more was saved and published than there was at `before`.
fn saved_and_published(run: &DrivenRun, before: &Progress) -> Progress {
    run.progress("the successor to save and to publish", |now| {
        now.commits > before.commits + 1 && now.weight_version > before.weight_version + 1
    })
}

/// Every engine serves the version of the ledger, and goes on doing so.
fn engines_are_current(run: &DrivenRun) {
    let now = run.progress("engines at the ledger's version", |now| {
        now.engines.len() == 2
            && now.engines.iter().all(|engine| engine.admitted && engine.version == now.weight_version)
    });
    saved_and_published(run, &now);
}

fn sound(told: &Told) {
    // Of a replayed step the last record counts.
    let steps: BTreeMap<u64, &StepRecord> = told.steps.iter().map(|record| (record.step, record)).collect();
    let versions: Vec<u64> = steps.values().map(|record| record.weight_version).collect();
    assert!(versions.is_sorted(), "versions only rise: {versions:?}");
    for record in &told.steps {
        assert!(record.train.gap_tokens > 0 && record.train.gap_max == 0.0, "the gap stays 0: {record:?}");
    }
}

fn reasons(events: &[Event]) -> Vec<&str> {
    events.iter().map(|event| event.reason.as_str()).collect()
}

#[test]
fn what_a_superseded_trainer_writes_when_it_goes_on_never_becomes_visible() {
    // With its tiles half-written; with its work done and not yet told; with the weights half-written. Far enough apart that
    // each is over before the next begins.
    let faults = "stop:attempt=1,rank=1,phase=rl,step=4,point=tiles-half;\
                  stop:attempt=2,rank=1,phase=rl,step=80,point=before-report;\
                  stop:attempt=3,rank=0,version=200,point=weights-half";
    let run = DrivenRun::start(&manifest(), NODES, &[("THRESH_FAULTS", faults)]);
    for attempt in 1..=3 {
        let (zombies, lost) = lose(&run, "trainer");
        let before = run.progress("the zombie's claim", |now| now.attempt == attempt);
        run.until("its successor", |told| {
            told.status.as_ref()?.attempt.as_ref().filter(|living| living.id == attempt + 1).map(drop)
        });
        saved_and_published(&run, &before);
        go_on(&run, &zombies);
        engines_are_current(&run);
        run.fault(Fault::Reachable { node: lost });
    }
    let told = run.stop();
    sound(&told);
    assert_eq!(reasons(&told.events).iter().filter(|reason| **reason == "StalePodsFenced").count(), 3);
}

#[test]
fn what_a_superseded_conductor_writes_and_orders_when_it_goes_on_is_refused_or_mended() {
    // With a commit to write; with weights to give to the second engine; with an acceptance written that it has not acted on.
    let faults = "stop:epoch=1,point=before-journal,record=Committed,nth=2;\
                  stop:epoch=2,point=engine-updated,nth=120;\
                  stop:epoch=3,point=after-journal,record=Accepted,nth=60";
    let run = DrivenRun::start(&manifest(), NODES, &[("THRESH_CONDUCTOR_FAULTS", faults)]);
    for epoch in 1..=3 {
        let (zombies, lost) = lose(&run, "conductor");
        let before = run.progress("the zombie's word", |now| now.conductor_epoch == epoch);
        run.progress("its successor", |now| now.conductor_epoch == epoch + 1);
        saved_and_published(&run, &before);
        go_on(&run, &zombies);
        engines_are_current(&run);
        run.fault(Fault::Reachable { node: lost });
    }
    let told = run.stop();
    sound(&told);
    assert_eq!(told.progress.unwrap().conductor_epoch, 4, "none took the run back, started again in its pod or not");
}
