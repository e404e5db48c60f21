//! A worker's part in one run: lease, generate, publish, complete, until the run is over.

use std::{
    collections::HashMap,
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use control::{
    client::{ClientError, ConductorClient, EpochMemory, Patience, patiently},
    run_dir::RunDir,
    wire::{FailRequest, Finished, Invite, Lease, LeaseRequest, Outcome, RefusalKind, RenewRequest, WorkerId},
};
use futures::{FutureExt, future::BoxFuture};
use straw::{RealFs, Store, Writer};
use tokio::{
    sync::Notify,
    task::{AbortHandle, JoinSet},
};

use crate::{EnginePool, Figures, Limits, Reward, Tokenizer, generate_group, group_record, offers::Offers, rewards};

/// Why a worker cannot take part in a run.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The model folder's tokenizer is not usable.
    #[error(transparent)]
    Tokenizer(#[from] crate::TokenizerError),
    /// The store is not usable.
    #[error(transparent)]
    Straw(#[from] straw::Error),
}

/// One run as a worker sees it.
pub struct Session {
    worker: WorkerId,
    run: String,
    client: ConductorClient,
    offers: Offers,
    pool: EnginePool,
    tokenizer: Tokenizer,
    reward: Box<dyn Reward>,
    limits: Limits,
    figures: Figures,
    writer: Arc<Writer>,
    held: Mutex<HashMap<u64, Held>>,
    capacity: usize,
    draining: AtomicBool,
    drain: Notify,
}

struct Held {
    lease: String,
    work: AbortHandle,
}

/// Longest a lease request is held back by the conductor.
const LEASE_WAIT: Duration = Duration::from_secs(5);
/// Pause after a lease request that failed.
const ASK_AGAIN: Duration = Duration::from_millis(100);
/// Renewals happen at a third of the lease; this is their pace until the first lease says how long it is.
const RENEW_AT_FIRST: Duration = Duration::from_secs(5);
/// A conductor that was not heard of for this long is gone for good, and so is the run. A new invitation starts anew.
const GONE_AFTER: Duration = Duration::from_secs(30 * 60);

impl Session {
    /// Prepares to take part in the run of `invite`, whose volume is mounted at `volume`.
    ///
    /// # Errors
    /// When the tokenizer or the store is not usable.
    pub fn new(
        worker: WorkerId,
        invite: &Invite,
        volume: &Path,
        http: reqwest::Client,
        capacity: usize,
        figures: Figures,
    ) -> Result<Self, SessionError> {
        let tokenizer = Tokenizer::from_folder(&volume.join(&invite.rollout.model_dir))?;
        let store = Store::open(RealFs::new(), RunDir::new(volume, &invite.run_dir).packs())?;
        let writer = Arc::new(store.writer(&worker.name)?);
        let epochs = EpochMemory::default();
        // The invitation itself counts: its sender may have been superseded since.
        let _ = epochs.meet(invite.conductor_epoch);
        let client = ConductorClient::new(http.clone(), invite.conductor.clone(), invite.token.clone(), epochs);
        Ok(Self {
            offers: Offers::new(client.clone(), worker.clone(), Patience::for_at_most(GONE_AFTER)),
            client,
            pool: EnginePool::new(http, invite.rollout.engine_token.clone()),
            reward: rewards::built_in(&invite.rollout.reward),
            limits: Limits {
                generate: Duration::from_millis(invite.rollout.generate_timeout_ms),
                give_up: Duration::from_millis(invite.rollout.generate_timeout_ms.saturating_mul(2)),
            },
            run: invite.run.clone(),
            held: Mutex::default(),
            draining: AtomicBool::new(false),
            drain: Notify::new(),
            worker,
            tokenizer,
            figures,
            writer,
            capacity,
        })
    }

    /// The epochs of conductors met.
    #[must_use]
    pub fn epochs(&self) -> &EpochMemory {
        self.client.epochs()
    }

    /// Where the conductor is.
    #[must_use]
    pub fn conductor(&self) -> &str {
        self.client.base()
    }

    /// Take no more leases; [`Session::run`] returns when what is held is finished.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
        self.drain.notify_waiters();
        self.drain.notify_one();
    }

    fn held(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Works until drained, or until the conductor was away for too long.
    pub async fn run(self: Arc<Self>) {
        let mut work = JoinSet::new();
        // Kept across turns of the loop: dropping a request that was just answered would lose the leases in the answer.
        let mut asking: Option<BoxFuture<'static, Result<Vec<Lease>, ClientError>>> = None;
        let mut heard = Instant::now();
        let mut renew_every = RENEW_AT_FIRST;
        let mut renew_at = tokio::time::Instant::now() + renew_every;
        loop {
            let draining = self.draining.load(Ordering::Acquire);
            if draining && work.is_empty() {
                return;
            }
            if heard.elapsed() > GONE_AFTER {
                tracing::warn!(run = %self.run, conductor = self.conductor(), "the conductor is gone; leaving the run");
                return;
            }
            let free = self.capacity.saturating_sub(work.len());
            if asking.is_none() && free > 0 && !draining {
                let session = self.clone();
                asking = Some(async move { session.lease(free).await }.boxed());
            }
            let answer = async {
                match asking.as_mut() {
                    Some(asked) => asked.await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                leased = answer => match leased {
                    Ok(leases) => {
                        asking = None;
                        heard = Instant::now();
                        for lease in leases {
                            renew_every = Duration::from_millis((lease.lease_ms / 3).max(1));
                            renew_at = renew_at.min(tokio::time::Instant::now() + renew_every);
                            self.clone().start(lease, &mut work);
                        }
                    }
                    Err(error) => {
                        tracing::debug!(run = %self.run, %error, "no lease");
                        let session = self.clone();
                        asking = Some(
                            async move {
                                tokio::time::sleep(ASK_AGAIN).await;
                                session.lease(free).await
                            }
                            .boxed(),
                        );
                    }
                },
                Some(_) = work.join_next() => {}
                () = tokio::time::sleep_until(renew_at) => {
                    if self.renew().await {
                        heard = Instant::now();
                    }
                    renew_at = tokio::time::Instant::now() + renew_every;
                }
                () = self.drain.notified() => {}
            }
        }
    }

    async fn lease(&self, free: usize) -> Result<Vec<Lease>, ClientError> {
        let request = LeaseRequest {
            worker: self.worker.clone(),
            want: u32::try_from(free).unwrap_or(u32::MAX),
            wait_ms: u64::try_from(LEASE_WAIT.as_millis()).unwrap_or(u64::MAX),
        };
        let reply = self.client.lease(&request).await?;
        self.pool.update(&reply.engines);
        for task in &reply.abandon {
            if let Some(held) = self.held().remove(task) {
                held.work.abort();
            }
        }
        Ok(reply.leases)
    }

    /// True when the conductor answered.
    async fn renew(&self) -> bool {
        let leases = self.held().iter().map(|(task, held)| (held.lease.clone(), *task)).collect();
        match self.client.renew(&RenewRequest { worker: self.worker.clone(), leases }).await {
            Ok(reply) => {
                self.pool.update(&reply.engines);
                if !reply.lost.is_empty() {
                    // Not dropped: a conductor that restarted holds no leases, but still wants what is finished.
                    tracing::debug!(run = %self.run, lost = reply.lost.len(), "leases lost; results will be offered all the same");
                }
                true
            }
            Err(error) => {
                tracing::debug!(run = %self.run, %error, "leases were not renewed");
                false
            }
        }
    }

    fn start(self: Arc<Self>, lease: Lease, work: &mut JoinSet<()>) {
        let task = lease.task;
        if self.held().contains_key(&task) {
            // A new conductor leased to us what we are at already; one of the two results will do.
            if let Some(held) = self.held().get_mut(&task) {
                held.lease = lease.lease;
            }
            return;
        }
        let id = lease.lease.clone();
        let session = self.clone();
        let handle = work.spawn(async move {
            session.work(lease).await;
            session.held().remove(&task);
        });
        self.held().insert(task, Held { lease: id, work: handle });
    }

    async fn work(&self, lease: Lease) {
        let (reward, figures) = (&*self.reward, &self.figures);
        let group = generate_group(&lease.group, &self.pool, &self.tokenizer, reward, self.limits, figures).await;
        let summary = group.summary();
        if usize::try_from(summary.failed).is_ok_and(|failed| failed == group.samples.len()) {
            let reason = group.samples.iter().find_map(|sample| sample.meta.error.clone()).unwrap_or_default();
            tracing::warn!(run = %self.run, group = group.group_index, %reason, "the whole group failed");
            return self.fail(&lease, reason).await;
        }
        let submission = format!("{}/{}/{}", self.worker.incarnation, lease.lease, lease.task);
        let record = match group_record(&group) {
            Ok(record) => record,
            Err(error) => return self.fail(&lease, error.to_string()).await,
        };
        loop {
            let group = self.publish(&submission, record.clone()).await;
            let pack = group.pack.clone();
            let lease_id = self.held().get(&lease.task).map_or_else(|| lease.lease.clone(), |held| held.lease.clone());
            let finished = Finished {
                lease: lease_id,
                task: lease.task,
                submission: submission.clone(),
                group,
                summary: summary.clone(),
            };
            match self.offers.offer(&finished).await {
                Ok(Outcome::Accepted | Outcome::Duplicate) => {}
                Ok(Outcome::Superseded) => {
                    tracing::debug!(run = %self.run, task = lease.task, "the group was superseded");
                }
                Ok(Outcome::Refused { kind: RefusalKind::PackCollected, message }) => {
                    // Our pack lay idle for so long that it was taken for a dead writer's.
                    tracing::info!(run = %self.run, task = lease.task, pack, "publishing a group again: {message}");
                    self.writer.retired(&pack);
                    continue;
                }
                Ok(Outcome::Refused { message, .. }) => {
                    tracing::error!(run = %self.run, task = lease.task, "the group was not taken: {message}");
                }
                Err(error) => tracing::error!(run = %self.run, task = lease.task, %error, "the group was not taken"),
            }
            return;
        }
    }

    /// Publishes until it succeeds: a full or lost volume is waited for, since the work is done.
    async fn publish(&self, submission: &str, record: straw::Record) -> straw::Ref {
        let mut pause = Duration::from_millis(100);
        loop {
            let (writer, submission, copy) = (self.writer.clone(), submission.to_owned(), record.clone());
            let published = tokio::task::spawn_blocking(move || writer.publish(&submission, &[copy])).await;
            match published.map(|refs| refs.map(|refs| refs.into_iter().next())) {
                Ok(Ok(Some(reference))) => return reference,
                Ok(Ok(None)) => tracing::error!(run = %self.run, "one record was published, no reference came back"),
                Ok(Err(error)) => tracing::warn!(run = %self.run, %error, "a group cannot be published; trying again"),
                Err(error) => tracing::error!(run = %self.run, %error, "publishing was interrupted; trying again"),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(5));
        }
    }

    async fn fail(&self, lease: &Lease, reason: String) {
        let request = FailRequest { worker: self.worker.clone(), lease: lease.lease.clone(), task: lease.task, reason };
        let patience = Patience::for_at_most(Duration::from_secs(60));
        // If this is not heard either, the lease expires and the task is given to another.
        let _ = patiently(patience, || self.client.fail(&request), waits("reporting a failed group")).await;
    }
}

/// Says at most once in a few seconds what a call waits for.
pub(crate) fn waits(what: &'static str) -> impl FnMut(&ClientError, Duration) {
    let mut said = Duration::ZERO;
    move |error, waited| {
        if waited >= said + Duration::from_secs(5) {
            said = waited;
            tracing::warn!(%error, waited_s = waited.as_secs(), "{what}: waiting for the conductor");
        }
    }
}
