//! An engine as workers use it: many requests at once, short prompts, short answers with log-probs.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::stream::{StreamExt, TryStreamExt};
use serde_json::{Value, json};

use super::local_run::binary;
use crate::Options;
use crate::line::Lines;
use crate::rounds::{Times, rate};

const REQUESTS: usize = 256;
const PROMPT: usize = 8;
const ANSWER: usize = 6;
/// Requests in flight.
const AT_ONCE: [usize; 3] = [1, 32, 256];

struct Served {
    child: Child,
    url: String,
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The quickstart's model with random weights, served by `thresh-rollout engine`.
pub fn run(options: &Options, lines: &mut Lines, manifest: &Path) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(measure(options, lines, manifest))
}

async fn measure(options: &Options, lines: &mut Lines, manifest: &Path) -> Result<()> {
    let scratch = tempfile::Builder::new().prefix("engine-").tempdir_in(&options.out)?;
    let folder = model_folder(scratch.path(), manifest)?;
    let served = start(&folder).await?;
    let client = reqwest::Client::builder().pool_max_idle_per_host(REQUESTS).build()?;
    let round = std::cell::Cell::new(0u64);
    for at_once in AT_ONCE {
        let mut times = Times::default();
        for i in 0..=options.rounds {
            round.set(round.get() + 1);
            let since = Instant::now();
            let one = |request: usize| ask(&client, &served.url, round.get() * REQUESTS as u64 + request as u64);
            let tokens: Vec<usize> =
                futures::stream::iter((0..REQUESTS).map(one)).buffer_unordered(at_once).try_collect().await?;
            ensure!(tokens.iter().sum::<usize>() == REQUESTS * ANSWER, "an answer has another length");
            if i > 0 {
                times.0.push(since.elapsed().as_secs_f64());
            }
        }
        let name = format!("{REQUESTS} requests of {PROMPT}+{ANSWER} tokens, {at_once} at once");
        let line = rate("engine_http", name, (REQUESTS * ANSWER) as f64, "tokens/s", &times);
        lines.add(line.with("requests_per_s", REQUESTS as f64 / times.median()))?;
    }
    Ok(())
}

async fn ask(client: &reqwest::Client, url: &str, seed: u64) -> Result<usize> {
    let prompt: Vec<u64> = (0..PROMPT as u64).map(|i| 2 + (seed * 31 + i * 7) % 40).collect();
    let body = json!({
        "input_ids": prompt, "return_logprob": true, "rid": format!("bench-{seed:016x}"),
        "sampling_params": {
            "temperature": 1.0, "max_new_tokens": ANSWER, "ignore_eos": true, "sampling_seed": seed,
        },
    });
    let answer = client.post(format!("{url}/generate")).json(&body).send().await?.error_for_status()?;
    let answer: Value = answer.json().await?;
    Ok(answer["output_ids"].as_array().context("output_ids")?.len())
}

fn model_folder(scratch: &Path, manifest: &Path) -> Result<std::path::PathBuf> {
    let from = manifest.with_file_name("volumes/thresh-data/sort5/model");
    let text = std::fs::read_to_string(from.join("config.json")).with_context(|| from.display().to_string())?;
    let folder = scratch.join("model");
    crate::core::write_random(&text, &from, &folder)?;
    Ok(folder)
}

async fn start(folder: &Path) -> Result<Served> {
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let child = Command::new(binary("thresh-rollout")?)
        .args(["engine", "--listen", &format!("127.0.0.1:{port}"), "--threads", "1", "--kv-cache-mib", "64"])
        .arg("--model-path")
        .arg(folder)
        .env("RUST_LOG", "warn")
        .stdin(Stdio::null())
        .spawn()?;
    let served = Served { child, url: format!("http://127.0.0.1:{port}") };
    let client = reqwest::Client::new();
    let since = Instant::now();
    loop {
        let health = client.get(format!("{}/health", served.url)).send().await;
        if health.is_ok_and(|answer| answer.status().is_success()) {
            return Ok(served);
        }
        ensure!(since.elapsed() < Duration::from_secs(60), "the engine does not come up");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
