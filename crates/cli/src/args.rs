//! The command line.

use std::path::PathBuf;

use clap::{
    Parser, Subcommand,
    builder::{PathBufValueParser, TypedValueParser},
};
use glance::LogsOf;
pub use glance::Output;

use crate::find_run::folder_or_name;

/// Trains language models by reinforcement learning, on this machine: an RLJob's parts run as processes.
///
/// Its manifests are Kubernetes objects: on a cluster the operator runs them, and `kubectl thresh` shows them.
#[derive(Debug, Parser)]
#[command(name = "thresh", version, about, max_term_width = 100)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run an RLJob on this machine. Run it again to go on where it stopped.
    Run(Run),
    /// Run an RLJob while its parts are killed, and check that nothing is lost or done twice.
    Chaos(Chaos),
    /// Show a run, living or not.
    Status(Status),
    /// Show what the processes of a run said, the rank that failed first before the others.
    Logs(Logs),
    /// Show what happened in a run, in time order.
    Events(Events),
    /// Show the one thing a run waits for: who must act, until when, what you may do.
    Why(Why),
    /// Draw the reward curve and print the closing line from the step records on disk.
    Report(Report),
    /// Write the CustomResourceDefinitions.
    Crds(Crds),
    /// Look into a run's durable store.
    #[command(subcommand)]
    Straw(Straw),
    /// Hugging Face checkpoints.
    #[command(subcommand)]
    Hf(Hf),
}

/// `thresh run`
#[derive(Debug, clap::Args)]
pub struct Run {
    /// Manifest with one RLJob (and the ServingCluster and RolloutPool it refers to, if it does). An edit that is saved while
    /// it runs is applied.
    pub file: PathBuf,
    /// Folder that keeps the run; `./runs/NAME` by default.
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// Use DIR for a PersistentVolumeClaim. By default a folder in the state folder, filled at first from
    /// `volumes/CLAIM` beside the manifest.
    #[arg(long = "volume", value_name = "CLAIM=DIR", value_parser = volume)]
    pub volumes: Vec<(String, PathBuf)>,
    /// How to show the run.
    #[arg(long, value_enum, default_value_t = Output::Human)]
    pub output: Output,
    /// Plain lines, no live block (NO_COLOR does the same).
    #[arg(long)]
    pub no_color: bool,
    /// Nodes to pretend; more than one matters to a RolloutPool with one worker per node, and to faults.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub nodes: u8,
    /// End with the quickstart's closing line, and fail if it is not a good one.
    #[arg(long, hide = true)]
    pub quickstart_check: bool,
}

/// `thresh chaos`
#[derive(Debug, clap::Args)]
pub struct Chaos {
    /// Manifest with one RLJob that commits often. It is played from a copy, whose `totalSteps` may grow until all kills are
    /// played.
    pub file: PathBuf,
    /// How many processes to kill.
    #[arg(long, value_name = "K", default_value_t = 24, value_parser = clap::value_parser!(u16).range(1..=2000))]
    pub kills: u16,
    /// Who dies when follows from it; by default from the clock. It is printed.
    #[arg(long, value_name = "S")]
    pub seed: Option<u64>,
    /// Folder that keeps the run, and must not hold one yet; `./runs/NAME-chaos` by default (`./runs/NAME` if NAME ends so).
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// Use DIR for a PersistentVolumeClaim, as in `thresh run`.
    #[arg(long = "volume", value_name = "CLAIM=DIR", value_parser = volume)]
    pub volumes: Vec<(String, PathBuf)>,
    /// Plain lines, no live block (NO_COLOR does the same).
    #[arg(long)]
    pub no_color: bool,
}

/// Which run of `status`, `logs`, `events` and `why`.
#[derive(Debug, clap::Args)]
pub struct Which {
    /// State folder, or name of a run under `./runs`; the only run there by default. A name that is not there is looked for on
    /// the cluster of the kubeconfig, by `kubectl-thresh`, if that lies beside `thresh`.
    pub run: Option<String>,
    /// Look on the cluster, in this namespace.
    #[arg(short, long, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
}

/// `thresh status`
#[derive(Debug, clap::Args)]
pub struct Status {
    /// Which run.
    #[command(flatten)]
    pub which: Which,
    /// `json` for machines.
    #[arg(short, long, value_enum, default_value_t = Output::Human)]
    pub output: Output,
}

/// `thresh logs`
#[derive(Debug, clap::Args)]
pub struct Logs {
    /// Which run.
    #[command(flatten)]
    pub which: Which,
    /// Whose.
    #[command(flatten)]
    pub of: LogsOf,
}

/// `thresh events`
#[derive(Debug, clap::Args)]
pub struct Events {
    /// Which run.
    #[command(flatten)]
    pub which: Which,
    /// `json` for machines.
    #[arg(short, long, value_enum, default_value_t = Output::Human)]
    pub output: Output,
}

/// `thresh why`
#[derive(Debug, clap::Args)]
pub struct Why {
    /// Which run.
    #[command(flatten)]
    pub which: Which,
    /// `json` for machines.
    #[arg(short, long, value_enum, default_value_t = Output::Human)]
    pub output: Output,
}

/// `thresh report`
#[derive(Debug, clap::Args)]
pub struct Report {
    /// State folder, or name of a run under `./runs`; the only run there by default.
    pub run: Option<String>,
    /// The run's folder on its volume (`runs/UID`), for a run that is not of this machine. Only the line is printed.
    #[arg(long, value_name = "FOLDER", conflicts_with = "run")]
    pub dir: Option<PathBuf>,
    /// Print the quickstart's closing line, and fail if it is not a good one.
    #[arg(long, hide = true)]
    pub quickstart_check: bool,
}

/// `thresh crds`
#[derive(Debug, clap::Args)]
pub struct Crds {
    /// Folder to write them to; standard output by default.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

/// `thresh straw`
#[derive(Debug, Subcommand)]
pub enum Straw {
    /// Describe packs and journal without reading payloads, and whether the mount they lie on is safe.
    Inspect(StrawInspect),
    /// Read every byte that was acknowledged, check its sums, and check that the journal keeps its rules.
    Verify(StrawFolder),
    /// Tell who still needs which records: tasks, finished groups, batches, named owners.
    Owners(StrawFolder),
    /// Tell where the bytes are, what of them is needed, and what can be given back.
    Du(StrawFolder),
    /// Say what can be mended without a copy, and mend it with `--yes`. Nothing that could be needed is removed.
    Repair(StrawRepair),
    /// Say which packs are mostly dead, and with `--yes` move what is needed of them elsewhere and give them back. The conductor of a
    /// run that lives does so by itself once it is worth it.
    Compact(StrawCompact),
    /// Show how it changes, a line a look.
    Top(StrawTop),
}

/// `thresh straw inspect`
#[derive(Debug, clap::Args)]
pub struct StrawInspect {
    /// Which store.
    #[command(flatten)]
    pub folder: StrawFolder,
    /// Test the mount with a file of 8 KiB, which is removed again.
    #[arg(long)]
    pub self_test: bool,
}

/// `thresh straw repair`
#[derive(Debug, clap::Args)]
pub struct StrawRepair {
    /// Which store.
    #[command(flatten)]
    pub folder: StrawFolder,
    /// Do it. Without, it is only said.
    #[arg(long)]
    pub yes: bool,
}

/// `thresh straw compact`
#[derive(Debug, clap::Args)]
pub struct StrawCompact {
    /// Which store.
    #[command(flatten)]
    pub folder: StrawFolder,
    /// Of a pack, at most this share is needed, percent of its bytes.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u64).range(0..=100))]
    pub live_percent: u64,
    /// Do it. The conductor of a run that lives is asked to; the journal of one that has stopped is claimed for that. Without, it
    /// is only said.
    #[arg(long)]
    pub yes: bool,
    /// Where the conductor of a run that is not of this machine answers: `http://IP:7070` with the IP of the pod
    /// NAME-conductor-0. Its token (Secret NAME-token) is taken from THRESH_TOKEN.
    #[arg(long, value_name = "URL", requires = "yes")]
    pub conductor: Option<String>,
}

/// `thresh straw top`
#[derive(Debug, clap::Args)]
pub struct StrawTop {
    /// Which store.
    #[command(flatten)]
    pub folder: StrawFolder,
    /// Seconds between two looks.
    #[arg(long, value_name = "S", default_value_t = 2.0, value_parser = interval)]
    pub interval: f64,
    /// Looks; until it is stopped by default.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
}

/// Which store.
#[derive(Debug, clap::Args)]
pub struct StrawFolder {
    /// The run's folder on its volume (with `packs` and `journal` in it), a state folder, or the name of a run under `./runs`.
    #[arg(value_parser = PathBufValueParser::new().map(folder_or_name))]
    pub folder: PathBuf,
    /// `json` for machines.
    #[arg(short, long, value_enum, default_value_t = Output::Human)]
    pub output: Output,
}

/// `thresh hf`
#[derive(Debug, Subcommand)]
pub enum Hf {
    /// Write a commit's weights as a Hugging Face folder.
    Export(HfExport),
}

/// `thresh hf export`
#[derive(Debug, clap::Args)]
pub struct HfExport {
    /// State folder of a run, name of a run under `./runs`, or a folder of tiles.
    #[arg(value_parser = PathBufValueParser::new().map(folder_or_name))]
    pub folder: PathBuf,
    /// Folder to write; must not exist.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Folder with config.json and the tokenizer; by default that of the run.
    #[arg(long, value_name = "DIR")]
    pub model: Option<PathBuf>,
}

fn interval(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "expected seconds".to_owned())?;
    if (0.1..=3600.0).contains(&seconds) { Ok(seconds) } else { Err("expected 0.1 to 3600 seconds".into()) }
}

fn volume(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((claim, folder)) if !claim.is_empty() && !folder.is_empty() => Ok((claim.into(), folder.into())),
        _ => Err("expected CLAIM=DIR".into()),
    }
}
