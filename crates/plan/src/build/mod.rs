//! Renders the objects of a run. Pure: the same inputs give the same objects, byte for byte.
//!
//! Names: `JOB-conductor` (StatefulSet, headless Service, ConfigMap) · `JOB-trainer` (headless Service) · `JOB-tN` (Job and
//! ConfigMap of attempt N, and its PodGroup) · a ServingCluster's StatefulSet has its name, its headless Service is `NAME-engines` · a
//! RolloutPool's StatefulSet or DaemonSet has its name, its headless Service is `NAME-workers`.
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

pub use conductor::{conductor_name, conductor_objects, conductor_revisions, run_json};
pub use meta::{Owner, selector_text};
pub use owned::{rollout_pool, serving_cluster, serving_spec};
pub use pool::{pool_objects, workers_service};
pub use serving::{engine_objects, engines_service};
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
/// Key of a token in its Secret.
pub const TOKEN_KEY: &str = "token";

/// Secret with the token of a run, a ServingCluster or a RolloutPool.
pub fn token_secret(owner: &str) -> String {
    format!("{owner}-token")
}
