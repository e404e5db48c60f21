//! What the API server tells: a run and all that belongs to it.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use api::{RLJob, RolloutPool, ServingCluster};
use glance::{Facts, Happening, Place};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::{
    Api, Client, Config,
    api::{ListParams, LogParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use plan::Settings;

use crate::{
    args::Of,
    trouble::{no_way, said},
};

/// For a way to the API server.
const CONNECT: Duration = Duration::from_secs(10);
/// For more of its answer.
const ANSWER: Duration = Duration::from_secs(30);

/// A namespace of a cluster.
pub struct Cluster {
    client: Client,
    /// The namespace.
    pub namespace: String,
    settings: Settings,
}

/// A run as it is now.
pub struct Seen {
    /// The run.
    pub job: RLJob,
    /// Its engines.
    pub serving: Option<ServingCluster>,
    /// Its workers.
    pub pool: Option<RolloutPool>,
    /// Pods of all roles.
    pub pods: Vec<Pod>,
    /// When that was.
    pub now: Timestamp,
}

impl Seen {
    /// What is known.
    pub fn facts<'a>(&'a self, cluster: &'a Cluster) -> Facts<'a> {
        let Self { job, serving, pool, pods, now } = self;
        Facts {
            job,
            serving: serving.as_ref(),
            pool: pool.as_ref(),
            pods,
            now: *now,
            settings: &cluster.settings,
            place: Place::Cluster { namespace: &cluster.namespace },
        }
    }
}

impl Cluster {
    /// The cluster of the kubeconfig. Who `follows` a log waits for its next line as long as it takes.
    pub async fn connect(of: &Of, follows: bool) -> Result<Self> {
        let options = KubeConfigOptions { context: of.context.clone(), ..KubeConfigOptions::default() };
        let found = match &of.kubeconfig {
            Some(path) if !path.exists() => bail!("--kubeconfig {}: no such file", path.display()),
            Some(path) => match Kubeconfig::read_from(path) {
                Ok(kubeconfig) => Config::from_custom_kubeconfig(kubeconfig, &options).await,
                Err(error) => Err(error),
            },
            None => Config::from_kubeconfig(&options).await,
        };
        let mut config = match found {
            Ok(config) => config,
            Err(error) => {
                // A pod has none; it has an account.
                let pod = (of.kubeconfig.is_none() && of.context.is_none()).then(|| Config::incluster().ok()).flatten();
                pod.ok_or_else(|| no_way(&error))?
            }
        };
        config.connect_timeout = Some(CONNECT);
        config.read_timeout = (!follows).then_some(ANSWER);
        let namespace = of.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let images = plan::Images { trainer_cpu: String::new(), rollout: String::new() };
        Ok(Self { client: Client::try_from(config)?, namespace, settings: Settings::cluster(images) })
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Pods here.
    pub fn pods(&self) -> Api<Pod> {
        self.api()
    }

    /// All RLJobs of the namespace, or of all.
    pub async fn jobs(&self, everywhere: bool) -> Result<Vec<RLJob>> {
        let api = if everywhere { Api::all(self.client.clone()) } else { self.api() };
        Ok(api.list(&ListParams::default()).await.map_err(said)?.items)
    }

    /// A run and all that belongs to it.
    pub async fn see(&self, name: &str) -> Result<Seen> {
        let job = self.api::<RLJob>().get_opt(name).await.map_err(said).with_context(|| format!("get RLJob {name}"))?;
        let Some(job) = job else {
            // It fails where the kind itself is unknown.
            let there = self.jobs(false).await?;
            let names: Vec<String> = there.into_iter().filter_map(|job| job.metadata.name).collect();
            let fix = match names.as_slice() {
                [] => "there is none; name another namespace with -n".to_owned(),
                names => format!("use one of {}", names.join(", ")),
            };
            bail!("{name}: no RLJob of that name in namespace {}\n  fix: {fix}", self.namespace);
        };
        let serving = self.api::<ServingCluster>().get_opt(&job.serving_name()).await.map_err(said)?;
        let pool = self.api::<RolloutPool>().get_opt(&job.rollout_name()).await.map_err(said)?;
        let uid = job.metadata.uid.clone().unwrap_or_default();
        let serving_uid = serving.as_ref().and_then(|s| s.metadata.uid.as_deref());
        let pool_uid = pool.as_ref().and_then(|p| p.metadata.uid.as_deref());
        let mut pods = Vec::new();
        for selector in glance::selectors(&uid, serving_uid, pool_uid) {
            let list = self.pods().list(&ListParams::default().labels(&selector)).await;
            pods.extend(list.map_err(said).context("list pods")?.items);
        }
        Ok(Seen { job, serving, pool, pods, now: Timestamp::now() })
    }

    /// What happened to the run and all that belongs to it, in time order.
    pub async fn happened(&self, seen: &Seen) -> Result<Vec<Happening>> {
        let events = self.api::<Event>().list(&ListParams::default()).await.map_err(said).context("list events")?;
        let facts = seen.facts(self);
        let ours = events.items.iter().filter(|event| glance::is_about(&facts, event));
        let mut happened: Vec<Happening> = ours.filter_map(glance::from_event).collect();
        happened.sort_by_key(|h| h.time);
        Ok(happened)
    }

    /// The last lines of a pod's main container.
    pub async fn tail(&self, pod: &str, lines: i64) -> Result<String> {
        let params = LogParams { tail_lines: Some(lines), ..LogParams::default() };
        self.pods().logs(pod, &params).await.map_err(said)
    }
}
