//! A counter-based generator: value `n` of a stream is a function of (key, stream, n) and nothing else.

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection whose output bits all depend on all input bits.
#[must_use]
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The increment of SplitMix64: odd, so that the counter visits every value.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// One value from three.
#[must_use]
pub fn mix3(a: u64, b: u64, c: u64) -> u64 {
    mix(mix(mix(a.wrapping_add(GOLDEN)) ^ b.wrapping_add(GOLDEN)) ^ c.wrapping_add(GOLDEN))
}

/// Seed of a sample: a function of (run seed, group, sample), never of the step, a rank or an engine.
#[must_use]
pub fn sample_seed(run_seed: u64, group_index: u64, sample: u32) -> u64 {
    // 53 bits, so that the number survives JSON readers that keep doubles.
    mix3(run_seed, group_index, u64::from(sample)) >> 11
}

/// A stream of values.
#[derive(Clone, Debug)]
pub struct CounterRng {
    base: u64,
    counter: u64,
}

impl CounterRng {
    /// Stream `stream` of `key`.
    #[must_use]
    pub fn new(key: u64, stream: u64) -> Self {
        Self { base: mix3(key, stream, 0), counter: 0 }
    }

    /// The next value.
    pub fn next_u64(&mut self) -> u64 {
        self.counter += 1;
        mix(self.base.wrapping_add(self.counter.wrapping_mul(GOLDEN)))
    }

    /// The next value below `bound`, without bias (Lemire 2019). 0 for a bound of 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        loop {
            let product = u128::from(self.next_u64()) * u128::from(bound);
            if product as u64 >= bound.wrapping_neg().checked_rem(bound).unwrap_or(0) {
                return (product >> 64) as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_a_function_of_its_key_and_every_value_below_the_bound_occurs() {
        let draw = |key, stream| {
            let mut rng = CounterRng::new(key, stream);
            (0..1000).map(|_| rng.below(7)).collect::<Vec<_>>()
        };
        assert_eq!(draw(1, 2), draw(1, 2));
        assert_ne!(draw(1, 2), draw(1, 3));
        assert_ne!(draw(1, 2), draw(2, 2));
        for value in 0..7 {
            let share = draw(1, 2).iter().filter(|v| **v == value).count();
            assert!((90..200).contains(&share), "{value} occurs {share} times in 1000");
        }
        assert_eq!(CounterRng::new(1, 1).below(0), 0);
    }

    #[test]
    fn samples_of_a_run_have_seeds_of_their_own() {
        let mut seen = std::collections::BTreeSet::new();
        for group in 0..500 {
            for sample in 0..8 {
                assert!(seen.insert(sample_seed(5, group, sample)));
            }
        }
        assert_eq!(sample_seed(5, 3, 2), sample_seed(5, 3, 2));
        assert!(seen.iter().all(|s| *s < 1 << 53));
    }
}
