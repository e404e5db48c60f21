//! Rules of `rljob::decide`, one test each, named for the rule.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod cases;
mod sim;

use api::{AttemptCause, Outcome, Phase, conditions as cond};
use k8s_openapi::jiff;
use plan::{Action, Child, ChildKind, NodeState, World};
use sim::Sim;

#[test]
fn a_new_job_comes_up_in_order_engines_and_workers_then_the_claim_then_the_conductor_then_the_trainer() {
    let mut sim = Sim::new();
    sim.run();
    assert_eq!(
        sim.created,
        [
            "ServingCluster sort5-grpo-serving",
            "RolloutPool sort5-grpo-rollout",
            "Service sort5-grpo-trainer",
            "ConfigMap sort5-grpo-conductor",
            "Service sort5-grpo-conductor",
            "StatefulSet sort5-grpo-conductor",
            "ConfigMap sort5-grpo-t1",
            "Job sort5-grpo-t1",
        ]
    );
    assert_eq!(sim.status().phase, Phase::Running);
    let a = sim.status().attempt.clone().unwrap();
    assert_eq!((a.id, a.reason), (1, AttemptCause::First));
    assert_eq!((a.parallelism.dp, a.parallelism.tp), (2, 1));
}

#[test]
fn a_quiet_world_gives_no_status_and_no_actions() {
    let mut sim = Sim::new();
    sim.run();
    let before = sim.writes;
    for _ in 0..5 {
        sim.pass();
        sim.advance_ms(1000);
    }
    assert_eq!(sim.writes, before, "status was written although nothing happened");
    assert!(sim.last_actions.is_empty(), "{:?}", sim.last_actions);
}

#[test]
fn what_a_hand_deletes_or_changes_of_the_runs_long_lived_children_is_restored() {
    let mut sim = Sim::new();
    sim.run();
    for kind in [ChildKind::ConfigMap, ChildKind::Service, ChildKind::StatefulSet] {
        for name in ["sort5-grpo-conductor", "sort5-grpo-trainer"] {
            let Some(i) = sim.children.iter().position(|c| c.kind() == kind && c.name() == name) else { continue };
            let before = sim.children[i].to_json();
            match &mut sim.children[i] {
                Child::ConfigMap(c) => c.data.as_mut().unwrap().get_mut("rljob.json").unwrap().push(' '),
                Child::Service(s) => s.spec.as_mut().unwrap().selector = None,
                Child::StatefulSet(s) => s.spec.as_mut().unwrap().replicas = Some(0),
                other => panic!("{:?}", other.kind()),
            }
            sim.pass();
            let there = |sim: &Sim| {
                let c = sim.children.iter().find(|c| c.kind() == kind && c.name() == name).map(Child::to_json);
                c.map(|c| (c["spec"].clone(), c["data"].clone()))
            };
            let wanted = Some((before["spec"].clone(), before["data"].clone()));
            assert_eq!(there(&sim), wanted, "{kind:?} {name} was changed");
            sim.children.retain(|c| c.kind() != kind || c.name() != name);
            sim.pass();
            assert_eq!(there(&sim), wanted, "{kind:?} {name} was deleted");
        }
    }
    assert_eq!(sim.status().attempts, 1, "the trainer knows nothing of it");
}

#[test]
fn the_number_is_written_before_the_attempts_first_child_exists() {
    // The simulated API server asserts it at every creation of a Job; here it is made to happen.
    let mut sim = Sim::new();
    sim.run();
    sim.exit_pod(0, 1);
    sim.run_for_ms(60_000);
    assert_eq!(sim.created.iter().filter(|c| c.starts_with("Job")).count(), 2);
}

#[test]
fn a_decision_from_a_stale_object_never_brings_a_superseded_attempt_back() {
    let mut sim = Sim::new();
    sim.run();
    // The object as it was when attempt 1 had been numbered and its Job was not yet seen.
    let mut stale = sim.job.clone();
    stale.status.as_mut().unwrap().attempt.as_mut().unwrap().job_uid = None;
    sim.report.commits += 1;
    sim.exit_pod(0, 1);
    sim.run_for_ms(60_000);
    assert_eq!(sim.status().attempts, 2);
    let mut world = sim.world();
    world.children.retain(|c| c.kind() != ChildKind::Job);
    world.pods.clear();
    // The last is what a look at the API server itself finds: the object as it is now, which is not the one decided on.
    let now = plan::Listing::default().at(sim.job.metadata.resource_version.clone());
    assert!(now.is_of(&sim.job) && !now.is_of(&stale));
    for listing in [None, Some(plan::Listing::default()), Some(now)] {
        world.listing = listing;
        let plan = plan::rljob::decide(&stale, &world, sim.now, &sim.settings);
        let creates = plan.actions.iter().any(|a| matches!(a, Action::Create(plan::Child::Job(_))));
        assert!(
            !creates || plan.status.is_some(),
            "a creation must go with a status write, which is refused for a stale object"
        );
    }
}

#[test]
fn an_operator_that_dies_after_every_write_still_makes_the_job() {
    let mut sim = Sim::new();
    for _ in 0..200 {
        sim.life_of_one_write();
        sim.settle();
        sim.advance_ms(1_000);
    }
    assert_eq!(sim.created.iter().filter(|c| c.starts_with("Job")).count(), 1, "{:?}", sim.created);
    let attempt = sim.status().attempt.clone().unwrap();
    assert_eq!((attempt.id, attempt.job_uid.is_some()), (1, true));
}

#[test]
fn a_job_that_an_earlier_life_asked_for_is_made_without_another_status_write_only_when_nobody_wrote_since() {
    let mut sim = Sim::new();
    sim.run();
    let Some(attempt) = sim.job.status.as_mut().and_then(|s| s.attempt.as_mut()) else { panic!("no attempt") };
    attempt.job_uid = None;
    let mut world = sim.world();
    world.children.retain(|c| c.kind() != ChildKind::Job);
    world.pods.retain(|p| plan::pod_facts::role(p) != "trainer");
    sim.advance_ms(60_000);
    let mut created = |version: Option<String>| {
        world.listing = Some(plan::Listing::default().at(version));
        let plan = plan::rljob::decide(&sim.job, &world, sim.now, &sim.settings);
        assert!(plan.actions.iter().any(|a| matches!(a, Action::Create(plan::Child::Job(_)))));
        plan.status.and_then(|s| s.attempt).and_then(|a| a.created_time).is_some_and(|t| t.0 == sim.now)
    };
    assert!(created(None), "what was not asked is not known");
    assert!(created(Some("of another".into())));
    assert!(!created(sim.job.metadata.resource_version.clone()), "the status that is there is the one that allows it");
}

#[test]
fn no_attempt_begins_before_enough_engines_are_ready() {
    let mut sim = Sim::new();
    sim.engines_ready = Some(1);
    sim.run();
    assert!(sim.status().attempt.is_none());
    assert_eq!(sim.condition(cond::TRAINER_READY), ("False", "WaitingForServing"));
    sim.engines_ready = None;
    sim.run();
    assert!(sim.status().attempt.is_some());
}

#[test]
fn a_failed_trainer_never_writes_to_serving_or_pool() {
    let mut sim = Sim::new();
    sim.run();
    let before = sim.serving_writes();
    for _ in 0..4 {
        sim.exit_pod(0, 1);
        sim.run_for_ms(120_000);
    }
    assert_eq!(sim.status().attempts, 5);
    assert_eq!(sim.serving_writes(), before);
    assert_eq!(sim.count(ChildKind::StatefulSet), 1, "the conductor is not made again either");
}

#[test]
fn exit_codes_are_classified_by_contract() {
    for (code, outcome, failures) in
        [(1, Outcome::Failed, 1), (137, Outcome::Failed, 1), (75, Outcome::Stopped, 0), (5, Outcome::Failed, 1)]
    {
        let mut sim = Sim::new();
        sim.run();
        sim.exit_pod(0, code);
        sim.run();
        let s = sim.status();
        let last = s.last_attempt.clone().unwrap();
        assert_eq!((last.id, last.outcome, last.exit_code), (1, outcome, Some(code)), "exit {code}");
        assert_eq!(s.counters.failures, failures, "exit {code}");
    }
}

#[test]
fn exit_3_fails_the_run_and_only_a_new_token_leads_out() {
    let mut sim = Sim::new();
    sim.run();
    sim.exit_pod(0, 3);
    sim.run();
    assert_eq!(sim.status().phase, Phase::Failed);
    assert_eq!(sim.condition(cond::FAILED), ("True", "FailJobRule"));
    sim.run_for_ms(3_600_000);
    assert_eq!(sim.status().attempts, 1, "terminal stays terminal");
    assert_eq!(sim.count(ChildKind::StatefulSet), 0, "a failed run keeps nothing that commands engines");
    sim.edit(|j| j.spec.total_steps = 60);
    sim.run();
    assert_eq!(sim.status().phase, Phase::Failed, "an edit alone does not lead out");
    sim.edit(|j| j.spec.restart = Some(api::Restart { token: "again".into() }));
    sim.run();
    assert_eq!(sim.status().attempts, 2);
    assert_eq!(sim.status().phase, Phase::Running);
    assert_eq!(sim.status().counters.failures_since_progress, 0);
}

#[test]
fn complete_is_absolute() {
    let mut sim = Sim::new();
    sim.run();
    sim.report.finished = true;
    sim.exit_pod(0, 0);
    sim.run();
    assert_eq!(sim.status().phase, Phase::Complete);
    sim.edit(|j| {
        j.spec.restart = Some(api::Restart { token: "again".into() });
        j.spec.total_steps = 500;
        j.spec.trainer.parallelism = api::Parallelism { tp: 2, dp: None };
    });
    sim.children.retain(|c| !matches!(c.kind(), ChildKind::Job));
    sim.run_for_ms(600_000);
    assert_eq!((sim.status().phase, sim.status().attempts), (Phase::Complete, 1));
}

#[test]
fn exit_0_without_a_journaled_end_is_a_failure_but_silence_is_not() {
    let mut sim = Sim::new();
    sim.run();
    sim.conductor_up = false;
    sim.exit_pod(0, 0);
    sim.run_for_ms(600_000);
    assert!(sim.status().attempt.is_some(), "the conductor's silence is no reason to fail");
    sim.conductor_up = true;
    sim.run();
    assert_eq!(sim.status().last_attempt.clone().unwrap().outcome, Outcome::Failed);
}

#[test]
fn a_conductor_that_falls_silent_after_the_journaled_end_changes_nothing_of_it() {
    let mut sim = Sim::new();
    sim.run();
    sim.report.finished = true;
    sim.pass();
    sim.conductor_up = false;
    sim.run_for_ms(60_000);
    assert!(sim.status().attempt.is_some(), "its ranks still run, and nobody has seen them end");
    sim.conductor_up = true;
    sim.run();
    assert_eq!((sim.status().phase, sim.last_outcome()), (Phase::Complete, Outcome::Complete));
}

#[test]
fn evidence_is_gathered_from_its_first_sight_even_when_the_end_was_journaled_before() {
    let mut sim = Sim::with_nodes(2);
    sim.run();
    sim.report.finished = true;
    sim.pass();
    sim.conductor_up = false;
    sim.advance_ms(1_000);
    sim.exit_pod(0, 1);
    sim.pass();
    assert!(sim.status().attempt.is_some(), "why rank 0 failed may not be known yet");
    sim.disrupt_pod(1, "EvictionByEvictionAPI");
    sim.run();
    assert_eq!(sim.last_outcome(), Outcome::Disrupted);
}

#[test]
fn backoff_grows_without_new_commits_and_a_commit_clears_it() {
    let mut sim = Sim::new();
    sim.job.spec.trainer.failure_policy =
        api::FailurePolicy { base_delay_seconds: 10, max_delay_seconds: 600, backoff_limit: 20, rules: vec![] };
    sim.run();
    let mut delays = Vec::new();
    for n in 1..=4u64 {
        let from = sim.now;
        sim.exit_pod(0, 1);
        sim.run();
        while sim.status().attempts == n {
            sim.advance_ms(500);
            sim.run();
        }
        delays.push(sim.now.duration_since(from).as_millis());
    }
    assert!(delays[0] >= 10_000 && delays.windows(2).all(|w| w[1] > w[0] * 3 / 2), "{delays:?}");
    sim.report.commits += 1;
    sim.run();
    assert_eq!(sim.status().counters.failures_since_progress, 0);
    let from = sim.now;
    sim.exit_pod(0, 1);
    sim.run();
    assert_eq!(sim.status().attempts, 6, "a commit since the attempt began: no wait");
    assert!(sim.now.duration_since(from).as_millis() < 10_000);
    assert_eq!(sim.status().counters.failures_since_progress, 1);
}

#[test]
fn a_restart_without_a_new_commit_waits_whatever_its_cause() {
    let mut sim = Sim::new();
    sim.job.spec.trainer.failure_policy.base_delay_seconds = 10;
    sim.run();
    sim.disrupt_pod(0, "EvictionByEvictionAPI");
    sim.run();
    assert_eq!(sim.status().attempts, 1);
    assert_eq!(sim.condition(cond::TRAINER_READY), ("False", "BackingOff"));
    assert_eq!(sim.status().counters.failures_since_progress, 0, "a disruption is not counted");
    sim.run_for_ms(12_000);
    assert_eq!(sim.status().attempts, 2);
}

#[test]
fn too_many_failures_in_a_row_fail_the_run_and_name_the_rank() {
    let mut sim = Sim::new();
    sim.job.spec.trainer.failure_policy.backoff_limit = 2;
    sim.run();
    for _ in 0..3 {
        sim.exit_pod(0, 1);
        sim.run_for_ms(120_000);
    }
    assert_eq!(sim.status().phase, Phase::Failed);
    assert_eq!(sim.condition(cond::FAILED), ("True", "BackoffLimitExceeded"));
    let last = sim.status().last_attempt.clone().unwrap();
    assert_eq!((last.id, last.rank, last.exit_code), (3, Some(0), Some(1)));
    assert_eq!(last.pod_name.as_deref(), Some("sort5-grpo-t3-0"));
}

#[test]
fn a_limit_of_0_means_one_attempt() {
    let mut sim = Sim::new();
    sim.job.spec.trainer.failure_policy.backoff_limit = 0;
    sim.run();
    sim.exit_pod(0, 1);
    sim.run_for_ms(120_000);
    assert_eq!((sim.status().phase, sim.status().attempts), (Phase::Failed, 1));
}

#[test]
fn disruptions_deletions_and_memory_are_told_apart() {
    let mut sim = Sim::with_nodes(2);
    sim.run();
    sim.disrupt_pod(1, "PreemptionByScheduler");
    sim.exit_pod(0, 1);
    sim.run();
    assert_eq!(sim.last_outcome(), Outcome::Disrupted, "the peer's crash is explained by the eviction");
    assert_eq!(sim.status().counters.disruptions, 1);

    let mut sim = Sim::with_nodes(2);
    sim.run();
    sim.delete_pod_by_hand(1);
    sim.pass();
    sim.exit_pod(0, 5);
    sim.exit_pod(1, 137);
    sim.run();
    assert_eq!(sim.last_outcome(), Outcome::Deleted);
    assert_eq!((sim.status().counters.failures, sim.status().counters.disruptions), (0, 1));

    let mut sim = Sim::with_nodes(2);
    sim.run();
    sim.disrupt_pod(1, "TerminationByKubelet");
    sim.run();
    assert_eq!(sim.last_outcome(), Outcome::OutOfMemory);
    assert_eq!(sim.status().counters.failures, 1);
}

#[test]
fn the_first_rank_to_fail_is_named_not_the_last_to_complain() {
    let mut sim = Sim::with_nodes(3);
    sim.run();
    sim.exit_pod(2, 1);
    sim.advance_ms(50);
    sim.exit_pod(0, 5);
    sim.advance_ms(50);
    sim.exit_pod(1, 1);
    sim.run();
    assert_eq!(sim.status().last_attempt.clone().unwrap().rank, Some(2));
}

#[test]
fn one_dead_rank_of_two_ends_the_attempt_after_the_settle_window() {
    let mut sim = Sim::with_nodes(2);
    sim.run();
    sim.exit_pod(1, 1);
    sim.pass();
    assert!(sim.status().attempt.is_some(), "evidence is gathered first");
    assert_eq!(sim.status().phase, Phase::Restarting);
    sim.run_for_ms(200);
    assert_eq!(sim.status().last_attempt.clone().unwrap().id, 1);
    sim.run_for_ms(60_000);
    assert_eq!(sim.status().attempts, 2);
    assert_eq!(sim.count(ChildKind::Job), 1);
}

#[test]
fn an_edit_of_parallelism_saves_first_and_restarts_the_trainer_alone() {
    let mut sim = Sim::new();
    sim.run();
    let before = sim.serving_writes();
    sim.edit(|j| j.spec.trainer.parallelism = api::Parallelism { tp: 2, dp: None });
    sim.checkpoints_answer = false;
    sim.run();
    assert_eq!(sim.condition(cond::UP_TO_DATE), ("False", "CheckpointRequested"));
    assert_eq!(sim.count(ChildKind::Job), 1, "the old trainer runs until it has saved");
    assert_eq!(sim.status().attempts, 1);
    sim.checkpoints_answer = true;
    sim.run();
    let s = sim.status();
    assert_eq!((s.attempts, s.counters.spec_restarts, s.counters.failures), (2, 1, 0));
    assert_eq!(s.attempt.clone().unwrap().parallelism, api::ParallelismStatus { dp: 1, tp: 2 });
    assert_eq!(sim.condition(cond::UP_TO_DATE), ("True", "RevisionRunning"));
    assert_eq!(sim.serving_writes(), before);
}

#[test]
fn a_checkpoint_that_does_not_come_is_waited_for_until_its_deadline_only() {
    let mut sim = Sim::new();
    sim.job.spec.trainer.update_policy.checkpoint_timeout_seconds = 60;
    sim.run();
    sim.checkpoints_answer = false;
    sim.edit(|j| j.spec.optimizer.lr = 1e-4);
    sim.run_for_ms(50_000);
    assert_eq!(sim.status().attempts, 1);
    sim.run_for_ms(30_000);
    assert_eq!(sim.status().attempts, 2);
}

#[test]
fn edits_in_quick_succession_converge_to_the_last_with_one_new_attempt() {
    let mut sim = Sim::new();
    sim.run();
    sim.checkpoints_answer = false;
    for lr in [1e-4, 2e-4, 3e-4] {
        sim.edit(|j| j.spec.optimizer.lr = lr);
        sim.pass();
        sim.pass();
    }
    sim.checkpoints_answer = true;
    sim.run();
    assert_eq!(sim.status().attempts, 2);
    assert_eq!(sim.status().attempt.clone().unwrap().revision, api::hash::trainer(&sim.job));
}

#[test]
fn an_edit_that_is_reverted_in_time_restarts_nothing() {
    let mut sim = Sim::new();
    sim.run();
    sim.checkpoints_answer = false;
    let old = sim.job.spec.clone();
    sim.edit(|j| j.spec.optimizer.lr = 1e-4);
    sim.run();
    sim.edit(|j| j.spec = old.clone());
    sim.checkpoints_answer = true;
    sim.run_for_ms(60_000);
    assert_eq!((sim.status().attempts, sim.status().counters.spec_restarts), (1, 0));
    assert_eq!(sim.status().phase, Phase::Running);
}

#[test]
fn live_fields_reach_the_conductor_and_restart_nothing() {
    let mut sim = Sim::new();
    sim.run();
    let told = sim.told.len();
    sim.edit(|j| {
        j.spec.total_steps = 77;
        j.spec.checkpoint.keep = 5;
        j.spec.trainer.failure_policy.backoff_limit = 9;
        j.spec.eval = Some(api::Eval { every_steps: 5, prompts: 16 });
    });
    sim.run();
    assert_eq!(sim.status().attempts, 1);
    assert_eq!(sim.told.len(), told + 1, "told once");
    assert_eq!(sim.told.last().unwrap().spec["totalSteps"], 77);
    assert!(sim.told.windows(2).all(|w| w[0].number < w[1].number));
}

#[test]
fn an_edit_waits_for_the_next_failure_if_it_is_told_to() {
    let mut sim = Sim::new();
    sim.job.spec.trainer.update_policy.type_ = api::UpdateType::OnNextFailure;
    sim.run();
    sim.edit(|j| j.spec.optimizer.lr = 1e-4);
    sim.run_for_ms(60_000);
    assert_eq!(sim.status().attempts, 1);
    assert_eq!(sim.condition(cond::UP_TO_DATE), ("False", "RestartPending"));
    assert!(sim.status().pending_revision.is_some());
    sim.exit_pod(0, 1);
    sim.run_for_ms(60_000);
    assert_eq!(sim.status().attempts, 2);
    assert_eq!(sim.condition(cond::UP_TO_DATE), ("True", "RevisionRunning"));
}

#[test]
fn suspend_saves_stops_pauses_and_resume_is_a_new_uncounted_attempt() {
    let mut sim = Sim::new();
    sim.run();
    let before = sim.serving_writes();
    sim.edit(|j| j.spec.suspend = true);
    sim.run();
    assert_eq!(sim.status().phase, Phase::Suspended);
    assert_eq!(sim.condition(cond::SUSPENDED), ("True", "SuspendedByUser"));
    assert_eq!(sim.count(ChildKind::Job), 0);
    assert!(sim.requests.iter().any(|(_, stop)| *stop), "the trainer saves, then stops");
    assert!(sim.told.last().unwrap().paused);
    sim.edit(|j| j.spec.suspend = false);
    sim.run();
    let s = sim.status();
    assert_eq!((s.attempts, s.phase, s.counters.failures), (2, Phase::Running, 0));
    assert_eq!(s.attempt.clone().unwrap().reason, AttemptCause::Resume);
    assert!(!sim.told.last().unwrap().paused);
    assert_eq!(sim.serving_writes(), before);
}

#[test]
fn a_job_made_suspended_makes_no_trainer() {
    let mut sim = Sim::new();
    sim.job.spec.suspend = true;
    sim.run();
    assert_eq!((sim.status().phase, sim.status().attempts), (Phase::Suspended, 0));
    sim.edit(|j| j.spec.suspend = false);
    sim.run();
    assert_eq!(sim.status().phase, Phase::Running);
}

#[test]
fn a_pod_on_a_lost_node_is_fenced_before_the_next_attempt() {
    let mut sim = Sim::with_nodes(2);
    sim.run();
    sim.set_node(1, Some(NodeState::Unreachable));
    sim.report.commits += 1;
    sim.conductor_holds = false;
    sim.run_for_ms(60_000);
    assert_eq!(sim.status().attempts, 1, "not fenced yet");
    assert_eq!(sim.condition(cond::TRAINER_READY), ("False", "WaitingForFence"));
    sim.conductor_holds = true;
    sim.run();
    assert_eq!(sim.told.last().unwrap().fence_attempts_up_to, 1);
    assert_eq!(sim.status().attempts, 2);
    assert_eq!(sim.status().last_attempt.clone().unwrap().outcome, Outcome::Disrupted);
    assert_eq!(sim.status().fenced_through, Some(1));
}

#[test]
fn an_unreachable_conductor_cannot_fence_so_the_run_waits_and_says_so() {
    let mut sim = Sim::with_nodes(2);
    sim.run();
    sim.set_node(1, Some(NodeState::Unreachable));
    sim.conductor_up = false;
    sim.run_for_ms(300_000);
    assert_eq!(sim.status().attempts, 1);
    let said = cond::get(&sim.status().conditions, cond::TRAINER_READY).unwrap().message.clone();
    assert!(said.contains("conductor does not answer"), "{said}");
}

#[test]
fn ranks_that_gave_up_a_silent_peer_are_a_disruption_once_its_node_is_known_to_be_lost() {
    let mut sim = Sim::with_nodes(2);
    sim.run();
    // Our own heartbeats are quicker than the node controller: for now the other pod looks as well as ever.
    sim.exit_pod(0, 5);
    sim.pass();
    let mut world = sim.world();
    let after = |ms: i64| sim.now + jiff::SignedDuration::from_millis(ms);
    let decide = |world: &World, ms| {
        let status = plan::rljob::decide(&sim.job, world, after(ms), &sim.settings).status;
        status.unwrap_or_else(|| sim.status().clone())
    };
    let waiting = decide(&world, 1_000);
    assert!(waiting.attempt.is_some(), "the cause is not guessed: {:?}", waiting.last_attempt);
    // Nobody ever says why: it counts, but it does not hang.
    let never = decide(&world, 60_000);
    assert_eq!(never.last_attempt.map(|l| l.outcome), Some(Outcome::Failed));
    assert_eq!(never.counters.failures, 1);
    world.nodes.insert("node-1".into(), NodeState::Unreachable);
    let lost = decide(&world, 1_000);
    assert_eq!(lost.last_attempt.map(|l| l.outcome), Some(Outcome::Disrupted));
    assert_eq!((lost.counters.failures, lost.counters.disruptions), (0, 1));
}

#[test]
fn a_node_that_is_gone_needs_no_fence() {
    let mut sim = Sim::with_nodes(2);
    sim.run();
    sim.set_node(1, Some(NodeState::Gone));
    sim.report.commits += 1;
    sim.run_for_ms(60_000);
    assert_eq!(sim.status().attempts, 2);
    assert_eq!(sim.status().fence_asked, None);
}

#[test]
fn old_pods_on_a_healthy_node_are_waited_for() {
    let mut sim = Sim::new();
    sim.pods_linger = true;
    sim.run();
    sim.report.commits += 1;
    sim.edit(|j| j.spec.optimizer.lr = 1e-4);
    sim.run_for_ms(60_000);
    assert_eq!(sim.status().attempts, 1);
    assert_eq!(sim.condition(cond::TRAINER_READY), ("False", "WaitingForOldPods"));
    assert_eq!(sim.condition(cond::DEGRADED), ("True", "OldPodsStuck"));
    sim.pods_linger = false;
    sim.run();
    assert_eq!(sim.status().attempts, 2);
}

#[test]
fn a_hand_deleted_job_is_confirmed_and_replaced_uncounted() {
    let mut sim = Sim::new();
    sim.run();
    sim.report.commits += 1;
    sim.delete_job_by_hand();
    sim.run_for_ms(5_000);
    let s = sim.status();
    assert_eq!((s.attempts, s.counters.failures, s.counters.disruptions), (2, 0, 1));
}

#[test]
fn a_stale_cache_without_the_job_does_not_end_the_attempt() {
    let mut sim = Sim::new();
    sim.run();
    sim.hide_jobs = true;
    sim.run_for_ms(10_000);
    assert_eq!(sim.status().attempts, 1, "absence in a cache is not absence");
    sim.hide_jobs = false;
    sim.run();
    assert_eq!((sim.status().attempts, sim.status().phase), (1, Phase::Running));
}

#[test]
fn a_number_used_by_the_store_or_by_a_child_is_never_used_again() {
    let mut sim = Sim::new();
    sim.report.attempt = 7;
    sim.run();
    assert_eq!(sim.status().attempt.clone().unwrap().id, 8);
    // Status is lost: the living Job is unknown now, and superseded.
    sim.report.attempt = 0;
    sim.job.status = None;
    sim.run();
    assert_eq!(sim.status().attempt.clone().unwrap().id, 9);
    assert_eq!(sim.count(ChildKind::Job), 1);
}

#[test]
fn a_trainer_that_does_not_come_up_counts_as_a_failure_and_says_why() {
    let mut sim = Sim::new();
    sim.job.spec.trainer.startup_deadline_seconds = 100;
    sim.pods_ready = false;
    sim.run_for_ms(99_000);
    assert_eq!(sim.status().phase, Phase::Starting);
    sim.run_for_ms(3_000);
    let last = sim.status().last_attempt.clone().unwrap();
    assert_eq!(last.outcome, Outcome::StartupDeadline);
    assert!(last.message.contains("100 s"), "{}", last.message);
    assert_eq!(sim.status().counters.failures, 1);
}

#[test]
fn a_trainer_without_progress_is_restarted_only_if_asked() {
    let mut sim = Sim::new();
    sim.run_for_ms(3_600_000);
    assert_eq!(sim.status().attempts, 1);
    sim.edit(|j| j.spec.trainer.progress_deadline_seconds = 60);
    sim.run_for_ms(1_000);
    assert_eq!(sim.last_outcome(), Outcome::NoProgress);
}

#[test]
fn the_runs_own_deadline_fails_it() {
    let mut sim = Sim::new();
    sim.job.spec.active_deadline_seconds = Some(600);
    sim.run_for_ms(590_000);
    assert_eq!(sim.status().phase, Phase::Running);
    sim.run_for_ms(20_000);
    assert_eq!(sim.condition(cond::FAILED), ("True", "DeadlineExceeded"));
    assert_eq!(sim.count(ChildKind::Job), 0);
}

#[test]
fn a_run_whose_time_is_over_begins_nothing_in_the_pass_that_says_so() {
    let mut sim = Sim::new();
    sim.job.spec.active_deadline_seconds = Some(600);
    sim.run();
    sim.exit_pod(0, 1);
    sim.run();
    assert!(sim.status().attempt.is_none(), "backing off");
    let made = sim.created.len();
    sim.advance_ms(700_000);
    sim.pass();
    assert_eq!((sim.status().phase, sim.status().attempts), (Phase::Failed, 1));
    assert_eq!(sim.created.len(), made, "the Job of a next attempt is made although the run has failed");
}

#[test]
fn a_run_that_is_done_is_complete_however_late_its_ranks_end() {
    let mut sim = Sim::new();
    sim.job.spec.active_deadline_seconds = Some(600);
    sim.run();
    sim.advance_ms(595_000);
    sim.report.finished = true;
    sim.pass();
    sim.advance_ms(6_000);
    sim.pass();
    sim.advance_ms(6_000);
    sim.pass();
    assert_eq!(sim.status().phase, Phase::Complete);
}

#[test]
fn a_run_its_conductor_gives_up_fails_with_the_reason() {
    let mut sim = Sim::new();
    sim.run();
    sim.report.failure = Some("the warm start ended with a pass rate of 0".into());
    sim.run();
    assert_eq!(sim.status().phase, Phase::Failed);
    assert!(cond::get(&sim.status().conditions, cond::FAILED).unwrap().message.contains("pass rate"));
}

#[test]
fn a_second_run_is_told_who_holds_the_engines() {
    let mut sim = Sim::new();
    sim.writer = Some(("other".into(), "uid-other".into()));
    sim.run();
    assert_eq!(sim.condition(cond::ACCEPTED), ("False", "ClaimDenied"));
    assert!(cond::get(&sim.status().conditions, cond::ACCEPTED).unwrap().message.contains("other"));
    assert_eq!(sim.count(ChildKind::StatefulSet), 0, "no conductor may command engines that another run holds");
    sim.writer = None;
    sim.run();
    assert_eq!(sim.status().phase, Phase::Running);
}

#[test]
fn an_invalid_spec_touches_nothing_and_says_what_to_do() {
    let mut sim = Sim::new();
    sim.run();
    let (made, told) = (sim.created.len(), sim.told.len());
    sim.edit(|j| {
        let misspelt = serde_json::json!({ "spec": { "nodeSelctor": { "a": "b" } } });
        j.spec.trainer.pod_template = Some(api::PodTemplate(misspelt));
        j.spec.restart = Some(api::Restart { token: "again".into() });
    });
    sim.run_for_ms(10_000);
    assert_eq!(sim.told.len(), told, "the conductor is not told of what is not valid");
    assert_eq!(sim.condition(cond::ACCEPTED), ("False", "InvalidSpec"));
    assert_eq!((sim.created.len(), sim.count(ChildKind::Job), sim.status().attempts), (made, 1, 1));
    sim.edit(|j| {
        j.spec.trainer.pod_template = None;
        j.spec.restart = None;
    });
    sim.run();
    assert_eq!((sim.status().phase, sim.status().attempts), (Phase::Running, 1));
}

#[test]
fn a_deleted_job_takes_its_trainer_and_conductor_along_and_never_waits_for_serving() {
    let mut sim = Sim::new();
    sim.run();
    sim.delete();
    sim.run();
    assert_eq!(sim.status().phase, Phase::Terminating);
    assert_eq!((sim.count(ChildKind::Job), sim.count(ChildKind::StatefulSet)), (0, 0));
    assert_eq!(sim.count(ChildKind::ServingCluster), 1);
    assert!(sim.finalizers().is_empty());
}

#[test]
fn pods_that_a_hand_left_without_their_job_do_not_outlive_the_run() {
    for deleted in [true, false] {
        let mut sim = Sim::with_nodes(2);
        sim.run();
        sim.orphan_pods_by_hand();
        if deleted {
            sim.delete();
        } else {
            sim.report.finished = true;
        }
        sim.run_for_ms(60_000);
        assert_eq!(sim.pods.len(), 0, "deleted: {deleted}");
        assert_eq!(sim.finalizers().is_empty(), deleted);
    }
}

#[test]
fn an_edit_of_the_template_reaches_serving_but_its_own_count_stands() {
    let mut sim = Sim::new();
    sim.run();
    sim.scale_serving(7);
    sim.run();
    assert_eq!(sim.serving_replicas(), 7, "an autoscaler owns the count");
    sim.edit(|j| j.spec.serving.template.as_mut().unwrap().spec.engine.max_running_requests = 32);
    sim.run();
    assert_eq!(sim.serving_replicas(), 7);
    assert_eq!(sim.status().attempts, 1, "the trainer is not restarted");
    sim.edit(|j| j.spec.serving.template.as_mut().unwrap().spec.replicas = 3);
    sim.run();
    assert_eq!(sim.serving_replicas(), 3);
}

#[test]
fn a_new_operator_with_other_images_and_settings_restarts_nothing() {
    let mut sim = Sim::new();
    sim.run();
    let (made, writes) = (sim.created.len(), sim.writes);
    sim.settings.images = plan::Images { trainer_cpu: "new/trainer:2".into(), rollout: "new/rollout:2".into() };
    sim.run_for_ms(10_000);
    assert_eq!((sim.created.len(), sim.applied.len()), (made, 0));
    assert_eq!(sim.writes, writes);
}

#[test]
fn a_run_that_advances_writes_status_no_more_often_than_the_interval() {
    let mut sim = Sim::new();
    sim.settings.progress_interval = std::time::Duration::from_secs(15);
    sim.run();
    sim.advance_ms(20_000);
    sim.run();
    let before = sim.writes;
    for n in 0..60 {
        sim.report.step = n;
        sim.report.weight_version = n;
        sim.report.min_weight_version = Some(n);
        sim.report.inflight = n;
        sim.pass();
        sim.advance_ms(1_000);
    }
    assert!(sim.writes - before <= 5, "{} writes in a minute", sim.writes - before);
    assert_eq!(sim.status().attempts, 1);
}

#[test]
fn a_superseded_job_is_deleted_on_sight() {
    let mut sim = Sim::new();
    sim.run();
    let stray = {
        let mut c = sim.children.iter().find(|c| c.kind() == ChildKind::Job).unwrap().clone();
        c.metadata_mut().name = Some("sort5-grpo-t0".into());
        c.metadata_mut().uid = Some("stray".into());
        c.metadata_mut().labels.as_mut().unwrap().insert(api::labels::ATTEMPT.into(), "0".into());
        c
    };
    sim.children.push(stray);
    sim.pass();
    assert!(
        sim.last_actions.iter().any(|a| matches!(a, Action::Delete(t) if t.uid == "stray")),
        "{:?}",
        sim.last_actions
    );
}

#[test]
fn effects_of_edits_agree_with_the_hash_that_decides_them() {
    use plan::validate::{Effect, edits};
    let base = cases::job();
    for (what, pointer, value) in cases::JOB {
        let new: api::RLJob = cases::patched(&base, pointer, value);
        if pointer.starts_with("/metadata") || !plan::validate(Some(&base), &new).is_empty() {
            continue;
        }
        let found = edits(&base, &new);
        let says = found.iter().any(|e| e.effect == Effect::RestartsTrainer && !e.path.starts_with("spec.restart"));
        assert_eq!(says, plan::validate::restarts_trainer(&base, &new), "{what}: {found:?}");
        assert!(found.iter().all(|e| e.effect != Effect::Refused), "{what}: {found:?}");
    }
    let new: api::RLJob = cases::patched(&base, "/spec/sampling/temperature", "0.7");
    assert_eq!(
        edits(&base, &new).iter().map(|e| (e.path.as_str(), e.effect)).collect::<Vec<_>>(),
        [("spec.sampling.temperature", Effect::Refused)]
    );
}

#[test]
fn a_volume_that_takes_nothing_costs_no_attempt_and_is_named() {
    let mut sim = Sim::new();
    sim.job.spec.trainer.progress_deadline_seconds = 60;
    sim.run();
    sim.report.storage = Some("the trainer, writing tiles: no space left".into());
    sim.run_for_ms(3_600_000);
    assert_eq!(sim.condition(cond::PROGRESSING), ("False", "WaitingForStorage"));
    assert_eq!(
        (sim.status().attempts, sim.status().counters.failures),
        (1, 0),
        "an hour without progress is nobody's fault"
    );
    // Should the trainer end all the same, its successor waits for the volume.
    sim.exit_pod(0, 1);
    sim.run_for_ms(600_000);
    assert_eq!(sim.condition(cond::TRAINER_READY), ("False", "WaitingForStorage"));
    assert_eq!(sim.status().attempts, 1);
    sim.report.storage = None;
    sim.run_for_ms(5_000);
    assert_eq!(sim.status().attempts, 2);
    assert_eq!(sim.status().phase, Phase::Running);
}

#[test]
fn why_a_trainer_was_told_to_stop_is_heard_before_another_begins() {
    let mut sim = Sim::new();
    sim.run();
    sim.exit_pod(0, 75);
    sim.run();
    assert_eq!(sim.status().attempts, 1, "it is not known yet why");
    sim.report.failure = Some("the pass rate is 0".into());
    sim.run_for_ms(60_000);
    assert_eq!((sim.status().phase, sim.status().attempts), (Phase::Failed, 1));
    assert_eq!(sim.condition(cond::FAILED), ("True", "ConductorGaveUp"));
}

fn queued() -> Sim {
    let mut sim = Sim::new();
    sim.job.spec.scheduling = Some(api::Scheduling { queue_name: Some("research".into()), ..Default::default() });
    sim
}

#[test]
fn an_attempt_waits_in_its_queue_without_a_deadline_and_says_so() {
    let mut sim = queued();
    sim.job.spec.trainer.startup_deadline_seconds = 100;
    sim.job.spec.active_deadline_seconds = Some(7200);
    sim.queue_open = false;
    sim.run_for_ms(86_400_000);
    assert_eq!((sim.status().phase, sim.status().attempts), (Phase::Queued, 1));
    assert_eq!(sim.condition(cond::QUOTA_RESERVED), ("False", "Queued"));
    assert_eq!(sim.condition(cond::SUSPENDED), ("True", "SuspendedByQueue"));
    assert_eq!(sim.condition(cond::TRAINER_READY), ("False", "Queued"));
    let writes = sim.writes;
    sim.run_for_ms(60_000);
    assert_eq!(sim.writes, writes, "waiting is no news");
    let says = |reserved, reason: &str| plan::Quota { reserved, reason: reason.into(), message: "of the queue".into() };
    sim.quota = Some(says(false, "Inadmissible"));
    sim.pass();
    assert_eq!(sim.condition(cond::QUOTA_RESERVED), ("False", "QueueNotFound"));
    sim.quota = Some(says(true, ""));
    sim.pass();
    assert_eq!(sim.condition(cond::QUOTA_RESERVED), ("True", "NotReleased"));
    assert_eq!(sim.condition(cond::TRAINER_READY), ("False", "QueueNotReleased"));
    sim.quota = None;
    sim.queue_open = true;
    sim.run();
    sim.run_for_ms(1_000);
    assert_eq!((sim.status().phase, sim.status().attempts), (Phase::Running, 1));
    assert_eq!(sim.condition(cond::QUOTA_RESERVED), ("True", "Admitted"));
    assert_eq!(sim.condition(cond::SUSPENDED), ("False", "Resumed"));
    assert!(sim.status().start_time.as_ref().unwrap().0 > sim.now - std::time::Duration::from_secs(60));
}

#[test]
fn the_startup_deadline_runs_from_the_queues_release() {
    let mut sim = queued();
    sim.job.spec.trainer.startup_deadline_seconds = 100;
    (sim.queue_open, sim.pods_ready) = (false, false);
    sim.run_for_ms(1_000_000);
    sim.queue_open = true;
    sim.run();
    sim.run_for_ms(90_000);
    assert_eq!(sim.status().phase, Phase::Starting);
    sim.run_for_ms(20_000);
    assert_eq!(sim.last_outcome(), Outcome::StartupDeadline);
}

#[test]
fn a_preempted_attempt_is_not_counted_and_the_next_one_queues_anew() {
    let mut sim = queued();
    sim.job.spec.trainer.failure_policy.backoff_limit = 0;
    sim.run();
    sim.report.commits += 1;
    sim.preempt();
    sim.queue_open = false;
    sim.run_for_ms(5_000);
    let s = sim.status();
    assert_eq!(sim.last_outcome(), Outcome::Preempted);
    assert_eq!((s.phase, s.attempts), (Phase::Queued, 2), "two executions never share an attempt");
    assert_eq!((s.counters.failures, s.counters.preemptions, s.counters.disruptions), (0, 1, 0));
    assert_eq!(sim.count(ChildKind::Job), 1, "what was taken back is not let go again");
    sim.queue_open = true;
    sim.run();
    assert_eq!(sim.status().phase, Phase::Running);
}

#[test]
fn between_a_preemption_and_the_next_attempt_the_quota_is_said_to_be_lost() {
    let mut sim = queued();
    sim.run();
    sim.preempt();
    sim.run();
    assert_eq!(sim.condition(cond::TRAINER_READY), ("False", "BackingOff"));
    assert_eq!(sim.condition(cond::QUOTA_RESERVED), ("False", "Preempted"));
}

#[test]
fn a_failure_of_its_own_is_not_excused_by_a_preemption() {
    let mut sim = queued();
    sim.run();
    sim.exit_pod(0, 1);
    sim.preempt();
    sim.run();
    assert_eq!(sim.last_outcome(), Outcome::Failed);
    assert_eq!((sim.status().counters.failures, sim.status().counters.preemptions), (1, 0));
}

#[test]
fn pods_that_a_preemption_removes_are_no_deletion_by_a_hand() {
    let mut sim = queued();
    sim.pods_linger = true;
    sim.run();
    sim.preempt();
    // The watch of pods is ahead of that of Jobs.
    let mut world = sim.world();
    for c in &mut world.children {
        if let plan::Child::Job(j) = c {
            (j.metadata.generation, j.spec.as_mut().unwrap().suspend) = (Some(2), Some(false));
        }
    }
    let plan = plan::rljob::decide(&sim.job, &world, sim.now, &sim.settings);
    sim.job.status = plan.status;
    assert!(sim.status().attempt.as_ref().unwrap().ending.is_some(), "evidence is gathered");
    sim.run_for_ms(1_000);
    assert_eq!(sim.last_outcome(), Outcome::Preempted);
}

#[test]
fn a_lagging_cache_that_still_shows_the_job_held_preempts_nothing() {
    let mut sim = queued();
    sim.run();
    let mut world = sim.world();
    for c in &mut world.children {
        if let plan::Child::Job(j) = c {
            (j.metadata.generation, j.spec.as_mut().unwrap().suspend) = (Some(1), Some(true));
        }
    }
    let plan = plan::rljob::decide(&sim.job, &world, sim.now, &sim.settings);
    assert!(!plan.actions.iter().any(|a| matches!(a, Action::Delete(_))), "{:?}", plan.actions);
    assert!(plan.status.is_none_or(|s| s.attempt.is_some()));
}

#[test]
fn a_preemption_whose_release_was_never_seen_is_told_by_the_attempts_claim() {
    let mut sim = queued();
    sim.queue_open = false;
    sim.run();
    // While the operator was down, the attempt was let go, claimed, and was taken back.
    sim.queue_open = true;
    sim.settle();
    sim.settle();
    assert_eq!(sim.report.attempt, 1);
    sim.preempt();
    sim.pass();
    assert_eq!(sim.last_outcome(), Outcome::Preempted);
}

#[test]
fn a_suspension_by_the_user_takes_the_attempt_out_of_the_queue() {
    let mut sim = queued();
    sim.queue_open = false;
    sim.run();
    sim.edit(|j| {
        j.spec.suspend = true;
        j.spec.suspend_policy.serving = api::ServingSuspendPolicy::ScaleToZero;
    });
    sim.pass();
    assert_ne!(sim.serving_replicas(), 0, "the queue's suspension is not the user's");
    sim.run();
    assert_eq!((sim.status().phase, sim.count(ChildKind::Job)), (Phase::Suspended, 0));
    assert_eq!(sim.condition(cond::SUSPENDED), ("True", "SuspendedByUser"));
    assert_eq!(sim.serving_replicas(), 0);
}

#[test]
fn a_pod_group_is_made_before_its_job_and_goes_with_its_attempt() {
    let mut sim = Sim::with_nodes(2);
    sim.job.spec.scheduling = Some(api::Scheduling { gang: api::Gang::Volcano, ..Default::default() });
    sim.run();
    let group = "PodGroup(Volcano) sort5-grpo-t1";
    let at = |what: &str| sim.created.iter().position(|c| c == what).unwrap_or_else(|| panic!("{:?}", sim.created));
    assert!(at(group) < at("Job sort5-grpo-t1"));
    sim.report.commits += 1;
    sim.exit_pod(0, 1);
    sim.run_for_ms(5_000);
    assert_eq!(sim.status().attempts, 2);
    let groups: Vec<&str> =
        sim.children.iter().filter(|c| matches!(c.kind(), ChildKind::PodGroup(_))).map(|c| c.name()).collect();
    assert_eq!(groups, ["sort5-grpo-t2"]);
}

#[test]
fn what_another_controller_manages_is_left_alone_altogether() {
    let mut sim = Sim::new();
    sim.job.spec.managed_by = Some("kueue.x-k8s.io/multikueue".into());
    let world = sim.world();
    let plan = plan::rljob::decide(&sim.job, &world, sim.now, &sim.settings);
    assert!(plan.status.is_none() && plan.actions.is_empty() && plan.events.is_empty());
    assert_eq!(plan.requeue_at, None);
    sim.job.spec.managed_by = Some(api::MANAGER.into());
    sim.run();
    assert_eq!(sim.status().phase, Phase::Running);
}

#[test]
fn a_run_that_is_over_is_deleted_when_its_time_has_come_and_not_before() {
    let mut sim = Sim::new();
    sim.job.spec.ttl_seconds_after_finished = Some(600);
    sim.run();
    sim.run_for_ms(3_600_000);
    assert_eq!(sim.status().phase, Phase::Running, "the time runs from the end");
    sim.report.finished = true;
    sim.exit_pod(0, 0);
    sim.run();
    sim.run_for_ms(590_000);
    assert_eq!(sim.status().phase, Phase::Complete);
    assert!(sim.job.metadata.deletion_timestamp.is_none());
    sim.run_for_ms(20_000);
    assert_eq!(sim.status().phase, Phase::Terminating);
    assert!(sim.finalizers().is_empty());
}

#[test]
fn more_steps_for_a_run_that_is_complete_are_told_once_to_change_nothing() {
    let mut sim = Sim::new();
    sim.run();
    sim.report.finished = true;
    sim.exit_pod(0, 0);
    sim.run();
    assert_eq!(sim.condition(cond::UP_TO_DATE), ("True", "Ended"));
    sim.edit(|j| j.spec.total_steps = 500);
    sim.pass();
    assert!(sim.last_events.iter().any(|e| e.warning && e.note.contains("500")), "{:?}", sim.last_events);
    assert_eq!(sim.condition(cond::UP_TO_DATE), ("False", "RunIsComplete"));
    sim.pass();
    assert!(sim.last_events.is_empty());
    sim.run_for_ms(60_000);
    assert_eq!((sim.status().phase, sim.status().attempts), (Phase::Complete, 1));
}

#[test]
fn an_older_template_of_a_lagging_cache_undoes_no_edit() {
    let mut sim = Sim::new();
    sim.run();
    let old = sim.job.clone();
    sim.edit(|j| j.spec.serving.template.as_mut().unwrap().spec.engine.max_running_requests = 32);
    sim.run();
    let plan = plan::rljob::decide(&old, &sim.world(), sim.now, &sim.settings);
    assert!(!plan.actions.iter().any(|a| matches!(a, Action::Apply(_))), "{:?}", plan.actions);
}

#[test]
fn an_attempt_that_does_not_get_all_its_pods_placed_gives_them_up_and_says_how_many_are_missing() {
    let mut sim = Sim::with_nodes(3);
    sim.job.spec.trainer.startup_deadline_seconds = 100;
    sim.job.spec.trainer.failure_policy.base_delay_seconds = 60;
    sim.pods_ready = false;
    sim.run();
    for (i, p) in sim.pods.iter_mut().filter(|p| plan::pod_facts::role(p) == "trainer").enumerate() {
        if i > 0 {
            p.spec.as_mut().unwrap().node_name = None;
            let condition = k8s_openapi::api::core::v1::PodCondition {
                type_: "PodScheduled".into(),
                status: "False".into(),
                reason: Some("Unschedulable".into()),
                message: Some("0/4 nodes are available".into()),
                ..Default::default()
            };
            p.status.as_mut().unwrap().conditions.get_or_insert_default().push(condition);
        }
    }
    sim.pass();
    assert_eq!(sim.condition(cond::TRAINER_READY), ("False", "Scheduling"));
    sim.run_for_ms(99_000);
    sim.run_for_ms(3_000);
    let last = sim.status().last_attempt.clone().unwrap();
    assert_eq!(last.outcome, Outcome::StartupDeadline);
    assert!(last.message.contains("2 of 3 pods have no node"), "{}", last.message);
    assert!(sim.status().attempt.is_none() && sim.count(ChildKind::Job) == 0, "it holds nothing while it waits");
    assert_eq!(sim.condition(cond::TRAINER_READY), ("False", "BackingOff"));
}
