//! The launcher of a pod: one process per device, ended together.
//!
//! The first rank to fail decides the pod's exit code; ranks that fail because another did say so by their own code
//! ([`train::exit::PEER_FAILED`]) and are never taken for the first while a better one is at hand. Ranks die with the
//! launcher (each asks the kernel for it, [`crate::rank`]).

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use train::exit;

use crate::environment::Pod;

/// Once a rank has failed the others get this long to notice and say why.
const OTHERS_MAX: Duration = Duration::from_secs(5);
/// Once a rank is done the others get this long to be done too: they only have to leave.
const LEAVING_MAX: Duration = Duration::from_secs(30);

/// Runs the pod; returns its exit code.
pub fn run() -> u8 {
    let pod = match Pod::from_env() {
        Ok(pod) => pod,
        Err(error) => {
            tracing::error!("{}", control::log::said_once(&*error));
            return exit::USER_MUST_ACT;
        }
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!("cannot start: {error}");
            return exit::FAILURE;
        }
    };
    runtime.block_on(watch(&pod)).unwrap_or_else(|error| {
        tracing::error!("{}", control::log::said_once(&*error));
        exit::FAILURE
    })
}

/// How one rank ended.
#[derive(Clone, Debug)]
struct End {
    rank: usize,
    code: u8,
    /// In words.
    how: String,
    /// The last line the rank wrote to standard error.
    last_words: String,
}

async fn watch(pod: &Pod) -> Result<u8> {
    let (ended, mut ends) = mpsc::channel(pod.ranks_per_node);
    let mut pids = BTreeMap::new();
    for local in 0..pod.ranks_per_node {
        let rank = pod.node_rank * pod.ranks_per_node + local;
        let mut child = start(pod, rank, local)?;
        pids.insert(rank, child.id().context("a rank ended before it began")?);
        let (ended, stderr) = (ended.clone(), child.stderr.take());
        tokio::spawn(async move {
            let last_words = pass_on(stderr).await;
            let end = match child.wait().await {
                Ok(status) => End { rank, code: code_of(status), how: how(status), last_words },
                Err(error) => End { rank, code: exit::FAILURE, how: format!("lost: {error}"), last_words },
            };
            // Nobody listens only when the launcher is leaving.
            let _ = ended.send(end).await;
        });
    }
    drop(ended);

    let mut over: Vec<End> = Vec::new();
    let mut deadline: Option<Instant> = None;
    let mut stop = std::pin::pin!(control::server::asked_to_stop());
    let mut stopping = false;
    while !pids.is_empty() {
        tokio::select! {
            end = ends.recv() => {
                let Some(end) = end else { break };
                pids.remove(&end.rank);
                let patience = if matches!(end.code, exit::COMPLETE | exit::STOPPED) { LEAVING_MAX } else { OTHERS_MAX };
                let until = Instant::now() + patience;
                deadline = Some(deadline.map_or(until, |d| d.min(until)));
                over.push(end);
            }
            () = &mut stop, if !stopping => {
                stopping = true;
                tracing::info!("asked to stop: telling the ranks");
                signal_all(&pids, Signal::TERM);
            }
            () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                tracing::warn!(ranks = ?pids.keys(), "still running after another rank ended: killing them");
                signal_all(&pids, Signal::KILL);
                deadline = None;
            }
        }
    }
    Ok(verdict(&over))
}

/// The pod's exit code: that of the rank to blame, told to the log.
fn verdict(over: &[End]) -> u8 {
    let failed = |e: &&End| !matches!(e.code, exit::COMPLETE | exit::STOPPED | exit::TERMINATED);
    let first = over.iter().filter(failed).find(|e| e.code != exit::PEER_FAILED).or_else(|| over.iter().find(failed));
    if let Some(end) = first {
        let what = if end.code == exit::PEER_FAILED { "ended because a rank elsewhere failed" } else { "failed first" };
        // No fields: whoever shows why a pod ended quotes this line.
        tracing::error!("rank {} {what}: {}", end.rank, why(end));
        return end.code;
    }
    // Without a failure: a pod is complete only if every rank is.
    over.iter().map(|e| e.code).max().unwrap_or(exit::FAILURE)
}

/// What the rank said, if it had the time to say why it ends, or else how it ended.
fn why(end: &End) -> String {
    let said = control::log::words_of(&end.last_words);
    // Whom a signal met did not know: its last words are about something else.
    if end.code > 128 || said.is_empty() {
        return end.how.clone();
    }
    let own = said.strip_prefix(&format!("rank {}", end.rank)).and_then(|rest| rest.strip_prefix([',', ':']));
    own.map_or(said.as_str(), str::trim_start).to_owned()
}

/// How a process ended, in words.
fn how(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (_, Some(9)) => "killed (SIGKILL)".into(),
        (_, Some(signal)) => format!("ended by signal {signal}"),
        (Some(code), None) => format!("exit code {code}"),
        (None, None) => status.to_string(),
    }
}

fn start(pod: &Pod, rank: usize, local: usize) -> Result<Child> {
    let program = std::env::current_exe().context("finding my own program")?;
    Command::new(&program)
        .env("RANK", rank.to_string())
        .env("LOCAL_RANK", local.to_string())
        .env("WORLD_SIZE", pod.world_size().to_string())
        .env("THRESH_LAUNCHER_PID", std::process::id().to_string())
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("starting rank {rank} ({})", program.display()))
}

/// Copies a rank's standard error to ours, line by line so that ranks do not cut each other's lines; returns the last.
async fn pass_on(from: Option<impl AsyncRead + Unpin>) -> String {
    let Some(from) = from else { return String::new() };
    let mut lines = BufReader::new(from).split(b'\n');
    let mut last = Vec::new();
    while let Ok(Some(mut line)) = lines.next_segment().await {
        line.push(b'\n');
        // A closed standard error is no reason to stop training.
        let _ = std::io::stderr().write_all(&line);
        last = line;
    }
    String::from_utf8_lossy(&last).trim_end().to_owned()
}

fn code_of(status: ExitStatus) -> u8 {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(exit::FAILURE),
        (None, Some(signal)) => u8::try_from(128 + signal).unwrap_or(exit::FAILURE),
        (None, None) => exit::FAILURE,
    }
}

fn signal_all(pids: &BTreeMap<usize, u32>, signal: Signal) {
    for pid in pids.values().filter_map(|p| i32::try_from(*p).ok()).filter_map(Pid::from_raw) {
        // It may have ended in this moment.
        let _ = kill_process(pid, signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(rank: usize, code: u8) -> End {
        End { rank, code, how: format!("exit {code}"), last_words: "words".into() }
    }

    #[test]
    fn the_pod_ends_with_the_code_of_the_rank_that_failed_on_its_own() {
        assert_eq!(verdict(&[end(1, exit::PEER_FAILED), end(0, 137)]), 137);
        assert_eq!(verdict(&[end(0, exit::USER_MUST_ACT), end(1, exit::FAILURE)]), exit::USER_MUST_ACT);
        assert_eq!(verdict(&[end(0, exit::PEER_FAILED), end(1, exit::PEER_FAILED)]), exit::PEER_FAILED);
    }

    #[test]
    fn a_death_is_told_by_what_the_rank_said_and_a_kill_by_the_signal() {
        let said = |code, last_words: &str| why(&End { last_words: last_words.into(), ..end(1, code) });
        let log = "2026-11-29T17:50:48.868559Z ERROR rank 1, train RL step 7 (order 12): no space left";
        assert_eq!(said(exit::FAILURE, log), "train RL step 7 (order 12): no space left");
        assert_eq!(said(exit::FAILURE, ""), "exit 1");
        assert_eq!(said(137, "2026-11-29T17:50:48.868559Z  WARN injected fault: kill"), "exit 137");
    }

    #[test]
    fn a_pod_is_complete_only_when_every_rank_is() {
        assert_eq!(verdict(&[end(0, exit::COMPLETE), end(1, exit::COMPLETE)]), exit::COMPLETE);
        assert_eq!(verdict(&[end(0, exit::STOPPED), end(1, exit::STOPPED)]), exit::STOPPED);
        assert_eq!(verdict(&[end(0, exit::COMPLETE), end(1, exit::FAILURE)]), exit::FAILURE);
        assert_eq!(verdict(&[end(0, exit::COMPLETE), end(1, exit::STOPPED)]), exit::STOPPED);
        assert_eq!(verdict(&[]), exit::FAILURE);
    }
}
