//! What a failed test leaves behind, for whoever reads about it at three in the morning.

use std::fmt::Write as _;

use api::{RLJob, RolloutPool, ServingCluster};
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    batch::v1::Job,
    core::v1::{Event, Pod},
};
use kube::{
    Api, Resource, ResourceExt,
    api::{ListParams, LogParams},
};
use serde::{Serialize, de::DeserializeOwned};

use crate::{operator::folder, stage::Stage};

/// Writes objects, events and the ends of logs into `target/e2e/NAME/`.
pub async fn gather(stage: &Stage, error: &anyhow::Error) {
    let folder = folder().join(&stage.test);
    // Evidence that cannot be written is missed when it is looked for; the verdict stands either way.
    let _ = std::fs::remove_dir_all(&folder);
    let _ = std::fs::create_dir_all(&folder);
    let _ = std::fs::write(folder.join("error.txt"), format!("{error:?}\nwhile {}\n", stage.doing()));
    let write = |name: &str, text: String| {
        let _ = std::fs::write(folder.join(name), text);
    };
    write("rljobs.json", objects::<RLJob>(stage).await);
    write("servingclusters.json", objects::<ServingCluster>(stage).await);
    write("rolloutpools.json", objects::<RolloutPool>(stage).await);
    write("jobs.json", objects::<Job>(stage).await);
    write("statefulsets.json", objects::<StatefulSet>(stage).await);
    write("pods.json", objects::<Pod>(stage).await);
    let mut events = String::new();
    if let Ok(list) = stage.api::<Event>().list(&ListParams::default()).await {
        for event in list {
            let about = event.involved_object;
            let _ = writeln!(
                events,
                "{} {}/{} {} {}",
                event
                    .event_time
                    .map(|t| t.0.to_string())
                    .or(event.last_timestamp.map(|t| t.0.to_string()))
                    .unwrap_or_default(),
                about.kind.unwrap_or_default(),
                about.name.unwrap_or_default(),
                event.reason.unwrap_or_default(),
                event.message.unwrap_or_default()
            );
        }
    }
    write("events.txt", events);
    let pods: Api<Pod> = stage.api();
    for pod in pods.list(&ListParams::default()).await.map(|l| l.items).unwrap_or_default() {
        for previous in [false, true] {
            let params = LogParams { tail_lines: Some(200), previous, ..LogParams::default() };
            if let Ok(text) = pods.logs(&pod.name_any(), &params).await {
                write(&format!("{}{}.log", pod.name_any(), if previous { ".previous" } else { "" }), text);
            }
        }
    }
}

async fn objects<K>(stage: &Stage) -> String
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + Serialize
        + DeserializeOwned,
{
    match stage.api::<K>().list(&ListParams::default()).await {
        Ok(list) => serde_json::to_string_pretty(&list.items).unwrap_or_default(),
        Err(error) => error.to_string(),
    }
}
