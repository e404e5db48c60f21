//! What hands, quotas and bad images do to a run's objects, and what is told of it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod cases;
mod sim;

use api::conditions as cond;
use k8s_openapi::jiff;
use plan::{Action, Child, ChildKind};
use sim::Sim;

#[test]
fn a_conductor_begins_again_when_its_engines_or_workers_have_another_token() {
    for kind in [ChildKind::ServingCluster, ChildKind::RolloutPool] {
        let mut sim = Sim::new();
        sim.run();
        let made = |at: i64| {
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::from_second(at).unwrap()))
        };
        let conductor = |sim: &Sim| sim.pods.iter().find(|p| plan::pod_facts::role(p) == "conductor").cloned().unwrap();
        let begin = |sim: &mut Sim, at: i64| {
            let pod = sim.pods.iter_mut().find(|p| plan::pod_facts::role(p) == "conductor").unwrap();
            pod.metadata.creation_timestamp = made(at);
        };
        begin(&mut sim, 100);
        let before = conductor(&sim).metadata.uid;
        let other = |sim: &mut Sim, at: i64, observed: Option<i64>| {
            let child = sim.children.iter_mut().find(|c| c.kind() == kind).unwrap();
            child.metadata_mut().creation_timestamp = made(at);
            match child {
                Child::ServingCluster(s) => s.status.as_mut().unwrap().observed_generation = observed,
                Child::RolloutPool(p) => p.status.get_or_insert_default().observed_generation = observed,
                _ => unreachable!(),
            }
        };
        for (at, observed, why) in [
            (99, Some(1), "it was there before"),
            (100, Some(1), "they began together"),
            (101, None, "it may have no token yet"),
        ] {
            other(&mut sim, at, observed);
            sim.pass();
            assert_eq!(conductor(&sim).metadata.uid, before, "{kind:?}: {why}");
        }
        other(&mut sim, 101, Some(1));
        sim.pass();
        let told = sim.last_events.iter().filter(|e| e.reason == "ConductorRestarted").count();
        let deleted = sim
            .last_actions
            .iter()
            .any(|a| matches!(a, Action::DeletePod { uid, force: false, .. } if Some(uid) == before.as_ref()));
        assert!(deleted && told == 1, "{kind:?}: {:?}", sim.last_actions);
        assert_eq!(sim.status().attempts, 1, "the trainer knows nothing of it");
    }
}

#[test]
fn a_number_that_a_hand_wrote_on_a_job_is_not_counted_on_from() {
    let mut sim = Sim::new();
    sim.run();
    let job = sim.children.iter_mut().find(|c| c.kind() == ChildKind::Job).unwrap();
    let labels = job.metadata_mut().labels.as_mut().unwrap();
    labels.insert(api::labels::ATTEMPT.into(), i64::MAX.to_string());
    sim.run_for_ms(60_000);
    assert_eq!(sim.status().attempts, 2, "the Job was not the living attempt's any more: one new attempt");
    assert_eq!(sim.count(ChildKind::Job), 1);
}

#[test]
fn pods_that_nobody_may_make_are_told_with_where_to_read_why() {
    let mut sim = Sim::with_nodes(2);
    sim.run();
    sim.pods.retain(|p| plan::pod_facts::role(p) != "trainer");
    let said = |sim: &Sim| cond::get(&sim.status().conditions, cond::TRAINER_READY).unwrap().message.clone();
    let attempt = sim.job.status.as_mut().unwrap().attempt.as_mut().unwrap();
    attempt.ready_time = None;
    sim.pass();
    assert!(!said(&sim).contains("do not exist"), "they come within moments: {}", said(&sim));
    sim.advance_ms(10_000);
    sim.pass();
    assert!(
        said(&sim).contains("2 of 2 pods do not exist: the events of Job sort5-grpo-t1 say who refuses it"),
        "{}",
        said(&sim)
    );
}

#[test]
fn a_conductor_that_ends_again_and_again_is_told_with_its_last_words() {
    let mut sim = Sim::new();
    sim.run();
    sim.conductor_up = false;
    let mut looks = |state: serde_json::Value| {
        let pod = sim.pods.iter_mut().find(|p| plan::pod_facts::role(p) == "conductor").unwrap();
        let words = "{\"level\":\"ERROR\",\"message\":\"/v/train.jsonl: No such file\"}\n";
        let container = serde_json::json!({"name": "conductor", "image": "", "imageID": "", "ready": false, "restartCount": 1,
            "state": state, "lastState": {"terminated": {"exitCode": 1, "message": words}}});
        pod.status =
            serde_json::from_value(serde_json::json!({"phase": "Running", "containerStatuses": [container]})).unwrap();
        sim.pass();
        let said = cond::get(&sim.status().conditions, cond::CONDUCTOR_READY).unwrap().message.clone();
        assert!(said.ends_with(": exit code 1: /v/train.jsonl: No such file"), "{said}");
        sim.writes
    };
    let writes = looks(serde_json::json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}));
    assert_eq!(looks(serde_json::json!({"running": {}})), writes, "it takes turns, and is told once");
}
