//! An API server alone: etcd and kube-apiserver on loopback, with our definitions.

use std::{path::PathBuf, process::Command};

use anyhow::{Context as _, bail};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

use crate::{
    operator::{crds, folder},
    stage::repository,
};

/// A running one; it ends when this is dropped.
pub struct Bare {
    /// Its admin.
    pub client: Client,
    folder: PathBuf,
}

impl Bare {
    /// Starts one.
    ///
    /// # Errors
    /// When it does not come up.
    pub async fn start() -> anyhow::Result<Self> {
        // Its sockets' names must be short, and nothing of it is evidence.
        let folder = std::env::temp_dir().join(format!("thresh-e2e-api-{}", std::process::id()));
        let kubeconfig = script(&["apiserver-only", &folder.display().to_string()])?;
        let config = Kubeconfig::read_from(kubeconfig.trim()).context("its kubeconfig")?;
        let config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
        let server = Self { client: Client::try_from(config)?, folder };
        crds(&server.client).await?;
        Ok(server)
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        // Left running it holds some memory, and its folder says what it is.
        let _ = script(&["apiserver-stop", &self.folder.display().to_string()]);
        for file in ["kube-apiserver.log", "etcd.log"] {
            let _ = std::fs::copy(self.folder.join(file), folder().join(file));
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn script(args: &[&str]) -> anyhow::Result<String> {
    std::fs::create_dir_all(folder())?;
    let output = Command::new(repository().join("e2e/cluster/cluster.sh")).args(args).output().context("cluster.sh")?;
    if !output.status.success() {
        bail!("cluster.sh {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8(output.stdout)?)
}
