//! What is known of a run when somebody looks.

use api::{RLJob, RLJobStatus, RolloutPool, ServingCluster};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use plan::Settings;

/// A run and what belongs to it, at one instant.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The run.
    pub job: &'a RLJob,
    /// Its engines.
    pub serving: Option<&'a ServingCluster>,
    /// Its workers.
    pub pool: Option<&'a RolloutPool>,
    /// Pods of all roles.
    pub pods: &'a [Pod],
    /// When this was seen.
    pub now: Timestamp,
    /// Delays that the brain keeps.
    pub settings: &'a Settings,
    /// Where it runs.
    pub place: Place<'a>,
}

/// Where a run is, which decides how a person changes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place<'a> {
    /// On a cluster, in that namespace.
    Cluster {
        /// The namespace.
        namespace: &'a str,
    },
    /// On this machine.
    Local {
        /// The manifest it was started with.
        manifest: &'a str,
    },
}

impl<'a> Facts<'a> {
    /// Name of the run.
    pub fn name(&self) -> &'a str {
        self.job.metadata.name.as_deref().unwrap_or_default()
    }

    /// Its status, if the operator has written one.
    pub fn status(&self) -> Option<&'a RLJobStatus> {
        self.job.status.as_ref()
    }

    /// A command of ours about this run.
    pub fn ours(&self, command: &str) -> String {
        let name = self.name();
        let (verb, flags) = command.split_once(' ').map_or((command, String::new()), |(v, f)| (v, format!(" {f}")));
        match self.place {
            Place::Cluster { namespace } => format!("kubectl thresh {verb} {name} -n {namespace}{flags}"),
            Place::Local { .. } => format!("thresh {verb} {name}{flags}"),
        }
    }

    /// A change of the spec, given as a path and a value.
    pub fn edit(&self, path: &str, value: &str) -> String {
        match self.place {
            Place::Cluster { namespace } => {
                let patch = path.split('.').rev().fold(value.to_owned(), |inner, key| format!("{{\"{key}\":{inner}}}"));
                let name = self.name();
                format!("kubectl patch rljob {name} -n {namespace} --type merge -p '{patch}'")
            }
            Place::Local { manifest } => format!("set {path}: {value} in {manifest}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::sample::Sample;

    #[test]
    fn what_a_person_may_do_is_a_whole_command_or_a_line_of_the_manifest() {
        let sample = Sample::new();
        let patch = "kubectl patch rljob sort5 -n rl --type merge -p '{\"spec\":{\"suspend\":false}}'";
        assert_eq!(sample.facts().edit("spec.suspend", "false"), patch);
        assert_eq!(sample.local().edit("spec.suspend", "false"), "set spec.suspend: false in rljob.yaml");
        assert_eq!(sample.facts().ours("logs --role engine"), "kubectl thresh logs sort5 -n rl --role engine");
        assert_eq!(sample.local().ours("events"), "thresh events sort5");
    }
}
