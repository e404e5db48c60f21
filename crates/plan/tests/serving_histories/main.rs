//! Histories of a ServingCluster: random interleavings of decisions, a StatefulSet controller, engines that start, fail and
//! drain, evictions, hands and upgrades. Each rule has a faulty form of `decide` that it must catch.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../cases/mod.rs"]
mod cases;
mod mutants;
mod sim;

use api::conditions as cond;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use plan::{Action, Child, ChildKind};
use sim::{Decide, Sim};

const SEEDS: u64 = 150;

/// A rule, as a history that ends in the first breach of it.
type Rule = fn(Decide, u64) -> Result<(), String>;

fn holds(rule: Rule) {
    for seed in 1..=SEEDS {
        rule(plan::serving::decide, seed).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}

#[track_caller]
fn breaks(rule: Rule, decide: Decide) {
    assert!((1..=SEEDS).any(|seed| rule(decide, seed).is_err()), "nothing notices it");
}

/// An edit takes no more engines away at a time than it may, and arrives.
fn an_edit_rolls_within_its_limit(decide: Decide, seed: u64) -> Result<(), String> {
    let mut sim = Sim::at_rest(decide, seed);
    let (all, most) = (sim.cluster.spec.replicas, sim.cluster.spec.updates.max_unavailable);
    // An edit in the middle of a roll: what that one has taken and does not answer yet is there for the next to take, too.
    for (image, away) in [("good-2", most), ("good-3", 2 * most)] {
        let least = all.saturating_sub(away);
        sim.edit(image);
        for _ in 0..sim.roll(120) {
            sim.turn();
            if sim.ready() < least {
                return Err(format!("{} engines answer, {least} must", sim.ready()));
            }
        }
    }
    sim.come_to_rest()?;
    sim.all_at("good-3")
}

/// A bad revision takes no more engines than it may, also when others are evicted meanwhile; a good one heals all of it.
fn a_bad_revision_stops_and_a_good_one_heals(decide: Decide, seed: u64) -> Result<(), String> {
    let mut sim = Sim::at_rest(decide, seed);
    let most = sim.cluster.spec.updates.max_unavailable as usize;
    sim.edit("bad");
    sim.decide();
    for _ in 0..sim.roll(200) {
        if sim.roll(12) == 0 {
            sim.evict();
        }
        sim.turn();
        if sim.at("bad") > most {
            return Err(format!("{} engines are at the bad revision, {most} may", sim.at("bad")));
        }
    }
    sim.come_to_rest()?;
    if sim.at("bad") > most || sim.ready() as usize + sim.at("bad") < sim.cluster.spec.replicas as usize {
        return Err(format!("{} at the bad revision, {} answer", sim.at("bad"), sim.ready()));
    }
    sim.edit("good-2");
    sim.come_to_rest()?;
    sim.all_at("good-2")
}

/// What hands delete or change of ours is as it was; what hands add stays.
fn hands_change_nothing_for_long(decide: Decide, seed: u64) -> Result<(), String> {
    let mut sim = Sim::at_rest(decide, seed);
    for _ in 0..4 {
        sim.hand();
        for _ in 0..sim.roll(6) {
            sim.turn();
        }
    }
    sim.come_to_rest()?;
    sim.as_rendered()?;
    sim.all_at("good-1")
}

/// Another version of the rendering, and other images of the operator, replace no engine; its count and the next edit work.
fn an_upgrade_rolls_nothing(decide: Decide, seed: u64) -> Result<(), String> {
    let mut sim = Sim::at_rest(decide, seed);
    let mut uids = sim.uids();
    sim.upgrade();
    for _ in 0..sim.roll(60) {
        sim.turn();
    }
    sim.cluster.spec.replicas += 1;
    sim.come_to_rest()?;
    let now = sim.uids();
    if uids.iter().any(|u| !now.contains(u)) || sim.ready() != sim.cluster.spec.replicas {
        return Err("an engine was replaced, or one is missing".into());
    }
    sim.edit("good-2");
    sim.come_to_rest()?;
    uids = sim.uids();
    uids.retain(|u| now.contains(u));
    if !uids.is_empty() {
        return Err("the edit did not arrive".into());
    }
    sim.as_rendered()?;
    sim.all_at("good-2")
}

/// A deleted one lets its engines finish, makes nothing, and goes; not before a run that writes to it.
fn a_deletion_drains_and_ends(decide: Decide, seed: u64) -> Result<(), String> {
    let mut sim = Sim::at_rest(decide, seed);
    let held = sim.roll(2) == 0;
    if held {
        sim.claim();
    }
    if sim.roll(2) == 0 {
        sim.edit("good-2");
    }
    sim.cluster.metadata.deletion_timestamp = Some(Time(sim.now));
    if held {
        for _ in 0..sim.roll(20) {
            sim.turn();
        }
        if sim.gone || cond::get(&sim.status().conditions, cond::DRAINED).is_some_and(|c| c.reason != "InUse") {
            return Err("it drains although a run writes to it".into());
        }
        match sim.roll(3) {
            0 => sim.users.clear(),
            1 => sim.users[0].metadata.deletion_timestamp = Some(Time(sim.now)),
            _ => sim.force(),
        }
    }
    let stays = sim.roll(4) == 0;
    sim.pods_stay = stays;
    let began = sim.now;
    for _ in 0..400 {
        sim.turn();
        if sim.drained_at.is_none()
            && cond::get(&sim.status().conditions, cond::DRAINED).is_none_or(|c| c.reason == "InUse")
        {
            continue;
        }
        if sim.last.iter().any(|a| matches!(a, Action::Create(_))) {
            return Err("something is made for what is being deleted".into());
        }
        if sim.gone {
            break;
        }
        if stays {
            sim.wait();
        }
    }
    if !sim.gone {
        return Err("it never ends".into());
    }
    let left = sim.pods.len();
    let grace = i64::from(sim.cluster.spec.updates.drain_timeout_seconds);
    if left > 0 && sim.now.duration_since(began).as_secs() < grace {
        return Err(format!("{left} engines had time left"));
    }
    if left > 0 && !stays {
        return Err(format!("{left} engines are left"));
    }
    Ok(())
}

#[test]
fn an_edit_takes_no_more_engines_than_it_may_and_arrives() {
    holds(an_edit_rolls_within_its_limit);
    breaks(an_edit_rolls_within_its_limit, mutants::greedy);
    breaks(an_edit_rolls_within_its_limit, mutants::never_lowered);
}

#[test]
fn a_bad_image_takes_no_evicted_engine_and_is_healed_by_a_good_one() {
    holds(a_bad_revision_stops_and_a_good_one_heals);
    breaks(a_bad_revision_stops_and_a_good_one_heals, mutants::no_partition);
    breaks(a_bad_revision_stops_and_a_good_one_heals, mutants::controller_alone);
    breaks(a_bad_revision_stops_and_a_good_one_heals, mutants::missing_is_free);
}

#[test]
fn what_hands_delete_or_change_is_restored() {
    holds(hands_change_nothing_for_long);
    breaks(hands_change_nothing_for_long, mutants::services_unseen);
    breaks(hands_change_nothing_for_long, mutants::only_missing);
}

#[test]
fn an_upgrade_of_the_operator_replaces_no_engine() {
    holds(an_upgrade_rolls_nothing);
    breaks(an_upgrade_rolls_nothing, mutants::rendered_anew);
}

#[test]
fn a_deleted_cluster_drains_and_goes_and_not_under_a_run() {
    holds(a_deletion_drains_and_ends);
    breaks(a_deletion_drains_and_ends, mutants::let_go_at_once);
    breaks(a_deletion_drains_and_ends, mutants::waits_for_ever);
    breaks(a_deletion_drains_and_ends, mutants::makes_while_leaving);
    breaks(a_deletion_drains_and_ends, mutants::takes_it_from_the_run);
}

#[test]
fn a_quiet_world_is_left_alone() {
    for seed in 1..=20 {
        let mut sim = Sim::at_rest(plan::serving::decide, seed);
        let writes = sim.writes;
        for _ in 0..20 {
            sim.decide();
            assert!(sim.last.is_empty(), "{:?}", sim.last);
        }
        assert_eq!(sim.writes, writes);
        let budget = sim.children.iter().find(|c| c.kind() == ChildKind::PodDisruptionBudget).unwrap();
        let Child::PodDisruptionBudget(budget) = budget else { unreachable!() };
        assert_eq!(budget.spec.as_ref().unwrap().unhealthy_pod_eviction_policy.as_deref(), Some("AlwaysAllow"));
    }
}
