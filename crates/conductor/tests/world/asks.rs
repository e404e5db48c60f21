//! What a test asks of the conductor in somebody else's name.

use conductor::{Event, Grant, Reply, SettingsAsked};
use control::wire::{
    CompleteRequest, Finished, GroupSummary, LeaseRequest, NextRequest, Outcome, RefusalKind, Report, ReportRequest,
    WorkerId,
};
use straw::Ref;

use super::{Faults, World, config};

pub fn quiet(asynchronous: bool, warm: bool) -> World {
    World::new(11, config(asynchronous, warm), Faults::default())
}

pub fn next(world: &mut World, epoch: u64, done: u64) -> Reply {
    let poll = NextRequest { run: "uid".to_owned(), trainer_epoch: epoch, done, wait_ms: 0, waiting_for: None };
    world.now(|reply| Event::Next(reply, poll)).1.expect("a poll without patience is answered")
}

pub fn report(world: &mut World, epoch: u64, seq: u64, report: Report) -> Option<Reply> {
    let request = ReportRequest { run: "uid".to_owned(), trainer_epoch: epoch, seq, report };
    world.now(|reply| Event::Report(reply, Box::new(request))).1
}

pub fn claim(world: &mut World, attempt: u64, incarnation: &str) -> Reply {
    let request = world.claim_request(attempt, incarnation);
    world.now(|reply| Event::Claim(reply, request)).1.expect("a claim is answered at once")
}

pub fn lease(world: &mut World, worker: WorkerId, want: u32) -> Option<Reply> {
    world.now(|reply| Event::Lease(reply, LeaseRequest { worker, want, wait_ms: 0 })).1
}

pub fn granted(reply: Option<Reply>) -> Vec<Grant> {
    match reply {
        Some(Reply::Lease { grants, .. }) => grants,
        other => panic!("expected leases, got {other:?}"),
    }
}

pub fn stranger(node: &str) -> WorkerId {
    WorkerId { name: format!("stranger-on-{node}"), incarnation: "1".to_owned(), node: node.to_owned() }
}

pub fn settings(world: &mut World, number: u64, edit: impl FnOnce(&mut SettingsAsked)) -> Reply {
    let config = Ok(Box::new(world.config.clone()));
    let mut asked = SettingsAsked { number, fence_attempts_up_to: 0, cordoned_nodes: vec![], paused: false, config };
    edit(&mut asked);
    world.now(|reply| Event::Settings(reply, Box::new(asked))).1.expect("settings are answered at once")
}

pub fn complete(world: &mut World, worker: WorkerId, grant: &Grant, edit: impl FnOnce(&mut GroupSummary)) -> Outcome {
    let group = world.new_ref();
    offer(world, worker, grant, group, edit)
}

/// As [`complete`], with the record at `group`.
pub fn offer(
    world: &mut World,
    worker: WorkerId,
    grant: &Grant,
    group: Ref,
    edit: impl FnOnce(&mut GroupSummary),
) -> Outcome {
    let finished = finished(world, grant, group, edit);
    offer_all(world, worker, vec![finished]).remove(0)
}

/// A result of `grant`, with its record at `group`.
pub fn finished(world: &World, grant: &Grant, group: Ref, edit: impl FnOnce(&mut GroupSummary)) -> Finished {
    let version = world.state().version;
    let mut summary = GroupSummary {
        group_index: grant.task,
        rewards: vec![1.0, 0.0, 0.0, 1.0],
        failed: 0,
        version_min: version,
        version_max: version,
        response_tokens: 8,
        tokens: 16,
        generate_calls: 4,
    };
    edit(&mut summary);
    let (lease, task) = (grant.lease.clone(), grant.task);
    Finished { lease, task, submission: format!("test/{task}"), group, summary }
}

/// Offers results in one call; gives what became of each.
pub fn offer_all(world: &mut World, worker: WorkerId, results: Vec<Finished>) -> Vec<Outcome> {
    let request = CompleteRequest { worker, results };
    match world.now(|reply| Event::Complete(reply, Box::new(request))).1 {
        Some(Reply::Complete(reply)) => reply.outcomes,
        other => panic!("expected outcomes, got {other:?}"),
    }
}

pub fn is_fenced(reply: &Reply) -> bool {
    matches!(reply, Reply::Refused(refusal) if refusal.kind == RefusalKind::Fenced)
}

pub fn trained() -> Report {
    Report::Trained(Box::default())
}

/// A run in its RL phase whose groups wait to be generated, with nobody acting but the test.
pub fn waiting_for_groups(asynchronous: bool) -> World {
    let mut world = quiet(asynchronous, false);
    world.workers_idle = true;
    world.until("groups are there to be leased", |w| {
        w.state().live() > 0 && w.conductor.as_ref().unwrap().progress(w.now).engines.iter().all(|e| e.admitted)
    });
    world.hush();
    world
}
