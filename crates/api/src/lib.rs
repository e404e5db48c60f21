//! The three kinds of `thresh.dev/v1alpha1`: [`RLJob`], [`ServingCluster`] and [`RolloutPool`].
//!
//! What it is: the types, their defaults, the rules the API server checks (CEL), the generated CRDs, the versioned hash of
//! meaning, and a strict reader of manifests that reports every problem it can find at once.
//!
//! What it is **not**: it talks to nothing. It knows no client, no clock and no file; `plan` decides, the operator and
//! `local` act.
//!
//! Invariants:
//! - a field exists only if something acts on it; an unknown field is refused, never ignored;
//! - every default is in [`defaults`]; after [`RLJob::defaulted`] nothing else fills a gap;
//! - the hash of meaning ([`hash`]) changes only when behaviour would: never with the operator's version, the CRD's shape or
//!   a label;
//! - status is written with instants of one clock, the operator's own.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod algorithm;
mod checkpoint;
pub mod conditions;
mod count;
mod crds;
mod data;
pub mod defaults;
pub mod hash;
pub mod labels;
pub mod manifest;
mod model;
mod optimizer;
mod pod;
mod policy;
mod pool;
mod problem;
mod resume;
mod rljob;
mod sampling;
mod scheduling;
mod serving;
mod status;
mod trainer;
pub mod volume;
mod without_nulls;

pub use algorithm::{Algorithm, AlgorithmName, Kl, KlKind, LossReduction, StdKind, Tis};
pub use checkpoint::{Checkpoint, Eval};
pub use count::count;
pub use crds::{crds, definition};
pub use data::{Data, Reward, RewardKind, WarmStart};
pub use model::{Init, InitKind, Model, ModelRef, Storage};
pub use optimizer::{Optimizer, Schedule, ScheduleKind};
pub use pod::{ConductorRole, PodTemplate, TemplateMeta};
pub use policy::{ChildPolicy, DeletionPolicy, Restart, ServingSuspendPolicy, SuspendPolicy};
pub use pool::{
    Placement, PoolTemplate, PoolTemplateSpec, PoolUpdates, RolloutPool, RolloutPoolSpec, RolloutPoolStatus,
    RolloutSource, Worker,
};
pub use problem::{Problem, render};
pub use resume::ResumeFrom;
pub use rljob::{Mode, RLJob, RLJobSpec, StalenessPolicy};
pub use sampling::{Batch, DynamicFilter, Sampling};
pub use scheduling::{Gang, Scheduling, Topology, TopologyMode};
pub use serving::{
    Disruption, Engine, EngineKind, NATIVE_ENGINE_FLAGS, NameRef, OPERATOR_ENGINE_FLAGS, ServingCluster,
    ServingClusterSpec, ServingClusterStatus, ServingSource, ServingTemplate, ServingTemplateSpec, Updates,
    WeightsStatus, Writer,
};
pub use status::{
    AttemptCause, AttemptStatus, CheckpointAsked, Counters, Ending, Frozen, LastAttempt, Outcome, ParallelismStatus,
    Phase, PodEnd, Progress, RLJobStatus, Ranks, RolloutSummary, ServingSummary, SettingsHeld, StopReason, Stopping,
};
pub use trainer::{
    Accelerator, ExitCodes, FailureAction, FailurePolicy, FailureRule, Parallelism, Trainer, UpdatePolicy, UpdateType,
    Vendor,
};
pub use without_nulls::without_nulls;

/// API group of the three kinds.
pub const GROUP: &str = "thresh.dev";
/// API version of the three kinds.
pub const VERSION: &str = "v1alpha1";
/// `apiVersion` of the three kinds.
pub const API_VERSION: &str = "thresh.dev/v1alpha1";
/// `managedBy` of what this operator manages; the same as none.
pub const MANAGER: &str = "thresh.dev/operator";
