//! Whose log is meant.

use api::{RLJob, RLJobStatus, labels};
use clap::ValueEnum;
use k8s_openapi::api::core::v1::Pod;
use plan::{build, pod_facts};

/// What a pod is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Role {
    /// Ranks of an attempt.
    Trainer,
    /// The run's brain.
    Conductor,
    /// Generates.
    Engine,
    /// Leases, rewards, publishes.
    Worker,
}

impl Role {
    /// As in the label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Trainer => "trainer",
            Self::Conductor => "conductor",
            Self::Engine => "engine",
            Self::Worker => "worker",
        }
    }
}

/// Flags of `logs`.
#[derive(Clone, Debug, clap::Args)]
pub struct LogsOf {
    /// Whose logs.
    #[arg(long, value_enum, default_value_t = Role::Trainer)]
    pub role: Role,
    /// Only the pod that holds this rank; of engines and workers the one of this number.
    #[arg(long, value_name = "N")]
    pub rank: Option<u32>,
    /// Of this attempt of the trainer; by default the living one, or else the last one of which something is left.
    #[arg(long, value_name = "N")]
    pub attempt: Option<u64>,
    /// Go on as more is written.
    #[arg(short, long)]
    pub follow: bool,
    /// Only the last N lines of each pod.
    #[arg(long, value_name = "N")]
    pub tail: Option<u32>,
    /// What was there before: the attempt before, of a trainer; the container before its restart, of the others.
    #[arg(long, conflicts_with = "follow")]
    pub previous: bool,
}

/// A pod that has, or had, a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Name of the pod.
    pub pod: String,
    /// What it is for.
    pub role: Role,
    /// Attempt, of a trainer; else 0.
    pub attempt: u64,
    /// Index in its Job, or number in its set.
    pub index: Option<u32>,
    /// It has ended with a failure.
    pub failed: bool,
    /// Its main container.
    pub container: Option<String>,
}

/// From a pod, by its labels.
pub fn source_of_pod(pod: &Pod) -> Option<Source> {
    let role = Role::value_variants().iter().copied().find(|role| role.as_str() == pod_facts::role(pod))?;
    let number = || pod_facts::name(pod).rsplit_once('-').and_then(|(_, n)| n.parse().ok());
    Some(Source {
        pod: pod_facts::name(pod).to_owned(),
        role,
        attempt: pod_facts::attempt(&pod.metadata),
        index: pod_facts::index(pod).or_else(number),
        failed: pod_facts::terminated(pod).is_some_and(|t| t.exit_code != 0),
        container: pod.spec.as_ref().and_then(|s| s.containers.first()).map(|c| c.name.clone()),
    })
}

/// From a pod's name: its object may be gone.
pub fn source_of_name(job: &RLJob, pod: &str) -> Option<Source> {
    let name = job.metadata.name.as_deref().unwrap_or_default();
    let of = |owner: &str| pod.strip_prefix(owner).and_then(|rest| rest.strip_prefix('-'));
    let source = |role, attempt, rest: &str| Source {
        pod: pod.to_owned(),
        role,
        attempt,
        // Behind the index a Job's pod has a few letters of its own.
        index: rest.split('-').next().and_then(|n| n.parse().ok()),
        failed: false,
        container: None,
    };
    if let Some(rest) = of(&build::conductor_name(name)) {
        return Some(source(Role::Conductor, 0, rest));
    }
    if let Some((number, rest)) = of(name).and_then(|rest| rest.strip_prefix('t')).and_then(|r| r.split_once('-'))
        && let Ok(attempt) = number.parse()
    {
        return Some(source(Role::Trainer, attempt, rest));
    }
    if let Some(rest) = of(&job.serving_name()) {
        return Some(source(Role::Engine, 0, rest));
    }
    of(&job.rollout_name()).map(|rest| source(Role::Worker, 0, rest))
}

/// The pods that are meant, the one that failed first before the others. An error says what there is instead.
pub fn pick(all: &[Source], job: &RLJob, logs: &LogsOf) -> Result<Vec<Source>, String> {
    let status = job.status.clone().unwrap_or_default();
    let mut those: Vec<Source> = all.iter().filter(|s| s.role == logs.role).cloned().collect();
    let role = logs.role.as_str();
    if logs.role == Role::Trainer {
        let attempt = attempt_meant(&those, &status, logs)?;
        those.retain(|s| s.attempt == attempt);
        if those.is_empty() {
            let mut left: Vec<u64> = all.iter().filter(|s| s.role == Role::Trainer).map(|s| s.attempt).collect();
            left.sort_unstable();
            left.dedup();
            let left = match left.as_slice() {
                [] => "no pod of any attempt is left".to_owned(),
                list => format!("there is {}", list.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")),
            };
            return Err(format!("no pod of attempt {attempt} is left; {left}"));
        }
    } else if those.is_empty() {
        return Err(format!("the run has no {role} now"));
    }
    if let Some(rank) = logs.rank {
        let pod = match logs.role {
            Role::Trainer => rank / job.spec.trainer.accelerator.per_node.max(1),
            _ => rank,
        };
        let mut known: Vec<u32> = those.iter().filter_map(|s| s.index).collect();
        those.retain(|s| s.index == Some(pod));
        if those.is_empty() {
            known.sort_unstable();
            known.dedup();
            let known = known.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
            return Err(match logs.role {
                Role::Trainer => format!("no trainer pod holds rank {rank} (it would be pod {pod}); there is {known}"),
                _ => format!("there is no {role} {rank}; there is {known}"),
            });
        }
    }
    let first = first_to_fail(&status);
    those.sort_by_key(|s| (first.as_deref() != Some(s.pod.as_str()), !s.failed, s.index, s.pod.clone()));
    Ok(those)
}

fn attempt_meant(trainers: &[Source], status: &RLJobStatus, logs: &LogsOf) -> Result<u64, String> {
    let last = trainers.iter().map(|s| s.attempt).max();
    let living = status.attempt.as_ref().map(|a| a.id).filter(|id| trainers.iter().any(|s| s.attempt == *id));
    let meant = logs.attempt.or(living).or(last);
    let meant = meant.ok_or("no attempt has begun, or no pod of one is left".to_owned())?;
    match (logs.previous, logs.attempt) {
        (true, None) => meant.checked_sub(1).filter(|n| *n > 0).ok_or("there is no attempt before the first".into()),
        _ => Ok(meant),
    }
}

/// The pod that failed first, of the attempt that ends or has ended.
fn first_to_fail(status: &RLJobStatus) -> Option<String> {
    let ending = status.attempt.as_ref().and_then(|a| a.ending.as_ref());
    let first =
        ending.and_then(|e| e.pods.iter().min_by_key(|(_, end)| (end.ended_us.unwrap_or(i64::MAX), end.seen_us)));
    first.map(|(name, _)| name.clone()).or_else(|| status.last_attempt.as_ref()?.pod_name.clone())
}

/// What stands before each line of a pod, so that the lines of several can be told apart.
pub fn prefix(source: &Source) -> String {
    let Source { pod, role, attempt: _, index, failed: _, container: _ } = source;
    match (role, index) {
        // A Job's pod has a name that ends in a few letters.
        (Role::Trainer, Some(index)) => format!("{pod} [pod {index}] "),
        _ => format!("{pod} "),
    }
}

/// The label selectors that find the pods of a run: its own, and those of its engines and its workers.
pub fn selectors(uid: &str, serving_uid: Option<&str>, pool_uid: Option<&str>) -> Vec<String> {
    let of = |key: &str, uid: Option<&str>| uid.map(|uid| format!("{key}={uid}"));
    let own = of(labels::RLJOB_UID, Some(uid));
    let serving = of(labels::SERVING_UID, serving_uid);
    own.into_iter().chain(serving).chain(of(labels::POOL_UID, pool_uid)).collect()
}

#[cfg(test)]
mod tests {
    use api::Outcome;

    use super::*;
    use crate::sample::Sample;

    fn flags() -> LogsOf {
        LogsOf { role: Role::Trainer, rank: None, attempt: None, follow: false, tail: None, previous: false }
    }

    fn sources() -> Vec<Source> {
        let pod = |name, role, attempt| source_of_pod(&Sample::pod(name, role, attempt, "node1")).unwrap();
        vec![
            pod("sort5-t1-0", "trainer", 1),
            pod("sort5-t1-1", "trainer", 1),
            pod("sort5-t2-0", "trainer", 2),
            pod("sort5-t2-1", "trainer", 2),
            pod("sort5-conductor-0", "conductor", 0),
            pod("sort5-serving-1", "engine", 0),
            pod("sort5-serving-0", "engine", 0),
        ]
    }

    fn names(picked: Result<Vec<Source>, String>) -> Vec<String> {
        picked.unwrap().into_iter().map(|s| s.pod).collect()
    }

    #[test]
    fn the_living_attempt_is_meant_unless_another_is_named() {
        let sample = Sample::new();
        let pick = |logs: LogsOf| names(super::pick(&sources(), &sample.job, &logs));
        assert_eq!(pick(flags()), ["sort5-t2-0", "sort5-t2-1"]);
        // The rank that failed first is of attempt 1, and comes first there.
        assert_eq!(pick(LogsOf { attempt: Some(1), ..flags() }), ["sort5-t1-1", "sort5-t1-0"]);
        assert_eq!(pick(LogsOf { previous: true, ..flags() }), ["sort5-t1-1", "sort5-t1-0"]);
        assert_eq!(pick(LogsOf { role: Role::Engine, ..flags() }), ["sort5-serving-0", "sort5-serving-1"]);
        assert_eq!(pick(LogsOf { role: Role::Engine, rank: Some(1), ..flags() }), ["sort5-serving-1"]);
    }

    #[test]
    fn between_attempts_the_last_one_that_left_pods_is_meant_failing_rank_first() {
        let mut sample = Sample::new();
        sample.status().attempt = None;
        sample.ended(2, Outcome::Failed);
        let mut left = sources();
        left.retain(|s| s.attempt == 1);
        assert_eq!(names(pick(&left, &sample.job, &flags())), ["sort5-t1-0", "sort5-t1-1"]);
        left[1].failed = true;
        assert_eq!(names(pick(&left, &sample.job, &flags())), ["sort5-t1-1", "sort5-t1-0"]);
    }

    #[test]
    fn a_rank_is_found_in_the_pod_that_holds_it() {
        let mut sample = Sample::new();
        sample.job.spec.trainer.accelerator.per_node = 2;
        let pod = |rank| names(pick(&sources(), &sample.job, &LogsOf { rank: Some(rank), ..flags() }));
        assert_eq!((pod(1), pod(2)), (vec!["sort5-t2-0".to_owned()], vec!["sort5-t2-1".to_owned()]));
        assert!(pick(&sources(), &sample.job, &LogsOf { rank: Some(4), ..flags() }).is_err());
    }

    #[test]
    fn what_is_not_there_is_said_with_what_is() {
        let sample = Sample::new();
        let error = pick(&sources(), &sample.job, &LogsOf { attempt: Some(7), ..flags() }).unwrap_err();
        assert_eq!(error, "no pod of attempt 7 is left; there is 1, 2");
        let error = pick(&sources(), &sample.job, &LogsOf { role: Role::Worker, ..flags() }).unwrap_err();
        assert_eq!(error, "the run has no worker now");
        let error = pick(&[], &sample.job, &flags()).unwrap_err();
        assert_eq!(error, "no attempt has begun, or no pod of one is left");
    }

    #[test]
    fn a_pods_name_says_what_it_was() {
        let sample = Sample::new();
        let of = |name| source_of_name(&sample.job, name).map(|s| (s.role, s.attempt, s.index));
        assert_eq!(of("sort5-t12-1-x7k2p"), Some((Role::Trainer, 12, Some(1))));
        assert_eq!(of("sort5-conductor-0"), Some((Role::Conductor, 0, Some(0))));
        assert_eq!(of("sort5-serving-3"), Some((Role::Engine, 0, Some(3))));
        assert_eq!(of("sort5-rollout-abcde"), Some((Role::Worker, 0, None)));
        for other in ["sort5", "sort5-t1", "sort5-train-0", "sort5b-t1-0", "sort5-b-t1-0"] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
