//! The life of a ServingCluster: engines, the writer's role, one engine after the other when edited.

use api::{RLJob, ServingCluster, ServingClusterStatus, Writer, conditions as cond, hash, labels};
use k8s_openapi::jiff::Timestamp;

use crate::build::{self, Owner};
use crate::{Action, Child, Event, NodeState, Plan, ServingWorld, Settings, micro, pod_facts, validate};

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
    if cluster.metadata.deletion_timestamp.is_some() {
        return plan;
    }
    let mut s = old.clone();
    let generation = cluster.metadata.generation;
    s.observed_generation = generation;
    let image = s.image.get_or_insert_with(|| settings.images.rollout.clone()).clone();
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
        claim(cluster, world, &mut s, &mut plan);
        engines(cluster, world, &mut s, &image, &mut plan);
        lost_pods(world, &mut s, now, settings, &mut plan);
    }
    summarise(cluster, world, &mut s, generation, now);
    plan.status = (s != old).then_some(s);
    plan
}

fn ended(job: &RLJob) -> bool {
    let Some(s) = &job.status else { return false };
    let terminal = cond::is_true(&s.conditions, cond::COMPLETE) || cond::is_true(&s.conditions, cond::FAILED);
    // Its conductor commands engines as long as it lives.
    terminal && cond::get(&s.conditions, cond::CONDUCTOR_READY).is_some_and(|c| c.reason == "Stopped")
}

fn may_write(cluster: &ServingCluster, job: &RLJob) -> bool {
    let name = cluster.metadata.name.as_deref().unwrap_or_default();
    job.serving_name() == name && !ended(job)
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

/// Service and StatefulSet; rendered again only when their meaning changes, and then rolled from the highest ordinal down.
fn engines(
    cluster: &ServingCluster,
    world: &ServingWorld,
    s: &mut ServingClusterStatus,
    image: &str,
    plan: &mut Plan<ServingClusterStatus>,
) {
    let revision = hash::engine(&cluster.spec);
    let uid = cluster.metadata.uid.as_deref().unwrap_or_default();
    let own = |c: &&Child| c.label(labels::SERVING_UID) == Some(uid);
    let there = world.children.iter().filter(own).find_map(|c| match c {
        Child::StatefulSet(set) => Some((c, &**set)),
        _ => None,
    });
    let replicas = cluster.spec.replicas;
    let wanted_partition = partition(cluster, world, &revision);
    let objects = build::engine_objects(cluster, image, wanted_partition);
    for child in objects {
        match (&child, there) {
            (Child::Service(_), _) => {
                if !world.children.iter().filter(own).any(|c| c.kind() == child.kind() && c.name() == child.name()) {
                    plan.actions.push(Action::Create(child));
                }
            }
            (_, None) => plan.actions.push(Action::Create(child)),
            (_, Some((c, set))) => {
                let spec = set.spec.as_ref();
                let same = c.annotation(labels::REVISION) == Some(revision.as_str());
                let scaled = spec.and_then(|s| s.replicas) == i32::try_from(replicas).ok();
                let held = spec
                    .and_then(|s| s.update_strategy.as_ref())
                    .and_then(|u| u.rolling_update.as_ref())
                    .and_then(|r| r.partition)
                    .and_then(|p| u32::try_from(p).ok());
                if !same || !scaled || held != Some(wanted_partition) {
                    plan.actions.push(Action::Apply(child));
                }
            }
        }
    }
    s.update_revision = revision;
}

/// Ordinals below stay as they are. One step down for every engine at the new revision that answers; an engine that does not
/// answer anyway is always replaceable and takes no share of maxUnavailable.
fn partition(cluster: &ServingCluster, world: &ServingWorld, revision: &str) -> u32 {
    let replicas = cluster.spec.replicas;
    let find = |ordinal: u32| world.pods.iter().find(|p| ordinal_of(p) == Some(ordinal));
    let mut away = 0;
    let mut at = replicas;
    while at > 0 {
        let pod = find(at - 1);
        let updated = pod.is_some_and(|p| revision_of(p) == Some(revision));
        let answers = pod.is_some_and(pod_facts::ready);
        if !(updated && answers) {
            if updated || answers {
                away += 1;
            }
            if away > cluster.spec.updates.max_unavailable {
                break;
            }
        }
        at -= 1;
    }
    at
}

fn ordinal_of(pod: &k8s_openapi::api::core::v1::Pod) -> Option<u32> {
    pod_facts::name(pod).rsplit_once('-').and_then(|(_, n)| n.parse().ok())
}

fn revision_of(pod: &k8s_openapi::api::core::v1::Pod) -> Option<&str> {
    pod.metadata.annotations.as_ref().and_then(|a| a.get(labels::REVISION)).map(String::as_str)
}

/// An engine's pod on a lost node would block its ordinal for ever; the version ledger makes its removal safe.
fn lost_pods(
    world: &ServingWorld,
    s: &mut ServingClusterStatus,
    now: Timestamp,
    settings: &Settings,
    plan: &mut Plan<ServingClusterStatus>,
) {
    let lost: Vec<_> = world
        .pods
        .iter()
        .filter(|p| pod_facts::node(p).and_then(|n| world.nodes.get(n)).is_some_and(|n| *n != NodeState::Ready))
        .collect();
    if lost.is_empty() {
        s.lost_since = None;
        return;
    }
    let since = s.lost_since.get_or_insert(micro(now)).0;
    let until = crate::later(since, settings.lost_node_timeout);
    if now < until {
        plan.requeue_at = Some(until);
        return;
    }
    for pod in lost {
        plan.actions.push(Action::DeletePod {
            name: pod_facts::name(pod).into(),
            uid: pod_facts::uid(pod).into(),
            force: true,
        });
    }
    plan.requeue_at = Some(crate::later(now, settings.poll_interval));
}

fn summarise(
    cluster: &ServingCluster,
    world: &ServingWorld,
    s: &mut ServingClusterStatus,
    generation: Option<i64>,
    now: Timestamp,
) {
    let count = |f: &dyn Fn(&k8s_openapi::api::core::v1::Pod) -> bool| {
        u32::try_from(world.pods.iter().filter(|p| f(p)).count()).unwrap_or(u32::MAX)
    };
    s.replicas = count(&|p| p.metadata.deletion_timestamp.is_none() && !pod_facts::ended(p));
    s.ready_replicas = count(&pod_facts::ready);
    let revision = s.update_revision.clone();
    s.updated_replicas = count(&|p| pod_facts::ready(p) && revision_of(p) == Some(&revision));
    s.selector = build::selector_text(&Owner::serving(cluster).selector("engine"));
    let wanted = cluster.spec.replicas;
    let minimum = wanted.saturating_sub(cluster.spec.updates.max_unavailable).max(wanted.min(1));
    let ready = s.ready_replicas;
    let mut set = |type_: &str, truth: cond::Truth, reason: &str, message: String| {
        cond::set(&mut s.conditions, type_, truth, reason, &message, generation, now)
    };
    set(
        cond::AVAILABLE,
        (ready >= minimum).into(),
        if ready >= minimum { "MinimumServable" } else { "BelowMinimum" },
        format!("{ready} of {wanted} engines answer"),
    );
    let updated = s.updated_replicas;
    let (truth, reason) = match () {
        () if updated < wanted && s.replicas >= wanted => (cond::Truth::True, "RollingUpdate"),
        () if s.replicas != wanted => (cond::Truth::True, "Scaling"),
        () => (cond::Truth::False, "Idle"),
    };
    cond::set(
        &mut s.conditions,
        cond::PROGRESSING,
        truth,
        reason,
        &format!("{updated} of {wanted} engines are at the wanted revision"),
        generation,
        now,
    );
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
}
