//! A run on this machine at one instant: its state folder, read without holding it.

use std::{path::PathBuf, time::Duration};

use anyhow::Result;
use api::{RLJob, RolloutPool, ServingCluster};
use control::{
    client::{ConductorClient, EpochMemory},
    names::Names,
    wire::Progress,
};
use glance::{Facts, Place};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Secret};
use local::{
    folder::{self, Folder},
    operator, preflight, run,
    status_file::StatusFile,
};
use plan::Settings;

/// What is known of a run.
pub struct OneLook {
    /// The state folder.
    pub state: PathBuf,
    /// The process that holds it, if it lives.
    pub holder: Option<u32>,
    /// The run as it was last seen; its job's status and its progress are the newest that could be had.
    pub file: StatusFile,
    /// The run itself.
    pub job: Option<RLJob>,
    /// Its engines.
    pub serving: Option<ServingCluster>,
    /// Its workers.
    pub pool: Option<RolloutPool>,
    /// Pods.
    pub pods: Vec<Pod>,
    /// The conductor itself has answered.
    pub answers: bool,
    /// When that was.
    pub now: Timestamp,
    settings: Settings,
    manifest: String,
}

impl OneLook {
    /// Looks, and asks the conductor if the run lives.
    pub fn at(state: PathBuf) -> Result<Self> {
        let job = preflight::stored_of::<RLJob>(&state)?.pop();
        let mut look = Self {
            holder: Folder::holder(&state),
            file: StatusFile::read(&state)?.unwrap_or_default(),
            serving: preflight::stored_of(&state)?.pop(),
            pool: preflight::stored_of(&state)?.pop(),
            pods: preflight::stored_of(&state)?,
            answers: false,
            now: Timestamp::now(),
            settings: Settings::laptop(),
            manifest: String::new(),
            job,
            state,
        };
        if let Some(job) = &look.job {
            // The object is newer than the file that sums it up.
            look.file.job = job.status.clone().unwrap_or_default();
            look.file.name = job.metadata.name.clone().unwrap_or_default();
            look.file.uid = job.metadata.uid.clone().unwrap_or_default();
        }
        look.manifest = look.file.manifest.display().to_string();
        if let Some(progress) = look.holder.and_then(|_| look.ask()) {
            look.answers = true;
            look.file.progress = Some(progress);
        }
        Ok(look)
    }

    /// What is known, if there is an RLJob.
    pub fn facts(&self) -> Option<Facts<'_>> {
        Some(Facts {
            job: self.job.as_ref()?,
            // Engines and workers end with the process, whatever was last seen of them.
            serving: self.serving.as_ref().filter(|_| self.lives()),
            pool: self.pool.as_ref().filter(|_| self.lives()),
            pods: &self.pods,
            now: self.now,
            settings: &self.settings,
            place: Place::Local { manifest: &self.manifest },
        })
    }

    /// Its process lives.
    pub fn lives(&self) -> bool {
        self.holder.is_some()
    }

    /// It has its end behind it.
    pub fn is_over(&self) -> bool {
        run::is_over(&self.file.job)
    }

    /// Asks the conductor itself.
    fn ask(&self) -> Option<Progress> {
        let limit = Duration::from_secs(2);
        self.call(async |client| tokio::time::timeout(limit, client.progress()).await.ok()?.ok())?
    }

    /// Calls the conductor, if there is one to call.
    pub fn call<A>(&self, ask: impl AsyncFnOnce(ConductorClient) -> A) -> Option<A> {
        let objects = self.state.join("objects");
        let conductor = plan::build::conductor_name(&self.file.name);
        let pod: Pod = folder::read_json(&objects.join("pods").join(format!("{conductor}-0.json"))).ok()??;
        let secret = objects.join("secrets").join(format!("{}.json", plan::build::token_secret(&self.file.name)));
        let secret: Secret = folder::read_json(&secret).ok()??;
        let target = operator::target(&pod, &secret)?;
        let names = Names::with_hosts(self.state.join("hosts"));
        call(names, &target.url, &target.token, ask).ok()
    }

    #[cfg(test)]
    pub fn sample(job: Option<RLJob>, file: StatusFile, holder: Option<u32>, now: Timestamp) -> Self {
        let manifest = file.manifest.display().to_string();
        let (serving, pool, pods, settings) = (None, None, Vec::new(), Settings::laptop());
        let answers = holder.is_some();
        Self { state: "s".into(), holder, file, job, serving, pool, pods, answers, now, settings, manifest }
    }
}

/// Calls the conductor at `url`.
pub fn call<A>(names: Names, url: &str, token: &str, ask: impl AsyncFnOnce(ConductorClient) -> A) -> Result<A> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let http = control::names::http_client(names)?;
        Ok(ask(ConductorClient::new(http, url, token, EpochMemory::default())).await)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_asked_when_no_conductor_was_ever_made() {
        let folder = tempfile::tempdir().unwrap();
        let look = OneLook::at(folder.path().to_owned()).unwrap();
        assert!(look.ask().is_none() && look.facts().is_none() && !look.answers);
    }
}
