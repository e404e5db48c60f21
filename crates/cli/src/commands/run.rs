//! `thresh run`

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use api::conditions::in_words;
use control::wire::CommitRef;
use local::{
    node::seeds_beside,
    preflight::{self, Checked, Refused, Volumes},
    run::{Command, Finish, Run as LocalRun, Setup},
    status_file::{StatusFile, committed},
    template::Binaries,
};
use serde_json::json;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
};

use crate::{
    FAILED, STOPPED, WRONG,
    args::Run,
    commands::report::{closing_line, draw, steps_of},
    display::{Display, TICK, complain, say},
    view,
};

/// Runs an RLJob to its end, or until it is stopped.
pub fn run(args: Run) -> Result<u8> {
    let (checked, volumes, binaries) = match check(&args) {
        Ok(good) => good,
        Err(Refused::Manifest(problems)) => {
            complain(api::render(&problems).trim_end());
            return Ok(WRONG);
        }
        Err(Refused::Machine(error)) => {
            complain(&format!("error: {error}"));
            return Ok(WRONG);
        }
    };
    let setup = Setup {
        checked,
        volumes,
        binaries,
        nodes: args.nodes.into(),
        settings: plan::Settings::laptop(),
        env: environment(),
    };
    // One thread drives the node; the others only serve probes, polls and clocks.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(drive(setup, &args))
}

fn check(args: &Run) -> Result<(Checked, Volumes, Binaries), Refused> {
    let given: BTreeMap<String, PathBuf> = args.volumes.iter().cloned().collect();
    let state = match &args.state {
        Some(state) => state.clone(),
        None => Path::new("runs").join(preflight::run_name(&args.file)?),
    };
    // A wrong --volume is found here and not after the state folder was made.
    local::mount::Claims::new(given.clone(), None)?;
    let volumes = Volumes { given, seeds: seeds_beside(&args.file), state };
    let binaries = Binaries::beside_this_one()?;
    let checked = preflight::check_file(&args.file, &volumes, &binaries)?;
    Ok((checked, volumes, binaries))
}

/// Pods log for people here, unless the person at the keyboard wants JSON.
fn environment() -> BTreeMap<String, String> {
    let log = std::env::var("THRESH_LOG").unwrap_or_else(|_| "human".into());
    BTreeMap::from([("THRESH_LOG".into(), log), ("NO_COLOR".into(), "1".into())])
}

async fn drive(setup: Setup, args: &Run) -> Result<u8> {
    let state = setup.volumes.state.clone();
    let (orders, commands) = mpsc::channel(16);
    let (updates, mut inbox) = mpsc::unbounded_channel();
    let mut run = match LocalRun::start(setup, commands, updates) {
        Ok(run) => run,
        Err(error @ (local::Error::Busy { .. } | local::Error::NoState { .. })) => {
            complain(&format!("error: {error}"));
            return Ok(WRONG);
        }
        Err(error) => return Err(error.into()),
    };
    let mut display = Display::new(args.output, args.no_color);
    if let Some(job) = run.job() {
        let uid = job.metadata.uid.clone().unwrap_or_default();
        display.header(&view::header(job, &uid, &state));
    }
    display.past(run.past_steps());
    let stopper = tokio::spawn(stop_by_hand(orders));
    let shown = tokio::spawn(async move {
        let mut ticks = tokio::time::interval(TICK);
        loop {
            tokio::select! {
                update = inbox.recv() => match update {
                    Some(update) => display.update(update),
                    None => return display,
                },
                _ = ticks.tick() => display.tick(),
            }
        }
    });
    let finish = run.drive().await;
    stopper.abort();
    let last_words = run.last_words();
    let run_dir = run.run_dir()?;
    // The updates end with the run, and the display has shown them all then.
    drop(run);
    let mut display = shown.await.context("the display failed")?;
    display.finish();
    conclude(&state, &run_dir, finish?, &last_words, &display, args)
}

/// Ctrl-C, SIGTERM and a closed terminal ask for a checkpoint; asked again, everything stops at once.
async fn stop_by_hand(orders: mpsc::Sender<Command>) {
    let mut asked = false;
    let (Ok(mut interrupt), Ok(mut terminate), Ok(mut hangup)) =
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()), signal(SignalKind::hangup()))
    else {
        return;
    };
    loop {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
        let order = if asked { Command::Kill } else { Command::Suspend };
        if asked {
            local::full_disk::give_up();
        }
        asked = true;
        if orders.send(order).await.is_err() {
            return;
        }
    }
}

fn conclude(
    state: &Path,
    run_dir: &Path,
    finish: Finish,
    last_words: &[String],
    display: &Display,
    args: &Run,
) -> Result<u8> {
    let mut status = StatusFile::read(state)?.unwrap_or_default();
    let steps = steps_of(run_dir)?;
    let curve = draw(state, &status.name, &steps)?;
    let complete = finish == Finish::Complete;
    let (good, line) = closing_line(&steps, args.quickstart_check && complete);
    status.curve.clone_from(&curve);
    status.closing = complete.then(|| line.clone());
    status.write(state)?;
    let code = match &finish {
        Finish::Complete if good => 0,
        Finish::Complete | Finish::Failed(..) => FAILED,
        Finish::Suspended | Finish::Killed => STOPPED,
    };
    if display.is_json() {
        let end = json!({
            "type": "end", "exitCode": code, "ended": status.ended, "model": status.model, "curve": curve,
            "status": state.join("status.json"), "closing": status.closing,
        });
        say(&end.to_string());
        if args.quickstart_check && complete {
            say(&line);
        }
        return Ok(code);
    }
    match finish {
        Finish::Complete => {}
        Finish::Failed(reason, message) => complain(&failure(&status, state, &reason, &message, last_words)),
        Finish::Suspended | Finish::Killed => {
            let kept = commit_of(&status)
                .map_or("nothing is committed yet".into(), |commit| format!("committed at {}", committed(commit)));
            let how = if finish == Finish::Killed { "stopped at once" } else { "stopped" };
            say(&format!("{how}; {kept}; run the same command again to go on"));
        }
    }
    if let Some(model) = &status.model {
        say(&format!("model   {}", model.display()));
    }
    if let Some(curve) = &curve {
        say(&format!("curve   {}", curve.display()));
    }
    say(&format!("logs    {}", state.join("logs").display()));
    say(&format!("status  {}", state.join("status.json").display()));
    if complete {
        say(&line);
    } else if args.quickstart_check {
        say(&format!("quickstart: failed, the run {}", status.ended.as_deref().unwrap_or("did not end")));
    }
    Ok(code)
}

fn commit_of(status: &StatusFile) -> Option<&CommitRef> {
    status.progress.as_ref()?.commit.as_ref()
}

/// The component, the attempt, the rank that failed first, its last lines, and what is kept.
fn failure(status: &StatusFile, state: &Path, reason: &str, message: &str, last_words: &[String]) -> String {
    let mut lines = vec![format!("error: {} failed, {}: {message}", status.name, in_words(reason))];
    if let Some(last) = &status.job.last_attempt {
        let rank = last.rank.map_or(String::new(), |rank| format!(", first to fail: pod {rank}"));
        let pod = last.pod_name.as_ref().map_or(String::new(), |pod| format!(" ({pod})"));
        let how = last.message.lines().next().unwrap_or_default();
        let prefix = last.pod_name.as_ref().map(|pod| format!("{pod}: ")).unwrap_or_default();
        let how = how.strip_prefix(&prefix).unwrap_or(how);
        lines.push(format!("  trainer attempt {}{rank}{pod}: {how}", last.id));
        lines.extend(last_words.iter().map(|line| format!("    | {line}")));
    }
    let logs = state.join("logs");
    lines.push(match status.job.last_attempt.as_ref().and_then(|last| last.pod_name.as_deref()) {
        Some(pod) => format!("  log: {} (the other pods' are beside it)", logs.join(format!("{pod}.log")).display()),
        None => format!("  logs: {} (one file for each pod)", logs.display()),
    });
    let commit = commit_of(status).map_or("no commit".into(), |commit| format!("the commit at {}", committed(commit)));
    lines.push(format!("  kept: {commit}, all finished groups and the journal, in {}", status.run_dir.display()));
    let given_up = status.progress.as_ref().is_some_and(|progress| progress.failure.is_some());
    lines.push(match given_up {
        // It is in the journal, and every attempt would meet it there.
        true => {
            "  fix: mend the cause, and start a new run: another metadata.name, or another folder with --state".into()
        }
        false => "  fix: mend the cause, set a new spec.restart.token in the manifest, and run it again".into(),
    });
    lines.join("\n")
}
