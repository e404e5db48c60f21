//! A run from its beginning to its end.

use anyhow::ensure;
use api::{Phase, conditions as cond};
use serde_json::json;

use crate::{harness::Test, run, stage::Stage, test};

/// All of them.
pub fn tests() -> Vec<Test> {
    vec![test!(a_run_completes_and_leaves_no_pod_of_its_own, Operator, 1, 180)]
}

async fn a_run_completes_and_leaves_no_pod_of_its_own(stage: &Stage) -> anyhow::Result<()> {
    let job = run::manifest("done", |job| job["spec"]["totalSteps"] = json!(4))?;
    stage.apply(&job).await?;
    let job = stage
        .until("the run to complete", 120, async || {
            let job = stage.rljob("done").await?;
            Ok(run::reason(&job, cond::COMPLETE).is_some().then_some(job))
        })
        .await?;
    let status = job.status.clone().unwrap_or_default();
    ensure!(status.phase == Phase::Complete, "phase {}", status.phase);
    ensure!(run::step(&job) == 4, "step {}", run::step(&job));
    ensure!(status.attempts == 1, "{} attempts", status.attempts);
    stage
        .until("trainer and conductor to be gone", 60, async || {
            let left = stage.pods("trainer").await?.iter().filter(|p| !plan::pod_facts::ended(p)).count();
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
