//! Tests on a real cluster: the shipped images, the shipped chart, real nodes.
//!
//! Each test has a namespace of its own, a name that says the rule, and a deadline. What failed leaves its objects, events and
//! logs in `target/e2e/NAME/`. The last line is `e2e: N passed, N failed`, and `, N skipped`, each of those with its reason.

#![forbid(unsafe_code)]
// The report is what this program is for.
#![allow(clippy::print_stdout)]

mod attempts;
mod audit;
mod bare;
mod columns;
mod conductor;
mod evidence;
mod golden;
mod harness;
mod load;
mod model;
mod node;
mod operator;
mod place;
mod proxy;
mod record;
mod run;
mod scale;
mod stage;
mod tests;

use clap::Parser;

/// Runs the end-to-end tests.
#[derive(Debug, Parser)]
struct Args {
    /// Only tests whose name contains one of these.
    filter: Vec<String>,
    /// Names, and nothing else.
    #[arg(long)]
    list: bool,
    /// Tests at a time, of those that may run beside others.
    #[arg(long, default_value_t = 3)]
    parallel: usize,
    /// Instead of tests: measure the operator with that many runs on pretended nodes.
    #[arg(long, value_name = "RUNS")]
    scale: Option<usize>,
    /// Only tests that need no nodes: they bring an API server of their own.
    #[arg(long)]
    apiserver_only: bool,
    /// Keep namespaces of tests that failed.
    #[arg(long)]
    keep: bool,
    /// Try what failed on the cluster once more, alone, and say so: a machine with busy neighbours fails what waits for it.
    #[arg(long)]
    again: bool,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    if let Some(runs) = args.scale {
        return scale::scale(runs).await;
    }
    let mut tests = tests::all();
    if args.apiserver_only {
        tests.retain(|test| test.needs == harness::Needs::Bare);
    }
    let Args { filter, list, parallel, keep, again, .. } = args;
    let failed = harness::run(tests, harness::How { filter, list, parallel, keep, again }).await?;
    std::process::exit(i32::from(failed > 0));
}
