//! How an attempt ends, and what it waits for.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::Instant;

use control::wire::{Order, Phase, Report, Start};
use support::*;
use train::{Ended, Error, Failure, exit};

const RANDOM: Start = Start::Random { seed: 9 };

fn orders(volume: &Volume, dp: usize) -> Vec<Order> {
    let samples = samples(6, 41);
    let mut orders: Vec<Order> = (0..3).map(|k| train_order(&volume.store, Phase::Rl, k, &samples, dp, 2)).collect();
    orders.extend([save(3, "tiles/3"), publish(1, "weights/v1"), Order::Finish]);
    orders
}

/// Runs with these faults; every rank must fail.
fn failures(volume: &Volume, wire: Wire, faults: &str) -> (Vec<Failure>, usize) {
    let conductor = conduct(RANDOM, config(), 1, orders(volume, 2));
    let attempt = Attempt { wire, faults: faults.into(), ..Attempt::new(volume, 2, 2) };
    let started = Instant::now();
    let ends = attempt.run(&conductor);
    // Not a measurement: without an abort the others would wait for the collective's deadline of a minute.
    assert!(started.elapsed().as_secs() < 30, "the others were left waiting");
    let reports = conductor.desk.lock().unwrap().reports.len();
    (ends.into_iter().map(|end| end.unwrap_err()).collect(), reports)
}

#[test]
fn a_rank_that_fails_anywhere_ends_all_and_is_the_one_to_blame() {
    for (rank, point, reports) in [
        (1, "claimed", 0),
        (2, "loaded", 0),
        (3, "batch-read", 1),
        (1, "backward", 1),
        (0, "optimizer", 1),
        (2, "updated", 1),
        (3, "before-report", 1),
    ] {
        for wire in [Wire::Threads, Wire::Tcp] {
            let volume = Volume::new();
            let step = if reports == 1 { ",step=1" } else { "" };
            let (failures, reported) = failures(&volume, wire, &format!("error:rank={rank},point={point}{step}"));
            // A rank may fail behind the report of the order before; none may get further than that.
            assert!(reported <= reports + 1, "{point}: {reported} reports");
            for failure in &failures {
                let text = failure.to_string();
                if failure.rank == rank {
                    assert!(matches!(*failure.error, Error::Injected { .. }), "{point}: {text}");
                    assert_eq!(failure.exit_code(), exit::FAILURE);
                    if reports == 1 {
                        let begin = format!("rank {rank}, train RL step 1 (order 2): ");
                        assert!(text.starts_with(&begin), "{text}");
                    }
                } else {
                    assert_eq!(failure.exit_code(), exit::PEER_FAILED, "{wire:?} {point}: {text}");
                }
            }
        }
    }
}

#[test]
fn a_failure_in_the_middle_of_a_folder_leaves_nothing_under_its_name() {
    for (point, folder, file) in
        [("tiles-half", "tiles/3", "index.json"), ("weights-half", "weights/v1", "model.safetensors")]
    {
        let volume = Volume::new();
        let (failures, _) = failures(&volume, Wire::Threads, &format!("error:rank=0,point={point}"));
        assert!(failures[0].to_string().contains("injected"), "{}", failures[0]);
        assert!(failures[1..].iter().all(|f| f.exit_code() == exit::PEER_FAILED));
        assert!(!volume.run_dir().join(folder).join(file).exists(), "{point}");
        // The half-written folder is in nobody's way.
        let again = if point == "tiles-half" { save(3, folder) } else { publish(1, folder) };
        Attempt::new(&volume, 2, 2).play(RANDOM, config(), vec![again]);
        assert!(volume.run_dir().join(folder).join(file).exists(), "{point}");
    }
}

#[test]
fn a_folder_that_had_its_name_when_the_volume_died_is_written_again() {
    for (point, order) in [("tiles-written", save(3, "tiles/3")), ("weights-written", publish(1, "weights/v1"))] {
        let volume = Volume::new();
        let attempt = Attempt { faults: format!("away:rank=0,point={point}"), ..Attempt::new(&volume, 2, 2) };
        let reports = attempt.play(RANDOM, config(), vec![order]);
        assert_eq!(reports.len(), 2, "{point}: the order and the end");
        // What is there is whole: another attempt begins with it.
        let folder = volume.run_dir().join(if point == "tiles-written" { "tiles/3" } else { "weights/v1" });
        match &reports[0] {
            Report::Weights { weights_digest, .. } => {
                assert_eq!(&checkpoint::hf::folder_digest(&folder).unwrap(), weights_digest);
            }
            _ => assert!(folder.join("index.json").is_file()),
        }
    }
}

#[test]
fn an_attempt_that_is_fenced_ends_as_superseded() {
    let volume = Volume::new();
    let conductor = conduct(RANDOM, config(), 1, vec![]);
    conductor.desk.lock().unwrap().fenced = true;
    let ends = Attempt::new(&volume, 2, 1).run(&conductor);
    let codes: Vec<u8> = ends.iter().map(|e| e.as_ref().unwrap_err().exit_code()).collect();
    assert_eq!(codes, [exit::SUPERSEDED, exit::PEER_FAILED]);
}

#[test]
fn a_conductor_that_is_away_is_waited_for() {
    let volume = Volume::new();
    let conductor = conduct(RANDOM, config(), 1, orders(&volume, 1));
    conductor.desk.lock().unwrap().away = 5;
    let ends = Attempt::new(&volume, 1, 1).run(&conductor);
    assert_eq!(ends[0].as_ref().unwrap(), &Ended::Finished);
    let desk = conductor.desk.lock().unwrap();
    assert_eq!((desk.away, desk.reports.len()), (0, 6));
}

#[test]
fn a_report_that_a_new_conductor_lacks_is_offered_again() {
    for seq in 1..=5 {
        let volume = Volume::new();
        let conductor = conduct(RANDOM, config(), 1, orders(&volume, 1));
        conductor.desk.lock().unwrap().forget = Some(seq);
        let ends = Attempt::new(&volume, 1, 1).run(&conductor);
        assert_eq!(ends[0].as_ref().unwrap(), &Ended::Finished);
        let desk = conductor.desk.lock().unwrap();
        assert!(desk.forget.is_none() && desk.reports.len() == 6);
        // The work was not done again: three batches make three updates.
        assert_eq!(trained(&desk.reports[2].1).updates_done, 3);
    }
}

#[test]
fn a_stop_is_reported_before_the_ranks_leave() {
    let volume = Volume::new();
    let conductor = conduct(RANDOM, config(), 1, vec![Order::Stop { reason: "suspended".into() }]);
    for end in Attempt::new(&volume, 2, 1).run(&conductor) {
        assert_eq!(end.unwrap(), Ended::Stopped);
    }
    assert_eq!(conductor.desk.lock().unwrap().reports, [(1, Report::Stopping)]);
}

#[test]
fn sigterm_ends_the_attempt_at_the_end_of_an_order() {
    let volume = Volume::new();
    let conductor = conduct(RANDOM, config(), 1, vec![]);
    let attempt = Attempt::new(&volume, 2, 1);
    attempt.stop.ask();
    for end in attempt.run(&conductor) {
        let failure = end.unwrap_err();
        assert!(matches!(*failure.error, Error::Terminated) && failure.exit_code() == exit::TERMINATED);
    }
}

#[test]
fn weights_that_are_no_numbers_are_neither_saved_nor_published() {
    for (order, folder) in [(save(1, "tiles/1"), "tiles/1"), (publish(1, "weights/v1"), "weights/v1")] {
        let volume = Volume::new();
        let mut diverging = config();
        diverging.optimizer.lr = 1e39;
        let orders = vec![train_order(&volume.store, Phase::Rl, 0, &samples(6, 41), 2, 2), order];
        let conductor = conduct(RANDOM, diverging, 1, orders);
        let ends: Vec<Failure> =
            Attempt::new(&volume, 2, 1).run(&conductor).into_iter().map(|end| end.unwrap_err()).collect();
        let to_blame: Vec<&Failure> = ends.iter().filter(|end| end.exit_code() == exit::USER_MUST_ACT).collect();
        assert!(!to_blame.is_empty(), "{ends:?}");
        let text = to_blame[0].to_string();
        assert!(text.contains("not finite") && text.contains("optimizer.lr"), "{text}");
        assert!(!volume.run_dir().join(folder).exists(), "{folder} is there");
        assert_eq!(conductor.desk.lock().unwrap().reports.len(), 1, "only the step was reported");
    }
}

#[test]
fn settings_no_trainer_can_use_are_the_users_to_mend() {
    let volume = Volume::new();
    let mut bad = config();
    bad.optimizer.lr = -1.0;
    let conductor = conduct(RANDOM, bad, 1, vec![]);
    let failure = Attempt::new(&volume, 1, 1).run(&conductor).remove(0).unwrap_err();
    assert!(failure.exit_code() == exit::USER_MUST_ACT && failure.to_string().contains("lr is -1"), "{failure}");

    let conductor = conduct(RANDOM, config(), 1, vec![]);
    let attempt = Attempt { layout: control::wire::Layout { pp: 2, ..layout(1, 1) }, ..Attempt::new(&volume, 2, 1) };
    for end in attempt.run(&conductor) {
        let failure = end.unwrap_err();
        assert!(failure.to_string().contains("pp"), "{failure}");
    }
}
