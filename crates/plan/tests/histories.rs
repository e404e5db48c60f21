//! Random histories of `rljob::decide`: pods die, specs are edited, the operator crashes between any two of its writes, caches
//! lag, nodes are lost and heal. Whatever happens: at most one unfenced attempt, no write to serving or pool, terminal stays
//! terminal, and when the world is quiet it comes to rest.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod cases;
mod sim;

use api::{Phase, Restart, conditions as cond};
use plan::NodeState;
use proptest::prelude::*;
use sim::Sim;

#[derive(Clone, Debug)]
enum Op {
    Pass,
    /// The operator dies after its status write and so many actions.
    CrashAfter(usize),
    /// The caches are so many looks behind; the object itself may be, too.
    StalePass {
        behind: usize,
        object: bool,
    },
    Settle,
    Run,
    Wait(u32),
    Exit(u32, i32),
    Disrupt(u32, bool),
    DeletePod(u32),
    DeleteJob,
    Node(u32, Option<NodeState>),
    Edit(u8),
    Suspend(bool),
    Token(u8),
    ConductorUp(bool),
    ConductorHolds(bool),
    Checkpoints(bool),
    Ready(bool),
    Linger(bool),
    Commit,
    Finish,
    Cordon(bool),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => Just(Op::Pass),
        3 => (0usize..6).prop_map(Op::CrashAfter),
        3 => (1usize..6, any::<bool>()).prop_map(|(behind, object)| Op::StalePass { behind, object }),
        6 => Just(Op::Settle),
        5 => Just(Op::Run),
        4 => prop_oneof![Just(100u32), Just(2_000), Just(30_000), Just(700_000)].prop_map(Op::Wait),
        4 => (0u32..2, prop_oneof![Just(1), Just(137), Just(75), Just(5), Just(0), Just(143)]).prop_map(|(i, c)| Op::Exit(i, c)),
        1 => (0u32..2).prop_map(|i| Op::Exit(i, 3)),
        2 => (0u32..2, any::<bool>()).prop_map(|(i, m)| Op::Disrupt(i, m)),
        2 => (0u32..2).prop_map(Op::DeletePod),
        1 => Just(Op::DeleteJob),
        3 => (0u32..2, prop_oneof![Just(None), Just(Some(NodeState::Unreachable)), Just(Some(NodeState::Gone))])
            .prop_map(|(i, s)| Op::Node(i, s)),
        3 => (0u8..3).prop_map(Op::Edit),
        2 => any::<bool>().prop_map(Op::Suspend),
        1 => (0u8..3).prop_map(Op::Token),
        2 => any::<bool>().prop_map(Op::ConductorUp),
        1 => any::<bool>().prop_map(Op::ConductorHolds),
        2 => any::<bool>().prop_map(Op::Checkpoints),
        1 => any::<bool>().prop_map(Op::Ready),
        1 => any::<bool>().prop_map(Op::Linger),
        2 => Just(Op::Commit),
        1 => Just(Op::Finish),
        1 => any::<bool>().prop_map(Op::Cordon),
    ]
}

/// What held before and must hold for ever.
#[derive(Default)]
struct Watch {
    complete: bool,
    failed_with: Option<Option<String>>,
    attempts: u64,
}

impl Watch {
    fn look(&mut self, sim: &Sim) {
        let unfenced = sim.unfenced_attempts();
        assert!(unfenced.len() <= 1, "attempts {unfenced:?} may all write");
        assert!(sim.serving_writes() <= 2, "{:?} {:?}", sim.created, sim.applied);
        let Some(s) = &sim.job.status else { return };
        assert!(s.attempts >= self.attempts, "a number was used again");
        self.attempts = s.attempts;
        let complete = cond::is_true(&s.conditions, cond::COMPLETE);
        assert!(complete || !self.complete, "Complete was left");
        self.complete = complete;
        let failed = cond::is_true(&s.conditions, cond::FAILED);
        assert!(!(complete && failed), "both Complete and Failed");
        match (&self.failed_with, failed) {
            (Some(token), false) => {
                assert!(s.restart_token != *token, "Failed was left without a new token");
                self.failed_with = None;
            }
            (None, true) => self.failed_with = Some(s.restart_token.clone()),
            _ => {}
        }
    }
}

fn play(ops: &[Op]) {
    let mut sim = Sim::with_nodes(2);
    sim.job.spec.trainer.failure_policy.base_delay_seconds = 2;
    let edits = [sim.job.spec.optimizer.lr, 1e-4, 2e-4];
    sim.run();
    let mut watch = Watch::default();
    for op in ops {
        match op.clone() {
            Op::Pass => sim.pass(),
            Op::CrashAfter(n) => sim.crash_after(n),
            Op::StalePass { behind, object } => sim.stale_pass(behind, object),
            Op::Settle => sim.settle(),
            Op::Run => sim.run(),
            Op::Wait(ms) => sim.advance_ms(ms.into()),
            Op::Exit(i, code) => {
                if sim.has_pod(i) {
                    sim.exit_pod(i, code);
                }
            }
            Op::Disrupt(i, memory) => {
                if sim.has_pod(i) {
                    sim.disrupt_pod(i, if memory { "TerminationByKubelet" } else { "EvictionByEvictionAPI" });
                }
            }
            Op::DeletePod(i) => {
                if sim.has_pod(i) {
                    sim.delete_pod_by_hand(i);
                }
            }
            Op::DeleteJob => sim.delete_job_by_hand(),
            Op::Node(i, state) => sim.set_node(i, state),
            Op::Edit(n) => sim.edit(|j| j.spec.optimizer.lr = edits[usize::from(n)]),
            Op::Suspend(on) => sim.edit(|j| j.spec.suspend = on),
            Op::Token(n) => sim.edit(|j| j.spec.restart = (n > 0).then(|| Restart { token: n.to_string() })),
            Op::ConductorUp(up) => sim.conductor_up = up,
            Op::ConductorHolds(holds) => sim.conductor_holds = holds,
            Op::Checkpoints(answer) => sim.checkpoints_answer = answer,
            Op::Ready(ready) => sim.pods_ready = ready,
            Op::Linger(linger) => sim.pods_linger = linger,
            Op::Commit => sim.report.commits += 1,
            Op::Finish => {
                // Only a trainer that runs can finish.
                if sim.report.attempt > 0 && sim.has_pod(0) {
                    sim.report.finished = true;
                }
            }
            Op::Cordon(on) => {
                sim.cordoned.clear();
                if on {
                    sim.cordoned.insert("node-0".into());
                }
            }
        }
        watch.look(&sim);
    }
    // Quiet: everything heals, and nothing happens any more.
    sim.calm();
    for _ in 0..6 {
        sim.run_for_ms(300_000);
        watch.look(&sim);
        if matches!(sim.status().phase, Phase::Running | Phase::Complete | Phase::Failed) {
            break;
        }
    }
    let s = sim.status().clone();
    let rest = matches!(s.phase, Phase::Running | Phase::Complete | Phase::Failed);
    assert!(rest, "does not come to rest: {:?} {:?}\n{:?}", s.phase, sim.condition(cond::TRAINER_READY), s);
    if s.phase == Phase::Running {
        assert_eq!(s.attempt.as_ref().unwrap().revision, api::hash::trainer(&sim.job), "the last spec runs");
        assert_eq!(sim.condition(cond::UP_TO_DATE), ("True", "RevisionRunning"));
    }
    let writes = sim.writes;
    for _ in 0..4 {
        sim.pass();
        sim.settle();
        sim.advance_ms(1_000);
        assert!(sim.last_actions.is_empty(), "still acting at rest: {:?}", sim.last_actions);
    }
    assert_eq!(sim.writes, writes, "still writing at rest");
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: std::env::var("THRESH_HISTORIES").ok().and_then(|n| n.parse().ok()).unwrap_or(300),
        max_shrink_iters: 4_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_history_keeps_one_unfenced_attempt_leaves_serving_alone_and_comes_to_rest(ops in prop::collection::vec(op(), 1..60)) {
        play(&ops);
    }
}
