//! The operator of Thresh.
//!
//! What it is: the hands and eyes of `plan` on a Kubernetes cluster. For each RLJob, ServingCluster and RolloutPool: read what
//! is there (`dereference`), let `plan` decide, write the status, carry out the actions, tell people.
//!
//! What it is **not**: it decides nothing itself, keeps nothing that matters in memory, and never lists a Secret.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod apply;
mod args;
mod cache;
mod context;
mod error;
mod events;
mod kind;
mod leader;
mod links;
mod metrics;
mod nodes;
mod pool;
mod queue;
mod reconcile;
mod rljob;
mod run;
mod schema;
mod secrets;
mod serving;
mod slim;
mod spell;
mod uninstall;
mod watches;

use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser;

/// The API server of this pod's account, or of the kubeconfig.
async fn api_server() -> anyhow::Result<kube::Client> {
    let found = kube::Client::try_default().await;
    found.context("no way to the API server; fix: set KUBECONFIG, or run in a pod with a service account")
}

#[tokio::main]
async fn main() -> ExitCode {
    let command = args::Cli::parse().command;
    control::log::init_but(Some("kube_runtime"));
    let ended = match command {
        args::Command::Run(args) => run::run(args).await,
        args::Command::Uninstall(args) => uninstall::uninstall(args).await,
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{}", control::log::said_once(&*error));
            ExitCode::FAILURE
        }
    }
}
