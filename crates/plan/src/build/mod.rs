//! Renders the objects of a run. Pure: the same inputs give the same objects, byte for byte.
//!
//! Names: `JOB-conductor` (StatefulSet, headless Service, ConfigMap) · `JOB-trainer` (headless Service) · `JOB-tN` (Job and
//! ConfigMap of attempt N, and its PodGroup) · a ServingCluster's StatefulSet has its name, its headless Service and its
//! PodDisruptionBudget are `NAME-engines`, its Service for others is `NAME` · a RolloutPool's StatefulSet or DaemonSet has its
//! name, its headless Service is `NAME-workers`.
//!
//! Pods find each other by `HOSTNAME.SERVICE` within the namespace. Secrets are referred to by name, never made here.

mod conductor;
mod gang;
mod meta;
mod owned;
mod pod;
mod pool;
mod serving;
mod trainer;

pub(crate) use conductor::conductor_objects_of;
pub use conductor::{conductor_name, conductor_objects, run_json};
pub use meta::{Owner, selector_text};
pub use owned::{rollout_pool, serving_cluster, serving_spec};
pub(crate) use pool::replicas as pool_replicas;
pub use pool::{pool_objects, workers_service};
pub(crate) use serving::grace_seconds;
pub use serving::{endpoint, engine_objects, engines_service};
pub use trainer::{attempt_objects, job_name, trainer_service};

/// Port of the conductor.
pub const CONDUCTOR_PORT: u16 = 7070;
/// Port of a worker.
pub const WORKER_PORT: u16 = 7080;
/// Port of a trainer pod's `/livez`, `/readyz`, `/metrics`.
pub const TRAINER_PORT: u16 = 7090;
/// Port the ranks of an attempt meet at.
pub const MASTER_PORT: u16 = 7100;
/// Port of an engine.
pub const ENGINE_PORT: u16 = 30000;
/// Where the volume's root is mounted.
pub const VOLUME: &str = "/thresh/volume";
/// Where a pod's configuration is mounted.
pub const CONFIG: &str = "/etc/thresh";
/// Former templates a StatefulSet keeps (its own ControllerRevisions): what an update has not reached comes back by them.
pub(crate) const REVISIONS_KEPT: i32 = 5;
/// Key of a token in its Secret.
pub const TOKEN_KEY: &str = "token";

/// Secret with the token of a run, a ServingCluster or a RolloutPool.
pub fn token_secret(owner: &str) -> String {
    format!("{owner}-token")
}
