//! Micro-batches of a batch: a pure function of lengths, rollout ids and layout, so that a restart with another layout
//! gets another view of the same payload, and a restart with the same one the same view.

use std::collections::BTreeMap;

use control::wire::UpdatePlan;

/// What the plan must know of one sample of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Prompt and response tokens.
    pub tokens: u32,
    /// Response tokens under the mask.
    pub loss_tokens: u32,
    /// Samples cut from one episode share it.
    pub rollout_id: u64,
}

/// One [`UpdatePlan`] per optimizer update.
///
/// 1. Rollouts are counted in the order of their first sample; update `u` takes rollouts
///    `[u * rollouts_per_update, (u + 1) * rollouts_per_update)`. A remainder joins the last update rather than being
///    dropped, since every accepted group is trained.
/// 2. An update's samples go first-fit, in the order given, into micro-batches of at most `tokens_max` tokens; a longer
///    sample sits alone.
/// 3. The largest micro-batch of several samples (lowest index on a tie) is halved until their number is a multiple of
///    `dp`; when only single samples are left, empty micro-batches fill up.
/// 4. Micro-batches, largest first, are dealt to ranks to and fro, so that every rank has the same number of them and
///    about the same number of tokens.
#[must_use]
pub fn plan(samples: &[Shape], rollouts_per_update: u64, tokens_max: u64, dp: usize) -> Vec<UpdatePlan> {
    let mut number: BTreeMap<u64, u64> = BTreeMap::new();
    for sample in samples {
        let next = number.len() as u64;
        number.entry(sample.rollout_id).or_insert(next);
    }
    let rollouts = number.len() as u64;
    let per_update = rollouts_per_update.clamp(1, rollouts.max(1));
    let updates = (rollouts / per_update).max(1);
    (0..updates)
        .map(|update| {
            let of_update = |rollout: u64| (rollout / per_update).min(updates - 1) == update;
            let members: Vec<u32> = (0u32..)
                .zip(samples)
                .filter(|(_, sample)| number.get(&sample.rollout_id).is_some_and(|n| of_update(*n)))
                .map(|(position, _)| position)
                .collect();
            let tokens = |position: &u32| samples.get(*position as usize).map_or(0, |s| u64::from(s.tokens));
            UpdatePlan {
                rollouts: (0..rollouts).filter(|n| of_update(*n)).count() as u64,
                loss_tokens: members
                    .iter()
                    .filter_map(|p| samples.get(*p as usize))
                    .map(|s| u64::from(s.loss_tokens))
                    .sum(),
                micro_batches: deal(align(first_fit(&members, tokens_max, tokens), dp, tokens), dp, tokens),
            }
        })
        .collect()
}

/// Into the first bin with room, in the order given.
fn first_fit(members: &[u32], tokens_max: u64, tokens: impl Fn(&u32) -> u64) -> Vec<Vec<u32>> {
    let mut bins: Vec<(u64, Vec<u32>)> = Vec::new();
    for member in members {
        let size = tokens(member);
        match bins.iter_mut().find(|(filled, _)| filled.saturating_add(size) <= tokens_max) {
            Some((filled, bin)) => {
                *filled += size;
                bin.push(*member);
            }
            None => bins.push((size, vec![*member])),
        }
    }
    bins.into_iter().map(|(_, bin)| bin).collect()
}

/// Splits bins until their number is a multiple of `dp`.
fn align(mut bins: Vec<Vec<u32>>, dp: usize, tokens: impl Fn(&u32) -> u64) -> Vec<Vec<u32>> {
    let dp = dp.max(1);
    while bins.is_empty() || !bins.len().is_multiple_of(dp) {
        let size = |bin: &Vec<u32>| bin.iter().map(&tokens).sum::<u64>();
        // max_by_key keeps the last of equals, so the index counts backwards.
        let largest = bins
            .iter()
            .enumerate()
            .filter(|(_, bin)| bin.len() > 1)
            .max_by_key(|(at, bin)| (size(bin), std::cmp::Reverse(*at)))
            .map(|(at, _)| at);
        let half = largest.and_then(|at| bins.get_mut(at)).map(|bin| halve(bin, &tokens));
        bins.push(half.unwrap_or_default());
    }
    bins
}

/// Takes about half of the tokens out of a bin: the longest sample first, each to the lighter side.
fn halve(bin: &mut Vec<u32>, tokens: impl Fn(&u32) -> u64) -> Vec<u32> {
    let mut members = std::mem::take(bin);
    members.sort_by_key(|member| (std::cmp::Reverse(tokens(member)), *member));
    let (mut kept, mut given) = ((0, Vec::new()), (0, Vec::new()));
    for member in members {
        let side = if kept.0 <= given.0 { &mut kept } else { &mut given };
        side.0 += tokens(&member);
        side.1.push(member);
    }
    // Samples without tokens leave the sum at 0 and would all stay on one side.
    if given.1.is_empty() {
        given.1.extend(kept.1.pop());
    }
    kept.1.sort_unstable();
    given.1.sort_unstable();
    *bin = kept.1;
    given.1
}

/// Deals bins to ranks, largest first, to and fro. Within a rank they keep the order of their first sample.
fn deal(mut bins: Vec<Vec<u32>>, dp: usize, tokens: impl Fn(&u32) -> u64) -> Vec<Vec<Vec<u32>>> {
    let dp = dp.max(1);
    bins.sort_by_key(|bin| {
        (std::cmp::Reverse(bin.iter().map(&tokens).sum::<u64>()), bin.first().copied().unwrap_or(u32::MAX))
    });
    let mut ranks = vec![Vec::new(); dp];
    for (dealt, bin) in bins.into_iter().enumerate() {
        let (round, place) = (dealt / dp, dealt % dp);
        let rank = if round.is_multiple_of(2) { place } else { dp - 1 - place };
        if let Some(rank) = ranks.get_mut(rank) {
            rank.push(bin);
        }
    }
    for rank in &mut ranks {
        rank.sort_by_key(|bin| bin.first().copied().unwrap_or(u32::MAX));
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mix::CounterRng;

    fn random(rng: &mut CounterRng) -> (Vec<Shape>, u64, u64, usize) {
        let samples = (0..1 + rng.below(60))
            .map(|n| {
                let tokens = rng.below(50) as u32;
                let loss_tokens = rng.below(u64::from(tokens) + 1) as u32;
                // Some episodes are cut in several samples.
                Shape { tokens, loss_tokens, rollout_id: if rng.below(4) == 0 { n / 2 } else { 1000 + n } }
            })
            .collect();
        (samples, 1 + rng.below(70), 1 + rng.below(120), 1 + rng.below(5) as usize)
    }

    #[test]
    fn every_sample_is_in_exactly_one_micro_batch_and_all_ranks_have_the_same_number() {
        let mut rng = CounterRng::new(1, 0);
        for _ in 0..2000 {
            let (samples, per_update, cap, dp) = random(&mut rng);
            let plans = plan(&samples, per_update, cap, dp);
            let mut met: Vec<u32> = Vec::new();
            for update in &plans {
                assert_eq!(update.micro_batches.len(), dp);
                assert!(update.micro_batches.iter().all(|rank| rank.len() == update.micro_batches[0].len()));
                met.extend(update.micro_batches.iter().flatten().flatten());
            }
            met.sort_unstable();
            assert_eq!(met, (0..samples.len() as u32).collect::<Vec<_>>());
            assert_eq!(plans, plan(&samples, per_update, cap, dp), "a plan is a pure function");
        }
    }

    #[test]
    fn the_token_cap_is_broken_only_by_a_sample_that_sits_alone() {
        let mut rng = CounterRng::new(2, 0);
        for _ in 0..2000 {
            let (samples, per_update, cap, dp) = random(&mut rng);
            for micro_batch in plan(&samples, per_update, cap, dp).iter().flat_map(|u| u.micro_batches.iter().flatten())
            {
                let tokens: u64 = micro_batch.iter().map(|p| u64::from(samples[*p as usize].tokens)).sum();
                assert!(tokens <= cap || micro_batch.len() == 1, "{micro_batch:?} has {tokens} of {cap}");
            }
        }
    }

    #[test]
    fn denominators_cover_the_whole_update_whatever_the_layout() {
        let mut rng = CounterRng::new(3, 0);
        for _ in 0..500 {
            let (samples, per_update, cap, _) = random(&mut rng);
            let one = plan(&samples, per_update, cap, 1);
            for dp in 2..5 {
                let many = plan(&samples, per_update, cap, dp);
                let sums = |plans: &[UpdatePlan]| plans.iter().map(|u| (u.rollouts, u.loss_tokens)).collect::<Vec<_>>();
                assert_eq!(sums(&one), sums(&many));
            }
            let rollouts: std::collections::BTreeSet<u64> = samples.iter().map(|s| s.rollout_id).collect();
            assert_eq!(one.iter().map(|u| u.rollouts).sum::<u64>(), rollouts.len() as u64);
            assert_eq!(
                one.iter().map(|u| u.loss_tokens).sum::<u64>(),
                samples.iter().map(|s| u64::from(s.loss_tokens)).sum::<u64>()
            );
        }
    }

    #[test]
    fn samples_of_one_rollout_are_in_one_update() {
        let mut rng = CounterRng::new(4, 0);
        for _ in 0..500 {
            let (samples, per_update, cap, dp) = random(&mut rng);
            let mut at: BTreeMap<u64, usize> = BTreeMap::new();
            for (update, plan) in plan(&samples, per_update, cap, dp).iter().enumerate() {
                for position in plan.micro_batches.iter().flatten().flatten() {
                    assert_eq!(*at.entry(samples[*position as usize].rollout_id).or_insert(update), update);
                }
            }
        }
    }

    #[test]
    fn equal_samples_are_shared_equally() {
        let samples: Vec<Shape> = (0..256).map(|n| Shape { tokens: 12, loss_tokens: 6, rollout_id: n }).collect();
        let plans = plan(&samples, 256, 8192, 2);
        assert_eq!(plans.len(), 1);
        assert_eq!((plans[0].rollouts, plans[0].loss_tokens), (256, 1536));
        assert_eq!(
            plans[0].micro_batches.iter().map(|r| r.iter().map(Vec::len).sum::<usize>()).collect::<Vec<_>>(),
            [128, 128]
        );
        assert_eq!(plan(&samples, 64, 8192, 1).len(), 4);
        assert_eq!(plan(&samples, 100, 8192, 1).iter().map(|u| u.rollouts).collect::<Vec<_>>(), [100, 156]);
    }

    #[test]
    fn fewer_samples_than_ranks_leave_empty_micro_batches_rather_than_unequal_counts() {
        let samples = [Shape { tokens: 5, loss_tokens: 5, rollout_id: 0 }];
        let plans = plan(&samples, 8, 100, 3);
        assert_eq!(plans[0].micro_batches, vec![vec![vec![0]], vec![vec![]], vec![vec![]]]);
    }
}
