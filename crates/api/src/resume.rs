//! Beginning with what another run has learnt.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// A commit of another run on the same volume. The new run has its own copy from then on; steps are counted on from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResumeFrom {
    /// The other run: `metadata.uid` of its RLJob, and the name of its folder under `runs/` on the volume. Its RLJob may be gone.
    #[schemars(length(max = 63))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')").message("resumeFrom.run must be the uid of a run: lower-case letters, digits and '-'"))]
    pub run: String,
    /// The step that its commit says comes next; when left out, that of its last commit as the new run begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
}
