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
        match a {
            Action::Create(child) | Action::Apply(child) => keep(&mut w.children, child),
            Action::AddFinalizer(f) => c.metadata.finalizers.get_or_insert_default().push((*f).into()),
            _ => {}
        }
    }
    plan.actions
}

fn keep(children: &mut Vec<Child>, child: &Child) {
    children.retain(|o| o.kind() != child.kind() || o.name() != child.name());
    children.push(child.clone());
}

fn condition<'a>(list: &'a [k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition], t: &str) -> (&'a str, &'a str) {
    let c = cond::get(list, t).expect("no such condition");
    (&c.status, &c.reason)
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
fn a_run_never_writes_to_engines_made_for_the_run_before_it_of_the_same_name() {
    let mut c = cluster();
    c.metadata.labels.get_or_insert_default().insert(labels::RLJOB_UID.into(), "uid-before".into());
    let mut after = cases::job();
    after.metadata.uid = Some("uid-after".into());
    assert_eq!(Some(after.serving_name()), c.metadata.name);
    let mut w = ServingWorld { users: vec![after], ..ServingWorld::default() };
    step(&mut c, &mut w, now());
    let writer = |c: &ServingCluster| c.status.as_ref().unwrap().weights.writer.clone().map(|w| w.uid);
    assert_eq!(writer(&c), None, "they are on their way out, and would wait for it for ever");
    // A run that names them may have them, whoever they were made for.
    w.users = vec![user("third", "uid-third", 1)];
    step(&mut c, &mut w, now());
    assert_eq!(writer(&c).as_deref(), Some("uid-third"));
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
    assert_eq!(plan.actions.len(), 2, "{:?}", plan.actions);
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

/// A pool at rest: its children are there, its pods are ready.
fn pool_at_rest(edit: impl FnOnce(&mut api::RolloutPool)) -> (api::RolloutPool, plan::PoolWorld) {
    let mut p = cases::pool();
    p.metadata.uid = Some("uid-pool".into());
    edit(&mut p);
    let mut w = plan::PoolWorld::default();
    pool_step(&mut p, &mut w, now());
    (p, w)
}

fn pool_step(p: &mut api::RolloutPool, w: &mut plan::PoolWorld, at: Timestamp) -> Vec<Action> {
    let plan = plan::pool::decide(p, w, at, &Settings::laptop());
    if let Some(s) = plan.status {
        p.status = Some(s);
    }
    for a in &plan.actions {
        if let Action::Create(child) | Action::Apply(child) = a {
            keep(&mut w.children, child);
        }
    }
    plan.actions
}

fn daemon_set(w: &plan::PoolWorld) -> &k8s_openapi::api::apps::v1::DaemonSet {
    w.children
        .iter()
        .find_map(|c| match c {
            Child::DaemonSet(d) => Some(&**d),
            _ => None,
        })
        .unwrap()
}

#[test]
fn a_paused_pool_runs_nothing_and_says_so_and_comes_back() {
    for placement in [api::Placement::Replicas, api::Placement::PerNode] {
        let (mut p, mut w) = pool_at_rest(|p| {
            p.spec.placement = placement;
            p.spec.replicas = (placement == api::Placement::Replicas).then_some(2);
        });
        let before = w.children.clone();
        p.spec.paused = true;
        assert_eq!(pool_step(&mut p, &mut w, now()).len(), 1);
        match w.children.last().unwrap() {
            Child::StatefulSet(s) => assert_eq!(s.spec.as_ref().unwrap().replicas, Some(0)),
            Child::DaemonSet(d) => {
                let pod = d.spec.as_ref().unwrap().template.spec.as_ref().unwrap();
                assert_eq!(pod.node_selector.as_ref().unwrap()[labels::PAUSED], "true");
            }
            other => panic!("{:?}", other.kind()),
        }
        assert!(pool_step(&mut p, &mut w, now()).is_empty(), "at rest");
        assert_eq!(condition(&p.status.as_ref().unwrap().conditions, cond::AVAILABLE), ("False", "Paused"));
        p.spec.paused = false;
        pool_step(&mut p, &mut w, now());
        assert_eq!(w.children, before);
        assert!(pool_step(&mut p, &mut w, now()).is_empty(), "at rest");
    }
}

#[test]
fn a_pool_of_another_rendering_is_paused_and_keeps_its_pods_otherwise() {
    let (mut p, mut w) = pool_at_rest(|p| {
        p.spec.placement = api::Placement::PerNode;
        p.spec.replicas = None;
    });
    for c in &mut w.children {
        c.metadata_mut().annotations.as_mut().unwrap().insert(labels::RENDER_VERSION.into(), "0".into());
        if let Child::DaemonSet(d) = c {
            let pod = d.spec.as_mut().unwrap().template.spec.as_mut().unwrap();
            pod.containers[0].command.as_mut().unwrap().push("--older".into());
        }
    }
    assert!(pool_step(&mut p, &mut w, now()).is_empty(), "an upgrade rolls nothing");
    for paused in [true, false] {
        p.spec.paused = paused;
        assert_eq!(pool_step(&mut p, &mut w, now()).len(), 1);
        let pod = daemon_set(&w).spec.as_ref().unwrap().template.spec.as_ref().unwrap();
        assert!(pod.containers[0].command.as_ref().unwrap().contains(&"--older".to_owned()));
        assert_eq!(pod.node_selector.as_ref().is_some_and(|s| s.contains_key(labels::PAUSED)), paused);
        assert!(pool_step(&mut p, &mut w, now()).is_empty(), "at rest");
    }
}

#[test]
fn how_many_workers_may_be_away_is_live_and_rolls_nothing() {
    let (mut p, mut w) = pool_at_rest(|p| {
        p.spec.placement = api::Placement::PerNode;
        p.spec.replicas = None;
    });
    let before = daemon_set(&w).spec.as_ref().unwrap().template.clone();
    let share = |w: &plan::PoolWorld| {
        let strategy = daemon_set(w).spec.as_ref().unwrap().update_strategy.clone().unwrap();
        serde_json::to_value(strategy.rolling_update.unwrap().max_unavailable).unwrap()
    };
    assert_eq!(share(&w), "25%");
    p.spec.updates.max_unavailable_percent = 50;
    pool_step(&mut p, &mut w, now());
    assert_eq!(share(&w), "50%");
    assert_eq!(daemon_set(&w).spec.as_ref().unwrap().template, before);
    let updates = api::PoolUpdates { max_unavailable_percent: 25 };
    assert_eq!([0, 1, 4, 5, 8].map(|n| updates.max_unavailable(n)), [1, 1, 1, 2, 2]);
}

#[test]
fn a_worker_on_a_lost_node_is_replaced_in_time_and_one_of_a_daemon_set_only_when_the_node_is_gone() {
    let later = now().checked_add(SignedDuration::from_secs(10)).unwrap();
    let forced = |done: &[Action]| done.iter().filter(|a| matches!(a, Action::DeletePod { force: true, .. })).count();
    for (placement, state, at_once, in_time) in [
        (api::Placement::Replicas, NodeState::Unreachable, 0, 1),
        (api::Placement::Replicas, NodeState::Gone, 1, 1),
        (api::Placement::PerNode, NodeState::Unreachable, 0, 0),
        (api::Placement::PerNode, NodeState::Gone, 1, 1),
    ] {
        let (mut p, mut w) = pool_at_rest(|p| {
            p.spec.placement = placement;
            p.spec.replicas = None;
        });
        let revision = p.status.as_ref().unwrap().update_revision.clone();
        w.pods = vec![engine(0, &revision, false, "lost"), engine(1, &revision, true, "n")];
        w.nodes.insert("lost".into(), state);
        assert_eq!(forced(&pool_step(&mut p, &mut w, now())), at_once, "{placement:?} {state:?}");
        assert_eq!(forced(&pool_step(&mut p, &mut w, later)), in_time, "{placement:?} {state:?}");
    }
}

#[test]
fn what_evictions_may_take_is_live() {
    let mut c = cluster();
    let mut w = ServingWorld::default();
    step(&mut c, &mut w, now());
    c.spec.disruption.max_unavailable = 2;
    let done = step(&mut c, &mut w, now());
    let [Action::Apply(Child::PodDisruptionBudget(budget))] = &done[..] else { panic!("{done:?}") };
    assert_eq!(
        serde_json::to_value(&budget.spec).unwrap(),
        serde_json::json!({
            "maxUnavailable": 2,
            "selector": { "matchLabels": { "thresh.dev/role": "engine", "thresh.dev/servingcluster-uid": "uid-serving" } },
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        })
    );
    assert!(step(&mut c, &mut w, now()).is_empty(), "at rest");
}

#[test]
fn others_find_the_engines_that_answer_at_one_address() {
    let mut c = cluster();
    let mut w = ServingWorld::default();
    step(&mut c, &mut w, now());
    let endpoint = c.status.as_ref().unwrap().endpoint.clone().unwrap();
    assert_eq!(endpoint, "http://sort5-grpo-serving.rl.svc:30000");
    let service =
        w.children.iter().find(|c| c.kind() == ChildKind::Service && c.name() == "sort5-grpo-serving").unwrap();
    let spec = &service.to_json()["spec"];
    assert!(
        spec["clusterIP"].is_null() && spec["publishNotReadyAddresses"].is_null(),
        "only those that are ready: {spec}"
    );
    let mut names: Vec<_> = w.children.iter().map(|c| (c.kind(), c.name())).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), w.children.len());
}

#[test]
fn status_says_what_keeps_an_engine_from_answering() {
    let mut c = cluster();
    c.spec.replicas = 2;
    let mut w = ServingWorld::default();
    step(&mut c, &mut w, now());
    let revision = c.status.as_ref().unwrap().update_revision.clone();
    w.pods = vec![engine(0, &revision, true, "n"), engine(1, &revision, false, "n")];
    w.pods[1].status = serde_json::from_value(serde_json::json!({ "phase": "Pending", "conditions": [
        { "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes are available" }
    ] }))
    .unwrap();
    step(&mut c, &mut w, now());
    let s = c.status.as_ref().unwrap();
    assert_eq!((s.replicas, s.ready_replicas), (2, 1));
    assert_eq!(condition(&s.conditions, cond::PROGRESSING), ("False", "Stuck"));
    let said = &cond::get(&s.conditions, cond::AVAILABLE).unwrap().message;
    assert!(said.contains("sort5-grpo-serving-1: Unschedulable: 0/2 nodes are available"), "{said}");
    // Pull errors take turns with back-offs: that is one trouble, written once.
    let waiting = |reason: &str| {
        serde_json::from_value(serde_json::json!({ "phase": "Pending", "containerStatuses": [{ "name": "engine",
            "image": "x:1", "imageID": "", "ready": false, "restartCount": 0, "state": { "waiting": { "reason": reason } } }] }))
        .unwrap()
    };
    w.pods[1].status = waiting("ErrImagePull");
    step(&mut c, &mut w, now());
    let before = c.status.clone();
    w.pods[1].status = waiting("ImagePullBackOff");
    step(&mut c, &mut w, now());
    assert_eq!(c.status, before);
    assert!(
        cond::get(&before.unwrap().conditions, cond::PROGRESSING).unwrap().message.contains("ImagePull: image x:1")
    );
}
