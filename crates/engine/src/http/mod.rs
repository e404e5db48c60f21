//! The HTTP interface: SGLang's routes and shapes, as far as reinforcement learning uses them.

pub(crate) mod control;
pub(crate) mod generate;
pub(crate) mod introspect;
pub(crate) mod reply;

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::DefaultBodyLimit,
    http::StatusCode,
    routing::{get, post},
};
use serde_json::{Value, json};

use crate::front::Front;

/// Largest body: a batch of long prompts.
const BODY_MAX: usize = 64 << 20;

/// All routes of an engine.
pub(crate) fn router(front: Arc<Front>, health: &control_health::Health) -> Router {
    use introspect as tell;
    let open = Router::new()
        .route("/health", get(tell::health))
        .route("/health_generate", get(tell::health_generate))
        .route("/ready", get(tell::health))
        .with_state(front.clone());
    let guarded = Router::new()
        .route("/generate", post(generate::generate).put(generate::generate))
        .route("/abort_request", post(control::abort_request))
        .route("/pause_generation", post(control::pause))
        .route("/continue_generation", post(control::go_on))
        .route("/flush_cache", post(control::flush_cache).get(control::flush_cache))
        .route("/update_weights_from_disk", post(control::update_weights_from_disk))
        .route("/update_weight_version", post(control::update_weight_version))
        .route("/ping", get(tell::health))
        .route("/model_info", get(tell::model_info))
        .route("/get_model_info", get(tell::model_info))
        .route("/server_info", get(tell::server_info))
        .route("/get_server_info", get(tell::server_info))
        .route("/v1/loads", get(tell::loads))
        .route("/v1/models", get(tell::models))
        .layer(DefaultBodyLimit::max(BODY_MAX))
        .with_state(front.clone());
    let guarded = match &front.options.api_key {
        Some(key) if !key.is_empty() => ::control::server::with_bearer(guarded, key),
        _ => guarded,
    };
    open.merge(health.router()).merge(guarded).fallback(not_found).method_not_allowed_fallback(wrong_method)
}

use ::control::health as control_health;

async fn not_found() -> (StatusCode, Json<Value>) {
    (StatusCode::NOT_FOUND, Json(json!({"detail": "Not Found"})))
}

async fn wrong_method() -> (StatusCode, Json<Value>) {
    (StatusCode::METHOD_NOT_ALLOWED, Json(json!({"detail": "Method Not Allowed"})))
}
