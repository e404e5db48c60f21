//! The life of a RolloutPool: stateless workers.

use api::{Placement, RolloutPool, RolloutPoolStatus, conditions as cond, hash, labels};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;

use crate::build::{self, Owner};
use crate::roll::{self, Roll};
use crate::{Action, Child, NodeState, Plan, PoolWorld, Settings, drift, lost, pod_facts, trouble, validate};

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
        // A DaemonSet makes no second pod for a node that may come back: there, only nodes that are gone count.
        let mut nodes = world.nodes.clone();
        nodes.retain(|_, state| pool.spec.placement == Placement::Replicas || *state == NodeState::Gone);
        plan.requeue_at = lost::pods(&world.pods, &nodes, &mut s.lost_since, now, settings, &mut plan.actions);
    }
    let again = summarise(pool, world, &mut s, generation, now);
    plan.requeue_at = [plan.requeue_at, again].into_iter().flatten().min();
    plan.status = (s != old).then_some(s);
    plan
}

/// Service, and StatefulSet or DaemonSet: made if missing, brought back if edited by hand, rolled when their meaning changes.
fn workers(pool: &RolloutPool, world: &PoolWorld, image: &str, revision: &str, plan: &mut Plan<RolloutPoolStatus>) {
    let uid = pool.metadata.uid.as_deref().unwrap_or_default();
    let own = || world.children.iter().filter(|c| c.label(labels::POOL_UID) == Some(uid));
    let set = own().find_map(|c| match c {
        Child::StatefulSet(set) => Some(&**set),
        _ => None,
    });
    let replicas = build::pool_replicas(pool);
    let max_unavailable = pool.spec.updates.max_unavailable(replicas);
    let roll = Roll { pods: &world.pods, set, replicas, revision, max_unavailable };
    let partition = roll.partition();
    for child in build::pool_objects(pool, image, partition) {
        match own().find(|c| c.kind() == child.kind() && c.name() == child.name()) {
            None => plan.actions.push(Action::Create(child)),
            Some(live) => plan.actions.extend(drift::mended(live, child).map(Action::Apply)),
        }
    }
    plan.actions.extend(roll.outdated_pods(partition));
}

fn summarise(
    pool: &RolloutPool,
    world: &PoolWorld,
    s: &mut RolloutPoolStatus,
    generation: Option<i64>,
    now: Timestamp,
) -> Option<Timestamp> {
    let count =
        |f: &dyn Fn(&Pod) -> bool| u32::try_from(world.pods.iter().filter(|p| f(p)).count()).unwrap_or(u32::MAX);
    let wanted = match pool.spec.placement {
        Placement::Replicas => build::pool_replicas(pool),
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
    let at = |p: &Pod| roll::revision_of(&p.metadata.annotations) == Some(&revision);
    s.updated_replicas = count(&|p| pod_facts::ready(p) && at(p));
    s.selector = build::selector_text(&Owner::pool(pool).selector("worker"));
    let (ready, updated) = (s.ready_replicas, s.updated_replicas);
    let minimum = wanted.saturating_sub(pool.spec.updates.max_unavailable(wanted)).max(1);
    let enough = ready >= minimum && !pool.spec.paused;
    let nowhere = pool.spec.placement == Placement::PerNode && wanted == 0;
    let reason = match () {
        () if pool.spec.paused => "Paused",
        () if enough => "Enough",
        () if nowhere => "NoMatchingNodes",
        () => "BelowMinimum",
    };
    let stuck = trouble::first(&world.pods).filter(|_| ready < wanted);
    let there = count(&|p| !pod_facts::ended(p));
    let made = world.children.iter().find_map(|c| match c {
        Child::StatefulSet(_) => Some(("StatefulSet", c.name())),
        Child::DaemonSet(_) => Some(("DaemonSet", c.name())),
        _ => None,
    });
    let (missing, again) = trouble::missing(&s.conditions, (count(&|_| true), wanted), made, now);
    let because = stuck.as_ref().or(missing.as_ref()).map(|why| format!("; {why}")).unwrap_or_default();
    let message = format!("{ready} of {wanted} workers are ready{because}");
    cond::set(&mut s.conditions, cond::AVAILABLE, enough.into(), reason, &message, generation, now);
    let old = world.pods.iter().any(|p| !at(p));
    let (truth, reason) = match stuck {
        _ if updated >= wanted && there == wanted => {
            (cond::Truth::False, if pool.spec.paused { "Paused" } else { "Idle" })
        }
        Some(_) => (cond::Truth::False, "Stuck"),
        None if old => (cond::Truth::True, "RollingUpdate"),
        None => (cond::Truth::True, "Scaling"),
    };
    let message = format!("{updated} of {wanted} workers are at the wanted revision{because}");
    cond::set(&mut s.conditions, cond::PROGRESSING, truth, reason, &message, generation, now);
    again
}
