//! `kubectl thresh logs`

use anyhow::{Context as _, Result, bail};
use futures::{AsyncBufReadExt, TryStreamExt, stream::FuturesUnordered};
use glance::{LogsOf, Role, Source};
use kube::api::LogParams;

use crate::{
    cluster::Cluster,
    say::{complain, say},
    trouble::said,
};

/// Shows what the pods that are meant said; each line with its pod before it.
pub async fn logs(cluster: &Cluster, job: &str, of: &LogsOf) -> Result<()> {
    let seen = cluster.see(job).await?;
    let all: Vec<Source> = seen.pods.iter().filter_map(glance::source_of_pod).collect();
    let picked = match glance::pick(&all, &seen.job, of) {
        Ok(picked) => picked,
        Err(why) => bail!("{why}\n  fix: kubectl thresh status {job} -n {} says how attempts ended", cluster.namespace),
    };
    if of.follow {
        let streams: FuturesUnordered<_> = picked.iter().map(|source| show(cluster, source, of)).collect();
        return streams.try_collect().await;
    }
    let mut shown = 0;
    for source in &picked {
        match show(cluster, source, of).await {
            Ok(()) => shown += 1,
            // Of several pods some may have begun nothing yet; that must not hide what the others said.
            Err(error) => complain(&format!("{}: {}", source.pod, last_words::said_once(&*error))),
        }
    }
    if shown == 0 {
        bail!("no log could be read");
    }
    Ok(())
}

async fn show(cluster: &Cluster, source: &Source, of: &LogsOf) -> Result<()> {
    let params = LogParams {
        container: source.container.clone(),
        follow: of.follow,
        tail_lines: of.tail.map(i64::from),
        // Of a trainer the attempt before is another pod.
        previous: of.previous && source.role != Role::Trainer,
        ..LogParams::default()
    };
    let stream = cluster.pods().log_stream(&source.pod, &params).await.map_err(said)?;
    let prefix = glance::prefix(source);
    let mut lines = stream.lines();
    while let Some(line) = lines.try_next().await.with_context(|| format!("read the log of {}", source.pod))? {
        say(&format!("{prefix}{line}"))?;
    }
    Ok(())
}
