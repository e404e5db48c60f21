//! What a person with the role `view` and nothing else sees of runs, through the binary that they would use.

use std::{path::PathBuf, process::Command};

use anyhow::{Context as _, ensure};
use api::{AttemptStatus, RLJob};
use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenRequestSpec},
    core::v1::ServiceAccount,
    rbac::v1::{ClusterRole, RoleBinding},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, PostParams},
};
use serde_json::{Value, json};

use crate::{
    columns,
    harness::Test,
    operator::folder,
    run,
    stage::{Stage, repository},
    test,
};

/// All of them.
pub fn tests() -> Vec<Test> {
    vec![test!(a_viewer_sees_what_runs_what_it_waits_for_and_who_said_what, Operator, 1, 280)]
}

/// The chart's aggregated roles, made by hand where the chart is not installed.
const ROLE: &str = "thresh-e2e-view";

/// Somebody who may only view one namespace.
struct Viewer {
    kubeconfig: PathBuf,
    namespace: String,
}

impl Viewer {
    async fn new(stage: &Stage) -> anyhow::Result<Self> {
        let accounts: Api<ServiceAccount> = stage.api();
        let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "viewer" } });
        accounts.create(&PostParams::default(), &serde_json::from_value(account)?).await.context("make a viewer")?;
        aggregated(stage).await?;
        let bindings: Api<RoleBinding> = stage.api();
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": { "name": "viewer" },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view" },
            "subjects": [{ "kind": "ServiceAccount", "name": "viewer", "namespace": stage.namespace }],
        });
        bindings.create(&PostParams::default(), &serde_json::from_value(binding)?).await.context("bind view")?;
        let request = TokenRequest {
            spec: Some(TokenRequestSpec { expiration_seconds: Some(3600), ..TokenRequestSpec::default() }),
            ..TokenRequest::default()
        };
        let token = accounts.create_token_request("viewer", &PostParams::default(), &request).await?;
        let token = token.status.context("a token")?.token;
        let path = std::env::var_os("KUBECONFIG").context("KUBECONFIG is not set")?;
        let mut config: Value = serde_saphyr::from_str(&std::fs::read_to_string(&path)?)?;
        config["users"][0]["user"] = json!({ "token": token });
        let context = config["contexts"][0]["context"].as_object_mut().context("a context")?;
        context.insert("namespace".into(), json!(stage.namespace));
        std::fs::create_dir_all(folder())?;
        let kubeconfig = folder().join("viewer.kubeconfig");
        std::fs::write(&kubeconfig, config.to_string())?;
        Ok(Self { kubeconfig, namespace: stage.namespace.clone() })
    }

    /// Runs a program as this person; what it writes, if it ends well.
    fn runs(&self, program: &str, args: &[&str]) -> anyhow::Result<String> {
        let output = Command::new(program)
            .args(args)
            .env("KUBECONFIG", &self.kubeconfig)
            .output()
            .with_context(|| format!("run {program}"))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{program} {}: {errors}{text}", args.join(" "));
        ensure!(!errors.contains("forbidden"), "{program} {}: {errors}", args.join(" "));
        Ok(text)
    }

    fn thresh(&self, args: &[&str]) -> anyhow::Result<String> {
        let program = repository().join("target/release/kubectl-thresh");
        self.runs(&program.display().to_string(), args)
    }

    /// `kubectl thresh`, as kubectl finds it; and the page's examples are what was seen here.
    fn shown(&self, args: &[&str]) -> anyhow::Result<String> {
        let text = self.thresh(args)?;
        let seen = format!("$ kubectl thresh {}\n{text}\n", args.join(" "));
        let file = folder().join("kubectl.txt");
        let mut all = std::fs::read_to_string(&file).unwrap_or_default();
        all.push_str(&seen);
        std::fs::write(file, all)?;
        Ok(text)
    }
}

/// Adds the chart's rules to `view`, unless the chart itself has.
async fn aggregated(stage: &Stage) -> anyhow::Result<()> {
    let roles: Api<ClusterRole> = Api::all(stage.client.clone());
    let knows = |role: &ClusterRole| {
        let mut rules = role.rules.iter().flatten();
        rules.any(|rule| rule.resources.iter().flatten().any(|r| r == "rljobs"))
    };
    if !knows(&roles.get("view").await?) {
        let text = std::fs::read_to_string(repository().join("charts/thresh/templates/user-roles.yaml"))?;
        let rules = text.split("rules:\n").nth(1).and_then(|rest| rest.split("---").next()).context("the rules")?;
        let rules: Value = serde_saphyr::from_str(rules).context("read the chart's rules")?;
        let role = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": { "name": ROLE, "labels": { "rbac.authorization.k8s.io/aggregate-to-view": "true" } },
            "rules": rules,
        });
        roles.create(&PostParams::default(), &serde_json::from_value(role)?).await.context("make the role")?;
    }
    stage.until("view to know RLJobs", 30, async || Ok(knows(&roles.get("view").await?).then_some(()))).await
}

async fn a_viewer_sees_what_runs_what_it_waits_for_and_who_said_what(stage: &Stage) -> anyhow::Result<()> {
    let result = a_viewer_sees(stage).await;
    // It is of no namespace: it does not go with the stage.
    let roles: Api<ClusterRole> = Api::all(stage.client.clone());
    let _ = roles.delete(ROLE, &DeleteParams::default()).await;
    result
}

async fn a_viewer_sees(stage: &Stage) -> anyhow::Result<()> {
    let _ = std::fs::remove_file(folder().join("kubectl.txt"));
    let viewer = Viewer::new(stage).await?;
    ensure!(viewer.runs("kubectl", &["get", "secrets"]).is_err(), "a viewer reads no secrets");
    ensure!(viewer.runs("kubectl", &["get", "nodes"]).is_err(), "a viewer reads no nodes");
    let (status, name) = (viewer.thresh(&["status"])?, &viewer.namespace);
    ensure!(status.contains(&format!("no RLJob in namespace {name}")), "{status}");

    // Two at once: one that waits for a claim, and one that runs.
    let waiting = run::manifest("waits", |job| {
        job["spec"]["storage"]["claimName"] = json!("no-such-claim");
        job["spec"]["model"]["source"] = json!("pvc://no-such-claim/sort5/model");
    })?;
    stage.apply(&waiting).await?;
    run::start(stage, &run::manifest("runs", |_| {})?, 3).await?;
    // A step may be seen before the pods are seen ready.
    let job = run::attempt_after(stage, "runs", 0, 30).await?;
    waits_for_its_claim(stage, &viewer).await?;
    runs_well(stage, &viewer, &job).await?;
    backs_off(stage, &viewer).await?;
    let error = viewer.thresh(&["why", "nobody"]).err().context("a run that is not there was shown")?;
    ensure!(format!("{error:#}").contains("use one of runs, waits"), "{error:#}");
    Ok(())
}

async fn waits_for_its_claim(stage: &Stage, viewer: &Viewer) -> anyhow::Result<()> {
    let text = stage
        .until("the missing claim to be told", 30, async || {
            let text = viewer.thresh(&["why", "waits"])?;
            Ok(text.contains("PersistentVolumeClaim no-such-claim does not exist").then_some(text))
        })
        .await?;
    viewer.shown(&["why", "waits"])?;
    for part in ["owner storage, since ", "kubectl describe pvc no-such-claim -n "] {
        ensure!(text.contains(part), "{part:?} is not in\n{text}");
    }
    let status = viewer.thresh(&["status", "waits"])?;
    ensure!(status.contains("Accepted False, StorageNotBound: "), "{status}");
    let error = viewer.thresh(&["logs", "waits"]).err().context("logs of nobody")?;
    ensure!(format!("{error:#}").contains("no attempt has begun"), "{error:#}");
    Ok(())
}

async fn runs_well(stage: &Stage, viewer: &Viewer, job: &RLJob) -> anyhow::Result<()> {
    columns_tell_the_truth(stage, viewer).await?;
    let attempt = run::ready_attempt(job).context("an attempt")?;
    // It begins with fewer engines than it has asked for.
    stage
        .until("the run to wait for nothing", 30, async || {
            Ok(viewer.thresh(&["why", "runs"])?.starts_with("nothing: it runs (step ").then_some(()))
        })
        .await?;
    viewer.shown(&["why", "runs"])?;
    let json: Value = serde_json::from_str(&viewer.thresh(&["why", "runs", "-o", "json"])?)?;
    ensure!(json["phase"] == "Running" && json.get("owner").is_none(), "{json}");
    let status = viewer.shown(&["status", "runs"])?;
    for part in ["look at   nothing: it runs", "progress  step ", "engines   2/2 of runs-serving", "AttemptStarted"] {
        ensure!(status.contains(part), "{part:?} is not in\n{status}");
    }
    let all = viewer.shown(&["status"])?;
    ensure!(all.lines().count() == 3 && all.contains("waits") && all.contains("runs"), "{all}");
    ensure!(viewer.thresh(&["status", "-A"]).is_err(), "a viewer of one namespace sees all");
    let events = viewer.shown(&["events", "runs"])?;
    for part in ["RLJob/runs", "AttemptStarted", "Pod/runs-t1-0", "Job/runs-t1", "ServingCluster/runs-serving"] {
        ensure!(events.contains(part), "{part:?} is not in\n{events}");
    }
    ensure!(!events.contains("/waits"), "somebody else's:\n{events}");
    let json: Vec<Value> = viewer
        .thresh(&["events", "runs", "--output", "json"])?
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()?;
    let times: Vec<&str> = json.iter().filter_map(|event| event["time"].as_str()).collect();
    let in_order = times.windows(2).all(|w| {
        let of = |t: &str| t.parse::<jiff::Timestamp>().ok();
        of(w[0]) <= of(w[1])
    });
    ensure!(times.len() > 3 && in_order, "{times:?}");
    let logs = viewer.shown(&["logs", "runs", "--tail", "3"])?;
    for index in [0, 1] {
        let prefix = format!("runs-t{attempt}-{index}");
        ensure!(logs.lines().any(|line| line.starts_with(&prefix)), "{prefix} said nothing:\n{logs}");
    }
    let one = viewer.thresh(&["logs", "runs", "--rank", "1", "--tail", "1"])?;
    ensure!(one.lines().count() == 1 && one.starts_with(&format!("runs-t{attempt}-1")), "{one}");
    for (role, pod) in [("conductor", "runs-conductor-0 "), ("engine", "runs-serving-"), ("worker", "runs-rollout-")] {
        let text = viewer.thresh(&["logs", "runs", "--role", role, "--tail", "2"])?;
        ensure!(!text.is_empty() && text.lines().all(|line| line.starts_with(pod)), "{role}: {text}");
    }
    Ok(())
}

/// `kubectl get rljob` says what the status says.
async fn columns_tell_the_truth(stage: &Stage, viewer: &Viewer) -> anyhow::Result<()> {
    stage
        .until("a look between two writes of the status", 30, async || {
            let before = stage.rljob("runs").await?;
            let text = viewer.runs("kubectl", &["get", "rljob", "runs", "-o", "wide"])?;
            let after = stage.rljob("runs").await?;
            if before.resource_version() != after.resource_version() {
                return Ok(None);
            }
            let columns = columns::of(&text)?;
            let status = after.status.clone().unwrap_or_default();
            let progress = status.progress.clone().unwrap_or_default();
            let attempt: AttemptStatus = status.attempt.clone().unwrap_or_default();
            let expected = [
                ("NAME", "runs".to_owned()),
                ("PHASE", status.phase.to_string()),
                ("STEP", format!("{}/{}", progress.step, progress.total_steps)),
                ("VERSION", progress.weight_version.to_string()),
                ("RANKS", status.ranks.as_ref().map_or(String::new(), |r| format!("{}/{}", r.ready, r.desired))),
                ("SERVING", status.serving.as_ref().map_or(String::new(), |s| format!("{}/{}", s.ready, s.desired))),
                ("ATTEMPT", status.attempts.to_string()),
                ("FAILS", status.counters.failures.to_string()),
                ("REASON", "AllRanksReady".to_owned()),
                ("EPOCH", status.epoch.map_or(String::new(), |epoch| epoch.to_string())),
                ("TP", attempt.parallelism.tp.to_string()),
                ("DP", attempt.parallelism.dp.to_string()),
            ];
            for (head, value) in expected {
                let (_, cell) =
                    columns.iter().find(|(h, _)| h == head).with_context(|| format!("no column {head}:\n{text}"))?;
                ensure!(*cell == value, "{head} is {cell:?}, the status says {value:?}:\n{text}");
            }
            Ok(Some(()))
        })
        .await
}

async fn backs_off(stage: &Stage, viewer: &Viewer) -> anyhow::Result<()> {
    let broken = json!({"containers": [{"name": "trainer", "command": ["thresh-trainer", "--no-such-flag"]}]});
    // Long enough to be looked at.
    let policy = json!({"backoffLimit": 1000, "baseDelaySeconds": 120, "maxDelaySeconds": 240});
    let edit = json!({"spec": {"trainer": {"podTemplate": {"spec": broken}, "failurePolicy": policy}}});
    stage.patch::<RLJob>("runs", edit).await?;
    let why = stage
        .until("the run to back off", 120, async || {
            let text = viewer.thresh(&["why", "runs"])?;
            Ok((text.contains("without a new commit") && text.contains("at most until")).then_some(text))
        })
        .await?;
    viewer.shown(&["why", "runs"])?;
    for part in [
        "Restarting: ",
        "owner operator, since ",
        "then the next attempt starts",
        "serving is not affected: 2/2 engines answer, version ",
        "you may: kubectl thresh logs runs -n ",
    ] {
        ensure!(why.contains(part), "{part:?} is not in\n{why}");
    }
    let job = stage.rljob("runs").await?;
    let last = job.status.as_ref().and_then(|s| s.last_attempt.clone()).context("an ended attempt")?;
    let status = viewer.shown(&["status", "runs"])?;
    let code = last.exit_code.context("an exit code")?;
    for part in [
        format!("ended     attempt {} failed, pod ", last.id),
        format!(" on {}, exit code {code}, ", last.node_name.clone().unwrap_or_default()),
        "TrainerReady False, BackingOff: ".to_owned(),
        format!("restarts  {} failure", job.status.as_ref().map_or(0, |s| s.counters.failures)),
        "AttemptEnded".to_owned(),
    ] {
        ensure!(status.contains(&part), "{part:?} is not in\n{status}");
    }
    Ok(())
}
