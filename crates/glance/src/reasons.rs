//! What each reason of a condition means for a person: the written table behind `why`.
//!
//! In a sentence `{message}` is the condition's own message, and `{name}`, `{namespace}`, `{serving}`, `{rollout}`, `{claim}` are
//! of the run.

use api::conditions as cond;

/// Name of the condition of a run that waits in a queue.
pub const QUOTA_RESERVED: &str = "QuotaReserved";
/// Name of the condition of a ServingCluster on its way out.
pub const DRAINED: &str = "Drained";

/// What a reason means.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Meaning {
    /// Nothing is waited for.
    Well,
    /// Something is.
    Wait(Wait),
}

/// A wait in words.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wait {
    /// What is waited for.
    pub what: &'static str,
    /// Who must act.
    pub owner: &'static str,
    /// What happens when that is over.
    pub then: &'static str,
    /// What a person may do.
    pub may: &'static [May],
}

/// Something a person may do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum May {
    /// Change the run's spec: path and value.
    Edit(&'static str, &'static str),
    /// A command of ours, without the run's name.
    Ours(&'static str),
    /// A command that only a cluster has.
    Kubectl(&'static str),
    /// In words.
    Say(&'static str),
}

/// A line of the table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Words {
    /// Type of the condition.
    pub condition: &'static str,
    /// Its status.
    pub status: &'static str,
    /// Its reason.
    pub reason: &'static str,
    /// What it means.
    pub meaning: Meaning,
}

/// The words for a reason of an RLJob.
pub fn of_run(condition: &str, status: &str, reason: &str) -> Option<Meaning> {
    find(&[COMMON, RUN], condition, status, reason)
}

/// The words for a reason of a ServingCluster.
pub fn of_serving(condition: &str, status: &str, reason: &str) -> Option<Meaning> {
    find(&[COMMON, SERVING], condition, status, reason)
}

/// The words for a reason of a RolloutPool.
pub fn of_pool(condition: &str, status: &str, reason: &str) -> Option<Meaning> {
    find(&[COMMON, POOL], condition, status, reason)
}

fn find(tables: &[&[Words]], condition: &str, status: &str, reason: &str) -> Option<Meaning> {
    let all = tables.iter().flat_map(|table| table.iter());
    let mut fitting = all.filter(|w| w.condition == condition && w.status == status && w.reason == reason);
    fitting.next().map(|w| w.meaning)
}

const fn well(condition: &'static str, status: &'static str, reason: &'static str) -> Words {
    Words { condition, status, reason, meaning: Meaning::Well }
}

const fn wait(
    condition: &'static str,
    status: &'static str,
    reason: &'static str,
    [what, owner, then]: [&'static str; 3],
    may: &'static [May],
) -> Words {
    Words { condition, status, reason, meaning: Meaning::Wait(Wait { what, owner, then, may }) }
}

const YOU: &str = "you";
const OPERATOR: &str = "operator";
const CONDUCTOR: &str = "conductor";
const TRAINER: &str = "trainer";
const CLUSTER: &str = "cluster";
const ADMIN: &str = "the cluster's administrator";
const STORAGE: &str = "storage";
const QUEUE: &str = "queue";

const GOES_ON: &str = "the run goes on by itself";
const TRIED_AGAIN: &str = "it is tried again by itself";

const SEE_CONDUCTOR: May = May::Ours("logs --role conductor");
const SEE_ENGINES: May = May::Ours("logs --role engine");
const SEE_WORKERS: May = May::Ours("logs --role worker");
const SEE_TRAINER: May = May::Ours("logs");
const SEE_EVENTS: May = May::Ours("events");
const NEW_TOKEN: May = May::Edit("spec.restart.token", "\"again-1\"");
const RESUME: May = May::Edit("spec.suspend", "false");
const SEE_CLAIM: May = May::Kubectl("kubectl describe pvc {claim} -n {namespace}");
const SEE_SERVING: May = May::Kubectl("kubectl describe servingcluster {serving} -n {namespace}");
const SEE_POOL: May = May::Kubectl("kubectl describe rolloutpool {rollout} -n {namespace}");
const DELETE_NODE: May =
    May::Say("if its node will not come back: kubectl delete node NODE (the next attempt starts at once)");

/// Of all three kinds.
pub const COMMON: &[Words] = &[
    well(cond::ACCEPTED, "True", "Valid"),
    wait(
        cond::ACCEPTED,
        "False",
        "InvalidSpec",
        ["the spec cannot be used: {message}", YOU, "it is taken up at once; until then nothing is touched"],
        &[May::Say("correct the field and apply the manifest again")],
    ),
    wait(
        cond::ACCEPTED,
        "False",
        "SchemaOutdated",
        ["the CustomResourceDefinitions are older than the operator, which touches nothing: {message}", ADMIN, GOES_ON],
        &[May::Say("upgrade the definitions: helm upgrade with crds.install=true, or the chart thresh-crds")],
    ),
    well(cond::RECONCILED, "True", "Applied"),
    wait(
        cond::RECONCILED,
        "False",
        "ApplyFailed",
        ["the API server refuses an object of it: {message}", YOU, TRIED_AGAIN],
        &[May::Say("correct what the server names, most often a podTemplate"), SEE_EVENTS],
    ),
    wait(
        cond::RECONCILED,
        "False",
        "Forbidden",
        ["the operator may not do what it must: {message}", ADMIN, TRIED_AGAIN],
        &[May::Say(
            "give the operator's ServiceAccount that right, or name this namespace in its chart's watchNamespaces",
        )],
    ),
    wait(
        cond::RECONCILED,
        "False",
        "Conflict",
        ["somebody else writes the same object: {message}", OPERATOR, TRIED_AGAIN],
        &[SEE_EVENTS],
    ),
    wait(
        cond::RECONCILED,
        "False",
        "NameTaken",
        ["a name that it needs is taken: {message}", YOU, GOES_ON],
        &[May::Say("delete the object of that name, or give this one another name")],
    ),
    wait(
        cond::RECONCILED,
        "False",
        "QuotaExceeded",
        ["the namespace's quota does not allow it: {message}", ADMIN, TRIED_AGAIN],
        &[May::Kubectl("kubectl describe quota -n {namespace}")],
    ),
    wait(
        cond::RECONCILED,
        "False",
        "ApiUnavailable",
        ["the API server does not answer the operator: {message}", CLUSTER, TRIED_AGAIN],
        &[],
    ),
    wait(
        cond::RECONCILED,
        "False",
        "NamespaceTerminating",
        ["its namespace is being deleted: {message}", CLUSTER, "the run goes with it"],
        &[],
    ),
];

/// Of an RLJob.
pub const RUN: &[Words] = &[
    wait(
        cond::ACCEPTED,
        "False",
        "StorageNotBound",
        ["{message}", STORAGE, GOES_ON],
        &[SEE_CLAIM, May::Say("make the claim, or see why it does not bind")],
    ),
    wait(
        cond::ACCEPTED,
        "False",
        "ClaimDenied",
        ["{message}", "the run that holds it", GOES_ON],
        &[May::Say("end or delete that run, or give this one engines of its own (spec.serving.template)")],
    ),
    wait(
        cond::ACCEPTED,
        "False",
        "NameTaken",
        ["a name that it needs is taken: {message}", YOU, GOES_ON],
        &[May::Say("delete the object of that name, or give this run another name")],
    ),
    wait(
        cond::FAILED,
        "True",
        "BackoffLimitExceeded",
        ["too many failures: {message}", YOU, "it goes on from its last commit"],
        &[SEE_TRAINER, May::Say("mend the cause, then:"), NEW_TOKEN],
    ),
    wait(
        cond::FAILED,
        "True",
        "DeadlineExceeded",
        ["its time is over: {message}", YOU, "it goes on from its last commit"],
        &[May::Say("raise or remove spec.activeDeadlineSeconds, then:"), NEW_TOKEN],
    ),
    wait(
        cond::FAILED,
        "True",
        "FailJobRule",
        ["another attempt would fail as this one did: {message}", YOU, "it goes on from its last commit"],
        &[SEE_TRAINER, May::Say("mend the cause, then:"), NEW_TOKEN],
    ),
    wait(
        cond::FAILED,
        "True",
        "ConductorGaveUp",
        ["this run cannot go on: {message}", YOU, "a run that is made anew from the mended manifest begins"],
        &[
            SEE_CONDUCTOR,
            May::Say("mend the manifest and make a new run of it: a new token or attempt changes nothing"),
        ],
    ),
    well(cond::COMPLETE, "True", "TrainingFinished"),
    wait(
        cond::SUSPENDED,
        "True",
        "SuspendedByUser",
        ["suspended: {message}", YOU, "it goes on from its last commit"],
        &[RESUME],
    ),
    wait(
        cond::SUSPENDED,
        "True",
        "SuspendedByQueue",
        ["its queue holds it: {message}", QUEUE, "the trainer starts"],
        &[SEE_EVENTS],
    ),
    well(cond::SUSPENDED, "False", "Resumed"),
    wait(
        QUOTA_RESERVED,
        "False",
        "Queued",
        ["it waits its turn: {message}", QUEUE, "the trainer starts"],
        &[May::Kubectl("kubectl get workloads -n {namespace}")],
    ),
    wait(
        QUOTA_RESERVED,
        "False",
        "Preempted",
        ["its queue took the quota back: {message}", QUEUE, "it goes on from its last commit"],
        &[May::Kubectl("kubectl get workloads -n {namespace}")],
    ),
    wait(
        QUOTA_RESERVED,
        "False",
        "QueueNotFound",
        ["its queue does not exist: {message}", YOU, GOES_ON],
        &[
            May::Say("make the queue, or correct spec.scheduling.queueName"),
            May::Kubectl("kubectl get localqueues -n {namespace}"),
        ],
    ),
    well(QUOTA_RESERVED, "True", "Admitted"),
    wait(
        QUOTA_RESERVED,
        "True",
        "NotReleased",
        ["the quota is set aside, the Job is not let go yet: {message}", QUEUE, "the trainer starts"],
        &[May::Kubectl("kubectl describe workloads -n {namespace}")],
    ),
    well(cond::CONDUCTOR_READY, "True", "Answering"),
    wait(
        cond::CONDUCTOR_READY,
        "False",
        "NotAnswering",
        ["the conductor does not answer: {message}", CONDUCTOR, GOES_ON],
        &[SEE_CONDUCTOR, SEE_EVENTS],
    ),
    well(cond::CONDUCTOR_READY, "False", "Stopped"),
    well(cond::CONDUCTOR_READY, "False", "Stopping"),
    well(cond::SERVING_READY, "True", "AboveMinimum"),
    well(cond::SERVING_READY, "True", "Released"),
    wait(
        cond::SERVING_READY,
        "False",
        "NotFound",
        ["{message}", YOU, GOES_ON],
        &[May::Say("make that ServingCluster, or correct spec.serving.ref.name")],
    ),
    wait(cond::SERVING_READY, "False", "Creating", ["{message}", OPERATOR, GOES_ON], &[SEE_EVENTS]),
    wait(
        cond::SERVING_READY,
        "False",
        "BelowMinimum",
        ["{message}, fewer than the run needs", "engines", GOES_ON],
        &[SEE_ENGINES, SEE_SERVING],
    ),
    wait(
        cond::SERVING_READY,
        "False",
        "WaitingForClaim",
        ["the run does not hold the writer's role of its engines: {message}", OPERATOR, GOES_ON],
        &[SEE_SERVING],
    ),
    well(cond::ROLLOUT_READY, "True", "AboveMinimum"),
    wait(
        cond::ROLLOUT_READY,
        "False",
        "NotFound",
        ["{message}", YOU, GOES_ON],
        &[May::Say("make that RolloutPool, or correct spec.rollout.ref.name")],
    ),
    wait(cond::ROLLOUT_READY, "False", "Creating", ["{message}", OPERATOR, GOES_ON], &[SEE_EVENTS]),
    wait(cond::ROLLOUT_READY, "False", "BelowMinimum", ["{message}", "workers", GOES_ON], &[SEE_WORKERS, SEE_POOL]),
    well(cond::TRAINER_READY, "True", "AllRanksReady"),
    well(cond::TRAINER_READY, "False", "Ended"),
    wait(
        cond::TRAINER_READY,
        "False",
        "BackingOff",
        ["{message}", OPERATOR, "the next attempt starts"],
        &[SEE_TRAINER, May::Say("correct the spec: an edit is part of the next attempt"), NEW_TOKEN],
    ),
    wait(
        cond::TRAINER_READY,
        "False",
        "ContainerError",
        ["{message}", OPERATOR, "the cause is named and the next attempt is planned"],
        &[SEE_TRAINER],
    ),
    wait(
        cond::TRAINER_READY,
        "False",
        "InvalidSpec",
        ["{message}", YOU, "it is taken up at once"],
        &[May::Say("correct the field and apply the manifest again")],
    ),
    wait(
        cond::TRAINER_READY,
        "False",
        "NameTaken",
        ["a name that it needs is taken: {message}", YOU, GOES_ON],
        &[May::Say("delete the object of that name, or give this run another name")],
    ),
    wait(
        cond::TRAINER_READY,
        "False",
        "Starting",
        ["{message}", TRAINER, "the attempt counts as a failure and another one starts"],
        &[SEE_TRAINER, SEE_EVENTS],
    ),
    wait(
        cond::TRAINER_READY,
        "False",
        "Scheduling",
        ["{message}", CLUSTER, "the attempt counts as a failure and another one starts"],
        &[May::Say("make room, or ask for less: spec.trainer.resources, accelerator, nodes"), SEE_EVENTS],
    ),
    wait(
        cond::TRAINER_READY,
        "False",
        "ImagePull",
        ["{message}", YOU, "the attempt counts as a failure and another one starts"],
        &[May::Say("correct the image or its pull secret in spec.trainer"), SEE_EVENTS],
    ),
    wait(
        cond::TRAINER_READY,
        "False",
        "StatusUnreachable",
        ["{message}", CONDUCTOR, "the run is complete, or the next attempt is planned"],
        &[SEE_CONDUCTOR],
    ),
    wait(cond::TRAINER_READY, "False", "StorageNotBound", ["{message}", STORAGE, GOES_ON], &[SEE_CLAIM]),
    wait(
        cond::TRAINER_READY,
        "False",
        "Suspended",
        ["suspended: {message}", YOU, "it goes on from its last commit"],
        &[RESUME],
    ),
    wait(
        cond::TRAINER_READY,
        "False",
        "Queued",
        ["it waits its turn: {message}", QUEUE, "the trainer starts"],
        &[May::Kubectl("kubectl get workloads -n {namespace}")],
    ),
    wait(
        cond::TRAINER_READY,
        "False",
        "QueueNotReleased",
        ["{message}", QUEUE, "the trainer starts"],
        &[May::Kubectl("kubectl describe workloads -n {namespace}")],
    ),
    wait(
        cond::TRAINER_READY,
        "False",
        "QueueNotFound",
        ["{message}", YOU, GOES_ON],
        &[May::Say("make the queue, or correct spec.scheduling.queueName")],
    ),
    wait(
        cond::TRAINER_READY,
        "False",
        "WaitingForClaim",
        ["{message}", "the run that holds it, or the operator", GOES_ON],
        &[SEE_SERVING],
    ),
    wait(
        cond::TRAINER_READY,
        "False",
        "WaitingForConductor",
        ["{message}", CONDUCTOR, GOES_ON],
        &[SEE_CONDUCTOR, SEE_EVENTS],
    ),
    wait(
        cond::TRAINER_READY,
        "False",
        "WaitingForFence",
        ["{message}", CONDUCTOR, "that attempt can write no more, and the next one starts"],
        &[DELETE_NODE, SEE_CONDUCTOR],
    ),
    wait(
        cond::TRAINER_READY,
        "False",
        "WaitingForOldPods",
        ["{message}", OPERATOR, "the next attempt starts"],
        &[DELETE_NODE, SEE_EVENTS],
    ),
    wait(
        cond::TRAINER_READY,
        "False",
        "WaitingForRollout",
        ["{message}", "workers", GOES_ON],
        &[SEE_WORKERS, SEE_POOL],
    ),
    wait(
        cond::TRAINER_READY,
        "False",
        "WaitingForServing",
        ["{message}", "engines", GOES_ON],
        &[SEE_ENGINES, SEE_SERVING],
    ),
    wait(
        cond::TRAINER_READY,
        "False",
        "WaitingForStorage",
        ["the volume takes nothing: {message}", STORAGE, GOES_ON],
        &[SEE_CLAIM, SEE_CONDUCTOR],
    ),
    well(cond::PROGRESSING, "True", "StepAdvanced"),
    well(cond::PROGRESSING, "False", "Ended"),
    // Why it has not is what TrainerReady says.
    well(cond::PROGRESSING, "False", "NotStarted"),
    wait(
        cond::PROGRESSING,
        "False",
        "WaitingForStorage",
        [
            "the volume takes nothing: {message}",
            STORAGE,
            "the run goes on; nothing is lost, and no attempt is spent on it",
        ],
        &[SEE_CLAIM, SEE_CONDUCTOR],
    ),
    wait(
        cond::PROGRESSING,
        "False",
        "HeartbeatLost",
        ["{message}", TRAINER, "the attempt ends for want of progress and another one starts"],
        &[SEE_TRAINER, NEW_TOKEN],
    ),
    wait(
        cond::PROGRESSING,
        "Unknown",
        "StatusUnreachable",
        ["{message}", CONDUCTOR, "the run goes on as far as it can meanwhile"],
        &[SEE_CONDUCTOR, SEE_EVENTS],
    ),
    well(cond::UP_TO_DATE, "True", "Ended"),
    well(cond::UP_TO_DATE, "True", "RevisionRunning"),
    // Why none runs is what TrainerReady says.
    well(cond::UP_TO_DATE, "False", "NotRunning"),
    wait(
        cond::UP_TO_DATE,
        "False",
        "CheckpointRequested",
        ["{message}", TRAINER, "the trainer restarts with the edit, alone"],
        &[May::Say("take the edit back: nothing restarts then")],
    ),
    wait(
        cond::UP_TO_DATE,
        "False",
        "RestartPending",
        ["{message}", OPERATOR, "the trainer restarts with the edit, alone"],
        &[NEW_TOKEN],
    ),
    wait(
        cond::UP_TO_DATE,
        "False",
        "RunIsComplete",
        ["the run is complete, and an edit came after it: {message}", YOU, "nothing"],
        &[May::Say("make a new run")],
    ),
    well(cond::DEGRADED, "False", "AsExpected"),
    wait(
        cond::DEGRADED,
        "True",
        "OldPodsStuck",
        ["{message}", CLUSTER, "the next attempt starts"],
        &[DELETE_NODE, May::Say("see what holds the pod: finalizers, or a kubelet that does not answer")],
    ),
    wait(cond::DEGRADED, "True", "StatusUnreachable", ["{message}", CONDUCTOR, GOES_ON], &[SEE_CONDUCTOR, SEE_EVENTS]),
    wait(
        cond::DEGRADED,
        "True",
        "SamplesInvalid",
        ["{message}", YOU, "nothing; the run goes on and learns less"],
        &[SEE_WORKERS],
    ),
    wait(cond::DEGRADED, "True", "ServingReduced", ["{message}", "engines", GOES_ON], &[SEE_ENGINES, SEE_SERVING]),
    wait(cond::DEGRADED, "True", "RolloutReduced", ["{message}", "workers", GOES_ON], &[SEE_WORKERS, SEE_POOL]),
];

/// Of a ServingCluster.
pub const SERVING: &[Words] = &[
    well(cond::AVAILABLE, "True", "MinimumServable"),
    wait(cond::AVAILABLE, "False", "BelowMinimum", ["{message}", "engines", GOES_ON], &[SEE_ENGINES, SEE_SERVING]),
    well(cond::AVAILABLE, "True", "Draining"),
    wait(
        cond::AVAILABLE,
        "False",
        "Draining",
        ["the ServingCluster is being deleted: {message}", OPERATOR, "it goes"],
        &[SEE_SERVING],
    ),
    well(cond::PROGRESSING, "False", "Idle"),
    well(cond::PROGRESSING, "True", "Scaling"),
    well(cond::PROGRESSING, "True", "RollingUpdate"),
    well(cond::PROGRESSING, "False", "Paused"),
    wait(
        cond::PROGRESSING,
        "False",
        "Stuck",
        ["an edit of the engines does not come further: {message}", YOU, "the others follow one by one"],
        &[SEE_ENGINES, SEE_SERVING],
    ),
    // The run's conductor brings them to its version; until then they are not counted as ready.
    well(cond::WEIGHTS_IN_SYNC, "False", "NoWriter"),
    well(cond::WEIGHTS_IN_SYNC, "False", "Publishing"),
    well(cond::WEIGHTS_IN_SYNC, "False", "Lagging"),
    well(cond::WEIGHTS_IN_SYNC, "True", "AllAtVersion"),
    wait(
        DRAINED,
        "False",
        "InUse",
        ["the ServingCluster is to be deleted, and a run uses it: {message}", "the run that holds it", "it goes"],
        &[SEE_SERVING],
    ),
    wait(
        DRAINED,
        "False",
        "InFlight",
        [
            "the ServingCluster is to be deleted and its engines finish what they have begun: {message}",
            "engines",
            "it goes",
        ],
        &[SEE_ENGINES],
    ),
    well(DRAINED, "True", "Empty"),
    wait(
        DRAINED,
        "True",
        "TimedOut",
        ["the ServingCluster is to be deleted and its engines did not end in time: {message}", CLUSTER, "it goes"],
        &[SEE_SERVING],
    ),
];

/// Of a RolloutPool.
pub const POOL: &[Words] = &[
    well(cond::AVAILABLE, "True", "Enough"),
    wait(cond::AVAILABLE, "False", "BelowMinimum", ["{message}", "workers", GOES_ON], &[SEE_WORKERS, SEE_POOL]),
    wait(
        cond::AVAILABLE,
        "False",
        "NoMatchingNodes",
        ["no node fits the workers: {message}", ADMIN, GOES_ON],
        &[SEE_POOL, May::Say("label nodes, or change the worker's nodeSelector")],
    ),
    wait(
        cond::AVAILABLE,
        "False",
        "Paused",
        ["the workers are paused: {message}", YOU, GOES_ON],
        &[May::Say("set spec.paused: false in the RolloutPool")],
    ),
    well(cond::AVAILABLE, "True", "Paused"),
    well(cond::PROGRESSING, "False", "Idle"),
    well(cond::PROGRESSING, "True", "RollingUpdate"),
    well(cond::PROGRESSING, "True", "Scaling"),
    well(cond::PROGRESSING, "False", "Paused"),
    wait(
        cond::PROGRESSING,
        "False",
        "Stuck",
        ["an edit of the workers does not come further: {message}", YOU, "the others follow one by one"],
        &[SEE_WORKERS, SEE_POOL],
    ),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The written table that the histories of `plan` are compared with: what `decide` reaches is exactly that.
    const REACHED: &str = include_str!("../../plan/tests/histories/coverage.rs");

    #[test]
    fn every_condition_that_decide_reaches_has_its_words() {
        let lines = REACHED.lines().filter_map(|line| line.trim().strip_prefix("condition "));
        let mut seen = 0;
        for line in lines {
            let (head, reasons) = line.split_once(": ").unwrap();
            let (condition, status) = head.split_once(' ').unwrap();
            for reason in reasons.split(", ") {
                assert!(of_run(condition, status, reason).is_some(), "{condition} {status} {reason} has no words");
                seen += 1;
            }
        }
        assert!(seen > 50, "the table was found: {seen}");
    }

    /// Words in double quotes that begin with a capital and have no blank, of code that is no test.
    fn words(source: &'static str) -> BTreeSet<&'static str> {
        let code = source.split("#[cfg(test)]").next().unwrap_or_default();
        let code = code.lines().filter(|line| !line.trim_start().starts_with("//"));
        let quoted = code.flat_map(|line| line.split('"').skip(1).step_by(2));
        quoted.filter(|w| w.starts_with(|c: char| c.is_uppercase()) && w.chars().all(char::is_alphanumeric)).collect()
    }

    #[test]
    fn every_reason_in_the_code_that_writes_conditions_has_its_words() {
        /// Words that are no reason of a condition: events, and what pods and Jobs say themselves.
        const OTHERS: &[&str] = &[
            "AttemptEnded",
            "AttemptStarted",
            "CheckpointTimedOut",
            "Claimed",
            "ConductorForced",
            "ConductorRestarted",
            "ContainerCreating",
            "Draining",
            "ErrImage",
            "FailureTarget",
            "Fencing",
            "PodInitializing",
            "PodScheduled",
            "Released",
            "Restarted",
            "StalePodsFenced",
            "StorageBack",
            "Unschedulable",
            "Failed",
            "Complete",
            "True",
            "False",
            "TimedOut",
            "RLJob",
            "RolloutPool",
            "ServingCluster",
            "DaemonSet",
            "Job",
            "StatefulSet",
            "Unreadable",
            "RunIsComplete",
            // What the API server and a queue call things, read and never written.
            "AlreadyExists",
            "Inadmissible",
        ];
        let run = [
            include_str!("../../plan/src/rljob/mod.rs"),
            include_str!("../../plan/src/rljob/attempt.rs"),
            include_str!("../../plan/src/rljob/between.rs"),
            include_str!("../../plan/src/rljob/children.rs"),
            include_str!("../../plan/src/rljob/deletion.rs"),
            include_str!("../../plan/src/rljob/summary.rs"),
            include_str!("../../plan/src/rljob/queue.rs"),
        ];
        let operator = [include_str!("../../plan/src/applied.rs"), include_str!("../../../operator/src/run.rs")];
        let others = [include_str!("../../plan/src/serving.rs"), include_str!("../../plan/src/pool.rs")];
        let known: BTreeSet<&str> = [COMMON, RUN, SERVING, POOL]
            .into_iter()
            .flatten()
            .map(|w| w.reason)
            .chain(OTHERS.iter().copied())
            .collect();
        let written: BTreeSet<&str> = run.into_iter().chain(operator).chain(others).flat_map(words).collect();
        let missing: Vec<_> = written.difference(&known).collect();
        assert!(missing.is_empty(), "no words for {missing:?}");
        for reason in ["WaitingForStorage", "ImagePull", "MinimumServable", "NoMatchingNodes", "QuotaExceeded"] {
            assert!(written.contains(reason), "{reason} was found");
        }
    }

    #[test]
    fn no_reason_stands_twice_in_the_table() {
        for table in [&[COMMON, RUN].concat(), &[COMMON, SERVING].concat(), &[COMMON, POOL].concat()] {
            let keys: BTreeSet<_> = table.iter().map(|w| (w.condition, w.status, w.reason)).collect();
            assert_eq!(keys.len(), table.len());
        }
    }

    #[test]
    fn every_wait_names_an_owner_and_what_comes_then() {
        for words in [COMMON, RUN, SERVING, POOL].into_iter().flatten() {
            if let Meaning::Wait(wait) = words.meaning {
                assert!(![wait.what, wait.owner, wait.then].contains(&""), "{words:?}");
            }
        }
    }
}
