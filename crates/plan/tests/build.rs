//! What is rendered.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod cases;

use api::{AttemptStatus, Frozen, ParallelismStatus, PodTemplate, RLJob};
use plan::{Child, Images, Settings, build};
use serde_json::{Value, json};

fn job() -> RLJob {
    let mut job = cases::job();
    job.metadata.uid = Some("uid-run".into());
    job.metadata.namespace = Some("rl".into());
    job
}

fn frozen() -> Frozen {
    Frozen { trainer_image: "trainer:1".into(), rollout_image: "rollout:1".into() }
}

fn settings() -> Settings {
    Settings::cluster(Images { trainer_cpu: "other".into(), rollout: "other".into() })
}

fn attempt(job: &RLJob) -> AttemptStatus {
    AttemptStatus {
        id: 3,
        job_name: build::job_name("sort5-grpo", 3),
        revision: api::hash::trainer(job),
        parallelism: ParallelismStatus { dp: 2, tp: 1 },
        nodes: 1,
        ..AttemptStatus::default()
    }
}

fn everything(job: &RLJob) -> Vec<Child> {
    let mut all = build::conductor_objects(job, &frozen());
    all.push(Child::Service(Box::new(build::trainer_service(job))));
    all.extend(build::attempt_objects(job, &attempt(job), &frozen(), &settings()));
    let mut cluster = build::serving_cluster(job, None).unwrap();
    cluster.metadata.uid = Some("uid-serving".into());
    all.push(Child::ServingCluster(Box::new(cluster.clone())));
    all.extend(build::engine_objects(&cluster, "rollout:1", 0, settings().lame_duck));
    let mut pool = build::rollout_pool(job, None).unwrap();
    pool.metadata.uid = Some("uid-pool".into());
    all.push(Child::RolloutPool(Box::new(pool.clone())));
    all.extend(build::pool_objects(&pool, "rollout:1", 0));
    all
}

#[test]
fn the_quickstarts_objects_are_as_on_record() {
    let mut text = String::new();
    for child in everything(&job()) {
        let mut json = child.to_json();
        // Checked on its own below; as one line it would hide every difference.
        if let Some(data) = json.get_mut("data").and_then(|d| d.get_mut("rljob.json")) {
            *data = "(the RLJob)".into();
        }
        text.push_str("---\n");
        text.push_str(&serde_saphyr::to_string(&json).unwrap());
    }
    insta::assert_snapshot!(text);
}

/// What each version of the rendering made of the quickstart: a change that is no new version would be taken for the work of a
/// hand on every object of an older operator, and engines would be replaced.
const RENDERED: [(&str, &str); 1] = [("1", "v1:5c0ec13c86470547448fb1f115aa4312")];

#[test]
fn another_rendering_is_another_render_version() {
    let mut all = everything(&job());
    // Attempts are made once; the two kinds of our own are written when a person edits the template, and their spec is not ours.
    all.retain(|c| {
        !matches!(c, Child::Job(_) | Child::ServingCluster(_) | Child::RolloutPool(_)) && c.name() != "sort5-grpo-t3"
    });
    let mut pool = build::rollout_pool(&job(), None).unwrap();
    (pool.spec.placement, pool.spec.replicas) = (api::Placement::PerNode, None);
    all.extend(build::pool_objects(&pool, "rollout:1", 0));
    let mut all: Vec<Value> = all.iter().map(Child::to_json).collect();
    for json in &mut all {
        // The RLJob's spec and its hash: another spec is another meaning.
        if let Some(data) = json.get_mut("data") {
            *data = Value::Null;
            json["metadata"]["annotations"]["thresh.dev/revision"] = Value::Null;
        }
    }
    let now = (plan::drift::RENDER_VERSION, &*api::hash::of(&Value::Array(all)));
    assert_eq!(RENDERED.last(), Some(&now), "raise plan::drift::RENDER_VERSION, and add a line");
}

#[test]
fn the_conductor_reads_the_whole_rljob_with_its_defaults() {
    let job = job();
    let json = build::run_json(&job);
    let back: RLJob = serde_json::from_value(json.clone()).unwrap();
    assert_eq!(back.spec, job.defaulted().spec);
    assert_eq!(back.metadata.uid.as_deref(), Some("uid-run"));
    assert_eq!(json["spec"]["batch"]["globalBatchSize"], 256);
}

#[test]
fn rendering_is_a_pure_function() {
    let json = |job: &RLJob| everything(job).iter().map(Child::to_json).collect::<Vec<_>>();
    assert_eq!(json(&job()), json(&job()));
}

#[test]
fn a_pod_template_is_merged_and_what_selectors_need_stays() {
    let mut job = job();
    job.spec.trainer.pod_template = Some(PodTemplate(json!({
        "metadata": { "labels": { "team": "a", "thresh.dev/role": "mine" }, "annotations": { "x": "y" } },
        "spec": {
            "nodeSelector": { "disk": "ssd" },
            "imagePullSecrets": [{ "name": "pull" }],
            "tolerations": [{ "key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5 }],
            "volumes": [{ "name": "scratch", "emptyDir": {} }],
            "containers": [
                { "name": "trainer", "env": [{ "name": "MINE", "value": "7" }], "volumeMounts": [{ "name": "scratch", "mountPath": "/scratch" }] },
                { "name": "sidecar", "image": "side:1" }
            ]
        }
    })));
    assert_eq!(plan::validate(None, &job), []);
    let objects = build::attempt_objects(&job, &attempt(&job), &frozen(), &settings());
    let pod = objects[1].to_json()["spec"]["template"].clone();
    let names =
        |v: &Value| v.as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>();
    assert_eq!(pod["metadata"]["labels"]["team"], "a");
    assert_eq!(pod["metadata"]["labels"]["thresh.dev/role"], "trainer");
    assert_eq!(pod["metadata"]["annotations"]["x"], "y");
    assert_eq!(pod["spec"]["nodeSelector"]["disk"], "ssd");
    assert_eq!(names(&pod["spec"]["containers"]), ["trainer", "sidecar"]);
    let trainer = &pod["spec"]["containers"][0];
    assert_eq!(trainer["image"], "trainer:1");
    assert!(names(&trainer["env"]).contains(&"MINE".to_owned()));
    assert!(names(&trainer["env"]).contains(&"THRESH_ATTEMPT".to_owned()));
    assert_eq!(trainer["volumeMounts"].as_array().unwrap().len(), 3);
    assert_eq!(names(&pod["spec"]["volumes"]), ["volume", "config", "scratch"]);
    let tolerations = pod["spec"]["tolerations"].as_array().unwrap();
    assert_eq!(tolerations.len(), 2, "the user's own toleration stands: {tolerations:?}");
    assert!(tolerations.iter().any(|t| t["tolerationSeconds"] == 5));
}

#[test]
fn every_container_leaves_its_last_words_and_a_users_own_choice_stands() {
    let mut job = job();
    job.spec.trainer.pod_template = Some(PodTemplate(json!({ "spec": {
        "initContainers": [{ "name": "fetch", "image": "fetch:1" }],
        "containers": [{ "name": "trainer" }, { "name": "sidecar", "image": "side:1", "terminationMessagePolicy": "File" }],
    } })));
    let policies = |json: &Value, list: &str| -> Vec<String> {
        let list = json.pointer(&format!("/spec/template/spec/{list}")).and_then(Value::as_array);
        let policy = |c: &Value| c["terminationMessagePolicy"].as_str().unwrap_or_default().to_owned();
        list.into_iter().flatten().map(policy).collect()
    };
    let mut pods = 0;
    for child in everything(&job) {
        let (json, kind) = (child.to_json(), child.target(false).kind);
        let (main, init) = (policies(&json, "containers"), policies(&json, "initContainers"));
        match kind {
            plan::ChildKind::Job => {
                assert_eq!(main, ["FallbackToLogsOnError", "File"]);
                assert_eq!(init, ["FallbackToLogsOnError"]);
            }
            _ => assert!(main.iter().all(|p| p == "FallbackToLogsOnError"), "{kind:?}: {main:?}"),
        }
        pods += usize::from(!main.is_empty());
    }
    assert_eq!(pods, 4, "conductor, trainer, engine, worker");
}

#[test]
fn variables_are_defined_before_they_are_used() {
    for child in everything(&job()) {
        let json = child.to_json();
        let Some(containers) = json.pointer("/spec/template/spec/containers").and_then(Value::as_array) else {
            continue;
        };
        for c in containers {
            let mut known: Vec<&str> = vec![];
            for env in c["env"].as_array().unwrap() {
                let value = env["value"].as_str().unwrap_or_default();
                for used in value.split("$(").skip(1).filter_map(|v| v.split(')').next()) {
                    assert!(known.contains(&used), "{}: {} uses {used} too early", child.name(), env["name"]);
                }
                known.push(env["name"].as_str().unwrap());
            }
            for part in c["command"].as_array().unwrap() {
                for used in part.as_str().unwrap().split("$(").skip(1).filter_map(|v| v.split(')').next()) {
                    assert!(known.contains(&used), "{}: the command uses {used}", child.name());
                }
            }
        }
    }
}

#[test]
fn no_pod_gets_an_api_token_or_more_rights_than_it_needs() {
    for child in everything(&job()) {
        let json = child.to_json();
        let Some(spec) = json.pointer("/spec/template/spec") else { continue };
        assert_eq!(spec["automountServiceAccountToken"], false, "{}", child.name());
        assert_eq!(spec["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
        let c = &spec["containers"][0]["securityContext"];
        assert_eq!(
            (&c["allowPrivilegeEscalation"], &c["runAsNonRoot"], &c["capabilities"]["drop"][0]),
            (&json!(false), &json!(true), &json!("ALL"))
        );
    }
}

fn scheduled(job: &RLJob, id: u64, scheduling: Value) -> (Vec<Child>, Value) {
    let mut job = job.clone();
    job.spec.scheduling = Some(serde_json::from_value(scheduling).unwrap());
    let attempt = AttemptStatus { id, ..attempt(&job) };
    let all = build::attempt_objects(&job, &attempt, &frozen(), &settings());
    let made = all.last().unwrap().to_json();
    (all, made)
}

#[test]
fn a_gangs_pods_are_told_of_their_group_as_its_scheduler_wants_it() {
    let name = "sort5-grpo-t3";
    let (all, made) = scheduled(&job(), 3, json!({ "gang": "Volcano", "priorityClassName": "first" }));
    let group = all[1].to_json();
    assert_eq!((&group["apiVersion"], &group["kind"]), (&json!("scheduling.volcano.sh/v1beta1"), &json!("PodGroup")));
    assert_eq!(group["spec"], json!({ "minMember": 1, "priorityClassName": "first" }));
    assert_eq!(group["metadata"]["name"], name);
    assert_eq!(group["metadata"]["ownerReferences"][0]["uid"], "uid-run");
    let pod = &made["spec"]["template"];
    assert_eq!(pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"], name);
    assert_eq!(pod["spec"]["schedulerName"], "volcano");
    let (all, made) = scheduled(&job(), 3, json!({ "gang": "SchedulerPlugins" }));
    let group = all[1].to_json();
    assert_eq!(group["apiVersion"], "scheduling.x-k8s.io/v1alpha1");
    assert_eq!(group["spec"], json!({ "minMember": 1 }));
    let pod = &made["spec"]["template"];
    assert_eq!(pod["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"], name);
    assert!(pod["spec"]["schedulerName"].is_null());
}

#[test]
fn a_queued_job_is_made_suspended_and_named_for_its_queue() {
    let (all, made) = scheduled(&job(), 1, json!({ "queueName": "research" }));
    assert_eq!(all.len(), 2, "no gang, no group");
    assert_eq!(made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"], "research");
    assert_eq!(made["spec"]["suspend"], true);
    let plain = build::attempt_objects(&job(), &attempt(&job()), &frozen(), &settings());
    assert!(plain[1].to_json()["spec"]["suspend"].is_null());
}

#[test]
fn retries_have_their_own_priority_and_pods_stay_near_each_other() {
    let both = json!({ "priorityClassName": "first", "retryPriorityClassName": "again" });
    for (id, class) in [(1, "first"), (2, "again")] {
        assert_eq!(scheduled(&job(), id, both.clone()).1["spec"]["template"]["spec"]["priorityClassName"], class);
    }
    let one = json!({ "priorityClassName": "first", "topology": { "key": "rack", "mode": "Required" } });
    let made = scheduled(&job(), 2, one).1;
    let spec = &made["spec"]["template"]["spec"];
    assert_eq!(spec["priorityClassName"], "first");
    let term = &spec["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0];
    assert_eq!(term["topologyKey"], "rack");
    let near = json!({ "thresh.dev/rljob-uid": "uid-run", "thresh.dev/role": "trainer", "thresh.dev/attempt": "2" });
    assert_eq!(term["labelSelector"]["matchLabels"], near);
}
