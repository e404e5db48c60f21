//! The versioned hash of meaning: `v1:` + sha256 over a canonical (defaulted, sorted) subset of a spec.
//!
//! It says whether a child must be replaced. Image digests of helpers, the operator's version, the CRD's shape and added labels
//! are no part of it; a golden test pins it.

use serde::Serialize;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::{RLJob, RolloutPoolSpec, ServingClusterSpec};

/// Version of the rule below. A change of rule is a new prefix, and old hashes are compared by the old rule.
pub const VERSION: &str = "v1";

/// `v1:` + the first 16 bytes, in hex, of the SHA-256 of the value's canonical JSON: keys sorted, nulls, empty lists and
/// empty maps left out.
pub fn of(value: &Value) -> String {
    let canonical = canonical(value);
    let digest = Sha256::digest(canonical.to_string().as_bytes());
    let mut hex = String::with_capacity(32);
    for b in digest.iter().take(16) {
        hex.push_str(&format!("{b:02x}"));
    }
    format!("{VERSION}:{hex}")
}

/// What shapes a trainer attempt. An edit of any of it restarts the trainer, and nothing else does.
pub fn trainer(job: &RLJob) -> String {
    let job = job.defaulted();
    let s = &job.spec;
    let t = &s.trainer;
    of(&json!({
        "algorithm": plain(&s.algorithm),
        "optimizer": plain(&s.optimizer),
        "nodes": t.nodes,
        "accelerator": plain(&t.accelerator),
        "parallelism": plain(&t.parallelism),
        "maxTokensPerMicroBatch": t.max_tokens_per_micro_batch,
        "recompute": t.recompute,
        "image": t.image,
        "resources": plain(&t.resources),
        "podTemplate": plain(&t.pod_template),
    }))
}

/// What shapes the conductor's pod.
pub fn conductor(job: &RLJob) -> String {
    of(
        &json!({ "conductor": plain(&job.spec.conductor), "serving": crate::RLJob::serving_name(job), "rollout": crate::RLJob::rollout_name(job) }),
    )
}

/// What shapes an engine's pod.
pub fn engine(spec: &ServingClusterSpec) -> String {
    of(&json!({
        "model": plain(&spec.model),
        "storage": plain(&spec.storage),
        "accelerator": plain(&spec.accelerator),
        "engine": plain(&spec.engine),
        "drainTimeoutSeconds": spec.updates.drain_timeout_seconds,
    }))
}

/// What shapes a worker's pod.
pub fn worker(spec: &RolloutPoolSpec) -> String {
    of(&json!({ "storage": plain(&spec.storage), "worker": plain(&spec.worker), "placement": plain(&spec.placement) }))
}

fn plain<T: Serialize>(t: &T) -> Value {
    serde_json::to_value(t).unwrap_or(Value::Null)
}

fn canonical(v: &Value) -> Value {
    match v {
        Value::Object(map) => {
            let mut keys: Vec<_> = map.keys().collect();
            keys.sort();
            let mut out = Map::new();
            for k in keys {
                let v = canonical(&map[k]);
                let empty = match &v {
                    Value::Null => true,
                    Value::Array(a) => a.is_empty(),
                    Value::Object(m) => m.is_empty(),
                    _ => false,
                };
                if !empty {
                    out.insert(k.clone(), v);
                }
            }
            Value::Object(out)
        }
        Value::Array(list) => Value::Array(list.iter().map(canonical).collect()),
        other => other.clone(),
    }
}

impl RLJob {
    /// Name of the ServingCluster this run uses.
    pub fn serving_name(&self) -> String {
        match &self.spec.serving.ref_ {
            Some(r) => r.name.clone(),
            None => format!("{}-serving", self.metadata.name.as_deref().unwrap_or_default()),
        }
    }

    /// Name of the RolloutPool this run uses.
    pub fn rollout_name(&self) -> String {
        match &self.spec.rollout.ref_ {
            Some(r) => r.name.clone(),
            None => format!("{}-rollout", self.metadata.name.as_deref().unwrap_or_default()),
        }
    }
}
