//! The variables a trainer's processes read.
//!
//! Set on the pod: `THRESH_RUN_UID`, `THRESH_VOLUME`, `THRESH_TOKEN`, `THRESH_CONDUCTOR` (`http://host:port`),
//! `THRESH_ATTEMPT`, `THRESH_PARALLELISM` (JSON `{"dp":2,"tp":1}`), `NODE_RANK`, `NNODES`, `NPROC_PER_NODE`, `MASTER_ADDR`,
//! `MASTER_PORT`, `POD_NAME`, `POD_IP`, `NODE_NAME`. Optional: `THRESH_HOSTS_FILE`, `THRESH_LOG`, `RUST_LOG`,
//! `THRESH_THREADS` (compute threads of a rank; all cores divided by the pod's ranks otherwise), `THRESH_PORT` (of
//! /livez, /readyz and /metrics; 7090), `THRESH_CONDUCTOR_AWAY_S` (how long the conductor may be away; 900),
//! `THRESH_FAULTS` ([`train::faults`]).
//!
//! Set by the launcher on its ranks: `RANK`, `LOCAL_RANK`, `WORLD_SIZE`, `THRESH_LAUNCHER_PID`.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use control::identity::{Identity, variable};
use control::wire::Layout;

/// What a pod of the attempt knows.
#[derive(Clone, Debug)]
pub struct Pod {
    pub identity: Identity,
    pub run: String,
    pub token: String,
    pub conductor: String,
    pub attempt: u64,
    pub layout: Layout,
    pub node_rank: usize,
    pub nodes: usize,
    pub ranks_per_node: usize,
    pub master: String,
    pub threads: usize,
    pub port: u16,
    pub conductor_away_max: Duration,
}

impl Pod {
    pub fn from_env() -> Result<Self> {
        let layout: Layout = serde_json::from_str(&variable("THRESH_PARALLELISM", "the layout of the ranks, as JSON")?)
            .context("THRESH_PARALLELISM")?;
        let ranks_per_node = number("NPROC_PER_NODE", "ranks of a pod")?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let pod = Self {
            identity: Identity::from_env()?,
            run: variable("THRESH_RUN_UID", "the run's uid")?,
            token: variable("THRESH_TOKEN", "the run's bearer token")?,
            conductor: variable("THRESH_CONDUCTOR", "the conductor's URL")?,
            attempt: number("THRESH_ATTEMPT", "the attempt's number")?,
            layout,
            node_rank: number("NODE_RANK", "this pod's index")?,
            nodes: number("NNODES", "pods of the attempt")?,
            ranks_per_node,
            master: format!(
                "{}:{}",
                variable("MASTER_ADDR", "the name of rank 0's pod")?,
                number::<u16>("MASTER_PORT", "rank 0's port")?
            ),
            threads: number_or("THRESH_THREADS", (cores / ranks_per_node.max(1)).max(1))?,
            port: number_or("THRESH_PORT", 7090)?,
            conductor_away_max: Duration::from_secs(number_or("THRESH_CONDUCTOR_AWAY_S", 900)?),
        };
        let Layout { dp, tp, pp, cp } = layout;
        let (wanted, have) = (dp * tp * pp * cp, pod.nodes * pod.ranks_per_node);
        if wanted != have || wanted == 0 {
            bail!(
                "dp {dp} x tp {tp} x pp {pp} x cp {cp} needs {wanted} ranks, but NNODES {} x NPROC_PER_NODE {} gives {have}",
                pod.nodes,
                pod.ranks_per_node
            );
        }
        if pod.node_rank >= pod.nodes {
            bail!("NODE_RANK {} is not below NNODES {}", pod.node_rank, pod.nodes);
        }
        Ok(pod)
    }

    pub fn world_size(&self) -> usize {
        self.nodes * self.ranks_per_node
    }

    pub fn volume(&self) -> PathBuf {
        self.identity.volume.clone()
    }
}

/// What the launcher tells a rank.
#[derive(Clone, Copy, Debug)]
pub struct Local {
    pub rank: usize,
    pub local_rank: usize,
    pub launcher: u32,
}

impl Local {
    /// `None` in the launcher itself.
    pub fn from_env() -> Result<Option<Self>> {
        if std::env::var_os("THRESH_LAUNCHER_PID").is_none() {
            return Ok(None);
        }
        Ok(Some(Self {
            rank: number("RANK", "this rank")?,
            local_rank: number("LOCAL_RANK", "this rank within its pod")?,
            launcher: number("THRESH_LAUNCHER_PID", "the launcher's process id")?,
        }))
    }
}

fn number<T: FromStr<Err: std::error::Error + Send + Sync + 'static>>(
    name: &'static str,
    holds: &'static str,
) -> Result<T> {
    let text = variable(name, holds)?;
    text.parse().with_context(|| format!("{name}={text} ({holds}) is not a number"))
}

fn number_or<T: FromStr<Err: std::error::Error + Send + Sync + 'static>>(name: &'static str, default: T) -> Result<T> {
    match std::env::var(name) {
        Ok(text) if !text.is_empty() => text.parse().with_context(|| format!("{name}={text} is not a number")),
        _ => Ok(default),
    }
}
