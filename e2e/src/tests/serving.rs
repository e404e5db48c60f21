//! Engines: rolled, drained, scaled, killed, claimed and kept, while somebody asks them.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use api::{RLJob, ServingCluster, conditions as cond};
use k8s_openapi::api::{
    core::v1::{Pod, Service},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    ResourceExt,
    api::{DeleteParams, EvictParams, Patch, PatchParams},
};
use plan::pod_facts;
use serde_json::{Value, json};

use crate::{
    harness::{Skip, Test},
    load::{Load, ask, token},
    model, node, run,
    stage::{CLAIM, Stage},
    test,
};

/// All of them.
pub fn tests() -> Vec<Test> {
    vec![
        test!(a_rolling_restart_under_load_fails_no_request, Operator, 1, 240),
        test!(a_bad_image_stops_at_max_unavailable_and_heals_when_mended, Operator, 1, 240),
        test!(a_deleted_engine_finishes_what_it_has, Operator, 1, 120),
        test!(scale_goes_up_and_down_and_fails_no_request, Operator, 1, 180),
        test!(a_killed_engine_comes_back_at_the_current_weights, Operator, 1, 180),
        test!(the_budget_allows_one_eviction_and_always_that_of_a_broken_engine, Operator, 1, 180),
        test!(a_second_run_waits_for_the_writers_role_and_is_told_who_holds_it, Operator, 1, 240),
        test!(serving_stays_or_goes_with_its_run_as_asked, Operator, 1, 240),
        test!(a_claimed_serving_cluster_is_not_deleted, Operator, 1, 120),
    ]
}

const NAME: &str = "engines";

/// A ServingCluster of its own, with a model that has weights.
async fn engines(stage: &Stage, replicas: u32, edit: impl FnOnce(&mut Value)) -> anyhow::Result<ServingCluster> {
    model::bring()?;
    let mut json = json!({
        "apiVersion": api::API_VERSION, "kind": "ServingCluster", "metadata": { "name": NAME },
        "spec": {
            "replicas": replicas,
            "model": { "source": format!("pvc://{CLAIM}/{}", model::FOLDER) },
            "storage": { "claimName": CLAIM },
            "accelerator": { "vendor": "cpu" },
            "engine": { "kind": "Native", "maxRunningRequests": 64, "args": ["--threads=1", "--kv-cache-mib=32"] },
            "updates": { "maxUnavailable": 1, "drainTimeoutSeconds": 20 },
        },
    });
    edit(&mut json["spec"]);
    stage.apply(&serde_json::from_value::<ServingCluster>(json)?).await?;
    settled(stage, replicas, 90).await
}

/// Waits until all engines answer at the wanted revision.
async fn settled(stage: &Stage, replicas: u32, seconds: u64) -> anyhow::Result<ServingCluster> {
    stage
        .until(&format!("{replicas} engines at the wanted revision"), seconds, async || {
            let cluster = stage.serving(NAME).await?;
            let Some(s) = cluster.status.clone() else { return Ok(None) };
            let here = s.observed_generation == cluster.metadata.generation
                && (s.replicas, s.ready_replicas, s.updated_replicas) == (replicas, replicas, replicas);
            Ok(here.then_some(cluster))
        })
        .await
}

/// The address for everybody: the Service, not a pod.
async fn endpoint(stage: &Stage) -> anyhow::Result<String> {
    let service: Service = stage.api().get(NAME).await.context("the Service of the engines")?;
    let address = service.spec.and_then(|s| s.cluster_ip).context("a Service with an address")?;
    Ok(format!("{address}:{}", plan::build::ENGINE_PORT))
}

async fn uids(stage: &Stage, role: &str) -> anyhow::Result<Vec<String>> {
    let mut uids: Vec<_> = stage.pods(role).await?.iter().filter_map(|p| p.uid()).collect();
    uids.sort();
    Ok(uids)
}

async fn a_rolling_restart_under_load_fails_no_request(stage: &Stage) -> anyhow::Result<()> {
    engines(stage, 2, |_| {}).await?;
    let before = uids(stage, "engine").await?;
    let load = Load::start(stage, NAME, endpoint(stage).await?, 4, 16).await?;
    let edit = json!({"spec": {"engine": {"maxRunningRequests": 63}}});
    stage.patch::<ServingCluster>(NAME, edit).await?;
    let generation = stage.serving(NAME).await?.metadata.generation;
    stage
        .until("both engines to be replaced", 150, async || {
            let cluster = stage.serving(NAME).await?;
            let done = cluster.status.is_some_and(|s| s.observed_generation == generation && s.updated_replicas == 2);
            let now = uids(stage, "engine").await?;
            Ok((done && now.len() == 2 && now.iter().all(|uid| !before.contains(uid))).then_some(()))
        })
        .await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    load.stop().await.flawless(100)
}

async fn a_bad_image_stops_at_max_unavailable_and_heals_when_mended(stage: &Stage) -> anyhow::Result<()> {
    engines(stage, 3, |_| {}).await?;
    let load = Load::start(stage, NAME, endpoint(stage).await?, 2, 8).await?;
    stage.patch::<ServingCluster>(NAME, json!({"spec": {"engine": {"image": "thresh.local/no-such:e2e"}}})).await?;
    stage
        .until("one engine to be at the bad image", 90, async || {
            let bad = stage.pods("engine").await?.iter().filter(|p| pod_facts::waiting(p).is_some()).count();
            Ok((bad == 1).then_some(()))
        })
        .await?;
    stage
        .always("it stops there", 8, async || {
            let ready = stage.pods("engine").await?.iter().filter(|p| pod_facts::ready(p)).count();
            ensure!(ready >= 2, "only {ready} engines answer");
            Ok(())
        })
        .await?;
    // An eviction meanwhile must not bring another one back at the bad image.
    let pods = stage.pods("engine").await?;
    let good = pods.iter().find(|p| pod_facts::ready(p)).context("a good engine")?;
    stage.api::<Pod>().delete(&good.name_any(), &DeleteParams::default()).await?;
    stage
        .until("the deleted engine to be back at the good revision", 90, async || {
            let pod = stage.api::<Pod>().get_opt(&good.name_any()).await?;
            Ok(pod.filter(|p| p.uid() != good.uid() && pod_facts::ready(p)))
        })
        .await?;
    stage.patch::<ServingCluster>(NAME, json!({"spec": {"engine": {"image": null}}})).await?;
    settled(stage, 3, 120).await?;
    load.stop().await.flawless(50)
}

async fn a_deleted_engine_finishes_what_it_has(stage: &Stage) -> anyhow::Result<()> {
    engines(stage, 2, |spec| spec["updates"]["drainTimeoutSeconds"] = json!(60)).await?;
    let (token, address) = (token(stage, NAME).await?, endpoint(stage).await?);
    let pods = stage.pods("engine").await?;
    let victim = pods.iter().find(|p| p.name_any().ends_with("-0")).context("engine 0")?;
    let ip = victim.status.as_ref().and_then(|s| s.pod_ip.clone()).context("its address")?;
    let direct = format!("{ip}:{}", plan::build::ENGINE_PORT);
    // As long as the model's context allows, many at a time: it has something to finish.
    let long: Vec<_> = (0..16)
        .map(|n| {
            let (direct, token) = (direct.clone(), token.clone());
            tokio::spawn(async move { ask(&direct, &token, 48, n).await })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(20)).await;
    stage.api::<Pod>().delete(&victim.name_any(), &DeleteParams::default()).await?;
    let load = Load::start(stage, NAME, address, 2, 8).await?;
    for request in long {
        request.await?.context("a request that was under way")?;
    }
    stage
        .until("another engine in its place", 90, async || {
            let pod = stage.api::<Pod>().get_opt(&victim.name_any()).await?;
            Ok(pod.filter(|p| p.uid() != victim.uid() && pod_facts::ready(p)))
        })
        .await?;
    load.stop().await.flawless(20)
}

async fn scale_goes_up_and_down_and_fails_no_request(stage: &Stage) -> anyhow::Result<()> {
    engines(stage, 1, |_| {}).await?;
    let load = Load::start(stage, NAME, endpoint(stage).await?, 2, 8).await?;
    for replicas in [3, 1] {
        let body = json!({"spec": {"replicas": replicas}});
        let api = stage.api::<ServingCluster>();
        api.patch_scale(NAME, &PatchParams::default(), &Patch::Merge(&body)).await.context("patch /scale")?;
        let scale = api.get_scale(NAME).await?;
        ensure!(scale.spec.and_then(|s| s.replicas) == Some(replicas), "the scale subresource does not answer");
        settled(stage, replicas.unsigned_abs(), 90).await?;
    }
    let selector = stage.api::<ServingCluster>().get_scale(NAME).await?.status.and_then(|s| s.selector);
    ensure!(selector.is_some_and(|s| s.contains("thresh.dev/role=engine")), "no selector an autoscaler could use");
    load.stop().await.flawless(50)
}

async fn a_killed_engine_comes_back_at_the_current_weights(stage: &Stage) -> anyhow::Result<()> {
    let before = run::start(stage, &run::manifest("weights", |_| {})?, 3).await?;
    let attempt = run::ready_attempt(&before);
    let pods = stage.pods("engine").await?;
    let victim = pods.first().context("an engine")?;
    node::signal(victim, "thresh-rollout", "KILL")?;
    stage
        .until("the engine's container to be restarted and ready", 60, async || {
            let pod = stage.api::<Pod>().get(&victim.name_any()).await?;
            let restarts =
                pod.status.iter().flat_map(|s| s.container_statuses.iter().flatten()).map(|c| c.restart_count);
            Ok((restarts.sum::<i32>() > 0 && pod_facts::ready(&pod)).then_some(()))
        })
        .await?;
    stage
        .until("both engines to be at the current version", 60, async || {
            let job = stage.rljob("weights").await?;
            let serving = job.status.as_ref().and_then(|s| s.serving.clone()).unwrap_or_default();
            Ok((serving.ready == 2 && serving.min_weight_version > Some(0)).then_some(()))
        })
        .await?;
    let after = run::steps_from(stage, "weights", run::step(&before), 3).await?;
    ensure!(run::ready_attempt(&after) == attempt, "the trainer was restarted for an engine");
    Ok(())
}

async fn the_budget_allows_one_eviction_and_always_that_of_a_broken_engine(stage: &Stage) -> anyhow::Result<()> {
    engines(stage, 3, |_| {}).await?;
    let budgets = stage.api::<PodDisruptionBudget>();
    stage
        .until("the budget to allow one", 60, async || {
            let list = budgets.list(&Default::default()).await?.items;
            let allowed = list.first().and_then(|b| b.status.as_ref()).and_then(|s| s.disruptions_allowed).unwrap_or(0);
            Ok((allowed == 1).then_some(()))
        })
        .await?;
    let (pods, api) = (stage.pods("engine").await?, stage.api::<Pod>());
    let first = pods.first().context("an engine")?.name_any();
    api.evict(&first, &EvictParams::default()).await.context("the first eviction")?;
    // (A second eviction would be refused with 429, which our client takes for an invitation to come back.)
    let allowed = budgets.list(&Default::default()).await?.items;
    let allowed = allowed.first().and_then(|b| b.status.as_ref()).and_then(|s| s.disruptions_allowed);
    ensure!(allowed == Some(0), "a second eviction is allowed at once: {allowed:?}");
    settled(stage, 3, 90).await?;
    // One that does not answer holds up no drain of its node.
    stage.patch::<ServingCluster>(NAME, json!({"spec": {"engine": {"image": "thresh.local/no-such:e2e"}}})).await?;
    let broken = stage
        .until("an engine that does not answer", 90, async || {
            Ok(stage.pods("engine").await?.into_iter().find(|p| pod_facts::waiting(p).is_some()))
        })
        .await?;
    api.evict(&broken.name_any(), &EvictParams::default()).await.context("the eviction of a broken engine")?;
    Ok(())
}

async fn a_second_run_waits_for_the_writers_role_and_is_told_who_holds_it(stage: &Stage) -> anyhow::Result<()> {
    engines(stage, 2, |_| {}).await?;
    let shared = |name: &str| {
        run::manifest(name, |job| {
            job["spec"]["serving"] = json!({"ref": {"name": NAME}});
            job["spec"]["model"] = json!({"source": format!("pvc://{CLAIM}/{}", model::FOLDER)});
            job["spec"]["rollout"]["template"]["spec"]["replicas"] = json!(1);
        })
    };
    run::start(stage, &shared("holder")?, 2).await?;
    stage.apply(&shared("second")?).await?;
    stage
        .until("the second run to be told", 60, async || {
            let job = stage.rljob("second").await?;
            let accepted = job.status.as_ref().and_then(|s| cond::get(&s.conditions, cond::ACCEPTED));
            Ok(accepted.filter(|c| c.reason == "ClaimDenied" && c.message.contains("holder")).map(|_| ()))
        })
        .await?;
    ensure!(stage.rljob("second").await?.status.is_none_or(|s| s.attempts == 0), "it has started a trainer");
    stage.patch::<RLJob>("holder", json!({"spec": {"totalSteps": 1}})).await?;
    run::steps_from(stage, "second", 0, 2).await?;
    let writer = stage.serving(NAME).await?.status.and_then(|s| s.weights.writer).map(|w| w.rljob);
    ensure!(writer.as_deref() == Some("second"), "the writer is {writer:?}");
    Ok(())
}

async fn serving_stays_or_goes_with_its_run_as_asked(stage: &Stage) -> anyhow::Result<()> {
    for policy in ["Retain", "Delete"] {
        let name = policy.to_lowercase();
        let job = run::manifest(&name, |job| {
            job["spec"]["deletionPolicy"] = json!({"serving": policy, "rollout": "Delete"})
        })?;
        run::start(stage, &job, 1).await?;
        let serving = format!("{name}-serving");
        let pods = |pods: Vec<Pod>| -> Vec<_> {
            pods.iter().filter(|p| p.name_any().starts_with(&serving)).filter_map(|p| p.uid()).collect()
        };
        let before = pods(stage.pods("engine").await?);
        stage.api::<RLJob>().delete(&name, &DeleteParams::default()).await?;
        stage
            .until("the run to be gone", 60, async || {
                Ok(stage.api::<RLJob>().get_opt(&name).await?.is_none().then_some(()))
            })
            .await?;
        if policy == "Retain" {
            stage
                .until("the writer's role to be given up", 30, async || {
                    let writer = stage.serving(&serving).await?.status.and_then(|s| s.weights.writer);
                    Ok(writer.is_none().then_some(()))
                })
                .await?;
            ensure!(pods(stage.pods("engine").await?) == before, "an engine was replaced");
        } else {
            stage
                .until("its engines to be gone", 90, async || {
                    Ok(pods(stage.pods("engine").await?).is_empty().then_some(()))
                })
                .await?;
        }
    }
    Ok(())
}

async fn a_claimed_serving_cluster_is_not_deleted(stage: &Stage) -> anyhow::Result<()> {
    if std::env::var("THRESH_E2E_OPERATOR").is_ok() {
        return Err(Skip("the policy comes with the chart, which is not installed".into()).into());
    }
    run::start(stage, &run::manifest("guarded", |_| {})?, 1).await?;
    let api = stage.api::<ServingCluster>();
    let refused = api.delete("guarded-serving", &DeleteParams::default()).await.err().context("it was deleted")?;
    let refused = refused.to_string();
    ensure!(refused.contains("guarded") && refused.contains("force-delete"), "neither holder nor way out: {refused}");
    ensure!(api.get("guarded-serving").await?.metadata.deletion_timestamp.is_none(), "it is on its way out");
    Ok(())
}
