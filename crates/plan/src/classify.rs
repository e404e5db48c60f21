//! Why an attempt ended. The Job controller will not say, so the pods are asked, as they end and before they vanish.

use std::collections::BTreeMap;

use api::{Ending, Outcome, PodEnd};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, Pod};
use k8s_openapi::jiff::Timestamp;

use crate::{NodeState, pod_facts};

/// Exit codes of the trainer.
mod exit {
    /// Everything is done, and `finished` is journaled.
    pub const COMPLETE: i32 = 0;
    /// The user must act.
    pub const USER_MUST_ACT: i32 = 3;
    /// A later attempt has the run.
    pub const SUPERSEDED: i32 = 4;
    /// Another rank failed first.
    pub const PEER_FAILED: i32 = 5;
    /// Stopped as asked.
    pub const STOPPED: i32 = 75;
    /// Ended by SIGTERM.
    pub const TERMINATED: i32 = 143;
}

/// Reason and message of the Job's failure, if it has failed or is about to.
pub fn job_failing(job: &Job) -> Option<(&str, &str)> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    let c = conditions.iter().find(|c| (c.type_ == "FailureTarget" || c.type_ == "Failed") && c.status == "True")?;
    Some((c.reason.as_deref().unwrap_or_default(), c.message.as_deref().unwrap_or_default()))
}

/// What is seen of a pod that has ended or is about to; nothing while it is well.
pub fn evidence(pod: &Pod, nodes: &BTreeMap<String, NodeState>, failing: bool, now: Timestamp) -> Option<PodEnd> {
    let node = pod_facts::node(pod);
    let terminated = pod_facts::terminated(pod);
    let mut end = PodEnd {
        outcome: Outcome::Failed,
        exit_code: terminated.map(|t| t.exit_code),
        index: pod_facts::index(pod),
        node: node.map(str::to_owned),
        seen_us: now.as_microsecond(),
        ended_us: terminated.and_then(|t| t.finished_at.as_ref()).map(|t| t.0.as_microsecond()),
        message: String::new(),
    };
    let state = node.and_then(|n| nodes.get(n)).copied().unwrap_or(NodeState::Ready);
    if state != NodeState::Ready && !pod_facts::ended(pod) {
        end.outcome = Outcome::Disrupted;
        let what = if state == NodeState::Gone { "is gone" } else { "is unreachable" };
        end.message = format!("node {} {what}", node.unwrap_or_default());
        return Some(end);
    }
    if let Some(("True", reason, message)) = pod_facts::condition(pod, "DisruptionTarget") {
        let status_reason = pod.status.as_ref().and_then(|s| s.reason.as_deref()).unwrap_or_default();
        let shutdown = matches!(status_reason, "Terminated" | "NodeShutdown" | "Preempting");
        end.outcome =
            if reason == "TerminationByKubelet" && !shutdown { Outcome::OutOfMemory } else { Outcome::Disrupted };
        end.message = format!("{reason}: {message}");
        return Some(end);
    }
    let deleting = pod.metadata.deletion_timestamp.is_some();
    if let Some(t) = terminated {
        let reason = t.reason.as_deref().unwrap_or_default();
        end.outcome = match t.exit_code {
            _ if reason == "OOMKilled" => Outcome::OutOfMemory,
            exit::COMPLETE => Outcome::Complete,
            exit::USER_MUST_ACT => Outcome::UserError,
            exit::STOPPED | exit::SUPERSEDED => Outcome::Stopped,
            _ if deleting && !failing => Outcome::Deleted,
            _ => Outcome::Failed,
        };
        end.message = said(t);
        return Some(end);
    }
    if deleting {
        // After the Job has failed its controller removes the peers: that is no cause.
        if failing {
            return None;
        }
        end.outcome = Outcome::Deleted;
        end.message = "deleted".into();
        return Some(end);
    }
    None
}

/// How it ended, with its last words.
pub fn said(t: &ContainerStateTerminated) -> String {
    // On a cluster the raw end of the log, on a laptop the line that was chosen from it.
    let killed = t.signal == Some(9) || t.exit_code == 137;
    let said = last_words::last_words(t.message.as_deref().unwrap_or_default(), killed);
    // A launcher that names the rank says it all.
    match said.as_str() {
        "" => in_words(t.exit_code, t.signal),
        rank if rank.starts_with("rank ") => rank.to_owned(),
        other => format!("{}: {other}", in_words(t.exit_code, t.signal)),
    }
}

/// How the main container of a pod that is not ready ended the last time; nothing if it never has. The same whether it runs, waits or
/// ends just now: a container that ends again and again does all three in turn.
pub fn last_end(pod: &Pod) -> Option<String> {
    if pod_facts::ready(pod) {
        return None;
    }
    let container = pod.status.as_ref()?.container_statuses.as_ref()?.first()?;
    let ended = |s: &Option<ContainerState>| s.as_ref().and_then(|s| s.terminated.clone());
    ended(&container.state).or_else(|| ended(&container.last_state)).map(|t| said(&t))
}

/// An exit code of the trainer, for people.
fn in_words(code: i32, signal: Option<i32>) -> String {
    match (code, signal.filter(|s| *s > 0)) {
        (_, Some(9)) | (137, None) => "killed (SIGKILL)".into(),
        (_, Some(15)) | (exit::TERMINATED, None) => "ended by SIGTERM".into(),
        (_, Some(signal)) => format!("ended by signal {signal}"),
        (exit::USER_MUST_ACT, None) => "asks for its user (exit code 3)".into(),
        (exit::SUPERSEDED, None) => "gave way to a later attempt".into(),
        (exit::PEER_FAILED, None) => "a rank elsewhere failed".into(),
        (exit::STOPPED, None) => "stopped as asked".into(),
        (code, None) => format!("exit code {code}"),
    }
}

/// Adds what is seen now to what was seen before: the first cause of a pod stands, unless a disruption explains it.
pub fn note(ending: &mut Ending, pod: &str, seen: PodEnd) {
    let Some(old) = ending.pods.get_mut(pod) else {
        ending.pods.insert(pod.to_owned(), seen);
        return;
    };
    old.exit_code = old.exit_code.or(seen.exit_code);
    old.ended_us = old.ended_us.or(seen.ended_us);
    let explained = |o: Outcome| matches!(o, Outcome::Disrupted | Outcome::OutOfMemory);
    if explained(seen.outcome) && !explained(old.outcome) {
        old.outcome = seen.outcome;
        old.message = seen.message;
    }
}

/// Every end so far follows from another rank's: a peer gave it up, or the Job's controller cleared up after that. The end that
/// came first has not been seen.
pub fn only_peers(ending: &Ending) -> bool {
    let peer = |e: &PodEnd| e.outcome == Outcome::Failed && e.exit_code == Some(exit::PEER_FAILED);
    let Some(first) = ending.pods.values().filter(|e| peer(e)).map(|e| e.seen_us).min() else { return false };
    let cleared_up = |e: &PodEnd| e.outcome == Outcome::Deleted && e.exit_code.is_none() && e.seen_us > first;
    ending.pods.values().all(|e| peer(e) || cleared_up(e))
}

/// The verdict: what the end means, and which pod failed first. `job` is the reason of the Job's failure, if it has one.
pub fn verdict<'a>(ending: &'a Ending, job: Option<(&str, &str)>) -> (Outcome, Option<(&'a str, &'a PodEnd)>) {
    let first = |wanted: &dyn Fn(&PodEnd) -> bool| {
        ending
            .pods
            .iter()
            .filter(|(_, e)| wanted(e))
            .min_by_key(|(_, e)| (e.ended_us.unwrap_or(i64::MAX), e.seen_us, e.index))
            .map(|(name, e)| (name.as_str(), e))
    };
    let of = |o: Outcome| first(&|e: &PodEnd| e.outcome == o);
    // The user must act: nothing else will help.
    if let Some(e) = of(Outcome::UserError) {
        return (Outcome::UserError, Some(e));
    }
    // A lost node or an eviction explains whatever the peers did about it.
    if let Some(e) = of(Outcome::Disrupted) {
        return (Outcome::Disrupted, Some(e));
    }
    if let Some(e) = of(Outcome::OutOfMemory) {
        return (Outcome::OutOfMemory, Some(e));
    }
    let derived = |e: &PodEnd| matches!(e.exit_code, Some(exit::PEER_FAILED | exit::TERMINATED));
    let own = first(&|e: &PodEnd| e.outcome == Outcome::Failed && !derived(e));
    let deleted = of(Outcome::Deleted);
    match (own, deleted) {
        // Deleted by a hand, seen before a peer crashed over it.
        (Some(f), Some(d)) if d.1.seen_us < f.1.seen_us => return (Outcome::Deleted, Some(d)),
        (Some(f), _) => return (Outcome::Failed, Some(f)),
        (None, Some(d)) => return (Outcome::Deleted, Some(d)),
        (None, None) => {}
    }
    if let Some((reason, message)) = job {
        if reason == "PodFailurePolicy" && message.contains("DisruptionTarget") {
            return (Outcome::Disrupted, None);
        }
        if reason == "PodFailurePolicy" {
            return (Outcome::UserError, None);
        }
        // A failed pod stays and was seen above; only a deleted one vanishes.
        if ending.pods.values().all(|e| e.outcome != Outcome::Failed)
            && !ending.pods.values().any(|e| e.outcome == Outcome::Stopped)
        {
            return (Outcome::Deleted, None);
        }
    }
    if let Some(e) = of(Outcome::Failed) {
        return (Outcome::Failed, Some(e));
    }
    if let Some(e) = of(Outcome::Stopped) {
        return (Outcome::Stopped, Some(e));
    }
    match of(Outcome::Complete) {
        Some(e) => (Outcome::Complete, Some(e)),
        None => (Outcome::Deleted, None),
    }
}

/// Whether the queue that took the Job back explains this end: its pods were removed, or ended as they were told to. A failure of
/// a rank's own, before or meanwhile, stays one.
pub fn by_preemption(outcome: Outcome, first: Option<&PodEnd>) -> bool {
    match outcome {
        Outcome::Deleted | Outcome::Stopped => true,
        Outcome::Failed => first.is_some_and(|e| matches!(e.exit_code, Some(exit::PEER_FAILED | exit::TERMINATED))),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The end of an attempt as its pod's message tells it.
    fn told(exit_code: i32, message: &str) -> String {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "status": { "phase": "Failed", "containerStatuses": [{
                "name": "trainer", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": { "terminated": { "exitCode": exit_code, "reason": "Error", "message": message } },
            }] },
        }))
        .unwrap();
        evidence(&pod, &BTreeMap::new(), true, Timestamp::UNIX_EPOCH).unwrap().message
    }

    #[test]
    fn the_end_of_a_log_is_told_as_the_line_that_says_why_and_so_is_that_line() {
        let log = r#"Z","level":"INFO","message":"step 3"}
{"timestamp":"2026-11-29T17:50:48Z","level":"ERROR","message":"rank 1 failed first: out of memory on cuda:0"}
{"timestamp":"2026-11-29T17:50:49Z","level":"INFO","message":"bye"}
"#;
        assert_eq!(told(1, log), "rank 1 failed first: out of memory on cuda:0");
        assert_eq!(told(1, &told(1, log)), told(1, log), "on a laptop the line was chosen before");
        let panic = "loading\nthread 'main' panicked at src/x.rs:1:2:\nno such tile\nnote: run with";
        assert_eq!(told(101, panic), "exit code 101: thread 'main' panicked at src/x.rs:1:2: no such tile");
        let quiet = "{\"level\":\"INFO\",\"message\":\"step 3\"}\n{\"level\":\"INFO\",\"message\":\"step 4\"}";
        assert_eq!(told(137, quiet), "killed (SIGKILL)", "it did not know");
        assert_eq!(told(1, ""), "exit code 1");
    }

    #[test]
    fn an_exit_code_is_told_in_words_a_person_knows() {
        assert_eq!(in_words(137, Some(9)), "killed (SIGKILL)");
        assert_eq!(in_words(143, None), "ended by SIGTERM");
        assert_eq!(in_words(139, Some(11)), "ended by signal 11");
        assert_eq!(in_words(3, None), "asks for its user (exit code 3)");
        assert_eq!(in_words(7, Some(0)), "exit code 7");
    }
}
