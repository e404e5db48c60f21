//! Who decides when an attempt's pods may run: a queue, a gang scheduler, priorities.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::defaults;

/// How the pods of an attempt are admitted and placed. An edit takes effect with the next attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Scheduling {
    /// A Kueue LocalQueue of the namespace: each attempt waits in it for its quota. May change only while suspended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')").message("queueName must be lower-case letters, digits, '-' and '.'"))]
    pub queue_name: Option<String>,
    /// Who places all pods of an attempt, or none.
    #[serde(default = "defaults::gang")]
    pub gang: Gang,
    /// Priority class of the first attempt's pods, and of later ones unless `retryPriorityClassName` is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new("self != ''").message("priorityClassName must not be empty"))]
    pub priority_class_name: Option<String>,
    /// Priority class of the pods of every attempt after the first: a run that has begun need not wait behind new ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new("self != ''").message("retryPriorityClassName must not be empty"))]
    pub retry_priority_class_name: Option<String>,
    /// Where the pods of an attempt should be together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<Topology>,
}

/// Who places all pods of an attempt, or none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Gang {
    /// Nobody: pods are placed one by one. An attempt that is not whole in time gives its pods up and tries again.
    #[default]
    None,
    /// Volcano: a PodGroup of `scheduling.volcano.sh/v1beta1`, and its scheduler.
    Volcano,
    /// The coscheduling plugin: a PodGroup of `scheduling.x-k8s.io/v1alpha1`. Name its scheduler in the pod template unless it
    /// is the default one.
    SchedulerPlugins,
}

/// Nodes that are near each other share the value of a label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Topology {
    /// Label of the nodes, such as `topology.kubernetes.io/rack`.
    #[schemars(length(max = 317))]
    #[x_kube(validation = Rule::new("self != ''").message("topology.key must not be empty"))]
    pub key: String,
    /// Whether pods wait until they can be together.
    #[serde(default = "defaults::topology_mode")]
    pub mode: TopologyMode,
}

/// Whether pods wait until they can be together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TopologyMode {
    /// They wait.
    Required,
    /// They do not.
    #[default]
    Preferred,
}
