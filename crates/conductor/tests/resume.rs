//! After everything has died: what the journal and the volume hold is the run, one and whole.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod world;

use std::collections::BTreeSet;

use conductor::{Command, Error, Event, OrderKind, Record, Reply, RunConfig, State, TilesProblem};
use control::wire::{Report, ReportRequest, Start};
use world::{
    Faults, World,
    asks::{claim, complete, granted, is_fenced, lease, stranger},
    config,
};

/// Without anything that this file has no use for: evaluations, and groups beyond a step's own.
fn plain(asynchronous: bool, total_steps: u64, checkpoint_every: u64) -> RunConfig {
    let mut config = config(asynchronous, false);
    config.frozen.over_sampling = config.frozen.prompts_per_step;
    (config.live.total_steps, config.live.checkpoint_every, config.live.eval) = (total_steps, checkpoint_every, None);
    config
}

fn committed(world: &World) -> Option<u64> {
    world.state().committed_position().map(|position| position.step)
}

/// Steps of the batches that were ordered to be learnt from record `from` on.
fn trained_since(world: &World, from: usize) -> Vec<u64> {
    let ordered = world.journal[from..].iter().filter_map(|record| match record {
        Record::Ordered { order: OrderKind::Train { step, .. }, .. } => Some(*step),
        _ => None,
    });
    ordered.collect()
}

#[test]
fn a_resumed_run_goes_on_with_the_step_and_the_prompts_that_would_have_come() {
    let mut whole = World::new(3, plain(false, 10, 6), Faults::default());
    whole.run(0, 100_000);
    let mut world = World::new(4, plain(false, 10, 6), Faults::default());
    world.until("rollouts 0 to 5 are committed", |w| committed(w) == Some(6));
    world.everybody_dies();
    let crash = world.journal.len();
    world.run(0, 100_000);
    assert_eq!(trained_since(&world, crash), [6, 7, 8, 9]);
    assert_eq!(world.rows_by_step(), whole.rows_by_step(), "every prompt in its step, the seventh's too");
    world.check_end();
}

#[test]
fn finished_groups_that_no_step_has_learnt_are_learnt_after_a_crash_and_not_generated_again() {
    let mut config = plain(true, 4, 1);
    (config.frozen.data.rows, config.frozen.max_staleness) = (12, 1);
    let mut world = World::new(5, config, Faults::default());
    world.workers_idle = true;
    let ready = |w: &World| !w.conductor.as_ref().unwrap().progress(w.now).engines.iter().any(|e| !e.admitted);
    world.until("groups are there to be leased", |w| w.state().live() == 6 && ready(w));
    // Six are generated, in order, and then nobody generates any more.
    let worker = stranger("n");
    let grants = granted(lease(&mut world, worker.clone(), 16));
    assert_eq!(grants.iter().map(|grant| grant.task).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    for grant in &grants {
        complete(&mut world, worker.clone(), grant, |_| {});
    }
    world.until("three are learnt and committed", |w| committed(w) == Some(1));
    world.everybody_dies();
    let crash = world.journal.len();
    world.until("the next three are learnt", |w| w.state().trained == 2);
    let batch: Vec<u64> = world.state().batch_groups(1).into_iter().map(|(group, _)| group).collect();
    assert_eq!((trained_since(&world, crash), batch), (vec![1], vec![3, 4, 5]));
    let again = world.journal[crash..].iter().any(|record| matches!(record, Record::Completed { .. }));
    assert!(!again, "nobody generated: what was finished was there");
    world.workers_idle = false;
    world.run(0, 100_000);
    let mut learnt: Vec<u64> = world.rows_by_step().into_values().flatten().collect();
    learnt.sort_unstable();
    assert_eq!(learnt, (0..12).collect::<Vec<_>>(), "each prompt once");
    world.check_end();
}

/// Tiles of the order at hand, reported by the living trainer, are being looked at.
fn tiles_reported(world: &mut World) -> (u64, u64) {
    let (epoch, seq) = (world.state().trainer_epoch, world.state().trainer.as_ref().unwrap().done + 1);
    let report = Report::Tiles { index_digest: "d".to_owned(), weights_digest: "w".to_owned(), bytes: 1 };
    let request = ReportRequest { run: "uid".to_owned(), trainer_epoch: epoch, seq, report };
    let step = world.conductor.as_mut().unwrap().step(Event::Report(1, Box::new(request)), world.now).unwrap();
    assert!(step.records.is_empty(), "{step:?}");
    assert!(matches!(step.commands.as_slice(), [Command::VerifyTiles { .. }]), "nothing is deleted: {step:?}");
    (epoch, seq)
}

fn deleted(commands: &[Command]) -> Vec<&str> {
    let folders = commands.iter().filter_map(|command| match command {
        Command::DeleteFolder { folder } => Some(folder.as_str()),
        _ => None,
    });
    folders.collect()
}

#[test]
fn an_old_checkpoint_goes_only_when_the_new_one_is_verified_and_in_the_journal() {
    let mut config = plain(false, 9, 3);
    config.live.checkpoint_keep = 1;
    for verified in [true, false] {
        let mut world = World::new(6, config.clone(), Faults::default());
        let saves_again = |w: &World| {
            let order = w.state().trainer.as_ref().and_then(|trainer| trainer.order.clone());
            matches!(order, Some(OrderKind::Save { .. })) && committed(w) == Some(3)
        };
        world.until("the second checkpoint is ordered", saves_again);
        world.hush();
        let old = world.state().commits.back().unwrap().commit.folder.clone();
        let (trainer_epoch, seq) = tiles_reported(&mut world);
        let result = if verified { Ok(()) } else { Err(TilesProblem::Wrong("a tile is short".to_owned())) };
        let event = Event::TilesVerified { trainer_epoch, seq, result };
        let step = world.conductor.as_mut().unwrap().step(event, world.now).unwrap();
        // Commands are carried out when the records before them are durable, and not before.
        let recorded = step.records.iter().any(|record| matches!(record, Record::Committed { .. }));
        assert_eq!(recorded, verified);
        let expected = if verified { vec![old.as_str()] } else { vec![] };
        assert_eq!(deleted(&step.commands), expected);
        assert_eq!(committed(&world), Some(if verified { 6 } else { 3 }));
    }
}

#[test]
fn all_parts_resume_from_the_last_commit_in_the_journal_and_half_saved_ones_are_swept() {
    let mut world = World::new(7, plain(false, 40, 10), Faults::default());
    world.until("step 20 is being saved", |w| {
        let order = w.state().trainer.as_ref().and_then(|trainer| trainer.order.clone());
        matches!(order, Some(OrderKind::Save { position, .. }) if position.step == 20)
            && w.folders().iter().any(|folder| folder.starts_with("tiles/step-000020"))
    });
    assert_eq!(committed(&world), Some(10));
    let stray = world.folders().iter().find(|folder| folder.starts_with("tiles/step-000020")).cloned().unwrap();
    let (accepted, cursor) = (world.state().accepted(), world.state().cursor);
    // Its tiles are whole, and no record names them.
    world.everybody_dies();
    world.hush();
    let attempt = world.attempt();
    let Reply::Claim(claimed) = claim(&mut world, attempt, "new") else { panic!("claim") };
    assert!(matches!(&claimed.start, Start::Commit(commit) if commit.step == 10), "{:?}", claimed.start);
    assert_eq!((world.state().accepted(), world.state().cursor), (accepted, cursor), "the queue stands where it stood");
    let trainer = world.state().trainer.as_ref().unwrap();
    assert_eq!(trainer.position.step, 10);
    let found = world.folders().iter().cloned().collect();
    let (commands, _) = world.now(|_| Event::FoldersFound(found));
    assert_eq!(deleted(&commands), [stray], "what nobody can resume from is swept away, and nothing else");
    let named = world.engines_named();
    world.now(|_| named);
    world.trainer_dies();
    let crash = world.journal.len();
    world.run(0, 1_000_000);
    assert_eq!(trained_since(&world, crash), (10..40).collect::<Vec<_>>());
    world.check_end();
}

#[test]
fn a_run_that_has_lost_its_journal_is_refused_and_does_not_begin_anew() {
    let mut world = World::new(7, plain(false, 40, 10), Faults::default());
    world.until("step 10 is committed", |w| committed(w) == Some(10));
    let found: Vec<String> = world.folders().iter().cloned().collect();
    let refused = State::default().check_volume(&found).unwrap_err();
    assert!(matches!(&refused, Error::JournalLost { folder } if found.contains(folder)), "{refused}");
    assert!(refused.to_string().contains("tiles/step-000010"), "{refused}");
    assert!(world.state().check_volume(&found).is_ok(), "with its journal it goes on");
    assert!(State::default().check_volume(&[]).is_ok(), "a new run begins in an empty folder");
}

#[test]
fn a_run_restarted_at_or_past_its_last_step_ends_well_without_an_update() {
    for total in [100, 90] {
        let mut world = World::new(8, plain(false, 200, 100), Faults::default());
        world.until("step 100 is committed", |w| committed(w) == Some(100));
        world.config.live.total_steps = total;
        world.everybody_dies();
        let crash = world.journal.len();
        world.run(0, 100_000);
        assert!(world.state().finished && world.state().failure.is_none(), "total {total}");
        assert_eq!(trained_since(&world, crash), Vec::<u64>::new(), "total {total}");
        assert!(world.audit.report().is_sound(), "{:?}", world.audit.report());
    }
}

#[test]
fn versions_go_on_after_a_crash_and_nothing_is_generated_before_the_new_one_is_served() {
    let serves_10 = |w: &World| w.state().version == 10 && w.state().accepted() == 10;
    let mut world = World::new(9, plain(false, 20, 4), Faults::default());
    world.until("rollout 9 is there, drawn by version 10", serves_10);
    world.everybody_dies();
    let crash = world.journal.len();
    while world.state().version == 10 {
        world.turn();
        let waits = world.state().version == 10;
        assert!(!waits || world.state().queue.leases().len() == 0, "nobody is given work");
    }
    let since = &world.journal[crash..];
    let at = |what: &dyn Fn(&Record) -> bool| since.iter().position(what).expect("it is in the journal");
    let order = [
        at(&|r| matches!(r, Record::Claimed { start: Start::Commit(commit), .. } if commit.step == 8)),
        at(&|r| matches!(r, Record::Ordered { order: OrderKind::Publish { version: 11, .. }, .. })),
        at(&|r| matches!(r, Record::Reported { report: Report::Weights { .. }, .. })),
        at(&|r| matches!(r, Record::VersionAdvanced { version: 11, .. })),
    ];
    assert!(order.is_sorted(), "restored, written, served: {order:?}");
    let admitted = |r: &Record| matches!(r, Record::Refilled { .. } | Record::Completed { .. });
    let first = since.iter().position(admitted);
    assert!(first.is_none_or(|first| first > order[3]), "only then groups are drawn: {first:?}, {order:?}");
    world.run(0, 100_000);
    world.check_end();

    // A trainer that never comes back: no version, and nothing is drawn that would have to be thrown away.
    let mut world = World::new(10, plain(false, 20, 4), Faults::default());
    world.until("rollout 9 is there, drawn by version 10", serves_10);
    world.everybody_dies();
    let crash = world.journal.len();
    for _ in 0..5_000 {
        world.turn();
        if world.conductor.is_some() && world.state().trainer.as_ref().is_some_and(|trainer| trainer.done == 0) {
            world.trainer_dies();
        }
    }
    assert_eq!((world.state().version, world.state().version_last), (10, 10));
    assert!(!world.journal[crash..].iter().any(admitted));
}

#[test]
fn the_room_for_groups_is_counted_from_the_version_that_was_restored() {
    let mut config = plain(true, 80, 5);
    (config.frozen.prompts_per_step, config.frozen.max_staleness) = (16, 3);
    config.frozen.rollouts_per_update = 64;
    let mut world = World::new(11, config, Faults::default());
    world.until("version 40 is served", |w| w.state().version == 40);
    world.everybody_dies();
    world.until("the engines are back", |w| {
        w.conductor.as_ref().unwrap().progress(w.now).engines.iter().any(|e| e.admitted)
    });
    let state = world.state();
    assert_eq!(state.version, 40);
    // Every prompt under way, in a batch that waits or in none, may still be learnt by (staleness 3 + 1) steps of 16: not one
    // more for each version that there has been.
    let waiting = state.accepted() - state.step_of_version(40).unwrap();
    assert_eq!(16 * waiting + state.live(), 64);
    let mut stalest = 0;
    while !world.is_over() {
        world.turn();
        stalest = stalest.max(world.state().last_step.as_ref().map_or(0, |step| step.staleness_max));
    }
    assert!((1..=3).contains(&stalest), "{stalest}");
}

#[test]
fn a_save_that_was_under_way_dies_with_its_attempt() {
    let mut world = World::new(12, plain(false, 9, 3), Faults::default());
    world.until("a checkpoint is ordered", |w| {
        let order = w.state().trainer.as_ref().and_then(|trainer| trainer.order.clone());
        matches!(order, Some(OrderKind::Save { .. }))
    });
    world.hush();
    let (trainer_epoch, seq) = tiles_reported(&mut world);
    let attempt = world.attempt();
    let request = world.claim_request(attempt + 1, "new");
    let (commands, _) = world.now(|reply| Event::Claim(reply, request));
    assert!(
        commands.iter().any(|c| matches!(c, Command::Reply(1, reply) if is_fenced(reply))),
        "whoever waits is told"
    );
    let before = world.journal.len();
    world.now(|_| Event::TilesVerified { trainer_epoch, seq, result: Ok(()) });
    assert_eq!(committed(&world), None, "its answer comes too late");
    let waits = world.conductor.as_ref().unwrap().progress(world.now).waits;
    assert!(!waits.iter().any(|wait| wait.what.contains("tiles") || wait.what.contains("saving")), "{waits:?}");
    let recorded: BTreeSet<&str> = world.journal[before..].iter().map(Record::name).collect();
    assert!(!recorded.contains("Committed"), "{recorded:?}");
}
