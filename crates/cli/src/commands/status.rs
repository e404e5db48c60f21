//! `thresh status`

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Result;
use api::{RLJob, manifest::Kind};
use control::{
    client::{ConductorClient, EpochMemory},
    names::Names,
    wire::{Progress, RunPhase},
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Secret};
use local::{
    folder::{self, Folder},
    operator, preflight,
    run::{self, tail_of},
    status_file::{StatusFile, committed},
};
use serde_json::json;

use crate::{args, display::say, find_run::find_run, view};

/// Shows a run as it is now, if it lives, or as it was last seen.
pub fn status(args: args::Status) -> Result<u8> {
    let state = find_run(args.run.as_deref())?;
    let holder = Folder::holder(&state);
    let job = job_of(&state)?;
    let mut status = StatusFile::read(&state)?.unwrap_or_default();
    if let Some(job) = &job {
        // The object is newer than the file that sums it up.
        status.job = job.status.clone().unwrap_or_default();
        status.name = job.metadata.name.clone().unwrap_or_default();
        status.uid = job.metadata.uid.clone().unwrap_or_default();
    }
    let live = if holder.is_some() { ask(&state, &status.name) } else { None };
    let answers = live.is_some();
    if let Some(progress) = live {
        status.progress = Some(progress);
    }
    if args.output == args::Output::Json {
        let text = json!({
            "running": holder.is_some(), "conductorAnswers": answers, "state": state, "status": status,
            "diskBytes": disk(&status.run_dir),
        });
        say(&text.to_string());
        return Ok(0);
    }
    say(&human(&status, job.as_ref(), &state, holder, answers));
    Ok(0)
}

fn job_of(state: &Path) -> Result<Option<RLJob>> {
    let stored = preflight::stored(state)?;
    Ok(stored.into_iter().find_map(|one| match one {
        Kind::RLJob(job) => Some(*job),
        Kind::ServingCluster(_) | Kind::RolloutPool(_) => None,
    }))
}

/// Asks the conductor itself.
fn ask(state: &Path, name: &str) -> Option<Progress> {
    let objects = state.join("objects");
    let conductor = plan::build::conductor_name(name);
    let pod: Pod = folder::read_json(&objects.join("pods").join(format!("{conductor}-0.json"))).ok()??;
    let secret = objects.join("secrets").join(format!("{}.json", plan::build::token_secret(name)));
    let secret: Secret = folder::read_json(&secret).ok()??;
    let target = operator::target(&pod, &secret)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    runtime.block_on(async {
        let http = control::names::http_client(Names::with_hosts(state.join("hosts"))).ok()?;
        let client = ConductorClient::new(http, target.url, target.token, EpochMemory::default());
        tokio::time::timeout(Duration::from_secs(2), client.progress()).await.ok()?.ok()
    })
}

fn human(status: &StatusFile, job: Option<&RLJob>, state: &Path, holder: Option<u32>, answers: bool) -> String {
    let now = Timestamp::now();
    let since = |time: Timestamp| view::age(now.duration_since(time).as_secs());
    let created = job.and_then(|job| job.metadata.creation_timestamp.as_ref()).map(|time| time.0);
    let progress = status.progress.clone().unwrap_or_default();
    let job_status = &status.job;
    // Nothing lives without the process that holds the folder, whatever was last seen.
    let lives = holder.is_some();
    let count = |ready: u32, desired: u32| format!("{}/{desired}", if lives { ready } else { 0 });
    let phase = if lives || over(status) { job_status.phase.to_string() } else { "Stopped".into() };
    let columns = [
        ("NAME", status.name.clone()),
        ("PHASE", phase),
        ("STEP", format!("{}/{}", progress.step, progress.total_steps)),
        ("VERSION", progress.weight_version.to_string()),
        ("RANKS", job_status.ranks.as_ref().map_or("0/0".into(), |ranks| count(ranks.ready, ranks.desired))),
        ("SERVING", job_status.serving.as_ref().map_or("0/0".into(), |all| count(all.ready, all.desired))),
        ("ATTEMPT", job_status.attempts.to_string()),
        ("FAILS", job_status.counters.failures.to_string()),
        ("AGE", created.map_or("?".into(), since)),
    ];
    let width = |(head, value): &(&str, String)| head.len().max(value.len()) + 3;
    let row = |pick: &dyn Fn(&(&str, String)) -> String| {
        let cells: String = columns.iter().map(|one| format!("{:<1$}", pick(one), width(one))).collect();
        cells.trim_end().to_owned()
    };
    let mut lines = vec![row(&|(head, _)| (*head).to_owned()), row(&|(_, value)| value.clone()), String::new()];
    lines.push(match holder {
        Some(pid) if answers => format!("running (pid {pid}), the conductor answers"),
        Some(pid) => format!(
            "running (pid {pid}), the conductor does not answer: what follows was last seen {}",
            seen(status, now)
        ),
        None => {
            let how = status.ended.as_deref().unwrap_or("not running");
            let next = if over(status) { String::new() } else { format!("; to go on: {}", command(status, state)) };
            format!("{how}, last seen {}{next}", seen(status, now))
        }
    });
    let look = if lives || over(status) {
        look_at(status, &progress, now)
    } else if status.refused_edit.is_some() {
        refused(status).unwrap_or_default()
    } else {
        "nothing runs: the command above goes on".to_owned()
    };
    lines.push(format!("look at   {look}"));
    if progress.phase == RunPhase::WarmStart {
        let rate = progress.pass_rate.map_or(String::new(), |rate| format!(", pass rate {rate:.2}"));
        lines.push(format!("progress  warm start {}/{}{rate}", progress.warm_step, progress.warm_steps_max));
    }
    let queue = &progress.queue;
    lines.push(format!(
        "data      epoch {}, row {};  queue: {} waiting, {} leased, {} ready, {} batches kept",
        progress.data_epoch, progress.data_offset, queue.waiting, queue.leased, queue.ready, queue.retained_batches
    ));
    if !queue.dropped.is_empty() {
        let dropped: Vec<String> = queue.dropped.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
        lines.push(format!("dropped   {}", dropped.join(", ")));
    }
    if let Some(step) = &progress.last_step {
        lines.push(format!(
            "last step reward {:.3} ± {:.3}, gap {:?} over {} tokens, staleness at most {}, {:.0} tokens/s",
            step.reward,
            step.reward_std,
            step.train.gap_max,
            step.train.gap_tokens,
            step.staleness_max,
            step.tokens_per_second
        ));
    }
    if let Some(commit) = &progress.commit {
        let folder = status.run_dir.join(&commit.folder);
        lines.push(format!("commit    {} in {}", committed(commit), folder.display()));
    }
    if let Some(last) = &job_status.last_attempt {
        let rank = last.rank.map_or(String::new(), |rank| format!(", pod {rank}"));
        let node = last.node_name.as_ref().map_or(String::new(), |node| format!(" on {node}"));
        let code = last.exit_code.map_or(String::new(), |code| format!(", exit code {code}"));
        lines.push(format!("ended     attempt {} {}{rank}{node}{code}", last.id, last.outcome.in_words()));
        let log = last.pod_name.as_ref().map(|pod| state.join("logs").join(format!("{pod}.log")));
        if let Some(line) = log.and_then(|log| tail_of(&log, 1).pop()) {
            lines.push(format!("          | {line}"));
        }
    }
    lines.push(format!("logs      {}", state.join("logs").join("POD.log").display()));
    if let Some(bytes) = disk(&status.run_dir) {
        lines.push(format!("disk      {:.1} MiB in {}", bytes as f64 / f64::from(1 << 20), status.run_dir.display()));
    }
    for (what, path) in [("model", &status.model), ("curve", &status.curve)] {
        if let Some(path) = path {
            lines.push(format!("{what:<9} {}", path.display()));
        }
    }
    if !status.events.is_empty() {
        lines.push("events".into());
        let last = status.events.len().saturating_sub(5);
        for event in &status.events[last..] {
            let text = event.text.replace('\n', "\n            ");
            lines.push(format!("  {}  {text}", view::time_of_day(event.time)));
        }
    }
    lines.join("\n")
}

/// A run that has its end behind it.
fn over(status: &StatusFile) -> bool {
    run::is_over(&status.job)
}

/// The command that goes on with the run, wherever it is typed.
fn command(status: &StatusFile, state: &Path) -> String {
    let absolute = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let state = absolute(state);
    let mut words = vec!["thresh run".to_owned(), quoted(&status.manifest)];
    if absolute(&PathBuf::from("runs").join(&status.name)) != state {
        words.push(format!("--state {}", quoted(&state)));
    }
    words.extend(status.volumes.iter().map(|(claim, path)| format!("--volume {claim}={}", quoted(path))));
    if status.nodes > 1 {
        words.push(format!("--nodes {}", status.nodes));
    }
    words.join(" ")
}

/// A path as a shell takes it.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_alphanumeric() || "/._-+=:,@%".contains(c);
    if text.chars().all(plain) { text } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

/// That the file is not what runs, and why.
fn refused(status: &StatusFile) -> Option<String> {
    let why = status.refused_edit.as_ref()?.replace('\n', "\n          ");
    let file = status.manifest.display();
    Some(format!("{file} is not what runs: its last edit was refused\n          {why}"))
}

fn seen(status: &StatusFile, now: Timestamp) -> String {
    status.updated.map_or("never".into(), |time| format!("{} ago", view::age(now.duration_since(time).as_secs())))
}

/// The one thing to look at.
fn look_at(status: &StatusFile, progress: &Progress, now: Timestamp) -> String {
    use api::conditions as cond;
    let conditions = &status.job.conditions;
    if let Some(failed) = cond::get(conditions, cond::FAILED).filter(|one| one.status == "True") {
        return format!("{}: {}", cond::in_words(&failed.reason), failed.message);
    }
    if let Some(failure) = &progress.failure {
        return failure.clone();
    }
    if cond::is_true(conditions, cond::COMPLETE) {
        return "nothing: the run is complete".into();
    }
    if status.stopping {
        return "nothing: it saves a checkpoint and stops".into();
    }
    if let Some(refused) = refused(status) {
        return refused;
    }
    if status.job.phase == api::Phase::Suspended {
        return format!("Suspended: set spec.suspend: false in {} to go on", status.manifest.display());
    }
    for type_ in [cond::ACCEPTED, cond::TRAINER_READY, cond::DEGRADED] {
        let bad = if type_ == cond::DEGRADED { "True" } else { "False" };
        if let Some(one) = cond::get(conditions, type_).filter(|one| one.status == bad && !one.message.is_empty()) {
            return format!("{type_}: {}", one.message);
        }
    }
    match view::long_wait(progress, now) {
        Some(wait) => format!("waiting for {} ({})", wait.what, wait.owner),
        None => "nothing: it goes its way".into(),
    }
}

/// Bytes under a folder.
fn disk(folder: &Path) -> Option<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder).ok()?.flatten() {
        let meta = entry.metadata().ok()?;
        bytes += if meta.is_dir() { disk(&entry.path()).unwrap_or(0) } else { meta.len() };
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use anyhow::Context;
    use control::wire::Wait;

    use super::*;

    #[test]
    fn one_thing_to_look_at_is_named_the_worst_first() {
        use api::conditions as cond;
        let now = Timestamp::from_second(60).unwrap();
        let mut status = StatusFile::default();
        let mut progress = Progress::default();
        assert_eq!(look_at(&status, &progress, now), "nothing: it goes its way");
        progress.waits.push(Wait { what: "engine e-0".into(), owner: "conductor".into(), since_ms: 0, until_ms: None });
        assert_eq!(look_at(&status, &progress, now), "waiting for engine e-0 (conductor)");
        let mut set = |type_, truth, reason, message| {
            cond::set(&mut status.job.conditions, type_, truth, reason, message, Some(1), Timestamp::UNIX_EPOCH);
        };
        set(cond::TRAINER_READY, cond::Truth::False, "BackingOff", "3 failures without a new commit");
        set(cond::FAILED, cond::Truth::True, "BackoffLimitExceeded", "gave up");
        assert_eq!(look_at(&status, &progress, now), "too many failures: gave up");
        cond::clear(&mut status.job.conditions, cond::FAILED);
        assert_eq!(look_at(&status, &progress, now), "TrainerReady: 3 failures without a new commit");
    }

    #[test]
    fn a_run_that_never_got_anywhere_can_be_shown() {
        let text = human(&StatusFile { name: "r".into(), ..Default::default() }, None, Path::new("s"), None, false);
        assert!(text.starts_with("NAME   PHASE") && text.contains("not running, last seen never"), "{text}");
    }

    #[test]
    fn what_goes_on_with_a_run_is_the_whole_command() {
        let desk = tempfile::tempdir().unwrap();
        let state = desk.path().canonicalize().unwrap().join("my state");
        std::fs::create_dir(&state).unwrap();
        let status = StatusFile {
            name: "r".into(),
            manifest: "/m/rljob.yaml".into(),
            volumes: [("c".to_owned(), PathBuf::from("/v"))].into(),
            nodes: 2,
            ..Default::default()
        };
        let state_flag = format!("--state '{}'", state.display());
        let expected = format!("thresh run /m/rljob.yaml {state_flag} --volume c=/v --nodes 2");
        assert_eq!(command(&status, &state), expected);
        assert!(human(&status, None, &state, None, false).contains(&expected));
        let plain = StatusFile { volumes: Default::default(), nodes: 1, ..status };
        assert_eq!(command(&plain, Path::new("runs/r")), "thresh run /m/rljob.yaml");
    }

    #[test]
    fn a_refused_edit_is_told_with_its_reason() {
        let refused = "error: a.yaml:3: spec.x: unknown field\n  fix: remove it";
        let status = StatusFile {
            manifest: "a.yaml".into(),
            refused_edit: Some(refused.into()),
            events: vec![local::status_file::EventLine {
                time: Timestamp::UNIX_EPOCH,
                reason: "EditRefused".into(),
                text: format!("edit refused, nothing changes\n{refused}"),
            }],
            ..Default::default()
        };
        for holder in [Some(1), None] {
            let text = human(&status, None, Path::new("s"), holder, false);
            assert!(text.contains("look at   a.yaml is not what runs: its last edit was refused\n"), "{text}");
            assert_eq!(text.matches("spec.x: unknown field").count(), 2, "as what to look at, and as an event: {text}");
        }
    }

    #[test]
    fn a_warm_start_is_shown_in_its_own_updates() {
        let progress = Progress {
            phase: RunPhase::WarmStart,
            warm_step: 135,
            warm_steps_max: 700,
            pass_rate: Some(0.07),
            commit: Some(control::wire::CommitRef {
                step: 0,
                warm_step: 125,
                warming: true,
                folder: "tiles/warm".into(),
                index_digest: String::new(),
                weights_digest: String::new(),
            }),
            ..Default::default()
        };
        let status = StatusFile { progress: Some(progress), ..Default::default() };
        let text = human(&status, None, Path::new("s"), Some(1), true);
        assert!(text.contains("warm start 135/700, pass rate 0.07"), "{text}");
        assert!(text.contains("commit    warm-start update 125 in "), "{text}");
    }

    #[test]
    fn nothing_of_a_dead_run_is_shown_as_living() {
        let mut status = StatusFile { ended: Some("stopped".into()), ..Default::default() };
        status.job.phase = api::Phase::Suspending;
        status.job.ranks = Some(api::Ranks { desired: 2, ready: 2, summary: "2/2".into() });
        status.job.serving = Some(api::ServingSummary { desired: 3, ready: 3, ..Default::default() });
        let text = human(&status, None, Path::new("s"), None, false);
        let row = text.lines().nth(1).unwrap();
        assert!(row.contains("Stopped") && row.contains("0/2") && row.contains("0/3"), "{text}");
        let row = human(&status, None, Path::new("s"), Some(1), true);
        assert!(row.contains("Suspending") && row.contains("2/2") && row.contains("3/3"), "{row}");
    }

    #[test]
    fn nobody_is_asked_when_no_conductor_was_ever_made() {
        let folder = tempfile::tempdir().unwrap();
        assert!(ask(folder.path(), "r").is_none());
        assert!(job_of(folder.path()).context("none").unwrap().is_none());
    }
}
