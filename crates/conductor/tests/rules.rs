//! One rule, one test: what the conductor promises to each of those it talks to.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod world;

use conductor::{
    Command, Conductor, DropReason, Error, Event, OrderKind, Position, Record, Reply, SAVED_HOLD_MS, SettingsAsked,
    State, TRAINER_HEARTBEAT_MS, TilesProblem, Unreached,
};
use control::wire::{
    CheckpointRequest, CompleteRequest, FailRequest, Finished, LeaseRequest, NextRequest, Order, Outcome, RESULTS_MAX,
    RefusalKind, RenewRequest, Report, ReportRequest, RunPhase, Start, WorkerId,
};
use world::{
    Faults, World,
    asks::{
        claim, complete, finished, granted, is_fenced, lease, next, offer, offer_all, quiet, report, settings,
        stranger, trained, waiting_for_groups,
    },
    config,
};

#[test]
fn a_superseded_trainer_may_neither_poll_nor_report() {
    let mut world = quiet(false, false);
    world.until("a step is learnt", |w| w.state().trained >= 2);
    world.hush();
    let (epoch, attempt) = (world.state().trainer_epoch, world.state().attempt);
    let Reply::Claim(claimed) = claim(&mut world, attempt + 1, "x") else { panic!("a higher attempt may claim") };
    assert_eq!(claimed.trainer_epoch, epoch + 1);
    assert!(is_fenced(&next(&mut world, epoch, 3)));
    assert!(is_fenced(&report(&mut world, epoch, 4, trained()).unwrap()));
    assert!(is_fenced(&claim(&mut world, attempt, "late")), "a lower attempt may not claim any more");
}

#[test]
fn a_claim_repeated_after_a_lost_reply_gets_the_same_epoch() {
    let mut world = quiet(false, false);
    world.until("a conductor reigns", |_| true);
    world.hush();
    let Reply::Claim(first) = claim(&mut world, 1, "x") else { panic!("claim") };
    let Reply::Claim(again) = claim(&mut world, 1, "x") else { panic!("claim") };
    assert_eq!(first, again);
    let Reply::Claim(other) = claim(&mut world, 1, "y") else { panic!("claim") };
    assert_eq!(other.trainer_epoch, first.trainer_epoch + 1, "another process is another epoch");
    assert_eq!(other.start, Start::Random { seed: 1 });
}

#[test]
fn a_fenced_attempt_may_do_nothing_and_the_fence_is_never_lifted() {
    let mut world = quiet(false, false);
    world.until("a step is learnt", |w| w.state().trained >= 1);
    world.hush();
    let (epoch, attempt) = (world.state().trainer_epoch, world.state().attempt);
    settings(&mut world, 1, |asked| asked.fence_attempts_up_to = attempt);
    assert!(is_fenced(&next(&mut world, epoch, 0)));
    assert!(is_fenced(&report(&mut world, epoch, 1, trained()).unwrap()));
    assert!(is_fenced(&claim(&mut world, attempt, "again")));
    settings(&mut world, 2, |_| {});
    world.succeed();
    world.hush();
    assert!(is_fenced(&claim(&mut world, attempt, "again")));
    assert!(matches!(claim(&mut world, attempt + 1, "new"), Reply::Claim(_)));
}

#[test]
fn an_order_is_the_same_under_the_next_conductor_and_a_report_counts_once() {
    let mut world = quiet(false, false);
    world.until("a step is ordered", |w| {
        matches!(w.state().trainer.as_ref().and_then(|t| t.order.clone()), Some(OrderKind::Train { step: 2, .. }))
    });
    world.hush();
    let (epoch, done) = (world.state().trainer_epoch, world.state().trainer.as_ref().unwrap().done);
    let work = |reply: Reply| match reply {
        Reply::Next(next) => next.work.expect("there is an order"),
        other => panic!("{other:?}"),
    };
    let first = work(next(&mut world, epoch, done));
    assert_eq!(first, work(next(&mut world, epoch, done)));
    world.succeed();
    world.hush();
    assert_eq!(first, work(next(&mut world, epoch, done)));
    assert!(matches!(first.order, Order::Train(ref order) if order.step == 2 && !order.replay));
    for _ in 0..3 {
        assert!(matches!(report(&mut world, epoch, first.seq, trained()), Some(Reply::Report(_))));
        world.succeed();
        world.hush();
    }
    let reports =
        world.journal.iter().filter(|r| matches!(r, Record::Reported { seq, .. } if *seq == first.seq)).count();
    assert_eq!(reports, 1);
    assert!(matches!(
        report(&mut world, epoch, first.seq + 1, Report::Exported { bytes: 1 }),
        Some(Reply::Refused(refusal)) if refusal.kind == RefusalKind::Invalid
    ));
}

#[test]
fn a_trainer_that_followed_a_conductor_nobody_reads_is_refused() {
    let mut world = quiet(false, false);
    world.until("a step is learnt", |w| w.state().trained >= 1);
    world.hush();
    let (epoch, done) = (world.state().trainer_epoch, world.state().trainer.as_ref().unwrap().done);
    assert!(is_fenced(&next(&mut world, epoch, done + 2)));
    assert!(is_fenced(&next(&mut world, epoch, done)), "for good");
    let attempt = world.attempt();
    assert!(matches!(claim(&mut world, attempt + 1, "new"), Reply::Claim(_)));
}

#[test]
fn a_restarted_trainer_replays_kept_batches_and_versions_go_on_upward() {
    let mut world = quiet(false, false);
    world.until("two steps beyond a commit are learnt", |w| {
        w.state().committed_position().is_some_and(|p| p.step == 3) && w.state().trained >= 5
    });
    world.hush();
    let (version, generated, accepted) =
        (world.state().version_last, world.generated.clone(), world.state().accepted());
    let attempt = world.attempt();
    let Reply::Claim(claimed) = claim(&mut world, attempt + 1, "new") else { panic!("claim") };
    assert!(matches!(&claimed.start, Start::Commit(commit) if commit.step == 3));
    let (epoch, mut done) = (claimed.trainer_epoch, 0);
    let mut replayed = Vec::new();
    let published = loop {
        let Reply::Next(reply) = next(&mut world, epoch, done) else { panic!("poll") };
        match reply.work.expect("there is work").order {
            Order::Train(order) => {
                assert_eq!(order.updates[0].micro_batches.len(), 2, "planned for the new layout");
                replayed.push(order.step);
                done += 1;
                report(&mut world, epoch, done, trained());
            }
            Order::Publish { version, .. } => break version,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(replayed, (3..accepted).collect::<Vec<_>>(), "everything after the boundary, in order");
    assert_eq!(published, version + 1);
    assert_eq!(world.generated, generated, "nothing was generated again");
}

#[test]
fn a_resume_at_or_past_the_last_step_finishes_without_an_update() {
    let mut world = quiet(false, false);
    world.until("five steps are learnt", |w| w.state().trained == 5);
    let trained = world.audit.report().steps_trained;
    world.config.live.total_steps = 2;
    settings(&mut world, 1, |_| {});
    world.until("it is over", World::is_over);
    let report = world.audit.report();
    assert!(report.finished && report.is_sound(), "{report:?}");
    assert_eq!(report.steps_trained, trained);
    // And once finished, whoever claims is told so at once.
    let attempt = world.attempt();
    let Reply::Claim(claimed) = claim(&mut world, attempt + 1, "new") else { panic!("claim") };
    let Reply::Next(reply) = next(&mut world, claimed.trainer_epoch, 0) else { panic!("poll") };
    assert_eq!(reply.work.map(|work| work.order), Some(Order::Finish));
}

#[test]
fn tiles_that_are_not_what_was_reported_move_no_boundary() {
    let mut world = quiet(false, false);
    world.until("tiles are asked for", |w| {
        matches!(w.state().trainer.as_ref().and_then(|t| t.order.clone()), Some(OrderKind::Save { .. }))
    });
    world.hush();
    let (epoch, seq) = (world.state().trainer_epoch, world.state().trainer.as_ref().unwrap().done + 1);
    let tiles = || Report::Tiles { index_digest: "d".to_owned(), weights_digest: "w".to_owned(), bytes: 1 };
    let request = ReportRequest { run: "uid".to_owned(), trainer_epoch: epoch, seq, report: tiles() };
    let step = world.conductor.as_mut().unwrap().step(Event::Report(1, Box::new(request)), world.now).unwrap();
    assert!(
        step.records.is_empty() && matches!(step.commands.as_slice(), [Command::VerifyTiles { .. }]),
        "not believed yet: {step:?}"
    );
    let unreadable = Err(TilesProblem::Unreadable("a bad day".to_owned()));
    let (commands, _) = world.now(|_| Event::TilesVerified { trainer_epoch: epoch, seq, result: unreadable });
    assert!(commands.is_empty(), "looked at again later: {commands:?}");
    let wrong = Err(TilesProblem::Wrong("a tile is short".to_owned()));
    let (commands, _) = world.now(|_| Event::TilesVerified { trainer_epoch: epoch, seq, result: wrong });
    assert!(commands.iter().any(|c| matches!(c, Command::Reply(1, reply) if is_fenced(reply))));
    assert_eq!(world.state().committed_position(), None);
    let attempt = world.attempt();
    let Reply::Claim(claimed) = claim(&mut world, attempt + 1, "new") else { panic!("claim") };
    assert_eq!(claimed.start, Start::Random { seed: 1 });
}

#[test]
fn a_checkpoint_that_is_asked_for_comes_before_anything_else_and_stops_if_asked_to() {
    let mut world = quiet(false, false);
    world.until("a step is ordered", |w| {
        matches!(w.state().trainer.as_ref().and_then(|t| t.order.clone()), Some(OrderKind::Train { step: 1, .. }))
    });
    world.hush();
    let (epoch, attempt) = (world.state().trainer_epoch, world.state().attempt);
    let seq = world.state().trainer.as_ref().unwrap().done + 1;
    for _ in 0..2 {
        let request = CheckpointRequest { id: "a".to_owned(), attempt, then_stop: true };
        assert!(matches!(world.now(|reply| Event::Checkpoint(reply, request)).1, Some(Reply::Checkpoint(_))));
    }
    assert_eq!(
        world.journal.iter().filter(|r| matches!(r, Record::CheckpointAsked { .. })).count(),
        1,
        "repeats are the same request"
    );
    world.succeed();
    world.hush();
    report(&mut world, epoch, seq, trained());
    let Reply::Next(reply) = next(&mut world, epoch, seq) else { panic!("poll") };
    assert!(matches!(reply.work.unwrap().order, Order::Save { step: 2, .. }));
    world.until("the attempt stops", |w| w.state().trainer.as_ref().is_some_and(|t| t.stopped));
    assert_eq!(world.state().committed_position().map(|p| p.step), Some(2));
    assert_eq!(world.conductor.as_ref().unwrap().progress(world.now).checkpoints_done, ["a"]);
}

#[test]
fn a_trainer_that_has_saved_as_asked_learns_nothing_more_unless_it_is_left_alone() {
    let mut world = quiet(false, false);
    world.until("a step is ordered", |w| {
        matches!(w.state().trainer.as_ref().and_then(|t| t.order.clone()), Some(OrderKind::Train { step: 1, .. }))
    });
    world.hush();
    let (epoch, attempt) = (world.state().trainer_epoch, world.state().attempt);
    let seq = world.state().trainer.as_ref().unwrap().done + 1;
    let request = CheckpointRequest { id: "a".to_owned(), attempt, then_stop: false };
    world.now(|reply| Event::Checkpoint(reply, request));
    report(&mut world, epoch, seq, trained());
    let tiles = Report::Tiles { index_digest: "d".to_owned(), weights_digest: "w".to_owned(), bytes: 1 };
    let request = ReportRequest { run: "uid".to_owned(), trainer_epoch: epoch, seq: seq + 1, report: tiles };
    world.conductor.as_mut().unwrap().step(Event::Report(1, Box::new(request)), world.now).unwrap();
    world.now(|_| Event::TilesVerified { trainer_epoch: epoch, seq: seq + 1, result: Ok(()) });
    let progress = world.conductor.as_ref().unwrap().progress(world.now);
    assert_eq!((progress.checkpoints_done, progress.commit.unwrap().step), (vec!["a".to_owned()], 2));
    let Reply::Next(reply) = next(&mut world, epoch, seq + 1) else { panic!("poll") };
    assert_eq!(reply.work, None, "whoever asked is about to end it: its successor would learn the same again");
    assert!(reply.waiting_for.is_some_and(|what| what.contains("to be ended")));
    world.now += SAVED_HOLD_MS;
    let Reply::Next(reply) = next(&mut world, epoch, seq + 1) else { panic!("poll") };
    assert!(reply.work.is_some(), "the edit was taken back: it goes on");
}

#[test]
fn a_version_that_no_engine_acknowledges_never_advances() {
    let mut world = quiet(false, false);
    world.until("an intent is journaled", |w| w.state().publishing.is_some());
    world.hush();
    for round in 0..200 {
        world.now += 1_000;
        for url in world.engine_urls() {
            world.now(|_| Event::EngineProbed { url: url.clone(), result: Ok(0) });
            world.now(|_| Event::EngineUpdated { url: url.clone(), version: 1, result: Err("no memory".to_owned()) });
        }
        let progress = world.conductor.as_ref().unwrap().progress(world.now);
        assert_eq!(progress.weight_version, 0, "round {round}");
        assert!(progress.engines.iter().all(|engine| !engine.admitted));
        assert!(progress.waits.iter().any(|wait| wait.what.contains("no memory")), "{:?}", progress.waits);
    }
    assert!(granted(lease(&mut world, stranger("n"), 8)).is_empty(), "nothing is generated before a version is served");
    // One is enough; the other is brought up in the background.
    let url = world.engine_urls()[0].clone();
    world.now += 10_000;
    world.now(|_| Event::Tick);
    world.now(|_| Event::EngineUpdated { url, version: 1, result: Ok(()) });
    let progress = world.conductor.as_ref().unwrap().progress(world.now);
    assert_eq!(progress.weight_version, 1);
    assert_eq!(progress.engines.iter().map(|engine| engine.admitted).collect::<Vec<_>>(), [true, false]);
}

#[test]
fn an_engine_that_comes_back_empty_holds_the_current_weights_before_it_is_offered() {
    let mut world = waiting_for_groups(false);
    let url = world.engine_urls()[1].clone();
    let version = world.state().version;
    world.now(|_| Event::EngineProbed { url: url.clone(), result: Err(Unreached::gone("refused")) });
    let (commands, _) = world.now(|_| Event::EngineProbed { url: url.clone(), result: Ok(0) });
    assert!(
        commands
            .iter()
            .any(|c| matches!(c, Command::UpdateEngine { url: to, version: v, .. } if *to == url && *v == version))
    );
    let offered = |world: &World| {
        let progress = world.conductor.as_ref().unwrap().progress(world.now);
        progress.engines.iter().any(|engine| engine.url == url && engine.admitted)
    };
    assert!(!offered(&world));
    let (commands, _) = world.now(|_| Event::EngineUpdated { url: url.clone(), version, result: Ok(()) });
    assert!(commands.contains(&Command::ResumeEngine { url: url.clone() }));
    assert!(offered(&world));
}

#[test]
fn a_new_conductor_asserts_version_and_pause_state_on_every_engine() {
    let mut world = waiting_for_groups(false);
    let version = world.state().version;
    world.succeed();
    world.hush();
    let named = world.engines_named();
    world.now(|_| named);
    let urls = world.engine_urls();
    let (commands, _) = world.now(|_| Event::EngineProbed { url: urls[0].clone(), result: Ok(version) });
    assert!(
        commands.contains(&Command::ResumeEngine { url: urls[0].clone() }),
        "it may have been left paused: {commands:?}"
    );
    // A zombie brought the other one to something else.
    let (commands, _) = world.now(|_| Event::EngineProbed { url: urls[1].clone(), result: Ok(version + 7) });
    assert!(
        commands.iter().any(|c| matches!(c, Command::UpdateEngine { version: v, .. } if *v == version)),
        "{commands:?}"
    );
}

#[test]
fn a_sample_of_a_version_the_ledger_lacks_is_refused() {
    let mut world = waiting_for_groups(false);
    let worker = stranger("n");
    let grants = granted(lease(&mut world, worker.clone(), 1));
    let answer = complete(&mut world, worker, &grants[0], |summary| summary.version_max = 99);
    assert_eq!(answer, Outcome::Superseded);
    assert!(matches!(world.journal.last(), Some(Record::TaskFailed { reason, .. }) if reason.contains("99")));
}

#[test]
fn a_group_with_one_good_sample_is_tried_again_and_one_with_three_is_taken() {
    let mut world = waiting_for_groups(false);
    let worker = stranger("n");
    let grants = granted(lease(&mut world, worker.clone(), 2));
    let answer =
        complete(&mut world, worker.clone(), &grants[0], |summary| (summary.rewards, summary.failed) = (vec![1.0], 3));
    assert_eq!(answer, Outcome::Superseded);
    let answer = complete(&mut world, worker.clone(), &grants[1], |summary| {
        (summary.rewards, summary.failed) = (vec![1.0, 0.0, 1.0], 1)
    });
    assert_eq!(answer, Outcome::Accepted);
    let again = granted(lease(&mut world, worker, 8));
    assert!(
        again.iter().any(|grant| grant.task == grants[0].task && grant.seeds == grants[0].seeds),
        "same group, same seeds"
    );
}

#[test]
fn more_than_a_fifth_of_invalid_samples_is_said_of_the_run() {
    let invalid = |world: &World| world.conductor.as_ref().unwrap().progress(world.now).samples;
    let mut world = waiting_for_groups(true);
    let worker = stranger("n");
    // One sample of four is invalid in each group; three verdicts make a baseline, so the groups are taken all the same.
    for brought in 1..=4 {
        let grant = granted(lease(&mut world, worker.clone(), 1)).remove(0);
        assert!(!invalid(&world).too_many_invalid(), "{brought} groups");
        let answer = complete(&mut world, worker.clone(), &grant, |summary| {
            (summary.rewards, summary.failed) = (vec![2.0, 4.0, 6.0], 1);
        });
        assert_eq!(answer, Outcome::Accepted);
    }
    assert_eq!((invalid(&world).brought, invalid(&world).invalid), (16, 4));
    assert!(invalid(&world).too_many_invalid(), "a quarter is more than a fifth");

    // Groups that fail as a whole are in no batch, and count: a judge that is always broken would not show otherwise.
    let mut world = waiting_for_groups(true);
    for _ in 0..4 {
        let grant = granted(lease(&mut world, worker.clone(), 1)).remove(0);
        let reason = "the judge is away".to_owned();
        let request = FailRequest { worker: worker.clone(), lease: grant.lease, task: grant.task, reason };
        world.now(|reply| Event::Fail(reply, request));
    }
    assert_eq!((invalid(&world).brought, invalid(&world).invalid), (16, 16));
    assert_eq!(invalid(&world).reason.as_deref(), Some("the judge is away"));
    assert!(invalid(&world).too_many_invalid());

    // A fifth is not more than a fifth, and what was long ago is forgotten.
    let mut world = waiting_for_groups(true);
    let mut bring = |failed: u32| {
        let grant = granted(lease(&mut world, worker.clone(), 1)).remove(0);
        complete(&mut world, worker.clone(), &grant, |summary| {
            (summary.rewards, summary.failed) = (vec![1.0; 4 - failed as usize], failed);
        });
        invalid(&world)
    };
    let fifth = [2, 1, 1, 0, 0].map(&mut bring);
    assert_eq!((fifth[4].brought, fifth[4].invalid, fifth[4].too_many_invalid()), (20, 4, false));
}

#[test]
fn a_result_is_taken_once_whoever_offers_it_and_under_whatever_lease() {
    let mut world = waiting_for_groups(false);
    let worker = stranger("n");
    let grant = granted(lease(&mut world, worker.clone(), 1)).remove(0);
    world.succeed();
    world.hush();
    // Leases are void, and the work is not lost.
    let renew = RenewRequest { worker: worker.clone(), leases: vec![(grant.lease.clone(), grant.task)] };
    let Some(Reply::Renew(renewed)) = world.now(|reply| Event::Renew(reply, renew)).1 else { panic!("renew") };
    assert_eq!(renewed.lost, std::slice::from_ref(&grant.lease));
    assert_eq!(complete(&mut world, worker.clone(), &grant, |_| {}), Outcome::Accepted);
    assert_eq!(complete(&mut world, worker, &grant, |_| {}), Outcome::Duplicate, "a repeated offer is the same offer");
    let group = world.new_ref();
    let another = Finished {
        submission: "another".to_owned(),
        ..finished(&world, &grant, group, |summary| summary.rewards = vec![0.0; 4])
    };
    assert_eq!(offer_all(&mut world, stranger("m"), vec![another]), [Outcome::Superseded], "the first result wins");
}

#[test]
fn one_call_brings_many_results_and_each_has_its_own_answer() {
    let mut world = waiting_for_groups(true);
    let worker = stranger("n");
    let grants = granted(lease(&mut world, worker.clone(), 4));
    let [first, stale, collected, last] = &grants[..] else { panic!("{} grants", grants.len()) };
    let idle =
        straw::PackInfo { name: "idle-1".into(), owner: "idle".into(), bytes: 1, sealed: true, abandoned: false };
    world.now(|_| Event::PacksFound(vec![idle.clone()]));
    world.now += 3_600_000;
    world.now(|_| Event::PacksFound(vec![idle]));
    let results = |world: &mut World| {
        let refs = [0; 5].map(|_| world.new_ref());
        let [a, b, c, d, e] = refs;
        let gone = straw::Ref { pack: "idle-1".to_owned(), ..c };
        let unknown = Finished { task: 999_999, ..finished(world, first, e, |_| {}) };
        vec![
            finished(world, first, a.clone(), |_| {}),
            finished(world, stale, b, |summary| summary.version_max = 99),
            finished(world, collected, gone, |_| {}),
            finished(world, first, a, |_| {}),
            unknown,
            finished(world, last, d, |_| {}),
        ]
    };
    let before = world.journal.len();
    let all = results(&mut world);
    let outcomes = offer_all(&mut world, worker, all);
    let [one, two, three, four, five, six] = &outcomes[..] else { panic!("an answer for each: {outcomes:?}") };
    assert_eq!((one, two, four), (&Outcome::Accepted, &Outcome::Superseded, &Outcome::Duplicate));
    assert!(matches!(three, Outcome::Refused { kind: RefusalKind::PackCollected, .. }), "{three:?}");
    assert!(matches!(five, Outcome::Refused { kind: RefusalKind::Invalid, .. }), "{five:?}");
    assert_eq!(six, &Outcome::Accepted, "what was refused before it is not its affair");
    let journaled = world.journal[before..].iter().filter(|record| matches!(record, Record::Completed { .. })).count();
    assert_eq!(journaled, 2);
}

#[test]
fn a_call_with_too_many_results_is_refused_and_takes_none() {
    let mut world = waiting_for_groups(false);
    let worker = stranger("n");
    let grant = granted(lease(&mut world, worker.clone(), 1)).remove(0);
    let group = world.new_ref();
    let results = vec![finished(&world, &grant, group, |_| {}); RESULTS_MAX + 1];
    let request = CompleteRequest { worker, results };
    let before = world.journal.len();
    let Some(Reply::Refused(refusal)) = world.now(|reply| Event::Complete(reply, Box::new(request))).1 else {
        panic!("taken")
    };
    assert!(refusal.kind == RefusalKind::Invalid && refusal.message.contains("results: 4097"), "{refusal:?}");
    assert_eq!(world.journal.len(), before);
}

#[test]
fn a_cordoned_node_gets_no_leases() {
    let mut world = waiting_for_groups(false);
    settings(&mut world, 1, |asked| asked.cordoned_nodes = vec!["old".to_owned()]);
    assert!(granted(lease(&mut world, stranger("old"), 4)).is_empty());
    assert!(!granted(lease(&mut world, stranger("new"), 4)).is_empty());
}

#[test]
fn a_suspended_run_admits_no_group() {
    let mut world = waiting_for_groups(false);
    settings(&mut world, 1, |asked| asked.paused = true);
    assert!(granted(lease(&mut world, stranger("n"), 4)).is_empty());
    let progress = world.conductor.as_ref().unwrap().progress(world.now);
    assert!(progress.waits.iter().any(|wait| wait.owner == "user"), "{:?}", progress.waits);
    settings(&mut world, 2, |_| {});
    assert!(!granted(lease(&mut world, stranger("n"), 4)).is_empty());
}

#[test]
fn work_is_shared_among_those_who_ask_and_lost_work_is_given_again() {
    let mut world = waiting_for_groups(false);
    let [a, b] = ["a", "b"].map(stranger);
    let ask = |worker: &WorkerId| LeaseRequest { worker: worker.clone(), want: 16, wait_ms: 5_000 };
    // Both wait; then there is work.
    settings(&mut world, 1, |asked| asked.paused = true);
    world.now(|reply| Event::Lease(reply, ask(&a)));
    world.now(|reply| Event::Lease(reply, ask(&b)));
    let config = Ok(Box::new(world.config.clone()));
    let asked = SettingsAsked { number: 2, fence_attempts_up_to: 0, cordoned_nodes: vec![], paused: false, config };
    let (commands, _) = world.now(|reply| Event::Settings(reply, Box::new(asked)));
    let shares: Vec<usize> = commands
        .iter()
        .filter_map(|c| if let Command::Reply(_, Reply::Lease { grants, .. }) = c { Some(grants.len()) } else { None })
        .collect();
    assert_eq!(shares, [2, 2]);
    // One is restarted: what its predecessor held is free at once.
    let reborn = WorkerId { incarnation: "2".to_owned(), ..a };
    assert_eq!(granted(lease(&mut world, reborn, 16)).len(), 2);
    // The other falls silent: free when its leases have run out.
    assert!(granted(lease(&mut world, stranger("c"), 16)).is_empty());
    world.now += conductor::LEASE_MS + 1;
    world.now(|_| Event::Tick);
    assert_eq!(granted(lease(&mut world, stranger("c"), 16)).len(), 4);
}

#[test]
fn groups_beyond_the_steps_own_are_given_up_as_soon_as_the_step_is_full() {
    let mut world = waiting_for_groups(false);
    let (fast, slow) = (stranger("fast"), stranger("slow"));
    let held = granted(lease(&mut world, slow.clone(), 1)).remove(0);
    let patient = LeaseRequest { worker: slow, want: 4, wait_ms: 5_000 };
    let (_, unanswered) = world.now(|reply| Event::Lease(reply, patient));
    let unanswered = match unanswered {
        None => Vec::new(),
        Some(Reply::Lease { grants, .. }) => grants,
        other => panic!("{other:?}"),
    };
    let mut left: Vec<conductor::Grant> = granted(lease(&mut world, fast.clone(), 16));
    left.extend(unanswered);
    let mut told = Vec::new();
    for grant in left.iter().take(3) {
        let group = world.new_ref();
        let results = vec![finished(&world, grant, group, |_| {})];
        let request = CompleteRequest { worker: fast.clone(), results };
        let (commands, _) = world.now(|reply| Event::Complete(reply, Box::new(request)));
        told.extend(commands.into_iter().filter_map(|c| {
            if let Command::Reply(_, Reply::Lease { abandon, .. }) = c { Some(abandon) } else { None }
        }));
    }
    let dropped =
        world.journal.iter().rev().find_map(|r| {
            if let Record::Dropped { groups, reason } = r { Some((groups.clone(), *reason)) } else { None }
        });
    assert_eq!(dropped, Some((vec![held.task], DropReason::Surplus)), "listed with its reason");
    let heard = told.iter().flatten().any(|task| *task == held.task);
    let later = lease(&mut world, stranger("slow"), 4);
    let later = matches!(later, Some(Reply::Lease { abandon, .. }) if abandon == [held.task]);
    assert!(heard || later, "whoever works on it is told with the next answer");
}

#[test]
fn an_async_run_never_has_more_under_way_than_may_still_be_trained() {
    let mut config = config(true, false);
    config.frozen.prompts_per_step = 16;
    config.frozen.max_staleness = 3;
    config.live.total_steps = 12;
    let mut world = World::new(2, config, Faults::default());
    world.until("the first groups are drawn", |w| w.state().live() > 0);
    assert_eq!(world.state().live(), 64, "(staleness 3 + 1) steps of 16");
    for _ in 0..20_000 {
        world.turn();
        let state = world.state();
        let learnt = state.step_of_version(state.version).unwrap_or(0);
        let room = (learnt + 4 - state.accepted().min(learnt + 4)) * 16;
        assert!(state.live() <= room, "{} groups under way, {room} can still be trained", state.live());
        if let Some(step) = &state.last_step {
            assert!(step.staleness_max <= 3);
        }
        if world.is_over() {
            break;
        }
    }
    assert!(world.is_over());
}

#[test]
fn a_field_that_may_not_change_is_refused_by_name_and_nothing_changes() {
    let mut world = quiet(false, false);
    world.until("a step is learnt", |w| w.state().trained >= 1);
    world.hush();
    let mut other = world.config.clone();
    other.frozen.sampling.temperature = 0.5;
    let refused = Conductor::open(world.state().clone(), 99, "pod", other.clone(), None, world.now).err();
    assert!(matches!(&refused, Some(Error::Changed { field, .. }) if field == "sampling.temperature"), "{refused:?}");
    let before = world.journal.len();
    let answer = settings(&mut world, 5, |asked| asked.config = Ok(Box::new(other)));
    assert!(
        matches!(answer, Reply::Refused(refusal) if refusal.kind == RefusalKind::Invalid && refusal.message.contains("sampling.temperature"))
    );
    assert_eq!(world.journal.len(), before);
    // What may change is taken, once per number.
    world.config.live.total_steps = 9;
    assert!(matches!(settings(&mut world, 5, |_| {}), Reply::Settings(reply) if reply.number == 5));
    assert_eq!(world.state().run.as_ref().unwrap().settings.live.total_steps, 9);
    world.config.live.total_steps = 3;
    assert!(matches!(settings(&mut world, 4, |_| {}), Reply::Settings(reply) if reply.number == 5));
    assert_eq!(world.state().run.as_ref().unwrap().settings.live.total_steps, 9, "an older number changes nothing");
}

#[test]
fn the_commit_that_ends_the_warm_start_says_step_0_and_only_then_groups_are_generated() {
    let mut world = quiet(false, true);
    world.until("the RL phase has begun", |w| w.state().in_rl());
    let commit = world.state().commits.back().unwrap().commit.clone();
    assert_eq!((commit.step, commit.warming), (0, false));
    assert!(commit.warm_step > 0 && world.state().warm_batches.is_empty());
    let committed =
        world.journal.iter().position(|r| matches!(r, Record::Committed { commit, .. } if !commit.warming)).unwrap();
    let drawn = world.journal.iter().position(|r| matches!(r, Record::Refilled { .. })).unwrap_or(usize::MAX);
    assert!(committed < drawn);
    assert_eq!(world.conductor.as_ref().unwrap().progress(world.now).phase, RunPhase::Rl);
    assert_eq!(Position::of(&commit), world.state().boundary());
}

#[test]
fn folders_of_superseded_epochs_go_and_those_of_the_living_stay() {
    let mut world = quiet(false, false);
    world.until("a commit is there", |w| w.state().commits.len() == 1);
    world.hush();
    let attempt = world.attempt();
    claim(&mut world, attempt + 1, "new");
    let epoch = world.state().trainer_epoch;
    let kept = world.state().commits.back().unwrap().commit.folder.clone();
    let weights = world.state().versions[&world.state().version].folder.clone();
    let found = vec![
        kept.clone(),
        weights.clone(),
        format!("tiles/step-000001-e{}", epoch - 1),
        format!("weights/v000099-e{}", epoch - 1),
        format!("weights/v000100-e{}.tmp", epoch - 1),
        format!("weights/v000100-e{epoch}.tmp"),
        format!("tiles/step-000004-e{epoch}"),
        format!("tiles/step-000004-e{}", epoch + 1),
        "tiles/somebody's own".to_owned(),
    ];
    let (commands, _) = world.now(|_| Event::FoldersFound(found));
    let deleted: Vec<String> = commands
        .into_iter()
        .filter_map(|c| if let Command::DeleteFolder { folder } = c { Some(folder) } else { None })
        .collect();
    let orphans = ["tiles/step-000001-eN", "weights/v000099-eN", "weights/v000100-eN.tmp"];
    assert_eq!(deleted, orphans.map(|name| name.replace('N', &(epoch - 1).to_string())));
    assert!(!deleted.contains(&kept) && !deleted.contains(&weights));
}

#[test]
fn a_pod_that_another_took_over_from_is_remembered_so_that_it_never_comes_back() {
    let mut world = quiet(false, false);
    world.until("a step is learnt", |w| w.state().trained >= 1);
    world.hush();
    let replaced = |state: &conductor::State| state.replaced_pods.iter().cloned().collect::<Vec<_>>();
    let mut state = world.state().clone();
    let mut follow = |epoch, pod: &str| {
        let (conductor, _) = Conductor::open(state.clone(), epoch, pod, world.config.clone(), None, world.now).unwrap();
        state = conductor.state().clone();
        replaced(&state)
    };
    assert!(follow(100, "pod").is_empty(), "a container that is started again in its pod replaces nobody");
    assert_eq!(follow(101, "successor"), ["pod"]);
    assert_eq!(follow(102, "successor"), ["pod"]);
    assert_eq!(follow(103, "third"), ["pod", "successor"]);
}

#[test]
fn a_volume_that_is_away_is_waited_for_by_name_until_it_is_back() {
    let mut world = quiet(false, false);
    world.until("a step is learnt", |w| w.state().trained >= 1);
    let storage = |world: &World| {
        let waits = world.conductor.as_ref().unwrap().progress(world.now).waits;
        waits.into_iter().find(|wait| wait.owner == "storage").map(|wait| wait.what)
    };
    assert_eq!(storage(&world), None);
    world.now(|_| Event::Volume(Some("the volume, which is away".to_owned())));
    assert_eq!(storage(&world).as_deref(), Some("the volume, which is away"));
    world.now(|_| Event::Volume(None));
    assert_eq!(storage(&world), None);
}

#[test]
fn what_a_trainer_waits_for_is_forgotten_with_it() {
    let mut world = quiet(false, false);
    world.until("a step is learnt", |w| w.state().trained >= 1);
    world.hush();
    let (epoch, done) = (world.state().trainer_epoch, world.state().trainer.as_ref().unwrap().done);
    let storage = |world: &World| {
        let waits = world.conductor.as_ref().unwrap().progress(world.now).waits;
        waits.into_iter().find(|wait| wait.owner == "storage").map(|wait| wait.what)
    };
    let waiting_for = Some("writing weights: gone".to_owned());
    let poll = NextRequest { run: "uid".to_owned(), trainer_epoch: epoch, done, wait_ms: 0, waiting_for };
    world.now(|reply| Event::Next(reply, poll));
    world.now(|_| Event::Tick);
    assert_eq!(storage(&world).as_deref(), Some("the trainer, writing weights: gone"));
    // It dies of something else. The next attempt is not made to wait for what a dead one wanted.
    world.now += TRAINER_HEARTBEAT_MS;
    world.now(|_| Event::Tick);
    assert_eq!(storage(&world), None);
}

#[test]
fn a_result_in_a_pack_that_was_collected_is_asked_for_again() {
    let mut world = waiting_for_groups(false);
    let worker = stranger("node");
    let grant = granted(lease(&mut world, worker.clone(), 1)).remove(0);
    let group = straw::Ref { pack: "idle-1".to_owned(), ..world.new_ref() };
    // The host of its writer lost its session with the volume (a suspended run), and nothing refers to it.
    let (name, owner) = (group.pack.clone(), "idle".to_owned());
    let idle = straw::PackInfo { name, owner, bytes: 1, sealed: false, abandoned: true };
    world.now(|_| Event::PacksFound(vec![idle.clone()]));
    world.now += 3_600_000;
    world.now(|_| Event::PacksFound(vec![idle]));
    assert!(world.state().queue.retired().contains(&group.pack));
    let refused = offer(&mut world, worker.clone(), &grant, group.clone(), |_| {});
    assert!(matches!(refused, Outcome::Refused { kind: RefusalKind::PackCollected, .. }), "{refused:?}");
    let other = straw::Ref { pack: "another-pack".to_owned(), ..group };
    let accepted = offer(&mut world, worker, &grant, other, |_| {});
    assert_eq!(accepted, Outcome::Accepted, "published again");
}

#[test]
fn a_row_that_cannot_be_used_fails_its_group_alone_and_the_run_goes_on() {
    let mut world = waiting_for_groups(false);
    let worker = stranger("node");
    let bad = granted(lease(&mut world, worker.clone(), 1)).remove(0).task;
    let mut tries = 0;
    while !world.state().queue.is_settled(straw::queue::TaskId(bad)) {
        tries += 1;
        assert!(tries <= 10, "it is given out for ever");
        let leased = world.state().queue.lease(straw::queue::TaskId(bad)).is_some();
        if !leased {
            granted(lease(&mut world, worker.clone(), 1000));
        }
        let held = world.state().queue.lease(straw::queue::TaskId(bad)).expect("it is leased").attempt;
        let lease = format!("{}.{}", held.epoch, held.counter);
        let reason = "row 7 of the data: cannot encode".to_owned();
        world.now(|_| Event::Unusable { lease, task: bad, reason });
    }
    let waits = world.conductor.as_ref().unwrap().progress(world.now).waits;
    assert!(waits.iter().any(|wait| wait.what.contains("row 7 of the data")), "{waits:?}");
}

#[test]
fn a_batch_whose_records_were_moved_is_given_from_where_they_are_now() {
    let mut world = quiet(false, false);
    world.until(
        "a step is given to the trainer",
        |w| matches!(w.state().wire_order(), Some((_, Order::Train(order))) if order.step == 1),
    );
    world.hush();
    let mut state = world.state().clone();
    let given = |state: &State| match state.wire_order() {
        Some((_, Order::Train(order))) => order.batch,
        other => panic!("{other:?}"),
    };
    let before = given(&state);
    let after = straw::Ref { pack: "compact-00000000000000000000000a".to_owned(), offset: 4096, ..before.clone() };
    state.apply(&Record::RecordsMoved { moves: vec![(before.clone(), after.clone())] }).unwrap();
    assert_eq!(given(&state), after, "the old pack may be gone");
    let names_it = |r: &straw::Ref| r.pack == before.pack && r.offset == before.offset;
    assert!(!state.queue.live_refs().any(names_it) && state.scorable.iter().all(|(batch, _)| !names_it(batch)));
}

#[test]
fn renewals_are_answered_from_memory_and_make_no_record() {
    let mut world = waiting_for_groups(false);
    let worker = stranger("n");
    let grants = granted(lease(&mut world, worker.clone(), 64));
    assert!(grants.len() > 1, "one call renews many");
    let leases: Vec<(String, u64)> = grants.iter().map(|grant| (grant.lease.clone(), grant.task)).collect();
    let before = world.journal.len();
    for _ in 0..50 {
        let renew = RenewRequest { worker: worker.clone(), leases: leases.clone() };
        let Some(Reply::Renew(renewed)) = world.now(|reply| Event::Renew(reply, renew)).1 else { panic!("renew") };
        assert!(renewed.lost.is_empty());
    }
    assert_eq!(world.journal.len(), before);
}

#[test]
fn a_pack_that_was_emptied_stays_while_an_order_from_before_may_be_read_in_it() {
    let mut world = quiet(false, false);
    world.until(
        "a step is given to the trainer",
        |w| matches!(w.state().wire_order(), Some((_, Order::Train(order))) if order.step == 1),
    );
    world.hush();
    let (epoch, done) = (world.state().trainer_epoch, world.state().trainer.as_ref().unwrap().done);
    let Some((_, Order::Train(given))) = world.state().wire_order() else { panic!("just seen") };
    let (name, owner) = (given.batch.pack.clone(), "nobody".to_owned());
    let old = straw::PackInfo { name, owner, bytes: 1 << 30, sealed: true, abandoned: false };
    let look = |world: &mut World| {
        world.now += 3_600_000;
        world.now(|_| Event::PacksFound(vec![old.clone()])).0
    };
    let commands = look(&mut world);
    let records = commands
        .into_iter()
        .find_map(|c| if let Command::CopyRecords { records, .. } = c { Some(records) } else { None });
    let moves: Vec<(straw::Ref, straw::Ref)> = records
        .expect("it is worth it")
        .into_iter()
        .map(|from| (from.clone(), straw::Ref { pack: "conductor-9-1".to_owned(), ..from }))
        .collect();
    assert!(moves.iter().any(|(from, _)| *from == given.batch));
    world.now(|_| Event::RecordsCopied(Ok(moves)));
    // The trainer asks again and is given the new place; but what it was given first it may be reading.
    assert!(matches!(next(&mut world, epoch, done), Reply::Next(reply)
        if matches!(&reply.work.as_ref().unwrap().order, Order::Train(order) if order.batch.pack == "conductor-9-1")));
    for _ in 0..3 {
        look(&mut world);
    }
    assert!(!world.state().queue.retired().contains(&old.name), "the order is at hand");
    // Another conductor does not know what was given when.
    world.succeed();
    world.hush();
    for _ in 0..3 {
        look(&mut world);
    }
    assert!(!world.state().queue.retired().contains(&old.name), "the order is still at hand");
    report(&mut world, epoch, done + 1, trained());
    for _ in 0..3 {
        look(&mut world);
    }
    assert!(world.state().queue.retired().contains(&old.name), "nobody can read there any more");
}
