//! What the deployment decides, not the user: images, timings. Inputs of `decide`, so that it stays pure and a laptop can use
//! shorter times.

use std::time::Duration;

/// Inputs of `decide` that come from the operator's own configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Images used where the spec names none.
    pub images: Images,
    /// After the first sight of a lost pod: how long to gather evidence before the cause is named. The Job controller deletes
    /// peers within 2 s and pod objects vanish a second after their end.
    pub settle_window: Duration,
    /// A pod that is still there this long after its grace period is stuck, and is reported.
    pub stuck_slack: Duration,
    /// A conductor, engine or worker pod on a lost node is force-deleted after this; epochs and the version ledger make that safe.
    pub lost_node_timeout: Duration,
    /// How often progress is written to status.
    pub progress_interval: Duration,
    /// How soon to look again while something outside the API is waited for (the conductor).
    pub poll_interval: Duration,
    /// How long trainer pods tolerate a not-ready or unreachable node.
    pub node_toleration: Duration,
    /// How long an engine that must end goes on taking requests: endpoints take a while to forget it. It is rendered into engine
    /// pods, so a change of it is a new [`crate::drift::RENDER_VERSION`].
    pub lame_duck: Duration,
    /// Rank 0 ended well and others still run: how long until the missing ends count.
    pub finish_grace: Duration,
}

/// Images used where the spec names none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Images {
    /// Trainer, CPU.
    pub trainer_cpu: String,
    /// Conductor, worker, native engine.
    pub rollout: String,
}

impl Settings {
    /// For a cluster.
    pub fn cluster(images: Images) -> Self {
        Self {
            images,
            settle_window: Duration::from_secs(3),
            stuck_slack: Duration::from_secs(60),
            lost_node_timeout: Duration::from_secs(60),
            progress_interval: Duration::from_secs(15),
            poll_interval: Duration::from_secs(2),
            node_toleration: Duration::from_secs(30),
            lame_duck: Duration::from_secs(5),
            finish_grace: Duration::from_secs(60),
        }
    }

    /// For this machine: the same rules with shorter times, since here every process end is seen at once.
    pub fn laptop() -> Self {
        Self {
            images: Images { trainer_cpu: "thresh-trainer".into(), rollout: "thresh-rollout".into() },
            settle_window: Duration::from_millis(150),
            stuck_slack: Duration::from_secs(5),
            lost_node_timeout: Duration::from_secs(3),
            progress_interval: Duration::ZERO,
            poll_interval: Duration::from_millis(200),
            node_toleration: Duration::from_secs(1),
            // Who asks engines here looks at their pods, not at endpoints that lag behind.
            lame_duck: Duration::ZERO,
            finish_grace: Duration::from_secs(10),
        }
    }
}
