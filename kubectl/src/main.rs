//! `kubectl thresh`: what a run on a cluster does, waits for, said. Reads only, with no more rights than `view` has.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod args;
mod cluster;
mod logs;
mod say;
mod trouble;

use std::{process::ExitCode, time::Duration};

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use glance::{Output, Row};
use serde_json::json;

use crate::{
    args::{Args, Command, Status},
    cluster::{Cluster, Seen},
    say::{complain, say},
};

/// Between two looks of `--watch`.
const LOOK: Duration = Duration::from_secs(2);

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run(Args::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("error: {}", last_words::said_once(&*error)));
            if std::env::var_os("THRESH_BACKTRACE").is_some_and(|value| value == "1") {
                complain(&error.backtrace().to_string());
            }
            ExitCode::FAILURE
        }
    }
}

async fn run(args: Args) -> Result<()> {
    if args.of.all_namespaces
        && let Some(job) = args.command.job()
    {
        bail!(
            "-A {job}: a run is found in one namespace\n  fix: name it with -n; kubectl thresh status -A shows all runs with theirs"
        );
    }
    let follows = matches!(&args.command, Command::Logs(logs) if logs.of.follow);
    let cluster = Cluster::connect(&args.of, follows).await?;
    match &args.command {
        Command::Status(status) => show_status(&cluster, status, args.of.all_namespaces).await,
        Command::Logs(logs) => logs::logs(&cluster, &logs.job, &logs.of).await,
        Command::Events(events) => {
            let seen = cluster.see(&events.job).await?;
            let happened = cluster.happened(&seen).await?;
            match events.output {
                Output::Json => happened.iter().try_for_each(|h| say(&serde_json::to_string(h)?)),
                Output::Human if happened.is_empty() => {
                    say("nothing is on record: a cluster forgets events after an hour")
                }
                Output::Human => glance::event_lines(&happened, jiff::Timestamp::now()).iter().try_for_each(|l| say(l)),
            }
        }
        Command::Why(why) => {
            let seen = cluster.see(&why.job).await?;
            let facts = seen.facts(&cluster);
            let found = glance::why(&facts);
            match why.output {
                Output::Json => say(&serde_json::to_string(&found)?),
                Output::Human => found.lines(facts.now).iter().try_for_each(|line| say(line)),
            }
        }
    }
}

async fn show_status(cluster: &Cluster, status: &Status, everywhere: bool) -> Result<()> {
    let mut last = String::new();
    loop {
        let text = match &status.job {
            Some(job) => one(cluster, job, status.output).await,
            None => many(cluster, everywhere, status.output).await,
        };
        let text = match text {
            Ok(text) => text,
            Err(error) if status.watch && !last.is_empty() => last_words::said_once(&*error),
            Err(error) => return Err(error),
        };
        if text != last {
            if !last.is_empty() {
                say("")?;
            }
            say(&text)?;
            last = text;
        }
        if !status.watch {
            return Ok(());
        }
        tokio::time::sleep(LOOK).await;
    }
}

async fn one(cluster: &Cluster, job: &str, output: Output) -> Result<String> {
    let seen = cluster.see(job).await?;
    let happened = cluster.happened(&seen).await?;
    let facts = seen.facts(cluster);
    if output == Output::Json {
        return Ok(json!({
            "run": Row::of(&seen.job, facts.now), "why": glance::why(&facts), "status": seen.job.status, "events": happened,
        })
        .to_string());
    }
    let words = last_words(cluster, &seen).await;
    Ok(glance::status::lines(&facts, &happened, words.as_deref()).join("\n"))
}

/// The last line of the pod that failed first, while that pod is there.
async fn last_words(cluster: &Cluster, seen: &Seen) -> Option<String> {
    let pod = seen.job.status.as_ref()?.last_attempt.as_ref()?.pod_name.as_ref()?;
    seen.pods.iter().find(|p| p.metadata.name.as_ref() == Some(pod))?;
    cluster.tail(pod, 1).await.ok()?.lines().last().map(str::to_owned)
}

async fn many(cluster: &Cluster, everywhere: bool, output: Output) -> Result<String> {
    let now = jiff::Timestamp::now();
    let jobs = cluster.jobs(everywhere).await.context("list RLJobs")?;
    let rows: Vec<Row> = jobs
        .iter()
        .map(|job| Row { namespace: job.metadata.namespace.clone().filter(|_| everywhere), ..Row::of(job, now) })
        .collect();
    Ok(match output {
        Output::Json => rows.iter().map(serde_json::to_string).collect::<Result<Vec<_>, _>>()?.join("\n"),
        Output::Human if rows.is_empty() && everywhere => "no RLJob on this cluster".into(),
        Output::Human if rows.is_empty() => {
            format!("no RLJob in namespace {}\n  fix: name another with -n, or -A for all", cluster.namespace)
        }
        Output::Human => glance::table(&rows).join("\n"),
    })
}
