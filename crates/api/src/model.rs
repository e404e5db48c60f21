//! Where the model comes from and where the run is stored.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::defaults;

/// The model a run starts from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Model {
    /// A folder on the volume with `config.json` and `tokenizer.json` (and `model.safetensors` unless `init.kind` is
    /// Random), as `pvc://CLAIM/PATH`.
    #[schemars(length(max = 1024))]
    #[x_kube(validation = Rule::new("self.matches('^pvc://[a-z0-9][-a-z0-9.]*/[^/].*$') && !self.contains('..')").message("must be pvc://CLAIM/PATH"))]
    pub source: String,
    /// Where the first weights come from.
    #[serde(default)]
    pub init: Init,
}

/// Where the first weights come from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.kind == 'Random' ? has(self.seed) : !has(self.seed)").message("seed is required with kind Random and only allowed there"))]
pub struct Init {
    /// Pretrained or Random.
    #[serde(default = "defaults::init_kind")]
    pub kind: InitKind,
    /// Seed of the random weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
}

/// Where the first weights come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum InitKind {
    /// From the safetensors of the model's folder.
    #[default]
    Pretrained,
    /// From the config and a seed alone.
    Random,
}

/// The model a ServingCluster serves; the weights of a run are published over it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelRef {
    /// A folder on the volume, as `pvc://CLAIM/PATH`. Without `model.safetensors` the engines wait for the first
    /// publication.
    #[schemars(length(max = 1024))]
    #[x_kube(validation = Rule::new("self.matches('^pvc://[a-z0-9][-a-z0-9.]*/[^/].*$') && !self.contains('..')").message("must be pvc://CLAIM/PATH"))]
    pub source: String,
}

/// The volume that holds model, data and everything a run writes (`runs/UID`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Storage {
    /// A PersistentVolumeClaim (ReadWriteMany) in the object's namespace. Its root is mounted.
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new("self != ''").message("must not be empty"))]
    pub claim_name: String,
}
