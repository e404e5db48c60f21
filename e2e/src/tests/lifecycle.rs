//! A run from its beginning to its end, whichever end that is.

use std::{cell::RefCell, collections::BTreeMap, time::Duration};

use anyhow::{Context as _, ensure};
use api::{Outcome, Phase, RLJob, ServingCluster, conditions as cond};
use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};
use kube::{
    ResourceExt,
    api::{DeleteParams, ListParams},
};
use serde_json::{Value, json};

use super::trainer::bystanders;
use crate::{harness::Test, run, stage::Stage, test};

/// All of them.
pub fn tests() -> Vec<Test> {
    vec![
        test!(a_run_completes_and_leaves_no_pod_of_its_own, Operator, 1, 180),
        test!(a_run_that_cannot_start_backs_off_longer_each_time_and_fails_with_its_last_words, Operator, 1, 180),
        test!(deadlines_end_what_does_not_come_about, Operator, 1, 180),
        test!(a_finished_run_is_deleted_when_its_time_has_come, Operator, 1, 180),
        test!(a_suspended_run_holds_no_device_and_goes_on_where_it_was, Operator, 1, 300),
        test!(what_another_controller_manages_is_left_alone, Operator, 1, 60),
        test!(a_run_begins_with_the_commit_of_one_that_is_gone, Operator, 1, 300),
    ]
}

/// Waits until a condition of the run is True.
async fn comes_true(stage: &Stage, name: &str, condition: &str, seconds: u64) -> anyhow::Result<RLJob> {
    stage
        .until(&format!("{condition} of {name}"), seconds, async || {
            let job = stage.rljob(name).await?;
            Ok(run::reason(&job, condition).is_some().then_some(job))
        })
        .await
}

/// Pods of a role that have not ended.
async fn living(stage: &Stage, role: &str) -> anyhow::Result<Vec<Pod>> {
    Ok(stage.pods(role).await?.into_iter().filter(|pod| !plan::pod_facts::ended(pod)).collect())
}

async fn a_run_completes_and_leaves_no_pod_of_its_own(stage: &Stage) -> anyhow::Result<()> {
    let job = run::manifest("done", |job| job["spec"]["totalSteps"] = json!(4))?;
    stage.apply(&job).await?;
    let job = comes_true(stage, "done", cond::COMPLETE, 120).await?;
    let status = job.status.clone().unwrap_or_default();
    ensure!(status.phase == Phase::Complete, "phase {}", status.phase);
    ensure!(run::step(&job) == 4, "step {}", run::step(&job));
    ensure!(status.attempts == 1, "{} attempts", status.attempts);
    stage
        .until("trainer and conductor to be gone", 60, async || {
            let left = living(stage, "trainer").await?.len();
            Ok((left == 0 && stage.pods("conductor").await?.is_empty()).then_some(()))
        })
        .await?;
    stage
        .always("nothing begins again", 8, async || {
            let job = stage.rljob("done").await?;
            ensure!(job.status.as_ref().is_some_and(|s| s.attempts == 1 && s.phase == Phase::Complete), "it does");
            Ok(())
        })
        .await
}

/// When attempts began and ended, as the run's status says.
#[derive(Default)]
struct Diary(RefCell<BTreeMap<u64, [Option<jiff::Timestamp>; 2]>>);

impl Diary {
    fn note(&self, job: &RLJob) {
        let Some(status) = &job.status else { return };
        let mut attempts = self.0.borrow_mut();
        if let Some(attempt) = &status.attempt {
            let began = &mut attempts.entry(attempt.id).or_default()[0];
            *began = began.or(attempt.created_time.as_ref().map(|time| time.0));
        }
        if let Some(last) = &status.last_attempt {
            attempts.entry(last.id).or_default()[1] = Some(last.end_time.0);
        }
    }

    /// Time between the end of an attempt and the beginning of the next.
    fn pauses(&self) -> Vec<Duration> {
        let attempts = self.0.borrow();
        let pairs = attempts.values().zip(attempts.values().skip(1));
        let pauses = pairs.filter_map(|(one, next)| Some(next[0]?.duration_since(one[1]?)));
        pauses.map(|pause| Duration::try_from(pause).unwrap_or_default()).collect()
    }
}

async fn a_run_that_cannot_start_backs_off_longer_each_time_and_fails_with_its_last_words(
    stage: &Stage,
) -> anyhow::Result<()> {
    let job = run::manifest("broken", |job| {
        let trainer = &mut job["spec"]["trainer"];
        trainer["failurePolicy"] = json!({"backoffLimit": 3, "baseDelaySeconds": 1, "maxDelaySeconds": 60});
        // It ends by itself, with something to say.
        trainer["podTemplate"] = json!({"spec": {"containers": [
            {"name": "trainer", "command": ["thresh-trainer", "--no-such-flag"]}]}});
    })?;
    stage.apply(&job).await?;
    let diary = Diary::default();
    let failed = stage
        .until("the run to fail", 120, async || {
            let job = stage.rljob("broken").await?;
            diary.note(&job);
            Ok(run::reason(&job, cond::FAILED).is_some().then_some(job))
        })
        .await?;
    let status = failed.status.clone().unwrap_or_default();
    let why = run::reason(&failed, cond::FAILED).unwrap_or_default();
    ensure!(
        status.phase == Phase::Failed && status.attempts == 4,
        "{} after {} attempts",
        status.phase,
        status.attempts
    );
    let last = status.last_attempt.context("a last attempt")?;
    ensure!(last.outcome == Outcome::Failed && last.rank.is_some() && last.exit_code.is_some(), "{last:?}");
    ensure!(last.message.contains("--no-such-flag"), "its last words are not there: {}", last.message);
    ensure!(why.starts_with("BackoffLimitExceeded"), "{why}");
    let pauses = diary.pauses();
    // 1, 2, 4 seconds with a tenth of jitter; a slow machine adds to each.
    ensure!(pauses.len() == 3, "{pauses:?}");
    for (pause, least) in pauses.iter().zip([0.8, 1.6, 3.2]) {
        ensure!(pause.as_secs_f64() >= least, "pauses {pauses:?}, this one at least {least} s");
    }
    stage
        .until("trainer and conductor to be gone", 60, async || {
            let left = living(stage, "trainer").await?.len() + living(stage, "conductor").await?.len();
            Ok((left == 0).then_some(()))
        })
        .await
}

async fn deadlines_end_what_does_not_come_about(stage: &Stage) -> anyhow::Result<()> {
    // No node has this label: its ranks stay pending.
    let stuck = run::manifest("stuck", |job| {
        let trainer = &mut job["spec"]["trainer"];
        trainer["startupDeadlineSeconds"] = json!(8);
        trainer["failurePolicy"] = json!({"backoffLimit": 0, "baseDelaySeconds": 1, "maxDelaySeconds": 1});
        trainer["podTemplate"] = json!({"spec": {"nodeSelector": {"thresh.dev/no-such-node": "true"}}});
    })?;
    let late = run::manifest("late", |job| job["spec"]["activeDeadlineSeconds"] = json!(12))?;
    stage.apply(&stuck).await?;
    stage.apply(&late).await?;
    let stuck = comes_true(stage, "stuck", cond::FAILED, 90).await?;
    let last = stuck.status.as_ref().and_then(|s| s.last_attempt.clone()).context("a last attempt")?;
    ensure!(last.outcome == Outcome::StartupDeadline, "{last:?}");
    ensure!(last.message.contains("not all ranks ready within 8 s"), "{}", last.message);
    let late = comes_true(stage, "late", cond::FAILED, 90).await?;
    let why = run::reason(&late, cond::FAILED).unwrap_or_default();
    ensure!(why.starts_with("DeadlineExceeded") && why.contains("12 s"), "{why}");
    for name in ["stuck", "late"] {
        stage
            .until(&format!("the ranks of {name} to be gone"), 60, async || {
                let jobs = stage.api::<Job>().list(&ListParams::default()).await?;
                Ok((!jobs.iter().any(|job| job.name_any().starts_with(name))).then_some(()))
            })
            .await?;
    }
    Ok(())
}

async fn a_finished_run_is_deleted_when_its_time_has_come(stage: &Stage) -> anyhow::Result<()> {
    let job = run::manifest("brief", |job| {
        job["spec"]["totalSteps"] = json!(2);
        job["spec"]["ttlSecondsAfterFinished"] = json!(6);
        job["spec"]["deletionPolicy"] = json!({"serving": "Delete", "rollout": "Delete"});
    })?;
    stage.apply(&job).await?;
    let job = comes_true(stage, "brief", cond::COMPLETE, 120).await?;
    let end = job.status.as_ref().and_then(|s| s.completion_time.clone()).context("a completion time")?;
    stage
        .until("the run to be deleted", 60, async || {
            Ok(stage.api::<RLJob>().get_opt("brief").await?.is_none().then_some(()))
        })
        .await?;
    let lived = jiff::Timestamp::now().duration_since(end.0);
    ensure!(lived.as_secs_f64() >= 5.5, "it was deleted after {lived:?}, and 6 s were asked for");
    stage
        .until("what it had made to be deleted", 60, async || {
            let serving = stage.api::<ServingCluster>().list(&ListParams::default()).await?.items.len();
            let pods = stage.api::<Pod>().list(&ListParams::default()).await?.items.len();
            Ok((serving + pods == 0).then_some(()))
        })
        .await?;
    ensure!(run::folder(&job).join("steps.jsonl").is_file(), "what it has learnt is not there any more");
    Ok(())
}

async fn a_suspended_run_holds_no_device_and_goes_on_where_it_was(stage: &Stage) -> anyhow::Result<()> {
    let suspend = async |whether: bool| stage.patch::<RLJob>("rest", json!({"spec": {"suspend": whether}})).await;
    let job = run::manifest("rest", |job| job["spec"]["suspend"] = json!(true))?;
    stage.apply(&job).await?;
    comes_true(stage, "rest", cond::SUSPENDED, 60).await?;
    stage
        .always("a run that is made suspended begins nothing", 4, async || {
            let jobs = stage.api::<Job>().list(&ListParams::default()).await?.items.len();
            ensure!(jobs == 0, "it does");
            Ok(())
        })
        .await?;
    suspend(false).await?;
    run::steps_from(stage, "rest", 0, 3).await?;
    let running = run::attempt_after(stage, "rest", 0, 30).await?;
    let first = run::ready_attempt(&running).context("an attempt")?;
    let others = bystanders(stage).await?;

    suspend(true).await?;
    let asleep = comes_true(stage, "rest", cond::SUSPENDED, 90).await?;
    ensure!(living(stage, "trainer").await?.is_empty(), "a rank lives while the run is suspended");
    let status = asleep.status.clone().unwrap_or_default();
    ensure!(
        status.phase == Phase::Suspended && status.counters.failures == 0,
        "{} {:?}",
        status.phase,
        status.counters
    );
    let kept = run::sound(&asleep)?.last().map_or(0, |step| step.step);
    suspend(false).await?;
    let awake = run::attempt_after(stage, "rest", first, 90).await?;
    run::steps_from(stage, "rest", kept, 3).await?;
    ensure!(bystanders(stage).await? == others, "somebody else was restarted");
    // It had saved before it stopped: nothing is learnt again.
    let replayed = run::sound(&awake)?.iter().filter(|step| step.replay).count();
    ensure!(replayed == 0, "{replayed} steps were learnt again");

    // There and back faster than anything can follow.
    let second = run::ready_attempt(&awake).context("an attempt")?;
    suspend(true).await?;
    suspend(false).await?;
    let step = run::step(&stage.rljob("rest").await?);
    let after = run::steps_from(stage, "rest", step, 3).await?;
    let status = after.status.clone().unwrap_or_default();
    ensure!(status.attempts <= second + 1, "{} attempts for one suspension", status.attempts - second);
    ensure!(status.counters.failures == 0, "{:?}", status.counters);
    let suspended = run::condition(&after, cond::SUSPENDED);
    ensure!(suspended.starts_with("False") || suspended == "absent", "{suspended}");
    Ok(())
}

async fn what_another_controller_manages_is_left_alone(stage: &Stage) -> anyhow::Result<()> {
    let job = run::manifest("theirs", |job| job["spec"]["managedBy"] = json!("kueue.x-k8s.io/multikueue"))?;
    stage.apply(&job).await?;
    let before: Value = serde_json::to_value(stage.rljob("theirs").await?)?;
    stage
        .always("nobody touches it", 8, async || {
            let now: Value = serde_json::to_value(stage.rljob("theirs").await?)?;
            ensure!(now == before, "it was written: {now}");
            let serving = stage.api::<ServingCluster>().list(&ListParams::default()).await?.items.len();
            let pods = stage.api::<Pod>().list(&ListParams::default()).await?.items.len();
            ensure!(serving + pods == 0, "something was made for it");
            Ok(())
        })
        .await
}

async fn a_run_begins_with_the_commit_of_one_that_is_gone(stage: &Stage) -> anyhow::Result<()> {
    let first = run::manifest("first", |job| {
        job["spec"]["totalSteps"] = json!(6);
        job["spec"]["checkpoint"] = json!({"everySteps": 2, "keep": 3});
    })?;
    stage.apply(&first).await?;
    let first = comes_true(stage, "first", cond::COMPLETE, 120).await?;
    let (uid, learnt) = (first.uid().unwrap_or_default(), run::sound(&first)?);
    stage.api::<RLJob>().delete("first", &DeleteParams::default()).await?;
    stage
        .until("the first run to be gone", 60, async || {
            Ok(stage.api::<RLJob>().get_opt("first").await?.is_none().then_some(()))
        })
        .await?;
    // Another layout; and as far as the first went, to compare.
    let second = run::manifest("second", |job| {
        job["spec"]["totalSteps"] = json!(6);
        job["spec"]["resumeFrom"] = json!({"run": uid, "step": 4});
        job["spec"]["trainer"]["parallelism"] = json!({"dp": 1, "tp": 2});
    })?;
    stage.apply(&second).await?;
    let second = comes_true(stage, "second", cond::COMPLETE, 120).await?;
    let again = run::sound(&second)?;
    ensure!(again.iter().map(|step| step.step).eq([4, 5]), "it learnt {again:?}");
    let rewards =
        |steps: &[control::wire::StepRecord]| steps.iter().map(|step| (step.step, step.reward)).collect::<Vec<_>>();
    let expected: Vec<_> = rewards(&learnt).into_iter().filter(|(step, _)| *step == 4).collect();
    ensure!(rewards(&again)[..1] == expected[..], "the same prompts with the same weights: {expected:?} {again:?}");

    let lost = run::manifest("lost", |job| job["spec"]["resumeFrom"] = json!({"run": uid, "step": 3}))?;
    stage.apply(&lost).await?;
    let lost = comes_true(stage, "lost", cond::FAILED, 90).await?;
    let why = run::reason(&lost, cond::FAILED).unwrap_or_default();
    ensure!(why.contains("spec.resumeFrom.step") && why.contains("keeps those of step 2, 4, 6"), "{why}");
    Ok(())
}
