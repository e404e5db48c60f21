//! Trouble that lasts: told when it begins, once a minute, and when it is over. Dozens of tries a minute say no more.

use std::{
    fmt::Display,
    time::{Duration, Instant},
};

const AGAIN: Duration = Duration::from_secs(60);

/// One thing that is tried over and over.
#[derive(Debug)]
pub struct Spell {
    what: String,
    /// When it began, and when it was told last.
    trouble: Option<(Instant, Instant)>,
}

impl Spell {
    /// All is well so far. `what` cannot be done while it is not.
    pub fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), trouble: None }
    }

    /// It failed.
    pub fn failed(&mut self, error: impl Display) {
        if let Some(line) = self.note(&error, Instant::now()) {
            tracing::warn!("{line}");
        }
    }

    /// It went well.
    pub fn over(&mut self) {
        if let Some((since, _)) = self.trouble.take() {
            tracing::info!("{}: well again after {} s", self.what, since.elapsed().as_secs());
        }
    }

    fn note(&mut self, error: &impl Display, now: Instant) -> Option<String> {
        let Some((since, told)) = &mut self.trouble else {
            self.trouble = Some((now, now));
            return Some(format!("{}: {error}; it is tried again until it goes", self.what));
        };
        if now.duration_since(*told) < AGAIN {
            return None;
        }
        *told = now;
        Some(format!("{}: {error}; so for {} s now", self.what, now.duration_since(*since).as_secs()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_of_trouble_is_told_once_a_minute() {
        let mut spell = Spell::new("watch Pods");
        let start = Instant::now();
        let told: Vec<String> =
            (0..3600).filter_map(|s| spell.note(&"connection refused", start + Duration::from_secs(s))).collect();
        assert_eq!(told.len(), 60);
        assert_eq!(told[0], "watch Pods: connection refused; it is tried again until it goes");
        assert_eq!(told[59], "watch Pods: connection refused; so for 3540 s now");
        spell.over();
        assert!(spell.note(&"gone", start).is_some(), "the next trouble is told at once");
    }
}
