//! Whether the CRDs that the API server serves have every field this operator needs. One that lacks a field would silently
//! drop what we write and hide what a user wrote, so then nothing is touched.

use api::{RLJob, RolloutPool, ServingCluster};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, Client, CustomResourceExt};
use serde_json::Value;

use crate::{apply::ask, error::Result};

/// What is missing, in words; nothing if all is well.
pub async fn missing(client: &Client) -> Result<Option<String>> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    for (name, wanted) in [
        (RLJob::crd_name(), api::definition::<RLJob>()),
        (ServingCluster::crd_name(), api::definition::<ServingCluster>()),
        (RolloutPool::crd_name(), api::definition::<RolloutPool>()),
    ] {
        let Some(served) = ask(&format!("get CustomResourceDefinition {name}"), api.get_opt(name)).await? else {
            return Ok(Some(format!("CustomResourceDefinition {name} is not installed")));
        };
        let served = serde_json::to_value(&served).unwrap_or(Value::Null);
        if let Some(field) = first_missing(schema(&wanted), schema(&served), "") {
            return Ok(Some(format!(
                "CustomResourceDefinition {name} has no {field}: it is older than this operator; install the CRDs that came with it"
            )));
        }
    }
    Ok(None)
}

/// Uid and generation of each served CRD. A schema cannot change without them, and they cost far less to ask for.
pub async fn editions(client: &Client) -> Result<Vec<(String, Option<i64>)>> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let mut editions = Vec::new();
    for name in [RLJob::crd_name(), ServingCluster::crd_name(), RolloutPool::crd_name()] {
        let served = ask(&format!("get CustomResourceDefinition {name}"), api.get_metadata_opt(name)).await?;
        let meta = served.map(|one| one.metadata).unwrap_or_default();
        editions.push((meta.uid.unwrap_or_default(), meta.generation));
    }
    Ok(editions)
}

fn schema(crd: &Value) -> &Value {
    let versions = crd["spec"]["versions"].as_array();
    let ours = versions.and_then(|list| list.iter().find(|v| v["name"] == api::VERSION));
    ours.map_or(&Value::Null, |version| &version["schema"]["openAPIV3Schema"])
}

/// The first field of `wanted` that `served` lacks.
fn first_missing(wanted: &Value, served: &Value, path: &str) -> Option<String> {
    if let Some(fields) = wanted["properties"].as_object() {
        // Where everything is kept, nothing is dropped.
        if served["x-kubernetes-preserve-unknown-fields"] == true {
            return None;
        }
        for (name, field) in fields {
            let below = format!("{path}.{name}");
            match served["properties"].get(name) {
                None => return Some(below),
                Some(there) => {
                    if let Some(missing) = first_missing(field, there, &below) {
                        return Some(missing);
                    }
                }
            }
        }
    }
    ["items", "additionalProperties"]
        .into_iter()
        .filter(|below| wanted[below].is_object())
        .find_map(|below| first_missing(&wanted[below], &served[below], &format!("{path}[]")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_definition_is_found_out_by_the_field_it_lacks_and_a_newer_one_is_fine() {
        let ours = api::definition::<RLJob>();
        assert_eq!(first_missing(schema(&ours), schema(&ours), ""), None);
        let mut older = ours.clone();
        let place = &mut older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
            ["trainer"]["properties"];
        place.as_object_mut().unwrap().remove("failurePolicy").unwrap();
        assert_eq!(first_missing(schema(&ours), schema(&older), "").as_deref(), Some(".spec.trainer.failurePolicy"));
        assert_eq!(first_missing(schema(&older), schema(&ours), ""), None);
    }

    #[test]
    fn a_field_within_a_list_or_a_map_is_looked_for_too() {
        let wanted = serde_json::json!({"properties": {"a": {"items": {"properties": {"x": {}, "y": {}}}}}});
        let served = serde_json::json!({"properties": {"a": {"items": {"properties": {"x": {}}}}}});
        assert_eq!(first_missing(&wanted, &served, "").as_deref(), Some(".a[].y"));
    }
}
