//! The life of a ServingCluster: engines, the writer's role, one engine after the other when edited, a drain at its end.

use api::{RLJob, ServingCluster, ServingClusterStatus, Writer, conditions as cond, hash, labels};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::jiff::Timestamp;

use crate::build::{self, Owner};
use crate::roll::{self, Roll};
use crate::{Action, Child, Event, Plan, ServingWorld, Settings, drift, lost, micro, pod_facts, trouble, validate};

/// Decides what to do about a ServingCluster. Pure and total. It never looks at a trainer: only at its own spec, its own pods,
/// and which RLJobs name it.
pub fn decide(
    cluster: &ServingCluster,
    world: &ServingWorld,
    now: Timestamp,
    settings: &Settings,
) -> Plan<ServingClusterStatus> {
    let old = cluster.status.clone().unwrap_or_default();
    let mut plan = Plan::none();
    let ours = cluster.metadata.finalizers.iter().flatten().any(|f| f == labels::SERVING_FINALIZER);
    let deleted = cluster.metadata.deletion_timestamp.is_some();
    if deleted && !ours {
        return plan;
    }
    let mut s = old.clone();
    let generation = cluster.metadata.generation;
    s.observed_generation = generation;
    let image = s.image.get_or_insert_with(|| settings.images.rollout.clone()).clone();
    if deleted && !in_use(cluster, world, &s) {
        drain(cluster, world, &mut s, now, settings, &mut plan);
        plan.status = (s != old).then_some(s);
        return plan;
    }
    if deleted {
        // It serves on until it is let go; only nobody else gets it.
        let who = s.weights.writer.as_ref().map(|w| w.rljob.clone()).unwrap_or_default();
        let message = format!(
            "RLJob {who} writes to it: delete or suspend that run first, or annotate {}: \"true\"",
            labels::FORCE_DELETE
        );
        cond::set(&mut s.conditions, cond::DRAINED, cond::Truth::False, "InUse", &message, generation, now);
    } else if !ours {
        plan.actions.push(Action::AddFinalizer(labels::SERVING_FINALIZER));
    }
    let problems = validate::validate_serving(None, cluster);
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
        if !deleted {
            claim(cluster, world, &mut s, &mut plan);
        }
        learn_versions(world, &mut s);
        engines(cluster, world, &mut s, &image, settings, &mut plan);
        plan.requeue_at = lost::pods(&world.pods, &world.nodes, &mut s.lost_since, now, settings, &mut plan.actions);
    }
    let again = summarise(cluster, world, &mut s, generation, now);
    plan.requeue_at = [plan.requeue_at, again].into_iter().flatten().min();
    plan.status = (s != old).then_some(s);
    plan
}

/// A run that lives writes to it, and nobody has said that this does not matter. A run that is itself being deleted does not
/// count: it may own this object, and neither must wait for the other.
fn in_use(cluster: &ServingCluster, world: &ServingWorld, s: &ServingClusterStatus) -> bool {
    let forced = cluster.metadata.annotations.as_ref().and_then(|a| a.get(labels::FORCE_DELETE));
    if s.drain_since.is_some() || forced.is_some_and(|f| f == "true") {
        return false;
    }
    s.weights.writer.as_ref().is_some_and(|w| {
        world.users.iter().any(|j| {
            j.metadata.uid.as_deref() == Some(&w.uid)
                && may_write(cluster, j)
                && j.metadata.deletion_timestamp.is_none()
        })
    })
}

/// The end: engines finish what they have and go, then the finalizer does. Nothing is created here, so it ends also in a
/// namespace that is being deleted.
fn drain(
    cluster: &ServingCluster,
    world: &ServingWorld,
    s: &mut ServingClusterStatus,
    now: Timestamp,
    settings: &Settings,
    plan: &mut Plan<ServingClusterStatus>,
) {
    let begins = s.drain_since.is_none();
    let since = s.drain_since.get_or_insert(micro(now)).0;
    if begins {
        let note = "the engines finish what they have".to_owned();
        plan.events.push(Event { warning: false, reason: "Draining", note });
    }
    let set = stateful_set(cluster, world);
    let mut emptied = true;
    if let Some((child, set)) = set {
        let zero = set.spec.as_ref().and_then(|s| s.replicas) == Some(0);
        if !zero && set.metadata.deletion_timestamp.is_none() {
            plan.actions.push(Action::Apply(scaled_to_zero(child, set)));
        }
        let status = set.status.as_ref();
        let seen = status.and_then(|s| s.observed_generation) >= set.metadata.generation;
        emptied = zero && seen && status.is_none_or(|s| s.replicas == 0);
    }
    let left: Vec<_> = world.pods.iter().filter(|p| !pod_facts::ended(p)).collect();
    let grace = u64::try_from(build::grace_seconds(cluster, settings.lame_duck)).unwrap_or(0);
    let until = crate::later(crate::later(since, std::time::Duration::from_secs(grace)), settings.stuck_slack);
    let count = |f: &dyn Fn(&k8s_openapi::api::core::v1::Pod) -> bool| {
        u32::try_from(world.pods.iter().filter(|p| f(p)).count()).unwrap_or(u32::MAX)
    };
    s.replicas = count(&|p| p.metadata.deletion_timestamp.is_none() && !pod_facts::ended(p));
    s.ready_replicas = count(&pod_facts::ready);
    s.updated_replicas = s.updated_replicas.min(s.ready_replicas);
    let (truth, reason, message) = match left.first() {
        None if emptied => (cond::Truth::True, "Empty", String::new()),
        _ if now >= until => {
            let names: Vec<&str> = left.iter().map(|p| pod_facts::name(p)).collect();
            (cond::Truth::True, "TimedOut", format!("still there: {}", names.join(", ")))
        }
        _ => (cond::Truth::False, "InFlight", format!("engines that have not ended: {}", left.len())),
    };
    let generation = cluster.metadata.generation;
    cond::set(&mut s.conditions, cond::DRAINED, truth, reason, &message, generation, now);
    let answers = s.ready_replicas > 0;
    let message = format!("engines that answer, and end: {}", s.ready_replicas);
    cond::set(&mut s.conditions, cond::AVAILABLE, answers.into(), "Draining", &message, generation, now);
    if truth == cond::Truth::True {
        plan.actions.push(Action::RemoveFinalizer(labels::SERVING_FINALIZER));
        return;
    }
    let again = lost::pods(&world.pods, &world.nodes, &mut s.lost_since, now, settings, &mut plan.actions);
    plan.requeue_at = Some(again.map_or(until, |t| t.min(until)));
}

/// Nothing but its count changes: no engine that drains is replaced by another.
fn scaled_to_zero(child: &Child, set: &StatefulSet) -> Child {
    let mut zero = StatefulSet { status: None, ..set.clone() };
    zero.metadata = k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
        name: child.metadata().name.clone(),
        namespace: child.metadata().namespace.clone(),
        labels: child.metadata().labels.clone(),
        annotations: child.metadata().annotations.clone(),
        owner_references: child.metadata().owner_references.clone(),
        ..Default::default()
    };
    zero.spec.get_or_insert_default().replicas = Some(0);
    Child::StatefulSet(Box::new(zero))
}

fn stateful_set<'a>(cluster: &ServingCluster, world: &'a ServingWorld) -> Option<(&'a Child, &'a StatefulSet)> {
    let uid = cluster.metadata.uid.as_deref().unwrap_or_default();
    world.children.iter().filter(|c| c.label(labels::SERVING_UID) == Some(uid)).find_map(|c| match c {
        Child::StatefulSet(set) => Some((c, &**set)),
        _ => None,
    })
}

fn ended(job: &RLJob) -> bool {
    let Some(s) = &job.status else { return false };
    let terminal = cond::is_true(&s.conditions, cond::COMPLETE) || cond::is_true(&s.conditions, cond::FAILED);
    // Its conductor commands engines as long as it lives.
    terminal && cond::get(&s.conditions, cond::CONDUCTOR_READY).is_some_and(|c| c.reason == "Stopped")
}

fn may_write(cluster: &ServingCluster, job: &RLJob) -> bool {
    let name = cluster.metadata.name.as_deref().unwrap_or_default();
    // What another controller manages has no conductor of ours, and would hold the role for ever.
    let managed = job.spec.managed_by.as_deref().is_none_or(|manager| manager == api::MANAGER);
    // Of that name, but made from the template of a run before it, or by a person: it may be on its way out.
    let maker = cluster.metadata.labels.as_ref().and_then(|l| l.get(labels::RLJOB_UID));
    let its_own = job.spec.serving.template.is_none() || maker == job.metadata.uid.as_ref();
    managed && its_own && job.serving_name() == name && !ended(job)
}

/// First come holds the writer's role, until it is terminal, deleted or turned elsewhere.
fn claim(
    cluster: &ServingCluster,
    world: &ServingWorld,
    s: &mut ServingClusterStatus,
    plan: &mut Plan<ServingClusterStatus>,
) {
    let holds =
        |w: &Writer| world.users.iter().any(|j| j.metadata.uid.as_deref() == Some(&w.uid) && may_write(cluster, j));
    if let Some(w) = &s.weights.writer
        && !holds(w)
    {
        plan.events.push(Event {
            warning: false,
            reason: "Released",
            note: format!("RLJob {} gave up the writer's role", w.rljob),
        });
        s.weights.writer = None;
    }
    if s.weights.writer.is_none() {
        let terminal = |j: &RLJob| {
            j.status.as_ref().is_some_and(|s| {
                cond::is_true(&s.conditions, cond::COMPLETE) || cond::is_true(&s.conditions, cond::FAILED)
            })
        };
        let next = world
            .users
            .iter()
            .filter(|j| may_write(cluster, j) && !terminal(j) && j.metadata.deletion_timestamp.is_none())
            .min_by_key(|j| (j.metadata.creation_timestamp.as_ref().map(|t| t.0), j.metadata.uid.clone()));
        if let Some(j) = next {
            let rljob = j.metadata.name.clone().unwrap_or_default();
            plan.events.push(Event {
                warning: false,
                reason: "Claimed",
                note: format!("RLJob {rljob} holds the writer's role"),
            });
            s.weights.writer = Some(Writer { rljob, uid: j.metadata.uid.clone().unwrap_or_default() });
        }
    }
}

/// What the writer says of the engines' weights.
fn learn_versions(world: &ServingWorld, s: &mut ServingClusterStatus) {
    let progress = s
        .weights
        .writer
        .as_ref()
        .and_then(|w| world.users.iter().find(|j| j.metadata.uid.as_deref() == Some(&w.uid)))
        .and_then(|j| j.status.as_ref());
    if let Some(status) = progress {
        s.weights.version = status.progress.as_ref().map(|p| p.weight_version).filter(|v| *v > 0).or(s.weights.version);
        s.weights.min_version = status.serving.as_ref().and_then(|v| v.min_weight_version).or(s.weights.min_version);
    }
}

/// Services, budget and StatefulSet: made if missing, brought back if edited by hand; the engines are rolled from the highest
/// ordinal down when their meaning changes.
fn engines(
    cluster: &ServingCluster,
    world: &ServingWorld,
    s: &mut ServingClusterStatus,
    image: &str,
    settings: &Settings,
    plan: &mut Plan<ServingClusterStatus>,
) {
    let revision = hash::engine(&cluster.spec);
    let uid = cluster.metadata.uid.as_deref().unwrap_or_default();
    let set = stateful_set(cluster, world).map(|(_, set)| set);
    let roll = Roll {
        pods: &world.pods,
        set,
        replicas: cluster.spec.replicas,
        revision: &revision,
        max_unavailable: cluster.spec.updates.max_unavailable,
    };
    let partition = roll.partition();
    for child in build::engine_objects(cluster, image, partition, settings.lame_duck) {
        let there = world.children.iter().find(|c| {
            c.label(labels::SERVING_UID) == Some(uid) && c.kind() == child.kind() && c.name() == child.name()
        });
        match there {
            None => plan.actions.push(Action::Create(child)),
            Some(live) => plan.actions.extend(drift::mended(live, child).map(Action::Apply)),
        }
    }
    plan.actions.extend(roll.outdated_pods(partition));
    s.endpoint = Some(build::endpoint(cluster));
    s.update_revision = revision;
    if s.current_revision.is_empty() {
        s.current_revision.clone_from(&s.update_revision);
    }
}

fn summarise(
    cluster: &ServingCluster,
    world: &ServingWorld,
    s: &mut ServingClusterStatus,
    generation: Option<i64>,
    now: Timestamp,
) -> Option<Timestamp> {
    let count = |f: &dyn Fn(&k8s_openapi::api::core::v1::Pod) -> bool| {
        u32::try_from(world.pods.iter().filter(|p| f(p)).count()).unwrap_or(u32::MAX)
    };
    s.replicas = count(&|p| p.metadata.deletion_timestamp.is_none() && !pod_facts::ended(p));
    s.ready_replicas = count(&pod_facts::ready);
    let revision = s.update_revision.clone();
    s.updated_replicas =
        count(&|p| pod_facts::ready(p) && roll::revision_of(&p.metadata.annotations) == Some(&revision));
    s.selector = build::selector_text(&Owner::serving(cluster).selector("engine"));
    let wanted = cluster.spec.replicas;
    if s.updated_replicas >= wanted && s.replicas == wanted {
        s.current_revision.clone_from(&s.update_revision);
    }
    let minimum = wanted.saturating_sub(cluster.spec.updates.max_unavailable).max(wanted.min(1));
    let (ready, updated) = (s.ready_replicas, s.updated_replicas);
    let stuck = trouble::first(&world.pods);
    let made = stateful_set(cluster, world).map(|(child, _)| ("StatefulSet", child.name()));
    let there = count(&|_| true);
    let (missing, again) = trouble::missing(&s.conditions, (there, wanted), made, now);
    let why = stuck.as_ref().or(missing.as_ref());
    let because = why.filter(|_| ready < wanted).map(|why| format!("; {why}")).unwrap_or_default();
    let mut set = |type_: &str, truth: cond::Truth, reason: &str, message: String| {
        cond::set(&mut s.conditions, type_, truth, reason, &message, generation, now)
    };
    set(
        cond::AVAILABLE,
        (ready >= minimum).into(),
        if ready >= minimum { "MinimumServable" } else { "BelowMinimum" },
        format!("{ready} of {wanted} engines answer{because}"),
    );
    let old = world.pods.iter().any(|p| roll::revision_of(&p.metadata.annotations) != Some(&revision));
    let (truth, reason) = match stuck {
        _ if updated >= wanted && s.replicas == wanted => (cond::Truth::False, "Idle"),
        Some(_) => (cond::Truth::False, "Stuck"),
        None if old => (cond::Truth::True, "RollingUpdate"),
        None => (cond::Truth::True, "Scaling"),
    };
    let message = format!("{updated} of {wanted} engines are at the wanted revision{because}");
    cond::set(&mut s.conditions, cond::PROGRESSING, truth, reason, &message, generation, now);
    let w = &s.weights;
    let (truth, reason, message) = match (&w.writer, w.version, w.min_version) {
        (None, ..) => (cond::Truth::False, "NoWriter", String::new()),
        (Some(w), None, _) => {
            (cond::Truth::False, "Publishing", format!("RLJob {} has published nothing yet", w.rljob))
        }
        (Some(_), Some(v), Some(m)) if m < v => {
            (cond::Truth::False, "Lagging", format!("an engine serves version {m} of {v}"))
        }
        (Some(_), Some(v), _) => (cond::Truth::True, "AllAtVersion", format!("version {v}")),
    };
    cond::set(&mut s.conditions, cond::WEIGHTS_IN_SYNC, truth, reason, &message, generation, now);
    again
}
