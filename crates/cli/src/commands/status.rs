//! `thresh status`

use std::path::Path;

use anyhow::Result;
use control::wire::RunPhase;
use glance::{Row, age, status as parts};
use jiff::Timestamp;
use local::{
    run::tail_of,
    status_file::{StatusFile, committed},
};
use serde_json::json;

use crate::{
    args,
    commands::events::happening,
    display::say,
    local_why::{command, local_why},
    on_cluster::find_here_or_hand_over,
    one_look::OneLook,
};

/// Shows a run as it is now, if it lives, or as it was last seen.
pub fn status(args: args::Status) -> Result<u8> {
    let look = OneLook::at(find_here_or_hand_over(&args.which)?)?;
    if args.output == args::Output::Json {
        let text = json!({
            "running": look.lives(), "conductorAnswers": look.answers, "state": look.state, "status": look.file,
            "why": local_why(&look), "diskBytes": disk(&look.file.run_dir),
        });
        say(&text.to_string());
        return Ok(0);
    }
    say(&human(&look));
    Ok(0)
}

/// The row; nothing lives without the process that holds the folder, whatever was last seen.
fn row(look: &OneLook) -> Row {
    let file = &look.file;
    let progress = file.progress.clone().unwrap_or_default();
    let count = |ready: u32, desired: u32| format!("{}/{desired}", if look.lives() { ready } else { 0 });
    let seen = look.job.as_ref().map_or_else(Row::default, |job| Row::of(job, look.now));
    Row {
        name: file.name.clone(),
        phase: if look.lives() || look.is_over() { file.job.phase.to_string() } else { "Stopped".into() },
        step: format!("{}/{}", progress.step, progress.total_steps),
        version: progress.weight_version.to_string(),
        ranks: file.job.ranks.as_ref().map_or("0/0".into(), |ranks| count(ranks.ready, ranks.desired)),
        serving: file.job.serving.as_ref().map_or("0/0".into(), |all| count(all.ready, all.desired)),
        attempt: file.job.attempts.to_string(),
        fails: file.job.counters.failures.to_string(),
        age: if look.job.is_some() { seen.age } else { "?".into() },
        ..seen
    }
}

fn human(look: &OneLook) -> String {
    let (status, state) = (&look.file, &look.state);
    let progress = status.progress.clone().unwrap_or_default();
    let mut lines = glance::table(&[row(look)]);
    lines.push(String::new());
    lines.push(match look.holder {
        Some(pid) if look.answers => format!("running (pid {pid}), the conductor answers"),
        Some(pid) => format!(
            "running (pid {pid}), the conductor does not answer: what follows was last seen {}",
            seen(status, look.now)
        ),
        None => {
            let how = status.ended.as_deref().unwrap_or("not running");
            let next = if look.is_over() { String::new() } else { format!("; to go on: {}", command(look)) };
            format!("{how}, last seen {}{next}", seen(status, look.now))
        }
    });
    lines.extend(parts::entry_of(&local_why(look).lines(look.now)));
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
    if let Some(job) = &look.job {
        lines.extend(parts::counters(job));
        let last = job.status.as_ref().and_then(|s| s.last_attempt.as_ref()).and_then(|last| last.pod_name.as_ref());
        let words = last.and_then(|pod| tail_of(&state.join("logs").join(format!("{pod}.log")), 1).pop());
        lines.extend(parts::ended(job, look.now, words.as_deref()));
    }
    lines.push(format!("logs      {} (one file for each pod)", state.join("logs").display()));
    if let Some(bytes) = disk(&status.run_dir) {
        lines.push(format!("disk      {:.1} MiB in {}", bytes as f64 / f64::from(1 << 20), status.run_dir.display()));
    }
    for (what, path) in [("model", &status.model), ("curve", &status.curve)] {
        if let Some(path) = path {
            lines.push(format!("{what:<9} {}", path.display()));
        }
    }
    let events: Vec<_> = status.events.iter().map(happening).collect();
    lines.extend(parts::recent(&events, look.now));
    lines.join("\n")
}

fn seen(status: &StatusFile, now: Timestamp) -> String {
    status.updated.map_or("never".into(), |time| format!("{} ago", age(now.duration_since(time).as_secs())))
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
    use control::wire::Progress;

    use super::*;

    fn shown(file: StatusFile, holder: Option<u32>) -> String {
        human(&OneLook::sample(None, file, holder, Timestamp::now()))
    }

    #[test]
    fn a_run_that_never_got_anywhere_can_be_shown() {
        let text = shown(StatusFile { name: "r".into(), ..Default::default() }, None);
        assert!(text.starts_with("NAME   PHASE") && text.contains("not running, last seen never"), "{text}");
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
            let text = shown(status.clone(), holder);
            assert!(text.contains("a.yaml is not what runs: its last edit was refused\n"), "{text}");
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
        let text = shown(StatusFile { progress: Some(progress), ..Default::default() }, Some(1));
        assert!(text.contains("warm start 135/700, pass rate 0.07"), "{text}");
        assert!(text.contains("commit    warm-start update 125 in "), "{text}");
    }

    #[test]
    fn nothing_of_a_dead_run_is_shown_as_living() {
        let mut status = StatusFile { ended: Some("stopped".into()), ..Default::default() };
        status.job.phase = api::Phase::Suspending;
        status.job.ranks = Some(api::Ranks { desired: 2, ready: 2, summary: "2/2".into() });
        status.job.serving = Some(api::ServingSummary { desired: 3, ready: 3, ..Default::default() });
        let text = shown(status.clone(), None);
        let row = text.lines().nth(1).unwrap();
        assert!(row.contains("Stopped") && row.contains("0/2") && row.contains("0/3"), "{text}");
        let row = shown(status, Some(1));
        assert!(row.contains("Suspending") && row.contains("2/2") && row.contains("3/3"), "{row}");
    }
}
