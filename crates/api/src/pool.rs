//! RolloutPool: workers that drive generation and rewards.

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{NameRef, PodTemplate, Storage, TemplateMeta, defaults};

/// Workers: each serves any run whose conductor invites it.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "thresh.dev",
    version = "v1alpha1",
    kind = "RolloutPool",
    plural = "rolloutpools",
    shortname = "rp",
    category = "rl",
    namespaced,
    status = "RolloutPoolStatus",
    derive = "PartialEq",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(name = "Ready", type_ = "integer", json_path = ".status.readyReplicas"),
    printcolumn(name = "Desired", type_ = "integer", json_path = ".status.replicas"),
    printcolumn(name = "Updated", type_ = "integer", json_path = ".status.updatedReplicas"),
    printcolumn(name = "Available", type_ = "string", json_path = ".status.conditions[?(@.type==\"Available\")].status"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("self.metadata.name.size() <= 48").message("metadata.name must be at most 48 characters"),
    validation = Rule::new("self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')").message("metadata.name must be lower-case letters, digits and '-', beginning with a letter")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.storage == oldSelf.storage").message("storage is immutable").field_path(".storage"))]
#[x_kube(validation = Rule::new("self.placement == oldSelf.placement").message("placement is immutable").field_path(".placement"))]
#[x_kube(validation = Rule::new("self.placement == 'Replicas' || !has(self.replicas)").message("replicas is only allowed with placement Replicas").field_path(".replicas"))]
pub struct RolloutPoolSpec {
    /// A fixed number of workers, or one per node.
    #[serde(default = "defaults::placement")]
    pub placement: Placement,
    /// Workers, with placement Replicas; by default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 4096))]
    pub replicas: Option<u32>,
    /// The volume workers publish finished groups into.
    pub storage: Storage,
    /// The worker's pod.
    #[serde(default)]
    pub worker: Worker,
}

/// Where workers run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Placement {
    /// One on every node the worker's nodeSelector matches.
    PerNode,
    /// A fixed number.
    Replicas,
}

/// The worker's pod. Workers are stateless: a killed worker's groups reappear when their lease ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Worker {
    /// Prompt groups a worker drives at a time.
    #[serde(default = "defaults::max_concurrent_groups")]
    #[schemars(range(min = 1, max = 65536))]
    pub max_concurrent_groups: u32,
    /// Image; by default the operator's own rollout image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Requests and limits of the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// Anything else about the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_template: Option<PodTemplate>,
}

impl Default for Worker {
    fn default() -> Self {
        Self {
            max_concurrent_groups: defaults::max_concurrent_groups(),
            image: None,
            resources: None,
            pod_template: None,
        }
    }
}

/// Status of a RolloutPool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutPoolStatus {
    /// Generation of the spec this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Workers wanted.
    #[serde(default)]
    pub replicas: u32,
    /// Workers that are ready.
    #[serde(default)]
    pub ready_replicas: u32,
    /// Workers at the wanted revision.
    #[serde(default)]
    pub updated_replicas: u32,
    /// Selector of the worker pods, for `/scale`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub selector: String,
    /// Hash of meaning that is rendered.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub update_revision: String,
    /// Image resolved once, outside the hash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// What holds, with evidence.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// Where an RLJob's workers are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.ref) != has(self.template)").message("exactly one of ref and template must be set"))]
#[x_kube(validation = Rule::new("has(self.ref) == has(oldSelf.ref)").message("the choice between ref and template is immutable"))]
pub struct RolloutSource {
    /// An existing RolloutPool.
    #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
    pub ref_: Option<NameRef>,
    /// Make one, named `NAME-rollout`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<PoolTemplate>,
}

/// A RolloutPool to make.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolTemplate {
    /// Labels and annotations.
    #[serde(default)]
    pub metadata: TemplateMeta,
    /// Its spec.
    pub spec: PoolTemplateSpec,
}

/// The spec of a RolloutPool to make; storage is the run's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.placement == 'Replicas' || !has(self.replicas)").message("replicas is only allowed with placement Replicas").field_path(".replicas"))]
#[x_kube(validation = Rule::new("self.placement == oldSelf.placement").message("placement is immutable").field_path(".placement"))]
pub struct PoolTemplateSpec {
    /// A fixed number of workers, or one per node.
    #[serde(default = "defaults::placement")]
    pub placement: Placement,
    /// Workers, with placement Replicas; by default 1. Written when the RolloutPool is made and when this field is edited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 4096))]
    pub replicas: Option<u32>,
    /// The worker's pod.
    #[serde(default)]
    pub worker: Worker,
}
