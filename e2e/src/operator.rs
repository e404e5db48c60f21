//! The operator under test: as the chart installs it, or as a process of our own beside the cluster.

use std::{
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, bail};
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams},
};

use crate::stage::{bring_data, repository};

/// Namespace of the chart's release, and the release's name.
pub const NAMESPACE: &str = "thresh-system";
/// Name of the release.
pub const RELEASE: &str = "thresh";
/// Name of its Deployment.
pub const DEPLOYMENT: &str = "thresh-operator";
/// Images of the tests.
pub const IMAGES: [&str; 3] = ["thresh.local/operator:e2e", "thresh.local/rollout:e2e", "thresh.local/trainer:e2e"];

/// The operator that most tests share.
pub enum Operator {
    /// Installed by helm.
    Chart(Client),
    /// `THRESH_E2E_OPERATOR=process`: a process of ours, quicker while the operator itself is worked on.
    Process(Process),
}

impl Operator {
    /// Installs the chart and waits until the operator is ready.
    ///
    /// # Errors
    /// When helm fails or the Deployment does not come up.
    pub async fn install(client: &Client) -> anyhow::Result<Self> {
        bring_data()?;
        if std::env::var("THRESH_E2E_OPERATOR").is_ok_and(|how| how == "process") {
            crds(client).await?;
            return Ok(Self::Process(Process::start("operator", &[]).await?));
        }
        helm(&[
            "upgrade",
            "--install",
            // The definitions outlive a release, and a test may have applied them itself.
            "--take-ownership",
            RELEASE,
            "charts/thresh",
            "--namespace",
            NAMESPACE,
            "--create-namespace",
            // Tests that bring an operator of their own may have applied the definitions before.
            "--take-ownership",
            "--force-conflicts",
            "--values",
            "e2e/values.yaml",
            // One of them outlives the node that a test takes away.
            "--set",
            "controller.replicas=2",
            "--wait",
            "--timeout",
            "120s",
        ])?;
        Ok(Self::Chart(client.clone()))
    }

    /// Takes it away again.
    ///
    /// # Errors
    /// When helm fails.
    pub async fn remove(self) -> anyhow::Result<()> {
        match self {
            Self::Chart(_) => helm(&["uninstall", RELEASE, "--namespace", NAMESPACE, "--wait", "--timeout", "180s"]),
            Self::Process(process) => {
                process.stop();
                Ok(())
            }
        }
    }

    /// Leaves the operator's log beside the tests' evidence.
    pub async fn keep_logs(&self) {
        if let Self::Chart(client) = self {
            let pods: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(client.clone(), NAMESPACE);
            for pod in pods.list(&ListParams::default()).await.map(|l| l.items).unwrap_or_default() {
                let name = pod.metadata.name.unwrap_or_default();
                let text = pods.logs(&name, &kube::api::LogParams::default()).await.unwrap_or_default();
                // Evidence that cannot be kept is missed when it is looked for.
                let _ = std::fs::create_dir_all(folder())
                    .and_then(|()| std::fs::write(folder().join(format!("{name}.log")), text));
            }
        }
    }
}

/// Where evidence lies.
pub fn folder() -> PathBuf {
    repository().join("target/e2e")
}

/// Runs helm.
///
/// # Errors
/// When it fails; with its words.
pub fn helm(args: &[&str]) -> anyhow::Result<()> {
    let output = Command::new("helm").current_dir(repository()).args(args).output().context("run helm")?;
    if !output.status.success() {
        bail!("helm {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// Applies the CRDs of this repository.
///
/// # Errors
/// When the API server refuses.
pub async fn crds(client: &Client) -> anyhow::Result<()> {
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    for (_, yaml) in api::crds() {
        let crd: serde_json::Value = serde_saphyr::from_str(&yaml)?;
        let name = crd["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        api.patch(&name, &PatchParams::apply("e2e").force(), &Patch::Apply(&crd)).await.context("apply a CRD")?;
        let established = kube::runtime::conditions::is_crd_established();
        let wait = kube::runtime::wait::await_condition(api.clone(), &name, established);
        tokio::time::timeout(std::time::Duration::from_secs(30), wait).await.context("a CRD is not established")??;
    }
    Ok(())
}

/// An operator process, with the cluster's admin credentials unless told otherwise.
pub struct Process {
    child: Child,
    /// Its log.
    pub log: PathBuf,
    /// Where it serves /metrics.
    pub listen: String,
}

impl Process {
    /// Starts one that watches `namespaces`, all if there are none, and waits for nothing.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn spawn(name: &str, namespaces: &[&str], environment: &[(&str, &str)]) -> anyhow::Result<Self> {
        std::fs::create_dir_all(folder())?;
        let log = folder().join(format!("{name}.log"));
        let file = std::fs::OpenOptions::new().create(true).append(true).open(&log)?;
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let listen = format!("127.0.0.1:{port}");
        // Tests that are killed leave no operator behind.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(repository().join("target/release/thresh-operator"))
            .args(["run", "--listen", &listen, "--namespaces", &namespaces.join(",")])
            .env("THRESH_ROLLOUT_IMAGE", IMAGES[1])
            .env("THRESH_TRAINER_IMAGE", IMAGES[2])
            .env("POD_NAME", name)
            .envs(environment.iter().copied())
            .stdout(Stdio::null())
            .stderr(file)
            .spawn()
            .context("start thresh-operator")?;
        Ok(Self { child, log, listen })
    }

    /// Starts one without leader election and waits until it is ready.
    ///
    /// # Errors
    /// When it does not become ready.
    pub async fn start(name: &str, namespaces: &[&str]) -> anyhow::Result<Self> {
        Self::start_with(name, namespaces, &[]).await
    }

    /// The same with more environment.
    ///
    /// # Errors
    /// When it does not become ready.
    pub async fn start_with(name: &str, namespaces: &[&str], more: &[(&str, &str)]) -> anyhow::Result<Self> {
        let process = Self::spawn(name, namespaces, &[&[("THRESH_LEADER_ELECTION", "false")], more].concat())?;
        process.ready(30).await?;
        Ok(process)
    }

    /// The value of a metric without labels.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn metric(&self, name: &str) -> anyhow::Result<Option<f64>> {
        let text = reqwest::get(format!("http://{}/metrics", self.listen)).await?.text().await?;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        Ok(line.and_then(|value| value.trim().parse().ok()))
    }

    /// Waits until `/readyz` is 200.
    ///
    /// # Errors
    /// When it is not within `seconds`.
    pub async fn ready(&self, seconds: u64) -> anyhow::Result<()> {
        let url = format!("http://{}/readyz", self.listen);
        let until = std::time::Instant::now() + std::time::Duration::from_secs(seconds);
        while std::time::Instant::now() < until {
            if reqwest::get(&url).await.is_ok_and(|r| r.status().is_success()) {
                return Ok(());
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        bail!("the operator is not ready within {seconds} s; see {}", self.log.display())
    }

    /// Its pid.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// True once it has ended.
    pub fn ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)) | Err(_))
    }

    /// SIGKILL.
    pub fn kill(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// SIGTERM; true if it has ended well since.
    ///
    /// # Errors
    /// When it has not ended within `seconds`.
    pub async fn stop_within(mut self, seconds: u64) -> anyhow::Result<bool> {
        Command::new("kill").arg(self.child.id().to_string()).status()?;
        let until = std::time::Instant::now() + std::time::Duration::from_secs(seconds);
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status.success());
            }
            if std::time::Instant::now() >= until {
                bail!("it has not ended {seconds} s after SIGTERM; see {}", self.log.display());
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    }

    /// SIGTERM, and waits for its end.
    pub fn stop(mut self) {
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
