//! Gangs that do not all fit.

use anyhow::{Context as _, ensure};
use api::{Outcome, Phase, RLJob, conditions as cond};
use k8s_openapi::{
    api::{core::v1::Node, scheduling::v1::PriorityClass},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, DynamicObject, Patch, PatchParams},
    core::{GroupVersionKind, discovery::ApiResource},
};
use plan::pod_facts;
use serde_json::{Value, json};

use crate::{
    harness::{Skip, Test},
    run,
    stage::Stage,
    test,
};

/// All of them.
pub fn tests() -> Vec<Test> {
    vec![
        test!(of_two_gangs_that_cannot_both_fit_one_runs_and_the_other_holds_nothing, OperatorAlone, 2, 300),
        test!(a_queued_run_is_admitted_preempted_uncounted_and_admitted_again, OperatorAlone, 1, 360),
    ]
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
        trainer["failurePolicy"] = json!({ "backoffLimit": 100, "baseDelaySeconds": 8, "maxDelaySeconds": 8 });
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

/// A class of each rank: the queue prefers the higher.
async fn classes(stage: &Stage, names: [(&str, i32); 2]) -> anyhow::Result<()> {
    let all: Api<PriorityClass> = Api::all(stage.client.clone());
    for (name, value) in names {
        let class = json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": { "name": name }, "value": value,
            // Who comes first in the queue is the queue's to say; no pod pushes another off its node.
            "preemptionPolicy": "Never",
        });
        all.patch(name, &PatchParams::apply("e2e").force(), &Patch::Apply(class)).await.context("a PriorityClass")?;
    }
    Ok(())
}

fn kueue(kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("kueue.x-k8s.io", "v1beta1", kind), plural)
}

/// A queue that has quota for one gang, whose name is that of the stage.
async fn queue(stage: &Stage) -> anyhow::Result<()> {
    let name = &stage.namespace;
    let objects = [
        ("ResourceFlavor", "resourceflavors", false, json!({})),
        (
            "ClusterQueue",
            "clusterqueues",
            false,
            json!({
                "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": name } },
                "preemption": { "withinClusterQueue": "LowerPriority" },
                "resourceGroups": [{ "coveredResources": ["cpu"], "flavors": [
                    { "name": name, "resources": [{ "name": "cpu", "nominalQuota": "250m" }] } ] }],
            }),
        ),
        ("LocalQueue", "localqueues", true, json!({ "clusterQueue": name })),
    ];
    for (kind, plural, in_namespace, spec) in objects {
        let resource = kueue(kind, plural);
        let api: Api<DynamicObject> = if in_namespace {
            Api::namespaced_with(stage.client.clone(), name, &resource)
        } else {
            Api::all_with(stage.client.clone(), &resource)
        };
        let object = json!({
            "apiVersion": "kueue.x-k8s.io/v1beta1", "kind": kind, "metadata": { "name": name }, "spec": spec,
        });
        api.patch(name, &PatchParams::apply("e2e").force(), &Patch::Apply(object)).await.context(kind)?;
    }
    Ok(())
}

fn queued(stage: &Stage, name: &str, class: &str, steps: u64) -> anyhow::Result<RLJob> {
    run::manifest(name, |job| {
        let spec = &mut job["spec"];
        spec["totalSteps"] = json!(steps);
        spec["scheduling"] = json!({ "queueName": stage.namespace, "priorityClassName": class });
        spec["trainer"]["resources"] = json!({ "requests": { "cpu": "100m" } });
        spec["serving"]["template"]["spec"]["replicas"] = json!(1);
        spec["rollout"]["template"]["spec"]["replicas"] = json!(1);
    })
}

async fn phase(stage: &Stage, name: &str) -> anyhow::Result<Phase> {
    Ok(stage.rljob(name).await?.status.map(|s| s.phase).unwrap_or_default())
}

async fn a_queued_run_is_admitted_preempted_uncounted_and_admitted_again(stage: &Stage) -> anyhow::Result<()> {
    let definitions: Api<CustomResourceDefinition> = Api::all(stage.client.clone());
    if definitions.get_opt("workloads.kueue.x-k8s.io").await?.is_none() {
        return Err(Skip("there is no Kueue; `make e2e-kueue` brings it".into()).into());
    }
    classes(stage, [("e2e-low", 10), ("e2e-high", 1000)]).await?;
    queue(stage).await.context("make a queue")?;
    run::start(stage, &queued(stage, "low", "e2e-low", 100_000)?, 3).await?;
    let engines: Vec<_> = stage.pods("engine").await?.into_iter().map(|p| p.uid()).collect();

    // One like it waits its turn: it holds nothing, and says for what.
    stage.apply(&queued(stage, "same", "e2e-low", 100_000)?).await?;
    stage
        .until("the second to be queued", 60, async || Ok((phase(stage, "same").await? == Phase::Queued).then_some(())))
        .await?;
    stage
        .always("it holds nothing, and no deadline runs", 6, async || {
            let (held, job) = (held(stage, "same").await?, stage.rljob("same").await?);
            let told = run::condition(&job, cond::QUOTA_RESERVED);
            ensure!(held == 0 && told.starts_with("False/"), "{held} pods, QuotaReserved {told}");
            Ok(())
        })
        .await?;
    stage.api::<RLJob>().delete("same", &DeleteParams::background()).await?;

    // A better one takes its place, which counts as nobody's failure.
    stage.apply(&queued(stage, "high", "e2e-high", 12)?).await?;
    stage
        .until("the first to be sent back to the queue", 90, async || {
            let job = stage.rljob("low").await?;
            let last = job.status.as_ref().and_then(|s| s.last_attempt.as_ref()).map(|l| l.outcome);
            Ok((last == Some(Outcome::Preempted) && phase(stage, "low").await? == Phase::Queued).then_some(()))
        })
        .await?;
    let at = run::step(&stage.rljob("low").await?);
    stage
        .until("the better one to complete", 120, async || {
            Ok(run::reason(&stage.rljob("high").await?, cond::COMPLETE).map(drop))
        })
        .await?;
    let job = run::steps_from(stage, "low", at, 3).await?;
    let status = job.status.clone().unwrap_or_default();
    ensure!(status.counters.failures == 0, "{:?}", status.counters);
    ensure!(status.attempts == 2, "{} attempts", status.attempts);
    let now: Vec<_> = stage.pods("engine").await?;
    let kept = engines.iter().filter(|uid| now.iter().any(|p| &p.uid() == *uid)).count();
    ensure!(kept == engines.len(), "engines were replaced");
    run::sound(&job).map(drop)
}
