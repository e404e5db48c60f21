//! A run that begins with another's commit: the steps, prompts and weights that would have come, and clear words where it cannot.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod world;

use conductor::{Record, RunConfig, State, resumed::Wanted};
use world::{Faults, World, config};

fn plain(asynchronous: bool, total_steps: u64, checkpoint_every: u64) -> RunConfig {
    let mut config = config(asynchronous, false);
    config.frozen.over_sampling = config.frozen.prompts_per_step;
    (config.live.total_steps, config.live.checkpoint_every, config.live.eval) = (total_steps, checkpoint_every, None);
    config
}

fn from(config: &RunConfig, step: Option<u64>) -> RunConfig {
    let mut config = config.clone();
    config.frozen.resume_from = Some(Wanted { run: "other".to_owned(), step });
    config
}

fn committed_at(config: RunConfig, step: u64) -> World {
    let mut other = World::new(4, config, Faults::default());
    let at = |w: &World| w.state().committed_position().is_some_and(|position| position.step == step);
    other.until("the other run has a commit", at);
    other
}

#[test]
fn the_steps_that_would_have_come_are_learnt_with_the_prompts_that_would_have_come() {
    let config = plain(false, 10, 3);
    let mut whole = World::new(3, config.clone(), Faults::default());
    whole.run(0, 100_000);
    let other = committed_at(config.clone(), 6);
    for (seed, step, first) in [(11, None, 6), (12, Some(6), 6), (13, Some(3), 3)] {
        let mut world = World::new(seed, from(&config, step), Faults::default());
        world.resume(&other);
        world.run(0, 100_000);
        world.check_end();
        let mut expected = whole.rows_by_step();
        expected.retain(|step, _| *step >= first);
        assert_eq!(world.rows_by_step(), expected, "from step {first}");
    }
}

#[test]
fn whatever_dies_a_run_that_began_with_anothers_commit_does_everything_once() {
    for seed in 0..40 {
        let config = plain(seed % 2 == 1, 9, 2);
        let other = committed_at(config.clone(), 4);
        let mut world = World::new(seed, from(&config, None), Faults::many());
        world.resume(&other);
        world.run(3_000, 200_000);
        world.check_end();
    }
}

#[test]
fn what_the_other_had_drawn_and_not_learnt_is_drawn_again_and_nothing_twice() {
    let mut config = plain(true, 12, 2);
    (config.frozen.data.rows, config.frozen.max_staleness) = (36, 2);
    let other = committed_at(config.clone(), 4);
    let mut world = World::new(21, from(&config, Some(4)), Faults::default());
    world.resume(&other);
    world.run(0, 100_000);
    world.check_end();
    // One pass over the data in twelve steps of three: each row once, whichever of the two runs learnt it.
    let before = other.rows_by_step().into_iter().filter(|(step, _)| *step < 4);
    let mut rows: Vec<u64> = before.chain(world.rows_by_step()).flat_map(|(_, rows)| rows).collect();
    rows.sort_unstable();
    assert_eq!(rows, (0..36).collect::<Vec<_>>());
}

#[test]
fn over_other_data_the_cursor_begins_anew() {
    let config = plain(false, 8, 3);
    let other = committed_at(config.clone(), 6);
    let mut config = from(&config, None);
    config.frozen.data.sha256 = "of other rows".to_owned();
    let mut fresh = World::new(
        3,
        {
            let mut config = config.clone();
            config.frozen.resume_from = None;
            config
        },
        Faults::default(),
    );
    fresh.run(0, 100_000);
    let mut world = World::new(31, config, Faults::default());
    world.resume(&other);
    world.run(0, 100_000);
    world.check_end();
    let rows = |world: &World, step| world.rows_by_step().remove(&step);
    assert_eq!((rows(&world, 6), rows(&world, 7)), (rows(&fresh, 0), rows(&fresh, 1)));
}

#[test]
fn what_cannot_be_begun_with_fails_the_run_at_once_and_says_what_there_is() {
    let config = plain(false, 10, 3);
    let other = committed_at(config.clone(), 6);
    let nothing = World::new(5, config.clone(), Faults::default());
    let mut warm = config.clone();
    warm.frozen.warm = world::config(false, true).frozen.warm;
    let mut warming = World::new(6, warm.clone(), Faults::default());
    warming.pass_rate = 0.0;
    warming.until("a commit of the warm start", |w| !w.state().commits.is_empty());
    let mut bigger = from(&config, None);
    bigger.frozen.model = "huge".to_owned();
    let short = |total| {
        let mut config = from(&config, None);
        config.live.total_steps = total;
        config
    };
    let cases = [
        (
            &other,
            from(&config, Some(5)),
            "spec.resumeFrom.step: run other has no commit at step 5: it keeps those of step",
        ),
        (&other, bigger, "trained another model (tiny), this one's is huge"),
        (&other, short(6), "spec.totalSteps: the commit of run other is at step 6"),
        (&nothing, from(&config, None), "spec.resumeFrom.run: run other has not begun"),
        (&warming, from(&config, None), "its warm start is not over"),
        (&other, from(&warm, None), "spec.resumeFrom: there is a warmStart too"),
    ];
    for (other, config, says) in cases {
        let mut world = World::new(41, config, Faults::default());
        if other.conductor.is_none() {
            let reason = {
                let from = world.config.frozen.resume_from.as_ref().unwrap();
                conductor::resumed::find(&State::default(), from, &world.config).unwrap_err()
            };
            assert!(reason.contains(says), "{reason}");
            continue;
        }
        world.resume(other);
        world.until("the run to fail", |w| w.state().failure.is_some());
        let reason = world.state().failure.clone().unwrap();
        assert!(reason.contains(says), "{reason}");
        assert!(matches!(world.journal.as_slice(), [Record::Opened { .. }, Record::Failed { .. }, ..]));
    }
}
