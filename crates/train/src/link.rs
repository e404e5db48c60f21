//! Rank 0's line to the conductor: claim, orders, reports, and a pulse while an order is being carried out.
//!
//! The conductor may be away for a while (it is restarted without the trainer noticing): every call waits, says so, and
//! gives up after a deadline. A refusal is final.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use comm::Abort;
use control::client::{ClientError, ConductorClient, Patience, patiently};
use control::wire::{ClaimReply, ClaimRequest, NextRequest, RefusalKind, Report, ReportRequest, TrainerEpoch, Work};
use tokio::runtime::Handle;

use crate::error::Error;
use crate::stop::Stop;
use crate::volume::Waiting;

/// Longest time the conductor may hold a poll back. Also how long the other ranks wait in one collective while there is
/// nothing to do, and how late a SIGTERM of another rank is seen.
const POLL_MS_MAX: u64 = 2_000;
/// Pauses between tries while the conductor is away.
const PAUSE: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// A wait is told about this often.
const SAY_EVERY: Duration = Duration::from_secs(10);

/// What the line is made of.
pub struct LinkConfig {
    /// Calls are made here, from any thread.
    pub runtime: Handle,
    /// The conductor.
    pub client: ConductorClient,
    /// How long the conductor may be away before this attempt gives up.
    pub away_max: Duration,
    /// Ends the collectives of this rank when the pulse learns that the attempt is superseded.
    pub abort: Abort,
}

/// The line of a claimed attempt. Dropping it ends the pulse.
pub struct Link {
    config: LinkConfig,
    run: String,
    trainer_epoch: TrainerEpoch,
    poll_ms: u64,
    away: Option<Away>,
    /// The last report, until the next: a new conductor may not have it.
    reported: Option<(u64, Report)>,
    stop: Stop,
    pulse: Arc<Pulse>,
    task: tokio::task::JoinHandle<()>,
}

/// The conductor does not answer.
struct Away {
    since: Instant,
    said: Option<Instant>,
    pause: Duration,
}

impl Away {
    fn say(&mut self, what: &str, error: &ClientError, waited: Duration, away_max: Duration) {
        if self.said.is_none_or(|t| t.elapsed() >= SAY_EVERY) {
            self.said = Some(Instant::now());
            let left = away_max.saturating_sub(waited).as_secs();
            tracing::warn!(waited_s = waited.as_secs(), "waiting for the conductor ({what}; {left} s left): {error}");
        }
    }
}

/// Shared with the task that keeps the conductor assured while an order takes its time.
#[derive(Default)]
struct Pulse {
    busy: AtomicBool,
    done: AtomicU64,
    superseded: Mutex<Option<String>>,
    waiting_for: Waiting,
}

impl Link {
    /// Claims the run's trainer role. What is waited for on the volume is told with the pulse.
    ///
    /// # Errors
    /// [`Error::Superseded`], [`Error::Refused`], [`Error::Unreachable`].
    pub fn claim(
        config: LinkConfig,
        request: &ClaimRequest,
        waiting_for: Waiting,
        stop: Stop,
    ) -> Result<(Self, ClaimReply), Error> {
        let reply = waiting(&config, "claim", || config.client.claim(request))?;
        let pulse = Arc::new(Pulse { waiting_for, ..Pulse::default() });
        let beat = Duration::from_millis((reply.heartbeat_timeout_ms / 4).max(50));
        let task = config.runtime.spawn(beating(
            pulse.clone(),
            config.client.clone(),
            config.abort.clone(),
            request.run.clone(),
            reply.trainer_epoch,
            beat,
        ));
        let poll_ms = POLL_MS_MAX.min(reply.heartbeat_timeout_ms / 3).max(1);
        let (run, trainer_epoch) = (request.run.clone(), reply.trainer_epoch);
        Ok((Self { config, run, trainer_epoch, poll_ms, away: None, reported: None, stop, pulse, task }, reply))
    }

    /// This attempt's epoch.
    #[must_use]
    pub fn trainer_epoch(&self) -> TrainerEpoch {
        self.trainer_epoch
    }

    /// One long poll: what follows order `done`, or nothing yet and why. A conductor that is away is nothing yet, until it
    /// has been away for too long; so the caller's turn always ends soon.
    ///
    /// # Errors
    /// [`Error::Superseded`], [`Error::Refused`], [`Error::Unreachable`]; [`Error::Order`] for a number out of turn.
    pub fn next(&mut self, done: u64) -> Result<(Option<Work>, Option<String>), Error> {
        let request = NextRequest {
            run: self.run.clone(),
            trainer_epoch: self.trainer_epoch,
            done,
            wait_ms: self.poll_ms,
            waiting_for: None,
        };
        let polled = self.config.runtime.block_on(async {
            tokio::select! {
                // An order that is lost with its reply is given again.
                () = self.stop.asked() => None,
                polled = self.config.client.next(&request) => Some(polled),
            }
        });
        let Some(polled) = polled else { return Ok((None, Some("it was asked to end".to_owned()))) };
        let error = match polled {
            Ok(reply) => {
                if let Some(away) = self.away.take() {
                    tracing::info!(waited_s = away.since.elapsed().as_secs(), "the conductor answers again");
                }
                return match reply.work {
                    Some(work) if work.seq == done => self.offer_again(done),
                    Some(work) if work.seq != done + 1 => {
                        Err(Error::Order { what: format!("order {} came after order {done}", work.seq) })
                    }
                    work => Ok((work, reply.waiting_for)),
                };
            }
            Err(error) if error.is_transient() => error,
            Err(error) => return Err(lasting(&error)),
        };
        let now = Instant::now();
        let away = self.away.get_or_insert(Away { since: now, said: None, pause: PAUSE });
        let waited = away.since.elapsed();
        if waited >= self.config.away_max {
            return Err(Error::Unreachable { waited_s: waited.as_secs(), last: error.to_string() });
        }
        away.say("next", &error, waited, self.config.away_max);
        std::thread::sleep(away.pause);
        away.pause = (away.pause * 2).min(PAUSE_MAX);
        Ok((None, Some(format!("the conductor is away: {error}"))))
    }

    /// Tells what was done under order `seq`; returns when the conductor has journaled it.
    ///
    /// # Errors
    /// [`Error::Superseded`], [`Error::Refused`], [`Error::Unreachable`].
    pub fn report(&mut self, seq: u64, report: Report) -> Result<(), Error> {
        let request = ReportRequest { run: self.run.clone(), trainer_epoch: self.trainer_epoch, seq, report };
        waiting(&self.config, "report", || self.config.client.report(&request))?;
        self.reported = Some((seq, request.report));
        Ok(())
    }

    /// The conductor gave out an order that was reported: a superseded one took the report, and its successor's journal
    /// lacks it. The work is done, so it is only told again.
    fn offer_again(&mut self, done: u64) -> Result<(Option<Work>, Option<String>), Error> {
        match self.reported.take() {
            Some((seq, report)) if seq == done => {
                tracing::warn!(seq, "the conductor lacks this report: offering it again");
                self.report(seq, report)?;
                Ok((None, Some(format!("report {seq} was offered again"))))
            }
            _ => Err(Error::Order { what: format!("order {done} again, which was never reported") }),
        }
    }

    /// While the guard lives, the conductor is polled in the background so that it knows we are at work on the order after
    /// `done`.
    #[must_use]
    pub fn busy(&self, done: u64) -> Busy<'_> {
        self.pulse.done.store(done, Ordering::Release);
        self.pulse.busy.store(true, Ordering::Release);
        Busy(&self.pulse)
    }

    /// Why the attempt is superseded, if the pulse has learnt so.
    #[must_use]
    pub fn superseded(&self) -> Option<String> {
        self.pulse.superseded.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// See [`Link::busy`].
pub struct Busy<'a>(&'a Pulse);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.busy.store(false, Ordering::Release);
    }
}

async fn beating(
    pulse: Arc<Pulse>,
    client: ConductorClient,
    abort: Abort,
    run: String,
    trainer_epoch: TrainerEpoch,
    every: Duration,
) {
    loop {
        tokio::time::sleep(every).await;
        if !pulse.busy.load(Ordering::Acquire) {
            continue;
        }
        let done = pulse.done.load(Ordering::Acquire);
        let waiting_for = pulse.waiting_for.now();
        let beat = NextRequest { run: run.clone(), trainer_epoch, done, wait_ms: 0, waiting_for };
        match client.next(&beat).await {
            Ok(_) => {}
            Err(e) if e.refusal() == Some(RefusalKind::Fenced) => {
                let why = e.to_string();
                *pulse.superseded.lock().unwrap_or_else(PoisonError::into_inner) = Some(why.clone());
                abort.abort(&why);
                return;
            }
            // The call that needs an answer will wait for it; a missed beat alone is no reason to stop.
            Err(e) => tracing::debug!("pulse: {e}"),
        }
    }
}

/// Calls until there is an answer, the answer is final, or the conductor has been away for too long.
fn waiting<A, F>(config: &LinkConfig, what: &str, call: impl FnMut() -> F) -> Result<A, Error>
where
    F: Future<Output = Result<A, ClientError>>,
{
    let mut away = Away { since: Instant::now(), said: None, pause: PAUSE };
    let patience = Patience::for_at_most(config.away_max);
    let result = config.runtime.block_on(patiently(patience, call, |error, waited| {
        away.say(what, error, waited, config.away_max);
    }));
    let waited_s = away.since.elapsed().as_secs();
    if away.said.is_some() && result.is_ok() {
        tracing::info!(waited_s, "the conductor answers again");
    }
    result.map_err(|error| {
        if error.is_transient() { Error::Unreachable { waited_s, last: error.to_string() } } else { lasting(&error) }
    })
}

fn lasting(error: &ClientError) -> Error {
    match error.refusal() {
        Some(RefusalKind::Fenced) => Error::Superseded(error.to_string()),
        _ => Error::Refused(error.to_string()),
    }
}
