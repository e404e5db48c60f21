//! The quickstart's model, once trained, is an ordinary model of transformers.

use serde_json::{Value, json};

use crate::{
    compare::{largest, relative},
    one_run::{OneRun, copy_folder},
    ours,
    reference::{derive, repository},
    served::Served,
};

/// More than an answer has.
const MAX_NEW_TOKENS: u32 = 8;

/// ‖ours − theirs‖ / ‖theirs‖ over the logits of a sequence.
const LOGITS: f64 = 1e-5;

/// Largest difference of a log-prob, nats.
const LOG_PROB: f64 = 2e-5;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_exported_model_has_the_same_logits_tokens_and_answers_in_transformers() {
    let work = tempfile::tempdir().unwrap();
    let (quickstart, volume) = (repository().join("examples/quickstart"), work.path().join("thresh-data"));
    copy_folder(&quickstart.join("volumes/thresh-data"), &volume);
    let run = OneRun::to_its_end(&quickstart.join("rljob.yaml"), &work.path().join("state"), "thresh-data", &volume);
    let rows = std::fs::read_to_string(volume.join("sort5/eval.jsonl")).unwrap();
    let prompts: Vec<Value> = rows
        .lines()
        .take(32)
        .map(|row| json!({"text": serde_json::from_str::<Value>(row).unwrap()["prompt"]}))
        .collect();
    let (references, logits) = derive(&run.export(), &Value::Array(prompts), MAX_NEW_TOKENS);
    assert_eq!(references.len(), 32);

    let engine = Served::start(&run.export()).await;
    let answers = engine.greedy(references.iter().map(|one| one.prompt.as_str()), MAX_NEW_TOKENS as usize).await;
    drop(engine);
    assert_eq!(answers.len(), references.len());
    let model = ours::model(&run.export());
    let (mut of_logits, mut of_log_probs, mut gap) = (0.0f64, 0.0f64, f64::INFINITY);
    for ((reference, answer), theirs) in references.iter().zip(&answers).zip(&logits) {
        assert_eq!(answer.prompt_ids, reference.prompt_ids, "the tokenizer is the same in transformers");
        assert_eq!(reference.decoded, reference.prompt.clone() + &reference.text, "and brings its text back");
        assert_eq!((&answer.ids[..], &answer.text), (reference.answer(), &reference.text), "{}", reference.prompt);
        of_logits = of_logits.max(relative(&ours::logits(&model, &reference.ids), theirs));
        of_log_probs = of_log_probs.max(largest(answer.logprobs.iter().copied(), &reference.logprobs));
        gap = gap.min(reference.greedy_min_gap);
    }
    eprintln!(
        "quickstart: 32 answers are the same; logits differ by {of_logits:.1e} (relative), log-probs by {of_log_probs:.1e}; \
         smallest gap between the two likeliest {gap:.3}"
    );
    assert!(of_logits <= LOGITS, "{of_logits:e}");
    assert!(of_log_probs <= LOG_PROB, "{of_log_probs:e}");
    // Pairs of answers that say nothing: had it learnt nothing, all would be the same.
    let texts: std::collections::BTreeSet<&str> = answers.iter().map(|answer| answer.text.as_str()).collect();
    assert!(texts.len() > 16, "{texts:?}");
}
