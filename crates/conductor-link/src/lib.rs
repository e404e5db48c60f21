//! The operator's line to a conductor: its progress, polled, and orders, in a task of their own, so that a conductor that
//! hangs holds nobody up.
//!
//! The same for an operator in a cluster and for the one on a laptop: what differs is who finds the address, and how often
//! it is asked.
//!
//! Invariant: what a conductor said before a question was asked is never taken for the answer to it
//! ([`ConductorLink::refresh`], [`ConductorLink::is_fresh`]).

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

use std::time::Duration;

use control::{
    client::{ConductorClient, EpochMemory},
    wire::{CheckpointRequest, Progress, RunPhase, Settings, SettingsRequest},
};
use plan::{ConductorSettings, Report};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::{interval, timeout},
};

/// A conductor that is silent for longer does not answer.
const ANSWER: Duration = Duration::from_secs(2);
const ORDERS: usize = 16;

/// Where the conductor is at the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// `http://address:port`.
    pub url: String,
    /// The run's token.
    pub token: String,
}

/// Something to tell the conductor. Repeats are harmless, and a lost one is planned again.
#[derive(Clone, Debug, PartialEq)]
pub enum Order {
    /// New settings.
    Settings(ConductorSettings),
    /// A commit, please.
    Checkpoint {
        /// Name of the request.
        id: String,
        /// For this attempt.
        attempt: u64,
        /// And stop the trainer.
        then_stop: bool,
    },
}

/// What a poll brought, and which question it answers.
#[derive(Clone, Debug, Default, PartialEq)]
struct Seen {
    asked: u64,
    progress: Option<Progress>,
}

/// A polled conductor.
#[derive(Debug)]
pub struct ConductorLink {
    target: watch::Sender<Option<Target>>,
    asked: watch::Sender<u64>,
    seen: watch::Receiver<Seen>,
    orders: mpsc::Sender<Order>,
    task: JoinHandle<()>,
}

impl ConductorLink {
    /// Starts the task, which asks once every `poll`; it asks nobody until it has a target.
    #[must_use]
    pub fn start(http: reqwest::Client, poll: Duration) -> Self {
        let (target, targets) = watch::channel(None);
        let (asked, questions) = watch::channel(0);
        let (tell, seen) = watch::channel(Seen::default());
        let (orders, inbox) = mpsc::channel(ORDERS);
        let task = tokio::spawn(work(http, poll, targets, questions, inbox, tell));
        Self { target, asked, seen, orders, task }
    }

    /// Follows the conductor to where it is now.
    pub fn follow(&self, target: Option<Target>) {
        self.target.send_if_modified(|old| {
            let new = *old != target;
            *old = target;
            new
        });
    }

    /// What it last said; `None` while it does not answer.
    #[must_use]
    pub fn progress(&self) -> Option<Progress> {
        self.seen.borrow().progress.clone()
    }

    /// Asks at once. Until [`ConductorLink::is_fresh`], what it last said may be older than this call.
    pub fn refresh(&self) {
        self.asked.send_modify(|asked| *asked += 1);
    }

    /// True when the last [`ConductorLink::refresh`] was answered, be it by silence.
    #[must_use]
    pub fn is_fresh(&self) -> bool {
        self.seen.borrow().asked >= *self.asked.borrow()
    }

    /// Waits for news. Cancel-safe.
    pub async fn changed(&mut self) {
        if self.seen.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// A listener of its own, for a task that only passes the news on.
    #[must_use]
    pub fn news(&self) -> News {
        News(self.seen.clone())
    }

    /// Sends an order; false when too many wait already.
    pub fn order(&self, order: Order) -> bool {
        self.orders.try_send(order).is_ok()
    }
}

/// Tells when a link has news.
#[derive(Debug)]
pub struct News(watch::Receiver<Seen>);

impl News {
    /// Waits for news; false when the link is gone. Cancel-safe.
    pub async fn changed(&mut self) -> bool {
        self.0.changed().await.is_ok()
    }
}

impl Drop for ConductorLink {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn work(
    http: reqwest::Client,
    poll: Duration,
    mut targets: watch::Receiver<Option<Target>>,
    mut questions: watch::Receiver<u64>,
    mut orders: mpsc::Receiver<Order>,
    tell: watch::Sender<Seen>,
) {
    let epochs = EpochMemory::default();
    let mut ticks = interval(poll);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            changed = targets.changed() => if changed.is_err() { return },
            changed = questions.changed() => if changed.is_err() { return },
            Some(order) = orders.recv() => {
                let target = targets.borrow().clone();
                if let Some(Target { url, token }) = target {
                    let client = ConductorClient::new(http.clone(), url, token, epochs.clone());
                    send(&client, order).await;
                }
            }
        }
        let asked = *questions.borrow_and_update();
        let target = targets.borrow_and_update().clone();
        let progress = match target {
            None => None,
            Some(Target { url, token }) => {
                let client = ConductorClient::new(http.clone(), url, token, epochs.clone());
                match timeout(ANSWER, client.progress()).await {
                    Ok(Ok(progress)) => Some(progress),
                    Ok(Err(error)) => {
                        tracing::debug!(%error, "no progress");
                        None
                    }
                    Err(_) => None,
                }
            }
        };
        let seen = Seen { asked, progress };
        tell.send_if_modified(|old| {
            let news = *old != seen;
            *old = seen;
            news
        });
    }
}

async fn send(client: &ConductorClient, order: Order) {
    let sent = match order {
        Order::Settings(settings) => {
            let ConductorSettings { number, fence_attempts_up_to, cordoned_nodes, paused, spec } = settings;
            let settings = Settings { fence_attempts_up_to, cordoned_nodes, paused, spec };
            let request = SettingsRequest { number, settings };
            timeout(ANSWER, client.settings(&request)).await.map(|reply| reply.map(drop))
        }
        Order::Checkpoint { id, attempt, then_stop } => {
            let request = CheckpointRequest { id, attempt, then_stop };
            timeout(ANSWER, client.checkpoint(&request)).await.map(|reply| reply.map(drop))
        }
    };
    match sent {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "the conductor did not take an order"),
        Err(_) => tracing::debug!("the conductor did not answer an order"),
    }
}

/// Progress as `decide` wants it.
#[must_use]
pub fn report(progress: &Progress) -> Report {
    let published = progress.weight_version > 0;
    let live = progress.engines.iter().filter(|engine| engine.live);
    let current = live.clone().filter(|engine| !published || engine.version == progress.weight_version).count();
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    Report {
        settings_number: progress.settings_number,
        step: progress.step,
        total_steps: progress.total_steps,
        warm_step: progress.warm_step,
        weight_version: progress.weight_version,
        commits: progress.commits,
        commit_step: progress.commit.as_ref().map(|commit| commit.step),
        finished: progress.phase == RunPhase::Finished,
        failure: progress.failure.clone(),
        attempt: progress.attempt,
        trainer_epoch: progress.trainer_epoch,
        trainer_live: progress.trainer.live,
        checkpoints_done: progress.checkpoints_done.iter().cloned().collect(),
        engines_ready: count(current),
        engines: count(progress.engines.len()),
        min_weight_version: live.map(|engine| engine.version).min().filter(|_| published),
        workers: count(progress.workers.len()),
        inflight: progress.queue.leased,
        tokens_per_second: progress.last_step.as_ref().map(|step| step.tokens_per_second),
        reward_mean: progress.last_step.as_ref().map(|step| step.reward),
        storage: progress.waits.iter().find(|wait| wait.owner == "storage").map(|wait| wait.what.clone()),
        samples_invalid: progress.samples.too_many_invalid(),
    }
}

#[cfg(test)]
mod tests {
    use control::wire::EngineProgress;

    use super::*;

    fn engine(live: bool, version: u64) -> EngineProgress {
        EngineProgress { name: "e".into(), url: "u".into(), live, admitted: true, version }
    }

    fn link() -> ConductorLink {
        let http = control::names::http_client(control::names::Names::default()).unwrap();
        ConductorLink::start(http, Duration::from_millis(100))
    }

    #[test]
    fn before_the_first_publication_a_live_engine_is_ready_and_after_it_only_a_current_one() {
        let mut progress = Progress { engines: vec![engine(true, 0), engine(false, 0)], ..Default::default() };
        assert_eq!((report(&progress).engines_ready, report(&progress).engines), (1, 2));
        progress.weight_version = 3;
        assert_eq!(report(&progress).engines_ready, 0);
        progress.engines = vec![engine(true, 3), engine(true, 2)];
        let report = report(&progress);
        assert_eq!((report.engines_ready, report.min_weight_version), (1, Some(2)));
    }

    #[tokio::test]
    async fn a_conductor_that_is_not_there_is_unreachable_and_orders_do_not_wait_for_it() {
        let link = link();
        link.follow(Some(Target { url: "http://127.0.0.1:1".into(), token: "t".into() }));
        assert!(link.order(Order::Checkpoint { id: "a".into(), attempt: 1, then_stop: true }));
        tokio::time::sleep(Duration::from_millis(150)).await;
        assert_eq!(link.progress(), None);
    }

    #[tokio::test]
    async fn a_fresh_answer_is_one_to_a_question_asked_after_it_was_wanted() {
        let mut link = link();
        assert!(link.is_fresh());
        link.refresh();
        assert!(!link.is_fresh(), "what was heard before does not count");
        while !link.is_fresh() {
            link.changed().await;
        }
        assert_eq!(link.progress(), None, "silence is an answer too");
    }
}
