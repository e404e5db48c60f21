//! How an engine is started: flags with SGLang's names where SGLang has one.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

/// The native engine. Names follow SGLang's server where it has the same option.
#[derive(Clone, Debug, clap::Args)]
pub struct EngineOptions {
    /// Address to serve on.
    #[arg(long, default_value = "127.0.0.1:30000")]
    pub listen: SocketAddr,
    /// Hugging Face folder with config.json, tokenizer.json and, if it has any yet, weights.
    #[arg(long)]
    pub model_path: PathBuf,
    /// Weight version to report until the first update.
    #[arg(long, default_value = "default")]
    pub weight_version: String,
    /// Threads of the forward pass.
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
    /// Requests decoded together.
    #[arg(long, default_value_t = 256)]
    pub max_running_requests: usize,
    /// Requests that may wait; one more is answered 503.
    #[arg(long, default_value_t = 4096)]
    pub max_queued_requests: usize,
    /// Tokens of the KV pool. Default: what `--kv-cache-mib` holds.
    #[arg(long)]
    pub max_total_tokens: Option<usize>,
    /// Memory of the KV pool when `--max-total-tokens` is not given, in MiB.
    #[arg(long, default_value_t = 512)]
    pub kv_cache_mib: usize,
    /// Longest sequence (prompt and output). Default: the model's.
    #[arg(long)]
    pub context_length: Option<usize>,
    /// Prompt tokens computed in one iteration; longer prompts are computed in chunks.
    #[arg(long, default_value_t = 2048)]
    pub chunked_prefill_size: usize,
    /// Never reuse the KV of an earlier request with the same prefix.
    #[arg(long)]
    pub disable_radix_cache: bool,
    /// Streamed events carry only what is new, instead of everything so far.
    #[arg(long)]
    pub incremental_streaming_output: bool,
    /// Bearer token that every route but health, readiness and metrics asks for. None: all routes are open.
    #[arg(long, env = "THRESH_TOKEN", hide_env_values = true)]
    pub api_key: Option<String>,
    /// Seconds that `/health_generate` waits for its token.
    #[arg(long, default_value_t = 20)]
    pub health_timeout_secs: u64,
    /// Seconds that a pause, flush or weight update may take before the caller is told that it did not happen.
    #[arg(long, default_value_t = 600)]
    pub control_timeout_secs: u64,
    /// Seconds one iteration may take before the process is declared dead.
    #[arg(long, default_value_t = 300)]
    pub watchdog_timeout_secs: u64,
    /// Seconds that requests in flight may take to finish after SIGTERM.
    #[arg(long, default_value_t = 20)]
    pub drain_timeout_secs: u64,
    /// Seconds after SIGTERM in which requests are still taken while readiness is false already: who routes requests needs a
    /// while to hear of it.
    #[arg(long, default_value_t = 0)]
    pub lame_duck_secs: u64,
}

impl EngineOptions {
    /// The defaults, for a model folder.
    #[must_use]
    pub fn new(listen: SocketAddr, model_path: PathBuf) -> Self {
        Self {
            listen,
            model_path,
            weight_version: "default".to_owned(),
            threads: 1,
            max_running_requests: 256,
            max_queued_requests: 4096,
            max_total_tokens: None,
            kv_cache_mib: 512,
            context_length: None,
            chunked_prefill_size: 2048,
            disable_radix_cache: false,
            incremental_streaming_output: false,
            api_key: None,
            health_timeout_secs: 20,
            control_timeout_secs: 600,
            watchdog_timeout_secs: 300,
            drain_timeout_secs: 20,
            lame_duck_secs: 0,
        }
    }

    pub(crate) fn control_timeout(&self) -> Duration {
        Duration::from_secs(self.control_timeout_secs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: EngineOptions,
    }

    #[test]
    fn what_a_flag_leaves_out_is_what_new_gives() {
        let mut flags = Line::parse_from(["engine", "--model-path", "m"]).options;
        // From the environment, which is not this test's.
        flags.api_key = None;
        let new = EngineOptions::new(flags.listen, "m".into());
        assert_eq!(format!("{flags:?}"), format!("{new:?}"));
    }
}
