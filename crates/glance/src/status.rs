//! What `status` says beyond the row, in parts: each is a list of entries, a word and what it says.

use api::{RLJob, conditions as cond};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::{
    Facts, Happening, Row, age, event_lines,
    reasons::{self, Meaning},
    table, why,
};

/// Events shown.
const EVENTS: usize = 5;

/// An entry of the list.
pub fn entry(word: &str, text: &str) -> String {
    format!("{word:<9} {text}")
}

/// Lines that belong to an entry, after its first.
pub fn more(text: &str) -> String {
    format!("{:<9} {text}", "")
}

/// All that the objects of a cluster say. `last_words` is the last line of the pod that failed first, if it could be read.
pub fn lines(facts: &Facts<'_>, events: &[Happening], last_words: Option<&str>) -> Vec<String> {
    let mut lines = table(&[Row::of(facts.job, facts.now)]);
    lines.push(String::new());
    lines.extend(look_at(facts));
    lines.extend(conditions(facts));
    lines.extend(progress(facts.job, facts.now));
    lines.extend(counters(facts.job));
    lines.extend(ended(facts.job, facts.now, last_words));
    // What a kubelet does all day stands in `events`.
    let ours = |h: &&Happening| {
        h.warning || ["RLJob/", "ServingCluster/", "RolloutPool/"].iter().any(|k| h.object.starts_with(k))
    };
    let telling: Vec<Happening> = events.iter().filter(ours).cloned().collect();
    lines.extend(recent(&telling, facts.now));
    lines
}

/// The one thing to look at.
pub fn look_at(facts: &Facts<'_>) -> Vec<String> {
    entry_of(&why(facts).lines(facts.now))
}

/// An answer of `why` as the entry of what to look at.
pub fn entry_of(why: &[String]) -> Vec<String> {
    let mut lines = why.iter();
    let first = lines.next().map(|line| entry("look at", line));
    first.into_iter().chain(lines.map(|line| more(line))).collect()
}

/// Conditions that are no good news.
pub fn conditions(facts: &Facts<'_>) -> Vec<String> {
    let list = facts.status().map(|s| s.conditions.as_slice()).unwrap_or_default();
    let told = list.iter().filter(|c| matters(c));
    let line = |c: &Condition| {
        let message = if c.message.is_empty() { String::new() } else { format!(": {}", c.message) };
        format!("{} {}, {}{message}", c.type_, c.status, c.reason)
    };
    listed("conditions", told.map(line))
}

fn matters(condition: &Condition) -> bool {
    let end = matches!(condition.type_.as_str(), cond::COMPLETE | cond::FAILED);
    let known = reasons::of_run(&condition.type_, &condition.status, &condition.reason);
    end && condition.status == "True" || known != Some(Meaning::Well) && !end
}

/// An entry of several lines: the word on a line of its own.
fn listed(word: &str, lines: impl Iterator<Item = String>) -> Vec<String> {
    let mut all: Vec<String> = lines.map(|line| format!("  {line}")).collect();
    if !all.is_empty() {
        all.insert(0, word.to_owned());
    }
    all
}

/// Where the run is, by its status.
pub fn progress(job: &RLJob, now: Timestamp) -> Vec<String> {
    let Some(status) = &job.status else { return Vec::new() };
    let mut lines = Vec::new();
    if let Some(p) = &status.progress {
        let ago = |t: Timestamp| age(now.duration_since(t).as_secs());
        let warm =
            if p.step == 0 && p.warm_step > 0 { format!(", warm-start update {}", p.warm_step) } else { "".into() };
        let reward = p.reward_mean.map_or(String::new(), |r| format!(", reward {r:.3}"));
        let speed = p.tokens_per_second.map_or(String::new(), |t| format!(", {t:.0} tokens/s"));
        let seen = p.heartbeat_time.as_ref().map_or(String::new(), |t| format!(", seen {} ago", ago(t.0)));
        lines.push(entry("progress", &format!("step {}{warm}{reward}{speed}{seen}", p.steps)));
        if let Some(step) = p.last_checkpoint_step.filter(|_| p.commits > 0) {
            let when = p.last_checkpoint_time.as_ref().map_or(String::new(), |t| format!(", {} ago", ago(t.0)));
            lines.push(entry("commit", &format!("step {step}{when}; {} so far", p.commits)));
        }
    }
    if let Some(s) = &status.serving {
        let version = status.progress.as_ref().map_or(0, |p| p.weight_version);
        let behind = s.min_weight_version.and_then(|min| version.checked_sub(min)).filter(|b| *b > 0);
        let behind = behind.map_or(String::new(), |b| format!(", the oldest {b} behind version {version}"));
        lines.push(entry("engines", &format!("{} of {} ready{behind}", s.summary, s.name)));
    }
    if let Some(r) = &status.rollout {
        let inflight = r.inflight.map_or(String::new(), |n| format!(", {} in flight", api::count(n, "group")));
        lines.push(entry("workers", &format!("{}/{} of {} ready{inflight}", r.ready, r.desired, r.name)));
    }
    lines
}

/// Failures and restarts so far.
pub fn counters(job: &RLJob) -> Vec<String> {
    let Some(status) = &job.status else { return Vec::new() };
    let c = &status.counters;
    let limit = job.spec.trainer.failure_policy.backoff_limit;
    let mut words = vec![format!(
        "{} ({} since the last new commit, limit {limit})",
        api::count(c.failures, "failure"),
        c.failures_since_progress
    )];
    if c.disruptions > 0 {
        words.push(api::count(c.disruptions, "disruption"));
    }
    for (n, what) in [(c.spec_restarts, "for edits"), (c.requested, "on request")] {
        if n > 0 {
            words.push(format!("{n} {what}"));
        }
    }
    vec![entry("restarts", &words.join(", "))]
}

/// How the last attempt ended.
pub fn ended(job: &RLJob, now: Timestamp, last_words: Option<&str>) -> Vec<String> {
    let Some(last) = job.status.as_ref().and_then(|s| s.last_attempt.as_ref()) else { return Vec::new() };
    let rank = last.rank.map_or(String::new(), |rank| format!(", pod {rank}"));
    let pod = last.pod_name.as_ref().map_or(String::new(), |pod| format!(" ({pod})"));
    let node = last.node_name.as_ref().map_or(String::new(), |node| format!(" on {node}"));
    let code = last.exit_code.map_or(String::new(), |code| format!(", exit code {code}"));
    let ago = age(now.duration_since(last.end_time.0).as_secs());
    let mut lines = vec![entry(
        "ended",
        &format!("attempt {} {}{rank}{pod}{node}{code}, {ago} ago", last.id, last.outcome.in_words()),
    )];
    // Its pod is named above.
    let pod = last.pod_name.as_ref().map(|pod| format!("{pod}: ")).unwrap_or_default();
    let message = last.message.strip_prefix(&pod).unwrap_or(&last.message);
    lines.extend(message.lines().map(more));
    lines.extend(last_words.filter(|words| !message.contains(words.trim())).map(|words| more(&format!("| {words}"))));
    lines
}

/// The last events.
pub fn recent(events: &[Happening], now: Timestamp) -> Vec<String> {
    let mut sorted = events.to_vec();
    sorted.sort_by_key(|e| e.time);
    let last = sorted.len().saturating_sub(EVENTS);
    listed("events", event_lines(&sorted[last..], now).into_iter())
}

#[cfg(test)]
mod tests {
    use cond::Truth;

    use super::*;
    use crate::sample::Sample;

    fn happened(sample: &Sample, seconds: i64, text: &str) -> Happening {
        Happening {
            time: sample.at(seconds),
            warning: false,
            object: String::new(),
            reason: "R".into(),
            text: text.into(),
            count: 1,
        }
    }

    #[test]
    fn a_run_that_backs_off_is_told_with_its_last_end_and_what_it_waits_for() {
        let mut sample = Sample::new();
        sample.backing_off();
        let text = lines(&sample.facts(), &[], Some("thread panicked")).join("\n");
        for part in [
            "sort5   Restarting   13/50",
            "look at   Restarting: 2 failures without a new commit\n",
            "conditions\n  TrainerReady False, BackingOff: 2 failures without a new commit\n",
            "commit    step 12; 3 so far",
            "restarts  1 failure (0 since the last new commit, limit 6)",
            "ended     attempt 2 failed, pod 1 (sort5-t2-1) on node2, exit code 137, 10s ago\n          killed (SIGKILL)",
            "\n          | thread panicked",
        ] {
            assert!(text.contains(part), "{part}\nin\n{text}");
        }
    }

    #[test]
    fn the_daily_work_of_kubelets_does_not_hide_what_happened_to_the_run() {
        let sample = Sample::new();
        let of =
            |object: &str, warning, text| Happening { object: object.into(), warning, ..happened(&sample, -9, text) };
        let mut events = vec![of("RLJob/sort5", false, "attempt 1 began")];
        events.extend((0..9).map(|_| of("Pod/sort5-t1-0", false, "pulled")));
        events.push(of("Pod/sort5-t1-0", true, "no such image"));
        let text = lines(&sample.facts(), &events, None).join("\n");
        assert!(
            text.contains("attempt 1 began") && text.contains("no such image") && !text.contains("pulled"),
            "{text}"
        );
    }

    #[test]
    fn conditions_that_are_well_are_not_listed() {
        let mut sample = Sample::new();
        assert_eq!(conditions(&sample.facts()), Vec::<String>::new());
        sample.set(cond::COMPLETE, Truth::True, "TrainingFinished", "every step is done");
        assert_eq!(conditions(&sample.facts())[1], "  Complete True, TrainingFinished: every step is done");
    }

    #[test]
    fn only_the_last_five_events_are_shown_and_the_newest_is_the_last() {
        let sample = Sample::new();
        let events: Vec<_> = (0..9).rev().map(|n| happened(&sample, n - 20, &format!("event {n}"))).collect();
        let told = recent(&events, sample.now);
        assert_eq!(told.len(), 6);
        assert!(told[1].ends_with("event 4") && told[5].ends_with("event 8"), "{told:?}");
        assert!(recent(&[], sample.now).is_empty());
    }
}
