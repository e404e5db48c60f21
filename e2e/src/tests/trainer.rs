//! What the trainer goes through, and what nobody else notices of it.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use api::{AttemptCause, Outcome, RLJob, conditions as cond};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    ResourceExt,
    api::{DeleteParams, EvictParams},
};
use plan::pod_facts;
use serde_json::json;

use crate::{
    harness::Test,
    load::Load,
    node, record, run,
    stage::{CLAIM, Stage},
    test,
};

/// All of them.
pub fn tests() -> Vec<Test> {
    vec![
        test!(an_edited_layout_replaces_only_the_trainer, Operator, 1, 240),
        test!(a_crash_loop_of_the_trainer_fails_no_request, Operator, 1, 300),
        test!(a_killed_rank_is_one_new_attempt_that_counts, Operator, 1, 180),
        test!(a_killed_launcher_is_one_new_attempt_that_counts, Operator, 1, 180),
        test!(a_deleted_rank_is_one_new_attempt_that_counts_as_nothing, Operator, 1, 180),
        test!(an_evicted_rank_is_one_new_attempt_that_counts_as_a_disruption, Operator, 1, 180),
        test!(a_rank_over_its_memory_limit_is_one_new_attempt_that_counts, Operator, 1, 180),
        test!(a_killed_rank_learns_again_within_seconds, OperatorAlone, 1, 240),
        test!(edits_in_a_row_end_at_the_last_one, Operator, 1, 240),
        test!(a_refused_edit_leaves_the_attempt_alone, Operator, 1, 120),
    ]
}

/// What must not change while a trainer restarts: uid and restarts of every pod that serves.
pub(super) async fn bystanders(stage: &Stage) -> anyhow::Result<BTreeMap<String, (String, i32)>> {
    let mut seen = BTreeMap::new();
    for role in ["engine", "worker", "conductor"] {
        for pod in stage.pods(role).await? {
            let restarts =
                pod.status.iter().flat_map(|s| s.container_statuses.iter().flatten()).map(|c| c.restart_count);
            seen.insert(pod.name_any(), (pod.uid().unwrap_or_default(), restarts.sum()));
        }
    }
    Ok(seen)
}

/// A run of two ranks that is under way, without an end of its own.
async fn under_way(stage: &Stage, name: &str) -> anyhow::Result<RLJob> {
    under_way_with(stage, name, 1).await
}

/// The same with that many ranks in each of its two pods.
async fn under_way_with(stage: &Stage, name: &str, per_node: u32) -> anyhow::Result<RLJob> {
    let job = run::manifest(name, |job| {
        job["spec"]["trainer"]["accelerator"]["perNode"] = json!(per_node);
        job["spec"]["trainer"]["parallelism"] = json!({"tp": 1, "dp": 2 * per_node});
    })?;
    committed(stage, &job).await
}

/// The same of a run that a test has made as it wants it.
async fn committed(stage: &Stage, job: &RLJob) -> anyhow::Result<RLJob> {
    run::start(stage, job, 3).await?;
    // From here on something is there to go back to.
    stage
        .until("a commit", 60, async || {
            let job = stage.rljob(&job.name_any()).await?;
            let commits = job.status.as_ref().and_then(|s| s.progress.as_ref()).map_or(0, |p| p.commits);
            Ok((commits > 0 && run::ready_attempt(&job).is_some()).then_some(job))
        })
        .await
}

/// Address of the engines of a run's own ServingCluster.
async fn engine_addresses(stage: &Stage) -> anyhow::Result<String> {
    let pods = stage.pods("engine").await?;
    let address = pods.iter().find_map(|p| p.status.as_ref()?.pod_ip.clone()).context("an engine with an address")?;
    Ok(format!("{address}:{}", plan::build::ENGINE_PORT))
}

async fn an_edited_layout_replaces_only_the_trainer(stage: &Stage) -> anyhow::Result<()> {
    let before = under_way(stage, "edit").await?;
    let (first, pods) = (run::ready_attempt(&before).context("an attempt")?, bystanders(stage).await?);
    ensure!(pods.len() == 5, "two engines, two workers, a conductor, not {pods:?}");
    let load = Load::start(stage, "edit-serving", engine_addresses(stage).await?, 2, 8).await?;
    let step = run::step(&before);
    stage.patch::<RLJob>("edit", json!({"spec": {"trainer": {"parallelism": {"tp": 2, "dp": 1}}}})).await?;
    let after = run::attempt_after(stage, "edit", first, 90).await?;
    let status = after.status.clone().unwrap_or_default();
    let attempt = status.attempt.clone().context("an attempt")?;
    ensure!((attempt.parallelism.tp, attempt.parallelism.dp) == (2, 1), "runs {:?}", attempt.parallelism);
    ensure!(attempt.id == first + 1 && attempt.reason == AttemptCause::SpecChange, "{attempt:?}");
    ensure!(status.counters.failures == 0 && status.counters.spec_restarts == 1, "{:?}", status.counters);
    ensure!(
        status.last_attempt.as_ref().is_some_and(|l| l.outcome == Outcome::SpecChange),
        "{:?}",
        status.last_attempt
    );
    run::steps_from(stage, "edit", step, 3).await?;
    load.stop().await.flawless(20)?;
    ensure!(bystanders(stage).await? == pods, "somebody else restarted: {pods:?} {:?}", bystanders(stage).await?);
    let up_to_date = run::condition(&stage.rljob("edit").await?, cond::UP_TO_DATE);
    ensure!(up_to_date == "True/RevisionRunning", "{up_to_date}");
    Ok(())
}

async fn a_crash_loop_of_the_trainer_fails_no_request(stage: &Stage) -> anyhow::Result<()> {
    let before = under_way(stage, "loop").await?;
    let pods = bystanders(stage).await?;
    let load = Load::start(stage, "loop-serving", engine_addresses(stage).await?, 2, 8).await?;
    // No such flag: every rank ends at once, whatever it is given.
    let broken = json!({"containers": [{"name": "trainer", "command": ["thresh-trainer", "--no-such-flag"]}]});
    let policy = json!({"backoffLimit": 1000, "baseDelaySeconds": 1, "maxDelaySeconds": 2});
    let edit = json!({"spec": {"trainer": {"podTemplate": {"spec": broken}, "failurePolicy": policy}}});
    stage.patch::<RLJob>("loop", edit).await?;
    let attempts = before.status.as_ref().map_or(0, |s| s.attempts);
    stage
        .until("eight attempts to fail", 150, async || {
            let job = stage.rljob("loop").await?;
            Ok(job.status.as_ref().is_some_and(|s| s.attempts >= attempts + 8).then_some(()))
        })
        .await?;
    stage.patch::<RLJob>("loop", json!({"spec": {"trainer": {"podTemplate": null}}})).await?;
    let step = run::step(&before);
    run::steps_from(stage, "loop", step, 2).await?;
    load.stop().await.flawless(100)?;
    ensure!(bystanders(stage).await? == pods, "somebody else restarted");
    Ok(())
}

/// One rank is done for by `harm`: exactly one new attempt, of this outcome, and then steps go on.
async fn exactly_one_new_attempt(
    stage: &Stage,
    name: &str,
    per_node: u32,
    outcome: Outcome,
    harm: impl AsyncFnOnce(Pod) -> anyhow::Result<()>,
) -> anyhow::Result<RLJob> {
    let before = under_way_with(stage, name, per_node).await?;
    let first = run::ready_attempt(&before).context("an attempt")?;
    let bystanders_before = bystanders(stage).await?;
    let mut ranks = stage.pods("trainer").await?;
    ranks.retain(|p| pod_facts::attempt(&p.metadata) == first);
    ensure!(ranks.len() == 2, "two ranks, not {}", ranks.len());
    // Not rank 0: whoever leads the gang has no easier way back than the others.
    let victim = ranks.into_iter().find(|p| pod_facts::index(p) == Some(1)).context("rank 1")?;
    let victim_name = victim.name_any();
    harm(victim).await?;
    let after = run::attempt_after(stage, name, first, 90).await?;
    let last = after.status.as_ref().and_then(|s| s.last_attempt.clone()).context("an ended attempt")?;
    ensure!(last.id == first && last.outcome == outcome, "{last:?}, expected {outcome:?}");
    ensure!(last.pod_name.is_none() || last.pod_name.as_ref() == Some(&victim_name), "{last:?}, it was {victim_name}");
    let status = after.status.clone().unwrap_or_default();
    ensure!(status.attempts == first + 1, "{} attempts after {first}", status.attempts);
    run::steps_from(stage, name, run::step(&before), 2).await?;
    stage
        .always("it stays one new attempt", 4, async || {
            let attempts = stage.rljob(name).await?.status.map_or(0, |s| s.attempts);
            ensure!(attempts == first + 1, "{attempts} attempts");
            Ok(())
        })
        .await?;
    ensure!(bystanders(stage).await? == bystanders_before, "somebody else restarted");
    stage.rljob(name).await
}

fn counted(job: &RLJob, failures: u32, disruptions: u32) -> anyhow::Result<()> {
    let counters = job.status.as_ref().map(|s| s.counters).unwrap_or_default();
    ensure!((counters.failures, counters.disruptions) == (failures, disruptions), "{counters:?}");
    Ok(())
}

async fn a_killed_rank_is_one_new_attempt_that_counts(stage: &Stage) -> anyhow::Result<()> {
    // Two devices in the pod: the launcher outlives the rank, and says which one it was.
    let job = exactly_one_new_attempt(stage, "rank", 2, Outcome::Failed, async |pod| {
        let pids = node::pids(&pod)?;
        ensure!(pids.len() == 3, "a launcher and two ranks, not {} processes", pids.len());
        node::kill(*pids.last().context("a process")?, "KILL")
    })
    .await?;
    counted(&job, 1, 0)
}

async fn a_killed_launcher_is_one_new_attempt_that_counts(stage: &Stage) -> anyhow::Result<()> {
    let job = exactly_one_new_attempt(stage, "launcher", 2, Outcome::Failed, async |pod| {
        let pids = node::pids(&pod)?;
        node::kill(*pids.first().context("a process")?, "KILL")
    })
    .await?;
    counted(&job, 1, 0)
}

async fn a_deleted_rank_is_one_new_attempt_that_counts_as_nothing(stage: &Stage) -> anyhow::Result<()> {
    let job = exactly_one_new_attempt(stage, "deleted", 1, Outcome::Deleted, async |pod| {
        stage.api::<Pod>().delete(&pod.name_any(), &DeleteParams::default()).await?;
        Ok(())
    })
    .await?;
    counted(&job, 0, 1)
}

async fn an_evicted_rank_is_one_new_attempt_that_counts_as_a_disruption(stage: &Stage) -> anyhow::Result<()> {
    let job = exactly_one_new_attempt(stage, "evicted", 1, Outcome::Disrupted, async |pod| {
        stage.api::<Pod>().evict(&pod.name_any(), &EvictParams::default()).await?;
        Ok(())
    })
    .await?;
    counted(&job, 0, 1)
}

async fn a_rank_over_its_memory_limit_is_one_new_attempt_that_counts(stage: &Stage) -> anyhow::Result<()> {
    let job = run::manifest("memory", |job| {
        job["spec"]["trainer"]["resources"] = json!({"limits": {"memory": "400Mi"}});
    })?;
    let before = committed(stage, &job).await?;
    let first = run::ready_attempt(&before).context("an attempt")?;
    let ranks = stage.pods("trainer").await?;
    let victim = ranks.iter().find(|p| pod_facts::index(p) == Some(1)).context("rank 1")?;
    node::use_up_memory(victim)?;
    let after = run::attempt_after(stage, "memory", first, 90).await?;
    let last = after.status.as_ref().and_then(|s| s.last_attempt.clone()).context("an ended attempt")?;
    ensure!(last.outcome == Outcome::OutOfMemory, "{last:?}");
    counted(&after, 1, 0)
}

/// `kill -9` of a rank to the first optimizer step of the next attempt.
async fn a_killed_rank_learns_again_within_seconds(stage: &Stage) -> anyhow::Result<()> {
    let before = under_way(stage, "recovery").await?;
    let first = run::ready_attempt(&before).context("an attempt")?;
    let folder = crate::stage::volume().join("runs").join(before.uid().unwrap_or_default());
    ensure!(folder.is_dir(), "{} is not there (claim {CLAIM})", folder.display());
    let ranks = stage.pods("trainer").await?;
    let victim = ranks.iter().find(|p| pod_facts::index(p) == Some(1)).context("rank 1")?;
    let steps = folder.join("steps.jsonl");
    let known = std::fs::read_to_string(&steps).unwrap_or_default().lines().count();
    node::signal(victim, "thresh-trainer", "KILL")?;
    let killed = Instant::now();
    let took = stage
        .until("a step of the next attempt", 90, async || {
            let text = std::fs::read_to_string(&steps).unwrap_or_default();
            let later = text.lines().skip(known).any(|line| {
                serde_json::from_str::<serde_json::Value>(line).is_ok_and(|step| step["attempt"].as_u64() > Some(first))
            });
            Ok(later.then(|| killed.elapsed()))
        })
        .await?;
    record::line("trainer_recovery", &json!({ "seconds": took.as_secs_f64() }))?;
    // Not a figure but a promise: far beyond it something waits that should not.
    ensure!(took < Duration::from_secs(60), "{took:?}");
    Ok(())
}

async fn edits_in_a_row_end_at_the_last_one(stage: &Stage) -> anyhow::Result<()> {
    let before = under_way(stage, "edits").await?;
    let first = run::ready_attempt(&before).context("an attempt")?;
    for micro in [2048, 1024, 512] {
        stage.patch::<RLJob>("edits", json!({"spec": {"trainer": {"maxTokensPerMicroBatch": micro}}})).await?;
        tokio::time::sleep(Duration::from_millis(400)).await;
    }
    let after = stage
        .until("the last edit to run", 120, async || {
            let job = stage.rljob("edits").await?;
            let current = run::condition(&job, cond::UP_TO_DATE) == "True/RevisionRunning";
            let observed = job.status.as_ref().and_then(|s| s.observed_generation) == job.metadata.generation;
            Ok((current && observed && run::ready_attempt(&job).is_some_and(|id| id > first)).then_some(job))
        })
        .await?;
    let attempts = after.status.as_ref().map_or(0, |s| s.attempts);
    ensure!(attempts <= first + 2, "{attempts} attempts for three edits after {first}");
    counted(&after, 0, 0)?;
    // Made and taken back before anything was stopped, or after: it ends where it began.
    let steady = run::ready_attempt(&after).context("an attempt")?;
    stage.patch::<RLJob>("edits", json!({"spec": {"trainer": {"maxTokensPerMicroBatch": 4096}}})).await?;
    stage.patch::<RLJob>("edits", json!({"spec": {"trainer": {"maxTokensPerMicroBatch": 512}}})).await?;
    stage
        .always("a reverted edit makes at most one attempt", 6, async || {
            let attempts = stage.rljob("edits").await?.status.map_or(0, |s| s.attempts);
            ensure!(attempts <= steady + 1, "{attempts} attempts");
            Ok(())
        })
        .await?;
    run::steps_from(stage, "edits", run::step(&after), 1).await.map(drop)
}

async fn a_refused_edit_leaves_the_attempt_alone(stage: &Stage) -> anyhow::Result<()> {
    let before = under_way(stage, "refused").await?;
    let edit = json!({"spec": {"trainer": {"parallelism": {"tp": 3, "dp": null}}}});
    let refused = stage.patch::<RLJob>("refused", edit).await;
    let error = format!("{:#}", refused.err().context("tp 3 on two devices was taken")?);
    ensure!(error.contains("spec.trainer.parallelism"), "the field is not named: {error}");
    let id = run::ready_attempt(&before);
    stage
        .always("the attempt lives on", 4, async || {
            ensure!(run::ready_attempt(&stage.rljob("refused").await?) == id, "it does not");
            Ok(())
        })
        .await
}
