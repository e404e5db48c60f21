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
    #[arg(long, env = "THRESH_NAMESPACES", value_delimiter = ',', value_parser = namespace)]
    pub namespaces: Vec<String>,
    /// Image of conductor, workers and native engines, where a spec names none.
    #[arg(long, env = "THRESH_ROLLOUT_IMAGE", value_parser = image)]
    pub rollout_image: String,
    /// Image of CPU trainers, where a spec names none.
    #[arg(long, env = "THRESH_TRAINER_IMAGE", value_parser = image)]
    pub trainer_image: String,
    /// Act only while holding the Lease `thresh-operator` of our own namespace.
    #[arg(long, env = "THRESH_LEADER_ELECTION", default_value_t = true, action = clap::ArgAction::Set,
          num_args = 0..=1, default_missing_value = "true")]
    pub leader_election: bool,
    /// Objects of one kind that are looked at at a time.
    #[arg(long, env = "THRESH_CONCURRENCY", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub concurrency: u16,
    /// Name of this process in the Lease and in events; host and process by default. No other process may have it.
    #[arg(long, env = "POD_NAME", default_value_t = process_name(), value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub pod_name: String,
    /// Our own namespace.
    #[arg(long, env = "POD_NAMESPACE", default_value = "thresh-system", value_parser = own_namespace)]
    pub pod_namespace: String,
}

/// Arguments of `uninstall`.
#[derive(Clone, Debug, Args)]
pub struct Uninstall {
    /// The operator's Deployment, in our own namespace.
    #[arg(long)]
    pub deployment: String,
    /// Our own namespace.
    #[arg(long, env = "POD_NAMESPACE", default_value = "thresh-system", value_parser = own_namespace)]
    pub pod_namespace: String,
    /// Only these namespaces; all, if there are none.
    #[arg(long, env = "THRESH_NAMESPACES", value_delimiter = ',', value_parser = namespace)]
    pub namespaces: Vec<String>,
}

/// Two operators must never take the Lease under one name.
fn process_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{}-{}", host.trim(), std::process::id())
}

fn image(text: &str) -> Result<String, String> {
    if text.is_empty() || text.contains(char::is_whitespace) {
        return Err("an image is named like registry.example.com/thresh/rollout:v1".into());
    }
    Ok(text.into())
}

/// Empty means none: what a variable that is set to nothing says.
fn namespace(text: &str) -> Result<String, String> {
    if text.is_empty() { Ok(String::new()) } else { own_namespace(text) }
}

fn own_namespace(text: &str) -> Result<String, String> {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if text.is_empty() || text.len() > 63 || !text.chars().all(inner) || text.starts_with('-') || text.ends_with('-') {
        return Err(
            "a namespace has 1 to 63 lower-case letters, digits and '-', and begins and ends with no '-'".into()
        );
    }
    Ok(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(more: &[&str]) -> Result<Cli, String> {
        let all = ["thresh-operator", "run", "--rollout-image", "r:1", "--trainer-image", "t:1"].iter().chain(more);
        Cli::try_parse_from(all).map_err(|error| error.to_string())
    }

    #[test]
    fn an_empty_image_or_a_namespace_that_cannot_be_is_refused_by_name() {
        parse(&[]).unwrap();
        parse(&["--namespaces", ""]).unwrap();
        parse(&["--namespaces", "a,b-1"]).unwrap();
        for (flag, value) in
            [("--namespaces", "a,Team_B"), ("--namespaces", "b-"), ("--pod-namespace", ""), ("--pod-name", "")]
        {
            let said = parse(&[flag, value]).unwrap_err();
            assert!(said.contains(flag), "{said}");
        }
        for flag in ["--rollout-image", "--trainer-image"] {
            let other = if flag == "--rollout-image" { "--trainer-image" } else { "--rollout-image" };
            let said = Cli::try_parse_from(["o", "run", other, "x:1", flag, ""]).unwrap_err().to_string();
            assert!(said.contains(flag) && said.contains("registry.example.com"), "{said}");
        }
    }

    #[test]
    fn operators_without_a_name_of_their_own_have_different_ones() {
        let name = process_name();
        assert!(name.ends_with(&format!("-{}", std::process::id())), "{name}");
    }
}
