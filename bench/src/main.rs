//! `thresh-bench`: how fast Thresh is, beside a peer that does the same work in the same run.
//!
//! A figure alone says little on a machine that others use too. So each case runs ours and a peer by turns (A B B A ...),
//! in rounds of a fraction of a second, and the figure to quote is the median over rounds of their ratio. Peers are the raw
//! file system (`write` and `fdatasync` of the same bytes, on the same file system), the machine (one core's measured rate of
//! fused multiply-adds) and PyTorch on CPU, which computes the same step from the same weights.
//!
//! Every case is a line of JSON ([`line::Line`]) in `target/bench/{straw,core,rollout}.jsonl`; [`page`] makes the table of all.
//!
//! What it is NOT: a test. Nothing here fails because something was slow; it fails when what ran was wrong.
// A program that prints is what this is.
#![allow(clippy::print_stdout)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod core;
mod line;
mod machine;
mod page;
mod peak;
mod process;
mod rollout;
mod rounds;
mod straw;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};

/// Measures Thresh beside its peers.
#[derive(Parser)]
#[command(name = "thresh-bench", version, about)]
struct Arguments {
    #[command(subcommand)]
    what: What,
    #[command(flatten)]
    options: Options,
}

/// What all parts share.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Where the `.jsonl` files, scratch files and PyTorch's environment are.
    #[arg(long, global = true, default_value = "target/bench")]
    out: PathBuf,
    /// Rounds of each case.
    #[arg(long, global = true, default_value_t = 7)]
    rounds: usize,
    /// Only cases whose name contains this.
    #[arg(long, global = true)]
    only: Option<String>,
}

impl Options {
    /// Whether a case is asked for.
    fn wants(&self, bench: &str) -> bool {
        self.only.as_ref().is_none_or(|part| bench.contains(part.as_str()))
    }
}

#[derive(Subcommand)]
enum What {
    /// Store, journal and queue against the raw file system.
    Straw {
        /// Tasks of the larger recovery.
        #[arg(long, default_value_t = 1_000_000)]
        tasks: usize,
        /// A folder on a JuiceFS mount, to measure there, too.
        #[arg(long)]
        juicefs: Option<PathBuf>,
    },
    /// Training step, decode and matrix products against the core's peak and PyTorch.
    Core,
    /// A real run: memory, steps, recovery; and the engine's HTTP.
    Rollout {
        /// The manifest of the run; its `volumes` folder lies beside it.
        #[arg(long, default_value = "examples/quickstart/rljob.yaml")]
        manifest: PathBuf,
        /// How often a trainer rank is killed.
        #[arg(long, default_value_t = 3)]
        kills: usize,
    },
    /// The table of everything that was measured.
    Page {
        /// Write it to this page of the docs, too.
        #[arg(long)]
        write: Option<PathBuf>,
        /// What the page says it was made with.
        #[arg(long, default_value = "make bench PAGE=docs/src/speed.md")]
        command: String,
    },
}

fn main() -> Result<()> {
    let Arguments { what, options } = Arguments::parse();
    match what {
        What::Straw { tasks, juicefs } => straw::run(&options, tasks, juicefs.as_deref()),
        What::Core => core::run(&options),
        What::Rollout { manifest, kills } => rollout::run(&options, &manifest, kills),
        What::Page { write, command } => page::run(&options, write.as_deref(), &command),
    }
}
