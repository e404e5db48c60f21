//! What `/metrics` shows of an engine: SGLang's names with `thresh_engine_` for `sglang:`.

use prometheus::{Gauge, Histogram, HistogramOpts, IntCounter, IntGauge, Registry};

use crate::outcome::Standing;

/// The engine's metrics. Clones share them.
#[derive(Clone)]
pub(crate) struct Metrics {
    pub(crate) running: IntGauge,
    pub(crate) queued: IntGauge,
    pub(crate) paused: IntGauge,
    pub(crate) used_tokens: IntGauge,
    pub(crate) max_total_tokens: IntGauge,
    pub(crate) gen_throughput: Gauge,
    pub(crate) requests: IntCounter,
    pub(crate) aborted: IntCounter,
    pub(crate) retractions: IntCounter,
    pub(crate) weight_updates: IntCounter,
    pub(crate) generation_tokens: IntCounter,
    prompt_tokens: IntCounter,
    cached_tokens: IntCounter,
    queue_time: Histogram,
    first_token: Histogram,
    e2e: Histogram,
    output_length: Histogram,
}

/// Seconds, from a tiny model on one core to a long answer of a large one.
const SECONDS: [f64; 14] = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0];
const TOKENS: [f64; 9] = [1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0];

impl Metrics {
    pub(crate) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let gauge = |name: &str, help: &str| -> Result<IntGauge, prometheus::Error> {
            let gauge = IntGauge::new(format!("thresh_engine_{name}"), help)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok(gauge)
        };
        let counter = |name: &str, help: &str| -> Result<IntCounter, prometheus::Error> {
            let counter = IntCounter::new(format!("thresh_engine_{name}"), help)?;
            registry.register(Box::new(counter.clone()))?;
            Ok(counter)
        };
        let histogram = |name: &str, help: &str, buckets: &[f64]| -> Result<Histogram, prometheus::Error> {
            let options = HistogramOpts::new(format!("thresh_engine_{name}"), help).buckets(buckets.to_vec());
            let histogram = Histogram::with_opts(options)?;
            registry.register(Box::new(histogram.clone()))?;
            Ok(histogram)
        };
        let gen_throughput = Gauge::new("thresh_engine_gen_throughput", "Output tokens per second, lately")?;
        registry.register(Box::new(gen_throughput.clone()))?;
        Ok(Self {
            running: gauge("num_running_reqs", "Requests being computed")?,
            queued: gauge("num_queue_reqs", "Requests that wait")?,
            paused: gauge("paused", "1 while generation is paused")?,
            used_tokens: gauge("num_used_tokens", "Tokens of the KV pool that requests hold, in whole pages")?,
            max_total_tokens: gauge("max_total_num_tokens", "Tokens of the KV pool")?,
            gen_throughput,
            requests: counter("num_requests_total", "Requests that reached the scheduler")?,
            aborted: counter("num_aborted_requests_total", "Requests that were aborted")?,
            retractions: counter("num_retracted_reqs_total", "Times that a running request had to wait again")?,
            weight_updates: counter("weight_updates_total", "Times that the weights changed")?,
            generation_tokens: counter("generation_tokens_total", "Output tokens")?,
            prompt_tokens: counter("prompt_tokens_total", "Prompt tokens of finished requests")?,
            cached_tokens: counter("cached_tokens_total", "Of these, found in the prefix cache")?,
            queue_time: histogram("queue_time_seconds", "From arrival to the first iteration", &SECONDS)?,
            first_token: histogram("time_to_first_token_seconds", "From arrival to the first token", &SECONDS)?,
            e2e: histogram("e2e_request_latency_seconds", "From arrival to the end", &SECONDS)?,
            output_length: histogram("generation_tokens_histogram", "Output tokens of a request", &TOKENS)?,
        })
    }

    /// Counts a request that has ended.
    pub(crate) fn finished(&self, standing: &Standing, output_tokens: usize) {
        let times = &standing.times;
        let since = |at: std::time::Instant| at.saturating_duration_since(times.received).as_secs_f64();
        if let Some(at) = times.scheduled {
            self.queue_time.observe(since(at));
            self.prompt_tokens.inc_by(standing.prompt_tokens as u64);
            self.cached_tokens.inc_by(standing.cached_tokens as u64);
        }
        if let Some(at) = times.first_token {
            self.first_token.observe(since(at));
        }
        if let Some(at) = times.finished {
            self.e2e.observe(since(at));
        }
        self.output_length.observe(output_tokens as f64);
    }
}
