//! Clients of the protocol.
//!
//! A client remembers the highest conductor epoch it met. An answer of a lower epoch comes from a conductor that has been
//! superseded and does not know it yet: such an answer is an error, whatever it says, and the caller tries again.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use reqwest::StatusCode;
use serde::{Serialize, de::DeserializeOwned};

use crate::wire::{
    CheckpointReply, CheckpointRequest, ClaimReply, ClaimRequest, CompactReply, CompactRequest, CompleteReply,
    CompleteRequest, ConductorEpoch, FailReply, FailRequest, Invite, InviteAck, LeaseReply, LeaseRequest, NextReply,
    NextRequest, Progress, Refusal, RefusalKind, RenewReply, RenewRequest, ReportReply, ReportRequest, SettingsReply,
    SettingsRequest,
};

/// Why a call did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The server answered and refused.
    #[error("{url}: refused ({:?}): {}", .refusal.kind, .refusal.message)]
    Refused {
        /// Which call.
        url: String,
        /// What it said.
        refusal: Refusal,
    },
    /// No answer: connection refused, reset, or time-out.
    #[error("{url}: no answer: {reason}")]
    Unreachable {
        /// Which call.
        url: String,
        /// What the transport said.
        reason: String,
    },
    /// Answered by a conductor older than one met before.
    #[error("{url}: answered by conductor epoch {answered}, but epoch {met} was met before; it is superseded")]
    Superseded {
        /// Which call.
        url: String,
        /// Epoch of the answer.
        answered: ConductorEpoch,
        /// Highest epoch met.
        met: ConductorEpoch,
    },
    /// An answer that is not of the protocol.
    #[error("{url}: status {status}, and the body is not of the protocol: {body}")]
    BadReply {
        /// Which call.
        url: String,
        /// HTTP status.
        status: u16,
        /// First part of the body.
        body: String,
    },
}

impl ClientError {
    /// True when the same call may succeed later without anything else changing.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Refused { refusal, .. } => {
                matches!(refusal.kind, RefusalKind::Unavailable | RefusalKind::ConductorSuperseded)
            }
            Self::Unreachable { .. } | Self::Superseded { .. } => true,
            Self::BadReply { status, .. } => *status >= 500,
        }
    }

    /// The kind of refusal, if it is one.
    #[must_use]
    pub fn refusal(&self) -> Option<RefusalKind> {
        match self {
            Self::Refused { refusal, .. } => Some(refusal.kind),
            _ => None,
        }
    }
}

/// The highest conductor epoch met, shared by all clients of a process for one run.
#[derive(Clone, Debug, Default)]
pub struct EpochMemory(Arc<AtomicU64>);

impl EpochMemory {
    /// The highest epoch met so far.
    #[must_use]
    pub fn highest(&self) -> ConductorEpoch {
        self.0.load(Ordering::Acquire)
    }

    /// Takes note of `epoch`. Returns the highest epoch met before when `epoch` is lower, i.e. must be refused.
    pub fn meet(&self, epoch: ConductorEpoch) -> Result<(), ConductorEpoch> {
        let before = self.0.fetch_max(epoch, Ordering::AcqRel);
        if epoch < before { Err(before) } else { Ok(()) }
    }
}

/// Replies that say which conductor answered.
pub trait FromConductor {
    /// Epoch of the conductor that answered.
    fn conductor_epoch(&self) -> ConductorEpoch;
}

macro_rules! from_conductor {
    ($($reply:ty),+) => { $(impl FromConductor for $reply { fn conductor_epoch(&self) -> ConductorEpoch { self.conductor_epoch } })+ };
}
from_conductor!(
    LeaseReply,
    RenewReply,
    CompleteReply,
    FailReply,
    ClaimReply,
    NextReply,
    ReportReply,
    SettingsReply,
    CheckpointReply,
    CompactReply,
    Progress
);

/// How long calls are repeated while the other side is away.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// First pause between tries.
    pub pause: Duration,
    /// Longest pause.
    pub pause_max: Duration,
    /// Give up after this.
    pub deadline: Duration,
}

impl Patience {
    /// Quick first, then twice a second, for `deadline` in all.
    #[must_use]
    pub fn for_at_most(deadline: Duration) -> Self {
        Self { pause: Duration::from_millis(20), pause_max: Duration::from_millis(500), deadline }
    }
}

/// Client of a conductor.
#[derive(Clone, Debug)]
pub struct ConductorClient {
    http: reqwest::Client,
    base: String,
    token: String,
    epochs: EpochMemory,
}

impl ConductorClient {
    /// A client of the conductor at `base` (`http://host:port`).
    #[must_use]
    pub fn new(http: reqwest::Client, base: impl Into<String>, token: impl Into<String>, epochs: EpochMemory) -> Self {
        let mut base = base.into();
        while base.ends_with('/') {
            base.pop();
        }
        Self { http, base, token: token.into(), epochs }
    }

    /// Where it calls.
    #[must_use]
    pub fn base(&self) -> &str {
        &self.base
    }

    /// The epochs it has met.
    #[must_use]
    pub fn epochs(&self) -> &EpochMemory {
        &self.epochs
    }

    /// An answer of 200 that does not fit what was asked: `body` says how.
    #[must_use]
    pub fn bad_reply(&self, body: String) -> ClientError {
        ClientError::BadReply { url: self.base.clone(), status: StatusCode::OK.as_u16(), body }
    }

    async fn post<Q: Serialize + Sync, A: DeserializeOwned + FromConductor>(
        &self,
        path: &str,
        request: &Q,
        timeout: Duration,
    ) -> Result<A, ClientError> {
        let url = format!("{}{path}", self.base);
        let sent = self.http.post(&url).bearer_auth(&self.token).timeout(timeout).json(request).send().await;
        self.meet(decode(&url, sent).await?, url)
    }

    fn meet<A: FromConductor>(&self, reply: A, url: String) -> Result<A, ClientError> {
        let answered = reply.conductor_epoch();
        self.epochs.meet(answered).map_err(|met| ClientError::Superseded { url, answered, met })?;
        Ok(reply)
    }

    /// `POST /v1/claim`
    pub async fn claim(&self, request: &ClaimRequest) -> Result<ClaimReply, ClientError> {
        self.post("/v1/claim", request, SHORT).await
    }

    /// `POST /v1/next`
    pub async fn next(&self, request: &NextRequest) -> Result<NextReply, ClientError> {
        self.post("/v1/next", request, Duration::from_millis(request.wait_ms) + SHORT).await
    }

    /// `POST /v1/report`
    pub async fn report(&self, request: &ReportRequest) -> Result<ReportReply, ClientError> {
        self.post("/v1/report", request, LONG).await
    }

    /// `POST /v1/lease`
    pub async fn lease(&self, request: &LeaseRequest) -> Result<LeaseReply, ClientError> {
        self.post("/v1/lease", request, Duration::from_millis(request.wait_ms) + SHORT).await
    }

    /// `POST /v1/renew`
    pub async fn renew(&self, request: &RenewRequest) -> Result<RenewReply, ClientError> {
        self.post("/v1/renew", request, SHORT).await
    }

    /// `POST /v1/complete`
    pub async fn complete(&self, request: &CompleteRequest) -> Result<CompleteReply, ClientError> {
        self.post("/v1/complete", request, LONG).await
    }

    /// `POST /v1/fail`
    pub async fn fail(&self, request: &FailRequest) -> Result<FailReply, ClientError> {
        self.post("/v1/fail", request, LONG).await
    }

    /// `POST /v1/settings`
    pub async fn settings(&self, request: &SettingsRequest) -> Result<SettingsReply, ClientError> {
        self.post("/v1/settings", request, SHORT).await
    }

    /// `POST /v1/checkpoint`
    pub async fn checkpoint(&self, request: &CheckpointRequest) -> Result<CheckpointReply, ClientError> {
        self.post("/v1/checkpoint", request, SHORT).await
    }

    /// `POST /v1/compact`
    pub async fn compact(&self, request: &CompactRequest) -> Result<CompactReply, ClientError> {
        self.post("/v1/compact", request, LONG).await
    }

    /// `GET /v1/progress`
    pub async fn progress(&self) -> Result<Progress, ClientError> {
        let url = format!("{}/v1/progress", self.base);
        let sent = self.http.get(&url).bearer_auth(&self.token).timeout(SHORT).send().await;
        self.meet(decode(&url, sent).await?, url)
    }
}

/// Client of a worker, for the conductor's invitation.
///
/// # Errors
/// As [`ClientError`].
pub async fn invite(
    http: &reqwest::Client,
    worker: &str,
    pool_token: &str,
    request: &Invite,
) -> Result<InviteAck, ClientError> {
    let url = format!("{worker}/v1/runs");
    let sent = http.post(&url).bearer_auth(pool_token).timeout(SHORT).json(request).send().await;
    decode(&url, sent).await
}

/// Repeats `call` while it fails transiently, telling `on_wait` about each failure (attempt's error and seconds waited).
///
/// # Errors
/// The first lasting failure, or the last transient one when patience ends.
pub async fn patiently<A, F>(
    patience: Patience,
    mut call: impl FnMut() -> F,
    mut on_wait: impl FnMut(&ClientError, Duration),
) -> Result<A, ClientError>
where
    F: Future<Output = Result<A, ClientError>>,
{
    let since = Instant::now();
    let mut pause = patience.pause;
    loop {
        match call().await {
            Err(error) if error.is_transient() && since.elapsed() < patience.deadline => {
                on_wait(&error, since.elapsed());
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(patience.pause_max);
            }
            done => return done,
        }
    }
}

const SHORT: Duration = Duration::from_secs(10);
/// For calls whose reply waits for a disk.
const LONG: Duration = Duration::from_secs(60);
const BODY_SHOWN: usize = 300;

async fn decode<A: DeserializeOwned>(url: &str, sent: reqwest::Result<reqwest::Response>) -> Result<A, ClientError> {
    let unreachable =
        |error: reqwest::Error| ClientError::Unreachable { url: url.to_owned(), reason: innermost(&error) };
    let response = sent.map_err(unreachable)?;
    let status = response.status();
    let body = response.bytes().await.map_err(unreachable)?;
    if status == StatusCode::OK {
        if let Ok(reply) = serde_json::from_slice(&body) {
            return Ok(reply);
        }
    } else if let Ok(refusal) = serde_json::from_slice::<Refusal>(&body) {
        return Err(ClientError::Refused { url: url.to_owned(), refusal });
    }
    let body = String::from_utf8_lossy(&body).chars().take(BODY_SHOWN).collect();
    Err(ClientError::BadReply { url: url.to_owned(), status: status.as_u16(), body })
}

/// The cause at the bottom: "connection refused" says more than "error sending request".
fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lower_conductor_epoch_is_refused_once_a_higher_one_was_met() {
        let memory = EpochMemory::default();
        assert_eq!(memory.meet(3), Ok(()));
        assert_eq!(memory.meet(3), Ok(()));
        assert_eq!(memory.meet(5), Ok(()));
        assert_eq!(memory.meet(4), Err(5));
        assert_eq!(memory.highest(), 5);
    }

    #[tokio::test]
    async fn an_absent_conductor_is_transient_and_names_the_cause() {
        let http = crate::names::http_client(crate::names::Names::default()).unwrap();
        // Port 1 of loopback: nobody listens there.
        let client = ConductorClient::new(http, "http://127.0.0.1:1/", "t", EpochMemory::default());
        let error = client.progress().await.unwrap_err();
        assert!(error.is_transient());
        assert!(error.to_string().contains("refused"), "{error}");
        let mut waits = 0;
        let patience = Patience {
            pause: Duration::from_millis(1),
            pause_max: Duration::from_millis(1),
            deadline: Duration::from_millis(30),
        };
        let end = patiently(patience, || client.progress(), |_, _| waits += 1).await;
        assert!(end.is_err() && waits > 0);
    }
}
