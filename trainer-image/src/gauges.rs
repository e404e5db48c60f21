//! The trainer's figures for `/metrics`.

use anyhow::Result;
use control::wire::{Report, TrainMetrics};
use prometheus::{Gauge, IntCounter, Registry};
use train::Event;

/// Gauges of the last batch and counters of the process's life.
pub struct Gauges {
    step: Gauge,
    loss: Gauge,
    kl: Gauge,
    entropy: Gauge,
    clip_fraction: Gauge,
    grad_norm: Gauge,
    lr: Gauge,
    gap_max: Gauge,
    gap_tokens: IntCounter,
    tokens: IntCounter,
    batches: IntCounter,
    skipped_updates: IntCounter,
    train_seconds: Gauge,
    tiles_bytes: IntCounter,
    weights_bytes: IntCounter,
}

impl Gauges {
    /// Registers them.
    pub fn register(registry: &Registry) -> Result<Self> {
        let gauge = |name: &str, help: &str| -> Result<Gauge> {
            let gauge = Gauge::new(format!("thresh_trainer_{name}"), help)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok(gauge)
        };
        let counter = |name: &str, help: &str| -> Result<IntCounter> {
            let counter = IntCounter::new(format!("thresh_trainer_{name}_total"), help)?;
            registry.register(Box::new(counter.clone()))?;
            Ok(counter)
        };
        Ok(Self {
            step: gauge("step", "RL step or warm-start update of the last batch")?,
            loss: gauge("loss", "Objective on the last batch")?,
            kl: gauge("kl", "KL to the reference on the last batch, nats")?,
            entropy: gauge("entropy", "Entropy on the last batch, nats")?,
            clip_fraction: gauge("clip_fraction", "Share of clipped tokens of the last batch")?,
            grad_norm: gauge("grad_norm", "Global gradient norm of the last update before clipping")?,
            lr: gauge("lr", "Learning rate of the last update")?,
            gap_max: gauge(
                "logprob_gap_max",
                "Largest |trainer - engine| log-prob difference of the last batch, nats",
            )?,
            gap_tokens: counter("logprob_gap_tokens", "Tokens whose trainer and engine log-probs were compared")?,
            tokens: counter("tokens", "Tokens trained on, prompts included")?,
            batches: counter("batches", "Batches learnt")?,
            skipped_updates: counter("skipped_updates", "Updates skipped for non-finite gradients")?,
            train_seconds: gauge("train_seconds", "Seconds the last batch took")?,
            tiles_bytes: counter("tiles_bytes", "Bytes of tiles written")?,
            weights_bytes: counter("weights_bytes", "Bytes of published weights written")?,
        })
    }

    /// Takes note of what the step loop says.
    pub fn observe(&self, event: &Event<'_>) {
        match event {
            Event::Ordered(work) => {
                if let control::wire::Order::Train(order) = &work.order {
                    self.step.set(order.step as f64);
                }
            }
            Event::Done { report: Report::Trained(metrics), .. } => self.trained(metrics),
            Event::Done { report: Report::Tiles { bytes, .. }, .. } => self.tiles_bytes.inc_by(*bytes),
            Event::Done { report: Report::Weights { bytes, .. }, .. } => self.weights_bytes.inc_by(*bytes),
            _ => {}
        }
    }

    fn trained(&self, m: &TrainMetrics) {
        self.loss.set(m.loss);
        self.kl.set(m.kl);
        self.entropy.set(m.entropy);
        self.clip_fraction.set(m.clip_fraction);
        self.grad_norm.set(m.grad_norm);
        self.lr.set(m.lr);
        self.gap_max.set(m.gap_max);
        self.gap_tokens.inc_by(m.gap_tokens);
        self.tokens.inc_by(m.tokens);
        self.batches.inc();
        self.skipped_updates.inc_by(m.skipped_updates);
        self.train_seconds.set(m.seconds);
    }
}
