//! The versioned hash of meaning: `v1:` + sha256 over a canonical (defaulted, sorted) subset of a spec.
//!
//! It says whether a child must be replaced. Image digests of helpers, the operator's version, the CRD's shape and added labels
//! are no part of it; a golden test pins it.

use serde::Serialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::{RLJob, RolloutPoolSpec, ServingClusterSpec};

/// Version of the rule below. A change of rule is a new prefix, and old hashes are compared by the old rule.
pub const VERSION: &str = "v1";

/// `v1:` + the first 16 bytes, in hex, of the SHA-256 of the value's canonical JSON: keys sorted, nulls, empty lists and
/// empty maps left out.
pub fn of(value: &Value) -> String {
    let mut canonical = Vec::with_capacity(4096);
    write_canonical(value, &mut canonical);
    digest(&canonical)
}

/// The same of a map with these entries, which are only borrowed.
pub fn of_entries(entries: &[(&str, &Value)]) -> String {
    let mut canonical = Vec::with_capacity(4096);
    write_map(entries.to_vec(), &mut canonical);
    digest(&canonical)
}

fn digest(canonical: &[u8]) -> String {
    let digest = Sha256::digest(canonical);
    let mut hex = String::with_capacity(VERSION.len() + 33);
    hex.push_str(VERSION);
    hex.push(':');
    for b in digest.iter().take(16) {
        for half in [b >> 4, b & 15] {
            hex.push(char::from_digit(half.into(), 16).unwrap_or('0'));
        }
    }
    hex
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

/// Appends the canonical JSON of the value. False if it says nothing: null, or a list or map without content.
fn write_canonical(v: &Value, out: &mut Vec<u8>) -> bool {
    match v {
        Value::Object(map) => write_map(map.iter().map(|(k, v)| (k.as_str(), v)).collect(), out),
        Value::Array(list) => {
            out.push(b'[');
            for (i, v) in list.iter().enumerate() {
                if i > 0 {
                    out.push(b',');
                }
                // In a list even what says nothing has its place.
                write_canonical(v, out);
            }
            out.push(b']');
            !list.is_empty()
        }
        other => {
            write_scalar(other, out);
            !other.is_null()
        }
    }
}

fn write_map(mut entries: Vec<(&str, &Value)>, out: &mut Vec<u8>) -> bool {
    entries.sort_unstable_by_key(|(k, _)| *k);
    out.push(b'{');
    let mut says = false;
    for (k, v) in entries {
        let before = out.len();
        if says {
            out.push(b',');
        }
        write_scalar(k, out);
        out.push(b':');
        if write_canonical(v, out) {
            says = true;
        } else {
            out.truncate(before);
        }
    }
    out.push(b'}');
    says
}

fn write_scalar<T: Serialize + ?Sized>(t: &T, out: &mut Vec<u8>) {
    // A scalar always has its JSON, and a Vec takes every write.
    let _ = serde_json::to_writer(out, t);
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
