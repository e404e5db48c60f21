//! The controllers of workloads, pure: an object and its pods in, changes out. They do what the cluster's own do.

pub mod daemon_set;
pub mod job;
pub mod queue;
pub mod stateful_set;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use kube::Resource;
use sha2::{Digest, Sha256};

use crate::objects::{name, owner_reference};

/// What a controller wants done to pods.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Make it.
    Create(Box<Pod>),
    /// Delete it, with grace.
    Delete(String),
    /// It has been counted: its record may go.
    Release(String),
}

/// A pod of a template, owned by `owner`.
fn pod_of<O: Resource<DynamicType = ()>>(
    owner: &O,
    template: &PodTemplateSpec,
    pod_name: &str,
    labels: impl IntoIterator<Item = (&'static str, String)>,
) -> Pod {
    let mut pod = Pod { spec: template.spec.clone(), ..Default::default() };
    if let Some(meta) = &template.metadata {
        pod.metadata.labels.clone_from(&meta.labels);
        pod.metadata.annotations.clone_from(&meta.annotations);
    }
    pod.metadata.name = Some(pod_name.into());
    pod.metadata.namespace.clone_from(&owner.meta().namespace);
    pod.metadata.owner_references = Some(vec![owner_reference(owner)]);
    pod.metadata.labels.get_or_insert_default().extend(labels.into_iter().map(|(key, value)| (key.to_owned(), value)));
    pod
}

/// Short stable hash of a template: the revision of its pods.
#[must_use]
pub fn template_hash(template: &PodTemplateSpec) -> String {
    let text = serde_json::to_vec(template).unwrap_or_default();
    Sha256::digest(text).iter().take(5).map(|byte| format!("{byte:02x}")).collect()
}

fn label<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

/// Pods that `owner` controls, by name.
#[must_use]
pub fn owned<'a, O: Resource>(owner: &O, pods: impl Iterator<Item = &'a Pod>) -> BTreeMap<&'a str, &'a Pod> {
    pods.filter(|pod| crate::objects::owns(owner, *pod)).map(|pod| (name(pod), pod)).collect()
}
