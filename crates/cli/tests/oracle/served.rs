//! The native engine as a process on loopback, and what it answers.

use std::{
    net::{SocketAddr, TcpListener},
    path::Path,
    process::{Child, Command},
    time::Duration,
};

use serde_json::{Value, json};

/// Longest wait for an answer. Not a bound on speed: it only ends a test that hangs.
const PATIENCE: Duration = Duration::from_secs(600);

pub struct Served {
    process: Child,
    address: SocketAddr,
    http: reqwest::Client,
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A greedy answer.
pub struct Answer {
    pub prompt_ids: Vec<u32>,
    pub ids: Vec<u32>,
    pub text: String,
    /// Log-probs of the prompt's tokens but the first, then of the answer's.
    pub logprobs: Vec<f32>,
    /// (log-prob, token), the ten likeliest at the first token of the answer.
    pub top10: Vec<(f32, u32)>,
}

impl Served {
    pub async fn start(folder: &Path) -> Self {
        let binaries = Path::new(env!("CARGO_BIN_EXE_thresh")).parent().unwrap();
        // Free a moment ago; nothing else here asks for ports.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut process = Command::new(binaries.join("thresh-rollout"))
            .args(["engine", "--threads=2", "--listen", &address.to_string(), "--model-path"])
            .arg(folder)
            .env_remove("THRESH_TOKEN")
            .env("RUST_LOG", "warn")
            .spawn()
            .unwrap();
        let http = reqwest::Client::new();
        let since = std::time::Instant::now();
        while !matches!(http.get(format!("http://{address}/health")).send().await, Ok(reply) if reply.status() == 200) {
            if let Some(status) = process.try_wait().unwrap() {
                panic!("the engine ended: {status}");
            }
            assert!(since.elapsed() < PATIENCE, "the engine does not become healthy");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Self { process, address, http }
    }

    /// Answers to all prompts, asked for together.
    pub async fn greedy<'a>(&self, prompts: impl IntoIterator<Item = &'a str>, max_new_tokens: usize) -> Vec<Answer> {
        let prompts: Vec<&str> = prompts.into_iter().collect();
        let body = json!({
            "text": prompts, "return_prompt_token_ids": true, "return_logprob": true, "logprob_start_len": 0, "top_logprobs_num": 10,
            "sampling_params": {"temperature": 0, "max_new_tokens": max_new_tokens, "skip_special_tokens": false, "no_stop_trim": true},
        });
        let request = self.http.post(format!("http://{}/generate", self.address)).json(&body).timeout(PATIENCE);
        let reply = request.send().await.unwrap();
        let status = reply.status();
        let reply: Value = reply.json().await.unwrap();
        assert_eq!(status, 200, "{reply}");
        reply.as_array().unwrap().iter().map(answer).collect()
    }
}

fn answer(reply: &Value) -> Answer {
    let ids = |value: &Value| value.as_array().unwrap().iter().map(id).collect::<Vec<u32>>();
    let meta = &reply["meta_info"];
    let rows = |key: &str| meta[key].as_array().unwrap().clone();
    // The first token of a prompt has nothing before it, so its log-prob is null.
    let (input, output) = (rows("input_token_logprobs"), rows("output_token_logprobs"));
    let scored: Vec<(f32, u32)> = input[1..].iter().chain(&output).map(pair).collect();
    let answer = Answer {
        prompt_ids: ids(&reply["prompt_token_ids"]),
        ids: ids(&reply["output_ids"]),
        text: reply["text"].as_str().unwrap().to_owned(),
        logprobs: scored.iter().map(|(logprob, _)| *logprob).collect(),
        top10: rows("output_top_logprobs")[0].as_array().unwrap().iter().map(pair).collect(),
    };
    let whole = [&answer.prompt_ids[..], &answer.ids].concat();
    assert_eq!(scored.iter().map(|(_, id)| *id).collect::<Vec<_>>(), whole[1..], "each log-prob is of its token");
    answer
}

fn id(value: &Value) -> u32 {
    u32::try_from(value.as_u64().unwrap()).unwrap()
}

/// `[log-prob, token, …]`; the number in JSON is the engine's f32, widened.
fn pair(row: &Value) -> (f32, u32) {
    (row[0].as_f64().unwrap() as f32, id(&row[1]))
}
