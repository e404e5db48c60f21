//! The stage of a test: a namespace with a claim on the cluster's shared volume, and hands and eyes in it.

use std::{
    fmt::Debug,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use api::{RLJob, RolloutPool, ServingCluster, labels};
use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        apps::v1::Deployment,
        core::v1::{Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod},
    },
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    core::PartialObjectMeta,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::harness::Skip;

/// Name of the claim in every stage.
pub const CLAIM: &str = "thresh-data";
/// Between two looks.
const LOOK: Duration = Duration::from_millis(150);

/// A namespace for one test.
pub struct Stage {
    /// The cluster.
    pub client: Client,
    /// The namespace.
    pub namespace: String,
    /// The test's name.
    pub test: String,
    doing: Mutex<String>,
}

/// The repository.
pub fn repository() -> PathBuf {
    std::env::var_os("THRESH_REPOSITORY").map_or_else(|| PathBuf::from("."), PathBuf::from)
}

/// Where the cluster's shared volume is on every node.
pub fn volume() -> PathBuf {
    std::env::var_os("THRESH_E2E_VOLUME").map_or_else(|| PathBuf::from("/var/lib/thresh-e2e/volume"), PathBuf::from)
}

impl Stage {
    /// Nodes that are ready.
    ///
    /// # Errors
    /// When they cannot be listed.
    pub async fn ready_nodes(client: &Client) -> anyhow::Result<usize> {
        let nodes: Api<Node> = Api::all(client.clone());
        let nodes = nodes.list(&ListParams::default()).await.context("list nodes")?;
        let ready = |n: &Node| {
            let conditions = n.status.as_ref().and_then(|s| s.conditions.as_ref());
            conditions.is_some_and(|list| list.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
        };
        Ok(nodes.iter().filter(|n| ready(n)).count())
    }

    /// A namespace on an API server alone: nobody binds its claim, so that is done here, and nobody deletes it.
    ///
    /// # Errors
    /// When the API server refuses.
    pub async fn bare(client: &Client, test: &str) -> anyhow::Result<Self> {
        let stage = Self::of(client, test);
        let all: Api<Namespace> = Api::all(client.clone());
        let object = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": stage.namespace } });
        all.create(&PostParams::default(), &serde_json::from_value(object)?).await.context("create the namespace")?;
        let claims: Api<PersistentVolumeClaim> = stage.api();
        let claim = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": CLAIM },
            "spec": { "accessModes": ["ReadWriteMany"], "storageClassName": "",
                      "resources": { "requests": { "storage": "1Gi" } } },
        });
        claims.create(&PostParams::default(), &serde_json::from_value(claim)?).await.context("create the claim")?;
        let bound = Patch::Merge(json!({ "status": { "phase": "Bound" } }));
        claims.patch_status(CLAIM, &PatchParams::default(), &bound).await.context("bind the claim")?;
        Ok(stage)
    }

    fn of(client: &Client, test: &str) -> Self {
        let mut short: String = test.replace('_', "-").chars().take(40).collect();
        short.truncate(short.trim_end_matches('-').len());
        Self {
            client: client.clone(),
            namespace: format!("e2e-{short}"),
            test: test.to_owned(),
            doing: Mutex::new("setting the stage".into()),
        }
    }

    /// Makes a fresh namespace under the restricted pod security standard, with the claim bound.
    ///
    /// # Errors
    /// When the API server refuses, or the claim does not bind.
    pub async fn set(client: &Client, test: &str) -> anyhow::Result<Self> {
        let stage = Self::of(client, test);
        let namespace = &stage.namespace;
        stage.strike().await;
        let all: Api<Namespace> = Api::all(client.clone());
        let object = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace, "labels": {
            "pod-security.kubernetes.io/enforce": "restricted", "thresh.dev/e2e": "true" } } });
        all.create(&PostParams::default(), &serde_json::from_value(object)?).await.context("create the namespace")?;
        stage.claim(CLAIM).await?;
        stage
            .until("the default ServiceAccount", 30, async || {
                let api: Api<k8s_openapi::api::core::v1::ServiceAccount> = stage.api();
                Ok(api.get_opt("default").await?)
            })
            .await?;
        Ok(stage)
    }

    /// A claim of that name, bound to the root of the shared volume.
    ///
    /// # Errors
    /// When it does not bind.
    pub async fn claim(&self, name: &str) -> anyhow::Result<()> {
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let volume_name = format!("{}-{name}", self.namespace);
        let volume = json!({
            "apiVersion": "v1", "kind": "PersistentVolume",
            "metadata": { "name": volume_name, "labels": { "thresh.dev/e2e": "true" } },
            "spec": {
                "capacity": { "storage": "10Gi" }, "accessModes": ["ReadWriteMany"],
                "persistentVolumeReclaimPolicy": "Retain", "storageClassName": "",
                "claimRef": { "namespace": self.namespace, "name": name },
                "hostPath": { "path": volume() },
            },
        });
        volumes.create(&PostParams::default(), &serde_json::from_value(volume)?).await.context("create the volume")?;
        let claim = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": name },
            "spec": { "accessModes": ["ReadWriteMany"], "storageClassName": "", "volumeName": volume_name,
                      "resources": { "requests": { "storage": "1Gi" } } },
        });
        let claims: Api<PersistentVolumeClaim> = self.api();
        claims.create(&PostParams::default(), &serde_json::from_value(claim)?).await.context("create the claim")?;
        self.until("the claim to bind", 60, async || {
            let claim = claims.get(name).await?;
            Ok((claim.status.and_then(|s| s.phase).as_deref() == Some("Bound")).then_some(()))
        })
        .await
    }

    /// Nobody else has an operator or objects of our kinds on this cluster: what follows would touch them.
    ///
    /// # Errors
    /// [`Skip`] with what is there.
    pub async fn alone(&self) -> anyhow::Result<()> {
        use crate::operator::{DEPLOYMENT, NAMESPACE};
        let deployments: Api<Deployment> = Api::namespaced(self.client.clone(), NAMESPACE);
        if deployments.get_opt(DEPLOYMENT).await?.is_some() {
            bail!(Skip(format!("Deployment {NAMESPACE}/{DEPLOYMENT} is there, and this would take it away")));
        }
        async fn others<K>(stage: &Stage) -> anyhow::Result<()>
        where
            K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + DeserializeOwned + Clone + Debug,
        {
            let all: Api<PartialObjectMeta<K>> = Api::all(stage.client.clone());
            // Where the kind is not even known there is none.
            let there = all.list_metadata(&ListParams::default()).await.map(|list| list.items).unwrap_or_default();
            match there.iter().find(|one| one.namespace().is_none_or(|n| n != stage.namespace)) {
                Some(one) => {
                    let (namespace, name) = (one.namespace().unwrap_or_default(), one.name_any());
                    bail!(Skip(format!("{} {namespace}/{name} is there, and this would touch it", K::kind(&()))))
                }
                None => Ok(()),
            }
        }
        others::<RLJob>(self).await?;
        others::<ServingCluster>(self).await?;
        others::<RolloutPool>(self).await
    }

    /// Takes our finalizers off: no operator is left that would.
    pub async fn release(&self) {
        self.let_go::<RLJob>().await;
        self.let_go::<ServingCluster>().await;
    }

    async fn let_go<K>(&self)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + std::fmt::Debug + DeserializeOwned,
    {
        let all: Api<K> = self.api();
        for one in all.list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default() {
            // One that is gone meanwhile needs it no more.
            let _ = all.delete(&one.name_any(), &DeleteParams::background()).await;
            let none = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
            let _ = all.patch(&one.name_any(), &PatchParams::default(), &none).await;
        }
    }

    /// Takes everything away again.
    pub async fn strike(&self) {
        let all: Api<Namespace> = Api::all(self.client.clone());
        let _ = all.delete(&self.namespace, &DeleteParams::default()).await;
        let gone = self
            .until("the namespace to go", 90, async || Ok(all.get_opt(&self.namespace).await?.is_none().then_some(())))
            .await;
        if let Err(error) = gone {
            println!("        {}: {error:#}", self.namespace);
        }
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let _ = volumes.delete(&format!("{}-{CLAIM}", self.namespace), &DeleteParams::default()).await;
    }

    /// What the test waits for.
    pub fn doing(&self) -> String {
        self.doing.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Objects of one kind here.
    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Looks until `look` finds something.
    ///
    /// # Errors
    /// After `seconds`, with what was waited for.
    pub async fn until<T>(
        &self,
        what: &str,
        seconds: u64,
        look: impl AsyncFn() -> anyhow::Result<Option<T>>,
    ) -> anyhow::Result<T> {
        *self.doing.lock().unwrap_or_else(PoisonError::into_inner) = format!("waiting for {what}");
        let until = Instant::now() + Duration::from_secs(seconds);
        loop {
            let seen = look().await;
            if let Ok(Some(found)) = seen {
                return Ok(found);
            }
            if Instant::now() >= until {
                seen.map(drop).with_context(|| format!("looking for {what}"))?;
                bail!("{what}: not within {seconds} s");
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Holds for that long, looked at all the time.
    ///
    /// # Errors
    /// When `holds` fails once.
    pub async fn always(
        &self,
        what: &str,
        seconds: u64,
        holds: impl AsyncFn() -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        *self.doing.lock().unwrap_or_else(PoisonError::into_inner) = format!("seeing that {what}");
        let until = Instant::now() + Duration::from_secs(seconds);
        while Instant::now() < until {
            holds().await.with_context(|| what.to_owned())?;
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// `kubectl apply` of an object.
    ///
    /// # Errors
    /// When the API server refuses.
    pub async fn apply<K>(&self, object: &K) -> anyhow::Result<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Serialize + DeserializeOwned + Clone + Debug,
    {
        let mut body = serde_json::to_value(object)?;
        api::without_nulls(&mut body);
        if let Value::Object(map) = &mut body {
            map.remove("status");
        }
        let params = PatchParams {
            field_validation: Some(kube::api::ValidationDirective::Strict),
            ..PatchParams::apply("e2e").force()
        };
        Ok(self.api::<K>().patch(&object.name_any(), &params, &Patch::Apply(&body)).await?)
    }

    /// A merge patch, as `kubectl patch --type merge` sends it.
    ///
    /// # Errors
    /// When the API server refuses.
    pub async fn patch<K>(&self, name: &str, patch: Value) -> anyhow::Result<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + DeserializeOwned + Clone + Debug,
    {
        Ok(self.api::<K>().patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await?)
    }

    /// Pods of that role, whoever owns them.
    ///
    /// # Errors
    /// When they cannot be listed.
    pub async fn pods(&self, role: &str) -> anyhow::Result<Vec<Pod>> {
        let params = ListParams::default().labels(&format!("{}={role}", labels::ROLE));
        Ok(self.api::<Pod>().list(&params).await.context("list pods")?.items)
    }

    /// The RLJob.
    ///
    /// # Errors
    /// When it is not there.
    pub async fn rljob(&self, name: &str) -> anyhow::Result<RLJob> {
        self.api::<RLJob>().get(name).await.with_context(|| format!("get RLJob {name}"))
    }

    /// The ServingCluster.
    ///
    /// # Errors
    /// When it is not there.
    pub async fn serving(&self, name: &str) -> anyhow::Result<ServingCluster> {
        self.api::<ServingCluster>().get(name).await.with_context(|| format!("get ServingCluster {name}"))
    }

    /// The RolloutPool.
    ///
    /// # Errors
    /// When it is not there.
    pub async fn pool(&self, name: &str) -> anyhow::Result<RolloutPool> {
        self.api::<RolloutPool>().get(name).await.with_context(|| format!("get RolloutPool {name}"))
    }
}

/// Copies the examples' data to the shared volume, once.
///
/// # Errors
/// When a file cannot be copied.
pub fn bring_data() -> anyhow::Result<()> {
    let from = repository().join("examples/quickstart/volumes/thresh-data");
    copy(&from, &volume()).with_context(|| format!("copy {} to {}", from.display(), volume().display()))
}

/// Copies a folder, over what is there.
///
/// # Errors
/// When a file cannot be copied.
pub fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
