//! Rules of `serving::decide` and `pool::decide`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod cases;

use std::collections::BTreeMap;

use api::{RLJob, RLJobStatus, ServingCluster, conditions as cond, labels};
use k8s_openapi::api::core::v1::{Pod, PodCondition, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use plan::{Action, Child, ChildKind, NodeState, ServingWorld, Settings, serving};

const NOW: i64 = 1_800_000_000;

fn now() -> Timestamp {
    Timestamp::from_second(NOW).unwrap()
}

fn cluster() -> ServingCluster {
    let mut c = cases::cluster();
    c.metadata.uid = Some("uid-serving".into());
    c.metadata.namespace = Some("rl".into());
    c.spec.replicas = 3;
    c
}

fn user(name: &str, uid: &str, created: i64) -> RLJob {
    let mut j = cases::job();
    j.metadata.name = Some(name.into());
    j.metadata.uid = Some(uid.into());
    j.metadata.creation_timestamp = Some(Time(Timestamp::from_second(created).unwrap()));
    j.spec.serving = api::ServingSource {
        ref_: Some(api::NameRef { name: "sort5-grpo-serving".into() }),
        template: None,
        min_ready_percent: 75,
    };
    j
}

fn engine(ordinal: u32, revision: &str, ready: bool, node: &str) -> Pod {
    let condition = PodCondition {
        type_: "Ready".into(),
        status: if ready { "True" } else { "False" }.into(),
        ..PodCondition::default()
    };
    Pod {
        metadata: ObjectMeta {
            name: Some(format!("sort5-grpo-serving-{ordinal}")),
            uid: Some(format!("pod-{ordinal}")),
            annotations: Some(BTreeMap::from([(labels::REVISION.to_owned(), revision.to_owned())])),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec { node_name: Some(node.into()), ..PodSpec::default() }),
        status: Some(PodStatus {
            phase: Some("Running".into()),
            conditions: Some(vec![condition]),
            ..PodStatus::default()
        }),
    }
}

/// Decides, and takes over the status and the children, as an API server would.
fn step(c: &mut ServingCluster, w: &mut ServingWorld, at: Timestamp) -> Vec<Action> {
    let plan = serving::decide(c, w, at, &Settings::laptop());
    if let Some(s) = plan.status {
        c.status = Some(s);
    }
    for a in &plan.actions {
        if let Action::Create(child) | Action::Apply(child) = a {
            w.children.retain(|o| o.kind() != child.kind() || o.name() != child.name());
            w.children.push(child.clone());
        }
    }
    plan.actions
}

fn partition(w: &ServingWorld) -> i32 {
    w.children
        .iter()
        .find_map(|c| match c {
            Child::StatefulSet(s) => s.spec.as_ref()?.update_strategy.as_ref()?.rolling_update.as_ref()?.partition,
            _ => None,
        })
        .unwrap()
}

#[test]
fn first_come_holds_the_writers_role_until_it_has_ended_and_its_conductor_with_it() {
    let mut c = cluster();
    let mut w = ServingWorld { users: vec![user("b", "uid-b", 20), user("a", "uid-a", 10)], ..ServingWorld::default() };
    step(&mut c, &mut w, now());
    let writer = |c: &ServingCluster| c.status.as_ref().unwrap().weights.writer.clone().map(|w| w.rljob);
    assert_eq!(writer(&c).as_deref(), Some("a"));
    let mut status = RLJobStatus::default();
    cond::set(&mut status.conditions, cond::FAILED, cond::Truth::True, "X", "", None, now());
    cond::set(&mut status.conditions, cond::CONDUCTOR_READY, cond::Truth::False, "Stopping", "", None, now());
    w.users[1].status = Some(status.clone());
    step(&mut c, &mut w, now());
    assert_eq!(writer(&c).as_deref(), Some("a"), "its conductor may still command engines");
    cond::set(&mut status.conditions, cond::CONDUCTOR_READY, cond::Truth::False, "Stopped", "", None, now());
    w.users[1].status = Some(status);
    step(&mut c, &mut w, now());
    assert_eq!(writer(&c).as_deref(), Some("b"));
    w.users.remove(0);
    step(&mut c, &mut w, now());
    assert_eq!(writer(&c), None);
}

#[test]
fn an_edit_rolls_one_engine_after_the_other_from_the_top() {
    let mut c = cluster();
    let mut w = ServingWorld::default();
    step(&mut c, &mut w, now());
    let old = c.status.as_ref().unwrap().update_revision.clone();
    w.pods = (0..3).map(|i| engine(i, &old, true, "n")).collect();
    step(&mut c, &mut w, now());
    assert!(step(&mut c, &mut w, now()).is_empty(), "at rest");
    c.spec.engine.max_running_requests = 7;
    step(&mut c, &mut w, now());
    let new = c.status.as_ref().unwrap().update_revision.clone();
    assert_ne!(old, new);
    assert_eq!(partition(&w), 2);
    // The top engine is being replaced: nothing else moves.
    w.pods[2] = engine(2, &new, false, "n");
    step(&mut c, &mut w, now());
    assert_eq!(partition(&w), 2);
    w.pods[2] = engine(2, &new, true, "n");
    step(&mut c, &mut w, now());
    assert_eq!(partition(&w), 1);
    w.pods[1] = engine(1, &new, true, "n");
    step(&mut c, &mut w, now());
    w.pods[0] = engine(0, &new, true, "n");
    step(&mut c, &mut w, now());
    assert_eq!(partition(&w), 0);
    assert!(step(&mut c, &mut w, now()).is_empty(), "at rest");
    assert_eq!(c.status.as_ref().unwrap().updated_replicas, 3);
}

#[test]
fn a_bad_revision_stops_at_max_unavailable_and_a_good_one_replaces_the_unready_at_once() {
    let mut c = cluster();
    let mut w = ServingWorld::default();
    step(&mut c, &mut w, now());
    let old = c.status.as_ref().unwrap().update_revision.clone();
    w.pods = (0..3).map(|i| engine(i, &old, true, "n")).collect();
    c.spec.engine.image = Some("bad".into());
    step(&mut c, &mut w, now());
    let bad = c.status.as_ref().unwrap().update_revision.clone();
    w.pods[2] = engine(2, &bad, false, "n");
    for _ in 0..5 {
        step(&mut c, &mut w, now());
        assert_eq!(partition(&w), 2, "a bad image takes one engine, not all");
    }
    c.spec.engine.image = Some("good".into());
    step(&mut c, &mut w, now());
    assert!(partition(&w) <= 2, "the engine that does not answer is replaced first");
    let good = c.status.as_ref().unwrap().update_revision.clone();
    w.pods[2] = engine(2, &good, true, "n");
    step(&mut c, &mut w, now());
    assert_eq!(partition(&w), 1);
}

#[test]
fn a_count_changes_nothing_but_the_count() {
    let mut c = cluster();
    let mut w = ServingWorld::default();
    step(&mut c, &mut w, now());
    let rev = c.status.as_ref().unwrap().update_revision.clone();
    w.pods = (0..3).map(|i| engine(i, &rev, true, "n")).collect();
    step(&mut c, &mut w, now());
    c.spec.replicas = 5;
    let done = step(&mut c, &mut w, now());
    assert_eq!(done.len(), 1);
    assert_eq!(c.status.as_ref().unwrap().update_revision, rev);
}

#[test]
fn an_engine_on_a_lost_node_is_forced_out_after_the_time_out_only() {
    let mut c = cluster();
    let mut w = ServingWorld::default();
    step(&mut c, &mut w, now());
    let rev = c.status.as_ref().unwrap().update_revision.clone();
    w.pods = vec![engine(0, &rev, true, "n"), engine(1, &rev, false, "lost"), engine(2, &rev, true, "n")];
    w.nodes.insert("lost".into(), NodeState::Unreachable);
    let forced = |done: &[Action]| done.iter().filter(|a| matches!(a, Action::DeletePod { force: true, .. })).count();
    assert_eq!(forced(&step(&mut c, &mut w, now())), 0);
    let later = now().checked_add(SignedDuration::from_secs(10)).unwrap();
    assert_eq!(forced(&step(&mut c, &mut w, later)), 1);
}

#[test]
fn a_pool_is_rendered_again_only_when_its_meaning_changes() {
    let mut p = cases::pool();
    p.metadata.uid = Some("uid-pool".into());
    let mut w = plan::PoolWorld::default();
    let plan = plan::pool::decide(&p, &w, now(), &Settings::laptop());
    assert_eq!(plan.actions.len(), 2);
    for a in plan.actions {
        if let Action::Create(c) = a {
            w.children.push(c);
        }
    }
    p.status = plan.status;
    let other =
        Settings { images: plan::Images { trainer_cpu: "x".into(), rollout: "y".into() }, ..Settings::laptop() };
    assert!(plan::pool::decide(&p, &w, now(), &other).actions.is_empty(), "a new operator rolls nothing");
    p.spec.worker.max_concurrent_groups = 99;
    let plan = plan::pool::decide(&p, &w, now(), &other);
    assert!(matches!(&plan.actions[..], [Action::Apply(c)] if c.kind() == ChildKind::StatefulSet));
}
