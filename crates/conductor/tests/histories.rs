//! Random histories: whatever dies, and between whichever records, everything happens once.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod world;

use conductor::{GiveBack, Record, State, TooStale};
use world::{Faults, World, config};

/// More in the long form: `THRESH_HISTORIES=10000 cargo test --release -p conductor --test histories`.
fn histories() -> u64 {
    std::env::var("THRESH_HISTORIES").ok().and_then(|n| n.parse().ok()).unwrap_or(60)
}

/// Gives how many records were moved, and how many packs went.
fn play(name: &str, asynchronous: bool, warm: bool, faults: Faults, edit: impl Fn(&mut World)) -> (u64, usize) {
    let mut given_back = (0, 0);
    let mut deaths = std::collections::BTreeMap::new();
    for seed in 0..histories() {
        let mut world = World::new(seed, config(asynchronous, warm), faults);
        edit(&mut world);
        let played = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            world.run(6_000, 200_000);
            world.check_end();
        }));
        if let Err(panic) = played {
            eprintln!("{name}: seed {seed}");
            std::panic::resume_unwind(panic);
        }
        given_back = (given_back.0 + world.moved, given_back.1 + world.removed_packs.len());
        for (who, times) in &world.deaths {
            *deaths.entry(*who).or_insert(0) += times;
        }
    }
    for who in ["conductor", "trainer", "worker", "engine"] {
        let faulty = faults.conductor > 0;
        assert!(!faulty || deaths.get(who).copied().unwrap_or(0) > 0, "{name}: no {who} ever died: {deaths:?}");
    }
    given_back
}

#[test]
fn a_quiet_run_in_sync_mode_learns_every_step_once() {
    play("quiet sync", false, true, Faults::default(), |_| {});
}

#[test]
fn a_quiet_run_in_async_mode_learns_every_step_once() {
    play("quiet async", true, false, Faults::default(), |_| {});
}

#[test]
fn whatever_dies_a_sync_run_with_a_warm_start_does_everything_once() {
    play("sync warm", false, true, Faults::many(), |_| {});
}

#[test]
fn whatever_dies_an_async_run_does_everything_once() {
    play("async", true, false, Faults::many(), |_| {});
}

#[test]
fn whatever_dies_an_async_run_that_drops_stale_groups_does_everything_once() {
    play("async drop", true, true, Faults::many(), |world| world.config.frozen.too_stale = TooStale::Drop);
}

#[test]
fn whatever_dies_packs_are_emptied_and_go_and_nobody_reads_in_vain() {
    let often =
        GiveBack { look_every_ms: 100, settle_ms: 300, live_percent_max: 70, gain_bytes_min: 1, copy_bytes_max: 250 };
    for (name, asynchronous) in [("give back async", true), ("give back sync", false)] {
        let (moved, removed) =
            play(name, asynchronous, !asynchronous, Faults::many(), |world| world.give_back = Some(often));
        assert!(moved > 0 && removed > 0, "{name}: {moved} records moved, {removed} packs removed");
    }
}

#[test]
fn groups_without_spread_are_replaced_when_that_is_asked_for() {
    play("filter", false, false, Faults::many(), |world| {
        world.config.frozen.drop_zero_std = true;
        world.alike = true;
    });
    let mut world = World::new(1, config(false, false), Faults::default());
    world.config.frozen.drop_zero_std = true;
    world.alike = true;
    world.run(0, 100_000);
    let report = world.audit.report();
    assert!(report.dropped.get("zeroStd").copied().unwrap_or(0) > 0, "{report:?}");
}

#[test]
fn sync_groups_are_generated_with_their_steps_own_weights() {
    let mut world = World::new(3, config(false, false), Faults::default());
    world.run(0, 100_000);
    let mut state = State::default();
    let mut batches = 0;
    for record in &world.journal {
        state.apply(record).unwrap();
        if let Record::Accepted { step, .. } = record {
            let batch = &state.batches[step];
            assert_eq!((batch.staleness, batch.version_min), (0, batch.version_max));
            assert_eq!(state.step_of_version(batch.version_min), Some(*step));
            batches += 1;
        }
    }
    assert_eq!(batches, 7);
}

#[test]
fn a_warm_start_that_is_never_right_ends_the_run_with_a_reason() {
    let mut world = World::new(5, config(false, true), Faults::default());
    world.pass_rate = 0.0;
    world.run(0, 100_000);
    let failure = world.state().failure.clone().unwrap();
    assert!(failure.contains("0 of 5") && failure.contains("maxSteps"), "{failure}");
    assert!(!world.state().in_rl());
}
