//! Routes that change what the engine does: abort, pause, continue, flush, weights.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    Json,
    body::Bytes,
    extract::{Query, State},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::{
    command::{Command, Install, PauseMode},
    front::Front,
    http::reply::Refusal,
    request::{field, flag, object},
};

/// How often a flush that waits looks again.
const FLUSH_POLL: Duration = Duration::from_millis(20);

/// `POST /abort_request`: 200 and nothing, whether there was anything to abort or not. The id must match exactly (SGLang aborts
/// every id that begins with it).
pub(crate) async fn abort_request(State(front): State<Arc<Front>>, body: Bytes) -> Result<StatusCode, Refusal> {
    let body = if body.is_empty() { Map::new() } else { object(&body)? };
    if flag(&body, "abort_all")? {
        front.tell(Command::AbortAll)?;
    } else if let Some(id) = field(&body, "rid", "a string", Value::as_str)?.and_then(|rid| front.shared.find(rid)) {
        front.tell(Command::Abort(id))?;
    }
    Ok(StatusCode::OK)
}

/// `POST /pause_generation`.
pub(crate) async fn pause(State(front): State<Arc<Front>>, body: Bytes) -> Result<Json<Value>, Refusal> {
    let mode =
        field(&object(&body)?, "mode", "\"abort\", \"retract\" or \"in_place\"", |value| match value.as_str()? {
            "abort" => Some(PauseMode::Abort),
            "retract" => Some(PauseMode::Retract),
            "in_place" => Some(PauseMode::InPlace),
            _ => None,
        })?;
    let mode = mode.unwrap_or(PauseMode::Abort);
    front.ask(front.options.control_timeout(), "the pause", |done| Command::Pause(mode, done)).await?;
    Ok(Json(json!({"message": "Generation paused successfully.", "status": "ok"})))
}

/// `POST /continue_generation`.
pub(crate) async fn go_on(State(front): State<Arc<Front>>, body: Bytes) -> Result<Json<Value>, Refusal> {
    object(&body)?;
    front.ask(front.options.control_timeout(), "the continuation", Command::Continue).await?;
    Ok(Json(json!({"message": "Generation continued successfully.", "status": "ok"})))
}

#[derive(Deserialize)]
pub(crate) struct FlushQuery {
    timeout: Option<f64>,
}

/// `GET|POST /flush_cache?timeout=SECONDS`: forgets all cached KV, unless a request is in the way.
pub(crate) async fn flush_cache(
    State(front): State<Arc<Front>>,
    Query(query): Query<FlushQuery>,
) -> Result<Response, Refusal> {
    let patience = Duration::try_from_secs_f64(query.timeout.unwrap_or(0.0)).unwrap_or_default();
    let deadline = Instant::now() + patience.min(front.options.control_timeout());
    loop {
        if front.ask(front.options.control_timeout(), "the flush", Command::Flush).await? {
            let note = "Cache flushed.\nPlease check backend logs for more details. (When there are running or waiting requests, \
                        the operation will not be performed.)\n";
            return Ok(note.into_response());
        }
        if Instant::now() >= deadline {
            return Ok((StatusCode::BAD_REQUEST, "Flush cache failed.\n").into_response());
        }
        tokio::time::sleep(FLUSH_POLL).await;
    }
}

/// `POST /update_weights_from_disk`: reads a Hugging Face folder while generation goes on, then changes to it between two
/// iterations. Whatever goes wrong before the change leaves the old weights and version.
pub(crate) async fn update_weights_from_disk(
    State(front): State<Arc<Front>>,
    body: Bytes,
) -> Result<Response, Refusal> {
    let body = object(&body)?;
    let string = |key| field(&body, key, "a string", |value| value.as_str().map(str::to_owned));
    let model_path = string("model_path")?.ok_or_else(|| Refusal::malformed("model_path: field required"))?;
    let version = string("weight_version")?;
    if let Some(format) = string("load_format")?
        && !["auto", "safetensors"].contains(&format.as_str())
    {
        return Ok(update_failed(format!(
            "load_format {format} is not supported by this engine; it reads safetensors"
        )));
    }
    if body.get("manifest").is_some_and(|manifest| !manifest.is_null()) {
        return Ok(update_failed("manifest is not supported by this engine; leave it out".to_owned()));
    }
    let flush_cache = field(&body, "flush_cache", "true or false", Value::as_bool)?.unwrap_or(true);
    let abort_all = flag(&body, "abort_all_requests")?;

    let deadline = front.options.control_timeout();
    let begun = Instant::now();
    let Ok(_turn) = tokio::time::timeout(deadline, front.updates.lock()).await else {
        return Ok(update_failed(format!("another update has not ended within {} s", deadline.as_secs())));
    };
    let (loader, folder) = (front.loader.clone(), PathBuf::from(&model_path));
    let read = tokio::task::spawn_blocking({
        let folder = folder.clone();
        move || loader.read(&folder)
    });
    let weights = match read.await {
        Ok(Ok(weights)) => weights,
        Ok(Err(reason)) => return Ok(update_failed(format!("Failed to update weights: {reason}."))),
        Err(_) => return Ok(update_failed(format!("Failed to update weights: reading {model_path} broke off."))),
    };
    let install = Install { weights, model_path: folder, version: version.clone(), flush_cache, abort_all };
    let rest = deadline.saturating_sub(begun.elapsed());
    let installed = match front.ask(rest, "the update", |done| Command::Install(Box::new(install), done)).await {
        Ok(installed) => installed,
        Err(refusal) => return Ok(update_failed(format!("{}; the old weights stay", refusal.message()))),
    };
    if !installed.flushed {
        let message = "Weights were updated, but the cache was not flushed because requests are still running or queued. Retract \
                       or finish them, then call /flush_cache.";
        return Ok(updated(StatusCode::BAD_REQUEST, message, 0));
    }
    let renamed = version.map(|version| format!(" Weight version updated to {version}.")).unwrap_or_default();
    let message = format!("Succeeded to update model weights.{renamed}");
    tracing::info!(
        model_path,
        weight_version = &*front.shared.weight_version(),
        seconds = begun.elapsed().as_secs_f64(),
        "weights updated"
    );
    Ok(updated(StatusCode::OK, &message, installed.paused_requests))
}

fn update_failed(message: String) -> Response {
    tracing::warn!(message, "weights not updated");
    updated(StatusCode::BAD_REQUEST, &message, 0)
}

fn updated(status: StatusCode, message: &str, paused: usize) -> Response {
    let body = json!({"success": status == StatusCode::OK, "message": message, "num_paused_requests": paused});
    (status, Json(body)).into_response()
}

/// `POST /update_weight_version`: another name for the weights that are served.
pub(crate) async fn update_weight_version(
    State(front): State<Arc<Front>>,
    body: Bytes,
) -> Result<Json<Value>, Refusal> {
    let body = object(&body)?;
    let version = field(&body, "new_version", "a string", |value| value.as_str().map(str::to_owned))?
        .ok_or_else(|| Refusal::malformed("new_version: field required"))?;
    let abort_all = field(&body, "abort_all_requests", "true or false", Value::as_bool)?.unwrap_or(true);
    let new = version.clone();
    front
        .ask(front.options.control_timeout(), "the renaming", |done| Command::Rename { version: new, abort_all, done })
        .await?;
    Ok(Json(
        json!({"success": true, "message": format!("Weight version updated to {version}"), "new_version": version}),
    ))
}
