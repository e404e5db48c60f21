//! What histories reached, and the table of what there is to reach.

use std::collections::{BTreeMap, BTreeSet};

use api::{Phase, RLJobStatus, StopReason, conditions as cond};
use plan::{Action, ChildKind};

use crate::sim::Sim;

/// How often each thing was reached.
#[derive(Clone, Default)]
pub struct Coverage(BTreeMap<String, u64>);

impl Coverage {
    fn reached(&mut self, what: impl Into<String>) {
        *self.0.entry(what.into()).or_default() += 1;
    }

    pub fn add(&mut self, other: &Coverage) {
        for (what, n) in &other.0 {
            *self.0.entry(what.clone()).or_default() += n;
        }
    }

    /// What a plan held.
    pub fn plan(&mut self, sim: &Sim) {
        for action in &sim.last_actions {
            self.reached(format!("action {}", name(action)));
        }
        for event in &sim.last_events {
            self.reached(format!("event {}", event.reason));
        }
    }

    /// What a status write led to.
    pub fn step(&mut self, old: &RLJobStatus, new: &RLJobStatus) {
        let (from, to) = (state(old), state(new));
        if from != to {
            self.reached(format!("state {to}"));
            self.reached(format!("step {from} -> {to}"));
        }
        self.reached(format!("phase {:?}", new.phase));
        if old.attempt.as_ref().map(|a| a.id) != new.attempt.as_ref().map(|a| a.id) {
            if let Some(a) = &new.attempt {
                self.reached(format!("cause {:?}", a.reason));
            }
            if let (Some(_), Some(l)) = (&old.attempt, &new.last_attempt) {
                self.reached(format!("outcome {:?}", l.outcome));
            }
        }
        for c in &new.conditions {
            if cond::get(&old.conditions, &c.type_).is_none_or(|o| (&o.status, &o.reason) != (&c.status, &c.reason)) {
                self.reached(format!("condition {} {} {}", c.type_, c.status, c.reason));
            }
        }
    }

    /// Lines of the table that were not reached, and what was reached beside it.
    pub fn compare(&self) -> (Vec<String>, Vec<String>) {
        let table = table();
        let missing = table.iter().filter(|l| !self.0.contains_key(*l)).cloned().collect();
        let beside = self.0.keys().filter(|l| !table.contains(*l)).cloned().collect();
        (missing, beside)
    }

    pub fn report(&self) -> String {
        self.0.iter().map(|(what, n)| format!("{n:>9} {what}\n")).collect()
    }
}

/// Everything there is to reach: each line is a kind of thing, and its things. `step A ->` lists the states that may follow A.
const TABLE: &str = "
    action: AddFinalizer, Apply ConfigMap, Apply ServingCluster, ConfirmGone, Create ConfigMap, Create Job
    action: Create RolloutPool, Create Service, Create ServingCluster, Create StatefulSet, Delete ConfigMap
    action: Delete Job, Delete StatefulSet, DeletePod, DeletePod by force, RemoveFinalizer, RequestCheckpoint
    action: RequestCheckpoint and stop, Tell
    action: Create PodGroup(Volcano), Delete PodGroup(Volcano), DeleteSelf
    cause: Disruption, Failure, First, Resume, SpecChange, Token
    condition Accepted False: ClaimDenied, InvalidSpec, NameTaken, StorageNotBound
    condition Accepted True: Valid
    condition Complete True: TrainingFinished
    condition ConductorReady False: NotAnswering, Stopped, Stopping
    condition ConductorReady True: Answering
    condition Degraded False: AsExpected
    condition Degraded True: OldPodsStuck, RolloutReduced, ServingReduced, StatusUnreachable
    condition Failed True: BackoffLimitExceeded, ConductorGaveUp, DeadlineExceeded, FailJobRule
    condition Progressing False: Ended, NotStarted
    condition Progressing True: StepAdvanced
    condition Progressing Unknown: StatusUnreachable
    condition QuotaReserved False: Preempted, Queued, QueueNotFound
    condition QuotaReserved True: Admitted, NotReleased
    condition RolloutReady False: BelowMinimum, Creating
    condition RolloutReady True: AboveMinimum
    condition ServingReady False: BelowMinimum, Creating, WaitingForClaim
    condition ServingReady True: AboveMinimum, Released
    condition Suspended False: Resumed
    condition Suspended True: SuspendedByQueue, SuspendedByUser
    condition TrainerReady False: BackingOff, ContainerError, Ended, InvalidSpec, NameTaken, Starting
    condition TrainerReady False: StatusUnreachable, StorageNotBound, Suspended, WaitingForClaim
    condition TrainerReady False: WaitingForConductor, WaitingForFence, WaitingForOldPods, WaitingForRollout
    condition TrainerReady False: Queued, QueueNotReleased, WaitingForServing
    condition TrainerReady True: AllRanksReady
    condition UpToDate False: CheckpointRequested, NotRunning, RestartPending
    condition UpToDate True: Ended, RevisionRunning
    event: AttemptEnded, AttemptStarted, CheckpointTimedOut, Complete, ConductorForced, Failed, Fencing
    event: Restarted, StalePodsFenced
    outcome: Complete, Deleted, Disrupted, Failed, NoProgress, OutOfMemory, Requested, SpecChange
    outcome: Preempted, StartupDeadline, Stopped, Suspended, UserError
    phase: Complete, Failed, Pending, Preparing, Restarting, Running, Starting, Suspended, Suspending
    phase: Queued, Terminating
    state: BackingOff, Complete, Ended, Ending, EndingWhileSaving, Failed, Fencing, Gated, NotAccepted
    state: Numbered, OldPods, Queued, Running, SavingForEdit, SavingForSuspend, SavingForToken, Starting, Suspended
    state: Terminating
    step BackingOff ->: Failed, Gated, NotAccepted, Numbered, Suspended, Terminating
    step Complete ->: Terminating
    step Ended ->: Failed, NotAccepted, OldPods, Terminating
    step Ending ->: Complete, Ended, EndingWhileSaving, Failed, NotAccepted, Terminating
    step EndingWhileSaving ->: Complete, Ended, Ending, Failed, NotAccepted, Terminating
    step Failed ->: Gated, NotAccepted, OldPods, Suspended, Terminating
    step Fencing ->: BackingOff, Failed, Gated, NotAccepted, Numbered, OldPods, Suspended, Terminating
    step Gated ->: BackingOff, Failed, NotAccepted, Numbered, Suspended, Terminating
    step New ->: NotAccepted, OldPods, Terminating
    step NotAccepted ->: BackingOff, Failed, Gated, Numbered, OldPods, Suspended, Terminating
    step Numbered ->: Queued, Complete, Ended, Ending, Failed, NotAccepted, Running, SavingForEdit, SavingForSuspend
    step Numbered ->: SavingForToken, Starting, Terminating
    step OldPods ->: BackingOff, Failed, Fencing, Gated, NotAccepted, Numbered, Suspended, Terminating
    step Queued ->: Ended, Ending, EndingWhileSaving, Failed, NotAccepted, Running, SavingForEdit
    step Queued ->: SavingForToken, Starting, Terminating
    step Running ->: Complete, Ended, Ending, EndingWhileSaving, Failed, NotAccepted, SavingForEdit
    step Running ->: SavingForSuspend, SavingForToken, Terminating
    step SavingForEdit ->: Ended, EndingWhileSaving, Failed, NotAccepted, Running, SavingForSuspend
    step SavingForEdit ->: SavingForToken, Terminating
    step SavingForSuspend ->: Complete, Ended, EndingWhileSaving, Failed, NotAccepted, Terminating
    step SavingForToken ->: Ended, EndingWhileSaving, Failed, NotAccepted, SavingForSuspend, Terminating
    step Starting ->: Ended, Ending, EndingWhileSaving, Failed, NotAccepted, Running, SavingForEdit
    step Starting ->: SavingForSuspend, Terminating
    step Suspended ->: BackingOff, Failed, Gated, NotAccepted, Numbered, Terminating
";

fn table() -> BTreeSet<String> {
    let of = |line: &'static str| {
        let (kind, things) = line.trim().split_once(": ").unwrap_or_default();
        things.split(", ").map(move |thing| format!("{kind} {thing}"))
    };
    TABLE.lines().filter(|l| !l.trim().is_empty()).flat_map(of).collect()
}

/// Where a run is, told from its status, which is all that the next decision knows of it.
fn state(s: &RLJobStatus) -> &'static str {
    if s.phase == Phase::Terminating {
        return "Terminating";
    }
    if cond::is_true(&s.conditions, cond::COMPLETE) {
        return "Complete";
    }
    if cond::is_true(&s.conditions, cond::FAILED) {
        return "Failed";
    }
    let Some(a) = &s.attempt else {
        return between(s);
    };
    match (a.stopping.as_ref().map(|s| s.reason), &a.ending) {
        (None, Some(_)) => "Ending",
        (Some(_), Some(_)) => "EndingWhileSaving",
        (Some(StopReason::SpecChange), None) => "SavingForEdit",
        (Some(StopReason::Suspend), None) => "SavingForSuspend",
        (Some(StopReason::Token), None) => "SavingForToken",
        (None, None) if a.ready_time.is_some() => "Running",
        (None, None) if a.job_uid.is_some() && a.released_time.is_none() => "Queued",
        (None, None) if a.job_uid.is_some() => "Starting",
        (None, None) => "Numbered",
    }
}

/// What a run without an attempt waits for.
fn between(s: &RLJobStatus) -> &'static str {
    let Some(c) = cond::get(&s.conditions, cond::TRAINER_READY) else { return "New" };
    match c.reason.as_str() {
        "InvalidSpec" | "StorageNotBound" | "WaitingForClaim" | "NameTaken" => "NotAccepted",
        "WaitingForServing" | "WaitingForConductor" | "WaitingForRollout" => "Gated",
        "WaitingForOldPods" => "OldPods",
        "WaitingForFence" => "Fencing",
        "BackingOff" => "BackingOff",
        "Suspended" => "Suspended",
        // An attempt has ended in this very decision.
        "Starting" => "Ended",
        _ => "a wait that is not in the table",
    }
}

fn name(action: &Action) -> String {
    let kind = |k: ChildKind| format!("{k:?}");
    match action {
        Action::Create(c) => format!("Create {}", kind(c.kind())),
        Action::Apply(c) => format!("Apply {}", kind(c.kind())),
        Action::Delete(t) => format!("Delete {}", kind(t.kind)),
        Action::DeletePod { force: true, .. } => "DeletePod by force".into(),
        Action::DeletePod { force: false, .. } => "DeletePod".into(),
        Action::Tell(_) => "Tell".into(),
        Action::RequestCheckpoint { then_stop, .. } => {
            if *then_stop {
                "RequestCheckpoint and stop".into()
            } else {
                "RequestCheckpoint".into()
            }
        }
        Action::DeleteSelf { .. } => "DeleteSelf".into(),
        Action::ConfirmGone => "ConfirmGone".into(),
        Action::AddFinalizer(_) => "AddFinalizer".into(),
        Action::RemoveFinalizer(_) => "RemoveFinalizer".into(),
    }
}
