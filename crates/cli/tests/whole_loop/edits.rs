//! Saving an edit of the manifest while `thresh run` watches it is `kubectl apply`: what shapes the trainer restarts it alone,
//! what is live takes effect at the next step, what may not change is refused and changes nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use api::{AttemptCause, Outcome, Phase, RLJobStatus};
use checkpoint::{Checkpoint, Rect};
use control::wire::StepRecord;
use local::{folder, status_file::StatusFile};
use rustix::process::Signal;

use crate::local_run::{LocalRun, Process, copy_folder, quickstart_manifest, signal};

/// A run that does not end by itself, with a short warm start and no commits but those a restart asks for.
fn manifest() -> String {
    quickstart_manifest()
        .replace("stopAtPassRate: 0.25", "stopAtPassRate: 0.05")
        .replace("evalPrompts: 256", "evalPrompts: 64")
        .replace("everySteps: 10", "everySteps: 100000")
        .replace("totalSteps: 50", "totalSteps: 100000")
}

const LAYOUT: &str = "nodes: 1\n    accelerator: {vendor: cpu, perNode: 2}\n    parallelism: {dp: 2, tp: 1}";

/// The manifest in another layout.
fn laid_out(manifest: &str, nodes: u32, per_node: u32, dp: u32, tp: u32) -> String {
    replaced(
        manifest,
        LAYOUT,
        &format!(
            "nodes: {nodes}\n    accelerator: {{vendor: cpu, perNode: {per_node}}}\n    parallelism: {{dp: {dp}, tp: {tp}}}"
        ),
    )
}

fn replaced(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "no `{from}` in the manifest");
    text.replace(from, to)
}

fn save(run: &LocalRun, manifest: &str) {
    fs::write(run.state().with_file_name("rljob.yaml"), manifest).unwrap();
}

/// Lines of events with one of these reasons.
fn told(run: &LocalRun, reasons: &[&str]) -> Vec<String> {
    let is = |line: &&str| reasons.iter().any(|reason| line.contains(&format!("event={reason} ")));
    run.output().lines().filter(is).map(str::to_owned).collect()
}

/// Saves an edit; what `thresh run` says to it.
fn edit(run: &mut LocalRun, manifest: &str) -> String {
    const ANSWERS: [&str; 2] = ["EditAccepted", "EditRefused"];
    let before = told(run, &ANSWERS).len();
    save(run, manifest);
    run.wait_for("an answer to the edit", |run| told(run, &ANSWERS).get(before).cloned())
}

fn status_file(run: &LocalRun) -> Option<StatusFile> {
    folder::read_json(&run.state().join("status.json")).unwrap()
}

/// Waits until the status is as wanted, and gives it.
fn status(run: &mut LocalRun, what: &str, wanted: impl Fn(&RLJobStatus) -> bool) -> RLJobStatus {
    run.wait_for(what, |run| Some(status_file(run)?.job).filter(|status| wanted(status)))
}

/// Waits until an attempt with this number runs, and gives its status.
fn running(run: &mut LocalRun, attempt: u64) -> RLJobStatus {
    status(run, &format!("attempt {attempt} to run"), |status| {
        status.phase == Phase::Running
            && status.attempt.as_ref().is_some_and(|a| a.id == attempt && a.stopping.is_none())
    })
}

/// Finished steps as they were written down, replays included.
fn records(run: &LocalRun) -> Vec<StepRecord> {
    let text = run.run_dir().and_then(|run| fs::read_to_string(run.join("steps.jsonl")).ok()).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Waits until an attempt has learnt `count` steps more than were learnt when it began.
fn learnt(run: &mut LocalRun, attempt: u64, count: usize) -> Vec<StepRecord> {
    run.wait_for(&format!("{count} steps of attempt {attempt}"), |run| {
        let own: Vec<_> = records(run).into_iter().filter(|record| record.attempt == attempt).collect();
        (own.len() >= count).then_some(own)
    })
}

/// Everything that is not the trainer.
fn others(run: &LocalRun) -> Vec<Process> {
    let own = |process: &Process| !process.pod.contains("-t");
    run.processes().into_iter().filter(own).collect()
}

fn rank(run: &LocalRun, rank: &str) -> i32 {
    run.processes().into_iter().find(|process| process.rank.as_deref() == Some(rank)).unwrap().pid
}

/// The process that the trainer's pod began with.
fn launcher(run: &LocalRun, attempt: u64) -> i32 {
    let pod = format!("-t{attempt}-");
    run.pods(&pod).into_iter().find(|process| process.rank.is_none()).unwrap().pid
}

/// `thresh straw verify`: the run's rules hold; its figures.
fn verified(run: &LocalRun) -> conductor::check::Report {
    let verified = Command::new(env!("CARGO_BIN_EXE_thresh"))
        .args(["straw", "verify", "-o", "json"])
        .arg(run.run_dir().unwrap())
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&verified.stdout);
    assert!(verified.status.success(), "{out}\n{}", String::from_utf8_lossy(&verified.stderr));
    let rules = serde_json::from_str::<serde_json::Value>(&out).unwrap()["rules"].take();
    let number = |name: &str| rules[name].as_u64().unwrap();
    conductor::check::Report {
        generate_calls: number("generateCalls"),
        groups_completed: number("groupsCompleted"),
        groups_batched: number("groupsBatched"),
        batches: number("batches"),
        replays: number("replays"),
        ..Default::default()
    }
}

/// Lets nothing of the run move while `look` looks.
fn frozen<T>(run: &LocalRun, look: impl FnOnce(&LocalRun) -> T) -> T {
    let mut stopped = BTreeSet::from([run.pid()]);
    signal(run.pid(), Signal::STOP);
    // One that was starting others when it was stopped may have started one more.
    loop {
        let new: Vec<i32> = run.processes().into_iter().map(|one| one.pid).filter(|pid| stopped.insert(*pid)).collect();
        if new.is_empty() {
            break;
        }
        new.into_iter().for_each(|pid| signal(pid, Signal::STOP));
    }
    let seen = look(run);
    stopped.into_iter().for_each(|pid| signal(pid, Signal::CONT));
    seen
}

/// A copy of the run's whole folder, to be gone on with later.
fn copied(run: &LocalRun) -> tempfile::TempDir {
    frozen(run, |run| {
        let folder = tempfile::tempdir().unwrap();
        copy_folder(&run.state(), &folder.path().join("state"));
        folder
    })
}

fn killed(run: &mut LocalRun) {
    signal(run.pid(), Signal::KILL);
    run.wait();
}

/// Folders of committed tiles: epoch, step, where.
fn tiles(run: &LocalRun) -> Vec<(u64, u64, PathBuf)> {
    let mut found: Vec<_> = fs::read_dir(run.run_dir().unwrap().join("tiles"))
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.join("index.json").is_file())
        .filter_map(|path| {
            let name = path.file_name()?.to_str()?;
            let (step, epoch) = name.strip_prefix("step-")?.split_once("-e")?;
            Some((epoch.parse().ok()?, step.parse().ok()?, path))
        })
        .collect();
    found.sort_unstable();
    found
}

/// Every global tensor of a checkpoint.
fn tensors(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let checkpoint = Checkpoint::open(folder, None).unwrap();
    checkpoint.verify().unwrap();
    let entries = checkpoint.index().tensors.iter();
    entries
        .map(|(name, entry)| {
            let (dtype, all) = (entry.dtype(name).unwrap(), Rect::full(&entry.shape));
            (name.clone(), checkpoint.read(name, &entry.shape, dtype, &all).unwrap())
        })
        .collect()
}

/// How a checkpoint is cut into tiles.
fn cuts(folder: &Path) -> BTreeMap<String, Vec<Rect>> {
    let checkpoint = Checkpoint::open(folder, None).unwrap();
    let entries = checkpoint.index().tensors.iter();
    entries.map(|(name, entry)| (name.clone(), entry.tiles.iter().map(|tile| tile.rect()).collect())).collect()
}

#[test]
fn a_reshard_restarts_the_trainer_alone_and_moves_no_bit_of_weights_and_moments() {
    // From the first edit on every gradient is spoilt, so every update is left out: what an attempt saves is what it loaded.
    let spoilt: Vec<String> = (2..=4).map(|attempt| format!("poison-gradient:attempt={attempt}")).collect();
    let base = manifest().replace("everySteps: 100000", "everySteps: 1").replace("keep: 2", "keep: 1000");
    let mut run = LocalRun::start(&base, &[], &[("THRESH_FAULTS", &spoilt.join(";"))]);
    run.wait_for_steps(2);
    let untouched = others(&run);
    assert_eq!(untouched.len(), 5, "conductor, two engines, two workers: {untouched:?}");
    for (attempt, layout) in (2u64..).zip([(1, 2, 1, 2), (1, 1, 1, 1), (2, 1, 2, 1)]) {
        let (nodes, per_node, dp, tp) = layout;
        let answer = edit(&mut run, &laid_out(&base, nodes, per_node, dp, tp));
        assert!(
            answer.contains("spec.trainer.parallelism (checkpoints and restarts the trainer alone)") || dp == 2,
            "{answer}"
        );
        let status = running(&mut run, attempt);
        let now = status.attempt.unwrap();
        assert_eq!(
            (now.nodes, now.parallelism.dp, now.parallelism.tp, now.reason),
            (nodes, dp, tp, AttemptCause::SpecChange)
        );
        assert_eq!(status.last_attempt.unwrap().outcome, Outcome::SpecChange, "an edit is not a failure");
        assert_eq!((status.counters.failures, u64::from(status.counters.spec_restarts)), (0, attempt - 1));
        run.wait_for("two commits in the new layout", |run| {
            (tiles(run).iter().filter(|(epoch, _, _)| *epoch == attempt).count() >= 2).then_some(())
        });
        assert_eq!(others(&run), untouched, "nothing but the trainer restarts");
    }
    killed(&mut run);
    verified(&run);
    let steps = run.steps();
    assert!(
        steps.iter().all(|record| record.train.skipped_updates == u64::from(record.attempt > 1)),
        "the trick works"
    );

    let saved = tiles(&run);
    let of = |epoch: u64| saved.iter().filter(move |(e, _, _)| *e == epoch).map(|(_, _, path)| path);
    let edited_at = tensors(of(1).next_back().unwrap());
    assert!(["master.", "m.", "v."].iter().all(|kind| edited_at.keys().any(|name| name.starts_with(kind))));
    assert!(tensors(of(1).next().unwrap()) != edited_at, "something was learnt before");
    for epoch in 2..=4 {
        for folder in of(epoch) {
            let now = tensors(folder);
            let differing: Vec<_> = edited_at.keys().filter(|name| now.get(*name) != edited_at.get(*name)).collect();
            assert!(
                differing.is_empty() && now.len() == edited_at.len(),
                "{} differs in {differing:?}",
                folder.display()
            );
        }
    }
    let layouts: BTreeSet<_> = (1..=3).map(|epoch| cuts(of(epoch).next().unwrap())).collect();
    assert_eq!(layouts.len(), 3, "they were really cut in three ways");
}

#[test]
fn after_a_reshard_the_run_learns_what_a_run_in_the_new_layout_learns_from_the_same_commit() {
    let base = manifest();
    let mut run = LocalRun::start(&base, &[], &[]);
    run.wait_for_steps(3);
    let edits = [laid_out(&base, 1, 2, 1, 2), laid_out(&base, 1, 1, 1, 1), base.clone()];
    let mut copies = Vec::new();
    for (attempt, edited) in (2..).zip(&edits) {
        edit(&mut run, edited);
        let begun = format!("attempt {attempt}: ");
        run.wait_for("the new attempt", |run| {
            told(run, &["AttemptStarted"]).iter().any(|line| line.contains(&begun)).then_some(())
        });
        copies.push(copied(&run));
        learnt(&mut run, attempt, 4);
    }
    killed(&mut run);
    let steps = run.steps();
    assert!(!steps.iter().any(|record| record.replay), "it saved before each restart: nothing was learnt twice");
    for record in &steps {
        assert!(
            record.train.gap_max == 0.0 && record.rescored_gap_max == 0.0,
            "the gap is 0 at any layout: {record:?}"
        );
        assert!(record.train.gap_tokens == record.train.loss_tokens, "and over all tokens: {record:?}");
    }

    // All that the trainer computed. A pause or a version's number may differ, a bit of this may not.
    let learnt_of = |record: &StepRecord| {
        let t = &record.train;
        let bits = [record.reward, t.loss, t.pg_loss, t.entropy, t.clip_fraction, t.grad_norm, t.lr].map(f64::to_bits);
        (record.step, bits, t.tokens, t.loss_tokens, t.updates_done)
    };
    for ((attempt, edited), copy) in (2..).zip(&edits).zip(copies) {
        let mut alone = LocalRun::start_in(copy, edited);
        // The copy was taken from the midst of an attempt, as from a machine that died: it goes on in one more.
        let alone = learnt(&mut alone, attempt + 1, 4);
        let edited: Vec<_> = steps.iter().filter(|record| record.attempt == attempt).take(4).map(learnt_of).collect();
        let alone: Vec<_> = alone.iter().take(4).map(learnt_of).collect();
        assert_eq!(edited, alone, "attempt {attempt}");
    }
}

#[test]
fn live_fields_take_effect_at_the_next_step_refused_edits_change_nothing_and_a_suspended_run_goes_on() {
    let base = manifest();
    let mut run = LocalRun::start(&base, &[], &[]);
    run.wait_for_steps(2);
    let everybody = run.processes();

    let live = replaced(&base, "totalSteps: 100000", "totalSteps: 90000\n  eval: {everySteps: 2, prompts: 16}");
    let answer = edit(&mut run, &live);
    assert!(answer.contains("spec.eval (takes effect without a restart)"), "{answer}");
    assert!(answer.contains("spec.totalSteps (takes effect without a restart)"), "{answer}");
    status(&mut run, "the new number of steps", |status| {
        status.progress.as_ref().is_some_and(|p| p.total_steps == 90_000)
    });
    run.wait_for("an evaluation", |run| {
        told(run, &["Evaluated"])
            .iter()
            .any(|line| line.contains("pass rate at step") && line.contains("of 16"))
            .then_some(())
    });

    for (from, to, said) in [
        (
            "init: {kind: Random, seed: 0}",
            "init: {kind: Random, seed: 1}",
            ["spec.model:", "init.seed 0 → 1", "a new model is a new run"],
        ),
        ("shuffleSeed: 42", "shuffleSeed: 43", ["spec.data:", "shuffleSeed 42 → 43", "other data is a new run"]),
        (
            "temperature: 1.0",
            "temperature: 0.7",
            ["spec.sampling:", "temperature 1.0 → 0.7", "other sampling is a new run"],
        ),
        ("thresh-data", "other-data", ["spec.storage:", "claimName thresh-data → other-data", "cannot be changed"]),
        (
            "promptsPerStep: 32",
            "promptsPerStep: 16",
            ["spec.batch:", "promptsPerStep 32 → 16", "other batch sizes are a new run"],
        ),
        ("mode: Sync", "mode: Async", ["spec.mode:", "Sync → Async", "cannot be changed"]),
        ("maxSteps: 700", "maxSteps: 800", ["spec.warmStart:", "maxSteps 700 → 800", "cannot be changed"]),
        (
            "{dp: 2, tp: 1}",
            "{tp: 3}",
            ["spec.trainer.parallelism:", "2 devices (1 node × 2) cannot be split by tp 3", "tp must divide 2"],
        ),
        (
            "perNode: 2}\n    parallelism: {dp: 2, tp: 1}",
            "perNode: 4}\n    parallelism: {tp: 4}",
            ["spec.trainer.parallelism:", "tp 4 cannot cut the model's 2 key-value heads", "tp must divide 2"],
        ),
        (
            "name: sort5-grpo",
            "name: another",
            ["metadata.name:", "the state folder holds the run `sort5-grpo`", "keep the name"],
        ),
        ("totalSteps:", "totalStep:", ["spec.totalStep:", "unknown field", "did you mean `totalSteps`?"]),
        ("  trainer:\n", "  trainer: [\n", ["rljob.yaml:", "error:", "correct the YAML"]),
    ] {
        let answer = edit(&mut run, &replaced(&live, from, to));
        assert!(answer.contains("event=EditRefused") && answer.contains("nothing changes"), "{to}: {answer}");
        assert!(said.iter().all(|words| answer.contains(words)), "{to}: {answer}");
    }
    let steps = run.steps().len();
    run.wait_for_steps(steps + 1);
    assert_eq!(run.processes(), everybody, "nobody restarted");

    let answer = edit(&mut run, &replaced(&live, "  mode: Sync", "  suspend: true\n  mode: Sync"));
    assert!(answer.contains("spec.suspend (saves and stops the trainer)"), "{answer}");
    let asleep = status(&mut run, "the suspension", |status| status.phase == Phase::Suspended);
    assert_eq!((asleep.attempts, asleep.last_attempt.unwrap().outcome), (1, Outcome::Suspended));
    let untouched = others(&run);
    assert_eq!(run.processes(), untouched, "no trainer lives");
    assert!(untouched.iter().all(|one| everybody.contains(one)), "everybody else does");
    let committed = status_file(&run).unwrap().progress.unwrap().commit.unwrap().step;
    assert_eq!(committed, run.steps().len() as u64, "it saved what it had learnt");

    let answer = edit(&mut run, &live);
    assert!(answer.contains("spec.suspend (the trainer goes on from its last commit)"), "{answer}");
    let awake = running(&mut run, 2);
    assert_eq!(awake.attempt.unwrap().reason, AttemptCause::Resume);
    learnt(&mut run, 2, 2);
    assert_eq!(others(&run), untouched);

    // An end that is nearer than before is an end; one that was passed while the edit was on its way ends the run there.
    let last = run.steps().len() + 5;
    edit(&mut run, &replaced(&live, "totalSteps: 90000", &format!("totalSteps: {last}")));
    let heard = run.steps().len();
    assert_eq!(run.wait(), 0, "{}", run.report());
    let steps = run.steps().len();
    assert!((last..=last.max(heard + 2)).contains(&steps), "{steps} steps, asked for {last}, heard at {heard}");
    assert!(!run.steps().iter().any(|record| record.replay), "nothing was learnt twice");
    verified(&run);
}

#[test]
fn edits_in_quick_succession_during_a_restart_and_taken_back_come_to_the_last_one_without_an_extra_attempt() {
    let base = manifest();
    let (tp2, dp1) = (laid_out(&base, 1, 2, 1, 2), laid_out(&base, 1, 1, 1, 1));
    let mut run = LocalRun::start(&base, &[], &[]);
    run.wait_for_steps(2);
    let untouched = others(&run);
    let layout = |status: &RLJobStatus| {
        let now = status.attempt.as_ref().unwrap();
        (status.attempts, now.parallelism.dp, now.parallelism.tp)
    };

    // Saved again before anybody looked.
    [&tp2, &dp1, &base, &tp2].into_iter().for_each(|text| save(&run, text));
    learnt(&mut run, 2, 1);
    assert_eq!(layout(&running(&mut run, 2)), (2, 1, 2));

    // Taken back while the trainer is still to save (it cannot, as long as a rank of it stands still).
    let rank_0 = rank(&run, "0");
    signal(rank_0, Signal::STOP);
    assert!(edit(&mut run, &base).contains("restarts the trainer alone"));
    status(&mut run, "the checkpoint to be asked for", |status| {
        status.attempt.as_ref().is_some_and(|a| a.stopping.as_ref().is_some_and(|s| s.checkpoint.is_some()))
    });
    edit(&mut run, &tp2);
    status(&mut run, "the edit to be taken back", |status| {
        status.attempt.as_ref().is_some_and(|a| a.stopping.is_none())
    });
    signal(rank_0, Signal::CONT);
    let learnt_so_far = learnt(&mut run, 2, 1).len();
    learnt(&mut run, 2, learnt_so_far + 2);
    assert_eq!(layout(&running(&mut run, 2)), (2, 1, 2));
    assert_eq!(rank(&run, "0"), rank_0, "nothing restarted");

    // Changed twice while it is to save: one restart, to the last.
    signal(rank_0, Signal::STOP);
    edit(&mut run, &dp1);
    edit(&mut run, &base);
    signal(rank_0, Signal::CONT);
    learnt(&mut run, 3, 1);
    assert_eq!(layout(&running(&mut run, 3)), (3, 2, 1));

    // During the restart: the attempt has been ended, but a process of it is still there.
    let ended = |run: &mut LocalRun, attempt: u64| {
        let words = format!("attempt {attempt} ended for an edit");
        run.wait_for("the end of the attempt", |run| {
            told(run, &["AttemptEnded"]).iter().any(|line| line.contains(&words)).then_some(())
        });
    };
    let last = launcher(&run, 3);
    signal(last, Signal::STOP);
    edit(&mut run, &tp2);
    ended(&mut run, 3);
    edit(&mut run, &base);
    edit(&mut run, &dp1);
    signal(last, Signal::CONT);
    learnt(&mut run, 4, 1);
    assert_eq!(layout(&running(&mut run, 4)), (4, 1, 1));

    // And taken back during the restart: it comes back as it was.
    let last = launcher(&run, 4);
    signal(last, Signal::STOP);
    edit(&mut run, &base);
    ended(&mut run, 4);
    edit(&mut run, &dp1);
    signal(last, Signal::CONT);
    learnt(&mut run, 5, 2);
    let status = running(&mut run, 5);
    assert_eq!(layout(&status), (5, 1, 1));
    assert_eq!((status.counters.failures, status.counters.spec_restarts), (0, 4));
    assert_eq!(others(&run), untouched, "nobody else noticed");
    killed(&mut run);
    assert!(!run.steps().iter().any(|record| record.replay), "nothing was learnt twice");
    verified(&run);
}

#[test]
fn what_an_edit_cuts_off_is_learnt_again_and_not_generated_again() {
    let base = manifest();
    let mut run = LocalRun::start(&base, &[], &[]);
    // In the midst of the warm start it saves and goes on as well.
    let warm_step = |run: &LocalRun| Some(status_file(run)?.job.progress?.warm_step);
    run.wait_for("warm-start updates", |run| warm_step(run).filter(|step| *step >= 10));
    let tp2 = laid_out(&base, 1, 2, 1, 2);
    edit(&mut run, &tp2);
    running(&mut run, 2);
    let log = fs::read_dir(run.state().join("logs")).unwrap().flatten().map(|entry| entry.path());
    let log = log.filter(|path| path.to_string_lossy().contains("-t2-")).map(|path| fs::read_to_string(path).unwrap());
    let claimed = log.collect::<String>();
    assert!(claimed.contains("warming: true"), "it goes on from a commit of the warm start: {claimed}");
    run.wait_for_steps(4);
    let before = frozen(&run, verified);

    // Without a checkpoint: everything since the last commit is learnt again.
    let untouched = others(&run);
    let at_once = replaced(&base, "  trainer:\n", "  trainer:\n    updatePolicy: {type: Immediate}\n");
    edit(&mut run, &laid_out(&at_once, 1, 1, 1, 1));
    run.wait_for("a step that nobody had learnt before", |run| {
        records(run).iter().any(|record| record.attempt == 3 && !record.replay).then_some(())
    });
    assert_eq!(others(&run), untouched);
    killed(&mut run);

    let all = records(&run);
    let (first, again) = all.iter().partition::<Vec<_>, _>(|record| record.attempt < 3);
    let replayed: Vec<_> = again.iter().filter(|record| record.replay).collect();
    assert!(replayed.len() >= 4 && replayed.len() < again.len(), "{} replays", replayed.len());
    for record in &replayed {
        let Some(once) = first.iter().find(|once| once.step == record.step) else { continue };
        assert_eq!((once.reward, once.train.tokens), (record.reward, record.train.tokens), "the same samples");
    }
    let after = verified(&run);
    assert!(after.replays >= 4);
    let samples = 8;
    let groups = after.groups_completed - before.groups_completed;
    assert_eq!(after.generate_calls - before.generate_calls, groups * samples, "no sample was generated twice");
    assert_eq!(after.groups_batched, 32 * after.batches);
}
