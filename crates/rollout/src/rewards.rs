//! Rewards.

use control::wire::RewardConfig;

/// Scores one response.
pub trait Reward: Send + Sync {
    /// The reward of `response` (text without special tokens) to `prompt`, whose row carries `label`. An error fails
    /// this sample alone.
    ///
    /// # Errors
    /// Says why this response cannot be scored.
    fn score(&self, prompt: &str, response: &str, label: &str) -> Result<f64, String>;
}

/// 1 when the trimmed response equals the trimmed label, else 0. Strict: partial credit invites padding the answer.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExactMatch;

impl Reward for ExactMatch {
    fn score(&self, _: &str, response: &str, label: &str) -> Result<f64, String> {
        Ok(if response.trim() == label.trim() { 1.0 } else { 0.0 })
    }
}

/// The reward a run's configuration names.
#[must_use]
pub fn built_in(config: &RewardConfig) -> Box<dyn Reward> {
    match config {
        RewardConfig::ExactMatch => Box::new(ExactMatch),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_match_gives_no_credit_for_an_answer_among_others() {
        let score = |response| ExactMatch.score("s:59210=", response, "01259").unwrap();
        assert_eq!(score("01259"), 1.0);
        assert_eq!(score(" 01259\n"), 1.0);
        assert_eq!(score("01259 95210"), 0.0);
        assert_eq!(score(""), 0.0);
    }
}
