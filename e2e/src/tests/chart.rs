//! The operator as the chart installs it: with the chart's rights and no others, through upgrades, back, and away.

use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};
use api::{RLJob, conditions as cond};
use k8s_openapi::{
    api::{core::v1::Pod, rbac::v1::ClusterRole},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, CustomResourceExt, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::{
    harness::Test,
    operator::{DEPLOYMENT, NAMESPACE, RELEASE, helm},
    run,
    stage::{Stage, bring_data},
    test,
};

/// All of them.
pub fn tests() -> Vec<Test> {
    vec![
        test!(with_the_charts_rights_a_run_completes_and_a_missing_one_is_named, Own, 1, 420),
        test!(objects_outlive_upgrade_rollback_and_uninstall, Own, 1, 420),
    ]
}

/// `helm upgrade --install` with these values on top.
fn install(more: &[&str]) -> anyhow::Result<()> {
    bring_data()?;
    let base = ["upgrade", "--install", RELEASE, "charts/thresh", "--namespace", NAMESPACE, "--create-namespace"];
    // Tests that bring an operator of their own may have applied the definitions before.
    let wait = ["--take-ownership", "--force-conflicts", "--values", "e2e/values.yaml", "--wait", "--timeout", "120s"];
    let mut args = [&base[..], &wait[..]].concat();
    for value in more {
        args.extend(["--set", value]);
    }
    helm(&args)
}

fn uninstall() -> anyhow::Result<()> {
    helm(&["uninstall", RELEASE, "--namespace", NAMESPACE, "--wait", "--timeout", "180s", "--ignore-not-found"])
}

/// Uids and restarts of the operator's own pods.
async fn operators(stage: &Stage) -> anyhow::Result<BTreeMap<String, i32>> {
    let pods: Api<Pod> = Api::namespaced(stage.client.clone(), NAMESPACE);
    let pods = pods.list(&ListParams::default().labels("app.kubernetes.io/component=operator")).await?;
    let restarts = |p: &Pod| {
        p.status.iter().flat_map(|s| s.container_statuses.iter().flatten()).map(|c| c.restart_count).sum::<i32>()
    };
    Ok(pods.iter().map(|p| (p.name_any(), restarts(p))).collect())
}

async fn pods(stage: &Stage) -> anyhow::Result<BTreeMap<String, String>> {
    let pods = stage.api::<Pod>().list(&ListParams::default()).await.context("list pods")?;
    let live = pods.iter().filter(|p| !plan::pod_facts::ended(p));
    Ok(live.map(|p| (p.name_any(), p.uid().unwrap_or_default())).collect())
}

/// A run that takes little.
fn little(name: &str, steps: u64) -> anyhow::Result<RLJob> {
    run::manifest(name, |job| {
        job["spec"]["totalSteps"] = json!(steps);
        job["spec"]["serving"]["template"]["spec"]["replicas"] = json!(1);
        job["spec"]["rollout"]["template"]["spec"]["replicas"] = json!(1);
    })
}

async fn completes(stage: &Stage, name: &str) -> anyhow::Result<()> {
    stage
        .until(&format!("{name} to complete"), 120, async || {
            Ok(run::reason(&stage.rljob(name).await?, cond::COMPLETE).map(drop))
        })
        .await
}

async fn with_the_charts_rights_a_run_completes_and_a_missing_one_is_named(stage: &Stage) -> anyhow::Result<()> {
    stage.alone().await?;
    install(&[])?;
    let result = rights(stage).await;
    let taken = uninstall();
    result.and(taken)
}

async fn rights(stage: &Stage) -> anyhow::Result<()> {
    stage.apply(&little("allowed", 3)?).await?;
    completes(stage, "allowed").await?;
    let before = operators(stage).await?;
    ensure!(before.len() == 1 && before.values().all(|n| *n == 0), "{before:?}");

    // Somebody takes a verb away.
    let roles: Api<ClusterRole> = Api::all(stage.client.clone());
    let whole = roles.get(DEPLOYMENT).await?.rules.context("rules")?;
    let mut less = whole.clone();
    for rule in less.iter_mut().filter(|r| r.resources.iter().flatten().any(|one| one == "jobs")) {
        rule.verbs.retain(|verb| verb != "create");
    }
    ensure!(less != whole, "the role does not name jobs");
    let set = async |rules: &Vec<k8s_openapi::api::rbac::v1::PolicyRule>| {
        let patch = Patch::Merge(json!({ "rules": rules }));
        roles.patch(DEPLOYMENT, &PatchParams::default(), &patch).await
    };
    set(&less).await?;
    stage.apply(&little("denied", 3)?).await?;
    stage
        .until("the condition to say what is missing", 120, async || {
            let job = stage.rljob("denied").await?;
            let list = job.status.map(|s| s.conditions).unwrap_or_default();
            let said = cond::get(&list, cond::RECONCILED).filter(|c| c.status == "False" && c.reason == "Forbidden");
            Ok(said.is_some_and(|c| c.message.contains("jobs.batch") && c.message.contains("create")).then_some(()))
        })
        .await?;
    let job = stage.rljob("denied").await?;
    let attempts = job.status.as_ref().map_or(0, |s| s.attempts);
    stage
        .always("it waits and does not spin", 8, async || {
            let now = stage.rljob("denied").await?.status.map_or(0, |s| s.attempts);
            ensure!(now == attempts, "attempt {now} after {attempts}");
            Ok(())
        })
        .await?;
    set(&whole).await?;
    completes(stage, "denied").await?;
    ensure!(operators(stage).await? == before, "the operator restarted: {:?}", operators(stage).await?);
    let job = stage.rljob("denied").await?;
    ensure!(run::condition(&job, cond::RECONCILED) == "True/Applied", "{}", run::condition(&job, cond::RECONCILED));
    Ok(())
}

async fn objects_outlive_upgrade_rollback_and_uninstall(stage: &Stage) -> anyhow::Result<()> {
    stage.alone().await?;
    install(&["controller.replicas=2"])?;
    let result = through(stage).await;
    if result.is_err() {
        // The verdict is there; what is left of the release must not stand in the way of others.
        let _ = uninstall();
    }
    result
}

async fn through(stage: &Stage) -> anyhow::Result<()> {
    run::start(stage, &little("there", 100_000)?, 2).await?;
    let all = pods(stage).await?;
    let old = operators(stage).await?;
    ensure!(old.len() == 2, "{old:?}");
    let nobody_restarts = async |what: &str| {
        stage
            .always(&format!("nobody restarts after {what}"), 4, async || {
                let now = pods(stage).await?;
                ensure!(now == all, "{all:?} were there, {now:?} are");
                Ok(())
            })
            .await?;
        let step = run::step(&stage.rljob("there").await?);
        run::steps_from(stage, "there", step, 2).await.map(drop)
    };
    install(&["controller.replicas=2", "controller.concurrency=2", "images.rollout.tag=of-another-release"])?;
    stage
        .until("the old operators to be gone", 60, async || {
            let now = operators(stage).await?;
            Ok((now.len() == 2 && now.keys().all(|name| !old.contains_key(name))).then_some(()))
        })
        .await?;
    nobody_restarts("an upgrade").await?;
    helm(&["rollback", RELEASE, "1", "--namespace", NAMESPACE, "--wait", "--timeout", "120s"])?;
    nobody_restarts("a rollback").await?;
    uninstall()?;
    let now = pods(stage).await?;
    ensure!(now == all, "{all:?} were there, {now:?} are");
    let crds: Api<CustomResourceDefinition> = Api::all(stage.client.clone());
    ensure!(crds.get_opt(RLJob::crd_name()).await?.is_some(), "the definitions went with the chart");
    let job = stage.rljob("there").await?;
    ensure!(job.finalizers().is_empty(), "{:?} would hold it for ever", job.finalizers());
    // With nobody there, everything of it can be deleted.
    let jobs: Api<RLJob> = stage.api();
    jobs.delete("there", &DeleteParams::background()).await?;
    stage
        .until("the run and its children to be gone", 60, async || {
            let left: Value = json!([jobs.get_opt("there").await?.is_some(), pods(stage).await?.len()]);
            Ok((left == json!([false, 0])).then_some(()))
        })
        .await
}
