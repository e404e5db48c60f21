//! Routes that tell: health, readiness, the model, the load.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use axum::{Json, extract::State, http::StatusCode};
use serde_json::{Value, json};

use crate::{
    command::{Command, Load},
    front::Front,
    http::reply::Refusal,
    outcome::Event,
    pages::PAGE_TOKENS,
    request::GenerateRequest,
    sampling_params::SamplingParams,
};

/// `GET /health`, `/ready`, `/ping`: the engine can answer. A pause does not change that, and neither does a lack of weights
/// (SGLang answers 503 while paused, which makes probes kill it in the middle of a weight update).
pub(crate) async fn health(State(front): State<Arc<Front>>) -> StatusCode {
    let silent = front.shared.silence() > Duration::from_secs(front.options.watchdog_timeout_secs);
    if silent || front.shared.leaving.load(Ordering::Relaxed) {
        StatusCode::SERVICE_UNAVAILABLE
    } else {
        StatusCode::OK
    }
}

/// `GET /health_generate`: an idle engine generates one token; a busy, paused or empty one answers from its scheduler, which is
/// alive if it does.
pub(crate) async fn health_generate(State(front): State<Arc<Front>>) -> StatusCode {
    let deadline = Duration::from_secs(front.options.health_timeout_secs);
    let generated = tokio::time::timeout(deadline, generate_one(&front)).await;
    match generated {
        Ok(Ok(())) => health(State(front)).await,
        Ok(Err(_)) | Err(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}

async fn generate_one(front: &Arc<Front>) -> Result<(), Refusal> {
    let load = load(front).await?;
    if load.paused || load.running + load.waiting > 0 || !front.shared.served().has_weights {
        return Ok(());
    }
    let params = SamplingParams { greedy: true, max_new_tokens: Some(1), ..SamplingParams::default() };
    let mut live = front.submit(GenerateRequest { rid: None, prompt: vec![0], params, logprob: None }, false)?;
    while !matches!(live.next().await?, Event::Done(_)) {}
    Ok(())
}

async fn load(front: &Front) -> Result<Load, Refusal> {
    let deadline = Duration::from_secs(front.options.health_timeout_secs);
    front.ask(deadline, "the question for the load", Command::Load).await
}

/// `GET /model_info`, `/get_model_info`.
pub(crate) async fn model_info(State(front): State<Arc<Front>>) -> Json<Value> {
    let served = front.shared.served();
    let path = served.model_path.display().to_string();
    Json(json!({
        "model_path": path,
        "served_model_name": path,
        "tokenizer_path": front.options.model_path.display().to_string(),
        "is_generation": true,
        "preferred_sampling_params": null,
        "weight_version": &*served.weight_version,
        "has_weights": served.has_weights,
        "load_format": "auto",
        "reasoning_parser": null,
        "tool_call_parser": null,
        "disaggregation_mode": "null",
        "has_image_understanding": false,
        "has_audio_understanding": false,
        "model_type": front.loader.model_type(),
        "architectures": front.loader.architectures(),
    }))
}

/// `GET /server_info`, `/get_server_info`: the options of the start, and the state.
pub(crate) async fn server_info(State(front): State<Arc<Front>>) -> Result<Json<Value>, Refusal> {
    let load = load(&front).await?;
    let options = &front.options;
    let path = options.model_path.display().to_string();
    Ok(Json(json!({
        "model_path": path,
        "served_model_name": path,
        "tokenizer_path": path,
        "load_format": "auto",
        "dtype": "float32",
        "device": "cpu",
        "host": options.listen.ip().to_string(),
        "port": options.listen.port(),
        "tp_size": 1,
        "dp_size": 1,
        "pp_size": 1,
        "nnodes": 1,
        "node_rank": 0,
        "page_size": PAGE_TOKENS,
        "weight_version": options.weight_version,
        "context_length": front.limits.context,
        "max_running_requests": options.max_running_requests,
        "max_queued_requests": options.max_queued_requests,
        "max_total_tokens": options.max_total_tokens,
        "chunked_prefill_size": options.chunked_prefill_size,
        "disable_radix_cache": options.disable_radix_cache,
        "incremental_streaming_output": options.incremental_streaming_output,
        "enable_metrics": true,
        "enable_deterministic_inference": true,
        "random_seed": null,
        "status": if front.shared.leaving.load(Ordering::Relaxed) { "stopping" } else { "ready" },
        "max_total_num_tokens": load.capacity_tokens,
        "max_req_input_len": front.limits.sequence().saturating_sub(1),
        "version": env!("CARGO_PKG_VERSION"),
        "frontend": "thresh",
        "internal_states": [{
            "effective_max_running_requests_per_dp": options.max_running_requests,
            "last_gen_throughput": load.gen_throughput,
            "memory_usage": {"token_capacity": load.capacity_tokens},
        }],
    })))
}

/// `GET /v1/loads`.
pub(crate) async fn loads(State(front): State<Arc<Front>>) -> Result<Json<Value>, Refusal> {
    let load = load(&front).await?;
    let usage = if load.capacity_tokens == 0 { 0.0 } else { load.used_tokens as f64 / load.capacity_tokens as f64 };
    Ok(Json(json!({
        "timestamp": jiff::Timestamp::now().to_string(),
        "version": env!("CARGO_PKG_VERSION"),
        "accelerator": null,
        "num_accelerators": 1,
        "loads": [{
            "timestamp": front.shared.clock.unix(Instant::now()),
            "dp_rank": 0,
            "num_running_reqs": load.running,
            "num_waiting_reqs": load.waiting,
            "num_waiting_uncached_tokens": load.waiting_tokens,
            "num_used_tokens": load.used_tokens,
            "num_total_tokens": load.used_tokens + load.waiting_tokens,
            "num_active_tokens": load.used_tokens,
            "max_total_num_tokens": load.capacity_tokens,
            "max_running_requests": front.options.max_running_requests,
            "token_usage": usage,
            "gen_throughput": load.gen_throughput,
            "cache_hit_rate": load.cache_hit_rate,
            "utilization": usage,
            "memory": {"token_capacity": load.capacity_tokens},
            "disaggregation": {"mode": "null"},
            "queues": {
                "waiting": load.waiting,
                "grammar": 0,
                "paused": if load.paused { load.running + load.waiting } else { 0 },
                "retracted": load.retracted,
            },
        }],
    })))
}

/// `GET /v1/models`.
pub(crate) async fn models(State(front): State<Arc<Front>>) -> Json<Value> {
    let path = front.shared.served().model_path.display().to_string();
    Json(json!({"object": "list", "data": [{
        "id": path,
        "object": "model",
        "created": front.shared.clock.unix(Instant::now()) as u64,
        "owned_by": "thresh",
        "root": path,
        "parent": null,
        "max_model_len": front.limits.sequence(),
    }]}))
}
