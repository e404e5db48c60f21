//! The prefix cache saves work and changes nothing.

use serde_json::{Value, json};

use crate::live::{Live, log_prob_bits, model_folder, output_ids, prompt};

fn body(tokens: &[u32], seed: u64) -> Value {
    json!({"input_ids": tokens, "return_logprob": true,
           "sampling_params": {"max_new_tokens": 20, "ignore_eos": true, "sampling_seed": seed}})
}

fn cached(answer: &Value) -> u64 {
    answer["meta_info"]["cached_tokens"].as_u64().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hit_gives_the_bits_of_a_miss() {
    let folder = model_folder(5);
    let engine = Live::start(folder.path()).await;
    let tokens = prompt(1, 200);
    let miss = engine.generate(body(&tokens, 1)).await;
    let hit = engine.generate(body(&tokens, 1)).await;
    assert_eq!((cached(&miss), cached(&hit)), (0, 192), "whole pages of 64 tokens");
    assert_eq!(hit["meta_info"]["cached_tokens_details"], json!({"device": 192, "host": 0}));
    assert_eq!((output_ids(&hit), log_prob_bits(&hit)), (output_ids(&miss), log_prob_bits(&miss)));
    // Pages that were filled while decoding are found too: 200 + 19 computed tokens are three whole pages, 300 are four.
    let conversation = [tokens, output_ids(&hit), prompt(2, 80)].concat();
    assert_eq!(cached(&engine.generate(body(&conversation, 2)).await), 192);
    assert_eq!(cached(&engine.generate(body(&conversation, 3)).await), 256);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prompt_of_whole_pages_still_computes_its_last_token() {
    let folder = model_folder(5);
    let engine = Live::start(folder.path()).await;
    let tokens = prompt(1, 128);
    let miss = engine.generate(body(&tokens, 1)).await;
    let hit = engine.generate(body(&tokens, 1)).await;
    assert_eq!(cached(&hit), 64);
    assert_eq!(log_prob_bits(&hit), log_prob_bits(&miss));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_reads_kv_of_other_weights() {
    let (old, new) = (model_folder(5), model_folder(6));
    let tokens = prompt(1, 200);
    let cold = Live::start(new.path()).await.generate(body(&tokens, 1)).await;
    for flush in [true, false] {
        let engine = Live::start(old.path()).await;
        engine.generate(body(&tokens, 1)).await;
        assert_eq!(cached(&engine.generate(body(&tokens, 1)).await), 192);
        assert_eq!(engine.update(new.path(), "v1", flush).await.0, 200);
        let after = engine.generate(body(&tokens, 1)).await;
        assert_eq!(cached(&after), 0, "flush_cache {flush}");
        assert_eq!(log_prob_bits(&after), log_prob_bits(&cold));
        assert_eq!(cached(&engine.generate(body(&tokens, 1)).await), 192, "the new KV is found again");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flush_forgets_and_a_full_pool_evicts() {
    let folder = model_folder(5);
    let engine = Live::start_with(folder.path(), |options| options.max_total_tokens = Some(8 * 64)).await;
    let tokens = prompt(1, 200);
    engine.generate(body(&tokens, 1)).await;
    assert_eq!(engine.post("/flush_cache", json!({})).await.0, 200);
    assert_eq!(cached(&engine.generate(body(&tokens, 1)).await), 0);
    // Others push it out, page by page.
    for other in 10..20 {
        let answer = engine.generate(body(&prompt(other, 400), other)).await;
        assert_eq!(output_ids(&answer).len(), 20);
    }
    assert_eq!(cached(&engine.generate(body(&tokens, 1)).await), 0);
}
