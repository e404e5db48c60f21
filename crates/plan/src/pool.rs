//! The life of a RolloutPool: stateless workers.

use api::{Placement, RolloutPool, RolloutPoolStatus, conditions as cond, hash, labels};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;

use crate::build::{self, Owner};
use crate::{Action, Child, NodeState, Plan, PoolWorld, Settings, pod_facts, validate};

/// Decides what to do about a RolloutPool. Pure and total.
pub fn decide(pool: &RolloutPool, world: &PoolWorld, now: Timestamp, settings: &Settings) -> Plan<RolloutPoolStatus> {
    let old = pool.status.clone().unwrap_or_default();
    let mut plan = Plan::none();
    if pool.metadata.deletion_timestamp.is_some() {
        return plan;
    }
    let mut s = old.clone();
    let generation = pool.metadata.generation;
    s.observed_generation = generation;
    let image = s.image.get_or_insert_with(|| settings.images.rollout.clone()).clone();
    let problems = validate::validate_pool(None, pool);
    if let Some(p) = problems.first() {
        cond::set(
            &mut s.conditions,
            cond::ACCEPTED,
            cond::Truth::False,
            "InvalidSpec",
            &format!("{}: {}; {}", p.path, p.message, p.fix),
            generation,
            now,
        );
    } else {
        cond::set(&mut s.conditions, cond::ACCEPTED, cond::Truth::True, "Valid", "", generation, now);
        s.update_revision = hash::worker(&pool.spec);
        workers(pool, world, &image, &s.update_revision, &mut plan);
        for pod in
            world.pods.iter().filter(|p| pod_facts::node(p).and_then(|n| world.nodes.get(n)) == Some(&NodeState::Gone))
        {
            plan.actions.push(Action::DeletePod {
                name: pod_facts::name(pod).into(),
                uid: pod_facts::uid(pod).into(),
                force: true,
            });
        }
    }
    summarise(pool, world, &mut s, generation, now);
    plan.status = (s != old).then_some(s);
    plan
}

fn workers(pool: &RolloutPool, world: &PoolWorld, image: &str, revision: &str, plan: &mut Plan<RolloutPoolStatus>) {
    let uid = pool.metadata.uid.as_deref().unwrap_or_default();
    let find = |child: &Child| {
        world
            .children
            .iter()
            .find(|c| c.label(labels::POOL_UID) == Some(uid) && c.kind() == child.kind() && c.name() == child.name())
    };
    for child in build::pool_objects(pool, image) {
        let Some(there) = find(&child) else {
            plan.actions.push(Action::Create(child));
            continue;
        };
        let scaled = match there {
            Child::StatefulSet(set) => {
                set.spec.as_ref().and_then(|s| s.replicas) == i32::try_from(pool.spec.replicas.unwrap_or(1)).ok()
            }
            _ => true,
        };
        let same = matches!(child, Child::Service(_)) || there.annotation(labels::REVISION) == Some(revision);
        if !(same && scaled) {
            plan.actions.push(Action::Apply(child));
        }
    }
}

fn summarise(
    pool: &RolloutPool,
    world: &PoolWorld,
    s: &mut RolloutPoolStatus,
    generation: Option<i64>,
    now: Timestamp,
) {
    let count =
        |f: &dyn Fn(&Pod) -> bool| u32::try_from(world.pods.iter().filter(|p| f(p)).count()).unwrap_or(u32::MAX);
    let wanted = match pool.spec.placement {
        Placement::Replicas => pool.spec.replicas.unwrap_or(1),
        Placement::PerNode => world
            .children
            .iter()
            .find_map(|c| match c {
                Child::DaemonSet(d) => d.status.as_ref().and_then(|s| u32::try_from(s.desired_number_scheduled).ok()),
                _ => None,
            })
            .unwrap_or(0),
    };
    s.replicas = wanted;
    s.ready_replicas = count(&pod_facts::ready);
    let revision = s.update_revision.clone();
    let at = |p: &Pod| p.metadata.annotations.as_ref().and_then(|a| a.get(labels::REVISION)) == Some(&revision);
    s.updated_replicas = count(&|p| pod_facts::ready(p) && at(p));
    s.selector = build::selector_text(&Owner::pool(pool).selector("worker"));
    let ready = s.ready_replicas;
    let none = pool.spec.placement == Placement::PerNode && wanted == 0;
    let reason = match (ready > 0, none) {
        (true, _) => "Enough",
        (false, true) => "NoMatchingNodes",
        (false, false) => "BelowMinimum",
    };
    cond::set(
        &mut s.conditions,
        cond::AVAILABLE,
        (ready > 0).into(),
        reason,
        &format!("{ready} of {wanted} workers are ready"),
        generation,
        now,
    );
    let updated = s.updated_replicas;
    let moving = updated < wanted;
    let reason = if moving { "RollingUpdate" } else { "Idle" };
    cond::set(
        &mut s.conditions,
        cond::PROGRESSING,
        moving.into(),
        reason,
        &format!("{updated} of {wanted} workers are at the wanted revision"),
        generation,
        now,
    );
}
