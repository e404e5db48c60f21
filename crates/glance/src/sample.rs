//! A run for tests: two attempts, the second one trains.

use api::{
    AttemptStatus, LastAttempt, Outcome, Phase, Progress, RLJob, RLJobStatus, Ranks, RolloutPool, ServingCluster,
    ServingSummary, conditions as cond, labels,
};
use cond::Truth;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use plan::{Settings, build, micro};
use serde_json::json;

use crate::{Facts, Place};

pub struct Sample {
    pub job: RLJob,
    pub serving: Option<ServingCluster>,
    pub pool: Option<RolloutPool>,
    pub pods: Vec<Pod>,
    pub now: Timestamp,
    settings: Settings,
}

impl Sample {
    pub fn new() -> Self {
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let at = |s: i64| now + SignedDuration::from_secs(s);
        let mut job: RLJob = serde_saphyr::from_str(include_str!("../../../examples/quickstart/rljob.yaml")).unwrap();
        job.metadata.name = Some("sort5".into());
        job.metadata.namespace = Some("rl".into());
        job.metadata.uid = Some("u-1".into());
        job.metadata.generation = Some(1);
        job.metadata.creation_timestamp = Some(Time(at(-200)));
        let mut serving = build::serving_cluster(&job, Some(2)).unwrap();
        serving.metadata.uid = Some("u-2".into());
        serving.status = Some(api::ServingClusterStatus { replicas: 2, ready_replicas: 2, ..Default::default() });
        let mut pool = build::rollout_pool(&job, Some(2)).unwrap();
        pool.metadata.uid = Some("u-3".into());
        let mut status = RLJobStatus {
            observed_generation: Some(1),
            phase: Phase::Running,
            attempts: 2,
            attempt: Some(AttemptStatus {
                id: 2,
                job_name: "sort5-t2".into(),
                nodes: 1,
                start_time: Some(micro(at(-60))),
                ready_time: Some(micro(at(-55))),
                ..Default::default()
            }),
            ranks: Some(Ranks { desired: 2, ready: 2, summary: "2/2".into() }),
            serving: Some(ServingSummary { desired: 2, ready: 2, summary: "2/2".into(), ..Default::default() }),
            progress: Some(Progress {
                step: 13,
                total_steps: 50,
                steps: "13/50".into(),
                weight_version: 14,
                commits: 3,
                last_checkpoint_step: Some(12),
                step_time: Some(micro(at(-4))),
                ..Default::default()
            }),
            ..Default::default()
        };
        status.counters.failures = 1;
        for (type_, reason) in [
            (cond::ACCEPTED, "Valid"),
            (cond::CONDUCTOR_READY, "Answering"),
            (cond::SERVING_READY, "AboveMinimum"),
            (cond::ROLLOUT_READY, "AboveMinimum"),
            (cond::TRAINER_READY, "AllRanksReady"),
            (cond::PROGRESSING, "StepAdvanced"),
            (cond::UP_TO_DATE, "RevisionRunning"),
        ] {
            cond::set(&mut status.conditions, type_, Truth::True, reason, "", Some(1), at(-50));
        }
        cond::set(&mut status.conditions, cond::DEGRADED, Truth::False, "AsExpected", "", Some(1), at(-50));
        job.status = Some(status);
        let images = plan::Images { trainer_cpu: "t".into(), rollout: "r".into() };
        let settings = Settings::cluster(images);
        let mut sample = Self { job, serving: Some(serving), pool: Some(pool), pods: Vec::new(), now, settings };
        sample.ended(1, Outcome::Failed);
        sample
    }

    pub fn facts(&self) -> Facts<'_> {
        Facts {
            job: &self.job,
            serving: self.serving.as_ref(),
            pool: self.pool.as_ref(),
            pods: &self.pods,
            now: self.now,
            settings: &self.settings,
            place: Place::Cluster { namespace: "rl" },
        }
    }

    pub fn local(&self) -> Facts<'_> {
        Facts { place: Place::Local { manifest: "rljob.yaml" }, ..self.facts() }
    }

    pub fn status(&mut self) -> &mut RLJobStatus {
        self.job.status.get_or_insert_default()
    }

    pub fn at(&self, seconds: i64) -> Timestamp {
        self.now + SignedDuration::from_secs(seconds)
    }

    pub fn set(&mut self, type_: &str, truth: Truth, reason: &str, message: &str) {
        let at = self.at(-30);
        cond::set(&mut self.status().conditions, type_, truth, reason, message, Some(1), at);
    }

    pub fn wait(&mut self, type_: &str, reason: &str, message: &str) {
        self.set(type_, Truth::False, reason, message);
    }

    pub fn ended(&mut self, id: u64, outcome: Outcome) {
        let end = micro(self.at(-70));
        self.status().last_attempt = Some(LastAttempt {
            id,
            end_time: end,
            outcome,
            exit_code: Some(137),
            rank: Some(1),
            pod_name: Some(format!("sort5-t{id}-1")),
            node_name: Some("node2".into()),
            message: format!("sort5-t{id}-1: killed (SIGKILL)"),
        });
    }

    pub fn backing_off(&mut self) {
        let (end, retry) = (micro(self.at(-10)), micro(self.at(20)));
        self.ended(2, Outcome::Failed);
        let status = self.status();
        status.phase = Phase::Restarting;
        status.attempt = None;
        status.next_retry_time = Some(retry);
        status.last_attempt.as_mut().unwrap().end_time = end;
        self.wait(cond::TRAINER_READY, "BackingOff", "2 failures without a new commit");
    }

    pub fn pod(name: &str, role: &str, attempt: u64, node: &str) -> Pod {
        let index = name.rsplit('-').next().unwrap_or_default();
        serde_json::from_value(json!({
            "metadata": { "name": name, "labels": {
                labels::ROLE: role, labels::ATTEMPT: attempt.to_string(), labels::RLJOB_UID: "u-1",
                labels::JOB_INDEX: index,
            } },
            "spec": { "nodeName": node, "containers": [{"name": role}, {"name": "sidecar"}] },
            "status": { "phase": "Running" },
        }))
        .unwrap()
    }
}
