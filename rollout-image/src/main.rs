//! `thresh-rollout`: the conductor of a run, a worker of a pool, or a native engine. This binary only wires: what they do
//! is in the libraries.
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use thresh_rollout::{conductor, engine, worker};

/// The rollout side of Thresh.
#[derive(Parser)]
#[command(name = "thresh-rollout", version, about)]
struct Arguments {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// Own a run: its data, queue, batches, weight versions and commits.
    Conductor(conductor::Options),
    /// Generate and reward prompt groups for whichever run invites.
    Worker(worker::Options),
    /// Serve a model, with SGLang's HTTP interface.
    Engine(::engine::EngineOptions),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    control::log::init();
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!("no threads to run on: {error}");
            return ExitCode::FAILURE;
        }
    };
    let ended = match arguments.role {
        Role::Conductor(options) => runtime.block_on(conductor::run(options)),
        Role::Worker(options) => runtime.block_on(worker::run(options)),
        Role::Engine(options) => runtime.block_on(engine::run(options)),
    };
    // What still runs in the background (a call to an engine that hangs) is of no use any more.
    runtime.shutdown_background();
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{}", control::log::said_once(&*error));
            ExitCode::FAILURE
        }
    }
}
