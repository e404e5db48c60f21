//! A run whose binaries are scripts that only stay alive: what the loop does around them, without a conductor's word.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{collections::BTreeMap, fs, os::unix::fs::PermissionsExt, path::Path, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use local::{
    folder::Folder,
    pod,
    preflight::{self, Volumes},
    process::Identity,
    run::{Command, Finish, Run, Setup, Update, of_role},
    template::Binaries,
};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
};

const MANIFEST: &str = include_str!("../../../examples/quickstart/rljob.yaml");
const STAY: &str = "#!/bin/sh\ntrap 'exit 0' TERM\necho \"$@\"\nwhile :; do sleep 0.02; done\n";

struct Desk {
    folder: tempfile::TempDir,
    orders: mpsc::Sender<Command>,
    updates: mpsc::UnboundedReceiver<Update>,
    run: JoinHandle<local::Result<Finish>>,
}

fn lay_out(folder: &Path) {
    fs::write(folder.join("rljob.yaml"), MANIFEST).unwrap();
    let claim = folder.join("volumes/thresh-data/sort5");
    fs::create_dir_all(claim.join("model")).unwrap();
    fs::create_dir_all(folder.join("bin")).unwrap();
    for file in ["model/config.json", "model/tokenizer.json"] {
        fs::write(claim.join(file), "{}").unwrap();
    }
    for file in ["train.jsonl", "eval.jsonl", "warm.jsonl"] {
        fs::write(claim.join(file), r#"{"prompt": "p", "label": "l", "completion": "c"}"#).unwrap();
    }
    for binary in ["thresh-rollout", "thresh-trainer"] {
        let path = folder.join("bin").join(binary);
        fs::write(&path, STAY).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
}

fn start(folder: tempfile::TempDir) -> Desk {
    let path = folder.path();
    let volumes = Volumes { given: BTreeMap::new(), seeds: Some(path.join("volumes")), state: path.join("state") };
    let binaries = Binaries::in_folder(path.join("bin"));
    let checked = preflight::check_file(&path.join("rljob.yaml"), &volumes, &binaries).unwrap();
    let setup =
        Setup { checked, volumes, binaries, nodes: 1, settings: plan::Settings::laptop(), env: BTreeMap::new() };
    let (orders, commands) = mpsc::channel(8);
    let (tell, updates) = mpsc::unbounded_channel();
    let mut run = Run::start(setup, commands, tell).unwrap();
    let run = tokio::spawn(async move { run.drive().await });
    Desk { folder, orders, updates, run }
}

impl Desk {
    async fn pods(&self) -> Vec<Pod> {
        let (answer, pods) = oneshot::channel();
        self.orders.send(Command::Pods(answer)).await.unwrap();
        pods.await.unwrap()
    }

    async fn until(&self, wanted: impl Fn(&[Pod]) -> bool) -> Vec<Pod> {
        loop {
            let pods = self.pods().await;
            if wanted(&pods) {
                return pods;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn event(&mut self, reason: &str) -> String {
        loop {
            match self.updates.recv().await.expect("the run has ended") {
                Update::Event(event) if event.reason == reason => return event.text,
                _ => {}
            }
        }
    }

    fn edit(&self, from: &str, to: &str) {
        let path = self.folder.path().join("rljob.yaml");
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from));
        fs::write(path, text.replace(from, to)).unwrap();
    }
}

fn running(pods: &[Pod], role: &str) -> usize {
    of_role(pods, role).iter().filter(|one| pod::pid(one).is_some()).count()
}

fn all_up(pods: &[Pod]) -> bool {
    (running(pods, "engine"), running(pods, "worker"), running(pods, "conductor")) == (2, 2, 1)
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_workers_and_conductor_run_from_the_manifest_and_no_trainer_before_they_answer() {
    let folder = tempfile::tempdir().unwrap();
    lay_out(folder.path());
    let desk = start(folder);
    let pods = desk.until(all_up).await;
    assert_eq!(running(&pods, "trainer"), 0);
    let state = desk.folder.path().join("state");
    let log = fs::read_to_string(state.join("logs/sort5-grpo-serving-0.log")).unwrap();
    let model = state.canonicalize().unwrap().join("volumes/thresh-data/sort5/model");
    assert!(log.contains(&format!("--model-path {}", model.display())), "{log}");
    let hosts = fs::read_to_string(state.join("hosts")).unwrap();
    let engines = hosts.lines().filter(|line| line.ends_with(" sort5-grpo-serving-engines")).count();
    assert_eq!(engines, 2, "{hosts}");
    let pids: Vec<i32> = pods.iter().filter_map(pod::pid).collect();
    desk.orders.send(Command::Kill).await.unwrap();
    assert_eq!(desk.run.await.unwrap().unwrap(), Finish::Killed);
    assert!(pids.iter().all(|pid| Identity::of(*pid).is_none()), "nothing outlives the run");
    // Free again; a child that another test is just starting may hold the lock between its fork and its exec.
    while Folder::open(&state).is_err() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_by_hand_with_nothing_to_save_ends_everything_and_the_next_run_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    lay_out(folder.path());
    let desk = start(folder);
    desk.until(all_up).await;
    desk.orders.send(Command::Suspend).await.unwrap();
    let Desk { folder, run, .. } = desk;
    assert_eq!(run.await.unwrap().unwrap(), Finish::Suspended);
    let uid = |folder: &Path| {
        let text = fs::read_to_string(folder.join("state/objects/rljobs/sort5-grpo.json")).unwrap();
        let job: serde_json::Value = serde_json::from_str(&text).unwrap();
        (job["metadata"]["uid"].clone(), job["spec"]["suspend"].clone())
    };
    let (before, _) = uid(folder.path());
    let mut again = start(folder);
    again.event("Resumed").await;
    again.until(all_up).await;
    assert_eq!(uid(again.folder.path()), (before, false.into()), "the same run, and the file says not to suspend");
    again.orders.send(Command::Kill).await.unwrap();
    again.run.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn saving_the_manifest_applies_it_and_a_bad_edit_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    lay_out(folder.path());
    let mut desk = start(folder);
    let before = desk.until(all_up).await;
    desk.edit("samplesPerPrompt: 8", "samplesPerPrompt: 4");
    let text = desk.event("EditRefused").await;
    assert!(text.starts_with("edit refused, nothing changes\nerror: ") && text.contains("spec.sampling"), "{text}");
    assert!(text.contains("rljob.yaml:"), "{text}");
    let uids = |pods: &[Pod]| pods.iter().map(|pod| pod.metadata.uid.clone()).collect::<Vec<_>>();
    assert_eq!(uids(&desk.pods().await), uids(&before));
    desk.edit("samplesPerPrompt: 4", "samplesPerPrompt: 8");
    assert!(desk.event("EditAccepted").await.contains("what the file says already"));
    desk.edit("replicas: 2\n        accelerator", "replicas: 3\n        accelerator");
    let text = desk.event("EditAccepted").await;
    assert!(text.contains("spec.serving.template.spec.replicas"), "{text}");
    let after = desk.until(|pods| running(pods, "engine") == 3).await;
    assert!(uids(&before).iter().all(|uid| uids(&after).contains(uid)), "nobody else was touched");
    desk.orders.send(Command::Kill).await.unwrap();
    desk.run.await.unwrap().unwrap();
}
