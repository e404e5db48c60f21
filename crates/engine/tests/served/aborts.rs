//! An abort ends a request in whatever state it is, and nobody else's.

use serde_json::{Value, json};

use crate::live::{LONG, Live, finish, log_prob_bits, model_folder, output_ids, prompt};

fn long(rid: &str) -> Value {
    json!({"input_ids": prompt(1, 10), "rid": rid, "return_logprob": true,
           "sampling_params": {"max_new_tokens": LONG, "ignore_eos": true, "sampling_seed": 1}})
}

fn short(rid: &str) -> Value {
    json!({"input_ids": prompt(1, 10), "rid": rid, "sampling_params": {"max_new_tokens": 3, "ignore_eos": true}})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_request_answers_with_what_it_has() {
    let folder = model_folder(8);
    let engine = Live::start(folder.path()).await;
    let mut stream = engine.stream(long("s")).await;
    let answer = engine.spawn(long("r"));
    stream.until_tokens(20).await;
    engine.until_load((2, 0)).await;
    engine.abort("s").await;
    let last = stream.last().await;
    assert_eq!(*finish(&last), json!({"type": "abort", "message": "Aborted", "status_code": null, "err_type": null}));
    let count = output_ids(&last).len();
    assert!((20..LONG).contains(&count) && log_prob_bits(&last).len() == count);
    assert_eq!(last["meta_info"]["weight_versions"], json!([{"version": "v0", "start": 0, "end": count}]));
    engine.abort("r").await;
    let (status, answer) = answer.await.unwrap();
    assert_eq!((status, finish(&answer)["type"].as_str()), (200, Some("abort")));
    engine.until_load((0, 0)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abort_names_one_request_exactly() {
    let folder = model_folder(8);
    let engine = Live::start(folder.path()).await;
    let mut other = engine.stream(long("a10")).await;
    let mut named = engine.stream(long("a1")).await;
    other.until_tokens(1).await;
    named.until_tokens(1).await;
    engine.abort("a").await;
    engine.abort("a1").await;
    assert_eq!(finish(&named.last().await)["type"], "abort");
    assert_eq!(engine.load().await.0, 1, "a10 goes on");
    engine.abort("a10").await;
    assert_eq!(finish(&other.last().await)["type"], "abort");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_request_answers_with_nothing() {
    let folder = model_folder(8);
    let engine = Live::start_with(folder.path(), |options| options.max_running_requests = 1).await;
    let running = engine.spawn(long("running"));
    engine.until_load((1, 0)).await;
    let waiting = engine.spawn(short("waiting"));
    engine.until_load((1, 1)).await;
    engine.abort("waiting").await;
    let (status, answer) = waiting.await.unwrap();
    assert_eq!((status, finish(&answer)), (200, &json!({"type": "abort", "message": "Abort in waiting queue"})));
    assert_eq!(output_ids(&answer), Vec::<u32>::new());
    assert_eq!(engine.post("/abort_request", json!({"abort_all": true})).await.0, 200);
    assert_eq!(finish(&running.await.unwrap().1)["type"], "abort");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_request_is_aborted_at_once_with_what_it_has() {
    let folder = model_folder(8);
    let engine = Live::start(folder.path()).await;
    for mode in ["retract", "in_place"] {
        let mut stream = engine.stream(long(mode)).await;
        stream.until_tokens(5).await;
        engine.pause(mode).await;
        let queued = engine.spawn(short("queued"));
        engine.until_load(if mode == "retract" { (0, 2) } else { (1, 1) }).await;
        engine.abort("queued").await;
        assert_eq!(finish(&queued.await.unwrap().1)["message"], "Abort in waiting queue");
        engine.abort(mode).await;
        // Answered although nothing was continued.
        let last = stream.last().await;
        let message = if mode == "retract" { "Abort in waiting queue" } else { "Aborted" };
        assert_eq!(finish(&last)["message"], message);
        assert!(output_ids(&last).len() >= 5);
        engine.go_on().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_takes_its_request_with_it() {
    let folder = model_folder(8);
    let engine = Live::start(folder.path()).await;
    let mut stream = engine.stream(long("stream")).await;
    stream.until_tokens(1).await;
    let whole = engine.spawn(long("whole"));
    engine.until_load((2, 0)).await;
    drop(stream);
    engine.until_load((1, 0)).await;
    whole.abort();
    engine.until_load((0, 0)).await;
    // Its id is free again.
    engine.generate(short("whole")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_that_aborts_ends_all_and_holds_what_comes_later() {
    let folder = model_folder(8);
    let engine = Live::start(folder.path()).await;
    let mut stream = engine.stream(long("p")).await;
    stream.until_tokens(2).await;
    engine.pause("abort").await;
    assert_eq!(finish(&stream.last().await)["message"], "Aborted");
    let held = engine.spawn(short("held"));
    engine.until_load((0, 1)).await;
    engine.go_on().await;
    let (status, answer) = held.await.unwrap();
    assert_eq!((status, output_ids(&answer).len()), (200, 3));
}
