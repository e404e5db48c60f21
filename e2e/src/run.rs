//! The run that most tests use: small, quick, and without an end of its own.

use std::{path::PathBuf, process::Command};

use anyhow::{Context as _, bail, ensure};
use api::{RLJob, conditions as cond};
use control::wire::StepRecord;
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::stage::{Stage, repository, volume};

/// A run of the examples' task, made small: a step takes a fraction of a second. `edit` changes the manifest.
///
/// # Errors
/// When the manifest cannot be read.
pub fn manifest(name: &str, edit: impl FnOnce(&mut Value)) -> anyhow::Result<RLJob> {
    let path = repository().join("examples/chaos/rljob.yaml");
    let text = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let mut json: Value = serde_saphyr::from_str(&text)?;
    json["metadata"]["name"] = json!(name);
    let spec = &mut json["spec"];
    // Straight to reinforcement: what is learnt does not matter here.
    if let Value::Object(map) = spec {
        map.remove("warmStart");
    }
    spec["totalSteps"] = json!(100_000);
    spec["trainer"]["accelerator"]["perNode"] = json!(1);
    spec["trainer"]["nodes"] = json!(2);
    spec["trainer"]["terminationGracePeriodSeconds"] = json!(5);
    spec["trainer"]["failurePolicy"] = json!({ "backoffLimit": 6, "baseDelaySeconds": 1, "maxDelaySeconds": 4 });
    spec["serving"]["template"]["spec"]["updates"] = json!({ "drainTimeoutSeconds": 10 });
    edit(&mut json);
    serde_json::from_value(json).context("the run's manifest")
}

/// Applies the run and waits until it has made `steps` steps and its ranks are known to be ready: the conductor may tell of
/// steps before the kubelet tells of ranks.
///
/// # Errors
/// When it does not come so far.
pub async fn start(stage: &Stage, job: &RLJob, steps: u64) -> anyhow::Result<RLJob> {
    let name = job.metadata.name.clone().unwrap_or_default();
    stage.apply(job).await.context("apply the run")?;
    steps_from(stage, &name, 0, steps).await?;
    attempt_after(stage, &name, 0, 30).await
}

/// Waits until the run is `steps` steps beyond `from`, as its status says.
///
/// # Errors
/// When it does not come so far.
pub async fn steps_from(stage: &Stage, name: &str, from: u64, steps: u64) -> anyhow::Result<RLJob> {
    stage
        .until(&format!("step {} of {name}", from + steps), 120, async || {
            let job = stage.rljob(name).await?;
            if let Some(failed) = reason(&job, cond::FAILED) {
                anyhow::bail!("the run has failed: {failed}");
            }
            Ok((step(&job) >= from + steps).then_some(job))
        })
        .await
}

/// Step of a run, as its status says.
pub fn step(job: &RLJob) -> u64 {
    job.status.as_ref().and_then(|s| s.progress.as_ref()).map_or(0, |p| p.step)
}

/// `Reason: message` of a condition that is True.
pub fn reason(job: &RLJob, condition: &str) -> Option<String> {
    let list = &job.status.as_ref()?.conditions;
    cond::get(list, condition).filter(|c| c.status == "True").map(|c| format!("{}: {}", c.reason, c.message))
}

/// `True/Reason` of a condition, whatever it is.
pub fn condition(job: &RLJob, condition: &str) -> String {
    let found = job.status.as_ref().and_then(|s| cond::get(&s.conditions, condition));
    found.map_or_else(|| "absent".into(), |c| format!("{}/{}", c.status, c.reason))
}

/// Number of the living attempt whose ranks are all ready.
pub fn ready_attempt(job: &RLJob) -> Option<u64> {
    let attempt = job.status.as_ref()?.attempt.as_ref()?;
    (attempt.ready_time.is_some() && attempt.ending.is_none() && attempt.stopping.is_none()).then_some(attempt.id)
}

/// Waits for an attempt later than `after` with all ranks ready.
///
/// # Errors
/// When none comes.
pub async fn attempt_after(stage: &Stage, name: &str, after: u64, seconds: u64) -> anyhow::Result<RLJob> {
    stage
        .until(&format!("an attempt of {name} after {after}"), seconds, async || {
            let job = stage.rljob(name).await?;
            Ok(ready_attempt(&job).is_some_and(|id| id > after).then_some(job))
        })
        .await
}

/// The run's folder on the shared volume.
pub fn folder(job: &RLJob) -> PathBuf {
    volume().join("runs").join(job.uid().unwrap_or_default())
}

/// `thresh straw verify` of the run's folder, and its finished steps as people read them: each once in the committed lineage,
/// and none written by an attempt that had been replaced.
///
/// # Errors
/// When it is not sound; with its words.
pub fn sound(job: &RLJob) -> anyhow::Result<Vec<StepRecord>> {
    let program = repository().join("target/release/thresh");
    let output = Command::new(&program).args(["straw", "verify"]).arg(folder(job)).output().context("run thresh")?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("thresh straw verify {}: {said}", folder(job).display());
    }
    let text = std::fs::read_to_string(folder(job).join("steps.jsonl")).context("steps.jsonl")?;
    // The last line may be under way.
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let steps: Vec<StepRecord> = whole.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    for (one, next) in steps.iter().zip(steps.iter().skip(1)) {
        ensure!(next.attempt >= one.attempt, "attempt {} wrote after attempt {}", next.attempt, one.attempt);
        let follows = next.step == one.step + 1 || (next.attempt > one.attempt && next.step <= one.step);
        ensure!(follows, "step {} after step {}", next.step, one.step);
    }
    Ok(steps)
}
