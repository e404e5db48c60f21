//! Labels, annotations and finalizers. Selectors use only the owner's uid, the role and (trainer) the attempt.

/// Prefix of all of ours; user labels under it are not copied.
pub const PREFIX: &str = "thresh.dev/";
/// Name of the owning RLJob.
pub const RLJOB: &str = "thresh.dev/rljob";
/// Uid of the owning RLJob.
pub const RLJOB_UID: &str = "thresh.dev/rljob-uid";
/// Name of the owning ServingCluster.
pub const SERVING: &str = "thresh.dev/servingcluster";
/// Uid of the owning ServingCluster.
pub const SERVING_UID: &str = "thresh.dev/servingcluster-uid";
/// Name of the owning RolloutPool.
pub const POOL: &str = "thresh.dev/rolloutpool";
/// Uid of the owning RolloutPool.
pub const POOL_UID: &str = "thresh.dev/rolloutpool-uid";
/// `trainer`, `conductor`, `engine` or `worker`.
pub const ROLE: &str = "thresh.dev/role";
/// Number of the trainer attempt.
pub const ATTEMPT: &str = "thresh.dev/attempt";
/// Hash of meaning an object was rendered for.
pub const REVISION: &str = "thresh.dev/revision";
/// Version of the operator's rendering that made an object. What another version rendered is not compared with it.
pub const RENDER_VERSION: &str = "thresh.dev/render-version";
/// The `replicas` an RLJob's template last asked for.
pub const TEMPLATE_REPLICAS: &str = "thresh.dev/template-replicas";
/// Generation of the RLJob that a child of its spec (conductor, ServingCluster, RolloutPool) was last written from: a decision
/// from an older one, of a cache that lags, does not write it.
pub const RLJOB_GENERATION: &str = "thresh.dev/rljob-generation";
/// Kueue's: the LocalQueue a Job waits in.
pub const QUEUE_NAME: &str = "kueue.x-k8s.io/queue-name";
/// Finalizer of an RLJob: the trainer is gone before the object is.
pub const RLJOB_FINALIZER: &str = "thresh.dev/release-claims";
/// Finalizer of a ServingCluster: its engines have drained before the object goes.
pub const SERVING_FINALIZER: &str = "thresh.dev/drain";
/// `"true"` on a ServingCluster: it may be deleted although a run writes to it.
pub const FORCE_DELETE: &str = "thresh.dev/force-delete";
/// Label no node has: what selects it runs nowhere.
pub const PAUSED: &str = "thresh.dev/paused";
/// Index of a pod of an Indexed Job.
pub const JOB_INDEX: &str = "batch.kubernetes.io/job-completion-index";
