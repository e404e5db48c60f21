//! The figures of a batch, summed over micro-batches on each rank and then over ranks in rank order.

use control::wire::TrainMetrics;
use tensor::Comm;

use crate::error::Error;

/// Plain numbers, so that they travel as bytes and every rank adds the same bits in the same order.
#[derive(Clone, Copy, Debug, Default, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct Sums {
    /// Objective; sums to its value over the updates of the order.
    pub loss: f64,
    /// Policy term.
    pub pg_loss: f64,
    /// KL term before its coefficient.
    pub kl: f64,
    /// Entropy, weighted as the loss is.
    pub entropy: f64,
    /// Sum of |trainer - rollout| over the compared tokens.
    pub gap_sum: f64,
    /// Largest of them.
    pub gap_max: f64,
    /// Compared tokens.
    pub gap_tokens: u64,
    /// Clipped tokens.
    pub clipped: u64,
    /// Tokens under the mask.
    pub loss_tokens: u64,
    /// Tokens whose log-prob or another input is not finite.
    pub non_finite: u64,
    /// Prompt and response tokens processed.
    pub tokens: u64,
}

impl Sums {
    /// Adds another part.
    pub fn add(&mut self, other: &Self) {
        self.loss += other.loss;
        self.pg_loss += other.pg_loss;
        self.kl += other.kl;
        self.entropy += other.entropy;
        self.gap_sum += other.gap_sum;
        self.gap_max = self.gap_max.max(other.gap_max);
        self.gap_tokens += other.gap_tokens;
        self.clipped += other.clipped;
        self.loss_tokens += other.loss_tokens;
        self.non_finite += other.non_finite;
        self.tokens += other.tokens;
    }

    /// The sum over the ranks of a data parallel group, the same bits on each.
    ///
    /// # Errors
    /// [`Error::Tensor`] when another rank is lost.
    pub fn over(&self, dp: &dyn Comm) -> Result<Self, Error> {
        let mut total = Self::default();
        for bytes in dp.all_gather_bytes(bytemuck::bytes_of(self))? {
            let part = bytemuck::try_pod_read_unaligned(&bytes)
                .map_err(|e| Error::Order { what: format!("another rank's figures cannot be read: {e}") })?;
            total.add(&part);
        }
        Ok(total)
    }

    /// As reported. Weighted sums are means over an update already, so an order of several updates averages them.
    #[must_use]
    pub fn metrics(&self, updates: usize) -> TrainMetrics {
        let per_update = |x: f64| x / updates.max(1) as f64;
        let per = |x: f64, n: u64| if n == 0 { 0.0 } else { x / n as f64 };
        TrainMetrics {
            loss: per_update(self.loss),
            pg_loss: per_update(self.pg_loss),
            kl: per_update(self.kl),
            entropy: per_update(self.entropy),
            clip_fraction: per(self.clipped as f64, self.loss_tokens),
            gap_max: self.gap_max,
            gap_mean: per(self.gap_sum, self.gap_tokens),
            gap_tokens: self.gap_tokens,
            tokens: self.tokens,
            loss_tokens: self.loss_tokens,
            ..TrainMetrics::default()
        }
    }
}
