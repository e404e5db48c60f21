//! From per-token losses to one number.

use crate::config::LossReduction;

/// What an update divides by: counts over all ranks and micro-batches of one optimizer update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denominators {
    /// Rollouts in the update.
    pub rollouts: u64,
    /// Unmasked response tokens in the update.
    pub loss_tokens: u64,
}

impl LossReduction {
    /// The weight of one unmasked token in the objective. `rollout_mask_sum` is the number of unmasked tokens of the
    /// token's whole rollout, over all samples that share its `rollout_id`.
    pub fn token_weight(self, denominators: Denominators, rollout_mask_sum: u64) -> f64 {
        let at_least_one = |n: u64| n.max(1) as f64;
        match self {
            Self::TokenMean => 1.0 / at_least_one(denominators.loss_tokens),
            Self::RolloutMean => 1.0 / (at_least_one(denominators.rollouts) * at_least_one(rollout_mask_sum)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sum of weight * loss over samples of (token losses, rollout mask sum).
    fn reduce(kind: LossReduction, denominators: Denominators, samples: &[(&[f64], u64)]) -> f64 {
        samples
            .iter()
            .map(|(losses, sum)| losses.iter().map(|l| l * kind.token_weight(denominators, *sum)).sum::<f64>())
            .sum()
    }

    #[test]
    fn the_token_mean_counts_tokens_not_micro_batches() {
        let d = Denominators { rollouts: 2, loss_tokens: 4 };
        let first = reduce(LossReduction::TokenMean, d, &[(&[1.0], 1)]);
        let second = reduce(LossReduction::TokenMean, d, &[(&[2.0, 2.0, 2.0], 3)]);
        assert!((first + second - 1.75).abs() < 1e-12);
        let whole = reduce(LossReduction::TokenMean, d, &[(&[2.0, 2.0, 2.0], 3), (&[1.0], 1)]);
        assert!((whole - 1.75).abs() < 1e-12);
    }

    #[test]
    fn the_token_mean_is_taken_over_all_ranks_together() {
        let d = Denominators { rollouts: 2, loss_tokens: 8 };
        let rank0 = reduce(LossReduction::TokenMean, d, &[(&[1.0, 1.0], 2)]);
        let rank1 = reduce(LossReduction::TokenMean, d, &[(&[4.0; 6], 6)]);
        assert!((rank0 + rank1 - 3.25).abs() < 1e-12);
    }

    #[test]
    fn a_rollout_cut_into_samples_still_weighs_one() {
        let d = Denominators { rollouts: 2, loss_tokens: 8 };
        // Rollout A: two samples of 2 and 4 tokens, losses 1 and 4; rollout B: one sample of 2 tokens, loss 7.
        let cut =
            reduce(LossReduction::RolloutMean, d, &[(&[1.0, 1.0], 6), (&[4.0, 4.0, 4.0, 4.0], 6), (&[7.0, 7.0], 2)]);
        assert!((cut - (18.0 / 6.0 + 7.0) / 2.0).abs() < 1e-12);
    }

    #[test]
    fn an_update_without_loss_tokens_divides_by_one() {
        let d = Denominators { rollouts: 0, loss_tokens: 0 };
        assert_eq!(LossReduction::TokenMean.token_weight(d, 0), 1.0);
        assert_eq!(LossReduction::RolloutMean.token_weight(d, 0), 1.0);
    }
}
