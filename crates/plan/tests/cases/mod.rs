//! Objects and edits of them, for tests.
#![allow(dead_code)]

use std::sync::LazyLock;

use api::{RLJob, RolloutPool, ServingCluster};
use serde_json::Value;

/// The quickstart's RLJob.
pub fn job() -> RLJob {
    // Read once: its schema is made for it, and histories ask for thousands.
    static JOB: LazyLock<RLJob> = LazyLock::new(|| {
        let text = include_str!("../../../../examples/quickstart/rljob.yaml");
        match plan::check(text, "rljob.yaml", &[]).unwrap().remove(0).kind {
            api::manifest::Kind::RLJob(j) => *j,
            other => panic!("{}", other.name()),
        }
    });
    JOB.clone()
}

pub fn cluster() -> ServingCluster {
    plan::build::serving_cluster(&job(), None).unwrap()
}

pub fn pool() -> RolloutPool {
    plan::build::rollout_pool(&job(), None).unwrap()
}

/// The object with the value at the pointer replaced (or removed, for `null`); with an empty pointer, the value holds several
/// (pointer, value) pairs.
pub fn patched<K: serde::Serialize + serde::de::DeserializeOwned>(base: &K, pointer: &str, value: &str) -> K {
    let mut json = serde_json::to_value(base).unwrap();
    let value: Value = serde_json::from_str(value).unwrap_or_else(|e| panic!("{value}: {e}"));
    if pointer.is_empty() {
        for (p, v) in value.as_object().unwrap() {
            patch(&mut json, p, v.clone());
        }
    } else {
        patch(&mut json, pointer, value);
    }
    serde_json::from_value(json).unwrap_or_else(|e| panic!("{pointer}: {e}"))
}

fn patch(json: &mut Value, pointer: &str, value: Value) {
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    let parent = parent.split('/').skip(1).fold(json, |v, k| {
        if v[k].is_null() {
            v[k] = Value::Object(Default::default());
        }
        &mut v[k]
    });
    if value.is_null() {
        parent.as_object_mut().unwrap().remove(key);
    } else {
        parent[key] = value;
    }
}

pub const JOB: &[(&str, &str, &str)] = &[
    ("a long name", "/metadata/name", "\"a23456789012345678901234567890123456789012\""),
    ("a name with capitals", "/metadata/name", "\"Sort5\""),
    ("a name that begins with a digit", "/metadata/name", "\"5sort\""),
    ("a name that ends with a dash", "/metadata/name", "\"sort-\""),
    ("a good name", "/metadata/name", "\"s5\""),
    ("a hub source", "/spec/model/source", "\"org/model\""),
    ("a source without a path", "/spec/model/source", "\"pvc://thresh-data\""),
    ("a source that climbs out", "/spec/model/source", "\"pvc://thresh-data/../x\""),
    ("a source on another claim", "/spec/model/source", "\"pvc://other/sort5/model\""),
    ("another source", "/spec/model/source", "\"pvc://thresh-data/other\""),
    ("another claim", "/spec/storage/claimName", "\"other\""),
    ("an empty claim", "/spec/storage/claimName", "\"\""),
    ("random without a seed", "/spec/model/init", "{\"kind\": \"Random\"}"),
    ("pretrained with a seed", "/spec/model/init", "{\"kind\": \"Pretrained\", \"seed\": 1}"),
    ("pretrained", "/spec/model/init", "{\"kind\": \"Pretrained\"}"),
    ("an absolute data path", "/spec/data/path", "\"/data/x.jsonl\""),
    ("an empty data path", "/spec/data/path", "\"\""),
    ("a climbing data path", "/spec/data/path", "\"a/../../x\""),
    ("an absolute eval path", "/spec/data/evalPath", "\"/x\""),
    ("no eval path under a pass rate", "/spec/data/evalPath", "null"),
    ("an absolute warm path", "/spec/warmStart/data", "\"/x\""),
    ("no warm start", "/spec/warmStart", "null"),
    ("other warm steps", "/spec/warmStart/maxSteps", "10"),
    ("checks beyond the end", "/spec/warmStart/checkEverySteps", "1000"),
    ("a pass rate of 0", "/spec/warmStart/stopAtPassRate", "0.0"),
    ("a pass rate in percent", "/spec/warmStart/stopAtPassRate", "25.0"),
    ("a commit beside a warm start", "/spec/resumeFrom", "{\"run\": \"0a-1\"}"),
    ("a commit", "", "{\"/spec/warmStart\": null, \"/spec/resumeFrom\": {\"run\": \"0a-1\"}}"),
    ("a commit of no uid", "", "{\"/spec/warmStart\": null, \"/spec/resumeFrom\": {\"run\": \"../x\"}}"),
    ("a commit of nobody", "", "{\"/spec/warmStart\": null, \"/spec/resumeFrom\": {\"run\": \"\"}}"),
    ("a commit at the end", "", "{\"/spec/warmStart\": null, \"/spec/resumeFrom\": {\"run\": \"a\", \"step\": 50}}"),
    (
        "a commit before the end",
        "",
        "{\"/spec/warmStart\": null, \"/spec/resumeFrom\": {\"run\": \"a\", \"step\": 49}}",
    ),
    ("no pass rate", "/spec/warmStart/stopAtPassRate", "null"),
    ("a negative warm lr", "/spec/warmStart/optimizer/lr", "-0.1"),
    ("temperature 0", "/spec/sampling/temperature", "0.0"),
    ("more samples", "/spec/sampling/samplesPerPrompt", "16"),
    ("async", "/spec/mode", "\"Async\""),
    ("staleness in sync mode", "/spec/maxStaleness", "1"),
    ("a policy in sync mode", "/spec/stalenessPolicy", "\"Drop\""),
    ("an update that does not divide", "/spec/batch/globalBatchSize", "100"),
    ("an update that divides", "/spec/batch/globalBatchSize", "128"),
    ("an update of one", "/spec/batch/globalBatchSize", "1"),
    ("too little over-sampling", "/spec/batch/overSampling", "16"),
    ("over-sampling", "/spec/batch/overSampling", "64"),
    ("a filter", "/spec/batch/dynamicFilter", "\"NonZeroStd\""),
    ("evaluation", "/spec/eval", "{\"everySteps\": 5}"),
    ("evaluation on nothing", "", EVAL_ON_NOTHING),
    ("more steps", "/spec/totalSteps", "100"),
    ("clip below 0", "/spec/algorithm/clipLow", "-0.1"),
    ("clip above 1", "/spec/algorithm/clipLow", "1.5"),
    ("upper clip below 0", "/spec/algorithm/clipHigh", "-0.1"),
    ("dual clip of 1", "/spec/algorithm/clipC", "1.0"),
    ("dual clip", "/spec/algorithm/clipC", "3.0"),
    ("kl of 0", "/spec/algorithm/kl", "{\"coef\": 0.0}"),
    ("kl", "/spec/algorithm/kl", "{\"coef\": 0.01, \"kind\": \"lowVar\"}"),
    ("negative entropy", "/spec/algorithm/entropyCoef", "-1.0"),
    ("tis upside down", "/spec/algorithm/tis", "{\"low\": 3.0, \"high\": 2.0}"),
    ("tis below 0", "/spec/algorithm/tis", "{\"low\": -1.0}"),
    ("tis", "/spec/algorithm/tis", "{}"),
    ("a negative lr", "/spec/optimizer/lr", "-0.1"),
    ("lr 0", "/spec/optimizer/lr", "0.0"),
    ("a beta of 1", "/spec/optimizer/betas", "[0.9, 1.0]"),
    ("a negative beta", "/spec/optimizer/betas", "[-0.9, 0.9]"),
    ("eps 0", "/spec/optimizer/eps", "0.0"),
    ("negative decay", "/spec/optimizer/weightDecay", "-0.1"),
    ("negative clipping", "/spec/optimizer/clipGradNorm", "-1.0"),
    ("a negative floor", "/spec/optimizer/schedule/minLr", "-1.0"),
    ("a tp that does not divide", "/spec/trainer/parallelism", "{\"tp\": 3}"),
    ("tp 2", "/spec/trainer/parallelism", "{\"tp\": 2}"),
    ("a dp that does not fit", "/spec/trainer/parallelism", "{\"tp\": 1, \"dp\": 4}"),
    ("both wrong", "/spec/trainer/parallelism", "{\"tp\": 3, \"dp\": 1}"),
    ("more nodes than dp says", "/spec/trainer/nodes", "2"),
    ("more devices than rollouts", "", MANY_DEVICES),
    ("delays upside down", "/spec/trainer/failurePolicy", "{\"baseDelaySeconds\": 10, \"maxDelaySeconds\": 5}"),
    ("a rule for nothing", "/spec/trainer/failurePolicy/rules", "[{\"action\": \"FailJob\"}]"),
    (
        "a rule for both",
        "/spec/trainer/failurePolicy/rules",
        "[{\"action\": \"FailJob\", \"onExitCodes\": {\"values\": [1]}, \"onDisruption\": true}]",
    ),
    (
        "a rule for no disruption",
        "/spec/trainer/failurePolicy/rules",
        "[{\"action\": \"FailJob\", \"onDisruption\": false}]",
    ),
    ("a rule", "/spec/trainer/failurePolicy/rules", "[{\"action\": \"RestartTrainer\", \"onDisruption\": true}]"),
    ("serving by ref", "/spec/serving", "{\"ref\": {\"name\": \"x\"}}"),
    ("serving by an empty ref", "/spec/serving", "{\"ref\": {\"name\": \"\"}}"),
    ("serving from nowhere", "/spec/serving", "{}"),
    ("serving both ways", "/spec/serving/ref", "{\"name\": \"x\"}"),
    ("rollout by ref", "/spec/rollout", "{\"ref\": {\"name\": \"x\"}}"),
    ("rollout from nowhere", "/spec/rollout", "{}"),
    ("rollout both ways", "/spec/rollout/ref", "{\"name\": \"x\"}"),
    ("replicas per node", "/spec/rollout/template/spec/placement", "\"PerNode\""),
    ("suspended", "/spec/suspend", "true"),
    ("a token", "/spec/restart", "{\"token\": \"1\"}"),
    ("a deadline", "/spec/activeDeadlineSeconds", "60"),
    ("a time to live", "/spec/ttlSecondsAfterFinished", "0"),
    ("managed by us", "/spec/managedBy", "\"thresh.dev/operator\""),
    ("managed elsewhere", "/spec/managedBy", "\"kueue.x-k8s.io/multikueue\""),
    ("managed by nobody", "/spec/managedBy", "\"example.com/x\""),
    ("a queue", "/spec/scheduling", "{\"queueName\": \"research\"}"),
    ("a queue while suspended", "", QUEUE_WHILE_SUSPENDED),
    ("a queue that is no name", "/spec/scheduling", "{\"queueName\": \"Research_1\"}"),
    ("a gang", "/spec/scheduling", "{\"gang\": \"Volcano\"}"),
    ("no gang", "/spec/scheduling", "{\"gang\": \"None\"}"),
    ("classes", "/spec/scheduling", "{\"priorityClassName\": \"a\", \"retryPriorityClassName\": \"b\"}"),
    ("an empty class", "/spec/scheduling", "{\"priorityClassName\": \"\"}"),
    ("an empty class of retries", "/spec/scheduling", "{\"retryPriorityClassName\": \"\"}"),
    ("a topology", "/spec/scheduling", "{\"topology\": {\"key\": \"rack\"}}"),
    ("a topology of no label", "/spec/scheduling", "{\"topology\": {\"key\": \"\"}}"),
];

const EVAL_ON_NOTHING: &str =
    r#"{"/spec/eval": {"everySteps": 5}, "/spec/data/evalPath": null, "/spec/warmStart": null}"#;
const QUEUE_WHILE_SUSPENDED: &str = r#"{"/spec/suspend": true, "/spec/scheduling": {"queueName": "research"}}"#;
const MANY_DEVICES: &str = r#"{"/spec/trainer/nodes": 1024, "/spec/trainer/parallelism": {"tp": 1}}"#;

pub const CLUSTER: &[(&str, &str, &str)] = &[
    ("as it is", "/spec/replicas", "2"),
    ("a long name", "/metadata/name", "\"a2345678901234567890123456789012345678901234567890\""),
    ("a bad name", "/metadata/name", "\"a_b\""),
    ("a bad source", "/spec/model/source", "\"x\""),
    ("another claim", "/spec/storage/claimName", "\"other\""),
    ("an empty claim", "/spec/storage/claimName", "\"\""),
    ("more engines", "/spec/replicas", "5"),
    ("another model", "/spec/model/source", "\"pvc://thresh-data/other\""),
    ("evictions of two", "/spec/disruption", "{\"maxUnavailable\": 2}"),
];

/// Status of a ServingCluster that a run writes to.
pub const HELD: &str = r#"{"weights": {"writer": {"rljob": "sort5-grpo", "uid": "uid-run"}}}"#;

pub const POOL: &[(&str, &str, &str)] = &[
    ("as it is", "/spec/replicas", "2"),
    ("a long name", "/metadata/name", "\"a2345678901234567890123456789012345678901234567890\""),
    ("a bad name", "/metadata/name", "\"a_b\""),
    ("another claim", "/spec/storage/claimName", "\"other\""),
    ("an empty claim", "/spec/storage/claimName", "\"\""),
    ("per node with replicas", "/spec/placement", "\"PerNode\""),
    ("paused", "/spec/paused", "true"),
    ("half at a time", "/spec/updates", "{\"maxUnavailablePercent\": 50}"),
];
