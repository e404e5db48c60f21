//! Who may do what, and who is told nothing.

use std::{collections::BTreeSet, net::SocketAddr, time::Duration};

use anyhow::{Context as _, ensure};
use k8s_openapi::api::{
    authorization::v1::SubjectAccessReview,
    core::v1::{Event, Pod, Secret},
    rbac::v1::ClusterRoleBinding,
};
use kube::{
    Api, ResourceExt,
    api::{ListParams, LogParams, PostParams},
};
use plan::pod_facts;
use serde_json::json;

use crate::{
    harness::{Skip, Test},
    load::token,
    node, operator, run,
    stage::Stage,
    test,
};

/// All of them.
pub fn tests() -> Vec<Test> {
    vec![
        test!(pods_listen_only_where_they_say_and_strangers_are_refused_there, Operator, 1, 180),
        test!(no_secret_is_ever_told_and_no_pod_has_a_key_to_the_api_server, Operator, 1, 240),
        test!(the_operators_account_can_neither_list_secrets_nor_enter_pods, Operator, 1, 60),
    ]
}

const ROLES: [&str; 4] = ["conductor", "engine", "worker", "trainer"];

/// Sockets that listen in a pod's network, as the kernel has them.
fn listening(pod: &Pod) -> anyhow::Result<BTreeSet<(String, u16)>> {
    let pid = *node::pids(pod)?.first().context("a process")?;
    let mut found = BTreeSet::new();
    for table in ["tcp", "tcp6"] {
        let text = std::fs::read_to_string(format!("/proc/{pid}/net/{table}")).context("the pod's sockets")?;
        for line in text.lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            // 0A: listening.
            let (Some(local), Some(&"0A")) = (fields.get(1), fields.get(3)) else { continue };
            let (address, port) = local.split_once(':').context("an address and a port")?;
            found.insert((address.to_owned(), u16::from_str_radix(port, 16)?));
        }
    }
    Ok(found)
}

/// An IPv4 address as /proc/net/tcp writes it.
fn as_in_proc(ip: &str) -> anyhow::Result<String> {
    let ip: std::net::Ipv4Addr = ip.parse()?;
    Ok(format!("{:08X}", u32::from_le_bytes(ip.octets())))
}

async fn pods_listen_only_where_they_say_and_strangers_are_refused_there(stage: &Stage) -> anyhow::Result<()> {
    let job = run::manifest("doors", |job| {
        job["spec"]["serving"]["template"]["spec"]["replicas"] = json!(1);
        job["spec"]["rollout"]["template"]["spec"]["replicas"] = json!(1);
    })?;
    run::start(stage, &job, 2).await?;
    let http = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(10)).build()?;
    // Where a stranger's address would be called, if anybody believed it.
    let trap = tokio::net::TcpListener::bind("0.0.0.0:0").await?;
    let trap_port = trap.local_addr()?.port();
    let own_address = {
        let probe = std::net::UdpSocket::bind("0.0.0.0:0")?;
        let pods = stage.pods("worker").await?;
        let ip = pods.iter().find_map(|p| p.status.as_ref()?.pod_ip.clone()).context("a worker's address")?;
        probe.connect((ip, 1))?;
        probe.local_addr()?.ip()
    };
    let lure = format!("http://{}", SocketAddr::new(own_address, trap_port));
    let invite = |conductor: &str| json!({ "run": "x", "conductor": conductor, "token": "x", "conductorEpoch": 1, "runDir": "runs/x", "rollout": {} });
    let tokens = [
        token(stage, "doors").await?,
        token(stage, "doors-serving").await?,
        token(stage, "doors-rollout").await?,
        String::new(),
        "guess".to_owned(),
    ];
    for role in ROLES {
        let pods = stage.pods(role).await?;
        ensure!(!pods.is_empty(), "no {role}");
        for pod in pods.iter().filter(|p| !pod_facts::ended(p)) {
            let name = pod.name_any();
            let ip = pod.status.as_ref().and_then(|s| s.pod_ip.clone()).context("an address")?;
            let containers = pod.spec.iter().flat_map(|s| &s.containers);
            let declared: BTreeSet<(String, u16)> = containers
                .flat_map(|c| c.ports.iter().flatten())
                .map(|p| Ok((as_in_proc(&ip)?, u16::try_from(p.container_port)?)))
                .collect::<anyhow::Result<_>>()?;
            let open = listening(pod)?;
            ensure!(open == declared, "{name} listens on {open:?} and declares {declared:?}");

            let (routes, own): (&[(&str, &str)], usize) = match role {
                "conductor" => (
                    &[
                        ("POST", "/v1/lease"),
                        ("POST", "/v1/renew"),
                        ("POST", "/v1/complete"),
                        ("POST", "/v1/fail"),
                        ("POST", "/v1/claim"),
                        ("POST", "/v1/next"),
                        ("POST", "/v1/report"),
                        ("POST", "/v1/settings"),
                        ("POST", "/v1/checkpoint"),
                        ("GET", "/v1/progress"),
                    ],
                    0,
                ),
                "engine" => (
                    &[
                        ("POST", "/generate"),
                        ("POST", "/abort_request"),
                        ("POST", "/pause_generation"),
                        ("POST", "/continue_generation"),
                        ("POST", "/flush_cache"),
                        ("POST", "/update_weights_from_disk"),
                        ("POST", "/update_weight_version"),
                        ("GET", "/model_info"),
                        ("GET", "/server_info"),
                        ("GET", "/v1/loads"),
                        ("GET", "/v1/models"),
                    ],
                    1,
                ),
                "worker" => (&[("POST", "/v1/runs")], 2),
                _ => (&[], usize::MAX),
            };
            let port = declared.first().context("a port")?.1;
            for (method, path) in routes {
                for (who, token) in tokens.iter().enumerate().filter(|(who, _)| *who != own) {
                    let mut request = http.request(method.parse()?, format!("http://{ip}:{port}{path}"));
                    if !token.is_empty() {
                        request = request.bearer_auth(token);
                    }
                    for conductor in [lure.as_str(), "http://169.254.169.254"] {
                        let request = request.try_clone().context("a request")?.json(&invite(conductor));
                        let status = request.send().await?.status();
                        ensure!(status == 401, "{name} {method} {path}: {status} for token {who}");
                    }
                }
            }
        }
    }
    let called = tokio::time::timeout(Duration::from_secs(3), trap.accept()).await;
    ensure!(called.is_err(), "a stranger's address was called from {:?}", called.map(|c| c.map(|(_, from)| from)));
    let at = run::step(&stage.rljob("doors").await?);
    run::steps_from(stage, "doors", at, 1).await?;
    Ok(())
}

/// Names and values as a user would give them.
const CANARIES: [(&str, &str); 3] = [
    ("WANDB_API_KEY", "canary-3f1c9a57d2e84b60"),
    ("HF_TOKEN", "hf_canary8d20b7e1c4f95a36"),
    ("DATA_URL", "https://canary-user:canary-pass-61e07b@data.example/x"),
];

async fn no_secret_is_ever_told_and_no_pod_has_a_key_to_the_api_server(stage: &Stage) -> anyhow::Result<()> {
    let data: serde_json::Map<String, serde_json::Value> =
        CANARIES.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
    let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "mine" }, "stringData": data });
    stage.api::<Secret>().create(&PostParams::default(), &serde_json::from_value(secret)?).await?;
    let env: Vec<_> = CANARIES
        .iter()
        .map(|(name, _)| json!({ "name": name, "valueFrom": { "secretKeyRef": { "name": "mine", "key": name } } }))
        .collect();
    let job = run::manifest("quiet", |job| {
        job["spec"]["serving"]["template"]["spec"]["replicas"] = json!(1);
        job["spec"]["rollout"]["template"]["spec"]["replicas"] = json!(1);
        let places = ROLES.map(|role| (role, json!({ "containers": [{ "name": role, "env": env }] })));
        crate::place::put(job, &places);
    })?;
    let before = run::start(stage, &job, 3).await?;
    let first = run::ready_attempt(&before).context("an attempt")?;

    let mut pods: Vec<Pod> = Vec::new();
    let mut told: Vec<(String, Vec<u8>)> = Vec::new();
    for role in ROLES {
        for pod in stage.pods(role).await? {
            let name = pod.name_any();
            ensure!(pod.spec.as_ref().and_then(|s| s.automount_service_account_token) == Some(false), "{name}");
            for pid in node::pids(&pod)? {
                let environment = std::fs::read(format!("/proc/{pid}/environ"))?;
                // Else there would be nothing to tell.
                ensure!(has(&environment, CANARIES[0].1), "{name} was not given the secret");
                told.push((format!("arguments of {name}"), std::fs::read(format!("/proc/{pid}/cmdline"))?));
                let key = format!("/proc/{pid}/root/var/run/secrets/kubernetes.io");
                ensure!(!std::path::Path::new(&key).exists(), "{name} has a key to the API server");
            }
            pods.push(pod);
        }
    }
    // What fails is told more of than what goes well.
    let rank = pods.iter().find(|p| pod_facts::role(p) == "trainer").context("a rank")?;
    node::signal(rank, "thresh-trainer", "KILL")?;
    let conductor = pods.iter().find(|p| pod_facts::role(p) == "conductor").context("a conductor")?;
    node::signal(conductor, "thresh-rollout", "KILL")?;
    run::attempt_after(stage, "quiet", first, 90).await?;
    run::steps_from(stage, "quiet", run::step(&before), 2).await?;

    let api: Api<Pod> = stage.api();
    for pod in api.list(&ListParams::default()).await? {
        for previous in [false, true] {
            // Most have no previous container.
            if let Ok(text) = api.logs(&pod.name_any(), &LogParams { previous, ..LogParams::default() }).await {
                told.push((format!("log of {}", pod.name_any()), text.into_bytes()));
            }
        }
    }
    ensure!(told.iter().any(|(what, text)| what.starts_with("log of quiet-conductor") && text.len() > 100), "no logs");
    told.push(("pods".into(), listed::<Pod>(stage).await?));
    told.push(("events".into(), listed::<Event>(stage).await?));
    told.push(("config maps".into(), listed::<k8s_openapi::api::core::v1::ConfigMap>(stage).await?));
    told.push(("jobs".into(), listed::<k8s_openapi::api::batch::v1::Job>(stage).await?));
    told.push(("stateful sets".into(), listed::<k8s_openapi::api::apps::v1::StatefulSet>(stage).await?));
    told.push(("runs".into(), listed::<api::RLJob>(stage).await?));
    told.push(("serving clusters".into(), listed::<api::ServingCluster>(stage).await?));
    told.push(("rollout pools".into(), listed::<api::RolloutPool>(stage).await?));
    told.extend(operator_logs(stage).await?);
    files(&run::folder(&before), &mut told)?;

    let mut needles: Vec<(String, String)> =
        CANARIES.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    needles.push(("the password in DATA_URL".into(), "canary-pass-61e07b".into()));
    for owner in ["quiet", "quiet-serving", "quiet-rollout"] {
        needles.push((format!("the token of {owner}"), token(stage, owner).await?));
    }
    for (what, text) in &told {
        for (name, value) in &needles {
            ensure!(!has(text, value), "{what} tells {name}");
        }
    }
    // Names are no secrets, and are not hidden.
    ensure!(told.iter().any(|(what, text)| what == "pods" && has(text, "WANDB_API_KEY")), "a name was hidden");
    Ok(())
}

fn has(text: &[u8], needle: &str) -> bool {
    text.windows(needle.len()).any(|window| window == needle.as_bytes())
}

async fn listed<K>(stage: &Stage) -> anyhow::Result<Vec<u8>>
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + serde::Serialize
        + serde::de::DeserializeOwned,
{
    let list = stage.api::<K>().list(&ListParams::default()).await?;
    ensure!(!list.items.is_empty(), "no {} to look into", K::plural(&()));
    Ok(serde_json::to_vec(&list.items)?)
}

/// The operator's own words, wherever it runs.
async fn operator_logs(stage: &Stage) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    let mut told = Vec::new();
    let pods: Api<Pod> = Api::namespaced(stage.client.clone(), operator::NAMESPACE);
    for pod in pods.list(&ListParams::default()).await? {
        let text = pods.logs(&pod.name_any(), &LogParams::default()).await?;
        told.push((format!("log of {}", pod.name_any()), text.into_bytes()));
    }
    if told.is_empty() {
        told.push(("the operator's log".into(), std::fs::read(operator::folder().join("operator.log"))?));
    }
    Ok(told)
}

/// Everything below a folder.
fn files(folder: &std::path::Path, told: &mut Vec<(String, Vec<u8>)>) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        // The run goes on: what is there one moment may be gone the next.
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() {
            let _ = files(&entry.path(), told);
        } else if let Ok(bytes) = std::fs::read(entry.path()) {
            told.push((entry.path().display().to_string(), bytes));
        }
    }
    Ok(())
}

async fn the_operators_account_can_neither_list_secrets_nor_enter_pods(stage: &Stage) -> anyhow::Result<()> {
    let bindings: Api<ClusterRoleBinding> = Api::all(stage.client.clone());
    let bindings = bindings.list(&ListParams::default().labels("app.kubernetes.io/instance=thresh")).await?;
    if bindings.items.is_empty() {
        return Err(Skip("the operator runs as a process of the test's, with no account of its own".into()).into());
    }
    let account = format!("system:serviceaccount:{}:{}", operator::NAMESPACE, operator::DEPLOYMENT);
    let worker = format!("system:serviceaccount:{}:default", stage.namespace);
    let may = async |user: &str, verb: &str, group: &str, resource: &str, namespace: Option<&str>| {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let review = json!({ "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "metadata": {},
            "spec": { "user": user, "groups": ["system:serviceaccounts", "system:authenticated"],
                "resourceAttributes": { "verb": verb, "group": group, "resource": resource, "subresource": subresource,
                                        "namespace": namespace } } });
        let api: Api<SubjectAccessReview> = Api::all(stage.client.clone());
        let answer = api.create(&PostParams::default(), &serde_json::from_value(review)?).await?;
        anyhow::Ok(answer.status.is_some_and(|s| s.allowed))
    };
    let here = Some(stage.namespace.as_str());
    // What it lives from; else all the refusals would say nothing.
    for (verb, group, resource) in [
        ("get", "", "secrets"),
        ("create", "batch", "jobs"),
        ("delete", "", "pods"),
        ("patch", "thresh.dev", "rljobs/status"),
    ] {
        ensure!(may(&account, verb, group, resource, here).await?, "{account} may not {verb} {resource}");
    }
    for namespace in [None, here, Some("kube-system")] {
        for (verb, group, resource) in [
            ("list", "", "secrets"),
            ("watch", "", "secrets"),
            ("delete", "", "secrets"),
            ("deletecollection", "", "secrets"),
            ("create", "", "pods/exec"),
            ("create", "", "pods/attach"),
            ("create", "", "pods/ephemeralcontainers"),
            ("create", "", "pods/portforward"),
            ("create", "", "serviceaccounts/token"),
            ("bind", "rbac.authorization.k8s.io", "clusterroles"),
            ("escalate", "rbac.authorization.k8s.io", "clusterroles"),
            ("create", "rbac.authorization.k8s.io", "clusterrolebindings"),
            ("impersonate", "", "users"),
            ("impersonate", "", "serviceaccounts"),
            ("patch", "", "nodes"),
            ("delete", "", "namespaces"),
            ("*", "*", "*"),
        ] {
            for user in [&account, &worker] {
                ensure!(
                    !may(user, verb, group, resource, namespace).await?,
                    "{user} may {verb} {resource} in {namespace:?}"
                );
            }
        }
    }
    for (verb, group, resource) in [("get", "", "secrets"), ("get", "", "pods"), ("get", "thresh.dev", "rljobs")] {
        ensure!(!may(&worker, verb, group, resource, here).await?, "{worker} may {verb} {resource}");
    }
    Ok(())
}
