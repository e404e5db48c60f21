//! Groups from engines that are late, dead, mute or wrong.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod engines;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::http::StatusCode;
use control::wire::{SampleStatus, VersionSpan};
use engines::{Answer, Bench, FakeEngine, Options, dead, engine, engine_with, patient, reply, task};
use rollout::{Group, Limits, Reward, Tokenizer, generate_group, rewards::ExactMatch};
use serde_json::{Value, json};

fn good(_: &Value) -> Answer {
    Answer::Tokens(vec![7, 8, 0], 1, "stop")
}

async fn generate(bench: &Bench, group: u64, samples: u32, limits: Limits) -> Group {
    let task = task(group, samples, 16);
    generate_group(&task, &bench.pool, &bench.tokenizer, &ExactMatch, limits, &bench.figures).await
}

fn failed(group: &Group) -> usize {
    group.samples.iter().filter(|sample| sample.meta.status == SampleStatus::Failed).count()
}

/// Gives up on a call soon; such a test never waits for an answer that would come.
fn hasty(give_up: Duration) -> Limits {
    Limits { generate: Duration::from_secs(2), give_up }
}

/// Of two engines, the first to be asked never answers.
async fn mute_then_good(options: fn() -> Options) -> [Arc<FakeEngine>; 2] {
    let asked = Arc::new(AtomicBool::new(false));
    let decide = |asked: Arc<AtomicBool>| {
        move |call: &Value| if asked.swap(true, Ordering::SeqCst) { good(call) } else { Answer::Never }
    };
    [engine_with(options(), decide(asked.clone())).await, engine_with(options(), decide(asked)).await]
}

#[tokio::test]
async fn a_call_that_timed_out_is_aborted_where_it_runs_before_it_runs_elsewhere() {
    let pair = mute_then_good(Options::default).await;
    let bench = Bench::new(&[pair[0].address.clone(), pair[1].address.clone()]);
    let group = generate(&bench, 6, 1, hasty(Duration::from_secs(60))).await;
    assert_eq!(failed(&group), 0);
    let mute = pair.iter().find(|engine| !engine.aborts.lock().unwrap().is_empty()).expect("it was aborted");
    let other = pair.iter().find(|engine| engine.address != mute.address).unwrap();
    assert_eq!((mute.rids().len(), other.rids().len()), (1, 1), "the second try is elsewhere");
    assert_eq!(*mute.aborts.lock().unwrap(), mute.rids(), "by the id that it was asked with");
    assert_ne!(mute.rids(), other.rids(), "an abort of the first can never meet the second");
    assert!(mute.running.lock().unwrap().is_empty(), "nothing of it runs any more");
    assert!(other.aborts.lock().unwrap().is_empty());
    for answer in ["refused", "none"] {
        assert_eq!(bench.figure(&format!("failed_aborts_total{{answer=\"{answer}\"}}")), 0.0);
    }
}

#[tokio::test]
async fn an_abort_that_is_refused_is_counted_and_not_repeated() {
    for status in [404, 422] {
        let options = match status {
            404 => || Options { abort_status: StatusCode::NOT_FOUND, ..Options::default() },
            _ => || Options { abort_status: StatusCode::UNPROCESSABLE_ENTITY, ..Options::default() },
        };
        let pair = mute_then_good(options).await;
        let bench = Bench::new(&[pair[0].address.clone(), pair[1].address.clone()]);
        let group = generate(&bench, 6, 1, hasty(Duration::from_secs(60))).await;
        assert_eq!(failed(&group), 0, "the sample is had all the same");
        let aborts: usize = pair.iter().map(|engine| engine.aborts.lock().unwrap().len()).sum();
        assert_eq!(aborts, 1);
        assert_eq!(bench.figure("failed_aborts_total{answer=\"refused\"}"), 1.0);
        assert_eq!(bench.figure("generate_calls_total"), 2.0);
    }
}

#[tokio::test]
async fn nothing_is_generated_before_an_engine_is_named() {
    let late = engine(good).await;
    let bench = Arc::new(Bench::new(&[]));
    let waiting = tokio::spawn({
        let bench = bench.clone();
        async move { generate(&bench, 0, 4, patient()).await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!waiting.is_finished() && late.calls.lock().unwrap().is_empty());
    assert_eq!(bench.figure("generate_calls_total"), 0.0, "nor is it tried");
    bench.pool.update(std::slice::from_ref(&late.address));
    assert_eq!(failed(&waiting.await.unwrap()), 0);
    assert_eq!(bench.figure("generate_calls_total"), 4.0);
}

#[tokio::test]
async fn a_dead_engine_costs_no_sample_even_where_all_prompts_prefer_it() {
    let living = [engine(good).await, engine(good).await, engine(good).await];
    let dead = dead().await;
    let mut addresses: Vec<_> = living.iter().map(|engine| engine.address.clone()).collect();
    addresses.push(dead.clone());
    let bench = Bench::new(&addresses);
    // The place of the dead one among four: every group of these prefers it.
    let preferred = (0..4).find(|key| bench.pool.pick(*key, None).unwrap().url() == dead.url).unwrap();
    let groups = (0..64).map(|group| generate(&bench, preferred + 4 * group, 1, patient()));
    let groups = futures::future::join_all(groups).await;
    assert_eq!(groups.iter().map(failed).sum::<usize>(), 0, "64 of 64");
    assert!(bench.figure("generate_calls_total") > 64.0, "some had asked the dead one first");
    assert_eq!(living.iter().map(|engine| engine.calls.lock().unwrap().len()).sum::<usize>(), 64);
}

#[tokio::test]
async fn many_calls_on_slow_engines_are_waited_for_and_none_is_turned_away() {
    let slow = || Options { delay: Duration::from_secs(1), ..Options::default() };
    let pair = [engine_with(slow(), good).await, engine_with(slow(), good).await];
    let bench = Bench::new(&[pair[0].address.clone(), pair[1].address.clone()]);
    let (a, b) = tokio::join!(generate(&bench, 0, 1024, patient()), generate(&bench, 1, 1024, patient()));
    assert_eq!((failed(&a), failed(&b)), (0, 0));
    assert_eq!(bench.figure("generate_calls_total"), 2048.0, "each once: slowness is no failure");
    let most: usize = pair.iter().map(|engine| *engine.most.lock().unwrap()).sum();
    assert!(most > 1024, "they were under way together: {most}");
}

#[tokio::test]
async fn a_call_that_never_answers_fails_its_own_sample_and_no_other() {
    // Sample 17 is answered nowhere.
    let decide = |call: &Value| {
        if call["sampling_params"]["sampling_seed"] == 17 { Answer::Never } else { good(call) }
    };
    let only = engine(decide).await;
    let bench = Bench::new(std::slice::from_ref(&only.address));
    let group = generate(&bench, 0, 64, hasty(Duration::ZERO)).await;
    let summary = group.summary();
    assert_eq!((summary.rewards.len(), summary.failed), (63, 1));
    let lost = &group.samples[17];
    assert_eq!((lost.meta.status, lost.loss_mask.len()), (SampleStatus::Failed, 0));
    assert!(lost.meta.error.as_ref().unwrap().contains("no answer"), "{lost:?}");
    assert_eq!(bench.figure("failed_samples_total"), 1.0);

    // Or it is, elsewhere: then nothing is lost.
    let pair = mute_then_good(Options::default).await;
    let bench = Bench::new(&[pair[0].address.clone(), pair[1].address.clone()]);
    let group = generate(&bench, 0, 64, hasty(Duration::from_secs(60))).await;
    assert_eq!(failed(&group), 0);
    assert_eq!(bench.figure("failed_samples_total"), 0.0);
}

#[tokio::test]
async fn a_continuation_asks_for_what_is_left_and_keeps_the_version_of_every_token() {
    let calls = Arc::new(AtomicUsize::new(0));
    let only = engine(move |call| match calls.fetch_add(1, Ordering::SeqCst) {
        0 => Answer::Tokens((100..140).collect(), 3, "abort"),
        1 => {
            // Whoever goes on is given all that was drawn, and the same seed.
            assert_eq!(call["input_ids"].as_array().unwrap().len(), 3 + 40);
            Answer::Tokens((200..224).collect(), 4, "length")
        }
        _ => panic!("a third call"),
    })
    .await;
    let bench = Bench::new(std::slice::from_ref(&only.address));
    let task = task(0, 1, 64);
    let group = generate_group(&task, &bench.pool, &bench.tokenizer, &ExactMatch, patient(), &bench.figures).await;
    let limits: Vec<_> =
        only.calls.lock().unwrap().iter().map(|call| call["sampling_params"]["max_new_tokens"].clone()).collect();
    assert_eq!(limits, [json!(64), json!(24)]);
    let sample = &group.samples[0];
    let span = |version, start, end| VersionSpan { version, start, end };
    assert_eq!(sample.meta.versions, [span(3, 0, 40), span(4, 40, 64)]);
    assert_eq!((sample.response_len, sample.log_probs.len(), sample.loss_mask.len()), (64, 64, 64));
    assert_eq!(sample.tokens[3..], [(100..140).collect::<Vec<u32>>(), (200..224).collect()].concat());
    assert_eq!(sample.meta.status, SampleStatus::Truncated);
    assert_eq!((group.summary().version_min, group.summary().version_max), (3, 4));
}

/// Notes the text it is shown.
struct Seen(std::sync::Mutex<String>);

impl Reward for Seen {
    fn score(&self, _: &str, response: &str, _: &str) -> Result<f64, String> {
        response.clone_into(&mut self.0.lock().unwrap());
        Ok(1.0)
    }
}

#[tokio::test]
async fn a_character_that_is_cut_by_an_abort_is_whole_in_the_text() {
    // A vocabulary of bytes: an emoji is four tokens.
    let folder = tempfile::tempdir().unwrap();
    let vocab: serde_json::Map<String, Value> = (0..256).map(|byte| (format!("<0x{byte:02X}>"), json!(byte))).collect();
    let tokenizer = json!({
        "version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null, "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {"type": "BPE", "vocab": vocab, "merges": [], "byte_fallback": true},
    });
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    std::fs::write(folder.path().join("config.json"), r#"{"eos_token_id": 10}"#).unwrap();
    let calls = AtomicUsize::new(0);
    let only = engine(move |_| match calls.fetch_add(1, Ordering::SeqCst) {
        0 => Answer::Tokens(vec![0x61, 0xF0, 0x9F], 1, "abort"),
        _ => Answer::Tokens(vec![0x99, 0x82, 0x62], 1, "stop"),
    })
    .await;
    let bench = Bench::new(std::slice::from_ref(&only.address));
    let (tokenizer, seen) = (Tokenizer::from_folder(folder.path()).unwrap(), Seen(Default::default()));
    let group = generate_group(&task(0, 1, 64), &bench.pool, &tokenizer, &seen, patient(), &bench.figures).await;
    assert_eq!(failed(&group), 0);
    assert_eq!(*seen.0.lock().unwrap(), "a🙂b");
}

#[tokio::test]
async fn replies_that_do_not_hold_together_are_counted_by_cause_and_never_become_samples() {
    let ids: Vec<u32> = (100..112).collect();
    let whole = reply(&ids, 1, "length");
    let damaged = |damage: &dyn Fn(&mut Vec<Value>)| {
        let mut body = whole.clone();
        damage(body["meta_info"]["output_token_logprobs"].as_array_mut().unwrap());
        body
    };
    let bodies = [
        damaged(&|rows| rows.push(json!([-0.5, 7, null]))),
        damaged(&|rows| drop(rows.pop())),
        damaged(&|rows| rows[5] = json!([-0.5, 9, null])),
        damaged(&|rows| rows[5] = json!([null, 105, null])),
    ];
    let calls = AtomicUsize::new(0);
    let answers: Vec<Answer> = bodies.into_iter().map(Answer::Body).collect();
    let only =
        engine(move |call| answers.get(calls.fetch_add(1, Ordering::SeqCst)).cloned().unwrap_or_else(|| good(call)))
            .await;
    let bench = Bench::new(std::slice::from_ref(&only.address));
    let group = generate(&bench, 0, 1, patient()).await;
    assert_eq!(group.generate_calls, 5, "each was asked for again");
    assert_eq!(group.samples[0].tokens, [3, 4, 5, 7, 8, 0]);
    for cause in ["too_many_log_probs", "too_few_log_probs", "wrong_id", "not_a_log_prob"] {
        assert_eq!(bench.figure(&format!("refused_replies_total{{cause=\"{cause}\"}}")), 1.0, "{cause}");
    }
}

/// A judge that is out of order.
struct Broken(Result<f64, String>);

impl Reward for Broken {
    fn score(&self, _: &str, _: &str, _: &str) -> Result<f64, String> {
        self.0.clone()
    }
}

#[tokio::test]
async fn a_reward_that_cannot_be_had_fails_the_sample_and_is_not_a_zero() {
    let only = engine(good).await;
    let bench = Bench::new(std::slice::from_ref(&only.address));
    for (judge, why) in
        [(Err("the judge is away".to_owned()), "away"), (Ok(f64::NAN), "NaN"), (Ok(f64::INFINITY), "inf")]
    {
        let judge = Broken(judge);
        let group =
            generate_group(&task(0, 4, 8), &bench.pool, &bench.tokenizer, &judge, patient(), &bench.figures).await;
        assert_eq!((group.summary().rewards.len(), group.summary().failed), (0, 4));
        assert!(group.samples.iter().all(|sample| sample.meta.error.as_ref().unwrap().contains(why)), "{why}");
    }
    let zero = Broken(Ok(0.0));
    let group = generate_group(&task(0, 4, 8), &bench.pool, &bench.tokenizer, &zero, patient(), &bench.figures).await;
    assert_eq!((group.summary().rewards, group.summary().failed), (vec![0.0; 4], 0), "a zero is a verdict");
}

#[tokio::test]
async fn a_sample_carries_the_temperature_it_was_drawn_at() {
    let only = engine(good).await;
    let bench = Bench::new(std::slice::from_ref(&only.address));
    let group = generate(&bench, 0, 2, patient()).await;
    assert!(only.calls.lock().unwrap().iter().all(|call| call["sampling_params"]["temperature"] == 0.7));
    assert!(group.samples.iter().all(|sample| sample.meta.temperature == 0.7));
    let record = rollout::group_record(&group).unwrap();
    assert_eq!(rollout::read_group(&record).unwrap().samples, group.samples, "and it is stored with it");
}
