//! The conductor as a service: many calls at once, over its real HTTP server.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod gate;
mod give_back;
mod leases;
mod offers;
mod successors;
mod volume;

use std::{path::Path, sync::Arc};

use control::{
    client::{ConductorClient, EpochMemory},
    names::{Names, http_client},
};
use straw::Fs;
use thresh_rollout::{
    conductor::{self, Volume},
    lone::Lone,
};
use tokio::task::JoinHandle;

/// The quickstart's model: a config and a tokenizer.
pub fn model() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/quickstart/volumes/thresh-data/sort5/model")
}

pub fn http() -> reqwest::Client {
    http_client(Names::default()).unwrap()
}

/// A conductor in this process.
pub struct Service {
    pub lone: Lone,
    pub client: ConductorClient,
    stop: tokio::sync::oneshot::Sender<()>,
    served: JoinHandle<anyhow::Result<()>>,
    folder: tempfile::TempDir,
}

impl Service {
    /// Has work to give out when this returns.
    pub async fn start(prompts_per_step: u64, fs: Arc<dyn Fs>) -> Self {
        let service = Self::begin(prompts_per_step, Volume { fs, ..Volume::real() }).await;
        service.lone.wait_for(&service.client).await.unwrap();
        service.lone.publish_once(&service.client).await.unwrap();
        service
    }

    /// Has only just begun.
    pub async fn begin(prompts_per_step: u64, volume: Volume) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let lone = Lone::prepare(folder.path(), &model(), prompts_per_step).await.unwrap();
        Self::on(folder, lone, volume)
    }

    fn on(folder: tempfile::TempDir, lone: Lone, volume: Volume) -> Self {
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let end = async { drop(stopped.await) };
        let served = tokio::spawn(conductor::serve(lone.options(), lone.environment("pod-1"), volume, end));
        let client = lone.client(http(), EpochMemory::default());
        Self { lone, client, stop, served, folder }
    }

    pub async fn stop(self) {
        self.stop.send(()).unwrap();
        self.served.await.unwrap().unwrap();
    }

    /// Ends it, and begins another on what it left.
    pub async fn start_again(self, volume: Volume) -> Self {
        let Self { lone, stop, served, folder, .. } = self;
        stop.send(()).unwrap();
        served.await.unwrap().unwrap();
        Self::on(folder, lone, volume)
    }

    /// Why it ended by itself.
    pub async fn ended(self) -> anyhow::Error {
        self.served.await.unwrap().unwrap_err()
    }
}
