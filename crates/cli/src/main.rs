//! `thresh`: runs, shows and inspects RLJobs on this machine.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod args;
mod chaos;
mod closing;
mod commands;
mod display;
mod find_run;
mod live_block;
mod local_why;
mod on_cluster;
mod one_look;
mod reward_svg;
mod soundness;
mod view;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Args, Command};

/// Exit code of a run that failed, and of a check that did.
const FAILED: u8 = 1;
/// Exit code when the manifest or the flags are wrong; nothing was changed.
const WRONG: u8 = 2;
/// Exit code of a run that was stopped by hand.
const STOPPED: u8 = 130;

fn main() -> ExitCode {
    let args = Args::parse();
    let done = match args.command {
        Command::Run(run) => commands::run::run(run),
        Command::Chaos(chaos) => commands::chaos::chaos(chaos),
        Command::Status(status) => commands::status::status(status),
        Command::Logs(logs) => commands::logs::logs(logs),
        Command::Events(events) => commands::events::events(events),
        Command::Why(why) => commands::why::why(why),
        Command::Report(report) => commands::report::report(report),
        Command::Crds(crds) => commands::crds::crds(crds),
        Command::Straw(straw) => commands::straw::straw(straw),
        Command::Hf(hf) => commands::hf::hf(hf),
    };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            display::complain(&format!("error: {}", control::log::said_once(&*error)));
            if std::env::var_os("THRESH_BACKTRACE").is_some_and(|value| value == "1") {
                display::complain(&error.backtrace().to_string());
            }
            ExitCode::from(FAILED)
        }
    }
}
