//! The end of a run, and of its object.

use api::{Phase, conditions as cond, labels};

use super::Pass;
use crate::{Action, Child, ChildKind, NodeState, build, pod_facts};

impl Pass<'_> {
    /// A terminal run keeps nothing that could command engines: others may claim them.
    pub(super) fn after_the_end(&mut self) {
        if let Some(last) = self.s.attempt.take() {
            // Terminal with an attempt on record: status came from an older writer. The Job is superseded now.
            self.s.attempts = self.s.attempts.max(last.id);
        }
        self.wait("Ended", "the run has ended");
        if self.old_pods_live() {
            self.delete_orphans();
            self.poll();
            return;
        }
        self.remove_conductor();
        self.time_to_live();
    }

    /// What is over is deleted when its time has come.
    fn time_to_live(&mut self) {
        let (Some(seconds), Some(end)) = (self.job.spec.ttl_seconds_after_finished, &self.s.completion_time) else {
            return;
        };
        let until = super::later(end.0, std::time::Duration::from_secs(seconds));
        if self.now >= until {
            self.actions.push(Action::DeleteSelf { uid: self.uid.to_owned() });
        } else {
            self.at(until);
        }
    }

    fn old_pods_live(&self) -> bool {
        self.jobs().next().is_some() || self.trainer_pods().any(|(_, p)| !pod_facts::ended(p) && !self.on_lost_node(p))
    }

    fn on_lost_node(&self, pod: &k8s_openapi::api::core::v1::Pod) -> bool {
        pod_facts::node(pod).and_then(|n| self.world.nodes.get(n)).is_some_and(|n| *n != NodeState::Ready)
    }

    /// Deletes the conductor; true when it is gone.
    fn remove_conductor(&mut self) -> bool {
        let name = build::conductor_name(self.job.metadata.name.as_deref().unwrap_or_default());
        let set = self.world.children.iter().find(|c| {
            c.kind() == ChildKind::StatefulSet && c.name() == name && c.label(labels::RLJOB_UID) == Some(self.uid)
        });
        if let Some(set) = set {
            if set.metadata().deletion_timestamp.is_none() {
                self.actions.push(Action::Delete(set.target(false)));
            }
            return false;
        }
        !self
            .world
            .pods
            .iter()
            .any(|p| pod_facts::role(p) == "conductor" && !pod_facts::ended(p) && !self.on_lost_node(p))
    }

    /// Trainer, then conductor, then the finalizer. Children that are to stay have no ownerReference; the others go with the
    /// object. It never waits for serving.
    pub(super) fn delete(&mut self) {
        self.s.phase = Phase::Terminating;
        if !self.job.metadata.finalizers.iter().flatten().any(|f| f == labels::RLJOB_FINALIZER) {
            return;
        }
        if let Some(a) = self.s.attempt.take() {
            self.s.attempts = self.s.attempts.max(a.id);
        }
        let mut doomed = Vec::new();
        for c in &self.world.children {
            let ours = c.label(labels::RLJOB_UID) == Some(self.uid) && c.metadata().deletion_timestamp.is_none();
            if ours && matches!(c, Child::Job(_)) {
                doomed.push(Action::Delete(c.target(false)));
            }
        }
        self.actions.extend(doomed);
        let live = self.old_pods_live();
        if live {
            self.delete_orphans();
        }
        if live || !self.remove_conductor() {
            self.set(cond::TRAINER_READY, false, "WaitingForOldPods", "waiting for trainer and conductor to end");
            self.poll();
            return;
        }
        if self
            .world
            .listing
            .as_ref()
            .is_some_and(|l| l.jobs.is_empty() && l.pods.iter().all(|p| p.ended || self.listed_on_lost_node(p)))
        {
            self.actions.push(Action::RemoveFinalizer(labels::RLJOB_FINALIZER));
        } else {
            self.actions.push(Action::ConfirmGone);
            self.poll();
        }
    }

    fn listed_on_lost_node(&self, pod: &crate::ListedPod) -> bool {
        pod.node.as_ref().and_then(|n| self.world.nodes.get(n)).is_some_and(|n| *n != NodeState::Ready)
    }
}
