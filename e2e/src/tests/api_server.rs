//! The operator against an API server alone: what it refuses, what is whose, and what happens when it does not behave.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use api::{Problem, RLJob, RolloutPool, ServingCluster, conditions as cond};
use futures::FutureExt;
use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        apps::v1::StatefulSet,
        core::v1::{ConfigMap, Service},
    },
};
use kube::{
    Api, Client, CustomResourceExt, Resource, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
    core::{GroupVersionKind, discovery::ApiResource},
};
use plan::validate::{validate, validate_pool, validate_serving};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{
    harness::Test,
    operator::Process,
    proxy::{Act, Asked, Proxy},
    run,
    stage::{Stage, repository},
    test,
};

// What the laptop's checks are tested with.
#[path = "../../../crates/plan/tests/cases/mod.rs"]
#[allow(clippy::unwrap_used, clippy::panic)]
mod cases;

/// All of them.
pub fn tests() -> Vec<Test> {
    vec![
        test!(the_api_server_refuses_exactly_what_validate_refuses, Bare, 0, 240),
        test!(bad_manifests_are_refused_by_the_api_server_but_for_what_it_cannot_know, Bare, 0, 60),
        test!(a_childs_fields_are_whose_they_are, Bare, 0, 120),
        test!(a_status_that_somebody_wrote_meanwhile_is_decided_again, Bare, 0, 120),
        test!(a_refused_write_is_a_condition_and_is_tried_again, Bare, 0, 120),
        test!(an_expired_watch_begins_anew_and_misses_nothing, Bare, 0, 120),
        test!(an_api_server_that_is_busy_silent_or_away_costs_only_time, Bare, 0, 240),
        test!(an_operator_without_its_definitions_says_so_waits_and_ends_when_told, Bare, 0, 120),
    ]
}

/// Messages of every CEL rule in a definition.
fn messages(crd: &Value, out: &mut BTreeSet<String>) {
    match crd {
        Value::Object(map) => {
            let rules = map.get("x-kubernetes-validations").and_then(Value::as_array);
            out.extend(rules.into_iter().flatten().filter_map(|rule| rule["message"].as_str().map(str::to_owned)));
            map.values().for_each(|v| messages(v, out));
        }
        Value::Array(list) => list.iter().for_each(|v| messages(v, out)),
        _ => {}
    }
}

/// What the API server said: nothing, or the message of each cause.
type Said = Option<Vec<String>>;

fn said<T>(answer: kube::Result<T>) -> anyhow::Result<Said> {
    match answer {
        Ok(_) => Ok(None),
        Err(kube::Error::Api(status)) if status.code == 422 => {
            let causes = status.details.as_ref().map(|d| d.causes.clone()).unwrap_or_default();
            Ok(Some(causes.into_iter().map(|cause| cause.message).collect()))
        }
        Err(error) => Err(error.into()),
    }
}

fn bare_name<K: Resource>(object: &mut K, namespace: &str, name: Option<&str>) {
    let meta = object.meta_mut();
    *meta = kube::api::ObjectMeta {
        name: name.map(str::to_owned).or_else(|| meta.name.clone()),
        namespace: Some(namespace.to_owned()),
        ..Default::default()
    };
}

/// Compares the API server's answer with `validate`'s.
fn compare(
    rules: &BTreeSet<String>,
    met: &mut BTreeSet<String>,
    what: &str,
    said: Said,
    problems: &[Problem],
) -> Option<String> {
    let ours: Vec<&str> = problems.iter().map(|p| p.rule.as_str()).filter(|r| rules.contains(*r)).collect();
    let theirs = said.unwrap_or_default();
    if theirs.is_empty() != problems.is_empty() {
        return Some(format!("{what}: the API server says {theirs:?}, validate says {problems:?}"));
    }
    // A rule's words can be the end of another's.
    let rule_of = |t: &String| rules.iter().filter(|r| t.ends_with(r.as_str())).max_by_key(|r| r.len());
    let by_rule: BTreeSet<&String> = theirs.iter().filter_map(rule_of).collect();
    met.extend(by_rule.iter().map(|r| (*r).clone()));
    // Where a value is of no form at all, the rules are not asked.
    if theirs.iter().any(|t| t.contains("some validation rules were not checked")) {
        return None;
    }
    let ours: BTreeSet<&str> = ours.into_iter().collect();
    let theirs: BTreeSet<&str> = by_rule.into_iter().map(String::as_str).collect();
    (ours != theirs).then(|| format!("{what}: the API server's rules {theirs:?}, validate's {ours:?}"))
}

struct Compared {
    differences: Vec<String>,
    asked: usize,
    unmet: Vec<String>,
}

async fn every_case<K>(
    stage: &Stage,
    base: K,
    list: &[(&str, &str, &str)],
    validate: impl Fn(Option<&K>, &K) -> Vec<Problem>,
) -> anyhow::Result<Compared>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + CustomResourceExt
        + Serialize
        + DeserializeOwned
        + Clone
        + Debug,
{
    let api: Api<K> = stage.api();
    let mut rules = BTreeSet::new();
    messages(&serde_json::to_value(K::crd())?, &mut rules);
    let (mut met, mut differences, mut asked) = (BTreeSet::new(), Vec::new(), 0);
    let strict = PostParams { dry_run: true, ..PostParams::default() };
    let mut base = base;
    bare_name(&mut base, &stage.namespace, None);
    let stored = api.create(&PostParams::default(), &base).await.context("create the base")?;
    for (n, (what, pointer, value)) in list.iter().enumerate() {
        let mut new: K = cases::patched(&base, pointer, value);
        // Its own name is part of some cases; where it is not, it must not be taken.
        let names = *pointer == "/metadata/name";
        bare_name(&mut new, &stage.namespace, (!names).then(|| format!("case-{n}")).as_deref());
        let answer = said(api.create(&strict, &new).await).with_context(|| format!("create: {what}"))?;
        differences.extend(compare(&rules, &mut met, &format!("create: {what}"), answer, &validate(None, &new)));
        asked += 1;
        if names {
            continue;
        }
        let mut edited = new.clone();
        edited.meta_mut().name = base.meta().name.clone();
        edited.meta_mut().resource_version = stored.resource_version();
        let answer = api.replace(&stored.name_any(), &strict, &edited).await;
        let answer = said(answer).with_context(|| format!("update: {what}"))?;
        let problems = validate(Some(&base), &edited);
        differences.extend(compare(&rules, &mut met, &format!("update: {what}"), answer, &problems));
        asked += 1;
        if !validate(None, &new).is_empty() {
            continue;
        }
        // The way back, from one that was really made.
        let made = api.create(&PostParams::default(), &new).await.with_context(|| format!("make: {what}"))?;
        let mut back = base.clone();
        back.meta_mut().name = Some(made.name_any());
        back.meta_mut().resource_version = made.resource_version();
        let answer =
            said(api.replace(&made.name_any(), &strict, &back).await).with_context(|| format!("undo: {what}"))?;
        differences.extend(compare(&rules, &mut met, &format!("undo: {what}"), answer, &validate(Some(&new), &back)));
        asked += 1;
        api.delete(&made.name_any(), &DeleteParams::default()).await?;
    }
    let unmet = rules.difference(&met).cloned().collect();
    api.delete(&stored.name_any(), &DeleteParams::default()).await?;
    Ok(Compared { differences, asked, unmet })
}

async fn the_api_server_refuses_exactly_what_validate_refuses(stage: &Stage) -> anyhow::Result<()> {
    let all = [
        every_case::<RLJob>(stage, cases::job(), cases::JOB, validate).await?,
        every_case::<ServingCluster>(stage, cases::cluster(), cases::CLUSTER, validate_serving).await?,
        every_case::<RolloutPool>(stage, cases::pool(), cases::POOL, validate_pool).await?,
    ];
    let asked: usize = all.iter().map(|one| one.asked).sum();
    let differences: Vec<_> = all.iter().flat_map(|one| one.differences.clone()).collect();
    ensure!(differences.is_empty(), "{} of {asked} differ:\n{}", differences.len(), differences.join("\n"));
    // `vendor`, `reward` and `algorithm.name` have one value so far: their rules cannot be broken yet.
    let unbreakable =
        |m: &&String| m.contains("vendor") || m.contains("reward is immutable") || m.contains("algorithm.name");
    let claimed = a_claimed_model_stays(stage).await?;
    let unmet: Vec<_> =
        all.iter().flat_map(|one| &one.unmet).filter(|m| !unbreakable(m) && !claimed.ends_with(m.as_str())).collect();
    ensure!(unmet.is_empty(), "no case was refused by {unmet:?}");
    println!("        {asked} objects were judged by both");
    Ok(())
}

/// The one rule that reads a status. Returns the API server's words.
async fn a_claimed_model_stays(stage: &Stage) -> anyhow::Result<String> {
    let api: Api<ServingCluster> = stage.api();
    let mut cluster = cases::cluster();
    bare_name(&mut cluster, &stage.namespace, Some("claimed"));
    let made = api.create(&PostParams::default(), &cluster).await?;
    let mut edited = cases::patched(&made, "/spec/model/source", "\"pvc://thresh-data/other\"");
    let strict = PostParams { dry_run: true, ..PostParams::default() };
    ensure!(said(api.replace("claimed", &strict, &edited).await)?.is_none(), "refused before anybody claims it");
    ensure!(validate_serving(Some(&made), &edited).is_empty(), "validate refuses it before anybody claims it");
    let mut status = made.status.clone().unwrap_or_default();
    status.weights.writer = Some(api::Writer { rljob: "run".into(), uid: "uid".into() });
    let body = Patch::Merge(json!({ "status": status }));
    let held = api.patch_status("claimed", &PatchParams::default(), &body).await?;
    edited.metadata.resource_version = held.resource_version();
    let theirs =
        said(api.replace("claimed", &strict, &edited).await)?.context("the model of a claimed one was edited")?;
    let ours = validate_serving(Some(&held), &edited);
    ensure!(theirs.len() == 1 && ours.len() == 1 && theirs[0].ends_with(&ours[0].rule), "{theirs:?}, {ours:?}");
    api.delete("claimed", &DeleteParams::default()).await?;
    Ok(theirs[0].clone())
}

/// Bad manifests that only we can refuse, and why.
const ONLY_OURS: &[(&str, &str)] = &[
    ("28-pod-template", "a pod template is any object to the API server"),
    ("31-same-name-twice", "each is good by itself"),
    ("32-no-value", "a field without a value is a field that is not there"),
];

async fn bad_manifests_are_refused_by_the_api_server_but_for_what_it_cannot_know(stage: &Stage) -> anyhow::Result<()> {
    let folder = repository().join("crates/plan/tests/bad");
    let mut taken = BTreeSet::new();
    let mut asked = 0;
    for entry in std::fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path)?;
        let Ok(documents) = serde_saphyr::from_multiple::<Value>(&text) else { continue };
        let mut refused = documents.is_empty();
        for mut document in documents {
            let (version, kind) = (document["apiVersion"].as_str(), document["kind"].as_str());
            let known = ["RLJob", "ServingCluster", "RolloutPool"];
            let (Some(api::API_VERSION), Some(kind)) = (version, kind.filter(|k| known.contains(k))) else {
                refused = true;
                continue;
            };
            let kind = kind.to_owned();
            document["metadata"]["namespace"] = json!(stage.namespace);
            let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(api::GROUP, api::VERSION, &kind));
            let uri = Api::<DynamicObject>::namespaced_with(stage.client.clone(), &stage.namespace, &resource);
            let request = kube::core::Request::new(uri.resource_url())
                .create(&PostParams { dry_run: true, field_manager: None }, serde_json::to_vec(&document)?)?;
            let (mut parts, body) = request.into_parts();
            parts.uri = format!("{}&fieldValidation=Strict", parts.uri).parse()?;
            let answer = stage.client.request::<Value>(axum::http::Request::from_parts(parts, body)).await;
            refused |= answer.is_err();
            asked += 1;
        }
        if !refused {
            taken.insert(name);
        }
    }
    let known: BTreeSet<_> = ONLY_OURS.iter().map(|(name, _)| (*name).to_owned()).collect();
    ensure!(asked >= 20, "only {asked} objects");
    ensure!(taken == known, "the API server takes {taken:?}; known are {known:?}");
    Ok(())
}

/// An operator that talks to the API server through a proxy.
async fn operator(stage: &Stage, proxy: &Proxy) -> anyhow::Result<Process> {
    let name = format!("bare-{}", stage.test.chars().take(20).collect::<String>());
    let kubeconfig = proxy.kubeconfig();
    let process = Process::spawn(
        &name,
        &[&stage.namespace],
        &[("THRESH_LEADER_ELECTION", "false"), ("KUBECONFIG", &kubeconfig)],
    )?;
    process.ready(60).await?;
    Ok(process)
}

async fn proxy(client: &Client, stage: &Stage) -> anyhow::Result<Proxy> {
    Proxy::start(client, &stage.test).await
}

/// Names of all children here, by kind: all that comes of a run while no pod runs.
async fn children(stage: &Stage) -> anyhow::Result<BTreeSet<String>> {
    async fn names<K>(stage: &Stage, out: &mut BTreeSet<String>) -> anyhow::Result<()>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
    {
        let list = stage.api::<K>().list(&ListParams::default()).await?;
        out.extend(list.iter().map(|one| format!("{} {}", K::kind(&()), one.name_any())));
        Ok(())
    }
    let mut all = BTreeSet::new();
    names::<ServingCluster>(stage, &mut all).await?;
    names::<RolloutPool>(stage, &mut all).await?;
    names::<StatefulSet>(stage, &mut all).await?;
    names::<Service>(stage, &mut all).await?;
    names::<ConfigMap>(stage, &mut all).await?;
    names::<k8s_openapi::api::batch::v1::Job>(stage, &mut all).await?;
    Ok(all)
}

/// What a run has when no pod runs yet.
fn complete(name: &str, job: &RLJob) -> BTreeSet<String> {
    let (serving, pool) = (job.serving_name(), job.rollout_name());
    [
        format!("ServingCluster {serving}"),
        format!("RolloutPool {pool}"),
        format!("StatefulSet {serving}"),
        format!("StatefulSet {pool}"),
        format!("StatefulSet {name}-conductor"),
        format!("Service {serving}"),
        format!("Service {}", plan::build::engines_service(&serving)),
        format!("Service {}", plan::build::workers_service(&pool)),
        format!("Service {name}-conductor"),
        format!("Service {name}-trainer"),
        format!("ConfigMap {name}-conductor"),
    ]
    .into_iter()
    .collect()
}

/// Waits until the run has all it can have, and says that all is well.
async fn settled(stage: &Stage, name: &str, seconds: u64) -> anyhow::Result<RLJob> {
    stage
        .until(&format!("{name} to have all its children"), seconds, async || {
            let job = stage.rljob(name).await?;
            let wanted = complete(name, &job);
            let all = children(stage).await?;
            let well = run::condition(&job, cond::RECONCILED) == "True/Applied";
            Ok((well && wanted.is_subset(&all)).then_some(job))
        })
        .await
}

/// No child but those, and none of them made twice.
async fn nothing_else(stage: &Stage, name: &str) -> anyhow::Result<()> {
    let (job, all) = (stage.rljob(name).await?, children(stage).await?);
    let wanted = complete(name, &job);
    ensure!(all == wanted, "there are {:?} beside {wanted:?}", all.difference(&wanted).collect::<Vec<_>>());
    ensure!(job.status.as_ref().is_some_and(|s| s.attempts == 0), "an attempt was made without engines");
    Ok(())
}

async fn a_childs_fields_are_whose_they_are(stage: &Stage) -> anyhow::Result<()> {
    let proxy = proxy(&stage.client, stage).await?;
    let process = operator(stage, &proxy).await?;
    let selector = json!({"spec": {"nodeSelector": {"fast": "yes"}, "containers": [{"name": "worker", "env": [{"name": "A", "value": "1"}]}]}});
    let job = run::manifest("fields", |job| {
        job["spec"]["rollout"]["template"]["spec"]["worker"]["podTemplate"] = selector;
    })?;
    stage.apply(&job).await?;
    let pool = settled(stage, "fields", 40).await?.rollout_name();
    let pod = async || -> anyhow::Result<Value> {
        Ok(serde_json::to_value(stage.api::<StatefulSet>().get(&pool).await?)?["spec"]["template"].clone())
    };
    ensure!(pod().await?["spec"]["nodeSelector"]["fast"] == "yes", "{}", pod().await?);
    // A user's own: another field manager.
    let mine = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"labels": {"mine": "yes"}, "annotations": {"note": "keep"}}});
    stage.api::<StatefulSet>().patch(&pool, &PatchParams::apply("a-user"), &Patch::Apply(&mine)).await?;
    let without = json!({"spec": {"rollout": {"template": {"spec": {"worker": {"podTemplate": null}}}}}});
    stage.patch::<RLJob>("fields", without).await?;
    stage
        .until("fields that are rendered no more to go", 30, async || {
            let pod = pod().await?;
            let env = pod["spec"]["containers"][0]["env"].as_array().cloned().unwrap_or_default();
            let gone = pod["spec"].get("nodeSelector").is_none() && !env.iter().any(|v| v["name"] == "A");
            Ok(gone.then_some(()))
        })
        .await?;
    let set = stage.api::<StatefulSet>().get(&pool).await?;
    ensure!(set.labels().get("mine").is_some_and(|v| v == "yes"), "a user's label was taken: {:?}", set.labels());
    ensure!(set.annotations().get("note").is_some_and(|v| v == "keep"), "a user's note was taken");
    let managers: BTreeSet<_> = set.managed_fields().iter().filter_map(|m| m.manager.clone()).collect();
    ensure!(managers.contains("thresh-operator/rolloutpool"), "{managers:?}");
    nothing_else(stage, "fields").await?;
    process.stop();
    Ok(())
}

async fn a_status_that_somebody_wrote_meanwhile_is_decided_again(stage: &Stage) -> anyhow::Result<()> {
    let proxy = proxy(&stage.client, stage).await?;
    let process = operator(stage, &proxy).await?;
    let jobs: Api<RLJob> = stage.api();
    // Before each of the first writes of a status somebody else is faster.
    let before = move || {
        let jobs = jobs.clone();
        async move {
            let nonce = jiff::Timestamp::now().as_nanosecond().to_string();
            let faster = json!({"metadata": {"annotations": {"faster": nonce}}});
            // If it cannot be written, no conflict follows, which is seen below.
            let _ = jobs.patch("conflict", &PatchParams::default(), &Patch::Merge(&faster)).await;
        }
        .boxed()
    };
    let status = |asked: &Asked| asked.writes() && asked.uri.contains("rljobs/conflict/status");
    proxy.on(4, status, Act::After(Arc::new(before)));
    stage.apply(&run::manifest("conflict", |_| {})?).await?;
    settled(stage, "conflict", 40).await?;
    ensure!(proxy.met() == 4, "only {} writes were overtaken", proxy.met());
    let text = std::fs::read_to_string(&process.log)?;
    ensure!(text.contains("Conflict"), "nothing was refused: the version was not sent along");
    nothing_else(stage, "conflict").await?;
    process.stop();
    Ok(())
}

async fn a_refused_write_is_a_condition_and_is_tried_again(stage: &Stage) -> anyhow::Result<()> {
    let proxy = proxy(&stage.client, stage).await?;
    let process = operator(stage, &proxy).await?;
    let services = |asked: &Asked| asked.writes() && asked.uri.contains("/services/");
    proxy.on(u64::MAX, services, Act::Refuse(403, "Forbidden"));
    stage.apply(&run::manifest("forbidden", |_| {})?).await?;
    stage
        .until("the condition", 30, async || {
            let job = stage.rljob("forbidden").await?;
            Ok((run::condition(&job, cond::RECONCILED) == "False/Forbidden").then_some(()))
        })
        .await?;
    // Refused for longer, it asks less often, and says no more than it has said; the others' conditions come meanwhile.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let (met, version) = (proxy.met(), stage.rljob("forbidden").await?.resource_version());
    tokio::time::sleep(Duration::from_secs(5)).await;
    let again = proxy.met() - met;
    ensure!(again <= 24, "{again} tries within 5 s");
    let now = stage.rljob("forbidden").await?.resource_version();
    ensure!(now == version, "it writes its status again and again: {version:?}, {now:?}");
    proxy.obey();
    settled(stage, "forbidden", 60).await?;
    nothing_else(stage, "forbidden").await?;
    process.stop();
    Ok(())
}

async fn an_expired_watch_begins_anew_and_misses_nothing(stage: &Stage) -> anyhow::Result<()> {
    let proxy = proxy(&stage.client, stage).await?;
    let process = operator(stage, &proxy).await?;
    stage.apply(&run::manifest("expired", |_| {})?).await?;
    settled(stage, "expired", 40).await?;
    // All watches break. Before they are back, a child is deleted, another run is made and one goes; then they are too old.
    proxy.on(u64::MAX, |asked| asked.watches(), Act::Refuse(503, "ServiceUnavailable"));
    proxy.cut();
    stage.api::<Service>().delete("expired-trainer", &DeleteParams::default()).await?;
    stage.apply(&run::manifest("unseen", |_| {})?).await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    proxy.obey();
    let before = proxy.met();
    proxy.on(13, |asked| asked.watches() && !asked.uri.contains("sendInitialEvents"), Act::Expired);
    stage
        .until("the child and the run to be seen", 60, async || {
            let all = children(stage).await?;
            let (first, second) = (stage.rljob("expired").await?, stage.rljob("unseen").await?);
            let wanted: BTreeSet<_> =
                complete("expired", &first).union(&complete("unseen", &second)).cloned().collect();
            Ok((all == wanted).then_some(()))
        })
        .await?;
    ensure!(proxy.met() > before, "no watch was told that it is too old");
    // And later news come by the new watches.
    stage.api::<Service>().delete("unseen-trainer", &DeleteParams::default()).await?;
    settled(stage, "unseen", 30).await?;
    process.stop();
    Ok(())
}

async fn an_api_server_that_is_busy_silent_or_away_costs_only_time(stage: &Stage) -> anyhow::Result<()> {
    let proxy = proxy(&stage.client, stage).await?;
    let mut process = operator(stage, &proxy).await?;
    // Busy: every second request is sent away, and told when to come back.
    let turn = std::sync::atomic::AtomicU64::new(0);
    let second = move |asked: &Asked| {
        !asked.watches() && turn.fetch_add(1, std::sync::atomic::Ordering::Relaxed).is_multiple_of(2)
    };
    proxy.on(40, second, Act::Refuse(429, "TooManyRequests"));
    stage.apply(&run::manifest("busy", |_| {})?).await?;
    let job = settled(stage, "busy", 120).await?;
    ensure!(proxy.met() >= 10, "only {} requests were sent away", proxy.met());
    proxy.obey();
    let known = uids(stage).await?;

    // Silent for half a minute, with a change to be seen when it speaks again.
    let silence = proxy.hold(Duration::from_secs(30));
    let change = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        stage.api::<Service>().delete("busy-trainer", &DeleteParams::default()).await?;
        stage.patch::<RLJob>("busy", json!({"spec": {"rollout": {"template": {"spec": {"replicas": 3}}}}})).await
    };
    let ((), changed) = tokio::join!(silence, change);
    changed?;
    ensure!(!process.ended(), "it ended");
    stage
        .until("the changes to be seen", 60, async || {
            let set = stage.api::<StatefulSet>().get(&job.rollout_name()).await?;
            let again = stage.api::<Service>().get_opt("busy-trainer").await?.is_some();
            Ok((again && set.spec.and_then(|s| s.replicas) == Some(3)).then_some(()))
        })
        .await?;

    // Away: every answer breaks off and every new request fails.
    proxy.on(u64::MAX, |_| true, Act::Refuse(503, "ServiceUnavailable"));
    proxy.cut();
    stage.api::<Service>().delete("busy-trainer", &DeleteParams::default()).await?;
    tokio::time::sleep(Duration::from_secs(8)).await;
    proxy.obey();
    settled(stage, "busy", 60).await?;
    nothing_else(stage, "busy").await?;
    let mut now = uids(stage).await?;
    let mut known = known;
    // The one that was deleted is another by now; no other is.
    for all in [&mut known, &mut now] {
        all.remove("Service busy-trainer");
    }
    ensure!(known == now, "somebody was made twice: {known:?} became {now:?}");
    ensure!(!process.ended(), "it ended");
    process.stop();
    Ok(())
}

async fn an_operator_without_its_definitions_says_so_waits_and_ends_when_told(stage: &Stage) -> anyhow::Result<()> {
    let proxy = proxy(&stage.client, stage).await?;
    let ours = |asked: &Asked| {
        asked.uri.starts_with(&format!("/apis/{}/", api::GROUP)) || asked.uri.contains(&format!(".{}", api::GROUP))
    };
    proxy.on(u64::MAX, ours, Act::Refuse(404, "NotFound"));
    let kubeconfig = proxy.kubeconfig();
    let environment = [("THRESH_LEADER_ELECTION", "false"), ("KUBECONFIG", kubeconfig.as_str())];
    let begin = |name: &str| Process::spawn(name, &[&stage.namespace], &environment);
    let lacking = async |process: &Process| {
        let url = format!("http://{}/readyz", process.listen);
        stage
            .until("the missing definition to be told", 30, async || {
                let Ok(answer) = reqwest::get(&url).await else { return Ok(None) };
                let (status, text) = (answer.status(), answer.text().await?);
                Ok((status == 503 && text.contains("CustomResourceDefinition rljobs")).then_some(()))
            })
            .await
    };
    let first = begin("bare-undefined-1")?;
    lacking(&first).await?;
    // Its watches are refused all the time.
    tokio::time::sleep(Duration::from_secs(8)).await;
    let log = std::fs::read_to_string(&first.log)?;
    ensure!(log.lines().count() < 30, "a flood:\n{log}");
    ensure!(first.stop_within(10).await?, "an operator that was told to end ended badly");

    let second = begin("bare-undefined-2")?;
    lacking(&second).await?;
    stage.apply(&run::manifest("late", |_| {})?).await?;
    proxy.obey();
    second.ready(60).await?;
    settled(stage, "late", 60).await?;
    ensure!(second.stop_within(10).await?, "an operator that was told to end ended badly");
    Ok(())
}

/// Uid of each child of [`children`] that must live through everything.
async fn uids(stage: &Stage) -> anyhow::Result<BTreeMap<String, String>> {
    let mut all = BTreeMap::new();
    for one in stage.api::<Service>().list(&ListParams::default()).await? {
        all.insert(format!("Service {}", one.name_any()), one.uid().unwrap_or_default());
    }
    for one in stage.api::<StatefulSet>().list(&ListParams::default()).await? {
        all.insert(format!("StatefulSet {}", one.name_any()), one.uid().unwrap_or_default());
    }
    Ok(all)
}
