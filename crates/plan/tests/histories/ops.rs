//! What may happen to a run.

use api::{ExitCodes, FailureAction, FailureRule, Gang as GangKind, Restart, ServingSuspendPolicy, UpdateType};
use plan::{Child, ChildKind, NodeState, StorageState};

use crate::rng::Rng;
use crate::sim::{MEMORY, Sim, Stale};

#[derive(Clone, Copy, Debug)]
pub enum Op {
    /// One decision, executed.
    Pass,
    /// The operator dies after its status write and so many actions.
    Crash(usize),
    /// One decision over what was true some changes ago.
    Stale(Stale),
    /// Controllers and kubelets do their part.
    Settle,
    /// Decisions until nothing changes.
    Run,
    /// Milliseconds pass.
    Wait(i64),
    /// The operator's clock is set.
    Clock(i64),
    Exit(u32, i32),
    Disrupt(u32, &'static str),
    DeletePod(u32),
    /// A hand deletes the Job, with its pods or without.
    DeleteJob {
        orphan: bool,
    },
    /// A node is lost, gone, or heals. The conductor is on the third.
    Node(u32, Option<NodeState>),
    /// The trainer is edited.
    Edit(u8),
    /// The template of the engines is edited.
    EditServing(u32),
    /// Somebody deletes the engines, and somebody else may take their name.
    LoseServing(bool),
    Valid(bool),
    Update(UpdateType, u32),
    Limit(u32),
    Rules(u8),
    ProgressDeadline(u32),
    ActiveDeadline(Option<u64>),
    Suspend(bool),
    Sleep(ServingSuspendPolicy),
    Token(u8),
    Delete,
    ConductorUp(bool),
    ConductorHolds(bool),
    Checkpoints {
        answered: bool,
        then_stops: bool,
    },
    Ready(bool),
    Linger(bool),
    Engines(Option<u32>),
    Workers(bool),
    Storage(Option<StorageState>),
    Writer(bool),
    Step,
    Commit,
    /// The run is done, says its journal.
    Finish,
    /// The conductor gives the run up, or no longer does.
    GiveUp(bool),
    Cordon(bool),
    /// Another version of the operator takes over.
    Upgrade,
    /// Attempts wait in a queue; only before the first, since a living run refuses it.
    Queued {
        open: bool,
    },
    /// The queue lets go what waits in it.
    QueueOpen(bool),
    /// What it says of the attempt.
    Quota(u8),
    /// It takes the quota back.
    Preempt,
    /// A gang scheduler places the pods of the next attempts.
    Gang(GangKind),
    Ttl(Option<u64>),
}

/// Seeds below this are histories without a queue.
pub const PLAIN: u64 = 10_000;

/// The history of a seed.
pub fn history(seed: u64) -> Vec<Op> {
    let mut rng = Rng::new(seed);
    let rng = &mut rng;
    let mut ops = Vec::new();
    let queued = seed >= PLAIN;
    if queued {
        ops.push(Op::Queued { open: rng.coin() });
    }
    // Most begin with a run that trains; the others see it come up.
    if rng.below(4) > 0 {
        ops.push(Op::Run);
    }
    for _ in 0..1 + rng.below(40) {
        ops.push(if queued && rng.below(6) == 0 { queue_op(rng) } else { op(rng) });
    }
    ops
}

fn queue_op(rng: &mut Rng) -> Op {
    match rng.below(7) {
        0 | 1 => Op::QueueOpen(rng.coin()),
        2 => Op::Quota(u8::try_from(rng.below(4)).unwrap()),
        3 => Op::Gang(rng.of(&[GangKind::None, GangKind::Volcano])),
        4 => Op::Ttl(rng.of(&[None, Some(0), Some(60)])),
        _ => Op::Preempt,
    }
}

fn op(rng: &mut Rng) -> Op {
    match rng.below(100) {
        0..10 => Op::Pass,
        10..15 => Op::Crash(rng.below(6)),
        15..20 => Op::Stale(Stale { behind: 1 + rng.below(5), object: rng.coin(), report: rng.coin() }),
        20..30 => Op::Settle,
        30..40 => Op::Run,
        40..47 => Op::Wait(rng.of(&[40, 100, 2_000, 12_000, 70_000, 700_000])),
        47 => Op::Clock(rng.of(&[-3_600_000, -1_000, 1_000, 60_000, 3_600_000])),
        48..55 => {
            let index = u32::try_from(rng.below(2)).unwrap();
            Op::Exit(index, rng.of(&[0, 0, 1, 1, 1, 3, 4, 5, 75, 137, 143]))
        }
        55..58 => Op::Disrupt(
            u32::try_from(rng.below(2)).unwrap(),
            rng.of(&["EvictionByEvictionAPI", "PreemptionByScheduler", MEMORY]),
        ),
        58..60 => Op::DeletePod(u32::try_from(rng.below(2)).unwrap()),
        60 => Op::DeleteJob { orphan: rng.coin() },
        61..65 => {
            let index = u32::try_from(rng.below(3)).unwrap();
            Op::Node(
                index,
                rng.of(&[None, Some(NodeState::Unreachable), Some(NodeState::Unreachable), Some(NodeState::Gone)]),
            )
        }
        65..69 => Op::Edit(u8::try_from(rng.below(3)).unwrap()),
        69 => match rng.below(3) {
            0 => Op::EditServing(16 + u32::try_from(rng.below(3)).unwrap()),
            1 => Op::LoseServing(rng.coin()),
            _ => Op::Upgrade,
        },
        70 => Op::Valid(rng.coin()),
        71..73 => {
            let kinds = [UpdateType::CheckpointThenRestart, UpdateType::Immediate, UpdateType::OnNextFailure];
            Op::Update(rng.of(&kinds), rng.of(&[0, 60, 900]))
        }
        73 => Op::Limit(rng.of(&[0, 1, 2, 6])),
        74 => Op::Rules(u8::try_from(rng.below(4)).unwrap()),
        75 => Op::ProgressDeadline(rng.of(&[0, 60])),
        76 => Op::ActiveDeadline(rng.of(&[None, Some(600)])),
        77..80 => Op::Suspend(rng.coin()),
        80 => Op::Sleep(rng.of(&[ServingSuspendPolicy::Keep, ServingSuspendPolicy::ScaleToZero])),
        81..83 => Op::Token(u8::try_from(rng.below(3)).unwrap()),
        83 => match rng.below(3) {
            0 => Op::Delete,
            1 => Op::GiveUp(rng.coin()),
            _ => Op::Cordon(rng.coin()),
        },
        84..87 => Op::ConductorUp(rng.coin()),
        87 => Op::ConductorHolds(rng.coin()),
        88..90 => Op::Checkpoints { answered: rng.coin(), then_stops: rng.coin() },
        90 => Op::Ready(rng.coin()),
        91 => Op::Linger(rng.coin()),
        92 => Op::Engines(rng.of(&[None, Some(0), Some(1)])),
        93 => Op::Workers(rng.coin()),
        94 => Op::Storage(rng.of(&[
            None,
            Some(StorageState::Bound),
            Some(StorageState::Pending),
            Some(StorageState::Missing),
        ])),
        95 => Op::Writer(rng.coin()),
        96 => Op::Step,
        97..99 => Op::Commit,
        _ => Op::Finish,
    }
}

impl Op {
    /// Does it, where it can be done; decisions are left to the caller.
    pub fn happen(self, sim: &mut Sim) {
        match self {
            Op::Pass | Op::Crash(_) | Op::Stale(_) | Op::Run => {}
            Op::Settle => sim.settle(),
            Op::Wait(ms) => sim.advance_ms(ms),
            Op::Clock(ms) => sim.set_clock_ms(ms),
            Op::Exit(i, code) if sim.has_pod(i) => sim.exit_pod(i, code),
            Op::Disrupt(i, reason) if sim.has_pod(i) => sim.disrupt_pod(i, reason),
            Op::DeletePod(i) if sim.has_pod(i) => sim.delete_pod_by_hand(i),
            Op::Exit(..) | Op::Disrupt(..) | Op::DeletePod(_) => {}
            Op::DeleteJob { orphan: false } => sim.delete_job_by_hand(),
            Op::DeleteJob { orphan: true } => sim.orphan_pods_by_hand(),
            Op::Node(i, state) => sim.set_node(i, state),
            Op::Edit(n) => sim.edit(|j| j.spec.optimizer.lr = [5e-4, 1e-4, 2e-4][usize::from(n)]),
            Op::EditServing(n) => sim.edit(|j| {
                if let Some(t) = &mut j.spec.serving.template {
                    t.spec.engine.max_running_requests = n;
                }
            }),
            Op::LoseServing(taken) => lose_serving(sim, taken),
            Op::Valid(valid) => sim.edit(|j| {
                let bad = serde_json::json!({ "spec": { "nodeSelctor": { "a": "b" } } });
                j.spec.trainer.pod_template = (!valid).then_some(api::PodTemplate(bad));
            }),
            Op::Update(kind, seconds) => sim.edit(|j| {
                j.spec.trainer.update_policy.type_ = kind;
                j.spec.trainer.update_policy.checkpoint_timeout_seconds = seconds;
            }),
            Op::Limit(n) => sim.edit(|j| j.spec.trainer.failure_policy.backoff_limit = n),
            Op::Rules(n) => sim.edit(|j| j.spec.trainer.failure_policy.rules = rules(n)),
            Op::ProgressDeadline(s) => sim.edit(|j| j.spec.trainer.progress_deadline_seconds = s),
            Op::ActiveDeadline(s) => sim.edit(|j| j.spec.active_deadline_seconds = s),
            Op::Suspend(on) => sim.edit(|j| j.spec.suspend = on),
            Op::Sleep(policy) => sim.edit(|j| j.spec.suspend_policy.serving = policy),
            Op::Token(n) => sim.edit(|j| j.spec.restart = (n > 0).then(|| Restart { token: n.to_string() })),
            Op::Delete => sim.delete(),
            Op::ConductorUp(up) => sim.conductor_up = up,
            Op::ConductorHolds(holds) => sim.conductor_holds = holds,
            Op::Checkpoints { answered, then_stops } => {
                sim.checkpoints_answer = answered;
                sim.stops_itself = then_stops;
            }
            Op::Ready(ready) => sim.pods_ready = ready,
            Op::Linger(linger) => sim.pods_linger = linger,
            Op::Engines(n) => sim.engines_ready = n,
            Op::Workers(ready) => sim.workers_ready = ready,
            Op::Storage(state) => sim.storage = state,
            Op::Writer(other) => sim.writer = other.then(|| ("other".to_owned(), "uid-other".to_owned())),
            Op::Step => sim.report.step += 1,
            Op::Commit => sim.report.commits += 1,
            // Only a trainer that runs can finish.
            Op::Finish => sim.report.finished |= sim.report.attempt > 0 && sim.has_pod(0),
            Op::GiveUp(on) => sim.report.failure = on.then(|| "a pass rate of 0".to_owned()),
            Op::Queued { open } if sim.job.status.is_none() => {
                scheduling(sim, |s| s.queue_name = Some("research".into()));
                sim.queue_open = open;
            }
            Op::Queued { .. } => {}
            Op::QueueOpen(open) => sim.queue_open = open,
            Op::Quota(n) => {
                let says =
                    |reserved, reason: &str| plan::Quota { reserved, reason: reason.into(), message: "m".into() };
                sim.quota =
                    [None, Some(says(true, "")), Some(says(false, "Pending")), Some(says(false, "Inadmissible"))]
                        [usize::from(n)]
                    .clone();
            }
            Op::Preempt => sim.preempt(),
            Op::Gang(kind) => scheduling(sim, |s| s.gang = kind),
            Op::Ttl(seconds) => sim.edit(|j| j.spec.ttl_seconds_after_finished = seconds),
            Op::Cordon(on) => {
                sim.cordoned.clear();
                sim.cordoned.extend(on.then(|| "node-0".to_owned()));
            }
            Op::Upgrade => {
                sim.settings.images = plan::Images { trainer_cpu: "trainer:2".into(), rollout: "rollout:2".into() }
            }
        }
    }
}

fn scheduling(sim: &mut Sim, f: impl FnOnce(&mut api::Scheduling)) {
    sim.edit(|j| f(j.spec.scheduling.get_or_insert_default()));
}

fn lose_serving(sim: &mut Sim, taken: bool) {
    let Some(i) = sim.children.iter().position(|c| c.kind() == ChildKind::ServingCluster) else { return };
    let Child::ServingCluster(mut cluster) = sim.children.remove(i) else { return };
    if taken {
        cluster.metadata.labels = None;
        cluster.metadata.uid = Some("uid-of-another".into());
        sim.children.push(Child::ServingCluster(cluster));
    }
}

fn rules(n: u8) -> Vec<FailureRule> {
    let by_code = |code, action| FailureRule {
        on_exit_codes: Some(ExitCodes { values: vec![code] }),
        on_disruption: None,
        action,
    };
    match n {
        0 => vec![],
        1 => vec![by_code(1, FailureAction::RestartTrainerUncounted)],
        2 => vec![by_code(137, FailureAction::FailJob), by_code(3, FailureAction::RestartTrainer)],
        _ => vec![FailureRule { on_exit_codes: None, on_disruption: Some(true), action: FailureAction::FailJob }],
    }
}
