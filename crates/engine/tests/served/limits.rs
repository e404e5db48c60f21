//! What is bounded, and what happens at the bound.

use serde_json::{Value, json};

use crate::live::{LONG, Live, finish, model_folder, output_ids, prompt};

fn body(rid: &str, max: usize) -> Value {
    json!({"input_ids": prompt(1, 10), "rid": rid,
           "sampling_params": {"max_new_tokens": max, "ignore_eos": true, "sampling_seed": 1}})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_is_said_at_once_and_loses_nobody() {
    let folder = model_folder(20);
    let engine = Live::start_with(folder.path(), |options| {
        options.max_running_requests = 1;
        options.max_queued_requests = 2;
    })
    .await;
    let mut running = engine.stream(body("running", LONG)).await;
    running.until_tokens(1).await;
    let queued = [engine.spawn(body("q0", 3)), engine.spawn(body("q1", 3))];
    engine.until_load((1, 2)).await;
    let (status, refusal) = engine.post("/generate", body("too many", 3)).await;
    assert_eq!((status, &refusal["message"]), (503, &json!("The request queue is full.")));
    let streamed = engine.stream(body("too many", 3)).await.last().await;
    assert_eq!(
        *finish(&streamed),
        json!({"type": "abort", "status_code": 503, "message": "The request queue is full."})
    );
    engine.abort("running").await;
    for answer in queued {
        assert_eq!(output_ids(&answer.await.unwrap().1).len(), 3);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_live_request_id_cannot_be_taken_twice() {
    let folder = model_folder(20);
    let engine = Live::start(folder.path()).await;
    let mut running = engine.stream(body("same", LONG)).await;
    running.until_tokens(1).await;
    let (status, refusal) = engine.post("/generate", body("same", 3)).await;
    assert_eq!((status, &refusal["error"]["message"]), (400, &json!("Duplicate request ID detected: same")));
    engine.abort("same").await;
    running.last().await;
    engine.generate(body("same", 3)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_requests_than_the_pool_holds_all_end() {
    let folder = model_folder(20);
    let engine = Live::start_with(folder.path(), |options| {
        options.max_total_tokens = Some(5 * 64);
        options.chunked_prefill_size = 100;
    })
    .await;
    let answers: Vec<_> = (0..24).map(|index| engine.spawn(body(&format!("r{index}"), 100 + 8 * index))).collect();
    for (index, answer) in answers.into_iter().enumerate() {
        let (status, answer) = answer.await.unwrap();
        assert_eq!((status, output_ids(&answer).len()), (200, 100 + 8 * index), "{answer}");
    }
    let (status, refusal) = engine.post("/generate", body("never fits", 5 * 64)).await;
    assert_eq!(status, 400);
    assert!(
        refusal["error"]["message"].as_str().unwrap().contains("maximum context length of 320 tokens"),
        "{refusal}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopping_engine_finishes_what_it_has_and_takes_nothing_new() {
    let folder = model_folder(20);
    let mut engine = Live::start(folder.path()).await;
    let mut stream = engine.stream(body("in flight", 400)).await;
    stream.until_tokens(1).await;
    engine.begin_stop();
    // Until the drain begins, requests are taken; from then on none is.
    loop {
        let (status, answer) = engine.post("/generate", body("late", 1)).await;
        if status == 503 {
            assert_eq!(answer["message"], "The server is shutting down.");
            break;
        }
    }
    assert_eq!(output_ids(&stream.last().await).len(), 400);
    engine.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lame_duck_is_not_ready_and_still_answers_who_has_not_heard_of_it() {
    let folder = model_folder(20);
    // Longer than this test: it is cut short by its end.
    let mut engine = Live::start_with(folder.path(), |options| options.lame_duck_secs = 3600).await;
    let mut stream = engine.stream(body("in flight", 200)).await;
    stream.until_tokens(1).await;
    engine.begin_stop();
    engine.until_not_ready().await;
    for path in ["/readyz", "/health", "/ready"] {
        assert_eq!(engine.get(path).await.0, 503, "{path}");
    }
    assert_eq!(engine.get("/livez").await.0, 200, "it must not be restarted");
    let (status, answer) = engine.post("/generate", body("late", 3)).await;
    assert_eq!((status, output_ids(&answer).len()), (200, 3));
    assert_eq!(output_ids(&stream.last().await).len(), 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_the_lame_duck_time_an_engine_drains_and_ends() {
    let folder = model_folder(20);
    let mut engine = Live::start_with(folder.path(), |options| options.lame_duck_secs = 1).await;
    let mut stream = engine.stream(body("in flight", 400)).await;
    stream.until_tokens(1).await;
    engine.begin_stop();
    engine.until_not_ready().await;
    loop {
        let answer = engine.http.post(format!("{}/generate", engine.url)).json(&body("late", 1)).send().await;
        match answer {
            Ok(answer) if answer.status() == 200 => {}
            Ok(answer) => break assert_eq!(answer.status(), 503),
            // In flight were these alone: the engine has ended already.
            Err(_) => break,
        }
    }
    assert_eq!(output_ids(&stream.last().await).len(), 400);
    engine.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_outlasts_the_drain_is_answered_with_what_it_has() {
    let folder = model_folder(20);
    let engine = Live::start_with(folder.path(), |options| options.drain_timeout_secs = 0).await;
    let mut stream = engine.stream(body("in flight", LONG)).await;
    stream.until_tokens(1).await;
    let (last, ended) = tokio::join!(stream.last(), engine.stop());
    assert_eq!(finish(&last)["type"], "abort");
    ended.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_key_only_health_and_metrics_are_open() {
    let folder = model_folder(20);
    let engine = Live::start_with(folder.path(), |options| options.api_key = Some("secret".to_owned())).await;
    for path in ["/health", "/health_generate", "/ready", "/livez", "/readyz", "/metrics"] {
        assert_eq!(engine.get(path).await.0, 200, "{path}");
    }
    for path in ["/model_info", "/server_info", "/v1/loads", "/v1/models"] {
        assert_eq!(engine.get(path).await.0, 401, "{path}");
        let request = engine.http.get(format!("{}{path}", engine.url)).bearer_auth("secret");
        assert_eq!(engine.send(request).await.0, 200, "{path}");
    }
    for path in ["/generate", "/abort_request", "/pause_generation", "/continue_generation", "/flush_cache"] {
        assert_eq!(engine.post(path, json!({})).await.0, 401, "{path}");
    }
    assert_eq!(engine.update(folder.path(), "stolen", true).await.0, 401);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_count_tokens_and_requests() {
    let folder = model_folder(20);
    let engine = Live::start(folder.path()).await;
    engine.generate(body("a", 7)).await;
    let metrics = engine.get("/metrics").await.1;
    let text = metrics.as_str().unwrap();
    for line in [
        "thresh_engine_generation_tokens_total 7",
        "thresh_engine_prompt_tokens_total 10",
        "thresh_engine_num_requests_total 1",
    ] {
        assert!(text.lines().any(|got| got == line), "{line} in {text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_that_is_no_model_is_refused_with_its_reason() {
    let empty = tempfile::tempdir().unwrap();
    let options = engine::EngineOptions::new("127.0.0.1:0".parse().unwrap(), empty.path().to_owned());
    let Err(error) = engine::Engine::start(options).await else { panic!("it started") };
    assert!(error.to_string().contains("config.json cannot be read"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_weights_are_said_and_break_nothing_else() {
    let (good, broken) = (model_folder(20), model_folder(21));
    let file = broken.path().join("model.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    let last = bytes.len() - 4;
    bytes[last..].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(&file, bytes).unwrap();
    let engine = Live::start(good.path()).await;
    assert_eq!(engine.update(broken.path(), "nan", true).await.0, 200);
    let (status, refusal) = engine.post("/generate", body("a", 5)).await;
    assert_eq!(status, 500);
    assert!(refusal["error"]["message"].as_str().unwrap().contains("not finite"), "{refusal}");
    assert_eq!(engine.update(good.path(), "good", true).await.0, 200);
    assert_eq!(output_ids(&engine.generate(body("a", 5)).await).len(), 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_scheduler_ends_the_engine_and_says_so() {
    let folder = model_folder(20);
    let mut options = engine::EngineOptions::new("127.0.0.1:0".parse().unwrap(), folder.path().to_owned());
    options.kv_cache_mib = 16;
    // An idle scheduler is silent for longer than that.
    options.watchdog_timeout_secs = 0;
    let engine = engine::Engine::start(options).await.unwrap();
    let error = engine.run_until(std::future::pending()).await.unwrap_err();
    assert!(error.to_string().contains("the scheduler stopped: no iteration ended within 0 s"), "{error}");
}
