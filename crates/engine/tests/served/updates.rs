//! Weights change between iterations, and every token says which it was drawn with.

use serde_json::{Value, json};

use crate::live::{LONG, Live, bare_folder, finish, log_prob_bits, model_folder, output_ids, prompt};

fn long(rid: &str, max: usize) -> Value {
    json!({"input_ids": prompt(1, 10), "rid": rid, "return_logprob": true,
           "sampling_params": {"max_new_tokens": max, "ignore_eos": true, "sampling_seed": 1}})
}

/// `[(version, start, end)]`, checked to be without gap or overlap.
fn spans(answer: &Value) -> Vec<(String, usize, usize)> {
    let spans = answer["meta_info"]["weight_versions"].as_array().unwrap();
    let number = |value: &Value| value.as_u64().unwrap() as usize;
    let spans: Vec<_> = (spans.iter())
        .map(|span| (span["version"].as_str().unwrap().to_owned(), number(&span["start"]), number(&span["end"])))
        .collect();
    let mut at = 0;
    for (_, start, end) in &spans {
        assert_eq!(*start, at);
        at = *end;
    }
    assert_eq!(at, output_ids(answer).len());
    spans
}

/// Pauses a request in its middle, updates, continues, and ends it some tokens later.
async fn cross(mode: &str, flush_cache: bool) -> (Value, tempfile::TempDir) {
    let (old, new) = (model_folder(10), model_folder(11));
    let engine = Live::start(old.path()).await;
    let mut stream = engine.stream(long("x", LONG)).await;
    stream.until_tokens(70).await;
    engine.pause(mode).await;
    assert_eq!(engine.get("/readyz").await.0, 200, "a pause never makes an engine unready");
    assert_eq!(engine.get("/health").await.0, 200);
    assert_eq!(engine.get("/health_generate").await.0, 200);
    let (status, update) = engine.update(new.path(), "v1", flush_cache).await;
    assert_eq!((status, update["success"].as_bool()), (200, Some(true)), "{update}");
    assert_eq!(engine.get("/model_info").await.1["weight_version"], "v1");
    engine.go_on().await;
    let first_new = loop {
        let event = stream.next().await.unwrap();
        if event["meta_info"]["weight_version"] == "v1" {
            break output_ids(&event).len();
        }
    };
    stream.until_tokens(first_new + 40).await;
    engine.abort("x").await;
    (stream.last().await, new)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_retraction_the_rest_is_drawn_as_new_weights_alone_would() {
    let (answer, new) = cross("retract", true).await;
    let spans = spans(&answer);
    assert_eq!(spans.iter().map(|span| &*span.0).collect::<Vec<_>>(), ["v0", "v1"]);
    assert_eq!(answer["meta_info"]["num_retractions"], 1);
    let ids = output_ids(&answer);
    let begun = [prompt(1, 10), ids[..spans[1].1].to_vec()].concat();
    let engine = Live::start(new.path()).await;
    let mut rest = long("rest", ids.len() - spans[1].1);
    rest["input_ids"] = json!(begun);
    let rest = engine.generate(rest).await;
    assert_eq!(output_ids(&rest), ids[spans[1].1..]);
    assert_eq!(log_prob_bits(&rest), log_prob_bits(&answer)[spans[1].1..]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_in_place_pause_keeps_the_kv_over_the_update() {
    let (answer, _) = cross("in_place", false).await;
    assert_eq!(spans(&answer).iter().map(|span| &*span.0).collect::<Vec<_>>(), ["v0", "v1"]);
    assert_eq!(answer["meta_info"]["num_retractions"], 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_in_place_update_that_should_flush_says_that_it_did_not() {
    let (old, new) = (model_folder(10), model_folder(11));
    let engine = Live::start(old.path()).await;
    let mut stream = engine.stream(long("x", LONG)).await;
    stream.until_tokens(5).await;
    engine.pause("in_place").await;
    assert_eq!(engine.post("/flush_cache", json!({})).await, (400, json!("Flush cache failed.\n")));
    let (status, update) = engine.update(new.path(), "v1", true).await;
    assert_eq!((status, update["success"].as_bool()), (400, Some(false)));
    assert!(update["message"].as_str().unwrap().starts_with("Weights were updated, but the cache was not flushed"));
    assert_eq!(engine.get("/model_info").await.1["weight_version"], "v1", "that is no rollback");
    engine.abort("x").await;
    assert_eq!(finish(&stream.last().await)["type"], "abort");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_folder_leaves_the_old_weights() {
    let old = model_folder(10);
    let engine = Live::start(old.path()).await;
    let before = engine.generate(long("a", 20)).await;
    let empty = tempfile::tempdir().unwrap();
    let torn = model_folder(11);
    let file = torn.path().join("model.safetensors");
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(&file, &bytes[..bytes.len() - 4000]).unwrap();
    for folder in [std::path::Path::new("/nowhere"), empty.path(), torn.path()] {
        let (status, update) = engine.update(folder, "v1", true).await;
        assert_eq!((status, update["success"].as_bool()), (400, Some(false)));
        assert!(update["message"].as_str().unwrap().starts_with("Failed to update weights: "), "{update}");
    }
    let info = engine.get("/model_info").await.1;
    assert_eq!((&info["weight_version"], &info["model_path"]), (&json!("v0"), &json!(old.path())));
    assert_eq!(log_prob_bits(&engine.generate(long("a", 20)).await), log_prob_bits(&before));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_update_without_a_pause_waits_for_what_runs_and_goes_before_what_waits() {
    let (old, new) = (model_folder(10), model_folder(11));
    let engine = Live::start(old.path()).await;
    let mut running = engine.stream(long("running", LONG)).await;
    running.until_tokens(1).await;
    let update = engine.update(new.path(), "v1", true);
    let rest = async {
        // The update is in the scheduler once a new request is held back.
        let late = loop {
            let late = engine.spawn(long("late", 2));
            tokio::time::sleep(std::time::Duration::from_millis(30)).await;
            if engine.load().await == (1, 1) {
                break late;
            }
            assert_eq!(late.await.unwrap().0, 200);
        };
        engine.abort("running").await;
        late.await.unwrap()
    };
    let ((status, _), (_, late)) = tokio::join!(update, rest);
    assert_eq!(status, 200);
    assert_eq!(spans(&running.last().await)[0].0, "v0");
    assert_eq!(spans(&late)[0].0, "v1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_update_may_abort_what_is_in_its_way() {
    let (old, new) = (model_folder(10), model_folder(11));
    let engine = Live::start(old.path()).await;
    let mut running = engine.stream(long("running", LONG)).await;
    running.until_tokens(1).await;
    let body = json!({"model_path": new.path(), "weight_version": "v1", "abort_all_requests": true});
    assert_eq!(engine.post("/update_weights_from_disk", body).await.0, 200);
    assert_eq!(finish(&running.last().await)["type"], "abort");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_without_weights_is_ready_and_says_what_it_lacks() {
    let (bare, new) = (bare_folder(), model_folder(11));
    let engine = Live::start(bare.path()).await;
    assert_eq!(engine.get("/readyz").await.0, 200);
    assert_eq!(engine.get("/health").await.0, 200);
    assert_eq!(engine.get("/health_generate").await.0, 200);
    let (status, refusal) = engine.post("/generate", long("a", 2)).await;
    assert_eq!(status, 503);
    assert!(refusal["message"].as_str().unwrap().contains("no weights yet"), "{refusal}");
    assert_eq!(engine.get("/model_info").await.1["has_weights"], false);
    assert_eq!(engine.update(new.path(), "1", true).await.0, 200);
    assert_eq!(spans(&engine.generate(long("a", 2)).await), [("1".to_owned(), 0, 2)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_version_can_be_renamed() {
    let folder = model_folder(10);
    let engine = Live::start(folder.path()).await;
    let (status, answer) = engine.post("/update_weight_version", json!({"new_version": "w9"})).await;
    assert_eq!((status, &answer["new_version"]), (200, &json!("w9")));
    assert_eq!(spans(&engine.generate(long("a", 2)).await)[0].0, "w9");
}

/// Writes the weights of a folder with 16 bits a number: as bf16, and as the f32 that these are.
fn round_to_bf16(folder: &std::path::Path) -> (tempfile::TempDir, tempfile::TempDir) {
    use safetensors::{Dtype, SafeTensors, tensor::TensorView};
    let bytes = std::fs::read(folder.join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let write = |dtype: Dtype, convert: fn(&[u8; 4]) -> Vec<u8>| {
        let tensors: Vec<(String, Vec<usize>, Vec<u8>)> = (file.tensors().into_iter())
            .map(|(name, view)| {
                (name, view.shape().to_vec(), view.data().as_chunks::<4>().0.iter().flat_map(convert).collect())
            })
            .collect();
        let views = tensors
            .iter()
            .map(|(name, shape, bytes)| (name.clone(), TensorView::new(dtype, shape.clone(), bytes).unwrap()));
        let folder = bare_folder();
        safetensors::serialize_to_file(views, None, &folder.path().join("model.safetensors")).unwrap();
        folder
    };
    // Little-endian: a bf16 is the upper half of an f32.
    (write(Dtype::BF16, |word| word[2..].to_vec()), write(Dtype::F32, |word| vec![0, 0, word[2], word[3]]))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_in_bf16_is_widened_exactly() {
    let folder = model_folder(12);
    let (bf16, f32) = round_to_bf16(folder.path());
    let engine = Live::start(folder.path()).await;
    let mut bits = Vec::new();
    for folder in [bf16.path(), f32.path()] {
        assert_eq!(engine.update(folder, "v1", true).await.0, 200);
        bits.push(log_prob_bits(&engine.generate(long("a", 30)).await));
    }
    assert_eq!(bits[0], bits[1]);
}
