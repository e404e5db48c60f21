//! The conductor of a run, asked as the operator asks it.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use control::wire::Progress;
use plan::{build, pod_facts};

use crate::{load::token, stage::Stage};

/// What it says of a run that is the only one of its name here.
///
/// # Errors
/// When it does not answer.
pub async fn progress(stage: &Stage, run: &str) -> anyhow::Result<Progress> {
    let pods = stage.pods("conductor").await?;
    let prefix = format!("{}-", build::conductor_name(run));
    let pod = pods
        .iter()
        .filter(|p| pod_facts::name(p).starts_with(&prefix) && p.metadata.deletion_timestamp.is_none())
        .find_map(|p| p.status.as_ref()?.pod_ip.clone())
        .context("a conductor with an address")?;
    let http = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(5)).build()?;
    let url = format!("http://{pod}:{}/v1/progress", build::CONDUCTOR_PORT);
    let response = http.get(url).bearer_auth(token(stage, run).await?).send().await?;
    ensure!(response.status().is_success(), "{}", response.status());
    Ok(response.json().await?)
}
