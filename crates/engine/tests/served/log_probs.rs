//! The log-probs of engine and trainer are the same bits.

use serde_json::{Value, json};

use crate::live::{Live, bits, log_prob_bits, model_folder, output_ids, prompt, trainers_model};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_trainer_computes_the_very_log_probs_the_engine_reported() {
    let folder = model_folder(4);
    let engine = Live::start_with(folder.path(), |options| options.chunked_prefill_size = 50).await;
    let temperature = 0.7f32;
    let mut requests = Vec::new();
    for index in 0..12u64 {
        let prompt = prompt(index, 1 + 17 * index as usize);
        let body = json!({"input_ids": prompt, "return_logprob": true, "logprob_start_len": 0, "sampling_params":
            {"max_new_tokens": 3 + 11 * index, "ignore_eos": true, "temperature": temperature, "sampling_seed": index}});
        requests.push((prompt, engine.spawn(body)));
    }
    let mut answers = Vec::new();
    for (prompt, answer) in requests {
        answers.push((prompt, answer.await.unwrap().1));
    }

    // All of them packed into one micro-batch, as a trainer would.
    let model = trainers_model(folder.path());
    let sequences: Vec<Vec<u32>> =
        answers.iter().map(|(prompt, answer)| [prompt.clone(), output_ids(answer)].concat()).collect();
    let lengths: Vec<usize> = sequences.iter().map(Vec::len).collect();
    let layout = model.pack(&lengths).unwrap();
    let tokens: Vec<i32> = sequences.concat().iter().map(|id| *id as i32).collect();
    let mut pass = model.forward(&tokens, &layout, false).unwrap();
    let mut first = 0;
    for ((prompt, answer), length) in answers.iter().zip(&lengths) {
        let rows: Vec<i32> = (first..first + length - 1).map(|row| row as i32).collect();
        let targets: Vec<i32> = tokens[first + 1..first + length].to_vec();
        let trainers = model.log_probs(&mut pass, &rows, &targets, temperature).unwrap().logp;
        let (of_prompt, of_output) = trainers.split_at(prompt.len() - 1);
        assert_eq!(of_output.iter().map(|logp| logp.to_bits()).collect::<Vec<_>>(), log_prob_bits(answer));
        let input = answer["meta_info"]["input_token_logprobs"].as_array().unwrap();
        assert_eq!(input.len(), prompt.len());
        assert_eq!(input[0], json!([null, prompt[0], null]));
        for ((row, logp), id) in input[1..].iter().zip(of_prompt).zip(&prompt[1..]) {
            assert_eq!((bits(&row[0]), row[1].as_u64().unwrap()), (logp.to_bits(), u64::from(*id)));
        }
        first += length;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scoring_a_finished_sample_gives_the_bits_it_was_drawn_with() {
    let folder = model_folder(4);
    let engine = Live::start(folder.path()).await;
    let prompt = prompt(9, 130);
    let params =
        |max: usize| json!({"max_new_tokens": max, "ignore_eos": true, "temperature": 0.9, "sampling_seed": 3});
    let drawn =
        engine.generate(json!({"input_ids": prompt, "return_logprob": true, "sampling_params": params(50)})).await;
    let whole = [prompt.clone(), output_ids(&drawn)].concat();
    let start = prompt.len() - 1;
    let scored = engine
        .generate(json!({"input_ids": whole, "return_logprob": true, "logprob_start_len": start, "sampling_params": params(0)}))
        .await;
    assert_eq!(scored["meta_info"]["cached_tokens"], 128, "only what comes before the start is read from the cache");
    assert_eq!(output_ids(&scored), Vec::<u32>::new());
    let rows = scored["meta_info"]["input_token_logprobs"].as_array().unwrap();
    let scored: Vec<u32> = rows[1..].iter().map(|row| bits(&row[0])).collect();
    assert_eq!(scored, log_prob_bits(&drawn));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alternatives_agree_with_the_token_they_stand_beside() {
    let folder = model_folder(4);
    let engine = Live::start(folder.path()).await;
    let body = json!({"input_ids": prompt(1, 5), "return_logprob": true, "logprob_start_len": 0, "top_logprobs_num": 3,
        "token_ids_logprob": [7, 2], "return_text_in_logprobs": true,
        "sampling_params": {"max_new_tokens": 4, "temperature": 0, "ignore_eos": true}});
    let answer = engine.generate(body).await;
    let meta = &answer["meta_info"];
    let lists = |key: &str| -> Vec<Value> { meta[key].as_array().unwrap().clone() };
    let (tokens, top, asked) =
        (lists("output_token_logprobs"), lists("output_top_logprobs"), lists("output_token_ids_logprobs"));
    assert_eq!((tokens.len(), top.len(), asked.len()), (4, 4, 4));
    for ((token, top), asked) in tokens.iter().zip(&top).zip(&asked) {
        assert_eq!(*token, top[0], "a greedy token is the likeliest, with the same bits");
        assert!(top[0][0].as_f64() >= top[1][0].as_f64() && top[1][0].as_f64() >= top[2][0].as_f64());
        assert_eq!((asked[0][1].as_u64(), asked[1][1].as_u64()), (Some(7), Some(2)));
        assert_eq!(asked[0][2], "%");
        if let Some(same) = top.as_array().unwrap().iter().find(|row| row[1] == 7) {
            assert_eq!(same[0], asked[0][0]);
        }
    }
    let (input, input_top) = (lists("input_token_logprobs"), lists("input_top_logprobs"));
    assert_eq!((input.len(), input_top.len()), (5, 5));
    assert_eq!((&input[0][0], &input_top[0]), (&Value::Null, &Value::Null));
}
