//! What the operator goes through itself: killed at every write, replaced, upgraded, left alone, contradicted by hand.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use api::{Phase, RLJob, RolloutPool, ServingCluster, conditions as cond};
use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        apps::v1::StatefulSet,
        core::v1::{ConfigMap, Pod, Service},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, CustomResourceExt, Resource, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use plan::pod_facts;
use serde_json::{Value, json};

use crate::{
    attempts::Attempts,
    audit, golden,
    harness::Test,
    node,
    operator::{Process, crds},
    proxy::Proxy,
    run,
    stage::{CLAIM, Stage, bring_data},
    test,
};

/// All of them.
pub fn tests() -> Vec<Test> {
    vec![
        test!(killed_after_every_write_the_operator_still_converges, Own, 1, 420),
        test!(a_killed_leader_is_replaced_and_a_frozen_one_ends, Own, 1, 240),
        test!(an_upgraded_operator_restarts_nobody, Own, 1, 240),
        test!(a_definition_older_than_the_operator_stops_it_and_a_newer_one_does_not, Own, 1, 300),
        test!(objects_at_rest_are_not_written, Operator, 1, 300),
        test!(a_running_a_waiting_and_a_failed_run_look_as_on_record, Operator, 1, 240),
        test!(deleted_children_are_made_again, Operator, 1, 240),
        test!(children_edited_by_hand_are_mended, Operator, 1, 240),
        test!(a_run_made_anew_under_the_same_name_is_another_run, Operator, 1, 240),
    ]
}

/// Uid of every pod here, by name.
async fn pods(stage: &Stage) -> anyhow::Result<BTreeMap<String, String>> {
    let pods = stage.api::<Pod>().list(&ListParams::default()).await.context("list pods")?;
    Ok(pods.iter().filter(|p| !pod_facts::ended(p)).map(|p| (p.name_any(), p.uid().unwrap_or_default())).collect())
}

/// The same of those that must outlive a trainer.
async fn bystanders(stage: &Stage) -> anyhow::Result<BTreeMap<String, String>> {
    let mut all = pods(stage).await?;
    let trainers = stage.pods("trainer").await?;
    all.retain(|name, _| !trainers.iter().any(|p| &p.name_any() == name));
    Ok(all)
}

fn small(name: &str) -> anyhow::Result<RLJob> {
    run::manifest(name, |_| {})
}

/// A commit is there, and a whole attempt lives.
fn under_way(job: &RLJob) -> bool {
    let commits = job.status.as_ref().and_then(|s| s.progress.as_ref()).map_or(0, |p| p.commits);
    commits > 0 && run::ready_attempt(job).is_some()
}

/// Applies a run and waits until all of it is under way.
async fn begun(stage: &Stage, job: &RLJob) -> anyhow::Result<(RLJob, u64)> {
    let name = job.name_any();
    run::start(stage, job, 2).await?;
    let job = stage
        .until("a commit of a whole attempt", 60, async || {
            let job = stage.rljob(&name).await?;
            Ok(under_way(&job).then_some(job))
        })
        .await?;
    let attempt = run::ready_attempt(&job).context("an attempt")?;
    Ok((job, attempt))
}

/// Starts an operator again and again until the run is as wanted. Each is killed at its first write, or after one, two or three
/// of them and before it hears that the last one was done: what it means to do is written before it is done, so one write alone
/// gets nowhere. Returns how many were killed.
async fn few_writes_a_life(
    stage: &Stage,
    proxy: &Proxy,
    what: &str,
    wanted: impl Fn(&RLJob) -> bool,
) -> anyhow::Result<usize> {
    let kubeconfig = proxy.kubeconfig();
    for life in 0.. {
        proxy.allow(Some([1, 2, 3, 0].into_iter().cycle().nth(life).unwrap_or(1)));
        let environment = [("KUBECONFIG", kubeconfig.as_str()), ("THRESH_LEADER_ELECTION", "false")];
        let mut process = Process::spawn("killed", &[&stage.namespace], &environment)?;
        let ended = async {
            while !process.ended() {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        };
        let reached = stage.until(what, 120, async || {
            let jobs: Api<RLJob> = stage.api();
            let job = jobs.list(&ListParams::default()).await?.items.pop().context("the run")?;
            Ok(wanted(&job).then_some(()))
        });
        tokio::select! {
            () = proxy.spent() => {}
            () = ended => bail!("an operator ended by itself"),
            result = reached => {
                result.with_context(|| format!("{life} operators were killed so far"))?;
                return Ok(life);
            }
        }
        process.kill();
    }
    bail!("no life is left")
}

async fn killed_after_every_write_the_operator_still_converges(stage: &Stage) -> anyhow::Result<()> {
    bring_data()?;
    crds(&stage.client).await?;
    let proxy = Proxy::start(&stage.client, "killed").await?;
    let attempts = Attempts::watch(stage);
    stage.apply(&small("killed")?).await?;
    let mut lives =
        few_writes_a_life(stage, &proxy, "the first steps", |job| run::step(job) >= 3 && under_way(job)).await?;
    let others = bystanders(stage).await?;
    ensure!(others.len() == 5, "two engines, two workers and a conductor, not {others:?}");
    stage.patch::<RLJob>("killed", json!({"spec": {"trainer": {"parallelism": {"tp": 2, "dp": 1}}}})).await?;
    lives += few_writes_a_life(stage, &proxy, "the edited trainer", |job| {
        run::ready_attempt(job) == Some(2) && run::condition(job, cond::UP_TO_DATE) == "True/RevisionRunning"
    })
    .await?;
    let ranks = stage.pods("trainer").await?;
    let victim = ranks.iter().find(|p| pod_facts::attempt(&p.metadata) == 2).context("a rank of attempt 2")?;
    node::signal(victim, "thresh-trainer", "KILL")?;
    lives += few_writes_a_life(stage, &proxy, "the trainer after a failure", |job| run::ready_attempt(job) == Some(3))
        .await?;
    // In peace again: nothing is left to do over.
    proxy.allow(None);
    let environment = [("KUBECONFIG", proxy.kubeconfig())];
    let environment: Vec<_> = environment.iter().map(|(k, v)| (*k, v.as_str())).collect();
    let process = Process::start_with("killed", &[&stage.namespace], &environment).await?;
    let step = run::step(&stage.rljob("killed").await?);
    let job = run::steps_from(stage, "killed", step, 2).await?;
    stage
        .always("it stays as it is", 4, async || {
            ensure!(run::ready_attempt(&stage.rljob("killed").await?) == Some(3), "it does not");
            Ok(())
        })
        .await?;
    process.stop();
    let status = job.status.clone().unwrap_or_default();
    let c = status.counters;
    ensure!(status.attempts == 3, "{} attempts", status.attempts);
    ensure!((c.failures, c.spec_restarts, c.disruptions, c.requested) == (1, 1, 0, 0), "{c:?}");
    ensure!(attempts.made()?.into_iter().eq(1..=3), "attempts {:?}", attempts.made()?);
    ensure!(bystanders(stage).await? == others, "somebody else was replaced: {others:?}");
    // Not a figure but a check of the test: a run is made of many writes.
    ensure!(lives >= 20, "only {lives} operators were killed");
    println!("        {lives} operators were killed, {} writes", proxy.writes());
    Ok(())
}

async fn leads(process: &Process) -> bool {
    // One that does not answer leads nobody.
    process.metric("thresh_leader").await.is_ok_and(|value| value == Some(1.0))
}

/// An edit made right now is acted on by whoever is left; how long that took.
async fn acted_on(stage: &Stage, name: &str, attempt: u64, micro: u32) -> anyhow::Result<Duration> {
    let begun = Instant::now();
    stage.patch::<RLJob>(name, json!({"spec": {"trainer": {"maxTokensPerMicroBatch": micro}}})).await?;
    stage
        .until("the edit to be acted on", 60, async || {
            let job = stage.rljob(name).await?;
            let observed = job.status.as_ref().and_then(|s| s.observed_generation) == job.metadata.generation;
            Ok(observed.then_some(()))
        })
        .await?;
    let took = begun.elapsed();
    run::attempt_after(stage, name, attempt, 90).await?;
    Ok(took)
}

async fn a_killed_leader_is_replaced_and_a_frozen_one_ends(stage: &Stage) -> anyhow::Result<()> {
    bring_data()?;
    crds(&stage.client).await?;
    // The Lease lies with the test: an operator that is installed here has one of its own.
    let lease = [("POD_NAMESPACE", stage.namespace.as_str())];
    let attempts = Attempts::watch(stage);
    let first = Process::spawn("leader-1", &[&stage.namespace], &lease)?;
    stage.until("the first to lead", 40, async || Ok(leads(&first).await.then_some(()))).await?;
    let second = Process::spawn("leader-2", &[&stage.namespace], &lease)?;
    second.ready(30).await?;
    begun(stage, &small("leader")?).await?;
    ensure!(leads(&first).await && !leads(&second).await, "two lead, or nobody");
    first.kill();
    let took = acted_on(stage, "leader", 1, 2048).await?;
    ensure!(took < Duration::from_secs(30), "it took {took:?} until somebody led again");
    println!("        a killed leader: the next edit is seen after {:.1} s", took.as_secs_f64());

    // Frozen while it leads, it wakes up to find that somebody else does, and ends; what it wanted to do is not done.
    let mut third = Process::spawn("leader-3", &[&stage.namespace], &lease)?;
    third.ready(30).await?;
    let mut second = second;
    node::kill(second.pid(), "STOP")?;
    let took = acted_on(stage, "leader", 2, 1024).await;
    node::kill(second.pid(), "CONT")?;
    let took = took?;
    ensure!(took < Duration::from_secs(30), "it took {took:?} until somebody led again");
    let mut ended = false;
    for _ in 0..150 {
        ended = ended || second.ended();
        tokio::time::sleep(Duration::from_millis(100)).await;
        if ended {
            break;
        }
    }
    ensure!(ended, "it still acts although it does not lead");
    ensure!(!third.ended() && leads(&third).await, "the third does not lead");
    let made = attempts.made()?;
    ensure!(made.into_iter().eq(1..=3), "attempts {:?}", attempts.made()?);
    // Asked to end it gives the Lease back, so that nobody waits.
    third.stop();
    let fourth = Process::spawn("leader-4", &[&stage.namespace], &lease)?;
    let begun = Instant::now();
    stage.until("the fourth to lead", 40, async || Ok(leads(&fourth).await.then_some(()))).await?;
    ensure!(begun.elapsed() < Duration::from_secs(12), "the Lease was not given back: {:?}", begun.elapsed());
    fourth.stop();
    Ok(())
}

async fn an_upgraded_operator_restarts_nobody(stage: &Stage) -> anyhow::Result<()> {
    bring_data()?;
    crds(&stage.client).await?;
    let old = Process::start("upgrade-old", &[&stage.namespace]).await?;
    let (before, first) = begun(stage, &small("upgrade")?).await?;
    let all = pods(stage).await?;
    old.stop();
    let images = [
        ("THRESH_ROLLOUT_IMAGE", "thresh.local/rollout:of-another-release"),
        ("THRESH_TRAINER_IMAGE", "thresh.local/trainer:of-another-release"),
    ];
    let new = Process::start_with("upgrade-new", &[&stage.namespace], &images).await?;
    // Every object is looked at, also because something about it has changed.
    let touch = json!({"metadata": {"labels": {"looked": "at"}}});
    stage.patch::<RLJob>("upgrade", touch.clone()).await?;
    let serving = before.serving_name();
    stage.patch::<ServingCluster>(&serving, touch.clone()).await?;
    stage.patch::<RolloutPool>(&before.rollout_name(), touch).await?;
    let step = run::step(&stage.rljob("upgrade").await?);
    run::steps_from(stage, "upgrade", step, 1).await?;
    stage
        .always("nobody restarts", 6, async || {
            let now = pods(stage).await?;
            ensure!(now == all, "{all:?} were there, {now:?} are");
            Ok(())
        })
        .await?;
    // What the run began with stays what it runs with.
    stage.patch::<RLJob>("upgrade", json!({"spec": {"trainer": {"maxTokensPerMicroBatch": 1024}}})).await?;
    run::attempt_after(stage, "upgrade", first, 90).await?;
    for pod in stage.pods("trainer").await? {
        let images: Vec<_> = pod.spec.iter().flat_map(|s| &s.containers).filter_map(|c| c.image.clone()).collect();
        ensure!(images.iter().all(|i| i == crate::operator::IMAGES[2]), "{} runs {images:?}", pod.name_any());
    }
    new.stop();
    Ok(())
}

/// The definition of RLJobs with its schema changed.
async fn define(stage: &Stage, edit: impl FnOnce(&mut Value)) -> anyhow::Result<()> {
    let api: Api<CustomResourceDefinition> = Api::all(stage.client.clone());
    let mut crd = api::definition::<RLJob>();
    edit(crd.pointer_mut("/spec/versions/0/schema/openAPIV3Schema/properties").context("a schema")?);
    api.patch(RLJob::crd_name(), &PatchParams::apply("e2e").force(), &Patch::Apply(&crd)).await?;
    Ok(())
}

async fn a_definition_older_than_the_operator_stops_it_and_a_newer_one_does_not(stage: &Stage) -> anyhow::Result<()> {
    stage.alone().await?;
    bring_data()?;
    crds(&stage.client).await?;
    let operator = Process::start("schema", &[&stage.namespace]).await?;
    let (_, first) = begun(stage, &small("schema")?).await?;
    let all = pods(stage).await?;
    let result = old_and_new(stage, first, &all).await;
    // Others come after us.
    crds(&stage.client).await?;
    operator.stop();
    result
}

async fn old_and_new(stage: &Stage, first: u64, all: &BTreeMap<String, String>) -> anyhow::Result<()> {
    define(stage, |schema| {
        if let Some(Value::Object(trainer)) = schema.pointer_mut("/spec/properties/trainer/properties") {
            trainer.remove("failurePolicy");
        }
    })
    .await?;
    let accepted = async |reason: &'static str| {
        stage
            .until(&format!("SchemaOutdated is {reason}"), 70, async || {
                let job = stage.rljob("schema").await?;
                let conditions = job.status.map(|s| s.conditions).unwrap_or_default();
                let found = cond::get(&conditions, cond::ACCEPTED).is_some_and(|c| c.reason == reason);
                Ok(found.then_some(()))
            })
            .await
    };
    accepted("SchemaOutdated").await?;
    let others = stage.api::<ServingCluster>().list(&ListParams::default()).await?;
    for serving in &others {
        let list = serving.status.as_ref().map(|s| s.conditions.clone()).unwrap_or_default();
        let said = cond::get(&list, cond::ACCEPTED).map(|c| c.reason.clone());
        ensure!(said.as_deref() == Some("SchemaOutdated"), "ServingCluster {}: {said:?}", serving.name_any());
    }
    let log = audit::mark()?;
    // It would act on each of these: an edit, a child that is gone.
    stage.patch::<RLJob>("schema", json!({"spec": {"trainer": {"maxTokensPerMicroBatch": 2048}}})).await?;
    stage.api::<Service>().delete("schema-trainer", &DeleteParams::default()).await?;
    stage
        .always("it touches nothing", 12, async || {
            let now = pods(stage).await?;
            ensure!(&now == all, "{all:?} were there, {now:?} are");
            Ok(())
        })
        .await?;
    let mut written = audit::writes(&log, &stage.namespace)?;
    written.retain(|w| w.uri.contains("fieldManager=thresh-operator") && !w.uri.contains("thresh-operator%2Fguard"));
    ensure!(written.is_empty(), "it wrote {written:?}");
    ensure!(stage.api::<Service>().get_opt("schema-trainer").await?.is_none(), "it made the Service again");

    define(stage, |_| {}).await?;
    accepted("Valid").await?;
    run::attempt_after(stage, "schema", first, 90).await?;
    ensure!(stage.api::<Service>().get_opt("schema-trainer").await?.is_some(), "the Service is not back");

    let all = pods(stage).await?;
    define(stage, |schema| {
        for part in ["spec", "status"] {
            schema[part]["properties"]["ofAnotherRelease"] = json!({"type": "string"});
        }
    })
    .await?;
    let step = run::step(&stage.rljob("schema").await?);
    run::steps_from(stage, "schema", step, 2).await?;
    stage
        .always("a newer definition restarts nobody", 7, async || {
            let now = pods(stage).await?;
            ensure!(now == all, "{all:?} were there, {now:?} are");
            Ok(())
        })
        .await?;
    stage.patch::<RLJob>("schema", json!({"spec": {"trainer": {"maxTokensPerMicroBatch": 512}}})).await?;
    run::attempt_after(stage, "schema", first + 1, 90).await.map(drop)
}

/// Engines that nobody writes to: a run's own, standing alone.
fn engines(name: &str) -> anyhow::Result<ServingCluster> {
    let mut job = small("any")?;
    job.metadata.uid = Some("any".into());
    let mut serving = plan::build::serving_cluster(&job, None).context("a template")?;
    serving.metadata = kube::api::ObjectMeta { name: Some(name.into()), ..Default::default() };
    serving.spec.replicas = 1;
    Ok(serving)
}

async fn objects_at_rest_are_not_written(stage: &Stage) -> anyhow::Result<()> {
    let suspended = run::manifest("asleep", |job| {
        job["spec"]["suspend"] = json!(true);
        job["spec"]["serving"]["template"]["spec"]["replicas"] = json!(1);
        job["spec"]["rollout"]["template"]["spec"]["replicas"] = json!(1);
    })?;
    let complete = run::manifest("done", |job| {
        job["spec"]["totalSteps"] = json!(3);
        job["spec"]["serving"]["template"]["spec"]["replicas"] = json!(1);
    })?;
    let idle = engines("idle")?;
    stage.apply(&complete).await?;
    stage.apply(&suspended).await?;
    stage.apply(&idle).await?;
    stage
        .until("all to be at rest", 150, async || {
            let (asleep, done) = (stage.rljob("asleep").await?, stage.rljob("done").await?);
            let idle = stage.serving("idle").await?;
            let available = idle.status.is_some_and(|s| cond::is_true(&s.conditions, cond::AVAILABLE));
            let serving = run::condition(&asleep, cond::SERVING_READY) == "True/AboveMinimum";
            let phases = [done, asleep].map(|job| job.status.map(|s| s.phase).unwrap_or_default());
            Ok((available && serving && phases == [Phase::Complete, Phase::Suspended]).then_some(()))
        })
        .await?;
    // The last pods end, the last words are written.
    tokio::time::sleep(Duration::from_secs(8)).await;
    for name in ["asleep", "done"] {
        let list = stage.rljob(name).await?.status.map(|s| s.conditions).unwrap_or_default();
        let text = golden::line(stage, "rljob", name, &[])? + &golden::conditions(&list);
        golden::compare(&format!("rljob-{name}"), &text)?;
    }
    let list = stage.serving("idle").await?.status.map(|s| s.conditions).unwrap_or_default();
    let text = golden::line(stage, "servingcluster", "idle", &[])? + &golden::conditions(&list);
    golden::compare("servingcluster-idle", &text)?;

    let log = audit::mark()?;
    tokio::time::sleep(Duration::from_secs(65)).await;
    let mut by_object = BTreeMap::<String, usize>::new();
    for write in audit::writes(&log, &stage.namespace)? {
        *by_object.entry(format!("{} {} {} by {}", write.verb, write.resource, write.name, write.user)).or_default() +=
            1;
    }
    ensure!(by_object.is_empty(), "written in 65 s at rest: {by_object:?}");

    // The same manifests again: they change nothing, and nobody writes because of them.
    let versions = async || -> anyhow::Result<Vec<_>> {
        let of = |meta: &kube::api::ObjectMeta| (meta.generation, meta.resource_version.clone());
        let (asleep, done) = (stage.rljob("asleep").await?, stage.rljob("done").await?);
        Ok(vec![of(&asleep.metadata), of(&done.metadata), of(&stage.serving("idle").await?.metadata)])
    };
    let before = versions().await?;
    let log = audit::mark()?;
    for _ in 0..3 {
        stage.apply(&complete).await?;
        stage.apply(&suspended).await?;
        stage.apply(&idle).await?;
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    ensure!(versions().await? == before, "{before:?} became {:?}", versions().await?);
    let mut written = audit::writes(&log, &stage.namespace)?;
    written.retain(|write| !write.uri.contains("fieldManager=e2e"));
    ensure!(written.is_empty(), "{written:?}");
    Ok(())
}

async fn a_running_a_waiting_and_a_failed_run_look_as_on_record(stage: &Stage) -> anyhow::Result<()> {
    let job = run::manifest("looks", |job| {
        job["spec"]["serving"]["template"]["spec"]["replicas"] = json!(1);
        job["spec"]["rollout"]["template"]["spec"]["replicas"] = json!(1);
    })?;
    run::start(stage, &job, 3).await?;
    let look = async |golden_name: &str, vary: &[&str]| {
        let list = stage.rljob("looks").await?.status.map(|s| s.conditions).unwrap_or_default();
        let text = golden::line(stage, "rljob", "looks", vary)? + &golden::conditions(&list);
        golden::compare(golden_name, &text)
    };
    stage
        .until("all to be well", 30, async || {
            Ok((run::condition(&stage.rljob("looks").await?, cond::PROGRESSING) == "True/StepAdvanced").then_some(()))
        })
        .await?;
    look("rljob-running", &["STEP", "VERSION"]).await?;
    let broken = json!({"containers": [{"name": "trainer", "command": ["thresh-trainer", "--no-such-flag"]}]});
    let policy = json!({"backoffLimit": 1, "baseDelaySeconds": 12, "maxDelaySeconds": 12});
    stage
        .patch::<RLJob>(
            "looks",
            json!({"spec": {"trainer": {"podTemplate": {"spec": broken}, "failurePolicy": policy}}}),
        )
        .await?;
    stage
        .until("it to back off after a failure", 90, async || {
            let job = stage.rljob("looks").await?;
            let failures = job.status.as_ref().map_or(0, |s| s.counters.failures);
            let waits = run::condition(&job, cond::TRAINER_READY) == "False/BackingOff";
            Ok((failures == 1 && waits).then_some(()))
        })
        .await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    look("rljob-backing-off", &["STEP", "VERSION"]).await?;
    stage
        .until("it to fail", 90, async || {
            let job = stage.rljob("looks").await?;
            Ok((run::condition(&job, cond::FAILED) == "True/BackoffLimitExceeded").then_some(()))
        })
        .await?;
    tokio::time::sleep(Duration::from_secs(6)).await;
    look("rljob-failed", &["STEP", "VERSION"]).await
}

/// Deletes an object and waits for another of its name.
async fn comes_back<K>(stage: &Stage, name: &str) -> anyhow::Result<()>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned,
{
    let api: Api<K> = stage.api();
    let uid = api.get(name).await.with_context(|| format!("{} {name}", K::kind(&())))?.uid();
    api.delete(name, &DeleteParams::background()).await?;
    stage
        .until(&format!("{} {name} to be made again", K::kind(&())), 30, async || {
            Ok(api.get_opt(name).await?.is_some_and(|there| there.uid() != uid).then_some(()))
        })
        .await
}

async fn deleted_children_are_made_again(stage: &Stage) -> anyhow::Result<()> {
    let (before, first) = begun(stage, &small("orphan")?).await?;
    let (serving, pool) = (before.serving_name(), before.rollout_name());
    let all = pods(stage).await?;
    comes_back::<Service>(stage, "orphan-trainer").await?;
    comes_back::<Service>(stage, "orphan-conductor").await?;
    comes_back::<ConfigMap>(stage, "orphan-conductor").await?;
    comes_back::<Service>(stage, &plan::build::engines_service(&serving)).await?;
    comes_back::<Service>(stage, &plan::build::workers_service(&pool)).await?;
    let step = run::step(&stage.rljob("orphan").await?);
    run::steps_from(stage, "orphan", step, 2).await?;
    ensure!(pods(stage).await? == all, "names and configuration came back, and pods were replaced");
    // With a set go its pods; what it is for comes back.
    comes_back::<StatefulSet>(stage, "orphan-conductor").await?;
    comes_back::<StatefulSet>(stage, &pool).await?;
    let step = run::step(&stage.rljob("orphan").await?);
    let after = run::steps_from(stage, "orphan", step, 2).await?;
    let status = after.status.clone().unwrap_or_default();
    ensure!(status.counters.failures == 0, "{:?}", status.counters);
    // A trainer without its Job has lost a pod by hand: one new attempt.
    let attempt = run::ready_attempt(&after).context("an attempt")?;
    ensure!(attempt >= first, "attempt {attempt} after {first}");
    let name = plan::build::job_name("orphan", attempt);
    stage.api::<k8s_openapi::api::batch::v1::Job>().delete(&name, &DeleteParams::background()).await?;
    let after = run::attempt_after(stage, "orphan", attempt, 90).await?;
    ensure!(run::ready_attempt(&after) == Some(attempt + 1), "{:?}", after.status.map(|s| s.attempts));
    ensure!(stage.pods("engine").await?.iter().all(|p| all.contains_key(&p.name_any())), "engines were replaced");
    Ok(())
}

/// Waits until a value of an object is as it was.
async fn mended<K>(stage: &Stage, name: &str, patch: Value, pointer: &str) -> anyhow::Result<()>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + serde::Serialize
        + serde::de::DeserializeOwned,
{
    let what = format!("{pointer} of {} {name}", K::kind(&()));
    let value = async || -> anyhow::Result<Option<Value>> {
        Ok(serde_json::to_value(stage.api::<K>().get(name).await?)?.pointer(pointer).cloned())
    };
    let before = value().await?;
    let edited = serde_json::to_value(stage.patch::<K>(name, patch).await?)?;
    ensure!(edited.pointer(pointer) != before.as_ref(), "{what} was not changed");
    stage.until(&format!("{what} to be mended"), 30, async || Ok((value().await? == before).then_some(()))).await
}

async fn children_edited_by_hand_are_mended(stage: &Stage) -> anyhow::Result<()> {
    let (before, _) = begun(stage, &small("hands")?).await?;
    let serving = before.serving_name();
    let service = plan::build::engines_service(&serving);
    mended::<Service>(
        stage,
        "hands-trainer",
        json!({"spec": {"selector": {"thresh.dev/role": "nobody"}}}),
        "/spec/selector",
    )
    .await?;
    mended::<Service>(
        stage,
        &service,
        json!({"spec": {"publishNotReadyAddresses": false}}),
        "/spec/publishNotReadyAddresses",
    )
    .await?;
    mended::<ConfigMap>(stage, "hands-conductor", json!({"data": {"rljob.json": "{}"}}), "/data/rljob.json").await?;
    mended::<StatefulSet>(stage, "hands-conductor", json!({"spec": {"replicas": 0}}), "/spec/replicas").await?;
    let template = json!({"spec": {"template": {"spec": {"terminationGracePeriodSeconds": 1}}}});
    mended::<StatefulSet>(stage, &serving, template, "/spec/template/spec/terminationGracePeriodSeconds").await?;
    // What is not ours to say stays.
    stage.patch::<Service>("hands-trainer", json!({"metadata": {"labels": {"mine": "yes"}}})).await?;
    let step = run::step(&stage.rljob("hands").await?);
    run::steps_from(stage, "hands", step, 2).await?;
    let labels = stage.api::<Service>().get("hands-trainer").await?.metadata.labels.unwrap_or_default();
    ensure!(labels.get("mine").is_some_and(|v| v == "yes"), "a user's own label was taken away");
    Ok(())
}

async fn a_run_made_anew_under_the_same_name_is_another_run(stage: &Stage) -> anyhow::Result<()> {
    let job = small("again")?;
    let (first, _) = begun(stage, &job).await?;
    let uid = first.uid().context("a uid")?;
    let old = pods(stage).await?;
    let jobs: Api<RLJob> = stage.api();
    jobs.delete("again", &DeleteParams::background()).await?;
    // At once, and again until the old one is gone: `kubectl replace --force` does no better.
    let second = stage
        .until("the name to be free", 60, async || match jobs.create(&Default::default(), &job).await {
            Ok(made) => Ok(Some(made)),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(None),
            Err(error) => Err(error.into()),
        })
        .await?;
    ensure!(second.uid().is_some_and(|new| new != uid), "it is the old one");
    let after = run::steps_from(stage, "again", 0, 3).await?;
    let status = after.status.clone().unwrap_or_default();
    ensure!(
        status.attempts == 1 && status.counters.failures == 0,
        "{} attempts, {:?}",
        status.attempts,
        status.counters
    );
    let now = pods(stage).await?;
    ensure!(now.values().all(|uid| !old.values().any(|o| o == uid)), "pods of the old run serve the new one");
    for pod in stage.api::<Pod>().list(&ListParams::default()).await? {
        let of = pod.labels().get(api::labels::RLJOB_UID).cloned();
        ensure!(of.is_none() || of == after.uid(), "{} is of the old run", pod.name_any());
    }
    // The claim in the volume is another one, too: the first run's folder is not gone on with.
    let runs = crate::stage::volume().join("runs");
    ensure!(
        runs.join(&uid).is_dir() && runs.join(after.uid().unwrap_or_default()).is_dir(),
        "one folder each ({CLAIM})"
    );
    Ok(())
}
