//! ServingCluster: engines that answer.

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, MicroTime};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Accelerator, ModelRef, PodTemplate, Storage, TemplateMeta, defaults};

/// Engines that answer, at the weights of whoever holds the writer's role.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "thresh.dev",
    version = "v1alpha1",
    kind = "ServingCluster",
    plural = "servingclusters",
    shortname = "svcl",
    category = "rl",
    namespaced,
    status = "ServingClusterStatus",
    derive = "PartialEq",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(name = "Ready", type_ = "integer", json_path = ".status.readyReplicas"),
    printcolumn(name = "Desired", type_ = "integer", json_path = ".spec.replicas"),
    printcolumn(name = "Updated", type_ = "integer", json_path = ".status.updatedReplicas"),
    printcolumn(name = "Weights", type_ = "integer", json_path = ".status.weights.version"),
    printcolumn(name = "Writer", type_ = "string", json_path = ".status.weights.writer.rljob"),
    printcolumn(name = "Available", type_ = "string", json_path = ".status.conditions[?(@.type==\"Available\")].status"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Model", type_ = "string", json_path = ".spec.model.source", priority = "1"),
    printcolumn(name = "TP", type_ = "integer", json_path = ".spec.engine.tp", priority = "1"),
    printcolumn(name = "Image", type_ = "string", json_path = ".spec.engine.image", priority = "1"),
    printcolumn(name = "Endpoint", type_ = "string", json_path = ".status.endpoint", priority = "1"),
    validation = Rule::new("self.metadata.name.size() <= 48").message("metadata.name must be at most 48 characters"),
    validation = Rule::new("self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')").message("metadata.name must be lower-case letters, digits and '-', beginning with a letter"),
    validation = Rule::new("!has(oldSelf.status) || !has(oldSelf.status.weights) || !has(oldSelf.status.weights.writer) || self.spec.model == oldSelf.spec.model").message("model may not change while an RLJob holds the writer's role").field_path(".spec.model")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.storage == oldSelf.storage").message("storage is immutable").field_path(".storage"))]
#[x_kube(validation = Rule::new("self.accelerator.vendor == oldSelf.accelerator.vendor").message("accelerator.vendor is immutable").field_path(".accelerator"))]
#[x_kube(validation = Rule::new("self.model.source.startsWith('pvc://' + self.storage.claimName + '/')").message("model.source must be on storage.claimName").field_path(".model"))]
pub struct ServingClusterSpec {
    /// Engines.
    #[serde(default = "defaults::one")]
    #[schemars(range(min = 0, max = 4096))]
    pub replicas: u32,
    /// What they serve before the first publication.
    pub model: ModelRef,
    /// The volume with the model and the published weights.
    pub storage: Storage,
    /// Devices of an engine.
    pub accelerator: Accelerator,
    /// The server.
    pub engine: Engine,
    /// How an edit rolls through the engines.
    #[serde(default)]
    pub updates: Updates,
    /// What evictions may take. An edit changes the PodDisruptionBudget, and nothing else.
    #[serde(default, skip_serializing_if = "Disruption::is_default")]
    pub disruption: Disruption,
}

/// Flags of an engine that the operator sets: `engine.args` may not hold them.
pub const OPERATOR_ENGINE_FLAGS: [&str; 6] =
    ["--listen", "--model-path", "--api-key", "--max-running-requests", "--drain-timeout-secs", "--lame-duck-secs"];

/// Flags of the native engine that `engine.args` may hold; the others are [`OPERATOR_ENGINE_FLAGS`].
pub const NATIVE_ENGINE_FLAGS: [&str; 12] = [
    "--weight-version",
    "--threads",
    "--max-queued-requests",
    "--max-total-tokens",
    "--kv-cache-mib",
    "--context-length",
    "--chunked-prefill-size",
    "--disable-radix-cache",
    "--incremental-streaming-output",
    "--health-timeout-secs",
    "--control-timeout-secs",
    "--watchdog-timeout-secs",
];

/// The server of an engine pod.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Engine {
    /// Which server: chooses command, probes and dialect.
    pub kind: EngineKind,
    /// Devices a model copy is split over.
    #[serde(default = "defaults::one")]
    #[schemars(range(min = 1, max = 1))]
    pub tp: u32,
    /// Requests generated at a time.
    #[serde(default = "defaults::max_running_requests")]
    #[schemars(range(min = 1, max = 65536))]
    pub max_running_requests: u32,
    /// Image; by default the operator's own of the kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// More arguments of the server.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Requests and limits of the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// Anything else about the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_template: Option<PodTemplate>,
}

/// Kinds of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum EngineKind {
    /// Thresh's own: shares the model code with the trainer.
    Native,
}

/// How an edit rolls through the engines, one after the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Updates {
    /// Engines that may be away at a time.
    #[serde(default = "defaults::max_unavailable")]
    #[schemars(range(min = 1, max = 4096))]
    pub max_unavailable: u32,
    /// Longest time an engine may finish what it has before it is ended.
    #[serde(default = "defaults::drain_timeout")]
    #[schemars(range(min = 0, max = 86400))]
    pub drain_timeout_seconds: u32,
}

impl Default for Updates {
    fn default() -> Self {
        Self { max_unavailable: defaults::max_unavailable(), drain_timeout_seconds: defaults::drain_timeout() }
    }
}

/// What evictions (a node that is drained, say) may take. They do not ask us: a PodDisruptionBudget does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Disruption {
    /// Engines that may be evicted at a time. With 0, no node with an engine that answers can be drained.
    #[serde(default = "defaults::max_unavailable")]
    #[schemars(range(min = 0, max = 4096))]
    pub max_unavailable: u32,
}

impl Default for Disruption {
    fn default() -> Self {
        Self { max_unavailable: defaults::max_unavailable() }
    }
}

impl Disruption {
    /// What is at its default is not written: a field that is new changes no hash of what was there before it.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Status of a ServingCluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServingClusterStatus {
    /// Generation of the spec this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Engine pods.
    #[serde(default)]
    pub replicas: u32,
    /// Engines that can answer.
    #[serde(default)]
    pub ready_replicas: u32,
    /// Engines at the wanted revision.
    #[serde(default)]
    pub updated_replicas: u32,
    /// Selector of the engine pods, for `/scale`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub selector: String,
    /// Hash of meaning all engines were last at together: ordinals that an update has not reached come back at it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub current_revision: String,
    /// Hash of meaning that is rendered.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub update_revision: String,
    /// Where others than runs find the engines that answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Image resolved once, outside the hash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Weights.
    #[serde(default)]
    pub weights: WeightsStatus,
    /// First sight of an engine on a lost node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_since: Option<MicroTime>,
    /// When the last drain, that of a deletion, began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_since: Option<MicroTime>,
    /// What holds, with evidence.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// Weights of the engines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WeightsStatus {
    /// The RLJob that alone may change the weights; first come holds, until it is terminal, deleted or turned elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writer: Option<Writer>,
    /// Version the writer has published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// Oldest version an engine serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_version: Option<u64>,
}

/// Who may change the weights.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Writer {
    /// Name of the RLJob.
    pub rljob: String,
    /// Its uid.
    pub uid: String,
}

/// Where an RLJob's engines are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.ref) != has(self.template)").message("exactly one of ref and template must be set"))]
#[x_kube(validation = Rule::new("has(self.ref) == has(oldSelf.ref)").message("the choice between ref and template is immutable"))]
pub struct ServingSource {
    /// An existing ServingCluster.
    #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
    pub ref_: Option<NameRef>,
    /// Make one, named `NAME-serving`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<ServingTemplate>,
    /// The trainer starts when this share of the engines is ready.
    #[serde(default = "defaults::min_ready_percent")]
    #[schemars(range(min = 1, max = 100))]
    pub min_ready_percent: u32,
}

/// An object in the same namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NameRef {
    /// Its name.
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new("self != ''").message("must not be empty"))]
    pub name: String,
}

/// A ServingCluster to make.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServingTemplate {
    /// Labels and annotations.
    #[serde(default)]
    pub metadata: TemplateMeta,
    /// Its spec.
    pub spec: ServingTemplateSpec,
}

/// The spec of a ServingCluster to make; model and storage are the run's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServingTemplateSpec {
    /// Engines. Written when the ServingCluster is made and when this field is edited; between, its own count stands.
    #[serde(default = "defaults::one")]
    #[schemars(range(min = 0, max = 4096))]
    pub replicas: u32,
    /// Devices of an engine.
    pub accelerator: Accelerator,
    /// The server.
    pub engine: Engine,
    /// How an edit rolls through the engines.
    #[serde(default)]
    pub updates: Updates,
    /// What evictions may take.
    #[serde(default, skip_serializing_if = "Disruption::is_default")]
    pub disruption: Disruption,
}
