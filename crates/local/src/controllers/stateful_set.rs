//! StatefulSets: stable names, parallel or ordered start, rolling updates down to a partition.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use k8s_openapi::{
    api::{
        apps::v1::{ControllerRevision, StatefulSet, StatefulSetStatus},
        core::v1::{Pod, PodTemplateSpec},
    },
    apimachinery::pkg::{apis::meta::v1::ObjectMeta, util::intstr::IntOrString},
};

use super::{Change, label, pod_of, template_hash};
use crate::{
    objects::{name, owner_reference},
    pod,
};

/// Label with the revision of a pod's template.
pub const REVISION: &str = "controller-revision-hash";

/// Looks at a set, its pods and its former templates: what to do, its new status, and a revision to keep if it is new.
#[must_use]
pub fn reconcile(
    set: &StatefulSet,
    pods: &BTreeMap<&str, &Pod>,
    revisions: &BTreeMap<&str, &ControllerRevision>,
) -> (Vec<Change>, StatefulSetStatus, Option<ControllerRevision>) {
    let mut changes = Vec::new();
    let mut status = set.status.clone().unwrap_or_default();
    let Some(spec) = &set.spec else { return (changes, status, None) };
    if set.metadata.deletion_timestamp.is_some() {
        return (changes, status, None);
    }
    let update = format!("{}-{}", name(set), template_hash(&spec.template));
    let new_revision = (!revisions.contains_key(update.as_str())).then(|| revision(set, &update, &spec.template));
    let current = status
        .current_revision
        .clone()
        .filter(|current| revisions.contains_key(current.as_str()))
        .unwrap_or_else(|| update.clone());
    let replicas = spec.replicas.unwrap_or(1).max(0).unsigned_abs();
    let strategy = spec.update_strategy.as_ref();
    let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
    let partition = rolling.and_then(|rolling| rolling.partition).unwrap_or(0).max(0).unsigned_abs();
    let on_delete = strategy.and_then(|strategy| strategy.type_.as_deref()) == Some("OnDelete");
    let parallel = spec.pod_management_policy.as_deref() == Some("Parallel");
    let at = |ordinal: u32| pods.get(format!("{}-{ordinal}", name(set)).as_str()).copied();

    let mut settled = true;
    for ordinal in 0..replicas {
        match at(ordinal) {
            None => {
                let revision = if ordinal < partition { &current } else { &update };
                let template = template_of(revisions, revision).unwrap_or_else(|| spec.template.clone());
                changes.push(Change::Create(Box::new(pod_at(set, &template, ordinal, revision))));
            }
            // A pod that has ended is replaced whatever its end was: a set has no end.
            Some(pod) if pod::terminal(pod) && pod.metadata.deletion_timestamp.is_none() => {
                changes.push(Change::Delete(name(pod).to_owned()));
            }
            Some(pod) if healthy(pod) => continue,
            Some(_) => {}
        }
        settled = false;
        if !parallel {
            break;
        }
    }
    let mut excess: Vec<(u32, &Pod)> = pods
        .values()
        .filter_map(|pod| Some((ordinal(set, pod)?, *pod)))
        .filter(|(ordinal, pod)| *ordinal >= replicas && pod.metadata.deletion_timestamp.is_none())
        .collect();
    excess.sort_by_key(|(ordinal, _)| std::cmp::Reverse(*ordinal));
    if parallel || settled {
        changes.extend(
            excess
                .iter()
                .take(if parallel { usize::MAX } else { 1 })
                .map(|(_, pod)| Change::Delete(name(*pod).to_owned())),
        );
    }
    if changes.is_empty() && !on_delete {
        let allowed = unavailable_allowed(rolling.and_then(|rolling| rolling.max_unavailable.as_ref()), replicas);
        // From the top down. One that is not well holds the update up, unless replacing it is the update.
        let mut away = (0..replicas).filter(|ordinal| at(*ordinal).is_none_or(|pod| !healthy(pod))).count();
        for ordinal in (partition..replicas).rev() {
            let Some(pod) = at(ordinal) else { continue };
            if label(pod, REVISION) == Some(&update) || pod.metadata.deletion_timestamp.is_some() {
                continue;
            }
            let counted = !healthy(pod);
            if away >= allowed && !counted {
                break;
            }
            changes.push(Change::Delete(name(pod).to_owned()));
            away += usize::from(!counted);
        }
    }

    let count = |wanted: &dyn Fn(&Pod) -> bool| {
        i32::try_from(pods.values().filter(|pod| wanted(pod)).count()).unwrap_or(i32::MAX)
    };
    status.observed_generation = set.metadata.generation;
    status.replicas = count(&|_| true);
    status.ready_replicas = Some(count(&healthy));
    status.available_replicas = status.ready_replicas;
    status.updated_replicas = Some(count(&|pod| label(pod, REVISION) == Some(&update)));
    let wanted = i32::try_from(replicas).unwrap_or(i32::MAX);
    let complete =
        status.updated_replicas == Some(wanted) && status.ready_replicas == Some(wanted) && status.replicas == wanted;
    let current = if complete { update.clone() } else { current };
    status.current_replicas = Some(count(&|pod| label(pod, REVISION) == Some(&current)));
    status.current_revision = Some(current);
    status.update_revision = Some(update);
    (changes, status, new_revision)
}

fn healthy(pod: &Pod) -> bool {
    pod::ready(pod) && pod.metadata.deletion_timestamp.is_none()
}

fn unavailable_allowed(value: Option<&IntOrString>, replicas: u32) -> usize {
    let count = match value {
        Some(IntOrString::Int(count)) => usize::try_from(*count).unwrap_or(1),
        Some(IntOrString::String(text)) => {
            let percent: usize = text.trim_end_matches('%').parse().unwrap_or(0);
            replicas as usize * percent / 100
        }
        None => 1,
    };
    count.max(1)
}

fn ordinal(set: &StatefulSet, pod: &Pod) -> Option<u32> {
    name(pod).strip_prefix(name(set))?.strip_prefix('-')?.parse().ok()
}

fn pod_at(set: &StatefulSet, template: &PodTemplateSpec, ordinal: u32, revision: &str) -> Pod {
    let pod_name = format!("{}-{ordinal}", name(set));
    let labels = [
        ("statefulset.kubernetes.io/pod-name", pod_name.clone()),
        ("apps.kubernetes.io/pod-index", ordinal.to_string()),
        (REVISION, revision.to_owned()),
    ];
    let mut pod = pod_of(set, template, &pod_name, labels);
    if let Some(spec) = &mut pod.spec {
        spec.hostname = Some(pod_name);
        spec.subdomain = set.spec.as_ref().and_then(|spec| spec.service_name.clone());
    }
    pod
}

fn revision(set: &StatefulSet, revision_name: &str, template: &PodTemplateSpec) -> ControllerRevision {
    ControllerRevision {
        metadata: ObjectMeta {
            name: Some(revision_name.into()),
            namespace: set.metadata.namespace.clone(),
            owner_references: Some(vec![owner_reference(set)]),
            ..Default::default()
        },
        data: serde_json::to_value(template).ok().map(RawExtension),
        revision: set.metadata.generation.unwrap_or(1),
    }
}

fn template_of(revisions: &BTreeMap<&str, &ControllerRevision>, revision: &str) -> Option<PodTemplateSpec> {
    let RawExtension(data) = revisions.get(revision)?.data.as_ref()?;
    serde_json::from_value(data.clone()).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    struct World {
        set: StatefulSet,
        pods: BTreeMap<String, Pod>,
        revisions: BTreeMap<String, ControllerRevision>,
    }

    impl World {
        fn new(policy: &str, replicas: i32) -> Self {
            let set = serde_json::from_value(json!({
                "metadata": {"name": "engine", "uid": "set-uid", "generation": 1},
                "spec": {"replicas": replicas, "serviceName": "engines", "podManagementPolicy": policy, "selector": {},
                    "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
                    "template": {"spec": {"containers": [{"name": "engine", "image": "v1"}]}}},
            }))
            .unwrap();
            Self { set, pods: BTreeMap::new(), revisions: BTreeMap::new() }
        }

        /// One turn; deleted pods are gone at once. Returns what was done, in short.
        fn turn(&mut self) -> Vec<String> {
            let (changes, status, revision) = reconcile(
                &self.set,
                &self.pods.iter().map(|(name, pod)| (name.as_str(), pod)).collect(),
                &self.revisions.iter().map(|(name, one)| (name.as_str(), one)).collect(),
            );
            self.set.status = Some(status);
            self.revisions.extend(revision.map(|one| (name(&one).to_owned(), one)));
            changes
                .into_iter()
                .map(|change| match change {
                    Change::Create(pod) => {
                        let text = format!("+{}", name(&*pod));
                        self.pods.insert(name(&*pod).to_owned(), *pod);
                        text
                    }
                    Change::Delete(name) => {
                        self.pods.remove(&name);
                        format!("-{name}")
                    }
                    Change::Release(name) => panic!("{name}: a set has no finalizers"),
                })
                .collect()
        }

        fn all_ready(&mut self) {
            for pod in self.pods.values_mut() {
                pod::set_condition(
                    pod.status.get_or_insert_default(),
                    "Ready",
                    true,
                    None,
                    None,
                    jiff::Timestamp::UNIX_EPOCH,
                );
            }
        }

        fn image(&self, pod: &str) -> &str {
            self.pods[pod].spec.as_ref().unwrap().containers[0].image.as_deref().unwrap()
        }

        fn edit(&mut self, image: &str, partition: i32) {
            let spec = self.set.spec.as_mut().unwrap();
            spec.template.spec.as_mut().unwrap().containers[0].image = Some(image.into());
            spec.update_strategy.as_mut().unwrap().rolling_update.as_mut().unwrap().partition = Some(partition);
        }
    }

    #[test]
    fn parallel_sets_start_and_stop_all_at_once_and_ordered_ones_wait() {
        let mut world = World::new("Parallel", 3);
        assert_eq!(world.turn(), ["+engine-0", "+engine-1", "+engine-2"]);
        let spec = world.pods["engine-1"].spec.as_ref().unwrap();
        assert_eq!((spec.hostname.as_deref(), spec.subdomain.as_deref()), (Some("engine-1"), Some("engines")));
        world.set.spec.as_mut().unwrap().replicas = Some(1);
        assert_eq!(world.turn(), ["-engine-2", "-engine-1"]);

        let mut world = World::new("OrderedReady", 2);
        assert_eq!(world.turn(), ["+engine-0"]);
        assert!(world.turn().is_empty());
        world.all_ready();
        assert_eq!(world.turn(), ["+engine-1"]);
    }

    #[test]
    fn an_update_goes_from_the_top_one_at_a_time_and_waits_for_each() {
        let mut world = World::new("Parallel", 3);
        world.turn();
        world.all_ready();
        assert!(world.turn().is_empty());
        world.edit("v2", 0);
        assert_eq!(world.turn(), ["-engine-2"]);
        assert_eq!(world.turn(), ["+engine-2"]);
        assert!(world.turn().is_empty(), "engine-2 is not ready yet");
        world.all_ready();
        assert_eq!(world.turn(), ["-engine-1"]);
        for _ in 0..4 {
            world.turn();
            world.all_ready();
        }
        assert!(world.turn().is_empty());
        let status = world.set.status.as_ref().unwrap();
        assert_eq!((status.updated_replicas, &status.current_revision), (Some(3), &status.update_revision));
        assert_eq!(world.image("engine-0"), "v2");
    }

    #[test]
    fn a_pod_below_the_partition_comes_back_at_the_old_template() {
        let mut world = World::new("Parallel", 2);
        world.turn();
        world.all_ready();
        world.turn();
        world.edit("v2", 2);
        assert!(world.turn().is_empty());
        world.pods.remove("engine-0");
        assert_eq!(world.turn(), ["+engine-0"]);
        assert_eq!(world.image("engine-0"), "v1");
        world.all_ready();
        world.edit("v2", 1);
        assert_eq!(world.turn(), ["-engine-1"]);
        world.turn();
        assert_eq!((world.image("engine-0"), world.image("engine-1")), ("v1", "v2"));
    }

    #[test]
    fn a_broken_new_revision_stops_the_update_and_a_fixed_one_replaces_it() {
        let mut world = World::new("Parallel", 2);
        world.turn();
        world.all_ready();
        world.turn();
        world.edit("broken", 0);
        world.turn();
        assert_eq!(world.turn(), ["+engine-1"]);
        for _ in 0..3 {
            assert!(world.turn().is_empty(), "engine-0 still serves");
        }
        world.edit("v3", 0);
        assert_eq!(world.turn(), ["-engine-1"]);
    }

    #[test]
    fn a_pod_that_has_ended_is_replaced() {
        let mut world = World::new("Parallel", 1);
        world.turn();
        world.pods.get_mut("engine-0").unwrap().status.get_or_insert_default().phase = Some("Failed".into());
        assert_eq!(world.turn(), ["-engine-0"]);
        assert_eq!(world.turn(), ["+engine-0"]);
    }
}
