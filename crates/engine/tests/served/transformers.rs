//! Greedy generation equals that of transformers (f32, eager attention), on the checkpoints the model crate keeps for its own tests.

use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use serde_json::json;

use crate::live::{Live, output_ids};

/// Largest difference of a log-prob. Between transformers' own cached and uncached runs it is 3.2e-6 on these models.
const TOLERANCE: f64 = 2e-5;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn greedy_tokens_and_log_probs_are_those_of_transformers() {
    // `make test-oracle` points at checkpoints and references it has just derived.
    let kept = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/data");
    let folders = std::env::var_os("THRESH_ORACLE_DIR").map_or_else(kept, PathBuf::from);
    for name in ["qwen3", "llama", "llama3"] {
        let folder = folders.join(name);
        let engine = Live::start_with(&folder, |options| options.kv_cache_mib = 64).await;
        let bytes = std::fs::read(folder.join("io.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let ids = |key: &str| -> Vec<u32> {
            let (words, rest) = file.tensor(key).unwrap().data().as_chunks::<8>();
            assert!(rest.is_empty());
            words.iter().map(|word| u32::try_from(i64::from_le_bytes(*word)).unwrap()).collect()
        };
        let log_probs: Vec<f32> = file
            .tensor("decode.logprobs")
            .unwrap()
            .data()
            .as_chunks::<4>()
            .0
            .iter()
            .map(|word| f32::from_le_bytes(*word))
            .collect();
        let params = json!({"temperature": 0, "ignore_eos": true, "max_new_tokens": log_probs.len()});
        let body = json!({"input_ids": ids("decode.prompt"), "return_logprob": true, "sampling_params": params});
        let answer = engine.generate(body).await;
        assert_eq!(output_ids(&answer), ids("decode.tokens"), "{name}");
        let rows = answer["meta_info"]["output_token_logprobs"].as_array().unwrap();
        for (row, theirs) in rows.iter().zip(&log_probs) {
            let difference = row[0].as_f64().unwrap() - f64::from(*theirs);
            assert!(difference.abs() <= TOLERANCE, "{name}: {row} against {theirs}");
        }
    }
}
