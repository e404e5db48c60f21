//! How an edit rolls through a StatefulSet: its `partition` goes down from the top as engines (or workers) come back, so that
//! whatever is evicted below it comes back as it was, however bad the new revision is.
//!
//! The StatefulSet controller replaces pods from the partition on, but not always: one that never became ready counts as
//! unavailable and holds it up, also when replacing that pod is the cure (kubernetes#67250, and again with `maxUnavailable`).
//! So what the partition gives free is deleted by us, and the controller only makes it anew.

use api::labels;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;

use crate::{Action, pod_facts};

/// A roll: what is wanted, and what is there.
pub(crate) struct Roll<'a> {
    pub pods: &'a [Pod],
    /// The StatefulSet as it is, if it is.
    pub set: Option<&'a StatefulSet>,
    pub replicas: u32,
    /// Hash of meaning that is wanted.
    pub revision: &'a str,
    /// Pods that may be away at a time because of the roll.
    pub max_unavailable: u32,
}

/// Label the StatefulSet controller puts on its pods.
const POD_REVISION: &str = "controller-revision-hash";

impl Roll<'_> {
    /// Ordinals below stay as they are.
    ///
    /// From where the partition stands (from the top, for a new meaning) it goes down over
    /// - pods that are at the wanted revision already;
    /// - pods that answer, as long as `max_unavailable` leaves room: what is away, and what was given free and does not answer
    ///   yet, takes of it;
    /// - pods that are away, within what may be unproven: they come back at the new revision, which may be a bad one;
    /// - pods that are there and do not answer. They take nothing away from anybody, so at the beginning all of them go at once
    ///   (a revision that never worked must not hold up its own cure); while the new one has yet to prove itself they go as
    ///   those that are away.
    pub fn partition(&self) -> u32 {
        let Some(set) = self.set else { return 0 };
        let start = if revision_of(&set.metadata.annotations) == Some(self.revision) {
            held(set).unwrap_or(0).min(self.replicas)
        } else {
            self.replicas
        };
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let unproven = count((start..self.replicas).filter(|o| !self.pod(*o).is_some_and(|p| self.proven(p))).count());
        let away = count((0..start).filter(|o| self.pod(*o).is_none_or(|p| leaving(p) || self.fails(p))).count());
        let mut may_follow = self.max_unavailable.saturating_sub(unproven);
        let mut may_take = may_follow.saturating_sub(away);
        let at_the_beginning = unproven == 0;
        let mut at = start;
        while at > 0 {
            let pod = self.pod(at - 1);
            let (updated, answers) = (pod.is_some_and(|p| self.updated(p)), pod.is_some_and(pod_facts::ready));
            let gone = pod.is_none_or(leaving);
            let free = updated || (at_the_beginning && !answers && !gone);
            if !free && (if answers { may_take } else { may_follow }) == 0 {
                break;
            }
            if !updated {
                may_follow = may_follow.saturating_sub(1);
                // What is away was taken account of above.
                may_take = may_take.saturating_sub(u32::from(!gone));
            }
            at -= 1;
        }
        at
    }

    /// Pods that the partition gives free and that are of another revision, once the StatefulSet controller knows both: it would
    /// make them again as they were otherwise.
    pub fn outdated_pods(&self, partition: u32) -> Vec<Action> {
        let Some(set) = self.set.filter(|s| known(s, self.revision) && held(s) == Some(partition)) else {
            return Vec::new();
        };
        let wanted = set.status.as_ref().and_then(|s| s.update_revision.as_deref());
        // Of our revision and not of the set's: made while somebody had edited its template. Those that answer are left to the
        // StatefulSet controller, which replaces them one after the other.
        let strange = |p: &Pod| !pod_facts::ready(p) && label(p, POD_REVISION).is_some_and(|of| Some(of) != wanted);
        let mut old: Vec<_> = self
            .pods
            .iter()
            .filter(|p| ordinal(p).is_some_and(|o| (partition..self.replicas).contains(&o)))
            .filter(|p| !leaving(p) && (!self.updated(p) || strange(p)))
            .collect();
        old.sort_by_key(|p| std::cmp::Reverse(ordinal(p)));
        // Counted anew: one that did not answer when it was given free may answer by now.
        let free = |o: u32, p: &Pod| o >= partition && !pod_facts::ready(p);
        let away = (0..self.replicas)
            .filter(|o| self.pod(*o).is_none_or(|p| leaving(p) || self.fails(p) || free(*o, p)))
            .count();
        let mut may_take = self.max_unavailable.saturating_sub(u32::try_from(away).unwrap_or(u32::MAX));
        old.retain(|p| {
            let answers = pod_facts::ready(p);
            let goes = !answers || may_take > 0;
            may_take = may_take.saturating_sub(u32::from(answers));
            goes
        });
        old.into_iter()
            .map(|p| Action::DeletePod { name: pod_facts::name(p).into(), uid: pod_facts::uid(p).into(), force: false })
            .collect()
    }

    fn pod(&self, at: u32) -> Option<&Pod> {
        self.pods.iter().find(|p| ordinal(p) == Some(at))
    }

    fn updated(&self, pod: &Pod) -> bool {
        revision_of(&pod.metadata.annotations) == Some(self.revision)
    }

    fn proven(&self, pod: &Pod) -> bool {
        self.updated(pod) && pod_facts::ready(pod)
    }

    fn fails(&self, pod: &Pod) -> bool {
        self.updated(pod) && !pod_facts::ready(pod)
    }
}

/// Its partition.
pub(crate) fn held(set: &StatefulSet) -> Option<u32> {
    let strategy = set.spec.as_ref()?.update_strategy.as_ref()?;
    u32::try_from(strategy.rolling_update.as_ref()?.partition?).ok()
}

/// The StatefulSet is of this meaning, and its controller has seen that.
fn known(set: &StatefulSet, revision: &str) -> bool {
    let seen = set.status.as_ref().and_then(|s| s.observed_generation);
    revision_of(&set.metadata.annotations) == Some(revision)
        && seen.is_some()
        && seen >= set.metadata.generation
        && set.metadata.deletion_timestamp.is_none()
}

fn leaving(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

fn label<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

/// Revision among annotations.
pub(crate) fn revision_of(annotations: &Option<std::collections::BTreeMap<String, String>>) -> Option<&str> {
    annotations.as_ref()?.get(labels::REVISION).map(String::as_str)
}

/// Ordinal of a StatefulSet's pod.
pub(crate) fn ordinal(pod: &Pod) -> Option<u32> {
    pod_facts::name(pod).rsplit_once('-').and_then(|(_, n)| n.parse().ok())
}
