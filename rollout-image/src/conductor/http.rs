//! The protocol's routes: each hands an event in and waits for its answer.

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::{Request, State},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use conductor::{Event, Reply, ReplyId, SettingsAsked};
use control::wire::{LeaseReply, Refusal, RefusalKind, SettingsRequest};
use serde::de::DeserializeOwned;

use super::{inbox::Inbox, setup::Setup};

/// Largest request body: references and summaries, never tensors.
const BODY_BYTES_MAX: usize = 16 << 20;

#[derive(Clone)]
struct Front {
    inbox: Inbox,
    setup: Arc<Setup>,
}

/// All routes under `/v1`.
pub fn routes(inbox: Inbox, setup: Arc<Setup>) -> Router {
    Router::new()
        .route(
            "/v1/lease",
            post(|State(front): State<Front>, request| async move { front.asked(request, Event::Lease).await }),
        )
        .route(
            "/v1/renew",
            post(|State(front): State<Front>, request| async move { front.asked(request, Event::Renew).await }),
        )
        .route(
            "/v1/complete",
            post(|State(front): State<Front>, request| async move {
                front.asked(request, |id, body| Event::Complete(id, Box::new(body))).await
            }),
        )
        .route(
            "/v1/fail",
            post(|State(front): State<Front>, request| async move { front.asked(request, Event::Fail).await }),
        )
        .route(
            "/v1/claim",
            post(|State(front): State<Front>, request| async move { front.asked(request, Event::Claim).await }),
        )
        .route(
            "/v1/next",
            post(|State(front): State<Front>, request| async move { front.asked(request, Event::Next).await }),
        )
        .route(
            "/v1/report",
            post(|State(front): State<Front>, request| async move {
                front.asked(request, |id, body| Event::Report(id, Box::new(body))).await
            }),
        )
        .route("/v1/settings", post(settings))
        .route(
            "/v1/checkpoint",
            post(|State(front): State<Front>, request| async move { front.asked(request, Event::Checkpoint).await }),
        )
        .route(
            "/v1/compact",
            post(|State(front): State<Front>, request| async move { front.asked(request, Event::Compact).await }),
        )
        .route("/v1/progress", get(|State(front): State<Front>| async move { front.progress().await }))
        .with_state(Front { inbox, setup })
}

async fn settings(State(front): State<Front>, request: Request) -> Response {
    let resolver = front.setup.clone();
    let event = move |id, asked: SettingsRequest| {
        let settings = asked.settings;
        Event::Settings(
            id,
            Box::new(SettingsAsked {
                number: asked.number,
                fence_attempts_up_to: settings.fence_attempts_up_to,
                cordoned_nodes: settings.cordoned_nodes,
                paused: settings.paused,
                config: resolver.resolve(&settings.spec).map(Box::new),
            }),
        )
    };
    front.asked(request, event).await
}

impl Front {
    /// A body is read here and not by an extractor, so that a bad one is refused in the protocol's own words.
    async fn asked<Body: DeserializeOwned>(
        &self,
        request: Request,
        event: impl FnOnce(ReplyId, Body) -> Event,
    ) -> Response {
        let body = match axum::body::to_bytes(request.into_body(), BODY_BYTES_MAX).await {
            Ok(body) => body,
            Err(error) => return self.refuse(RefusalKind::Invalid, format!("the body cannot be read: {error}")),
        };
        match serde_json::from_slice(&body) {
            Ok(body) => self.ask(|id| event(id, body)).await,
            Err(error) => self.refuse(RefusalKind::Invalid, format!("the body is not of the protocol: {error}")),
        }
    }

    async fn progress(&self) -> Response {
        match self.inbox.shown() {
            Some(progress) => Json(progress).into_response(),
            None => self.ask(Event::Progress).await,
        }
    }

    async fn ask(&self, event: impl FnOnce(ReplyId) -> Event) -> Response {
        if self.inbox.epoch() == 0 {
            return self.refuse(RefusalKind::Unavailable, "the run's journal is being read".to_owned());
        }
        let Some(reply) = self.inbox.ask(event).await else {
            return self.refuse(
                RefusalKind::Unavailable,
                "this conductor's reign ended before there was an answer".to_owned(),
            );
        };
        match reply {
            Reply::Lease { grants, engines, abandon } => {
                let mut leases = Vec::with_capacity(grants.len());
                for grant in grants {
                    let (lease, task) = (grant.lease.clone(), grant.task);
                    match self.setup.rows.lease(grant) {
                        Ok(lease) => leases.push(lease),
                        // One bad row is one failed group, and holds up nobody else.
                        Err(error) => {
                            let reason = format!("{error:#}");
                            tracing::warn!(task, reason, "a row of the data cannot be used");
                            self.inbox.post(Event::Unusable { lease, task, reason });
                        }
                    }
                }
                Json(LeaseReply { conductor_epoch: self.inbox.epoch(), leases, engines, abandon }).into_response()
            }
            Reply::Renew(reply) => Json(reply).into_response(),
            Reply::Complete(reply) => Json(reply).into_response(),
            Reply::Fail(reply) => Json(reply).into_response(),
            Reply::Claim(reply) => Json(reply).into_response(),
            Reply::Next(reply) => Json(reply).into_response(),
            Reply::Report(reply) => Json(reply).into_response(),
            Reply::Settings(reply) => Json(reply).into_response(),
            Reply::Checkpoint(reply) => Json(reply).into_response(),
            Reply::Compact(reply) => Json(reply).into_response(),
            Reply::Progress(reply) => Json(reply).into_response(),
            Reply::Refused(refusal) => refusal.into_response(),
        }
    }

    fn refuse(&self, kind: RefusalKind, message: String) -> Response {
        Refusal { kind, message, conductor_epoch: self.inbox.epoch() }.into_response()
    }
}
