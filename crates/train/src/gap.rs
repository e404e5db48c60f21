//! Trainer minus engine log-probs, where both held the same weights.
//!
//! Only tokens whose version has the digest of the weights the trainer holds are compared; the count says how many. With
//! the native engine at equal tensor parallelism on CPU every difference is exactly 0.

use std::collections::{BTreeMap, BTreeSet};

use crate::batch::Packed;
use crate::sums::Sums;

/// The versions of a batch that are the weights held.
pub fn comparable(version_digests: &BTreeMap<u64, String>, held: &str) -> BTreeSet<i64> {
    version_digests
        .iter()
        .filter(|(_, digest)| digest.as_str() == held)
        .filter_map(|(version, _)| i64::try_from(*version).ok())
        .collect()
}

/// Adds the comparison of a micro-batch. `log_probs` are the trainer's, as computed (f32), one a learnt token.
pub fn compare(packed: &Packed, log_probs: &[f32], versions: &BTreeSet<i64>, sums: &mut Sums) {
    if versions.is_empty() {
        return;
    }
    for ((ours, theirs), version) in log_probs.iter().zip(&packed.rollout_log_probs).zip(&packed.versions) {
        if versions.contains(version) {
            let gap = f64::from(ours - theirs).abs();
            // A NaN is the largest gap there is, and a maximum would lose it.
            let gap = if gap.is_nan() { f64::MAX } else { gap };
            sums.gap_max = sums.gap_max.max(gap);
            sums.gap_sum += gap;
            sums.gap_tokens += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed() -> Packed {
        Packed {
            targets: vec![1, 2, 3, 4],
            rollout_log_probs: vec![-1.0, -2.0, -3.0, -4.0],
            versions: vec![4, 5, 5, 6],
            ..Packed::default()
        }
    }

    #[test]
    fn only_tokens_of_the_weights_held_are_compared() {
        let digests = BTreeMap::from([(4, "a".to_owned()), (5, "b".to_owned()), (6, "c".to_owned())]);
        let mut sums = Sums::default();
        compare(&packed(), &[-9.0, -2.0, -3.5, -9.0], &comparable(&digests, "b"), &mut sums);
        assert_eq!((sums.gap_tokens, sums.gap_max, sums.gap_sum), (2, 0.5, 0.5));
        let mut sums = Sums::default();
        compare(&packed(), &[-9.0; 4], &comparable(&digests, "z"), &mut sums);
        assert_eq!(sums, Sums::default());
    }

    #[test]
    fn a_log_prob_that_is_no_number_is_a_gap() {
        let digests = BTreeMap::from([(4, "a".to_owned())]);
        let mut sums = Sums::default();
        compare(&packed(), &[f32::NAN, -2.0, -3.0, -4.0], &comparable(&digests, "a"), &mut sums);
        assert!(sums.gap_max > 0.0);
    }
}
