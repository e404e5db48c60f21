//! Answers have the shape (keys, types, status) of SGLang's. `data/sglang_shapes.json` holds those of a live SGLang 0.5.23.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::live::{LONG, Live, model_folder, prompt};

/// Keys beyond SGLang's, with a reason each.
const OURS: [&str; 2] = [
    // An engine can be up before its first weights.
    "has_weights",
    // Aborted while waiting, SGLang leaves these out; a client that reads them is better off with them.
    "prompt_tokens num_retractions reasoning_tokens cached_tokens cached_tokens_details dp_rank request_received_ts \
     api_server_dispatch_finish_ts request_finished_ts status_code err_type first_token_latency decode_throughput queue_time \
     forward_entry_time prefill_finished_time response_sent_to_client_ts",
];

fn known(key: &str) -> bool {
    OURS.iter().any(|keys| keys.split(' ').any(|ours| ours == key))
}

fn check(expected: &Value, got: &Value, at: &str) {
    match (expected, got) {
        (Value::Object(keys), Value::Object(values)) => {
            for (key, expected) in keys {
                let got = values.get(key).unwrap_or_else(|| panic!("{at}.{key} is missing in {got}"));
                check(expected, got, &format!("{at}.{key}"));
            }
            for key in values.keys() {
                assert!(keys.contains_key(key) || known(key), "{at}.{key} is not SGLang's: {got}");
            }
        }
        (Value::Array(shape), Value::Array(values)) => {
            assert!(!shape.is_empty() || values.is_empty(), "{at} is empty in SGLang: {got}");
            for value in values {
                check(&shape[0], value, at);
            }
        }
        // What may be null is null or an object with us too.
        (Value::String(null), Value::Null | Value::Object(_)) if null == "null" => {}
        (Value::Object(_), Value::Null) => {}
        (Value::String(kind), got) => {
            let fits = match kind.as_str() {
                "string" => got.is_string(),
                "integer" => got.is_u64(),
                "number" => got.is_number(),
                "boolean" => got.is_boolean(),
                "row" => is_row(got),
                "rows" => got.is_null() || got.as_array().is_some_and(|rows| rows.iter().all(is_row)),
                // A text that is part of the contract.
                text => got == text,
            };
            assert!(fits, "{at} should be {kind}, got {got}");
        }
        _ => panic!("{at} should be {expected}, got {got}"),
    }
}

/// `[log-prob or null, id, text or null]`
fn is_row(value: &Value) -> bool {
    let number_or_null = |value: &Value| value.is_f64() || value.is_null();
    value.as_array().is_some_and(|row| {
        row.len() == 3 && number_or_null(&row[0]) && row[1].is_u64() && (row[2].is_string() || row[2].is_null())
    })
}

struct Shapes(BTreeMap<String, Value>);

impl Shapes {
    fn read() -> Self {
        Self(serde_json::from_str(include_str!("../data/sglang_shapes.json")).unwrap())
    }

    fn check(&mut self, case: &str, got: (u16, Value)) {
        let expected = self.0.remove(case).unwrap_or_else(|| panic!("no case {case}"));
        assert_eq!(json!(got.0), expected["status"], "{case}: {}", got.1);
        check(&expected["body"], &got.1, case);
    }

    async fn check_stream(&mut self, case: &str, mut events: crate::live::Events) {
        let expected = self.0.remove(case).unwrap_or_else(|| panic!("no case {case}"));
        let mut got = Vec::new();
        while let Some(event) = events.next().await {
            got.push(event);
        }
        let expected = expected["events"].as_array().unwrap();
        assert!(got.len() >= expected.len().min(2), "{case}: {got:?}");
        // The ends are fixed; how tokens are spread over events is not.
        check(&expected[0], &got[0], case);
        for (expected, got) in expected.iter().rev().zip(got.iter().rev()).take(2) {
            check(expected, got, case);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_have_sglangs_shapes() {
    let (folder, other) = (model_folder(30), model_folder(31));
    let engine = Live::start(folder.path()).await;
    let mut shapes = Shapes::read();
    let generate = |body: Value| engine.post("/generate", body);
    let params = json!({"max_new_tokens": 5, "temperature": 1.0, "ignore_eos": true});

    shapes.check("generate_min", generate(json!({"input_ids": [10, 20], "sampling_params": params})).await);
    shapes.check(
        "generate_logprob",
        generate(json!({"input_ids": [10, 20], "sampling_params": params, "rid": "l", "return_logprob": true})).await,
    );
    let full = json!({"input_ids": [10, 20, 30], "sampling_params": params, "return_logprob": true, "logprob_start_len": 0,
        "top_logprobs_num": 2, "token_ids_logprob": [1, 2], "return_text_in_logprobs": true});
    shapes.check("generate_logprob_full", generate(full).await);
    let scoring = json!({"input_ids": [10, 20, 30], "sampling_params": {"max_new_tokens": 0, "temperature": 0},
        "return_logprob": true, "logprob_start_len": 0});
    shapes.check("generate_prompt_only_max0", generate(scoring).await);
    let batch = json!({"input_ids": [[10, 20], [30, 40, 50]], "sampling_params": params, "return_logprob": true});
    shapes.check("generate_batch", generate(batch).await);
    let every_other: Vec<u32> = (0..96).step_by(2).collect();
    let stop = json!({"input_ids": [10, 20], "return_logprob": true,
        "sampling_params": {"max_new_tokens": 300, "stop_token_ids": every_other, "min_new_tokens": 1}});
    shapes.check("generate_stop_token", generate(stop).await);
    let stop = json!({"text": "the quick", "return_logprob": true,
        "sampling_params": {"max_new_tokens": 300, "ignore_eos": true, "stop": ["e", "a", "o", "1", "Z", "!", "x", "T", "*", "t"]}});
    shapes.check("generate_stop_str", generate(stop).await);
    let text = json!({"text": "the quick brown", "sampling_params": {"max_new_tokens": 3, "ignore_eos": true}, "rid": "tx",
        "return_prompt_token_ids": true});
    shapes.check("generate_text", generate(text).await);
    // Long enough that not all of it is in the last event.
    let params_of_many = json!({"max_new_tokens": 400, "ignore_eos": true});
    let stream = json!({"input_ids": [10, 20], "sampling_params": params_of_many, "return_logprob": true, "top_logprobs_num": 1});
    shapes.check_stream("generate_stream_cumulative", engine.stream(stream).await).await;

    let raw = engine.http.post(format!("{}/generate", engine.url)).body("{bad");
    shapes.check("err_bad_json", engine.send(raw).await);
    shapes.check("err_bad_type", generate(json!({"input_ids": "abc"})).await);
    shapes.check("err_empty_ids", generate(json!({"input_ids": []})).await);
    shapes.check("err_no_input", generate(json!({"sampling_params": {"max_new_tokens": 5}})).await);
    shapes
        .check("err_negative_temp", generate(json!({"input_ids": [1], "sampling_params": {"temperature": -1}})).await);
    shapes.check("err_too_long", generate(json!({"input_ids": prompt(1, 17_000)})).await);
    shapes.check(
        "err_total_too_long",
        generate(json!({"input_ids": [5, 6], "sampling_params": {"max_new_tokens": 20_000}})).await,
    );
    shapes
        .check("err_unknown_sampling_field", generate(json!({"input_ids": [1], "sampling_params": {"zzz": 1}})).await);
    shapes.check(
        "err_unknown_field",
        generate(json!({"input_ids": [1], "sampling_params": params, "unknown_field": 1})).await,
    );
    shapes.check_stream("err_stream_bad", engine.stream(json!({"input_ids": prompt(1, 17_000)})).await).await;

    for (case, path) in [
        ("get_model_info", "/model_info"),
        ("get_v1_loads", "/v1/loads"),
        ("get_v1_models", "/v1/models"),
        ("get_health", "/health"),
        ("get_health_generate", "/health_generate"),
        ("get_ready", "/ready"),
        ("get_ping", "/ping"),
    ] {
        shapes.check(case, engine.get(path).await);
    }
    assert_eq!(engine.get("/get_model_info").await.1, engine.get("/model_info").await.1);
    for key in
        ["version", "status", "tp_size", "dp_size", "max_total_num_tokens", "max_req_input_len", "internal_states"]
    {
        assert!(engine.get("/server_info").await.1.get(key).is_some(), "{key}");
    }
    assert_eq!(engine.get("/nothing").await, (404, json!({"detail": "Not Found"})));

    // Aborts, pauses, updates.
    let long = |rid: &str| {
        json!({"input_ids": [10, 20], "rid": rid, "return_logprob": true,
            "sampling_params": {"max_new_tokens": LONG, "ignore_eos": true}})
    };
    let running = engine.spawn(long("running"));
    engine.until_load((1, 0)).await;
    shapes.check("dup_rid", generate(long("running")).await);
    shapes.check("flush_busy", engine.post("/flush_cache", json!({})).await);
    shapes.check("abort_unknown", engine.post("/abort_request", json!({"rid": "nope"})).await);
    shapes.check("abort_empty", engine.post("/abort_request", json!({})).await);
    engine.abort("running").await;
    shapes.check("abort_running", running.await.unwrap());
    shapes.check("flush_idle", engine.post("/flush_cache", json!({})).await);

    shapes.check("pause_nobody", engine.send(engine.http.post(format!("{}/pause_generation", engine.url))).await);
    shapes.check("continue_nobody", engine.send(engine.http.post(format!("{}/continue_generation", engine.url))).await);
    shapes.check("pause_bad_mode", engine.post("/pause_generation", json!({"mode": "zzz"})).await);

    let running = engine.spawn(long("held"));
    engine.until_load((1, 0)).await;
    shapes.check("pause", engine.post("/pause_generation", json!({"mode": "in_place"})).await);
    shapes.check("flush_while_paused_in_place", engine.post("/flush_cache", json!({})).await);
    shapes.check("update_paused_in_place_flush", engine.update(other.path(), "v1", true).await);
    engine.pause("retract").await;
    let waiting = engine.spawn(long("waiting"));
    engine.until_load((0, 2)).await;
    engine.abort("waiting").await;
    shapes.check("abort_waiting", waiting.await.unwrap());
    let mut waiting = long("waiting");
    waiting["return_logprob"] = json!(false);
    let waiting = engine.stream(waiting).await;
    engine.until_load((0, 2)).await;
    engine.abort("waiting").await;
    shapes.check_stream("abort_waiting_stream", waiting).await;
    shapes.check("update_paused_retract_flush", engine.update(folder.path(), "v2", true).await);
    shapes.check("continue", engine.post("/continue_generation", json!({})).await);
    engine.abort("held").await;
    running.await.unwrap();

    shapes.check("update_disk_idle", engine.update(other.path(), "v3", true).await);
    shapes.check("update_disk_badpath", engine.update(std::path::Path::new("/models/none"), "v4", true).await);
    shapes.check("update_disk_missing_arg", engine.post("/update_weights_from_disk", json!({})).await);
    let rename = json!({"new_version": "w9", "abort_all_requests": false});
    shapes.check("update_weight_version", engine.post("/update_weight_version", rename).await);

    // A generation over an update, all of it.
    let engine = Live::start_with(folder.path(), |options| options.max_running_requests = 1).await;
    let mut body = long("over");
    body["sampling_params"]["max_new_tokens"] = json!(1500);
    let over = engine.spawn(body);
    engine.until_load((1, 0)).await;
    engine.pause("retract").await;
    assert_eq!(engine.update(other.path(), "v1", true).await.0, 200);
    engine.go_on().await;
    shapes.check("generate_over_update", over.await.unwrap());

    let engine = Live::start_with(folder.path(), |options| {
        options.max_running_requests = 1;
        options.max_queued_requests = 0;
    })
    .await;
    let running = engine.spawn(long("running"));
    engine.until_load((1, 0)).await;
    shapes.check("overload_503", engine.post("/generate", long("over")).await);
    let mut body = long("over");
    body["return_logprob"] = json!(false);
    shapes.check_stream("overload_stream", engine.stream(body).await).await;
    engine.abort("running").await;
    running.await.unwrap();

    assert!(shapes.0.is_empty(), "not checked: {:?}", shapes.0.keys());
}
