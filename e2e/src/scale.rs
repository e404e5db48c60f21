//! A thousand runs: their objects are real, and so are the controllers; nodes pretend (kwok), and one process answers for every
//! conductor. What is measured is the operator: its memory, its writes at rest, and how long a reconcile takes.

use std::{
    collections::HashMap,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use api::{RLJob, labels};
use axum::{
    Json, Router,
    extract::State,
    http::HeaderMap,
    routing::{get, post},
};
use control::wire::{EngineProgress, Progress, RunPhase, SettingsReply, SettingsRequest};
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::{Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::{
    operator::{Process, crds, folder},
    record, run,
    stage::{CLAIM, repository},
};

/// Where the pretended pods are; the machine answers for all of it.
const RANGE: &str = "10.200.0.0/16";
const NODES: usize = 20;
const NAMESPACES: usize = 10;
/// Pods of a run: conductor 1, engines 3, workers 2, ranks 4.
const PODS: usize = 10;
/// How long it is watched at rest.
const REST: Duration = Duration::from_secs(120);
/// Then a rank dies every second, each of another run.
const DEATHS: usize = 60;

/// Runs it and writes the line `scale_N`.
///
/// # Errors
/// When the runs do not come up, or something cannot be measured.
pub async fn scale(runs: usize) -> anyhow::Result<()> {
    let client = Client::try_default().await.context("no cluster: `make cluster` first")?;
    crds(&client).await?;
    let routed = Command::new("ip").args(["route", "replace", "local", RANGE, "dev", "lo"]).status()?;
    ensure!(routed.success(), "this must run inside the cluster's network: `cluster.sh run`");
    let conductors = tokio::spawn(answer_for_conductors().await?);
    let mut kwok = kwok()?;
    let result = tokio::select! {
        result = measured(&client, runs) => result,
        died = ended(&mut kwok) => died,
    };
    clean(&client).await;
    let _ = kwok.kill();
    let _ = kwok.wait();
    conductors.abort();
    result
}

async fn measured(client: &Client, runs: usize) -> anyhow::Result<()> {
    nodes(client).await?;
    clean_namespaces(client).await?;
    namespaces(client).await?;
    let operator = Process::start("operator-scale", &[]).await?;
    let begun = Instant::now();
    let names: Vec<_> = (0..runs).map(|n| (format!("scale-{}", n % NAMESPACES), format!("run-{n}"))).collect();
    let created = stream::iter(names)
        .map(|(namespace, name)| async move {
            let mut body = serde_json::to_value(manifest(&name)?)?;
            api::without_nulls(&mut body);
            let api: Api<RLJob> = Api::namespaced(client.clone(), &namespace);
            api.patch(&name, &PatchParams::apply("e2e").force(), &Patch::Apply(&body)).await.context("create a run")?;
            anyhow::Ok(())
        })
        .buffer_unordered(8);
    let created: Vec<_> = created.collect().await;
    created.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    let mut shown = 0;
    loop {
        let ready = ready(client).await?;
        if ready >= runs {
            break;
        }
        ensure!(begun.elapsed() < Duration::from_secs(1500), "{ready} of {runs} runs are up after 25 minutes");
        if ready / 100 > shown {
            shown = ready / 100;
            println!("{ready} of {runs} runs are up after {:.0} s", begun.elapsed().as_secs_f64());
        }
        tokio::time::sleep(Duration::from_secs(3)).await;
    }
    let up = begun.elapsed().as_secs_f64();
    // What follows the last readiness is not rest yet.
    tokio::time::sleep(Duration::from_secs(30)).await;
    let start = metrics(&operator).await?;
    tokio::time::sleep(REST).await;
    let rest = metrics(&operator).await?;
    let rss = resident_mib(operator.pid())?;
    deaths(client, runs).await?;
    let end = metrics(&operator).await?;
    // Each run is three objects of ours: RLJob, ServingCluster, RolloutPool.
    let minutes = REST.as_secs_f64() / 60.0;
    let writes = (sum(&rest, "thresh_api_writes_total") - sum(&start, "thresh_api_writes_total")) / minutes;
    let ms = |from: &str, to: &str, share: f64| quantile(from, to, "thresh_reconcile_seconds", share) * 1000.0;
    let figures = json!({
        "runs": runs, "pods": runs * PODS, "up_seconds": up, "rss_mib": rss, "rss_end_mib": resident_mib(operator.pid())?,
        "writes_per_object_minute": writes / (runs * 3) as f64,
        // With all runs there: at rest, and while ranks die. How fast they all begin at once is the API server's affair.
        "reconcile_p50_ms": ms(&start, &end, 0.5), "reconcile_p99_ms": ms(&start, &end, 0.99),
        "deaths_p99_ms": ms(&rest, &end, 0.99), "start_p99_ms": ms("", &start, 0.99),
        "reconciles": sum(&end, "thresh_reconcile_total"),
    });
    println!("scale: {figures}");
    record::line(&format!("scale_{runs}"), &figures)?;
    operator.stop();
    Ok(())
}

/// Kills ranks, and waits until the runs that had them are whole again.
async fn deaths(client: &Client, runs: usize) -> anyhow::Result<()> {
    let dying = DEATHS.min(runs);
    for n in 0..dying {
        let pods: Api<Pod> = Api::namespaced(client.clone(), &format!("scale-{}", n % NAMESPACES));
        let ranks = ListParams::default().labels(&format!("{}=run-{n},{}=trainer", labels::RLJOB, labels::ROLE));
        let rank =
            pods.list_metadata(&ranks).await.context("list ranks")?.items.pop().context("a run without a rank")?;
        pods.delete(rank.metadata.name.as_deref().unwrap_or_default(), &DeleteParams::default())
            .await
            .context("kill a rank")?;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let begun = Instant::now();
    loop {
        let mut whole = 0;
        for n in 0..dying {
            let jobs: Api<RLJob> = Api::namespaced(client.clone(), &format!("scale-{}", n % NAMESPACES));
            whole += usize::from(
                run::ready_attempt(&jobs.get(&format!("run-{n}")).await?).is_some_and(|attempt| attempt >= 2),
            );
        }
        if whole == dying {
            return Ok(());
        }
        ensure!(
            begun.elapsed() < Duration::from_secs(120),
            "{whole} of {dying} runs have a second attempt after 2 minutes"
        );
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
}

fn manifest(name: &str) -> anyhow::Result<RLJob> {
    let pretended = json!({ "spec": {
        "nodeSelector": { "type": "kwok" },
        "tolerations": [{ "key": "kwok", "operator": "Exists", "effect": "NoSchedule" }],
    }});
    run::manifest(name, |job| {
        let spec = &mut job["spec"];
        spec["trainer"]["nodes"] = json!(4);
        spec["trainer"]["parallelism"] = json!({ "dp": 4, "tp": 1 });
        spec["serving"]["template"]["spec"]["replicas"] = json!(3);
        spec["trainer"]["podTemplate"] = pretended.clone();
        spec["conductor"] = json!({ "podTemplate": pretended });
        spec["serving"]["template"]["spec"]["engine"]["podTemplate"] = pretended.clone();
        spec["rollout"]["template"]["spec"]["worker"]["podTemplate"] = pretended.clone();
    })
}

async fn ready(client: &Client) -> anyhow::Result<usize> {
    let api: Api<RLJob> = Api::all(client.clone());
    let jobs = api.list(&ListParams::default()).await.context("list runs")?;
    Ok(jobs.iter().filter(|job| run::ready_attempt(job).is_some()).count())
}

// ---------------------------------------------------------------- the pretended cluster

fn kwok() -> anyhow::Result<Child> {
    std::fs::create_dir_all(folder())?;
    let log = std::fs::File::create(folder().join("kwok.log"))?;
    Command::new("kwok")
        .args(["--manage-all-nodes=false", "--manage-nodes-with-label-selector=type=kwok", "--cidr", RANGE])
        // Without leases its nodes are taken for lost after a minute.
        .args(["--server-address=127.0.0.1:0", "--node-lease-duration-seconds=40"])
        .arg(format!("--config={}", repository().join("e2e/kwok/stages.yaml").display()))
        .arg(format!("--kubeconfig={}", std::env::var("KUBECONFIG").context("KUBECONFIG")?))
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .context("start kwok")
}

/// Comes back only if it ends by itself.
async fn ended(kwok: &mut Child) -> anyhow::Result<()> {
    loop {
        if let Some(status) = kwok.try_wait()? {
            let said = std::fs::read_to_string(folder().join("kwok.log")).unwrap_or_default();
            bail!("kwok ended ({status}): {}", said.lines().last().unwrap_or_default());
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

async fn nodes(client: &Client) -> anyhow::Result<()> {
    let api: Api<Node> = Api::all(client.clone());
    for n in 0..NODES {
        let node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": { "name": format!("pretended-{n}"), "labels": { "type": "kwok" } },
            "spec": { "taints": [{ "key": "kwok", "value": "fake", "effect": "NoSchedule" }], "podCIDR": format!("10.200.{}.0/22", n * 4) },
        });
        let name = node["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        api.patch(&name, &PatchParams::apply("e2e").force(), &Patch::Apply(&node)).await.context("make a node")?;
    }
    Ok(())
}

async fn namespaces(client: &Client) -> anyhow::Result<()> {
    let all: Api<Namespace> = Api::all(client.clone());
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    for n in 0..NAMESPACES {
        let name = format!("scale-{n}");
        let object = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
        all.create(&PostParams::default(), &serde_json::from_value(object)?).await.context("create a namespace")?;
        let volume = json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": name },
            "spec": { "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteMany"], "storageClassName": "",
                      "claimRef": { "namespace": name, "name": CLAIM }, "hostPath": { "path": "/nowhere" } },
        });
        volumes.create(&PostParams::default(), &serde_json::from_value(volume)?).await.context("create a volume")?;
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &name);
        let claim = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": CLAIM },
            "spec": { "accessModes": ["ReadWriteMany"], "storageClassName": "", "volumeName": name,
                      "resources": { "requests": { "storage": "1Gi" } } },
        });
        claims.create(&PostParams::default(), &serde_json::from_value(claim)?).await.context("create a claim")?;
    }
    Ok(())
}

async fn clean(client: &Client) {
    // Nothing else waits for what is left; the next run says so if it is in its way.
    let _ = clean_namespaces(client).await;
    let nodes: Api<Node> = Api::all(client.clone());
    let _ = nodes.delete_collection(&DeleteParams::default(), &ListParams::default().labels("type=kwok")).await;
}

async fn clean_namespaces(client: &Client) -> anyhow::Result<()> {
    let all: Api<Namespace> = Api::all(client.clone());
    for n in 0..NAMESPACES {
        let name = format!("scale-{n}");
        let jobs: Api<RLJob> = Api::namespaced(client.clone(), &name);
        // Nobody acts on them any more: nothing would take the finalizer off.
        let free = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
        for job in jobs.list(&ListParams::default()).await.map(|l| l.items).unwrap_or_default() {
            let _ = jobs.patch(job.metadata.name.as_deref().unwrap_or_default(), &PatchParams::default(), &free).await;
        }
        let servings: Api<api::ServingCluster> = Api::namespaced(client.clone(), &name);
        for one in servings.list(&ListParams::default()).await.map(|l| l.items).unwrap_or_default() {
            let _ =
                servings.patch(one.metadata.name.as_deref().unwrap_or_default(), &PatchParams::default(), &free).await;
        }
        let _ = all.delete(&name, &DeleteParams::default()).await;
        let volumes: Api<PersistentVolume> = Api::all(client.clone());
        let _ = volumes.delete(&name, &DeleteParams::default()).await;
    }
    let until = Instant::now() + Duration::from_secs(300);
    loop {
        let listed = all.list(&ListParams::default()).await?;
        let left =
            listed.iter().filter(|n| n.metadata.name.as_deref().is_some_and(|n| n.starts_with("scale-"))).count();
        if left == 0 {
            return Ok(());
        }
        if Instant::now() >= until {
            bail!("{left} namespaces of an earlier run do not go");
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

// ---------------------------------------------------------------- one answer for all conductors

type Held = Arc<Mutex<HashMap<String, u64>>>;

/// A run in the middle of its steps, with everybody well. No attempt has claimed: they are numbered from 1, and a second one is
/// one that follows a death.
async fn answer_for_conductors() -> anyhow::Result<impl Future<Output = ()>> {
    let held: Held = Arc::default();
    let routes =
        Router::new().route("/v1/progress", get(progress)).route("/v1/settings", post(settings)).with_state(held);
    let listener = tokio::net::TcpListener::bind(("0.0.0.0", plan::build::CONDUCTOR_PORT)).await?;
    Ok(async move {
        if let Err(error) = axum::serve(listener, routes).await {
            println!("nobody answers for the conductors any more: {error}");
        }
    })
}

fn whose(headers: &HeaderMap) -> String {
    headers.get("authorization").and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned()
}

async fn progress(State(held): State<Held>, headers: HeaderMap) -> Json<Progress> {
    let number = held.lock().unwrap_or_else(PoisonError::into_inner).get(&whose(&headers)).copied().unwrap_or(0);
    let engine = |n: u32| EngineProgress {
        name: format!("engine-{n}"),
        url: String::new(),
        live: true,
        admitted: true,
        version: 8,
    };
    Json(Progress {
        conductor_epoch: serde_json::from_value(Value::from(1)).unwrap_or_default(),
        settings_number: number,
        phase: RunPhase::Rl,
        step: 7,
        total_steps: 100_000,
        weight_version: 8,
        commits: 3,
        engines: (0..3).map(engine).collect(),
        ..Progress::default()
    })
}

async fn settings(
    State(held): State<Held>,
    headers: HeaderMap,
    Json(request): Json<SettingsRequest>,
) -> Json<SettingsReply> {
    held.lock().unwrap_or_else(PoisonError::into_inner).insert(whose(&headers), request.number);
    Json(SettingsReply {
        conductor_epoch: serde_json::from_value(Value::from(1)).unwrap_or_default(),
        number: request.number,
    })
}

// ---------------------------------------------------------------- figures

async fn metrics(operator: &Process) -> anyhow::Result<String> {
    Ok(reqwest::get(format!("http://{}/metrics", operator.listen)).await?.text().await?)
}

/// Sum of a metric over all its labels.
fn sum(text: &str, name: &str) -> f64 {
    let of = |line: &str| line.strip_prefix(name)?.rsplit_once(' ')?.1.parse::<f64>().ok();
    text.lines().filter_map(of).sum()
}

/// A quantile of what a histogram, over all its labels, gained between two looks; interpolated within a bucket as Prometheus does.
fn quantile(from: &str, to: &str, name: &str, share: f64) -> f64 {
    let before = buckets(from, name);
    let was = |bound: f64| before.iter().find(|(b, _)| *b == bound).map_or(0.0, |(_, count)| *count);
    let gained: Vec<(f64, f64)> =
        buckets(to, name).iter().map(|(bound, count)| (*bound, count - was(*bound))).collect();
    let wanted = gained.last().map_or(0.0, |(_, all)| all * share);
    let (mut low, mut under) = (0.0, 0.0);
    for (bound, count) in gained {
        if count >= wanted {
            if bound.is_infinite() || count <= under {
                return low;
            }
            return low + (bound - low) * (wanted - under) / (count - under);
        }
        (low, under) = (bound, count);
    }
    low
}

/// Upper bound and cumulative count of each bucket.
fn buckets(text: &str, name: &str) -> Vec<(f64, f64)> {
    let prefix = format!("{name}_bucket");
    let mut buckets: Vec<(f64, f64)> = Vec::new();
    for line in text.lines().filter(|line| line.starts_with(&prefix)) {
        let Some((_, rest)) = line.split_once("le=\"") else { continue };
        let Some((bound, rest)) = rest.split_once('"') else { continue };
        let bound = if bound == "+Inf" { f64::INFINITY } else { bound.parse().unwrap_or(f64::INFINITY) };
        let count = rest.rsplit_once(' ').and_then(|(_, n)| n.parse::<f64>().ok()).unwrap_or(0.0);
        match buckets.iter_mut().find(|(b, _)| *b == bound) {
            Some((_, sum)) => *sum += count,
            None => buckets.push((bound, count)),
        }
    }
    buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
    buckets
}

fn resident_mib(pid: u32) -> anyhow::Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).context("VmRSS")?;
    let kib: f64 = line.split_whitespace().nth(1).context("a number")?.parse()?;
    Ok(kib / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_as_prometheus_would() {
        let text = "# HELP x_total y\nx_total{a=\"b\"} 3\nx_total{a=\"c\"} 4\n\
            h_bucket{kind=\"A\",le=\"0.1\"} 90\nh_bucket{kind=\"A\",le=\"0.2\"} 100\nh_bucket{kind=\"A\",le=\"+Inf\"} 100\n";
        assert_eq!(sum(text, "x_total"), 7.0);
        assert!((quantile("", text, "h", 0.99) - 0.19).abs() < 1e-9);
        assert!((quantile("", text, "h", 0.45) - 0.05).abs() < 1e-9);
        let later = text.replace("} 100", "} 110");
        assert!((quantile(text, &later, "h", 0.5) - 0.15).abs() < 1e-9, "what came before counts no more");
    }
}
