//! `thresh-trainer`: one pod of a training attempt.
//!
//! Started plainly it is the launcher of its pod: it starts itself once per device and watches over those ranks
//! ([`launcher`]). Started by the launcher it is a rank ([`rank`]). The environment is described in [`environment`], exit
//! codes in [`train::exit`].
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod environment;
mod gauges;
mod launcher;
mod rank;

use std::process::ExitCode;

use clap::Parser;

/// One pod of a Thresh training attempt. It is configured by the environment that Thresh sets on its pods; there are no
/// options.
#[derive(Parser)]
#[command(name = "thresh-trainer", version)]
struct Arguments {}

fn main() -> ExitCode {
    let Arguments {} = Arguments::parse();
    control::log::init();
    let code = match environment::Local::from_env() {
        Ok(Some(local)) => rank::run(&local),
        Ok(None) => launcher::run(),
        Err(error) => {
            tracing::error!("{}", control::log::said_once(&*error));
            train::exit::USER_MUST_ACT
        }
    };
    ExitCode::from(code)
}
