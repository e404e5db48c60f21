//! `thresh chaos`

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result};
use api::Problem;
use local::{
    folder,
    node::seeds_beside,
    preflight::{self, Refused, Volumes},
    run::{Command, Finish, Run as LocalRun, Setup, Update},
    template::Binaries,
};
use tokio::{sync::mpsc, time::interval};

use crate::{
    FAILED, STOPPED, WRONG,
    args::{Chaos, Output},
    chaos::{
        director::{Director, Manifest, WITHOUT_END},
        manifest,
        schedule::Schedule,
        verdict::Verdict,
    },
    display::{Display, TICK, complain, say},
    view,
};

/// How often the director looks for a moment.
const LOOK: Duration = Duration::from_millis(20);

/// Plays a manifest to its end while its parts are killed.
pub fn chaos(args: Chaos) -> Result<u8> {
    let prepared = preflight::run_name(&args.file).and_then(|name| {
        let state = args.state.clone().unwrap_or_else(|| default_state(&name));
        prepare(&args, state)
    });
    let (setup, played) = match prepared {
        Ok(Prepared::Good(setup, played)) => (*setup, played),
        Ok(Prepared::Held(state)) => {
            let state = state.display();
            complain(&format!(
                "error: {state}: holds a run already, whose attempts are counted\n  fix: remove it (rm -r {state}), or name \
                 another folder with --state"
            ));
            return Ok(WRONG);
        }
        Err(Refused::Manifest(problems)) => {
            complain(api::render(&problems).trim_end());
            return Ok(WRONG);
        }
        Err(Refused::Machine(error)) => {
            complain(&format!("error: {error}"));
            return Ok(WRONG);
        }
    };
    let seed = args.seed.unwrap_or_else(seed_of_the_clock);
    let schedule = Schedule::new(seed, args.kills.into());
    say(&format!("chaos: seed {seed}, {} kills, state {}", args.kills, setup.volumes.state.display()));
    // One thread drives the node; the others only serve probes, polls and clocks.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(drive(setup, schedule, played, &args))
}

fn seed_of_the_clock() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// `runs/NAME-chaos`, the ending once.
fn default_state(name: &str) -> PathBuf {
    Path::new("runs").join(if name.ends_with("-chaos") { name.to_owned() } else { format!("{name}-chaos") })
}

enum Prepared {
    Good(Box<Setup>, Manifest),
    /// The folder holds a run.
    Held(PathBuf),
}

/// The manifest is checked where it lies, then played from a copy, whose number of steps is raised until all kills are played.
fn prepare(args: &Chaos, state: PathBuf) -> Result<Prepared, Refused> {
    if state.join("objects").exists() {
        return Ok(Prepared::Held(state));
    }
    let given: BTreeMap<String, PathBuf> = args.volumes.iter().cloned().collect();
    local::mount::Claims::new(given.clone(), None)?;
    let volumes = Volumes { given, seeds: seeds_beside(&args.file), state };
    let binaries = Binaries::beside_this_one()?;
    let given = preflight::check_file(&args.file, &volumes, &binaries)?;
    let total_steps = given.job().map_or(0, |job| job.spec.total_steps);
    let text = manifest::with_total_steps(&given.text, WITHOUT_END).ok_or_else(|| Refused::Manifest(vec![inline()]))?;
    drop(folder::Folder::open(&volumes.state)?);
    let path = volumes.state.join("chaos.yaml");
    folder::replace(&path, text.as_bytes())?;
    let checked = preflight::check_file(&path, &volumes, &binaries)?;
    let setup =
        Setup { checked, volumes, binaries, nodes: 1, settings: plan::Settings::laptop(), env: BTreeMap::new() };
    Ok(Prepared::Good(Box::new(setup), Manifest { path, text, total_steps }))
}

fn inline() -> Problem {
    Problem::new(
        "spec.totalSteps",
        "it has no line of its own",
        "chaos raises it until all kills are played",
        "write `totalSteps: N` on a line of its own",
    )
}

async fn drive(mut setup: Setup, schedule: Schedule, played: Manifest, args: &Chaos) -> Result<u8> {
    let state = setup.volumes.state.clone();
    setup.env = environment(&schedule);
    let name = setup.checked.job().and_then(|job| job.metadata.name.clone()).context("the manifest has no RLJob")?;
    let (orders, commands) = mpsc::channel(16);
    let (updates, mut inbox) = mpsc::unbounded_channel();
    let mut run = LocalRun::start(setup, commands, updates)?;
    let mut display = Display::new(Output::Human, args.no_color);
    if let Some(job) = run.job() {
        let uid = job.metadata.uid.clone().unwrap_or_default();
        display.header(&view::header(job, &uid, &state));
    }
    let stopper = tokio::spawn({
        let orders = orders.clone();
        async move {
            if tokio::signal::ctrl_c().await.is_ok() {
                let _ = orders.send(Command::Kill).await;
            }
        }
    });
    let mut director = Director::new(schedule, &name, state.clone(), played, orders);
    let shown = tokio::spawn(async move {
        let (mut looks, mut ticks) = (interval(LOOK), interval(TICK));
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                update = inbox.recv() => match update {
                    Some(update) => {
                        director.see(&update);
                        // A kill is told before the death it explains.
                        for event in director.events() {
                            display.update(Update::Event(event));
                        }
                        display.update(update);
                    }
                    None => return Ok::<_, anyhow::Error>((director.played(), display)),
                },
                _ = looks.tick() => director.act().await?,
                _ = ticks.tick() => display.tick(),
            }
            for event in director.events() {
                display.update(Update::Event(event));
            }
        }
    });
    let finish = run.drive().await;
    stopper.abort();
    let last_words = run.last_words();
    let run_dir = run.run_dir()?;
    // The updates end with the run, and the display has shown them all then.
    drop(run);
    let (kills, mut display) = shown.await.context("the director failed")??;
    display.finish();
    conclude(&finish?, kills, args, &run_dir, &state.join("logs"), &last_words)
}

/// Pods log for people here; the faults are in their environment from the start, each for one life.
fn environment(schedule: &Schedule) -> BTreeMap<String, String> {
    let log = std::env::var("THRESH_LOG").unwrap_or_else(|_| "human".into());
    BTreeMap::from([
        ("THRESH_LOG".into(), log),
        ("NO_COLOR".into(), "1".into()),
        ("THRESH_FAULTS".into(), schedule.trainer_faults()),
        ("THRESH_CONDUCTOR_FAULTS".into(), schedule.conductor_faults()),
    ])
}

fn conclude(
    finish: &Finish,
    kills: usize,
    args: &Chaos,
    run_dir: &Path,
    logs: &Path,
    last_words: &[String],
) -> Result<u8> {
    let wanted = usize::from(args.kills);
    let verdict = Verdict::of(run_dir)?;
    for complaint in verdict.complaints() {
        complain(&complaint);
    }
    if let Finish::Failed(reason, message) = finish {
        complain(&format!("error: the run failed, {}: {message}", api::conditions::in_words(reason)));
        last_words.iter().for_each(|line| complain(&format!("    | {line}")));
        complain(&format!("  logs: {}", logs.display()));
    }
    if kills < wanted && *finish == Finish::Complete {
        complain(&format!("error: the run was over before all kills were played: {kills} of {wanted}"));
    }
    say(&verdict.line(kills));
    Ok(match finish {
        Finish::Complete if verdict.is_good() && kills >= wanted => 0,
        Finish::Suspended | Finish::Killed => STOPPED,
        Finish::Complete | Finish::Failed(..) => FAILED,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_folder_is_named_for_chaos_once() {
        assert_eq!(default_state("sort5"), Path::new("runs/sort5-chaos"));
        assert_eq!(default_state("sort5-chaos"), Path::new("runs/sort5-chaos"));
    }
}
