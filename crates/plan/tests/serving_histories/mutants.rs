//! Faulty forms of `serving::decide`: each falsifies what it sees or says, as a fault in its source would.

use api::{ServingCluster, ServingClusterStatus, labels};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use plan::serving::decide;
use plan::{Action, Child, ChildKind, Plan, ServingWorld, Settings, build, pod_facts};

type Made = Plan<ServingClusterStatus>;

fn set_partition(plan: &mut Made, to: impl Fn(i32) -> i32) {
    for a in &mut plan.actions {
        if let Action::Apply(Child::StatefulSet(set)) | Action::Create(Child::StatefulSet(set)) = a
            && let Some(strategy) = &mut set.spec.as_mut().unwrap().update_strategy
        {
            let rolling = strategy.rolling_update.as_mut().unwrap();
            rolling.partition = rolling.partition.map(&to);
        }
    }
}

/// More engines may be away than the spec allows.
pub fn greedy(c: &ServingCluster, w: &ServingWorld, now: Timestamp, s: &Settings) -> Made {
    let mut c = c.clone();
    c.spec.updates.max_unavailable = 64;
    decide(&c, w, now, s)
}

/// The partition stays where an edit has put it.
pub fn never_lowered(c: &ServingCluster, w: &ServingWorld, now: Timestamp, s: &Settings) -> Made {
    let mut plan = decide(c, w, now, s);
    let all = c.spec.replicas as i32;
    set_partition(&mut plan, |_| all);
    plan
}

/// The StatefulSet controller rolls as it likes.
pub fn no_partition(c: &ServingCluster, w: &ServingWorld, now: Timestamp, s: &Settings) -> Made {
    let mut plan = decide(c, w, now, s);
    set_partition(&mut plan, |_| 0);
    plan
}

/// What is stuck at a bad revision is left to the StatefulSet controller.
pub fn controller_alone(c: &ServingCluster, w: &ServingWorld, now: Timestamp, s: &Settings) -> Made {
    let mut plan = decide(c, w, now, s);
    plan.actions.retain(|a| !matches!(a, Action::DeletePod { .. }));
    plan
}

/// An engine that is away takes nothing of what may be away, and comes back at the new revision.
pub fn missing_is_free(c: &ServingCluster, w: &ServingWorld, now: Timestamp, s: &Settings) -> Made {
    let mut w = w.clone();
    w.pods.retain(|p| p.metadata.deletion_timestamp.is_none());
    let Some(like) = w.pods.iter().find(|p| pod_facts::ready(p)).cloned() else { return decide(c, &w, now, s) };
    for o in 0..c.spec.replicas {
        let name = format!("{}-{o}", c.metadata.name.as_deref().unwrap());
        if !w.pods.iter().any(|p| pod_facts::name(p) == name) {
            let mut pod = like.clone();
            pod.metadata.name = Some(name);
            let annotations = pod.metadata.annotations.as_mut().unwrap();
            annotations.insert(labels::REVISION.into(), api::hash::engine(&c.spec));
            w.pods.push(pod);
        }
    }
    decide(c, &w, now, s)
}

/// Services are made and never looked at again.
pub fn services_unseen(c: &ServingCluster, w: &ServingWorld, now: Timestamp, s: &Settings) -> Made {
    let mut plan = decide(c, w, now, s);
    plan.actions.retain(|a| !matches!(a, Action::Apply(c) if c.kind() == ChildKind::Service));
    plan
}

/// What is there is as it was rendered.
pub fn only_missing(c: &ServingCluster, w: &ServingWorld, now: Timestamp, s: &Settings) -> Made {
    let mut plan = decide(c, w, now, s);
    let same = |new: &Child| {
        w.children.iter().any(|c| {
            c.kind() == new.kind()
                && c.name() == new.name()
                && c.annotation(labels::REVISION) == new.annotation(labels::REVISION)
        })
    };
    plan.actions.retain(|a| !matches!(a, Action::Apply(c) if same(c)));
    plan
}

/// What an older operator rendered is rendered anew.
pub fn rendered_anew(c: &ServingCluster, w: &ServingWorld, now: Timestamp, s: &Settings) -> Made {
    let mut w = w.clone();
    for child in &mut w.children {
        let annotations = child.metadata_mut().annotations.get_or_insert_default();
        annotations.insert(labels::RENDER_VERSION.into(), plan::drift::RENDER_VERSION.into());
    }
    decide(c, &w, now, s)
}

/// The finalizer goes before the engines have.
pub fn let_go_at_once(c: &ServingCluster, w: &ServingWorld, now: Timestamp, s: &Settings) -> Made {
    let mut plan = decide(c, w, now, s);
    if plan.status.as_ref().is_some_and(|s| s.drain_since.is_some()) {
        plan.actions.push(Action::RemoveFinalizer(labels::SERVING_FINALIZER));
    }
    plan
}

/// The drain begins again at every look.
pub fn waits_for_ever(c: &ServingCluster, w: &ServingWorld, now: Timestamp, s: &Settings) -> Made {
    let mut c = c.clone();
    if let Some(status) = &mut c.status
        && status.drain_since.is_some()
    {
        status.drain_since = Some(MicroTime(now));
    }
    decide(&c, w, now, s)
}

/// Children are made for what is being deleted.
pub fn makes_while_leaving(c: &ServingCluster, w: &ServingWorld, now: Timestamp, s: &Settings) -> Made {
    let mut plan = decide(c, w, now, s);
    if c.metadata.deletion_timestamp.is_some() {
        plan.actions.extend(build::engine_objects(c, "r:1", 0, s.lame_duck).into_iter().map(Action::Create));
    }
    plan
}

/// Who writes is not looked at in a deletion.
pub fn takes_it_from_the_run(c: &ServingCluster, w: &ServingWorld, now: Timestamp, s: &Settings) -> Made {
    let mut c = c.clone();
    if let (Some(status), true) = (&mut c.status, c.metadata.deletion_timestamp.is_some()) {
        status.weights.writer = None;
    }
    decide(&c, w, now, s)
}
