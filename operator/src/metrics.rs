//! What Prometheus is told. Labels are bounded: kinds, outcomes and verbs; only gauges of a run carry its name.

use prometheus::{
    GaugeVec, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};

/// The operator's metrics.
#[derive(Clone)]
pub struct Metrics {
    /// Time of a reconcile, by kind.
    pub reconcile_seconds: HistogramVec,
    /// Reconciles, by kind and outcome (changed, unchanged, error).
    pub reconciles: IntCounterVec,
    /// Writes to the API server, by kind of object and verb.
    pub writes: IntCounterVec,
    /// Holds the Lease.
    pub leader: IntGauge,
    /// Objects, by kind and phase.
    pub objects: IntGaugeVec,
    /// Failures of a run.
    pub run_failures: IntGaugeVec,
    /// Step a run is at.
    pub run_step: IntGaugeVec,
    /// Failures since progress ÷ those survived.
    pub run_backoff_share: GaugeVec,
    /// Condition Progressing is False although a trainer is ready.
    pub run_stalled: IntGaugeVec,
    /// Condition Available of a ServingCluster.
    pub serving_available: IntGaugeVec,
    /// Attempts fenced.
    pub fences: IntCounter,
    /// The served CRDs lack fields we need.
    pub schema_outdated: IntGauge,
}

impl Metrics {
    /// Registered in `registry`.
    ///
    /// # Errors
    /// When one of the names is taken.
    pub fn new(registry: &Registry) -> prometheus::Result<Self> {
        let per_run = ["namespace", "name"];
        let gauge = |name: &str, help: &str| IntGaugeVec::new(Opts::new(name, help), &per_run);
        let metrics = Self {
            reconcile_seconds: HistogramVec::new(
                HistogramOpts::new("thresh_reconcile_seconds", "Time of a reconcile.").buckets(vec![
                    0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.5, 1.0, 5.0, 30.0,
                ]),
                &["kind"],
            )?,
            reconciles: IntCounterVec::new(
                Opts::new("thresh_reconcile_total", "Reconciles by outcome."),
                &["kind", "outcome"],
            )?,
            writes: IntCounterVec::new(
                Opts::new("thresh_api_writes_total", "Writes to the API server."),
                &["kind", "verb"],
            )?,
            leader: IntGauge::new("thresh_leader", "1 while this process holds the Lease.")?,
            objects: IntGaugeVec::new(Opts::new("thresh_objects", "Objects by phase."), &["kind", "phase"])?,
            run_failures: gauge("thresh_run_failures", "Failures of a run so far.")?,
            run_step: gauge("thresh_run_step", "Step a run is at.")?,
            run_backoff_share: GaugeVec::new(
                Opts::new("thresh_run_backoff_share", "Failures since progress, as a share of those that end the run."),
                &per_run,
            )?,
            run_stalled: gauge("thresh_run_stalled", "1 while a ready trainer makes no progress.")?,
            serving_available: gauge("thresh_serving_available", "1 while enough engines answer.")?,
            fences: IntCounter::new("thresh_fences_total", "Attempts that were fenced.")?,
            schema_outdated: IntGauge::new("thresh_schema_outdated", "1 while the served CRDs lack fields.")?,
        };
        let Self {
            reconcile_seconds,
            reconciles,
            writes,
            leader,
            objects,
            run_failures,
            run_step,
            run_backoff_share,
            run_stalled,
            serving_available,
            fences,
            schema_outdated,
        } = metrics.clone();
        registry.register(Box::new(reconcile_seconds))?;
        registry.register(Box::new(reconciles))?;
        registry.register(Box::new(writes))?;
        registry.register(Box::new(leader))?;
        registry.register(Box::new(objects))?;
        registry.register(Box::new(run_failures))?;
        registry.register(Box::new(run_step))?;
        registry.register(Box::new(run_backoff_share))?;
        registry.register(Box::new(run_stalled))?;
        registry.register(Box::new(serving_available))?;
        registry.register(Box::new(fences))?;
        registry.register(Box::new(schema_outdated))?;
        Ok(metrics)
    }
}
