//! How a sequence ends, and what its text is then.

use serde_json::{Value, json};

use crate::live::{END, FIRST_CHARACTER, Live, finish, model_folder, output_ids, prompt};

async fn greedy(engine: &Live, more: Value) -> Value {
    let mut params = json!({"max_new_tokens": 24, "temperature": 0});
    for (key, value) in more.as_object().unwrap() {
        params[key] = value.clone();
    }
    engine.generate(json!({"input_ids": prompt(8, 6), "sampling_params": params})).await
}

fn text(ids: &[u32]) -> String {
    ids.iter()
        .filter(|id| **id >= FIRST_CHARACTER)
        .map(|id| char::from_u32(32 + id - FIRST_CHARACTER).unwrap())
        .collect()
}

/// A place in the greedy output whose token did not occur before, with that token.
fn first_of_its_kind(ids: &[u32]) -> (usize, u32) {
    (4..ids.len()).map(|at| (at, ids[at])).find(|(at, id)| !ids[..*at].contains(id) && *id >= FIRST_CHARACTER).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_token_is_the_last_id_and_not_in_the_text() {
    let folder = model_folder(7);
    let engine = Live::start(folder.path()).await;
    let whole = output_ids(&greedy(&engine, json!({"ignore_eos": true})).await);
    let (at, stop) = first_of_its_kind(&whole);
    let answer = greedy(&engine, json!({"stop_token_ids": [stop]})).await;
    assert_eq!(*finish(&answer), json!({"type": "stop", "matched": stop}));
    assert_eq!(output_ids(&answer), whole[..=at]);
    assert_eq!(answer["text"], text(&whole[..at]));
    let untrimmed = greedy(&engine, json!({"stop_token_ids": [stop], "no_stop_trim": true})).await;
    assert_eq!(untrimmed["text"], text(&whole[..=at]));
    // Even as the very last token allowed: the answer is complete, not cut.
    let last = greedy(&engine, json!({"stop_token_ids": [stop], "max_new_tokens": at + 1})).await;
    assert_eq!(*finish(&last), json!({"type": "stop", "matched": stop}));
    let ignored = greedy(&engine, json!({"stop_token_ids": [stop], "ignore_eos": true})).await;
    assert_eq!(output_ids(&ignored), whole);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn min_new_tokens_bars_end_tokens_until_then() {
    let folder = model_folder(7);
    let engine = Live::start(folder.path()).await;
    let whole = output_ids(&greedy(&engine, json!({"ignore_eos": true})).await);
    let (at, stop) = first_of_its_kind(&whole);
    let answer = greedy(&engine, json!({"stop_token_ids": [stop], "min_new_tokens": at + 3})).await;
    let ids = output_ids(&answer);
    assert!(ids.len() >= at + 3 && !ids[..at + 3].contains(&stop), "{ids:?}");
    assert_eq!(ids[..at], whole[..at]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_string_ends_the_text_before_it() {
    let folder = model_folder(7);
    let engine = Live::start(folder.path()).await;
    let whole = output_ids(&greedy(&engine, json!({"ignore_eos": true})).await);
    let (at, _) = first_of_its_kind(&whole);
    let stop = text(&whole[at - 1..=at]);
    let answer = greedy(&engine, json!({"stop": ["\u{1}never", stop], "ignore_eos": true})).await;
    assert_eq!(*finish(&answer), json!({"type": "stop", "matched": stop}));
    assert_eq!(output_ids(&answer), whole[..=at]);
    assert_eq!(answer["text"], text(&whole[..at - 1]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_models_own_end_token_ends_a_sequence() {
    let folder = model_folder(7);
    let engine = Live::start(folder.path()).await;
    let mut ended = 0;
    for seed in 0..40 {
        let params = json!({"max_new_tokens": 200, "sampling_seed": seed, "temperature": 2.0});
        let answer = engine.generate(json!({"input_ids": prompt(seed, 3), "sampling_params": params})).await;
        let ids = output_ids(&answer);
        match finish(&answer)["type"].as_str().unwrap() {
            "stop" => {
                assert_eq!(finish(&answer)["matched"], END);
                assert_eq!(ids.iter().position(|id| *id == END), Some(ids.len() - 1));
                ended += 1;
            }
            _ => assert!(ids.len() == 200 && !ids.contains(&END)),
        }
    }
    assert!(ended > 0, "at temperature 2 the end token turns up");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn text_in_is_the_tokenizers_ids_and_comes_back_on_request() {
    let folder = model_folder(7);
    let engine = Live::start(folder.path()).await;
    let answer = engine
        .generate(json!({"text": "Hi!", "return_prompt_token_ids": true, "sampling_params": {"max_new_tokens": 1}}))
        .await;
    assert_eq!(answer["prompt_token_ids"], json!([42, 75, 3]));
    assert_eq!(answer["meta_info"]["prompt_tokens"], 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_tells_what_the_whole_answer_would_have_told() {
    let folder = model_folder(7);
    let body = json!({"input_ids": prompt(8, 6), "return_logprob": true,
                      "sampling_params": {"max_new_tokens": 60, "ignore_eos": true, "sampling_seed": 4}});
    let cumulative = Live::start(folder.path()).await;
    let whole = cumulative.generate(body.clone()).await;
    let last = cumulative.stream(body.clone()).await.last().await;
    assert_eq!((&last["output_ids"], &last["text"]), (&whole["output_ids"], &whole["text"]));
    assert_eq!(last["meta_info"]["output_token_logprobs"], whole["meta_info"]["output_token_logprobs"]);

    let incremental = Live::start_with(folder.path(), |options| options.incremental_streaming_output = true).await;
    let mut events = incremental.stream(body).await;
    let (mut ids, mut rows, mut text) = (Vec::new(), Vec::new(), String::new());
    while let Some(event) = events.next().await
        && event != "[DONE]"
    {
        ids.extend(output_ids(&event));
        rows.extend(event["meta_info"]["output_token_logprobs"].as_array().unwrap().clone());
        text += event["text"].as_str().unwrap();
        assert_eq!(event["meta_info"]["completion_tokens"], ids.len());
        assert_eq!(event["meta_info"]["output_token_logprobs_length"], ids.len());
    }
    assert_eq!((json!(ids), json!(text)), (whole["output_ids"].clone(), whole["text"].clone()));
    assert_eq!(json!(rows), whole["meta_info"]["output_token_logprobs"]);
}
