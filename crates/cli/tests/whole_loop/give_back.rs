//! Packs are emptied while a run lives, and its conductor dies in the middle of that, again and again: the run learns what it would
//! have learnt.

use conductor::Record;
use straw::RealFs;

use crate::{
    deaths::{assert_journal_is_sound, assert_learnt_alike},
    local_run::{LocalRun, quickstart_manifest},
};

fn records(run: &LocalRun) -> Vec<Record> {
    let (_, txns) = straw::journal::read(&*RealFs::new(), run.run_dir().unwrap().join("journal")).unwrap();
    txns.iter().flatten().map(|bytes| Record::decode(bytes).unwrap()).collect()
}

#[test]
fn a_run_whose_packs_are_emptied_under_a_dying_conductor_learns_exactly_what_a_quiet_run_learns() {
    let manifest =
        quickstart_manifest().replace("everySteps: 10", "everySteps: 4").replace("totalSteps: 50", "totalSteps: 12");
    let mut quiet = LocalRun::start(&manifest, &[], &[]);
    assert_eq!(quiet.wait(), 0, "{}", quiet.report());
    // The first conductor's pack holds the warm start, of which nothing is needed any more, and batches that are.
    let faults = "kill:epoch=1,point=after-journal,record=Converted,step=6;\
                  kill:epoch=2,point=before-journal,record=RecordsMoved;\
                  kill:epoch=3,point=after-journal,record=RecordsMoved";
    let environment = [
        ("THRESH_CONDUCTOR_FAULTS", faults),
        ("THRESH_GIVE_BACK_LOOK_MS", "200"),
        ("THRESH_GIVE_BACK_SETTLE_MS", "500"),
        ("THRESH_GIVE_BACK_GAIN_BYTES", "1"),
        ("THRESH_GIVE_BACK_LIVE_PERCENT", "80"),
    ];
    let mut struck = LocalRun::start(&manifest, &[], &environment);
    assert_eq!(struck.wait(), 0, "{}", struck.report());
    let all = records(&struck);
    let moved = all.iter().filter(|record| matches!(record, Record::RecordsMoved { .. })).count();
    let conductors = all.iter().filter(|record| matches!(record, Record::Opened { .. })).count();
    assert!(moved >= 1 && conductors >= 4, "{moved} moves by {conductors} conductors");
    assert_journal_is_sound(&struck);
    assert_learnt_alike(&quiet, &struck);
}

#[test]
fn the_conductor_of_a_run_that_lives_is_asked_and_not_ended() {
    let mut run = LocalRun::start(&quickstart_manifest(), &[], &[]);
    run.wait_for_steps(1);
    let conductor = run.pods("-conductor").pop().unwrap().pid;
    let asked = std::process::Command::new(env!("CARGO_BIN_EXE_thresh"))
        .args(["straw", "compact", "--yes"])
        .arg(run.state())
        .output()
        .unwrap();
    let (out, err) = (String::from_utf8_lossy(&asked.stdout), String::from_utf8_lossy(&asked.stderr));
    // All packs are being written to.
    assert!(asked.status.success() && out.contains("no pack is mostly dead"), "{out}\n{err}");
    let steps = run.steps().len();
    run.wait_for_steps(steps + 2);
    assert_eq!(run.pods("-conductor").pop().unwrap().pid, conductor, "nobody took its journal");
    let opened = records(&run).iter().filter(|record| matches!(record, Record::Opened { .. })).count();
    assert_eq!(opened, 1);
}
