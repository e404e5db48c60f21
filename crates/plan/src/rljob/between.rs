//! Between two attempts: the old one must be gone or fenced, the backoff over, and everything a trainer needs there.

use api::{AttemptCause, AttemptStatus, Outcome, ParallelismStatus, conditions as cond};

use super::{Pass, later};
use crate::{Action, NodeState, build, micro, pod_facts};

/// The same words whether a list is awaited or was not empty: a status that alternates would be written at every look.
const OLD_PODS: &str = "making sure that nothing of an earlier attempt is left";

impl Pass<'_> {
    pub(super) fn between(&mut self) {
        let settled = self.old_is_gone();
        if self.job.spec.suspend {
            if settled {
                self.set(cond::SUSPENDED, true, "SuspendedByUser", "no trainer runs; serving is untouched");
            }
            self.wait("Suspended", "set spec.suspend: false to go on");
            return;
        }
        // A trainer that was told to stop ends before anybody hears why; the next attempt would only hear the same.
        if let Some(failure) = self.report().and_then(|r| r.failure.clone()) {
            self.finish(cond::FAILED, "ConductorGaveUp", &failure);
            return;
        }
        let open = self.gates();
        let waited = self.backed_off();
        if settled && open && waited {
            self.number();
        }
    }

    fn backed_off(&mut self) -> bool {
        let Some(t) = self.s.next_retry_time.clone() else { return true };
        if self.now >= t.0 {
            self.s.next_retry_time = None;
            return true;
        }
        let failures = api::count(self.s.counters.failures_since_progress, "failure");
        self.wait("BackingOff", format!("{failures} without a new commit; the next attempt begins at {}", t.0));
        self.at(t.0);
        false
    }

    /// Everything a trainer needs. Each gate says what it waits for; none of them ever fails the run.
    fn gates(&mut self) -> bool {
        let name = self.job.serving_name();
        let Some(serving) = self.world.serving(&name) else {
            self.wait("WaitingForServing", format!("ServingCluster {name} does not exist yet"));
            return false;
        };
        let held = serving.status.as_ref().and_then(|s| s.weights.writer.as_ref()).is_some_and(|w| w.uid == self.uid);
        if !held {
            self.wait("WaitingForClaim", format!("ServingCluster {name} has not given this run the writer's role yet"));
            return false;
        }
        let Some(report) = self.report() else {
            self.wait("WaitingForConductor", "the conductor does not answer yet");
            self.poll();
            return false;
        };
        if let Some(problem) = &report.storage {
            self.wait("WaitingForStorage", problem.as_str());
            self.poll();
            return false;
        }
        let wanted = serving.spec.replicas;
        let needed = needed(wanted, self.job.spec.serving.min_ready_percent);
        if report.engines_ready < needed {
            self.wait(
                "WaitingForServing",
                format!("{} of {wanted} engines are ready, {needed} are needed", report.engines_ready),
            );
            self.poll();
            return false;
        }
        let pool = self.job.rollout_name();
        let Some(there) = self.world.pool(&pool) else {
            self.wait("WaitingForRollout", format!("RolloutPool {pool} does not exist yet"));
            return false;
        };
        let ready = there.status.as_ref().map_or(0, |s| s.ready_replicas).max(report.workers);
        if ready == 0 {
            self.wait("WaitingForRollout", format!("no worker of RolloutPool {pool} is ready"));
            self.poll();
            return false;
        }
        true
    }

    /// True when no pod of any attempt so far may write: a consistent list shows none, or the conductor refuses their epochs.
    fn old_is_gone(&mut self) -> bool {
        let through = self.s.attempts;
        if self.s.gone_through.is_some_and(|g| g >= through) {
            return true;
        }
        if self.fenced(through) {
            return true;
        }
        let state =
            |node: Option<&str>| node.and_then(|n| self.world.nodes.get(n)).copied().unwrap_or(NodeState::Ready);
        // What the cache shows living is certainly not gone; asking can wait.
        let living: Vec<String> = self
            .trainer_pods()
            .filter(|(_, p)| !pod_facts::ended(p) && state(pod_facts::node(p)) == NodeState::Ready)
            .map(|(_, p)| pod_facts::name(p).to_owned())
            .collect();
        if let Some(pod) = living.first() {
            self.wait("WaitingForOldPods", format!("{pod} of an earlier attempt has not ended yet"));
            self.poll();
            self.delete_orphans();
            return false;
        }
        let asked = self.s.fence_asked.is_some_and(|f| f >= through);
        let Some(listing) = &self.world.listing else {
            if asked {
                self.wait_for_fence(through);
            } else {
                self.wait("WaitingForOldPods", OLD_PODS);
            }
            self.actions.push(Action::ConfirmGone);
            self.poll();
            return false;
        };
        let mut left = Vec::new();
        let mut lost = Vec::new();
        for pod in listing.pods.iter().filter(|p| !p.ended) {
            match state(pod.node.as_deref()) {
                NodeState::Ready => left.push(pod.name.clone()),
                NodeState::Unreachable => lost.push(pod.name.clone()),
                NodeState::Gone => {}
            }
        }
        for job in &listing.jobs {
            self.actions.push(Action::Delete(crate::Target {
                kind: crate::ChildKind::Job,
                name: job.name.clone(),
                uid: job.uid.clone(),
                foreground: false,
            }));
            self.s.attempts = self.s.attempts.max(job.attempt);
        }
        if !left.is_empty() || !listing.jobs.is_empty() || self.s.attempts > through {
            self.wait("WaitingForOldPods", OLD_PODS);
            self.poll();
            return false;
        }
        if let Some(pod) = lost.first() {
            if self.s.fence_asked.is_none_or(|f| f < through) {
                self.s.fence_asked = Some(through);
                self.event(
                    true,
                    "Fencing",
                    format!("{pod} may live on, on a lost node: attempts up to {through} will be refused"),
                );
            }
            self.wait_for_fence(through);
            self.poll();
            return false;
        }
        self.s.gone_through = Some(through);
        true
    }

    fn wait_for_fence(&mut self, through: u64) {
        let message = if self.report().is_some() {
            format!("a pod on a lost node may live on; the conductor is being told to refuse attempts up to {through}")
        } else {
            format!(
                "a pod of attempt {through} may live on, on a lost node, and cannot be fenced: the conductor does not answer; \
                 waiting for either"
            )
        };
        self.wait("WaitingForFence", message);
    }

    /// A trainer's pod whose Job is gone and that nobody deletes.
    pub(super) fn delete_orphans(&mut self) {
        let orphans: Vec<Action> = self
            .trainer_pods()
            .filter(|(n, p)| p.metadata.deletion_timestamp.is_none() && !self.jobs().any(|(j, _)| j == *n))
            .map(|(_, p)| Action::DeletePod {
                name: pod_facts::name(p).to_owned(),
                uid: pod_facts::uid(p).to_owned(),
                force: false,
            })
            .collect();
        self.actions.extend(orphans);
    }

    fn fenced(&mut self, through: u64) -> bool {
        if self.s.fenced_through.is_some_and(|f| f >= through) {
            return true;
        }
        let asked = self.s.fence_asked.is_some_and(|f| f >= through);
        if asked && self.settings_are_held() {
            self.s.fenced_through = self.s.fence_asked;
            self.event(true, "StalePodsFenced", format!("attempts up to {through} are refused from now on"));
            return true;
        }
        false
    }

    /// Numbers the next attempt and asks for its children.
    fn number(&mut self) {
        let id = self.s.attempts + 1;
        let t = &self.job.spec.trainer;
        let name = self.job.metadata.name.as_deref().unwrap_or_default();
        let reason = match self.s.last_attempt.as_ref().map(|l| l.outcome) {
            None => AttemptCause::First,
            Some(Outcome::Disrupted | Outcome::Deleted | Outcome::Stopped | Outcome::Preempted) => {
                AttemptCause::Disruption
            }
            Some(Outcome::SpecChange) => AttemptCause::SpecChange,
            Some(Outcome::Suspended) => AttemptCause::Resume,
            Some(Outcome::Requested) => AttemptCause::Token,
            Some(_) => AttemptCause::Failure,
        };
        self.s.attempts = id;
        self.s.attempt = Some(AttemptStatus {
            id,
            job_name: build::job_name(name, id),
            job_uid: None,
            revision: self.wanted_trainer().to_owned(),
            parallelism: ParallelismStatus { dp: t.dp(), tp: t.parallelism.tp },
            nodes: t.nodes,
            reason,
            start_time: Some(micro(self.now)),
            created_time: None,
            released_time: None,
            released_generation: None,
            ready_time: None,
            commits_at_start: self.report().map_or(0, |r| r.commits),
            stopping: None,
            ending: None,
        });
        self.create();
        let desired = t.world_size();
        self.s.ranks = Some(api::Ranks { desired, ready: 0, summary: format!("0/{desired}") });
        if self.job.spec.scheduling.as_ref().is_none_or(|s| s.queue_name.is_none()) {
            self.s.start_time.get_or_insert(micro(self.now));
        }
        self.set(cond::SUSPENDED, false, "Resumed", "");
        self.at(later(self.now, std::time::Duration::from_secs(t.startup_deadline_seconds.into())));
        self.event(
            false,
            "AttemptStarted",
            format!(
                "attempt {id}: dp {} tp {} on {} x {} devices",
                t.dp(),
                t.parallelism.tp,
                t.nodes,
                t.accelerator.per_node
            ),
        );
    }
}

/// `percent` of `wanted`, rounded up, at least one.
fn needed(wanted: u32, percent: u32) -> u32 {
    let n = (u64::from(wanted) * u64::from(percent)).div_ceil(100);
    u32::try_from(n).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::needed;

    #[test]
    fn the_start_gate_rounds_up_and_never_opens_on_nothing() {
        assert_eq!(needed(2, 75), 2);
        assert_eq!(needed(4, 75), 3);
        assert_eq!(needed(4, 1), 1);
        assert_eq!(needed(0, 75), 1);
    }
}
