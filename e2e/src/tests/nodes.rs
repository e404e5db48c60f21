//! Nodes that are lost, join and are drained, and a volume that goes and comes back.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use api::{Outcome, RLJob, conditions as cond};
use k8s_openapi::api::core::v1::{Event, Node, Pod, Service};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, EvictParams, ListParams, Patch, PatchParams},
};
use plan::pod_facts;
use serde_json::json;
use tokio::sync::Barrier;

use super::trainer::bystanders;
use crate::{
    conductor,
    harness::Test,
    load::{Load, ask, token},
    model,
    node::{self, Lost},
    place, record, run,
    stage::{CLAIM, Stage},
    test,
};

/// All of them.
pub fn tests() -> Vec<Test> {
    vec![
        test!(a_lost_node_ends_the_gang_within_seconds_and_is_one_new_attempt, OperatorAlone, 2, 300),
        test!(what_lives_on_on_a_lost_node_writes_nothing_that_counts, OperatorAlone, 2, 420),
        test!(a_trainer_killed_while_it_publishes_leaves_engines_serving_and_versions_rising, Operator, 1, 240),
        test!(a_node_that_joins_works_until_it_is_cordoned_and_what_it_held_is_done_once, OperatorAlone, 2, 240),
        test!(a_drained_node_gives_up_what_it_holds_and_nobody_who_asks_notices, OperatorAlone, 2, 360),
        test!(a_volume_that_dies_is_waited_for_and_the_run_goes_on_when_it_is_back, OperatorAlone, 1, 240),
    ]
}

const NODE: &str = "node1";
const OTHER: &str = "node2";

/// That pod of a role on that node.
async fn pod_on(stage: &Stage, role: &str, node: &str) -> anyhow::Result<Pod> {
    let pods = stage.pods(role).await?;
    let seen: Vec<_> = pods.iter().map(|p| (p.name_any(), pod_facts::node(p).map(str::to_owned))).collect();
    let found = pods.into_iter().find(|p| pod_facts::node(p) == Some(node) && !pod_facts::ended(p));
    found.with_context(|| format!("a {role} on {node}; there are {seen:?}"))
}

async fn address(stage: &Stage, role: &str, node: &str, port: u16) -> anyhow::Result<String> {
    let pod = pod_on(stage, role, node).await?;
    let ip = pod.status.and_then(|s| s.pod_ip).context("an address")?;
    Ok(format!("{ip}:{port}"))
}

/// The run is that far, with a commit to go back to.
async fn committed(stage: &Stage, name: &str) -> anyhow::Result<RLJob> {
    stage
        .until(&format!("a commit of {name}"), 120, async || {
            let job = stage.rljob(name).await?;
            let commits = job.status.as_ref().and_then(|s| s.progress.as_ref()).map_or(0, |p| p.commits);
            Ok((commits > 0 && run::ready_attempt(&job).is_some()).then_some(job))
        })
        .await
}

/// The pod of that uid is gone from the API server.
async fn gone(stage: &Stage, pod: &Pod, seconds: u64) -> anyhow::Result<()> {
    let (name, uid) = (pod.name_any(), pod.uid());
    stage
        .until(&format!("the old {name} to be gone"), seconds, async || {
            Ok(stage.api::<Pod>().get_opt(&name).await?.is_none_or(|p| p.uid() != uid).then_some(()))
        })
        .await
}

async fn a_lost_node_ends_the_gang_within_seconds_and_is_one_new_attempt(stage: &Stage) -> anyhow::Result<()> {
    let job = run::manifest("lost", |job| {
        place::put(
            job,
            &[
                ("trainer", place::rather_apart("trainer")),
                ("conductor", place::only_on(NODE)),
                ("engine", place::only_on(NODE)),
                ("worker", place::only_on(NODE)),
            ],
        );
    })?;
    stage.apply(&job).await?;
    let before = committed(stage, "lost").await?;
    let first = run::ready_attempt(&before).context("an attempt")?;
    let (survivor, victim) = (pod_on(stage, "trainer", NODE).await?, pod_on(stage, "trainer", OTHER).await?);
    let pods = bystanders(stage).await?;
    let load =
        Load::start(stage, "lost-serving", address(stage, "engine", NODE, plan::build::ENGINE_PORT).await?, 1, 8)
            .await?;

    let lost = Lost::node(2)?;
    let began = Instant::now();
    let ended = stage
        .until("the surviving rank to end by itself", 60, async || {
            // The Job's controller may have removed it since.
            let pod = stage.api::<Pod>().get_opt(&survivor.name_any()).await?;
            Ok(pod.is_none_or(|p| pod_facts::ended(&p)).then(|| began.elapsed()))
        })
        .await?;
    ensure!(ended < Duration::from_secs(40), "our own heartbeats took {ended:?}");
    let numbered = stage
        .until("a new attempt to be numbered", 120, async || {
            let attempts = stage.rljob("lost").await?.status.map_or(0, |s| s.attempts);
            Ok((attempts > first).then(|| began.elapsed()))
        })
        .await?;
    let after = run::attempt_after(stage, "lost", first, 90).await?;
    let status = after.status.clone().unwrap_or_default();
    let last = status.last_attempt.clone().context("an ended attempt")?;
    ensure!(last.id == first && last.outcome == Outcome::Disrupted, "{last:?}");
    ensure!(last.node_name.as_deref() == Some(OTHER), "{last:?}");
    ensure!(status.attempts == first + 1, "{} attempts after {first}", status.attempts);
    ensure!((status.counters.failures, status.counters.disruptions) == (0, 1), "{:?}", status.counters);
    run::steps_from(stage, "lost", run::step(&before), 2).await?;
    let stepped = began.elapsed();
    let tally = load.stop().await;
    ensure!(tally.failed == 0 && tally.answered > 50, "{tally:?}");
    lost.heal()?;
    gone(stage, &victim, 30).await?;
    stage
        .always("it stays one new attempt", 3, async || {
            let attempts = stage.rljob("lost").await?.status.map_or(0, |s| s.attempts);
            ensure!(attempts == first + 1, "{attempts} attempts");
            Ok(())
        })
        .await?;
    ensure!(bystanders(stage).await? == pods, "somebody else restarted");
    run::sound(&stage.rljob("lost").await?)?;
    let figures = json!({ "survivor_ended_s": ended.as_secs_f64(), "attempt_s": numbered.as_secs_f64(),
        "step_s": stepped.as_secs_f64() });
    record::line("node_lost", &figures)
}

/// Where the scenarios of one loss of a node wait for each other.
struct Acts {
    /// All is as it should be before.
    ready: Barrier,
    /// The node is lost.
    lost: Barrier,
    /// All was seen that is to be seen before it is back.
    seen: Barrier,
    /// It is back.
    healed: Barrier,
}

async fn what_lives_on_on_a_lost_node_writes_nothing_that_counts(stage: &Stage) -> anyhow::Result<()> {
    let acts = Acts { ready: Barrier::new(3), lost: Barrier::new(3), seen: Barrier::new(3), healed: Barrier::new(3) };
    let director = async {
        acts.ready.wait().await;
        let lost = Lost::node(2)?;
        acts.lost.wait().await;
        acts.seen.wait().await;
        lost.heal()?;
        acts.healed.wait().await;
        Ok(())
    };
    tokio::try_join!(a_zombie_gang(stage, &acts), a_zombie_conductor_and_engine(stage, &acts), director).map(drop)
}

/// Both ranks are on the lost node, can see each other and the volume, and only the conductor is out of reach.
async fn a_zombie_gang(stage: &Stage, acts: &Acts) -> anyhow::Result<()> {
    let job = run::manifest("gang", |job| {
        job["spec"]["trainer"]["nodes"] = json!(1);
        job["spec"]["trainer"]["accelerator"]["perNode"] = json!(2);
        job["spec"]["serving"]["template"]["spec"]["replicas"] = json!(1);
        job["spec"]["rollout"]["template"]["spec"]["replicas"] = json!(1);
        place::put(
            job,
            &[
                ("trainer", place::rather_on(OTHER)),
                ("conductor", place::only_on(NODE)),
                ("engine", place::only_on(NODE)),
                ("worker", place::only_on(NODE)),
            ],
        );
    })?;
    stage.apply(&job).await?;
    let before = committed(stage, "gang").await?;
    let first = run::ready_attempt(&before).context("an attempt")?;
    let old = pod_on(stage, "trainer", OTHER).await?;
    acts.ready.wait().await;
    acts.lost.wait().await;
    let after = run::attempt_after(stage, "gang", first, 150).await?;
    ensure!(after.status.as_ref().is_some_and(|s| s.attempts == first + 1), "{:?}", after.status);
    let last = after.status.as_ref().and_then(|s| s.last_attempt.clone()).context("an ended attempt")?;
    ensure!(last.outcome == Outcome::Disrupted, "{last:?}");
    let fenced = after.status.as_ref().and_then(|s| s.fenced_through);
    ensure!(fenced == Some(first), "fenced through {fenced:?}");
    run::steps_from(stage, "gang", run::step(&after), 3).await?;
    // Without this the test would be about a gang that had ended anyway.
    ensure!(node::pids(&old)?.len() >= 3, "the old gang has ended: {:?}", node::pids(&old)?);
    acts.seen.wait().await;
    acts.healed.wait().await;
    gone(stage, &old, 60).await?;
    ensure!(node::pids(&old)?.is_empty(), "a process of the old gang is left: {:?}", node::pids(&old)?);
    let job = stage.rljob("gang").await?;
    run::steps_from(stage, "gang", run::step(&job), 2).await?;
    let steps = run::sound(&stage.rljob("gang").await?)?;
    ensure!(steps.last().is_some_and(|s| s.attempt == first + 1), "{:?}", steps.last());
    Ok(())
}

/// The conductor and one of two engines are on the lost node.
async fn a_zombie_conductor_and_engine(stage: &Stage, acts: &Acts) -> anyhow::Result<()> {
    let job = run::manifest("head", |job| {
        job["spec"]["trainer"]["nodes"] = json!(1);
        job["spec"]["trainer"]["parallelism"] = json!({"tp": 1, "dp": 1});
        job["spec"]["rollout"]["template"]["spec"]["replicas"] = json!(1);
        place::put(
            job,
            &[
                ("trainer", place::only_on(NODE)),
                ("conductor", place::rather_on(OTHER)),
                ("engine", place::rather_apart("engine")),
                ("worker", place::only_on(NODE)),
            ],
        );
    })?;
    stage.apply(&job).await?;
    let before = committed(stage, "head").await?;
    let first = run::ready_attempt(&before).context("an attempt")?;
    let old = pod_on(stage, "conductor", OTHER).await?;
    let engines = stage.pods("engine").await?;
    let mine = |p: &&Pod| p.name_any().starts_with("head-serving-");
    let engine = engines.iter().filter(mine).find(|p| pod_facts::node(p) == Some(OTHER)).context("an engine there")?;
    let other = engines.iter().filter(mine).find(|p| pod_facts::node(p) == Some(NODE)).context("an engine here")?;
    let ip = other.status.as_ref().and_then(|s| s.pod_ip.clone()).context("an address")?;
    acts.ready.wait().await;
    acts.lost.wait().await;
    let began = Instant::now();
    let progress = stage
        .until("a conductor on the node that is left", 180, async || {
            pod_on(stage, "conductor", NODE).await?;
            Ok(Some(conductor::progress(stage, "head").await?))
        })
        .await?;
    let successor = began.elapsed();
    ensure!(progress.conductor_epoch > 1, "epoch {}", progress.conductor_epoch);
    // Its volume works and its kubelet is dead: nothing but the journal tells it that it is superseded.
    stage
        .until("the old conductor to end by itself", 60, async || Ok(node::pids(&old)?.is_empty().then_some(())))
        .await?;
    stage
        .until("both engines to serve what is current", 180, async || {
            let now = conductor::progress(stage, "head").await?;
            let current =
                now.engines.iter().filter(|e| e.live && e.admitted && e.version == now.weight_version).count();
            Ok((current == 2 && now.engines.len() == 2).then_some(()))
        })
        .await?;
    // Not before: an engine that was paused for weights when its conductor was lost waits for the successor's word.
    let load = Load::start(stage, "head-serving", format!("{ip}:{}", plan::build::ENGINE_PORT), 1, 8).await?;
    let job = stage.rljob("head").await?;
    let after = run::steps_from(stage, "head", run::step(&job), 3).await?;
    let status = after.status.clone().unwrap_or_default();
    ensure!(status.attempts == first, "the trainer was restarted: {:?}", status.last_attempt);
    let tally = load.stop().await;
    ensure!(tally.failed == 0 && tally.answered > 5, "{tally:?}");
    let events = stage.api::<Event>().list(&ListParams::default()).await?;
    ensure!(events.iter().any(|e| e.reason.as_deref() == Some("ConductorForced")), "nobody was told");
    ensure!(!node::pids(engine)?.is_empty(), "the old engine has ended");
    acts.seen.wait().await;
    acts.healed.wait().await;
    stage
        .until("the old engine and the old conductor to be cleared up", 60, async || {
            Ok((node::pids(engine)?.is_empty() && node::pids(&old)?.is_empty()).then_some(()))
        })
        .await?;
    let job = stage.rljob("head").await?;
    run::steps_from(stage, "head", run::step(&job), 2).await?;
    run::sound(&stage.rljob("head").await?)?;
    record::line("conductor_lost", &json!({ "successor_s": successor.as_secs_f64() }))
}

/// The version that an engine says it serves.
async fn version(address: &str, token: &str) -> anyhow::Result<u64> {
    let http = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(60)).build()?;
    let response = http.get(format!("http://{address}/model_info")).bearer_auth(token).send().await?;
    let body: serde_json::Value = response.error_for_status()?.json().await?;
    let text = body["weight_version"].as_str().context("a weight_version")?;
    // Before the first publication it is the name of what the engine came up with.
    Ok(text.parse().unwrap_or(0))
}

async fn a_trainer_killed_while_it_publishes_leaves_engines_serving_and_versions_rising(
    stage: &Stage,
) -> anyhow::Result<()> {
    let job = run::manifest("publish", |job| {
        job["spec"]["trainer"]["failurePolicy"]["backoffLimit"] = json!(20);
    })?;
    stage.apply(&job).await?;
    let mut job = committed(stage, "publish").await?;
    let pods = bystanders(stage).await?;
    let engines = stage.pods("engine").await?;
    let addresses: Vec<String> = engines
        .iter()
        .filter_map(|p| Some(format!("{}:{}", p.status.as_ref()?.pod_ip.as_ref()?, plan::build::ENGINE_PORT)))
        .collect();
    ensure!(addresses.len() == 2, "two engines, not {addresses:?}");
    let token = token(stage, "publish-serving").await?;
    let load = Load::start(stage, "publish-serving", addresses[0].clone(), 1, 8).await?;
    let weights = run::folder(&job).join("weights");
    let mut highest = [0; 2];
    for round in 0..6 {
        let attempt = run::ready_attempt(&job).context("an attempt")?;
        let rank = stage
            .pods("trainer")
            .await?
            .into_iter()
            .find(|p| pod_facts::attempt(&p.metadata) == attempt && pod_facts::index(p) == Some(0));
        let rank = rank.context("rank 0")?;
        let known = folders(&weights)?;
        if round % 2 == 0 {
            // While it writes them: as soon as a folder is there, whatever is in it.
            stage
                .until("weights being written", 60, async || Ok((!folders(&weights)?.is_subset(&known)).then_some(())))
                .await?;
            node::signal(&rank, "thresh-trainer", "KILL")?;
        } else {
            // While engines are being updated: one of them cannot acknowledge.
            let frozen = &engines[1];
            node::signal(frozen, "thresh-rollout", "STOP")?;
            let published = stage
                .until("weights that one engine cannot take", 60, async || {
                    let more = folders(&weights)?.difference(&known).count();
                    Ok((more > 0).then_some(()))
                })
                .await;
            tokio::time::sleep(Duration::from_millis(300)).await;
            let killed = node::signal(&rank, "thresh-trainer", "KILL");
            let asked = ask(&addresses[0], &token, 4, 1).await;
            node::signal(frozen, "thresh-rollout", "CONT")?;
            published?;
            killed?;
            asked.context("the engine that is not frozen")?;
        }
        for (engine, seen) in addresses.iter().zip(&mut highest) {
            let now = version(engine, &token).await?;
            ensure!(now >= *seen, "{engine} went back from version {seen} to {now} in round {round}");
            *seen = now;
        }
        job = run::attempt_after(stage, "publish", attempt, 90).await?;
        let target = highest[0].max(highest[1]);
        stage
            .until("the next attempt to publish", 90, async || {
                for (engine, seen) in addresses.iter().zip(&highest) {
                    let now = version(engine, &token).await?;
                    ensure!(now >= *seen, "{engine} went back from version {seen} to {now}");
                    if now <= target {
                        return Ok(None);
                    }
                }
                Ok(Some(()))
            })
            .await?;
    }
    let tally = load.stop().await;
    ensure!(tally.failed == 0 && tally.answered > 50, "{tally:?}");
    ensure!(bystanders(stage).await? == pods, "somebody else restarted");
    run::sound(&stage.rljob("publish").await?)?;
    Ok(())
}

fn folders(of: &std::path::Path) -> anyhow::Result<std::collections::BTreeSet<std::ffi::OsString>> {
    Ok(std::fs::read_dir(of)?.filter_map(|entry| Some(entry.ok()?.file_name())).collect())
}

/// A third node, until this is dropped.
struct Joined;

impl Joined {
    fn join() -> anyhow::Result<Self> {
        let joined = Self;
        node::cluster(&["node-add"])?;
        Ok(joined)
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        if let Err(error) = node::cluster(&["node-remove"]) {
            eprintln!("the third node was not removed: {error:#}");
        }
    }
}

async fn a_node_that_joins_works_until_it_is_cordoned_and_what_it_held_is_done_once(
    stage: &Stage,
) -> anyhow::Result<()> {
    const THIRD: &str = "node3";
    ensure!(Stage::ready_nodes(&stage.client).await? == 2, "this test wants two nodes, and adds the third");
    let job = run::manifest("pernode", |job| {
        job["spec"]["trainer"]["nodes"] = json!(1);
        job["spec"]["trainer"]["parallelism"] = json!({"tp": 1, "dp": 1});
        let pool = &mut job["spec"]["rollout"]["template"]["spec"];
        pool["placement"] = json!("PerNode");
        if let Some(pool) = pool.as_object_mut() {
            pool.remove("replicas");
        }
        place::put(
            job,
            &[("trainer", place::only_on(NODE)), ("conductor", place::only_on(NODE)), ("engine", place::only_on(NODE))],
        );
    })?;
    stage.apply(&job).await?;
    committed(stage, "pernode").await?;
    ensure!(stage.pods("worker").await?.len() == 2, "a worker a node");

    let joined = Joined::join()?;
    let leases = async |node: &str| -> anyhow::Result<u32> {
        let now = conductor::progress(stage, "pernode").await?;
        Ok(now.workers.iter().filter(|w| w.worker.node == node).map(|w| w.leases).sum())
    };
    stage.until("work for the node that joined", 90, async || Ok((leases(THIRD).await? > 0).then_some(()))).await?;

    // It goes with work at hand: its process dies and it is cordoned at once.
    let nodes: Api<Node> = Api::all(stage.client.clone());
    let worker = pod_on(stage, "worker", THIRD).await?;
    stage
        .until("leases to be held there", 60, async || {
            if leases(THIRD).await? == 0 {
                return Ok(None);
            }
            node::signal(&worker, "thresh-rollout", "STOP")?;
            if leases(THIRD).await? > 0 {
                return Ok(Some(()));
            }
            node::signal(&worker, "thresh-rollout", "CONT")?;
            Ok(None)
        })
        .await?;
    let cordon = Patch::Merge(json!({ "spec": { "unschedulable": true } }));
    nodes.patch(THIRD, &PatchParams::default(), &cordon).await.context("cordon")?;
    stage
        .until("the conductor to be told", 30, async || {
            let (held, now) = (stage.rljob("pernode").await?, conductor::progress(stage, "pernode").await?);
            let held = held.status.and_then(|s| s.settings).map_or(0, |s| s.number);
            Ok((held > 1 && now.settings_number >= held).then_some(()))
        })
        .await?;
    node::signal(&worker, "thresh-rollout", "KILL")?;
    stage.until("its leases to end", 60, async || Ok((leases(THIRD).await? == 0).then_some(()))).await?;
    let job = stage.rljob("pernode").await?;
    let from = run::step(&job);
    stage
        .always("no task is leased to a cordoned node", 6, async || {
            ensure!(leases(THIRD).await? == 0, "there is a lease");
            Ok(())
        })
        .await?;
    // A drain evicts what a DaemonSet would bring back at once: it must not get work either.
    let again = pod_on(stage, "worker", THIRD).await?;
    stage.api::<Pod>().evict(&again.name_any(), &EvictParams::default()).await.context("evict")?;
    gone(stage, &again, 60).await?;
    stage.until("its successor", 60, async || pod_on(stage, "worker", THIRD).await.map(Some)).await?;
    let job = run::steps_from(stage, "pernode", from, 6).await?;
    ensure!(leases(THIRD).await? == 0, "a cordoned node was given work after an eviction");
    let dropped = conductor::progress(stage, "pernode").await?.queue.dropped;
    ensure!(dropped.is_empty(), "groups were lost: {dropped:?}");
    ensure!(job.status.as_ref().is_some_and(|s| s.attempts == 1), "{:?}", job.status);
    run::sound(&job)?;
    drop(joined);
    stage
        .until("the run without the node", 60, async || {
            let pool = stage.pool("pernode-rollout").await?;
            Ok(pool.status.is_some_and(|s| s.replicas == 2).then_some(()))
        })
        .await
}

/// The volume's client until this is dropped.
struct Volume;

impl Drop for Volume {
    fn drop(&mut self) {
        // One that lives is mounted anew, which harms nobody.
        if let Err(error) = node::cluster(&["juicefs", "remount"]) {
            eprintln!("the volume was not mounted again: {error:#}");
        }
    }
}

async fn a_volume_that_dies_is_waited_for_and_the_run_goes_on_when_it_is_back(stage: &Stage) -> anyhow::Result<()> {
    let job = run::manifest("volume", |_| {})?;
    stage.apply(&job).await?;
    let before = committed(stage, "volume").await?;
    let load = Load::start(
        stage,
        "volume-serving",
        address(stage, "engine", NODE, plan::build::ENGINE_PORT).await.or(address(
            stage,
            "engine",
            OTHER,
            plan::build::ENGINE_PORT,
        )
        .await)?,
        1,
        8,
    )
    .await?;
    // In the middle of a publication engines are paused, and nobody may resume them before the version is journaled: then it is
    // waited for, and another moment is taken.
    let mut moments = 3;
    let (told, back) = loop {
        let mounted = Volume;
        node::cluster(&["juicefs", "kill"])?;
        let killed = Instant::now();
        let told = stage
            .until("a condition that tells", 60, async || {
                let job = stage.rljob("volume").await?;
                let said = [cond::PROGRESSING, cond::TRAINER_READY].map(|c| run::condition(&job, c));
                Ok(said.contains(&"False/WaitingForStorage".to_owned()).then(|| killed.elapsed()))
            })
            .await?;
        let stuck = run::step(&stage.rljob("volume").await?);
        let before_it = load.answered();
        tokio::time::sleep(Duration::from_secs(8)).await;
        moments -= 1;
        let paused = load.answered() <= before_it + 1 && moments > 0;
        if !paused {
            // However slow the machine is: so many while there is no volume.
            let enough = async || Ok((load.answered() > before_it + 50).then_some(()));
            stage.until("fifty answers without a volume", 60, enough).await?;
        }
        drop(mounted);
        let back = Instant::now();
        run::steps_from(stage, "volume", stuck.max(run::step(&before)), 6).await?;
        if !paused {
            break (told, back);
        }
        println!("        the volume died in the middle of a publication: once more");
    };
    let went_on = back.elapsed();
    let tally = load.stop().await;
    ensure!(tally.failed == 0 && tally.answered > 50, "engines need no volume to answer: {tally:?}");
    let after = stage.rljob("volume").await?;
    let said = run::condition(&after, cond::PROGRESSING);
    ensure!(said == "True/StepAdvanced", "{said}");
    let status = after.status.clone().unwrap_or_default();
    ensure!(status.counters.failures == 0, "a dead volume counted as a failure: {:?}", status.last_attempt);
    run::sound(&after)?;
    let figures =
        json!({ "told_s": told.as_secs_f64(), "went_on_s": went_on.as_secs_f64(), "attempts": status.attempts });
    record::line("volume_killed", &figures)
}

/// `kubectl drain` of our pods on a node; they go within so many seconds.
async fn drain(node: &str, seconds: u64) -> anyhow::Result<()> {
    let timeout = format!("--timeout={seconds}s");
    let drain =
        ["drain", node, "--pod-selector=thresh.dev/role", "--delete-emptydir-data", "--ignore-daemonsets", &timeout];
    kubectl(&drain).await
}

async fn kubectl(arguments: &[&str]) -> anyhow::Result<()> {
    let output = tokio::process::Command::new("kubectl").args(arguments).output().await.context("run kubectl")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "kubectl {}: {}", arguments.join(" "), said.trim());
    Ok(())
}

async fn a_drained_node_gives_up_what_it_holds_and_nobody_who_asks_notices(stage: &Stage) -> anyhow::Result<()> {
    let result = drained(stage).await;
    kubectl(&["uncordon", OTHER]).await?;
    result
}

async fn drained(stage: &Stage) -> anyhow::Result<()> {
    // Engines that start with weights answer at once, whoever has published what since.
    model::bring()?;
    let job = run::manifest("drained", |job| {
        job["spec"]["model"]["source"] = json!(format!("pvc://{CLAIM}/{}", model::FOLDER));
        job["spec"]["model"]["init"] = json!({ "kind": "Pretrained" });
        let apart = |role| (role, place::rather_apart(role));
        place::put(job, &[apart("engine"), apart("trainer")]);
    })?;
    run::start(stage, &job, 2).await?;
    let before = committed(stage, "drained").await?;
    let first = run::ready_attempt(&before).context("an attempt")?;
    let kept = pod_on(stage, "engine", NODE).await?;
    pod_on(stage, "engine", OTHER).await?;
    let serving = before.serving_name();
    let service: Service = stage.api().get(&serving).await?;
    let address = service.spec.and_then(|s| s.cluster_ip).context("the engines' address")?;
    let load = Load::start(stage, &serving, format!("{address}:{}", plan::build::ENGINE_PORT), 2, 8).await?;
    drain(OTHER, 90).await?;
    let after = run::attempt_after(stage, "drained", first, 90).await?;
    let both = async || {
        stage
            .until("both engines to answer", 90, async || {
                let engines = stage.pods("engine").await?;
                Ok((engines.iter().filter(|p| pod_facts::ready(p)).count() == 2).then_some(engines))
            })
            .await
    };
    let engines = both().await?;
    load.stop().await.flawless(50)?;
    ensure!(engines.iter().any(|p| p.uid() == kept.uid()), "the engine that nobody drained was replaced");
    ensure!(engines.iter().all(|p| pod_facts::node(p) == Some(NODE)), "an engine is on a node that was drained");
    let status = after.status.clone().unwrap_or_default();
    ensure!((status.counters.failures, status.attempts) == (0, first + 1), "{:?}", status.last_attempt);

    // Back, with an engine that is stuck there: whoever drains its node does not wait for it for ever.
    kubectl(&["uncordon", OTHER]).await?;
    let moved = engines.iter().find(|p| p.uid() != kept.uid()).context("the engine that moved")?;
    stage.api::<Pod>().delete(&moved.name_any(), &DeleteParams::default()).await?;
    gone(stage, moved, 60).await?;
    both().await?;
    let stuck = pod_on(stage, "engine", OTHER).await?;
    node::signal(&stuck, "thresh-rollout", "STOP")?;
    stage
        .until("the engine to be seen not to answer", 60, async || {
            let pods: Api<Pod> = stage.api();
            Ok(pods.get_opt(&stuck.name_any()).await?.is_none_or(|p| !pod_facts::ready(&p)).then_some(()))
        })
        .await?;
    drain(OTHER, 120).await.context("a node with an engine that is stuck")?;
    let step = run::step(&stage.rljob("drained").await?);
    run::steps_from(stage, "drained", step, 2).await.map(drop)
}
