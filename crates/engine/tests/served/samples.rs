//! What a request draws depends on its tokens, its seed and the weights, and on nothing else.

use serde_json::{Value, json};

use crate::live::{Live, log_prob_bits, model_folder, output_ids, prompt};

/// Requests of different lengths, temperatures and truncations.
fn requests() -> Vec<Value> {
    (0..10u64)
        .map(|index| {
            let mut params = json!({"max_new_tokens": 40 + 7 * index, "temperature": 1.0, "ignore_eos": true,
                                    "sampling_seed": 1000 + index});
            match index % 5 {
                1 => params["temperature"] = json!(0.6),
                2 => params["top_k"] = json!(20),
                3 => params["top_p"] = json!(0.8),
                4 => params["min_p"] = json!(0.05),
                _ => {}
            }
            json!({"input_ids": prompt(index, 1 + 23 * index as usize), "sampling_params": params, "return_logprob": true})
        })
        .collect()
}

async fn one_by_one(engine: &Live) -> Vec<(Vec<u32>, Vec<u32>)> {
    let mut samples = Vec::new();
    for request in requests() {
        let answer = engine.generate(request).await;
        samples.push((output_ids(&answer), log_prob_bits(&answer)));
    }
    samples
}

/// All of them at once, among `others` strangers.
async fn in_company(engine: &Live, others: u64) -> (Vec<(Vec<u32>, Vec<u32>)>, u64) {
    let strangers: Vec<_> = (0..others)
        .map(|index| {
            let length = 1 + (index as usize * 37) % 150;
            let params = json!({"max_new_tokens": 5 + index % 60, "temperature": 1.0, "ignore_eos": true});
            engine.spawn(json!({"input_ids": prompt(500 + index, length), "sampling_params": params}))
        })
        .collect();
    let ours: Vec<_> = requests().into_iter().map(|request| engine.spawn(request)).collect();
    let (mut samples, mut retractions) = (Vec::new(), 0);
    for answer in ours {
        let (status, answer) = answer.await.unwrap();
        assert_eq!(status, 200, "{answer}");
        samples.push((output_ids(&answer), log_prob_bits(&answer)));
        retractions += answer["meta_info"]["num_retractions"].as_u64().unwrap();
    }
    for answer in strangers {
        let (status, answer) = answer.await.unwrap();
        assert_eq!(status, 200, "{answer}");
        retractions += answer["meta_info"]["num_retractions"].as_u64().unwrap();
    }
    (samples, retractions)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn neither_company_nor_chunking_nor_another_engine_changes_a_sample() {
    let folder = model_folder(1);
    let alone = one_by_one(&Live::start(folder.path()).await).await;
    let engine = Live::start(folder.path()).await;
    assert!(in_company(&engine, 64).await.0 == alone, "among 64 others");
    let engine = Live::start_with(folder.path(), |options| {
        options.chunked_prefill_size = 7;
        options.disable_radix_cache = true;
        options.max_running_requests = 5;
    })
    .await;
    assert!(in_company(&engine, 20).await.0 == alone, "prompts computed 7 tokens at a time, 5 requests together");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retraction_changes_no_sample() {
    let folder = model_folder(1);
    let alone = one_by_one(&Live::start(folder.path()).await).await;
    // Room for a few requests: running ones grow out of it.
    let engine = Live::start_with(folder.path(), |options| options.max_total_tokens = Some(14 * 64)).await;
    let (samples, retractions) = in_company(&engine, 30).await;
    assert!(retractions > 0, "the pool was to be too small");
    assert!(samples == alone);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sample_continued_from_its_own_beginning_goes_on_the_same_way() {
    let folder = model_folder(2);
    let engine = Live::start(folder.path()).await;
    let whole = engine
        .generate(json!({"input_ids": prompt(3, 20), "return_logprob": true, "sampling_params":
            {"max_new_tokens": 30, "ignore_eos": true, "sampling_seed": 77}}))
        .await;
    let ids = output_ids(&whole);
    let begun = [prompt(3, 20), ids[..11].to_vec()].concat();
    let rest = engine
        .generate(json!({"input_ids": begun, "return_logprob": true, "sampling_params":
            {"max_new_tokens": 19, "ignore_eos": true, "sampling_seed": 77}}))
        .await;
    assert_eq!(output_ids(&rest), ids[11..]);
    assert_eq!(log_prob_bits(&rest), log_prob_bits(&whole)[11..]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_without_a_seed_are_drawn_differently() {
    let folder = model_folder(2);
    let engine = Live::start(folder.path()).await;
    let body = json!({"input_ids": prompt(3, 20), "sampling_params": {"max_new_tokens": 30, "ignore_eos": true}});
    let first = output_ids(&engine.generate(body.clone()).await);
    assert_ne!(output_ids(&engine.generate(body).await), first);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_is_answered_in_order_and_like_single_requests() {
    let folder = model_folder(2);
    let engine = Live::start(folder.path()).await;
    let params = json!({"max_new_tokens": 12, "ignore_eos": true, "sampling_seed": 5});
    let prompts = [prompt(1, 9), prompt(2, 70), prompt(3, 1)];
    let batch = engine.generate(json!({"input_ids": prompts, "sampling_params": params, "rid": ["x", "y", "z"]})).await;
    for ((answer, prompt), rid) in batch.as_array().unwrap().iter().zip(&prompts).zip(["x", "y", "z"]) {
        assert_eq!(answer["meta_info"]["id"], rid);
        let single = engine.generate(json!({"input_ids": prompt, "sampling_params": params})).await;
        assert_eq!(output_ids(answer), output_ids(&single));
    }
}
