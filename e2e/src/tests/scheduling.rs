//! Gangs that do not all fit.

use anyhow::{Context as _, ensure};
use api::{Outcome, RLJob, conditions as cond};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use plan::pod_facts;
use serde_json::{Value, json};

use crate::{harness::Test, run, stage::Stage, test};

/// All of them.
pub fn tests() -> Vec<Test> {
    vec![test!(of_two_gangs_that_cannot_both_fit_one_runs_and_the_other_holds_nothing, OperatorAlone, 2, 300)]
}

/// A device that nobody else asks for.
const DEVICE: &str = "e2e.thresh.dev/device";

/// So many of it on each of these nodes.
async fn devices(stage: &Stage, counts: &[(&str, Option<u32>)]) -> anyhow::Result<()> {
    let nodes: Api<Node> = Api::all(stage.client.clone());
    for (node, count) in counts {
        let value = count.map_or(Value::Null, |n| json!(n.to_string()));
        let body = json!({ "status": { "capacity": { DEVICE: value }, "allocatable": { DEVICE: value } } });
        nodes.patch_status(node, &PatchParams::default(), &Patch::Merge(&body)).await.context("offer a device")?;
    }
    Ok(())
}

/// Devices that the trainer of a run holds.
async fn held(stage: &Stage, run: &str) -> anyhow::Result<usize> {
    let prefix = format!("{run}-t");
    let holds = |p: &&k8s_openapi::api::core::v1::Pod| {
        pod_facts::name(p).starts_with(&prefix) && pod_facts::node(p).is_some() && !pod_facts::ended(p)
    };
    Ok(stage.pods("trainer").await?.iter().filter(holds).count())
}

fn gang(name: &str) -> anyhow::Result<RLJob> {
    run::manifest(name, |job| {
        let trainer = &mut job["spec"]["trainer"];
        trainer["resources"] = json!({ "limits": { DEVICE: "1" } });
        trainer["startupDeadlineSeconds"] = json!(15);
        trainer["failurePolicy"] = json!({ "backoffLimit": 100, "baseDelaySeconds": 2, "maxDelaySeconds": 6 });
        job["spec"]["serving"]["template"]["spec"]["replicas"] = json!(1);
        job["spec"]["rollout"]["template"]["spec"]["replicas"] = json!(1);
    })
}

async fn of_two_gangs_that_cannot_both_fit_one_runs_and_the_other_holds_nothing(stage: &Stage) -> anyhow::Result<()> {
    devices(stage, &[("node1", Some(1)), ("node2", None)]).await?;
    let result = two_gangs(stage).await;
    // Nobody else knows this device, so that one left over by a test that was cut short does no harm.
    devices(stage, &[("node1", None), ("node2", None)]).await?;
    result
}

async fn two_gangs(stage: &Stage) -> anyhow::Result<()> {
    // Half a gang: it has a device, and waits for one that is not there.
    stage.apply(&gang("one")?).await?;
    stage
        .until("half a gang", 90, async || {
            let told = run::condition(&stage.rljob("one").await?, cond::TRAINER_READY);
            Ok((held(stage, "one").await? == 1 && told == "False/Scheduling").then_some(()))
        })
        .await?;
    stage
        .until("it to let go of what it held", 45, async || Ok((held(stage, "one").await? == 0).then_some(())))
        .await?;
    let last = stage.rljob("one").await?.status.and_then(|s| s.last_attempt).context("an ended attempt")?;
    ensure!(last.outcome == Outcome::StartupDeadline, "{last:?}");
    ensure!(last.message.contains(DEVICE), "it does not say what is missing: {}", last.message);

    // Two devices, and two gangs that want both.
    stage.apply(&gang("two")?).await?;
    devices(stage, &[("node2", Some(1))]).await?;
    let (winner, loser) = stage
        .until("one of them to run", 120, async || {
            for (one, other) in [("one", "two"), ("two", "one")] {
                if run::ready_attempt(&stage.rljob(one).await?).is_some() {
                    return Ok(Some((one, other)));
                }
            }
            Ok(None)
        })
        .await?;
    let at = run::step(&stage.rljob(winner).await?);
    run::steps_from(stage, winner, at, 3).await?;
    stage
        .always("the other holds nothing", 20, async || {
            let held = held(stage, loser).await?;
            ensure!(held == 0, "{held} devices");
            Ok(())
        })
        .await?;
    let waiting = stage.rljob(loser).await?;
    ensure!(run::reason(&waiting, cond::FAILED).is_none(), "waiting for devices failed the run");
    let job = stage.rljob(winner).await?;
    let attempts = job.status.as_ref().map_or(0, |s| s.attempts);
    stage.patch::<RLJob>(winner, json!({"spec": {"totalSteps": run::step(&job) + 3}})).await?;
    stage
        .until("the first to end", 90, async || Ok(run::reason(&stage.rljob(winner).await?, cond::COMPLETE).map(drop)))
        .await?;
    ensure!(stage.rljob(winner).await?.status.map_or(0, |s| s.attempts) == attempts, "it was disturbed");
    stage.until("the second to run", 60, async || Ok(run::ready_attempt(&stage.rljob(loser).await?))).await?;
    run::steps_from(stage, loser, run::step(&waiting), 2).await?;
    Ok(())
}
