//! What lives as long as the run: engines, workers, conductor. Nothing here looks at an attempt.

use api::{ServingSuspendPolicy, conditions as cond, labels};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::Pass;
use crate::{Action, Child, ChildKind, NodeState, build, drift, pod_facts};

impl Pass<'_> {
    pub(super) fn children(&mut self) {
        self.serving();
        self.pool();
        let held = self
            .world
            .serving(&self.job.serving_name())
            .and_then(|s| s.status.as_ref())
            .and_then(|s| s.weights.writer.as_ref())
            .is_some_and(|w| w.uid == self.uid);
        // Only the writer may command engines, and a conductor commands them as soon as it lives.
        if held {
            self.conductor();
        }
        self.ensure(Child::Service(Box::new(build::trainer_service(self.job))));
    }

    /// The child of that kind and name, if it is ours.
    fn own(&self, kind: ChildKind, name: &str) -> Option<&Child> {
        self.world
            .children
            .iter()
            .find(|c| c.kind() == kind && c.name() == name && c.label(labels::RLJOB_UID) == Some(self.uid))
    }

    /// Makes the child if it is not there, and brings it up to date if its meaning has changed or somebody has edited it.
    fn ensure(&mut self, child: Child) {
        let action = match self.own(child.kind(), child.name()) {
            None => Some(Action::Create(child)),
            // A later RLJob has written it: what is decided on here is a cache's.
            Some(there) if generation(there) > generation(&child) => None,
            Some(there) => drift::mended(there, child).map(Action::Apply),
        };
        self.actions.extend(action);
    }

    fn conductor(&mut self) {
        let frozen = self.s.frozen.clone().unwrap_or_default();
        for child in build::conductor_objects_of(self.job, &frozen, self.run_json()) {
            self.ensure(child);
        }
        self.lost_conductor();
        self.outlived_tokens();
    }

    /// The conductor was told the tokens of its ServingCluster and RolloutPool when its pod began. One that was deleted and made anew
    /// has another, and takes the old one no more: the conductor begins again and is told the new one.
    fn outlived_tokens(&mut self) {
        let serving = self.world.serving(&self.job.serving_name());
        let pool = self.world.pool(&self.job.rollout_name());
        // Whatever is observed has its token: it is made before anything is decided.
        let serving = serving.filter(|s| s.status.as_ref().is_some_and(|s| s.observed_generation.is_some()));
        let pool = pool.filter(|p| p.status.as_ref().is_some_and(|s| s.observed_generation.is_some()));
        let kinds = [("ServingCluster", serving.map(|s| &s.metadata)), ("RolloutPool", pool.map(|p| &p.metadata))];
        let pods = self.world.pods.iter().filter(|p| pod_facts::role(p) == "conductor");
        for pod in pods.filter(|p| p.metadata.deletion_timestamp.is_none()) {
            let Some(begun) = &pod.metadata.creation_timestamp else { continue };
            let younger = |m: &ObjectMeta| m.creation_timestamp.as_ref().is_some_and(|t| t.0 > begun.0);
            let Some((kind, meta)) = kinds.iter().find_map(|(kind, meta)| Some((kind, meta.filter(|m| younger(m))?)))
            else {
                continue;
            };
            let (name, uid) = (pod_facts::name(pod).to_owned(), pod_facts::uid(pod).to_owned());
            let other = meta.name.as_deref().unwrap_or_default();
            self.event(
                false,
                "ConductorRestarted",
                format!(
                    "{kind} {other} was made anew: {name} knows only the token of the one before, and begins again"
                ),
            );
            self.actions.push(Action::DeletePod { name, uid, force: false });
        }
    }

    /// A conductor's pod on a lost node is deleted by force: its epoch is what keeps the run safe, not its absence.
    fn lost_conductor(&mut self) {
        let lost = self.world.pods.iter().find(|p| {
            pod_facts::role(p) == "conductor"
                && pod_facts::node(p).and_then(|n| self.world.nodes.get(n)).is_some_and(|n| *n != NodeState::Ready)
        });
        let Some(pod) = lost else {
            self.s.conductor_lost_since = None;
            return;
        };
        let (name, uid) = (pod_facts::name(pod).to_owned(), pod_facts::uid(pod).to_owned());
        let since = self.s.conductor_lost_since.get_or_insert(crate::micro(self.now)).0;
        let until = super::later(since, self.settings.lost_node_timeout);
        if self.now >= until {
            self.event(
                true,
                "ConductorForced",
                format!("{name} is on a lost node: deleted by force, its successor has a higher epoch"),
            );
            self.actions.push(Action::DeletePod { name, uid, force: true });
            self.poll();
        } else {
            self.at(until);
        }
    }

    fn serving(&mut self) {
        let name = self.job.serving_name();
        let there = self.world.serving(&name);
        let Some(template) = &self.job.spec.serving.template else {
            return;
        };
        let asleep =
            self.suspended_by_user() && self.job.spec.suspend_policy.serving == ServingSuspendPolicy::ScaleToZero;
        let wanted = if asleep { 0 } else { template.spec.replicas };
        let keep = there
            .filter(|s| {
                s.metadata.annotations.as_ref().and_then(|a| a.get(labels::TEMPLATE_REPLICAS))
                    == Some(&wanted.to_string())
            })
            .map(|s| s.spec.replicas);
        if let Some(mut cluster) = build::serving_cluster(self.job, Some(keep.unwrap_or(wanted))) {
            cluster
                .metadata
                .annotations
                .get_or_insert_default()
                .insert(labels::TEMPLATE_REPLICAS.into(), wanted.to_string());
            self.owned(Child::ServingCluster(Box::new(cluster)));
        }
    }

    fn pool(&mut self) {
        let name = self.job.rollout_name();
        let there = self.world.pool(&name);
        let Some(template) = &self.job.spec.rollout.template else {
            return;
        };
        let wanted = template.spec.replicas.unwrap_or(1);
        let keep = there
            .filter(|p| {
                p.metadata.annotations.as_ref().and_then(|a| a.get(labels::TEMPLATE_REPLICAS))
                    == Some(&wanted.to_string())
            })
            .and_then(|p| p.spec.replicas);
        if let Some(pool) = build::rollout_pool(self.job, keep) {
            self.owned(Child::RolloutPool(Box::new(pool)));
        }
    }

    /// A ServingCluster or RolloutPool made from a template: written at creation and when the template is edited, never else.
    fn owned(&mut self, child: Child) {
        let there = self.world.children.iter().find(|c| c.kind() == child.kind() && c.name() == child.name());
        match there {
            None => self.actions.push(Action::Create(child)),
            // Of another run with our name, on its way out: wait for it, never adopt it.
            Some(c) if c.label(labels::RLJOB_UID) != Some(self.uid) => {
                let message = format!(
                    "{:?} {} belongs to something else: it has to go, or be named by `ref` instead of a template",
                    c.kind(),
                    c.name()
                );
                self.set(cond::ACCEPTED, false, "NameTaken", &message);
                self.wait("NameTaken", message);
                self.poll();
            }
            Some(c)
                if c.annotation(labels::REVISION) == child.annotation(labels::REVISION)
                    && c.annotation(labels::TEMPLATE_REPLICAS) == child.annotation(labels::TEMPLATE_REPLICAS) => {}
            // A later RLJob has written it: what is decided on here is a cache's.
            Some(c) if generation(c) > generation(&child) => self.poll(),
            Some(_) => self.actions.push(Action::Apply(child)),
        }
    }
}

/// Generation of the RLJob that a child was last written from.
fn generation(child: &Child) -> i64 {
    child.annotation(labels::RLJOB_GENERATION).and_then(|n| n.parse().ok()).unwrap_or(0)
}
