//! Group-relative advantages (GRPO, Shao et al. 2024; without division: Dr. GRPO, Liu et al. 2025).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::config::StdKind;
use crate::error::Error;

/// Added to the standard deviation, so that a spread of rounding noise is not blown up to full size.
const STD_EPS: f64 = 1e-6;

/// The group-relative baseline: a sample's advantage is its reward minus the mean of its prompt group, divided by the
/// group's standard deviation if one is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupAdvantage {
    /// What to divide by.
    pub std_kind: StdKind,
}

/// One sample's reward, and what it belongs to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RewardedSample {
    /// Prompt group: statistics are taken over it, never over counts or positions.
    pub group_index: u64,
    /// Samples cut from one episode share it, and count once in the baseline.
    pub rollout_id: u64,
    /// `None`: generation or verification failed. A failed sample is not a reward of 0; it enters neither baseline nor
    /// loss. A reward that is not finite is treated the same way.
    pub reward: Option<f64>,
}

/// Statistics of one prompt group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupStats {
    /// The group.
    pub group_index: u64,
    /// Rollouts with a usable reward.
    pub rollouts: usize,
    /// Samples without one.
    pub invalid: usize,
    /// Mean over rollouts (0 without any).
    pub mean: f64,
    /// Population standard deviation over rollouts, whatever the advantages are divided by.
    pub std: f64,
    /// All rewards alike (or fewer than two): every advantage is 0 and the group teaches nothing.
    pub zero_variance: bool,
}

/// Advantages in the order of the samples, groups in the order of their index.
#[derive(Clone, Debug, PartialEq)]
pub struct Advantages {
    /// One per sample; 0 for samples without a usable reward.
    pub values: Vec<f64>,
    /// One per group.
    pub groups: Vec<GroupStats>,
}

impl GroupAdvantage {
    /// Advantages of `samples`. The result does not depend on the order in which samples or groups are given.
    ///
    /// # Errors
    /// [`Error::RolloutInTwoGroups`] when samples of one rollout lie in different groups.
    pub fn advantages(&self, samples: &[RewardedSample]) -> Result<Advantages, Error> {
        let usable = |s: &RewardedSample| s.reward.filter(|r| r.is_finite());
        // group -> rollout -> rewards of its samples
        let mut groups: BTreeMap<u64, BTreeMap<u64, Vec<f64>>> = BTreeMap::new();
        let mut group_of: BTreeMap<u64, u64> = BTreeMap::new();
        for s in samples {
            let first = *group_of.entry(s.rollout_id).or_insert(s.group_index);
            if first != s.group_index {
                return Err(Error::RolloutInTwoGroups { rollout_id: s.rollout_id, first, second: s.group_index });
            }
            let rollouts = groups.entry(s.group_index).or_default();
            if let Some(reward) = usable(s) {
                rollouts.entry(s.rollout_id).or_default().push(reward);
            }
        }
        let mut stats = BTreeMap::new();
        for (group_index, rollouts) in groups {
            // Sorted, so that the order in which samples arrived cannot change a bit of the sum.
            let mut rewards: Vec<f64> = rollouts
                .into_values()
                .map(|mut of_samples| {
                    of_samples.sort_by(f64::total_cmp);
                    mean(&of_samples)
                })
                .collect();
            rewards.sort_by(f64::total_cmp);
            let mean = mean(&rewards);
            let squares: f64 = rewards.iter().map(|r| (r - mean) * (r - mean)).sum();
            let n = rewards.len() as f64;
            let zero_variance = rewards.first() == rewards.last();
            let std = if zero_variance { 0.0 } else { (squares / n).sqrt() };
            let divisor = match self.std_kind {
                _ if zero_variance => 1.0,
                StdKind::Unbiased => (squares / (n - 1.0)).sqrt() + STD_EPS,
                StdKind::Biased => std + STD_EPS,
                StdKind::None => 1.0,
            };
            let group = GroupStats { group_index, rollouts: rewards.len(), invalid: 0, mean, std, zero_variance };
            stats.insert(group_index, (group, divisor));
        }
        let mut values = Vec::with_capacity(samples.len());
        for s in samples {
            let Some((group, divisor)) = stats.get_mut(&s.group_index) else { continue };
            values.push(match usable(s) {
                // The rollouts of a zero-variance group may still be cut into samples with rewards of their own.
                Some(_) if group.zero_variance => 0.0,
                Some(reward) => (reward - group.mean) / *divisor,
                None => {
                    group.invalid += 1;
                    0.0
                }
            });
        }
        Ok(Advantages { values, groups: stats.into_values().map(|(g, _)| g).collect() })
    }
}

/// Mean of `values`, exact when all are alike: deviations from the first are averaged, not the values.
fn mean(values: &[f64]) -> f64 {
    let Some(first) = values.first() else { return 0.0 };
    first + values.iter().map(|v| v - first).sum::<f64>() / values.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(index: u64, rewards: &[Option<f64>]) -> Vec<RewardedSample> {
        let id = |i: usize| index * 100 + i as u64;
        (0..rewards.len())
            .map(|i| RewardedSample { group_index: index, rollout_id: id(i), reward: rewards[i] })
            .collect()
    }

    fn one(std_kind: StdKind, rewards: &[Option<f64>]) -> Vec<f64> {
        GroupAdvantage { std_kind }.advantages(&group(0, rewards)).unwrap().values
    }

    fn close(got: &[f64], want: &[f64]) {
        assert_eq!(got.len(), want.len());
        for (g, w) in got.iter().zip(want) {
            assert!((g - w).abs() < 1e-5, "{got:?} != {want:?}");
        }
    }

    #[test]
    fn the_std_kind_is_what_was_asked_for() {
        let r = [1.0, 0.0, 0.0, 0.0, 0.0].map(Some);
        close(&one(StdKind::Biased, &r), &[2.0, -0.5, -0.5, -0.5, -0.5]);
        close(&one(StdKind::Unbiased, &r), &[1.788_854, -0.447_214, -0.447_214, -0.447_214, -0.447_214]);
        close(&one(StdKind::None, &r), &[0.8, -0.2, -0.2, -0.2, -0.2]);
    }

    #[test]
    fn a_group_without_spread_has_zero_advantage_in_every_kind() {
        for kind in [StdKind::Biased, StdKind::Unbiased, StdKind::None] {
            // 0.1 and 1e17 / 3 are not sums of themselves in f64
            for c in [0.0, 1.0, 0.1, -7.3, 1e17 / 3.0] {
                for n in 1..8 {
                    assert!(one(kind, &vec![Some(c); n]).iter().all(|a| *a == 0.0), "{kind:?} {c} {n}");
                }
            }
        }
    }

    #[test]
    fn a_spread_of_rounding_noise_is_not_blown_up() {
        let a = one(StdKind::Unbiased, &[Some(1.0), Some(1.0 + 1e-12)]);
        assert!(a.iter().all(|x| x.abs() < 1e-5), "{a:?}");
    }

    #[test]
    fn a_reward_that_is_no_number_has_advantage_0_and_stays_out_of_every_statistic() {
        for no_number in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let r = [Some(2.0), Some(no_number), Some(4.0), Some(no_number)];
            close(&one(StdKind::Biased, &r), &[-1.0, 0.0, 1.0, 0.0]);
            assert_eq!(one(StdKind::None, &r), [-1.0, 0.0, 1.0, 0.0]);
        }
        assert_eq!(one(StdKind::Unbiased, &[Some(5.0)]), [0.0]);
        assert_eq!(one(StdKind::Unbiased, &[Some(5.0), Some(f64::NAN)]), [0.0, 0.0]);
        assert_eq!(one(StdKind::Unbiased, &[]), [0.0; 0]);

        // A group without a single verdict says so, and the others of the batch do not notice it.
        let good = group(1, &[Some(1.0), Some(0.0), Some(0.5)]);
        let kind = GroupAdvantage { std_kind: StdKind::Unbiased };
        let alone = kind.advantages(&good).unwrap();
        let broken = group(0, &[Some(f64::NAN), Some(f64::NAN)]);
        let both = kind.advantages(&[broken, good].concat()).unwrap();
        assert_eq!((both.groups[0].rollouts, both.groups[0].invalid, both.groups[0].zero_variance), (0, 2, true));
        assert_eq!((&both.values[..2], &both.values[2..]), ([0.0, 0.0].as_slice(), alone.values.as_slice()));
        assert_eq!(both.groups[1], alone.groups[0]);
    }

    #[test]
    fn a_failed_sample_is_not_a_reward_of_zero() {
        let r = [Some(2.0), Some(4.0), Some(6.0), None];
        close(&one(StdKind::None, &r), &[-2.0, 0.0, 2.0, 0.0]);
        close(&one(StdKind::Biased, &r), &[-1.224_745, 0.0, 1.224_745, 0.0]);
        // What it would be as a zero.
        close(&one(StdKind::None, &[Some(2.0), Some(4.0), Some(6.0), Some(0.0)]), &[-1.0, 1.0, 3.0, -3.0]);
        let a = GroupAdvantage { std_kind: StdKind::None }.advantages(&group(3, &r)).unwrap();
        assert_eq!((a.groups[0].rollouts, a.groups[0].invalid, a.groups[0].mean), (3, 1, 4.0));
    }

    #[test]
    fn the_baseline_uses_every_member_of_a_partial_group() {
        let a = GroupAdvantage { std_kind: StdKind::None }
            .advantages(&group(0, &[Some(1.0), Some(0.0), Some(1.0)]))
            .unwrap();
        assert!((a.groups[0].mean - 2.0 / 3.0).abs() < 1e-12);
    }

    #[test]
    fn statistics_go_by_group_index_not_by_position_or_count() {
        let mut samples = group(7, &[Some(1.0), Some(0.0)]);
        samples.extend(group(2, &[Some(10.0), Some(20.0), Some(30.0)]));
        let straight = GroupAdvantage { std_kind: StdKind::Unbiased }.advantages(&samples).unwrap();
        let half = std::f64::consts::FRAC_1_SQRT_2;
        close(&straight.values, &[half, -half, -1.0, 0.0, 1.0]);
        let order = [3, 0, 4, 1, 2];
        let shuffled: Vec<_> = order.iter().map(|&i| samples[i]).collect();
        let got = GroupAdvantage { std_kind: StdKind::Unbiased }.advantages(&shuffled).unwrap();
        for (k, &i) in order.iter().enumerate() {
            assert_eq!(got.values[k].to_bits(), straight.values[i].to_bits());
        }
        assert_eq!(got.groups, straight.groups);
    }

    #[test]
    fn a_rollout_counts_once_however_many_samples_it_is_cut_into() {
        let s = |rollout_id, reward| RewardedSample { group_index: 0, rollout_id, reward: Some(reward) };
        let a = GroupAdvantage { std_kind: StdKind::None }
            .advantages(&[s(0, 1.0), s(0, 1.0), s(0, 1.0), s(1, 0.0)])
            .unwrap();
        close(&a.values, &[0.5, 0.5, 0.5, -0.5]);
        assert_eq!(a.groups[0].rollouts, 2);
    }

    #[test]
    fn a_rollout_in_two_groups_is_refused() {
        let s = |group_index| RewardedSample { group_index, rollout_id: 5, reward: Some(0.0) };
        let e = GroupAdvantage { std_kind: StdKind::None }.advantages(&[s(1), s(2)]).unwrap_err();
        assert_eq!(e, Error::RolloutInTwoGroups { rollout_id: 5, first: 1, second: 2 });
    }
}
