//! The node with real processes: shell scripts stand where our binaries would.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{collections::BTreeMap, fs, os::unix::fs::PermissionsExt, path::Path, process::Command, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    batch::v1::Job,
    core::v1::{Pod, Service},
};
use local::{Fault, Node, Notice, Options, folder::Folder, mount::Claims, pod, process::Identity, template::Binaries};
use rustix::process::Signal;
use serde_json::json;
use tokio::time::{Instant, sleep_until};

const SERVE: &str = "trap 'exit 0' TERM; echo up; while :; do sleep 0.02; done";

/// A test that waits longer is stuck.
const PATIENCE: Duration = Duration::from_secs(60);

struct Bench {
    folder: tempfile::TempDir,
    node: Node,
}

fn script(folder: &Path, name: &str, text: &str) {
    let path = folder.join("bin").join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn node(folder: &Path, nodes: usize) -> Node {
    let options = Options {
        claims: Claims::default(),
        binaries: Binaries::in_folder(folder.join("bin")),
        nodes,
        env: BTreeMap::new(),
    };
    Node::start(Folder::open(&folder.join("state")).unwrap(), options).unwrap()
}

fn bench(nodes: usize, scripts: &[(&str, &str)]) -> Bench {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in scripts {
        script(folder.path(), name, text);
    }
    let node = node(folder.path(), nodes);
    Bench { folder, node }
}

impl Bench {
    async fn until(&mut self, wanted: impl Fn(&Node) -> bool) {
        let over = Instant::now() + PATIENCE;
        loop {
            assert!(Instant::now() < over, "waited {PATIENCE:?} for what never came");
            self.node.settle().unwrap();
            if wanted(&self.node) {
                return;
            }
            let deadline = self.node.next_deadline().unwrap_or(Instant::now() + Duration::from_millis(50));
            tokio::select! {
                done = self.node.changed() => done.unwrap(),
                () = sleep_until(deadline.max(Instant::now() + Duration::from_millis(5))) => {}
            }
        }
    }

    fn set(&mut self, name: &str, replicas: i32, program: &str) {
        let set: StatefulSet = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {"replicas": replicas, "serviceName": name, "podManagementPolicy": "Parallel", "selector": {},
                "template": {"metadata": {"labels": {"role": name}}, "spec": {
                    "terminationGracePeriodSeconds": 60,
                    "tolerations": [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "tolerationSeconds": 0}],
                    "containers": [{"name": "main", "command": [program]}]}}},
        }))
        .unwrap();
        self.node.objects_mut().stateful_sets.apply(set, Timestamp::now()).unwrap();
        let service: Service = serde_json::from_value(json!({
            "metadata": {"name": name}, "spec": {"clusterIP": "None", "selector": {"role": name}},
        }))
        .unwrap();
        self.node.objects_mut().services.apply(service, Timestamp::now()).unwrap();
    }

    fn job(&mut self, name: &str, program: &str) {
        let job: Job = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {"completions": 2, "parallelism": 2, "backoffLimit": 0, "completionMode": "Indexed",
                "template": {"spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 60,
                    "containers": [{"name": "trainer", "command": [program], "env": [{"name": "NODE_RANK", "valueFrom":
                        {"fieldRef": {"fieldPath": "metadata.labels['batch.kubernetes.io/job-completion-index']"}}}]}]}}},
        }))
        .unwrap();
        self.node.objects_mut().jobs.apply(job, Timestamp::now()).unwrap();
    }

    fn pod(&self, name: &str) -> Pod {
        self.node.objects().pods.get(name).unwrap().clone()
    }

    fn hosts(&self) -> String {
        fs::read_to_string(self.folder.path().join("state/hosts")).unwrap()
    }
}

fn ip(pod: &Pod) -> String {
    pod.status.as_ref().unwrap().pod_ip.clone().unwrap()
}

fn up(node: &Node, name: &str) -> bool {
    node.objects().pods.get(name).is_some_and(pod::ready)
}

fn rank(node: &Node, index: u32) -> Option<&Pod> {
    node.objects().pods.iter().find(|pod| {
        pod.metadata.labels.as_ref().and_then(|labels| labels.get("batch.kubernetes.io/job-completion-index"))
            == Some(&index.to_string())
    })
}

fn code(pod: &Pod) -> Option<i32> {
    let status = pod.status.as_ref()?.container_statuses.as_ref()?.first()?;
    status.state.as_ref()?.terminated.as_ref().map(|end| end.exit_code)
}

async fn gone(pid: i32) {
    while Identity::of(pid).is_some() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_killed_process_comes_back_in_the_same_pod_at_the_same_address() {
    let mut bench = bench(1, &[("serve", SERVE)]);
    bench.set("engine", 2, "serve");
    bench.until(|node| up(node, "engine-0") && up(node, "engine-1")).await;
    let (before, peer) = (bench.pod("engine-0"), bench.pod("engine-1"));
    assert!(bench.node.fault(&Fault::Signal { pod: "engine-0".into(), signal: Signal::KILL }).unwrap());
    bench
        .until(|node| {
            up(node, "engine-0") && pod::pid(node.objects().pods.get("engine-0").unwrap()) != pod::pid(&before)
        })
        .await;
    let after = bench.pod("engine-0");
    assert_eq!((after.metadata.uid.as_ref(), ip(&after)), (before.metadata.uid.as_ref(), ip(&before)));
    let status = &after.status.as_ref().unwrap().container_statuses.as_ref().unwrap()[0];
    assert_eq!(status.restart_count, 1);
    assert_eq!(status.last_state.as_ref().unwrap().terminated.as_ref().unwrap().exit_code, 137);
    assert_eq!(pod::pid(&bench.pod("engine-1")), pod::pid(&peer), "its peer did not notice");
    let ends: Vec<_> =
        bench.node.notices().into_iter().filter(|notice| matches!(notice, Notice::Ended { .. })).collect();
    assert_eq!(ends.len(), 1);
}

#[tokio::test]
async fn a_deleted_pod_of_a_set_is_replaced_at_a_new_address_and_the_hosts_file_follows() {
    let mut bench = bench(1, &[("serve", SERVE)]);
    bench.set("engine", 1, "serve");
    bench.until(|node| up(node, "engine-0")).await;
    let before = bench.pod("engine-0");
    assert!(bench.hosts().contains(&format!("{} engine-0.engine\n", ip(&before))));
    bench.node.delete_pod("engine-0", None, false).unwrap();
    let uid = before.metadata.uid.clone();
    bench
        .until(|node| node.objects().pods.get("engine-0").is_some_and(|pod| pod.metadata.uid != uid && pod::ready(pod)))
        .await;
    let after = bench.pod("engine-0");
    assert_ne!(ip(&after), ip(&before));
    assert!(bench.hosts().contains(&ip(&after)) && !bench.hosts().contains(&format!("{} ", ip(&before))));
    assert_eq!(
        fs::read_dir(bench.folder.path().join("state/pods")).unwrap().count(),
        1,
        "the old pod's scratch is gone"
    );
}

#[tokio::test]
async fn the_first_rank_to_fail_ends_its_peer_and_both_ends_are_on_record() {
    let trainer = "if [ $NODE_RANK = 1 ]; then while ! test -e ../../fail; do sleep 0.02; done; echo boom; exit 1; fi\n\
                   trap 'exit 75' TERM; while :; do sleep 0.02; done";
    let mut bench = bench(1, &[("trainer", trainer)]);
    bench.job("r-t1", "trainer");
    bench.until(|node| rank(node, 0).and_then(pod::pid).is_some() && rank(node, 1).and_then(pod::pid).is_some()).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    fs::write(bench.folder.path().join("state/fail"), "").unwrap();
    let failed = |node: &Node| {
        let status = node.objects().jobs.get("r-t1").unwrap().status.clone().unwrap_or_default();
        status.conditions.unwrap_or_default().iter().any(|condition| condition.type_ == "Failed")
    };
    bench.until(failed).await;
    // The peer was deleted by the Job, and its record goes when it has been counted.
    bench.until(|node| rank(node, 0).is_none()).await;
    let end = rank(&bench.node, 1).unwrap();
    assert_eq!(code(end), Some(1));
    let ends: Vec<(i32, Option<String>)> = bench
        .node
        .notices()
        .into_iter()
        .filter_map(|notice| match notice {
            Notice::Ended { status, .. } => {
                let end = status.state?.terminated?;
                Some((end.exit_code, end.message))
            }
            _ => None,
        })
        .collect();
    assert_eq!(ends, [(1, Some("boom".into())), (75, None)]);
    bench.node.delete_job("r-t1", true).unwrap();
    bench.until(|node| node.objects().jobs.get("r-t1").is_none() && node.objects().pods.iter().next().is_none()).await;
}

#[tokio::test]
async fn a_new_node_adopts_nothing_and_says_how_the_last_one_ended() {
    let mut first = bench(1, &[("serve", SERVE)]);
    first.set("engine", 1, "serve");
    first.job("r-t1", "serve");
    first.until(|node| up(node, "engine-0") && rank(node, 0).and_then(pod::pid).is_some()).await;
    let (engine, trainer) = (first.pod("engine-0"), rank(&first.node, 0).unwrap().clone());
    let Bench { folder, node: old } = first;
    drop(old);
    let mut second = Bench { node: node(folder.path(), 1), folder };
    gone(pod::pid(&engine).unwrap()).await;
    gone(pod::pid(&trainer).unwrap()).await;
    second.until(|node| up(node, "engine-0")).await;
    assert_ne!(second.pod("engine-0").metadata.uid, engine.metadata.uid);
    let end = second.node.objects().pods.get(trainer.metadata.name.as_ref().unwrap()).unwrap();
    assert_eq!((pod::phase(end), code(end)), ("Failed", Some(137)));
    assert_eq!(pod::condition(end, "DisruptionTarget").unwrap().reason.as_deref(), Some("NodeShutdown"));
}

#[tokio::test]
async fn on_an_unreachable_node_processes_live_on_unseen_and_end_when_it_is_back() {
    let mut bench = bench(2, &[("serve", SERVE)]);
    bench.set("engine", 2, "serve");
    bench.until(|node| up(node, "engine-0") && up(node, "engine-1")).await;
    let lost = bench.pod("engine-1");
    let there = lost.spec.as_ref().unwrap().node_name.clone().unwrap();
    assert_ne!(Some(&there), bench.pod("engine-0").spec.as_ref().unwrap().node_name.as_ref(), "pods are spread");
    bench.node.fault(&Fault::Unreachable { node: there.clone() }).unwrap();
    bench.until(|node| node.objects().pods.get("engine-1").unwrap().metadata.deletion_timestamp.is_some()).await;
    assert!(!up(&bench.node, "engine-1") && !bench.hosts().contains(&format!("{} ", ip(&lost))));
    let reason = pod::condition(&bench.pod("engine-1"), "DisruptionTarget").unwrap().reason.clone();
    assert_eq!(reason.as_deref(), Some("DeletionByTaintManager"));
    let zombie = pod::pid(&lost).unwrap();
    assert!(Identity::of(zombie).is_some(), "the brain sees it gone; it is not");
    bench.node.delete_pod("engine-1", lost.metadata.uid.as_deref(), true).unwrap();
    bench.until(|node| up(node, "engine-1")).await;
    assert!(Identity::of(zombie).is_some(), "a successor runs elsewhere while the zombie lives");
    bench.node.fault(&Fault::Reachable { node: there }).unwrap();
    bench.until(|_| Identity::of(zombie).is_none()).await;
    assert!(up(&bench.node, "engine-1"));
}

#[tokio::test]
async fn a_pod_that_cannot_start_is_named_once_and_starts_when_it_can() {
    let mut bench = bench(1, &[("serve", SERVE)]);
    bench.set("engine", 1, "late");
    bench.until(|node| node.next_deadline().is_some()).await;
    let why = match &bench.node.notices()[..] {
        [Notice::CannotStart { pod, why }] if pod == "engine-0" => why.clone(),
        other => panic!("{other:?}"),
    };
    assert!(why.starts_with("pod engine-0: spec.containers[main].command[0]: no late beside"), "{why}");
    script(bench.folder.path(), "late", SERVE);
    bench.until(|node| up(node, "engine-0")).await;
    assert!(!bench.node.notices().iter().any(|notice| matches!(notice, Notice::CannotStart { .. })));
}

#[tokio::test]
async fn stopping_all_gives_grace_and_asking_again_takes_it_back() {
    let stubborn = "trap '' TERM; echo up; while :; do sleep 0.02; done";
    let mut bench = bench(1, &[("serve", SERVE), ("stubborn", stubborn)]);
    bench.set("polite", 1, "serve");
    bench.set("stubborn", 1, "stubborn");
    let logged = |name: &'static str| {
        move |node: &Node| fs::read_to_string(node.folder().log(name, None)).is_ok_and(|log| log.contains("up"))
    };
    bench.until(logged("polite-0")).await;
    bench.until(logged("stubborn-0")).await;
    let all = bench.node.stop_all(Duration::from_secs(50));
    assert!(tokio::time::timeout(Duration::from_millis(300), all).await.is_err());
    assert_eq!(bench.node.running(), ["stubborn-0"]);
    bench.node.stop_all(Duration::ZERO).await.unwrap();
    assert!(bench.node.running().is_empty());
}

/// Runs a node in a process of its own until it is killed; the test below starts it.
#[tokio::test]
async fn helper_that_only_runs_when_another_test_starts_it() {
    let Some(folder) = std::env::var_os("NODE_TEST_FOLDER") else { return };
    let folder = Path::new(&folder);
    script(folder, "family", "sleep 1000 & echo $! > ../../child; trap '' TERM; while :; do sleep 0.02; done");
    let mut bench = Bench { node: node(folder, 1), folder: tempfile::tempdir().unwrap() };
    bench.set("engine", 1, "family");
    bench.until(|node| up(node, "engine-0")).await;
    let pid = pod::pid(&bench.pod("engine-0")).unwrap();
    fs::write(folder.join("leader"), pid.to_string()).unwrap();
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn after_kill_9_of_the_node_its_processes_are_dead_or_die_before_the_next_start() {
    let folder = tempfile::tempdir().unwrap();
    let mut other = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "helper_that_only_runs_when_another_test_starts_it", "--nocapture"])
        .env("NODE_TEST_FOLDER", folder.path())
        .spawn()
        .unwrap();
    let read =
        |file: &str| fs::read_to_string(folder.path().join(file)).ok().and_then(|text| text.trim().parse::<i32>().ok());
    while read("leader").is_none() || read("state/child").is_none() {
        assert!(other.try_wait().unwrap().is_none(), "the helper ended early");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    other.kill().unwrap();
    other.wait().unwrap();
    gone(read("leader").unwrap()).await;
    let child = read("state/child").unwrap();
    assert!(Identity::of(child).is_some(), "a grandchild has no parent-death signal of ours");
    let next = node(folder.path(), 1);
    assert!(next.killed_leftovers() >= 1);
    gone(child).await;
    assert!(next.objects().pods.iter().next().is_none(), "pods of sets are made anew");
}

const MANIFEST: &str = include_str!("../../../examples/quickstart/rljob.yaml");

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_whose_run_is_gone_lets_its_engines_end_before_it_goes() {
    let mut bench = bench(1, &[("thresh-rollout", SERVE)]);
    let mut operator = local::operator::Operator::open(&bench.node, plan::Settings::laptop()).unwrap();
    let api::manifest::Kind::RLJob(mut job) = plan::check(MANIFEST, "rljob.yaml", &[]).unwrap().remove(0).kind else {
        panic!("the quickstart begins with its run");
    };
    job.metadata.uid = Some("gone".into());
    let owned = plan::build::serving_cluster(&job, None).unwrap();
    let mut kept = owned.clone();
    kept.metadata.owner_references = None;
    operator.apply(&api::manifest::Kind::ServingCluster(Box::new(kept))).unwrap();
    let engines = |node: &Node| node.objects().pods.iter().filter(|one| pod::pid(one).is_some()).count();
    operator.reconcile(&mut bench.node).unwrap();
    bench.until(|node| engines(node) == 2).await;
    assert_eq!(bench.node.objects().disruption_budgets.list().len(), 1);
    // Its run was deleted, and with it what it owns.
    operator.apply(&api::manifest::Kind::ServingCluster(Box::new(owned))).unwrap();
    operator.reconcile(&mut bench.node).unwrap();
    assert!(operator.servings().iter().next().is_some_and(|one| one.metadata.deletion_timestamp.is_some()));
    let over = Instant::now() + PATIENCE;
    while operator.servings().iter().next().is_some() {
        assert!(Instant::now() < over, "the cluster never went");
        // As long as the object is there, so are the names its engines are known by.
        assert!(bench.node.objects().services.list().len() == 2 || engines(&bench.node) == 0);
        tokio::select! {
            done = bench.node.changed() => done.unwrap(),
            () = tokio::time::sleep(Duration::from_millis(20)) => {}
        }
        operator.reconcile(&mut bench.node).unwrap();
    }
    assert_eq!(engines(&bench.node), 0);
    operator.reconcile(&mut bench.node).unwrap();
    let objects = bench.node.objects();
    assert_eq!(
        (objects.stateful_sets.list(), objects.services.list(), objects.disruption_budgets.list()),
        Default::default()
    );
}
