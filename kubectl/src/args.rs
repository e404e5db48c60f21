//! The command line.

use clap::{Parser, Subcommand, builder::NonEmptyStringValueParser};
use glance::{LogsOf, Output};

/// What runs of Thresh on a cluster do, wait for, and said. Reads only: the role `view` is enough.
#[derive(Debug, Parser)]
#[command(name = "kubectl-thresh", bin_name = "kubectl thresh", version, about, max_term_width = 100)]
pub struct Args {
    /// Which cluster, which namespace.
    #[command(flatten)]
    pub of: Of,
    /// What to show.
    #[command(subcommand)]
    pub command: Command,
}

/// Which cluster, which namespace.
#[derive(Debug, clap::Args)]
pub struct Of {
    /// Namespace; by default that of the kubeconfig's context.
    #[arg(short, long, global = true, value_name = "NAMESPACE", value_parser = NonEmptyStringValueParser::new())]
    pub namespace: Option<String>,
    /// Context of the kubeconfig.
    #[arg(long, global = true, value_name = "NAME")]
    pub context: Option<String>,
    /// Kubeconfig file; by default $KUBECONFIG, or ~/.kube/config.
    #[arg(long, global = true, value_name = "FILE")]
    pub kubeconfig: Option<std::path::PathBuf>,
    /// All namespaces (`status` without a name).
    #[arg(short = 'A', long, global = true)]
    pub all_namespaces: bool,
}

/// What to show.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show all runs, or one of them with all that is known of it.
    Status(Status),
    /// Show what the pods of a run said, the rank that failed first before the others.
    Logs(Logs),
    /// Show what happened to a run, its engines, workers, Jobs and pods, in time order.
    Events(One),
    /// Show the one thing a run waits for: who must act, until when, what you may do.
    Why(One),
}

impl Command {
    /// The one run that is asked for.
    pub fn job(&self) -> Option<&str> {
        match self {
            Self::Status(status) => status.job.as_deref(),
            Self::Logs(logs) => Some(&logs.job),
            Self::Events(one) | Self::Why(one) => Some(&one.job),
        }
    }
}

/// `kubectl thresh status`
#[derive(Debug, clap::Args)]
pub struct Status {
    /// Name of an RLJob; all of the namespace by default.
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub job: Option<String>,
    /// `json` for machines.
    #[arg(short, long, value_enum, default_value_t = Output::Human)]
    pub output: Output,
    /// Show it again whenever it has changed.
    #[arg(short, long)]
    pub watch: bool,
}

/// `kubectl thresh events`, `kubectl thresh why`
#[derive(Debug, clap::Args)]
pub struct One {
    /// Name of an RLJob.
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub job: String,
    /// `json` for machines.
    #[arg(short, long, value_enum, default_value_t = Output::Human)]
    pub output: Output,
}

/// `kubectl thresh logs`
#[derive(Debug, clap::Args)]
pub struct Logs {
    /// Name of an RLJob.
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub job: String,
    /// Which.
    #[command(flatten)]
    pub of: LogsOf,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_name_is_no_name_and_is_said_to_be_none() {
        for empty in [&["why", ""][..], &["why", "a", "-n", ""], &["status", ""], &["logs", ""]] {
            let said = Args::try_parse_from(["kubectl-thresh"].iter().chain(empty)).map(drop).unwrap_err().to_string();
            assert!(said.contains("a value is required for"), "{empty:?}: {said}");
        }
        assert!(Args::try_parse_from(["kubectl-thresh", "why", "a", "-n", "b"]).is_ok());
    }
}
