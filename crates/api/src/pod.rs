//! What every role lets its user say about its pods.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use k8s_openapi::api::core::v1::ResourceRequirements;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// A pod template `{metadata, spec}`, merged strategically over the rendered one, so every pod field works. Untyped in the
/// schema (it would be ten thousand lines) and decoded strictly by `plan::validate`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PodTemplate(pub serde_json::Value);

impl JsonSchema for PodTemplate {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "PodTemplate".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object",
            "description": "A pod template {metadata, spec}, merged over the rendered one.",
            "x-kubernetes-preserve-unknown-fields": true,
        })
    }
}

/// Labels and annotations for an object made from a template.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TemplateMeta {
    /// Labels added to ours.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations added to ours.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// The conductor's pod. An edit restarts the conductor alone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConductorRole {
    /// Image; by default the operator's own rollout image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Requests and limits of its container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// Anything else about the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_template: Option<PodTemplate>,
}

impl PodTemplate {
    /// What is wrong with it, as fields below `path`: unknown fields and values that do not fit; and the template without them.
    pub fn checked(&self, path: &str) -> (PodTemplate, Vec<crate::Problem>) {
        // Made once: it takes milliseconds, and every decision about a run with a template validates it.
        static SCHEMA: LazyLock<serde_json::Value> =
            LazyLock::new(crate::manifest::inline::<k8s_openapi::api::core::v1::PodTemplateSpec>);
        let mut problems = Vec::new();
        let mut value = self.0.clone();
        crate::manifest::check_against(&mut value, &SCHEMA, path, &mut problems);
        // It is merged over a whole pod: it need not name containers itself.
        problems.retain(|p| !(p.rule == "required" && p.path == format!("{path}.spec.containers")));
        (PodTemplate(value), problems)
    }
}
