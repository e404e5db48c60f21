//! How long to wait before the next attempt.

use std::time::Duration;

use api::FailurePolicy;
use sha2::{Digest, Sha256};

/// `min(base · 2^(n − 1), max)` for the n-th end in a row without a new commit, plus up to a tenth of jitter that is a hash of
/// (uid, attempt): many runs that fail together do not come back together, and every decision about one attempt agrees.
pub fn delay(policy: &FailurePolicy, ends_since_progress: u32, uid: &str, attempt: u64) -> Duration {
    if ends_since_progress == 0 {
        return Duration::ZERO;
    }
    let base = u64::from(policy.base_delay_seconds) * 1000;
    let max = u64::from(policy.max_delay_seconds) * 1000;
    let doubled = base.saturating_mul(1u64.checked_shl(ends_since_progress - 1).unwrap_or(u64::MAX));
    let ms = doubled.min(max);
    let digest = Sha256::digest(format!("{uid}/{attempt}").as_bytes());
    let word = u64::from(u16::from_be_bytes([digest[0], digest[1]]));
    Duration::from_millis(ms + ms / 10 * word / 65535)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_delay_is_longer_until_the_longest_and_the_same_for_the_same_attempt() {
        let policy = FailurePolicy { base_delay_seconds: 10, max_delay_seconds: 600, ..FailurePolicy::default() };
        let d: Vec<_> = (0..12).map(|n| delay(&policy, n, "uid", n.into())).collect();
        assert_eq!(d[0], Duration::ZERO);
        for n in 1..6 {
            assert!(d[n] < d[n + 1], "{n}: {:?} {:?}", d[n], d[n + 1]);
        }
        assert!(d.iter().all(|d| *d <= Duration::from_secs(660)));
        assert_eq!(delay(&policy, 3, "a", 7), delay(&policy, 3, "a", 7));
        assert_ne!(delay(&policy, 3, "a", 7), delay(&policy, 3, "b", 7));
        assert!(delay(&policy, u32::MAX, "a", 1) <= Duration::from_secs(660));
    }
}
