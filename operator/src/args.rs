//! Command line.

use std::net::SocketAddr;

use clap::{Args, Parser, Subcommand};

/// The operator of Thresh: turns RLJobs, ServingClusters and RolloutPools into pods, and keeps them so.
#[derive(Debug, Parser)]
#[command(name = "thresh-operator", version)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Watch and act.
    Run(Run),
    /// Before the operator is removed: end it, then take our finalizers off every object, so that none is stuck.
    Uninstall(Uninstall),
}

/// Arguments of `run`.
#[derive(Clone, Debug, Args)]
pub struct Run {
    /// Where /livez, /readyz and /metrics are served.
    #[arg(long, env = "THRESH_LISTEN", default_value = "0.0.0.0:8080")]
    pub listen: SocketAddr,
    /// Only these namespaces; all, if there are none.
    #[arg(long, env = "THRESH_NAMESPACES", value_delimiter = ',')]
    pub namespaces: Vec<String>,
    /// Image of conductor, workers and native engines, where a spec names none.
    #[arg(long, env = "THRESH_ROLLOUT_IMAGE")]
    pub rollout_image: String,
    /// Image of CPU trainers, where a spec names none.
    #[arg(long, env = "THRESH_TRAINER_IMAGE")]
    pub trainer_image: String,
    /// Act only while holding the Lease `thresh-operator` of our own namespace.
    #[arg(long, env = "THRESH_LEADER_ELECTION", default_value_t = true, action = clap::ArgAction::Set,
          num_args = 0..=1, default_missing_value = "true")]
    pub leader_election: bool,
    /// Objects of one kind that are looked at at a time.
    #[arg(long, env = "THRESH_CONCURRENCY", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub concurrency: u16,
    /// Name of this process in the Lease and in events.
    #[arg(long, env = "POD_NAME", default_value = "thresh-operator")]
    pub pod_name: String,
    /// Our own namespace.
    #[arg(long, env = "POD_NAMESPACE", default_value = "thresh-system")]
    pub pod_namespace: String,
}

/// Arguments of `uninstall`.
#[derive(Clone, Debug, Args)]
pub struct Uninstall {
    /// The operator's Deployment, in our own namespace.
    #[arg(long)]
    pub deployment: String,
    /// Our own namespace.
    #[arg(long, env = "POD_NAMESPACE", default_value = "thresh-system")]
    pub pod_namespace: String,
    /// Only these namespaces; all, if there are none.
    #[arg(long, env = "THRESH_NAMESPACES", value_delimiter = ',')]
    pub namespaces: Vec<String>,
}
