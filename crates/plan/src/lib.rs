//! The operator's brain: validate, decide, build.
//!
//! What it is: pure functions from a spec, an observed [`World`] and an instant to a [`Plan`]. The operator executes plans on
//! Kubernetes, `local` executes the same plans on this machine; there is only one brain.
//!
//! What it is **not**: it does no I/O, reads no clock and keeps nothing between calls. Whatever it must remember is in the
//! object's status, which is written before it is acted on.
//!
//! Invariants of [`rljob::decide`]:
//! - at most one unfenced attempt: attempt N+1 is numbered only when a consistent list shows that N and all before it are gone,
//!   or the conductor refuses them;
//! - nothing that happens to a trainer makes it write to serving or to the pool;
//! - Complete is absolute, Failed leaves only by a new `restart.token`;
//! - when the world is quiet it converges: the same world gives no status and no actions.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod action;
mod applied;
mod backoff;
pub mod build;
mod classify;
pub mod drift;
mod lost;
pub mod pod_facts;
pub mod pool;
pub mod rljob;
mod roll;
pub mod serving;
mod settings;
mod trouble;
pub mod validate;
mod world;

pub use action::{Action, Child, ChildKind, ConductorSettings, Event, GangApi, Plan, Target};
pub use applied::{ApplyError, applied, apply_failed};
pub use classify::last_end;
pub use settings::{Images, Settings};
pub use validate::{check, validate};
pub use world::{
    Conductor, ListedJob, ListedPod, Listing, NodeState, PoolWorld, Quota, Report, ServingWorld, StorageState, World,
    micro,
};

/// `t + d`, at most the end of time.
pub(crate) fn later(t: k8s_openapi::jiff::Timestamp, d: std::time::Duration) -> k8s_openapi::jiff::Timestamp {
    use k8s_openapi::jiff::{SignedDuration, Timestamp};
    SignedDuration::try_from(d).ok().and_then(|d| t.checked_add(d).ok()).unwrap_or(Timestamp::MAX)
}
