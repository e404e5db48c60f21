//! What every server of ours has in common: bearer authentication, refusals as JSON, and an end.

use axum::{
    Json, Router,
    extract::{Request, State},
    http::{StatusCode, header::AUTHORIZATION},
    middleware::Next,
    response::{IntoResponse, Response},
};
use tokio::net::TcpListener;

use crate::wire::{Refusal, RefusalKind};

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = match self.kind {
            RefusalKind::Unauthorized => StatusCode::UNAUTHORIZED,
            RefusalKind::Fenced | RefusalKind::LeaseLost | RefusalKind::PackCollected => StatusCode::CONFLICT,
            RefusalKind::Invalid => StatusCode::BAD_REQUEST,
            RefusalKind::ConductorSuperseded | RefusalKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        };
        (status, Json(self)).into_response()
    }
}

/// Wraps `routes` so that each needs `Authorization: Bearer <token>`.
pub fn with_bearer<S: Clone + Send + Sync + 'static>(routes: Router<S>, token: &str) -> Router<S> {
    let expected: std::sync::Arc<str> = format!("Bearer {token}").into();
    routes.layer(axum::middleware::from_fn_with_state(expected, require_bearer))
}

async fn require_bearer(State(expected): State<std::sync::Arc<str>>, request: Request, next: Next) -> Response {
    let given = request.headers().get(AUTHORIZATION).map(|value| value.as_bytes());
    if given.is_some_and(|given| equal_in_constant_time(given, expected.as_bytes())) {
        return next.run(request).await;
    }
    let message = if given.is_some() { "the bearer token is not this run's" } else { "a bearer token is required" };
    Refusal { kind: RefusalKind::Unauthorized, message: message.to_owned(), conductor_epoch: 0 }.into_response()
}

fn equal_in_constant_time(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0u8, |difference, (x, y)| difference | (x ^ y)) == 0
}

/// Serves until `end` resolves, then lets requests in flight finish.
///
/// # Errors
/// When the listener fails.
pub async fn serve(
    listener: TcpListener,
    routes: Router,
    end: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    axum::serve(listener, routes).with_graceful_shutdown(end).await
}

/// Resolves at SIGTERM or SIGINT.
pub async fn asked_to_stop() {
    use tokio::signal::unix::{SignalKind, signal};
    match (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) {
        (Ok(mut terminate), Ok(mut interrupt)) => {
            tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
        }
        // Without handlers the default action ends the process, which is an end too.
        _ => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;

    #[tokio::test]
    async fn a_request_without_the_runs_token_is_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/x", listener.local_addr().unwrap());
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let routes = with_bearer(Router::new().route("/x", get(|| async { "in" })), "secret");
        let server = tokio::spawn(serve(listener, routes, async { drop(stopped.await) }));
        let http = reqwest::Client::new();
        assert_eq!(http.get(&url).send().await.unwrap().status(), 401);
        assert_eq!(http.get(&url).bearer_auth("secreT").send().await.unwrap().status(), 401);
        assert_eq!(http.get(&url).bearer_auth("secret").send().await.unwrap().text().await.unwrap(), "in");
        stop.send(()).unwrap();
        server.await.unwrap().unwrap();
    }
}
