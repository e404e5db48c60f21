//! Indexed Jobs with `podReplacementPolicy: Failed`, as the Job controller of 1.36 runs them.
//!
//! The first failure beyond `backoffLimit` (or matched by a FailJob rule) sets FailureTarget and ends the peers; Failed
//! follows when the last pod has ended. A pod keeps a finalizer until it has been counted, so how it ended is never lost.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        batch::v1::{Job, JobCondition, JobStatus, PodFailurePolicyRule, UncountedTerminatedPods},
        core::v1::Pod,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};

use super::{Change, label, pod_of};
use crate::{
    objects::{name, uid},
    pod,
};

/// Label and annotation of a pod's index.
pub const INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// Finalizer that keeps a pod's record until it is counted.
pub const TRACKING: &str = "batch.kubernetes.io/job-tracking";

/// Looks at a Job and its pods: what to do, and its new status.
#[must_use]
pub fn reconcile(job: &Job, pods: &BTreeMap<&str, &Pod>, now: Timestamp) -> (Vec<Change>, JobStatus) {
    let mut changes = Vec::new();
    let mut status = job.status.clone().unwrap_or_default();
    let Some(spec) = &job.spec else { return (changes, status) };
    status.start_time.get_or_insert(Time(now));
    let finished = done(&status);

    let mut succeeded = indexes(status.completed_indexes.as_deref());
    let mut failed = status.failed.unwrap_or(0);
    let mut failure: Option<(String, String)> = None;
    for (pod_name, pod) in pods.iter().filter(|(_, pod)| tracked(pod)) {
        if !pod::terminal(pod) {
            continue;
        }
        if pod::phase(pod) == "Succeeded" {
            if let Some(index) = index(pod)
                && !succeeded.contains(&index)
            {
                succeeded.push(index);
            }
        } else if !(finished || deleting(job)) {
            let rules = spec.pod_failure_policy.as_ref().map(|policy| policy.rules.as_slice()).unwrap_or_default();
            match rules.iter().enumerate().find_map(|(place, rule)| matched(rule, place, pod).map(|why| (rule, why))) {
                Some((rule, why)) if rule.action == "FailJob" => {
                    failed += 1;
                    failure = failure.or(Some(("PodFailurePolicy".into(), why)));
                }
                Some((rule, _)) if rule.action == "Ignore" => {}
                _ => failed += 1,
            }
        }
        changes.push(Change::Release((*pod_name).to_owned()));
    }
    succeeded.sort_unstable();
    status.succeeded = Some(i32::try_from(succeeded.len()).unwrap_or(i32::MAX)).filter(|count| *count > 0);
    status.completed_indexes = Some(ranges(&succeeded)).filter(|text| !text.is_empty());
    status.failed = Some(failed).filter(|count| *count > 0);
    status.uncounted_terminated_pods = Some(UncountedTerminatedPods::default());

    let live: Vec<&Pod> = pods.values().copied().filter(|pod| !pod::terminal(pod)).collect();
    let terminating = live.iter().filter(|pod| pod.metadata.deletion_timestamp.is_some()).count();
    let active: Vec<&&Pod> = live.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).collect();
    let mut made = 0;

    if !finished && !deleting(job) {
        let completions = spec.completions.or(spec.parallelism).unwrap_or(1).max(0).unsigned_abs();
        if failure.is_none() && failed > spec.backoff_limit.unwrap_or(6) {
            failure = Some(("BackoffLimitExceeded".into(), "Job has reached the specified backoff limit".into()));
        }
        if let Some((reason, message)) = &failure
            && condition(&status, "FailureTarget").is_none()
        {
            add(&mut status, "FailureTarget", reason, message, now);
        }
        if let Some(target) = condition(&status, "FailureTarget").cloned() {
            changes.extend(active.iter().map(|pod| Change::Delete(name(**pod).to_owned())));
            if live.is_empty() {
                let reason = target.reason.unwrap_or_default();
                add(&mut status, "Failed", &reason, &target.message.unwrap_or_default(), now);
            }
        } else if succeeded.len() >= completions as usize {
            if condition(&status, "SuccessCriteriaMet").is_none() {
                add(
                    &mut status,
                    "SuccessCriteriaMet",
                    "CompletionsReached",
                    "Reached expected number of succeeded pods",
                    now,
                );
            }
            if live.is_empty() {
                add(&mut status, "Complete", "CompletionsReached", "Reached expected number of succeeded pods", now);
                status.completion_time = Some(Time(now));
            }
        } else if spec.suspend == Some(true) {
            changes.extend(active.iter().map(|pod| Change::Delete(name(**pod).to_owned())));
        } else {
            // A pod holds its index until it has ended: there are never two of one index.
            let held: Vec<u32> = live.iter().filter_map(|pod| index(pod)).collect();
            let room = (spec.parallelism.unwrap_or(1).max(0).unsigned_abs() as usize).saturating_sub(live.len());
            let wanted = (0..completions).filter(|index| !succeeded.contains(index) && !held.contains(index));
            for index in wanted.take(room) {
                changes.push(Change::Create(Box::new(pod_at(job, index))));
                made += 1;
            }
        }
    }
    let count = |count: usize| Some(i32::try_from(count).unwrap_or(i32::MAX));
    status.active = count(if finished { 0 } else { active.len() + made }).filter(|count| *count > 0);
    status.terminating = count(terminating);
    status.ready = count(active.iter().filter(|pod| pod::ready(pod)).count());
    (changes, status)
}

/// True when Complete or Failed stands.
#[must_use]
pub fn done(status: &JobStatus) -> bool {
    condition(status, "Complete").is_some() || condition(status, "Failed").is_some()
}

fn deleting(job: &Job) -> bool {
    job.metadata.deletion_timestamp.is_some()
}

fn tracked(pod: &Pod) -> bool {
    pod.metadata.finalizers.iter().flatten().any(|one| one == TRACKING)
}

fn index(pod: &Pod) -> Option<u32> {
    label(pod, INDEX)?.parse().ok()
}

fn pod_at(job: &Job, index: u32) -> Pod {
    let job_name = name(job);
    let template = job.spec.as_ref().map(|spec| spec.template.clone()).unwrap_or_default();
    let suffix: String = uid().chars().filter(char::is_ascii_hexdigit).take(5).collect();
    let labels = [
        (INDEX, index.to_string()),
        ("batch.kubernetes.io/job-name", job_name.to_owned()),
        ("job-name", job_name.to_owned()),
        ("batch.kubernetes.io/controller-uid", job.metadata.uid.clone().unwrap_or_default()),
    ];
    let mut pod = pod_of(job, &template, &format!("{job_name}-{index}-{suffix}"), labels);
    pod.metadata.annotations.get_or_insert_default().insert(INDEX.into(), index.to_string());
    pod.metadata.finalizers = Some(vec![TRACKING.into()]);
    if let Some(spec) = &mut pod.spec {
        spec.hostname = Some(format!("{job_name}-{index}"));
    }
    pod
}

fn condition<'a>(status: &'a JobStatus, type_: &str) -> Option<&'a JobCondition> {
    status.conditions.as_ref()?.iter().find(|condition| condition.type_ == type_ && condition.status == "True")
}

fn add(status: &mut JobStatus, type_: &str, reason: &str, message: &str, now: Timestamp) {
    status.conditions.get_or_insert_default().push(JobCondition {
        type_: type_.into(),
        status: "True".into(),
        reason: Some(reason.into()),
        message: Some(message.into()),
        last_probe_time: Some(Time(now)),
        last_transition_time: Some(Time(now)),
    });
}

fn matched(rule: &PodFailurePolicyRule, place: usize, pod: &Pod) -> Option<String> {
    if let Some(codes) = &rule.on_exit_codes {
        let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
        return statuses
            .iter()
            .filter(|one| codes.container_name.as_ref().is_none_or(|name| *name == one.name))
            .find_map(|one| {
                let code = one.state.as_ref()?.terminated.as_ref()?.exit_code;
                let listed = codes.values.contains(&code);
                // Exit code 0 never matches, not even NotIn.
                (code != 0 && listed == (codes.operator == "In")).then(|| {
                    format!(
                        "Container {} for pod {} failed with exit code {code} matching {} rule at index {place}",
                        one.name,
                        name(pod),
                        rule.action
                    )
                })
            });
    }
    rule.on_pod_conditions.iter().flatten().find_map(|pattern| {
        let found = pod::condition(pod, &pattern.type_)?;
        (found.status == pattern.status.as_deref().unwrap_or("True")).then(|| {
            format!("Pod {} has condition {} matching {} rule at index {place}", name(pod), pattern.type_, rule.action)
        })
    })
}

fn indexes(text: Option<&str>) -> Vec<u32> {
    text.unwrap_or_default()
        .split(',')
        .filter_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some(first.parse::<u32>().ok()?..=last.parse::<u32>().ok()?)
        })
        .flatten()
        .collect()
}

fn ranges(sorted: &[u32]) -> String {
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for index in sorted {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == *index => *last = *index,
            _ => parts.push((*index, *index)),
        }
    }
    let parts: Vec<String> = parts
        .into_iter()
        .map(|(first, last)| match last - first {
            0 => first.to_string(),
            1 => format!("{first},{last}"),
            _ => format!("{first}-{last}"),
        })
        .collect();
    parts.join(",")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn job() -> Job {
        serde_json::from_value(json!({
            "metadata": {"name": "r-t1", "uid": "job-uid"},
            "spec": {
                "completions": 2, "parallelism": 2, "backoffLimit": 0, "completionMode": "Indexed",
                "podReplacementPolicy": "Failed",
                "podFailurePolicy": {"rules": [
                    {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                    {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [3]}},
                ]},
                "template": {"metadata": {"labels": {"role": "trainer"}},
                    "spec": {"restartPolicy": "Never", "subdomain": "r-trainer", "containers": [{"name": "trainer"}]}},
            },
        }))
        .unwrap()
    }

    /// A Job, its pods and the node: applies what the controller wants, as the node does.
    struct World {
        job: Job,
        pods: BTreeMap<String, Pod>,
    }

    impl World {
        fn new() -> Self {
            Self { job: job(), pods: BTreeMap::new() }
        }

        fn turn(&mut self) -> Vec<Change> {
            let pods = self.pods.iter().map(|(name, pod)| (name.as_str(), pod)).collect();
            let (changes, status) = reconcile(&self.job, &pods, Timestamp::UNIX_EPOCH);
            self.job.status = Some(status);
            for change in &changes {
                match change {
                    Change::Create(pod) => {
                        self.pods.insert(name(&**pod).to_owned(), (**pod).clone());
                    }
                    Change::Delete(name) => {
                        self.pods.get_mut(name).unwrap().metadata.deletion_timestamp =
                            Some(Time(Timestamp::UNIX_EPOCH));
                    }
                    Change::Release(name) => {
                        let pod = self.pods.get_mut(name).unwrap();
                        pod.metadata.finalizers = None;
                        if pod.metadata.deletion_timestamp.is_some() {
                            self.pods.remove(name);
                        }
                    }
                }
            }
            changes
        }

        fn ends(&mut self, index: u32, code: i32) {
            let pod = self.pods.values_mut().find(|pod| super::index(pod) == Some(index)).unwrap();
            pod.status = serde_json::from_value(json!({
                "phase": if code == 0 { "Succeeded" } else { "Failed" },
                "containerStatuses": [{"name": "trainer", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                    "state": {"terminated": {"exitCode": code}}}],
            }))
            .unwrap();
        }

        fn conditions(&self) -> Vec<String> {
            let status = self.job.status.as_ref().unwrap();
            status
                .conditions
                .iter()
                .flatten()
                .map(|one| format!("{}/{}", one.type_, one.reason.as_deref().unwrap()))
                .collect()
        }
    }

    #[test]
    fn each_index_gets_one_pod_with_its_name_and_number() {
        let mut world = World::new();
        assert_eq!(world.turn().len(), 2);
        assert!(world.turn().is_empty());
        let pod = world.pods.values().next().unwrap();
        assert_eq!(pod.spec.as_ref().unwrap().hostname.as_deref(), Some("r-t1-0"));
        assert!(name(pod).starts_with("r-t1-0-") && name(pod).len() == 12);
        assert_eq!((label(pod, INDEX), label(pod, "role")), (Some("0"), Some("trainer")));
        assert!(crate::objects::owns(&world.job, pod));
        assert_eq!(world.job.status.as_ref().unwrap().active, Some(2));
    }

    #[test]
    fn the_first_failure_ends_the_peers_and_failed_waits_for_the_last_pod() {
        let mut world = World::new();
        world.turn();
        world.ends(1, 137);
        let changes = world.turn();
        assert_eq!(world.conditions(), ["FailureTarget/BackoffLimitExceeded"]);
        assert_eq!(changes.iter().filter(|change| matches!(change, Change::Delete(_))).count(), 1);
        assert_eq!(world.pods.len(), 2, "the failed pod stays, and the peer is ending");
        assert!(world.turn().is_empty());
        world.ends(0, 75);
        world.turn();
        world.turn();
        assert_eq!(world.conditions(), ["FailureTarget/BackoffLimitExceeded", "Failed/BackoffLimitExceeded"]);
        assert_eq!(world.job.status.as_ref().unwrap().failed, Some(2));
        assert!(world.turn().is_empty(), "nothing is ever started again");
    }

    #[test]
    fn exit_code_3_and_disruption_fail_the_job_by_its_policy() {
        let mut world = World::new();
        world.turn();
        world.ends(0, 3);
        world.turn();
        let message = world.job.status.as_ref().unwrap().conditions.as_ref().unwrap()[0].message.clone().unwrap();
        assert!(message.contains("exit code 3 matching FailJob rule at index 1"), "{message}");

        let mut world = World::new();
        world.turn();
        world.ends(0, 137);
        let pod = world.pods.values_mut().find(|pod| super::index(pod) == Some(0)).unwrap();
        pod::set_condition(
            pod.status.as_mut().unwrap(),
            "DisruptionTarget",
            true,
            Some("DeletionByTaintManager"),
            None,
            Timestamp::UNIX_EPOCH,
        );
        world.turn();
        assert_eq!(world.conditions(), ["FailureTarget/PodFailurePolicy"]);
    }

    #[test]
    fn a_deleted_pod_is_not_replaced_while_it_ends_and_then_fails_the_job() {
        let mut world = World::new();
        world.turn();
        let deleted = world.pods.keys().next().unwrap().clone();
        world.pods.get_mut(&deleted).unwrap().metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        assert!(world.turn().is_empty());
        assert_eq!(world.job.status.as_ref().unwrap().terminating, Some(1));
        world.ends(0, 137);
        world.turn();
        assert_eq!(world.conditions(), ["FailureTarget/BackoffLimitExceeded"]);
        assert!(!world.pods.contains_key(&deleted), "its record goes once it has been counted");
    }

    #[test]
    fn complete_needs_every_index() {
        let mut world = World::new();
        world.turn();
        world.ends(1, 0);
        assert_eq!(world.turn().len(), 1);
        assert_eq!(world.job.status.as_ref().unwrap().completed_indexes.as_deref(), Some("1"));
        assert!(world.conditions().is_empty());
        world.ends(0, 0);
        world.turn();
        assert_eq!(world.conditions(), ["SuccessCriteriaMet/CompletionsReached", "Complete/CompletionsReached"]);
        assert_eq!(world.job.status.as_ref().unwrap().completed_indexes.as_deref(), Some("0,1"));
    }

    #[test]
    fn index_lists_are_written_and_read_alike() {
        for list in [vec![], vec![0], vec![0, 1], vec![0, 1, 2, 5, 7, 8]] {
            assert_eq!(indexes(Some(&ranges(&list))), list);
        }
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "0-2,5,7,8");
    }
}
