//! The end of the operator: nobody acts any more, and no object is left that waits for a finalizer of ours.

use std::time::Duration;

use anyhow::{Context as _, bail};
use api::{RLJob, RolloutPool, ServingCluster, labels};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams},
    core::PartialObjectMeta,
};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::{api_server, args, kind::Kind};

/// How long the operator's pods may take to end.
const PODS: Duration = Duration::from_secs(120);

/// Scales the operator to zero, waits for its pods, then removes our finalizers.
///
/// # Errors
/// When the API server refuses, or the pods do not end.
pub async fn uninstall(args: args::Uninstall) -> anyhow::Result<()> {
    let client = api_server().await?;
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), &args.pod_namespace);
    if let Some(deployment) = deployments.get_opt(&args.deployment).await.context("read the operator's Deployment")? {
        let none = Patch::Merge(json!({ "spec": { "replicas": 0 } }));
        deployments
            .patch(&args.deployment, &PatchParams::default(), &none)
            .await
            .context("scale the operator to zero")?;
        let selector = deployment.spec.and_then(|s| s.selector.match_labels).unwrap_or_default();
        let selector: Vec<_> = selector.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let pods: Api<Pod> = Api::namespaced(client.clone(), &args.pod_namespace);
        let until = Instant::now() + PODS;
        loop {
            let left =
                pods.list(&ListParams::default().labels(&selector.join(","))).await.context("list its pods")?.items;
            if left.is_empty() {
                break;
            }
            if Instant::now() >= until {
                bail!("{} pods of the operator have not ended within {} s", left.len(), PODS.as_secs());
            }
            sleep(Duration::from_secs(1)).await;
        }
    }
    let namespaces: Vec<Option<&str>> = match args.namespaces.iter().filter(|n| !n.is_empty()).collect::<Vec<_>>() {
        none if none.is_empty() => vec![None],
        some => some.into_iter().map(|n| Some(n.as_str())).collect(),
    };
    for namespace in namespaces {
        release::<RLJob>(&client, namespace).await?;
        release::<ServingCluster>(&client, namespace).await?;
        release::<RolloutPool>(&client, namespace).await?;
    }
    Ok(())
}

async fn release<K: Kind>(client: &Client, namespace: Option<&str>) -> anyhow::Result<()> {
    let all: Api<PartialObjectMeta<K>> = match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    let listed = match all.list_metadata(&ListParams::default()).await {
        Ok(listed) => listed.items,
        // Its CRD is gone already, and every object with it.
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
        Err(error) => return Err(error).with_context(|| format!("list {}s", K::NAME)),
    };
    for object in listed {
        let meta = object.metadata;
        let finalizers = meta.finalizers.unwrap_or_default();
        let kept: Vec<_> = finalizers.iter().filter(|one| !one.starts_with(labels::PREFIX)).collect();
        if kept.len() == finalizers.len() {
            continue;
        }
        let (name, namespace) = (meta.name.unwrap_or_default(), meta.namespace.unwrap_or_default());
        let api: Api<PartialObjectMeta<K>> = Api::namespaced(client.clone(), &namespace);
        let body = Patch::Merge(json!({ "metadata": { "finalizers": kept } }));
        match api.patch_metadata(&name, &PatchParams::default(), &body).await {
            Ok(_) => tracing::info!("{} {namespace}/{name} waits for us no more", K::NAME),
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(error).with_context(|| format!("release {} {namespace}/{name}", K::NAME)),
        }
    }
    Ok(())
}
