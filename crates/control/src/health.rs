//! `/livez`, `/readyz` and `/metrics`, the same on every process.

use std::sync::{Arc, Mutex};

use axum::{Router, extract::State, http::StatusCode, routing::get};
use prometheus::{Registry, TextEncoder};

/// What a process says of itself. Ready means: it can answer what it exists for; the reason is shown while it cannot.
#[derive(Clone)]
pub struct Health(Arc<Inner>);

struct Inner {
    not_ready: Mutex<Option<String>>,
    dead: Mutex<Option<String>>,
    registry: Registry,
}

impl Health {
    /// Alive and, for the given reason, not ready yet.
    #[must_use]
    pub fn starting(reason: impl Into<String>) -> Self {
        Self(Arc::new(Inner {
            not_ready: Mutex::new(Some(reason.into())),
            dead: Mutex::new(None),
            registry: Registry::new(),
        }))
    }

    /// Register metrics here.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        &self.0.registry
    }

    /// From now on `/readyz` is 200.
    pub fn ready(&self) {
        set(&self.0.not_ready, None);
    }

    /// From now on `/readyz` is 503 with this reason.
    pub fn not_ready(&self, reason: impl Into<String>) {
        set(&self.0.not_ready, Some(reason.into()));
    }

    /// From now on `/livez` is 503 with this reason: the process cannot mend itself and wants to be restarted.
    pub fn dead(&self, reason: impl Into<String>) {
        set(&self.0.dead, Some(reason.into()));
    }

    /// The three routes, to merge into a server's own.
    pub fn router(&self) -> Router {
        Router::new()
            .route("/livez", get(|State(health): State<Health>| async move { answer(&health.0.dead) }))
            .route("/readyz", get(|State(health): State<Health>| async move { answer(&health.0.not_ready) }))
            .route("/metrics", get(metrics))
            .with_state(self.clone())
    }
}

fn set(place: &Mutex<Option<String>>, value: Option<String>) {
    *place.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = value;
}

fn answer(reason: &Mutex<Option<String>>) -> (StatusCode, String) {
    match &*reason.lock().unwrap_or_else(std::sync::PoisonError::into_inner) {
        None => (StatusCode::OK, "ok\n".to_owned()),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
    }
}

async fn metrics(State(health): State<Health>) -> (StatusCode, String) {
    match TextEncoder::new().encode_to_string(&health.0.registry.gather()) {
        Ok(text) => (StatusCode::OK, text),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}
