//! A worker's figures for `/metrics`: what went wrong is counted by cause, so that it is seen before it is felt.

use prometheus::{IntCounter, IntCounterVec, Opts, Registry};
use sglang::{Cause, EngineError};

/// Counters of the process's life. Cloning shares them.
#[derive(Clone, Debug)]
pub struct Figures {
    calls: IntCounter,
    failed_samples: IntCounter,
    refused_replies: IntCounterVec,
    failed_aborts: IntCounterVec,
}

impl Figures {
    /// Registers them.
    ///
    /// # Errors
    /// When one of that name is registered already.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counter = |name: &str, help: &str| {
            let counter = IntCounter::new(format!("thresh_worker_{name}_total"), help)?;
            registry.register(Box::new(counter.clone()))?;
            Ok::<_, prometheus::Error>(counter)
        };
        let by = |name: &str, help: &str, label: &str| {
            let counters = IntCounterVec::new(Opts::new(format!("thresh_worker_{name}_total"), help), &[label])?;
            registry.register(Box::new(counters.clone()))?;
            Ok::<_, prometheus::Error>(counters)
        };
        let figures = Self {
            calls: counter("generate_calls", "Generate calls, repeats included")?,
            failed_samples: counter("failed_samples", "Samples that could not be generated or judged")?,
            refused_replies: by("refused_replies", "Replies that do not hold together, by cause", "cause")?,
            failed_aborts: by("failed_aborts", "Aborts that did not succeed, by what the engine said", "answer")?,
        };
        // A counter that is not there cannot be told from one that is 0.
        for cause in Cause::ALL {
            figures.refused_replies.with_label_values(&[cause.as_str()]);
        }
        for answer in [REFUSED, NONE] {
            figures.failed_aborts.with_label_values(&[answer]);
        }
        Ok(figures)
    }

    pub(crate) fn called(&self) {
        self.calls.inc();
    }

    pub(crate) fn sample_failed(&self) {
        self.failed_samples.inc();
    }

    /// Takes note of why a generate call failed.
    pub(crate) fn call_failed(&self, error: &EngineError) {
        if let EngineError::BadReply { cause, .. } = error {
            self.refused_replies.with_label_values(&[cause.as_str()]).inc();
        }
    }

    /// Takes note of an abort that did not succeed: the request may still run where it was.
    pub(crate) fn abort_failed(&self, error: &EngineError) {
        let answer = if matches!(error, EngineError::Unreachable { .. }) { NONE } else { REFUSED };
        self.failed_aborts.with_label_values(&[answer]).inc();
    }
}

/// The engine answered, and not with success.
const REFUSED: &str = "refused";
/// It did not answer.
const NONE: &str = "none";
