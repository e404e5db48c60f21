//! The one thing a run waits for: what, owner, since, until, what is unaffected, what you may do.

use std::time::Duration;

use api::{AttemptStatus, RLJobStatus, StopReason, conditions as cond};
use jiff::Timestamp;
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::Condition};
use plan::pod_facts;
use serde::Serialize;

use crate::{
    Facts, Place,
    clock::{age, moment, span},
    reasons::{self, May, Meaning, QUOTA_RESERVED, Wait},
};

/// What a run waits for.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Why {
    /// One word.
    pub phase: String,
    /// The condition and its reason that say so; empty where nothing is waited for.
    pub condition: String,
    /// Its reason.
    pub reason: String,
    /// What is waited for.
    pub what: String,
    /// Who must act; nobody if nothing is waited for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Since when.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// Until when at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// What happens then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub then: Option<String>,
    /// What goes on meanwhile, and what is kept.
    pub unaffected: Vec<String>,
    /// What a person may do.
    pub may: Vec<String>,
}

impl Why {
    /// True when something is waited for.
    pub fn waits(&self) -> bool {
        self.owner.is_some()
    }

    /// For people.
    pub fn lines(&self, now: Timestamp) -> Vec<String> {
        let mut lines = vec![if self.waits() { format!("{}: {}", self.phase, self.what) } else { self.what.clone() }];
        if let Some(owner) = &self.owner {
            let since = self.since.map(|t| format!(", since {} ({})", moment(t, now), span(seconds(t, now))));
            let until = self.until.map(|t| {
                let left = seconds(now, t);
                let left = if left > 0 { format!("in {}", span(left)) } else { "any moment".into() };
                format!(", at most until {} ({left})", moment(t, now))
            });
            let then = self.then.as_ref().map(|then| format!("; then {then}"));
            let clauses: String = [since, until, then].into_iter().flatten().collect();
            lines.push(format!("  owner {owner}{clauses}"));
        }
        lines.extend(self.unaffected.iter().map(|line| format!("  {line}")));
        for (place, may) in self.may.iter().enumerate() {
            lines.push(format!("  {} {may}", if place == 0 { "you may:" } else { "        " }));
        }
        lines
    }
}

fn seconds(from: Timestamp, to: Timestamp) -> i64 {
    to.duration_since(from).as_secs()
}

/// Conditions of an RLJob, what must go first before what follows from it.
const ORDER: [&str; 13] = [
    cond::FAILED,
    cond::ACCEPTED,
    cond::RECONCILED,
    cond::SUSPENDED,
    QUOTA_RESERVED,
    cond::TRAINER_READY,
    cond::PROGRESSING,
    cond::DEGRADED,
    cond::CONDUCTOR_READY,
    cond::SERVING_READY,
    cond::ROLLOUT_READY,
    cond::UP_TO_DATE,
    cond::COMPLETE,
];

/// The one thing the run waits for.
pub fn why(facts: &Facts<'_>) -> Why {
    let Some(status) = facts.status() else {
        let created = facts.job.metadata.creation_timestamp.as_ref().map(|t| t.0);
        return Why {
            phase: "Pending".into(),
            what: "the operator has not looked at it yet".into(),
            owner: Some("operator".into()),
            since: created,
            then: Some("the run begins".into()),
            may: vec![
                "see whether it runs, and in which namespaces: kubectl get pods -A -l \
                       app.kubernetes.io/name=thresh"
                    .into(),
            ],
            ..Why::default()
        };
    };
    let mut found = going(facts, status).or_else(|| stopping(facts, status)).or_else(|| by_condition(facts, status));
    if found.is_none() && !cond::is_true(&status.conditions, cond::COMPLETE) {
        found = by_children(facts, status);
    }
    let mut why = found.unwrap_or_else(|| well(facts, status));
    let (seen, wanted) = (status.observed_generation, facts.job.metadata.generation);
    if seen.is_some() && seen < wanted {
        why.unaffected
            .push("the operator has not taken up the last edit yet: this speaks of the spec before it".into());
    }
    why
}

/// The object is being deleted.
fn going(facts: &Facts<'_>, status: &RLJobStatus) -> Option<Why> {
    let since = facts.job.metadata.deletion_timestamp.as_ref()?.0;
    let left =
        facts.pods.iter().find(|p| matches!(pod_facts::role(p), "trainer" | "conductor") && !pod_facts::ended(p));
    Some(Why {
        phase: status.phase.to_string(),
        condition: cond::TRAINER_READY.into(),
        reason: "WaitingForOldPods".into(),
        what: match left {
            Some(pod) => format!("it is being deleted, and {} has not ended yet", on_node(pod)),
            None => "it is being deleted".into(),
        },
        owner: Some("operator".into()),
        since: Some(since),
        until: left.and_then(|p| p.metadata.deletion_timestamp.as_ref()).map(|t| t.0).filter(|t| *t > facts.now),
        then: Some("the object goes".into()),
        unaffected: kept(status).into_iter().collect(),
        may: vec![facts.ours("events")],
    })
}

/// An attempt that is being ended by our own decision.
fn stopping(facts: &Facts<'_>, status: &RLJobStatus) -> Option<Why> {
    let stopping = status.attempt.as_ref()?.stopping.as_ref()?;
    let (what, then, may) = match stopping.reason {
        StopReason::SpecChange => (
            "an edit waits for a checkpoint",
            "the trainer restarts with the edit, alone",
            "take the edit back: nothing restarts then".to_owned(),
        ),
        StopReason::Suspend => {
            ("a suspension waits for a checkpoint", "the trainer stops", facts.edit("spec.suspend", "false"))
        }
        StopReason::Token => ("a restart waits for a checkpoint", "the trainer restarts, alone", facts.ours("logs")),
    };
    let until = stopping.checkpoint.as_ref().map(|asked| asked.deadline.0);
    Some(Why {
        phase: status.phase.to_string(),
        condition: cond::UP_TO_DATE.into(),
        reason: if until.is_some() { "CheckpointRequested" } else { "RestartPending" }.into(),
        what: if until.is_some() { what.into() } else { "the trainer is being stopped".into() },
        owner: Some("trainer".into()),
        since: Some(stopping.since.0),
        until,
        then: Some(then.into()),
        unaffected: unaffected(facts, status),
        may: vec![may],
    })
}

/// The first condition of the run, in order, that is no good news.
fn by_condition(facts: &Facts<'_>, status: &RLJobStatus) -> Option<Why> {
    ORDER.iter().find_map(|type_| {
        let condition = cond::get(&status.conditions, type_)?;
        // Suspended stays until the next attempt is numbered; what that waits for is told by the others.
        if *type_ == cond::SUSPENDED && condition.reason == "SuspendedByUser" && !facts.job.spec.suspend {
            return None;
        }
        let known = reasons::of_run(type_, &condition.status, &condition.reason);
        let mut why = of_condition(facts, condition, known, is_bad(type_, &condition.status))?;
        let reason = condition.reason.as_str();
        if let Some(more) = detail(facts, status, reason)
            && !why.what.contains(&more)
        {
            why.what = format!("{} ({more})", why.what);
        }
        why.since = since(status, condition);
        why.until = until(facts, status, reason);
        why.phase = status.phase.to_string();
        why.unaffected = unaffected(facts, status);
        Some(why)
    })
}

/// Conditions of engines and workers that the run's own do not show.
fn by_children(facts: &Facts<'_>, status: &RLJobStatus) -> Option<Why> {
    let first = |list: &[Condition], kind: &str, name: &str, words: fn(&str, &str, &str) -> Option<Meaning>| {
        list.iter().find_map(|condition| {
            let known = words(&condition.type_, &condition.status, &condition.reason);
            let mut why = of_condition(facts, condition, known, false)?;
            why.what = format!("{kind} {name}: {}", why.what);
            why.since = Some(condition.last_transition_time.0);
            why.phase = status.phase.to_string();
            why.unaffected = position(status).into_iter().collect();
            Some(why)
        })
    };
    let serving = facts.serving.and_then(|s| Some((s.status.as_ref()?, s.metadata.name.as_deref()?)));
    let pool = facts.pool.and_then(|p| Some((p.status.as_ref()?, p.metadata.name.as_deref()?)));
    serving
        .and_then(|(s, name)| first(&s.conditions, "ServingCluster", name, reasons::of_serving))
        .or_else(|| pool.and_then(|(p, name)| first(&p.conditions, "RolloutPool", name, reasons::of_pool)))
}

/// A condition of which nothing is written is told as it stands, if its status is not the one that is hoped for.
fn is_bad(type_: &str, status: &str) -> bool {
    match type_ {
        cond::FAILED | cond::DEGRADED | cond::SUSPENDED => status == "True",
        _ => status != "True",
    }
}

fn of_condition(facts: &Facts<'_>, condition: &Condition, known: Option<Meaning>, bad: bool) -> Option<Why> {
    let Condition { type_, reason, message, .. } = condition;
    let base = Why { condition: type_.clone(), reason: reason.clone(), ..Why::default() };
    match known {
        Some(Meaning::Well) => None,
        Some(Meaning::Wait(Wait { what, owner, then, may })) => Some(Why {
            what: filled(facts, what, reason, message),
            owner: Some(owner.into()),
            then: Some(then.into()),
            may: may.iter().filter_map(|may| allowed(facts, may)).collect(),
            ..base
        }),
        None if bad => Some(Why {
            what: format!("{type_} is {}, {reason}: {message}", condition.status),
            owner: Some("operator".into()),
            may: vec![facts.ours("events")],
            ..base
        }),
        None => None,
    }
}

fn allowed(facts: &Facts<'_>, may: &May) -> Option<String> {
    match may {
        May::Edit(path, value) => Some(facts.edit(path, value)),
        May::Ours(command) => Some(facts.ours(command)),
        May::Say(text) if matches!(facts.place, Place::Local { .. }) && text.contains("kubectl") => None,
        May::Say(text) => Some((*text).to_owned()),
        May::Kubectl(text) => matches!(facts.place, Place::Cluster { .. }).then(|| filled(facts, text, "", "")),
    }
}

/// A sentence with what it speaks of.
fn filled(facts: &Facts<'_>, text: &str, reason: &str, message: &str) -> String {
    let namespace = match facts.place {
        Place::Cluster { namespace } => namespace,
        Place::Local { .. } => "",
    };
    let text = match message {
        "" => text.replace(": {message}", "").replace("{message}", reason),
        message => text.replace("{message}", message),
    };
    text.replace("{name}", facts.name())
        .replace("{namespace}", namespace)
        .replace("{serving}", &facts.job.serving_name())
        .replace("{rollout}", &facts.job.rollout_name())
        .replace("{claim}", &facts.job.spec.storage.claim_name)
}

/// What the objects say beyond the condition's message.
fn detail(facts: &Facts<'_>, status: &RLJobStatus, reason: &str) -> Option<String> {
    match reason {
        "WaitingForOldPods" | "WaitingForFence" | "OldPodsStuck" => {
            let living = status.attempt.as_ref().map(|a| a.id);
            let old = |p: &&Pod| {
                pod_facts::role(p) == "trainer"
                    && Some(pod_facts::attempt(&p.metadata)) != living
                    && !pod_facts::ended(p)
            };
            let pod = facts.pods.iter().find(old)?;
            let asked = pod.metadata.deletion_timestamp.as_ref();
            let asked = asked.filter(|t| t.0 < facts.now);
            let late = asked.map(|t| format!(", should have ended {} ago", span(seconds(t.0, facts.now))));
            Some(format!("{}{}", on_node(pod), late.unwrap_or_default()))
        }
        "WaitingForConductor" | "StatusUnreachable" | "NotAnswering" => trouble_of(facts, "conductor").or_else(|| {
            let ready = cond::get(&status.conditions, cond::CONDUCTOR_READY)?;
            (ready.status == "False").then(|| ready.message.clone()).filter(|m| !m.is_empty())
        }),
        "WaitingForServing" | "WaitingForClaim" | "BelowMinimum" | "ServingReduced" | "Creating" => {
            let status = facts.serving.and_then(|s| s.status.as_ref())?;
            // What is denied has its reason; engines in trouble are not it.
            let claims = reason == "WaitingForClaim";
            let pods = || trouble_of(facts, "engine").or_else(|| unmade(&status.conditions));
            refused(&status.conditions).or_else(|| if claims { None } else { pods() })
        }
        "WaitingForRollout" | "RolloutReduced" => {
            let own = facts.pool.and_then(|p| p.status.as_ref()).and_then(|s| refused(&s.conditions));
            let unmade = || facts.pool.and_then(|p| p.status.as_ref()).and_then(|s| unmade(&s.conditions));
            own.or_else(|| trouble_of(facts, "worker")).or_else(unmade)
        }
        _ => None,
    }
}

/// Why nothing comes of an object of ours, by its own word.
fn refused(conditions: &[Condition]) -> Option<String> {
    let bad = |type_: &&str| cond::get(conditions, type_).is_some_and(|c| c.status == "False");
    let type_ = [cond::ACCEPTED, cond::RECONCILED].into_iter().find(bad)?;
    cond::get(conditions, type_).map(|c| format!("{}: {}", c.reason, c.message))
}

/// What is said of pods that do not even exist.
fn unmade(conditions: &[Condition]) -> Option<String> {
    let said = cond::get(conditions, cond::AVAILABLE).filter(|c| c.status == "False")?;
    said.message.split_once("; ").map(|(_, why)| why.to_owned())
}

/// What is wrong with the first pod of a role that is not ready.
fn trouble_of(facts: &Facts<'_>, role: &str) -> Option<String> {
    let pod = facts.pods.iter().find(|p| pod_facts::role(p) == role && !pod_facts::ready(p))?;
    let name = pod_facts::name(pod);
    if let Some(end) = plan::last_end(pod) {
        return Some(format!("{name}: {end}"));
    }
    if let Some((reason, message)) = pod_facts::waiting(pod) {
        return Some(format!("{name}: {reason} {message}").trim_end().to_owned());
    }
    if let Some(("False", reason, message)) = pod_facts::condition(pod, "PodScheduled") {
        return Some(format!("{name}: {reason} {message}").trim_end().to_owned());
    }
    Some(format!("{} is not ready", on_node(pod)))
}

fn on_node(pod: &Pod) -> String {
    let name = pod_facts::name(pod);
    pod_facts::node(pod).map_or_else(|| name.to_owned(), |node| format!("{name} on {node}"))
}

/// Since when; a condition's own instant moves with its status, not with its reason, so what is nearer is preferred.
fn since(status: &RLJobStatus, condition: &Condition) -> Option<Timestamp> {
    let attempt = status.attempt.as_ref();
    let ended = status.last_attempt.as_ref().map(|l| l.end_time.0);
    let own = match condition.reason.as_str() {
        "BackingOff" | "WaitingForOldPods" | "WaitingForFence" | "OldPodsStuck" => ended,
        "Starting" | "Scheduling" | "ImagePull" => attempt.and_then(|a| a.start_time.as_ref()).map(|t| t.0),
        "ContainerError" => attempt.and_then(|a| a.ending.as_ref()).map(|e| e.first_seen.0),
        "WaitingForConductor" | "NotAnswering" | "StatusUnreachable" => {
            status.conductor_lost_since.as_ref().map(|t| t.0)
        }
        // A gate that opens and shuts between two attempts: not before the last of them ended.
        "WaitingForServing" | "WaitingForRollout" | "WaitingForClaim" | "WaitingForStorage" => {
            ended.map(|t| t.max(condition.last_transition_time.0))
        }
        _ => None,
    };
    Some(own.unwrap_or(condition.last_transition_time.0))
}

/// Until when at most, if the objects hold such an instant.
fn until(facts: &Facts<'_>, status: &RLJobStatus, reason: &str) -> Option<Timestamp> {
    let attempt = status.attempt.as_ref();
    let trainer = &facts.job.spec.trainer;
    let settings = facts.settings;
    let secs = |n: u32| Duration::from_secs(n.into());
    match reason {
        "BackingOff" => status.next_retry_time.as_ref().map(|t| t.0),
        "Starting" | "Scheduling" | "ImagePull" => {
            let begun = attempt.filter(|a| a.ready_time.is_none())?.start_time.as_ref()?;
            after(begun.0, secs(trainer.startup_deadline_seconds))
        }
        "ContainerError" => after(attempt?.ending.as_ref()?.first_seen.0, settings.settle_window),
        "HeartbeatLost" => {
            let ready = attempt?.ready_time.as_ref()?.0;
            let step = status.progress.as_ref().and_then(|p| p.step_time.as_ref()).map_or(ready, |t| t.0.max(ready));
            let deadline = trainer.progress_deadline_seconds;
            (deadline > 0).then(|| after(step, secs(deadline))).flatten()
        }
        "WaitingForOldPods" => {
            let ends = |p: &Pod| p.metadata.deletion_timestamp.as_ref().map(|t| t.0);
            let living = |p: &&Pod| pod_facts::role(p) == "trainer" && !pod_facts::ended(p);
            facts.pods.iter().filter(living).filter_map(ends).max().filter(|t| *t > facts.now)
        }
        "WaitingForConductor" | "NotAnswering" | "StatusUnreachable" => {
            after(status.conductor_lost_since.as_ref()?.0, settings.lost_node_timeout)
        }
        "WaitingForServing" | "BelowMinimum" | "ServingReduced" => {
            let lost = facts.serving?.status.as_ref()?.lost_since.as_ref()?;
            after(lost.0, settings.lost_node_timeout)
        }
        _ => None,
    }
}

fn after(t: Timestamp, d: Duration) -> Option<Timestamp> {
    t.checked_add(d).ok()
}

/// What goes on meanwhile, and what is kept.
fn unaffected(facts: &Facts<'_>, status: &RLJobStatus) -> Vec<String> {
    engines(facts, status).into_iter().chain(kept(status)).chain(deadline(facts, status)).collect()
}

fn engines(facts: &Facts<'_>, status: &RLJobStatus) -> Option<String> {
    let desired = facts.serving.map(|s| s.spec.replicas).or(status.serving.as_ref().map(|s| s.desired))?;
    let ready = facts.serving.and_then(|s| s.status.as_ref()).map_or(0, |s| s.ready_replicas);
    let version = status.progress.as_ref().map(|p| p.weight_version).filter(|v| *v > 0);
    let version = version.map_or(String::new(), |v| format!(", version {v}"));
    match ready {
        0 => None,
        _ if ready >= desired => Some(format!("serving is not affected: {ready}/{desired} engines answer{version}")),
        _ => Some(format!("serving: {ready}/{desired} engines answer{version}")),
    }
}

fn kept(status: &RLJobStatus) -> Option<String> {
    let progress = status.progress.as_ref().filter(|p| p.commits > 0)?;
    let step = progress.last_checkpoint_step?;
    Some(format!("kept: the commit at step {step}, and every finished group"))
}

fn deadline(facts: &Facts<'_>, status: &RLJobStatus) -> Option<String> {
    let begun = status.start_time.as_ref()?.0;
    let ends = after(begun, Duration::from_secs(facts.job.spec.active_deadline_seconds?))?;
    let over = cond::is_true(&status.conditions, cond::FAILED) || cond::is_true(&status.conditions, cond::COMPLETE);
    (!over)
        .then(|| format!("the run fails at {} if it is not done then (activeDeadlineSeconds)", moment(ends, facts.now)))
}

fn position(status: &RLJobStatus) -> Option<String> {
    let progress = status.progress.as_ref()?;
    Some(format!("the run goes on: step {}, version {}", progress.steps, progress.weight_version))
}

/// Nothing is waited for.
fn well(facts: &Facts<'_>, status: &RLJobStatus) -> Why {
    let progress = status.progress.clone().unwrap_or_default();
    let what = match &status.attempt {
        _ if cond::is_true(&status.conditions, cond::COMPLETE) => {
            let attempts = api::count(status.attempts, "attempt");
            format!("nothing: the run is complete (step {}, {attempts})", progress.steps)
        }
        Some(attempt) => format!("nothing: it runs ({})", running(attempt, status, facts.now)),
        None => "nothing: the next attempt is being made".into(),
    };
    Why {
        phase: status.phase.to_string(),
        what,
        unaffected: deadline(facts, status).into_iter().collect(),
        ..Why::default()
    }
}

fn running(attempt: &AttemptStatus, status: &RLJobStatus, now: Timestamp) -> String {
    let progress = status.progress.clone().unwrap_or_default();
    let warm = progress.step == 0 && progress.warm_step > 0 && progress.weight_version == 0;
    let mut words = vec![match warm {
        true => format!("warm start, update {}", progress.warm_step),
        false => format!("step {}", progress.steps),
    }];
    if progress.weight_version > 0 {
        words.push(format!("version {}", progress.weight_version));
    }
    words.push(format!("attempt {}", attempt.id));
    if let Some(step) = &progress.step_time {
        words.push(format!("last step seen {} ago", age(seconds(step.0, now))));
    }
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use api::{CheckpointAsked, Outcome, Phase, Stopping};
    use cond::Truth;

    use super::*;
    use crate::sample::Sample;

    #[test]
    fn a_run_that_runs_waits_for_nothing_and_says_where_it_is() {
        let sample = Sample::new();
        let why = why(&sample.facts());
        assert!(!why.waits());
        assert_eq!(
            why.lines(sample.now),
            ["nothing: it runs (step 13/50, version 14, attempt 2, last step seen 4s ago)"]
        );
    }

    #[test]
    fn a_backoff_names_its_end_what_is_kept_and_what_you_may_do() {
        let mut sample = Sample::new();
        sample.backing_off();
        let lines = why(&sample.facts()).lines(sample.now);
        assert_eq!(lines[0], "Restarting: 2 failures without a new commit");
        let (since, until) = (sample.at(-10), sample.at(20));
        let owner = format!(
            "  owner operator, since {} (10s), at most until {} (in 20s); then the next attempt starts",
            moment(since, sample.now),
            moment(until, sample.now)
        );
        assert_eq!(lines[1], owner);
        assert_eq!(lines[2], "  serving is not affected: 2/2 engines answer, version 14");
        assert_eq!(lines[3], "  kept: the commit at step 12, and every finished group");
        assert_eq!(lines[4], "  you may: kubectl thresh logs sort5 -n rl");
        assert!(lines[6].ends_with("-p '{\"spec\":{\"restart\":{\"token\":\"again-1\"}}}'"), "{lines:?}");
    }

    #[test]
    fn what_a_laptop_cannot_do_is_not_offered_there() {
        let mut sample = Sample::new();
        sample.wait(cond::TRAINER_READY, "WaitingForOldPods", "sort5-t1-1 of an earlier attempt has not ended yet");
        let may = |facts: &Facts<'_>| why(facts).may.join("\n");
        assert!(may(&sample.facts()).contains("kubectl delete node"));
        assert!(!may(&sample.local()).contains("kubectl"), "{}", may(&sample.local()));
    }

    #[test]
    fn what_must_go_first_is_told_before_what_follows_from_it() {
        let mut sample = Sample::new();
        sample.status().attempt = None;
        sample.wait(cond::ROLLOUT_READY, "BelowMinimum", "0 of 2 workers");
        assert_eq!(why(&sample.facts()).what, "0 of 2 workers");
        sample.wait(cond::TRAINER_READY, "WaitingForServing", "0 of 2 engines are ready, 2 are needed");
        assert_eq!(why(&sample.facts()).reason, "WaitingForServing");
        sample.wait(cond::ACCEPTED, "StorageNotBound", "PersistentVolumeClaim data does not exist");
        let found = why(&sample.facts());
        assert_eq!((found.reason.as_str(), found.owner.as_deref()), ("StorageNotBound", Some("storage")));
        assert_eq!(found.may[0], "kubectl describe pvc thresh-data -n rl");
        sample.set(cond::FAILED, Truth::True, "BackoffLimitExceeded", "7 failures");
        assert_eq!(why(&sample.facts()).what, "too many failures: 7 failures");
        sample.job.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(sample.at(-5)));
        assert_eq!(why(&sample.facts()).what, "it is being deleted");
    }

    #[test]
    fn every_condition_that_is_waited_for_makes_a_whole_answer() {
        let owned = [reasons::COMMON, reasons::RUN].concat();
        for words in owned {
            let mut sample = Sample::new();
            sample.job.spec.suspend = words.condition == cond::SUSPENDED;
            let truth = match words.status {
                "True" => Truth::True,
                "False" => Truth::False,
                _ => Truth::Unknown,
            };
            sample.set(words.condition, truth, words.reason, "its message");
            let found = why(&sample.facts());
            match words.meaning {
                Meaning::Well => assert!(!found.waits(), "{words:?}: {found:?}"),
                Meaning::Wait(wait) => {
                    assert_eq!((found.reason.as_str(), found.owner.as_deref()), (words.reason, Some(wait.owner)));
                    assert!(found.since.is_some(), "{words:?}");
                    let text = found.lines(sample.now).join("\n");
                    assert!(
                        text.contains("its message") && !text.contains(['{', '}']) | text.contains("-p '{"),
                        "{text}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_reason_that_is_not_known_is_told_as_it_stands() {
        let mut sample = Sample::new();
        sample.wait(cond::TRAINER_READY, "SomethingNewer", "a later operator's word");
        assert_eq!(why(&sample.facts()).what, "TrainerReady is False, SomethingNewer: a later operator's word");
    }

    #[test]
    fn a_suspension_waits_for_its_checkpoint_until_its_deadline() {
        let mut sample = Sample::new();
        let (since, deadline) = (api_time(sample.at(-3)), api_time(sample.at(57)));
        let asked = CheckpointAsked { id: "t2-g1-stop".into(), deadline };
        let attempt = sample.status().attempt.as_mut().unwrap();
        attempt.stopping = Some(Stopping { reason: StopReason::Suspend, since, checkpoint: Some(asked) });
        sample.status().phase = Phase::Suspending;
        let found = why(&sample.facts());
        assert_eq!((found.since, found.until), (Some(sample.at(-3)), Some(sample.at(57))));
        assert!(found.lines(sample.now)[0].starts_with("Suspending: a suspension waits for a checkpoint"));
    }

    #[test]
    fn a_start_is_waited_for_until_its_deadline() {
        let mut sample = Sample::new();
        sample.status().attempt.as_mut().unwrap().ready_time = None;
        sample.wait(cond::TRAINER_READY, "Starting", "attempt 2: 0/2 ranks are ready");
        let found = why(&sample.facts());
        let begun = sample.status().attempt.clone().unwrap().start_time.unwrap().0;
        let seconds = sample.job.spec.trainer.startup_deadline_seconds;
        assert_eq!(found.until, begun.checked_add(Duration::from_secs(seconds.into())).ok());
    }

    #[test]
    fn a_pod_of_an_ended_attempt_is_named_with_its_node() {
        let mut sample = Sample::new();
        sample.status().attempt = None;
        sample.status().phase = Phase::Restarting;
        sample.ended(1, Outcome::Disrupted);
        sample.wait(cond::TRAINER_READY, "WaitingForFence", "a pod on a lost node may live on");
        sample.pods.push(Sample::pod("sort5-t1-1", "trainer", 1, "node2"));
        assert_eq!(why(&sample.facts()).what, "a pod on a lost node may live on (sort5-t1-1 on node2)");
    }

    #[test]
    fn an_engine_that_is_not_ready_is_named_with_its_trouble() {
        let mut sample = Sample::new();
        sample.wait(cond::TRAINER_READY, "WaitingForServing", "1 of 2 engines are ready, 2 are needed");
        let mut pod = Sample::pod("sort5-serving-1", "engine", 0, "node1");
        let waiting = serde_json::json!({"containerStatuses": [{"name": "engine", "image": "i", "imageID": "", "ready": false,
            "restartCount": 0, "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}]});
        pod.status = Some(serde_json::from_value(waiting).unwrap());
        sample.pods.push(pod);
        let what = why(&sample.facts()).what;
        assert!(what.ends_with("(sort5-serving-1: ImagePullBackOff no such image)"), "{what}");
    }

    #[test]
    fn engines_and_workers_are_asked_where_the_run_itself_is_well() {
        let mut sample = Sample::new();
        let pool = sample.pool.as_mut().unwrap();
        let list = &mut pool.status.get_or_insert_default().conditions;
        cond::set(list, cond::AVAILABLE, Truth::False, "NoMatchingNodes", "0 of 0", None, sample.now);
        let found = why(&sample.facts());
        assert_eq!(found.what, "RolloutPool sort5-rollout: no node fits the workers: 0 of 0");
    }

    #[test]
    fn an_edit_that_nobody_has_taken_up_is_told() {
        let mut sample = Sample::new();
        sample.job.metadata.generation = Some(2);
        let lines = why(&sample.facts()).lines(sample.now);
        assert!(lines.iter().any(|line| line.contains("has not taken up the last edit")), "{lines:?}");
        sample.job.status = None;
        assert_eq!(why(&sample.facts()).what, "the operator has not looked at it yet");
    }

    #[test]
    fn a_complete_run_waits_for_nothing_whatever_its_engines_do() {
        let mut sample = Sample::new();
        sample.status().attempt = None;
        sample.set(cond::COMPLETE, Truth::True, "TrainingFinished", "every step is done");
        sample.wait(cond::TRAINER_READY, "Ended", "the run has ended");
        let serving = sample.serving.as_mut().unwrap().status.as_mut().unwrap();
        cond::set(&mut serving.conditions, cond::AVAILABLE, Truth::False, "BelowMinimum", "0 of 2", None, sample.now);
        assert!(why(&sample.facts()).what.starts_with("nothing: the run is complete"));
    }

    fn api_time(t: Timestamp) -> k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime {
        plan::micro(t)
    }
}
