//! What a run's store says after all the kills.

use std::path::Path;

use anyhow::{Context, Result};
use conductor::check::Report;

use crate::soundness::Soundness;

/// See the module.
#[derive(Debug)]
pub struct Verdict {
    /// The journal, by its rules.
    pub rules: Report,
    /// What is damaged or broken, a line each.
    broken: Vec<String>,
}

impl Verdict {
    /// Reads all of it.
    pub fn of(run_dir: &Path) -> Result<Self> {
        let found = Soundness::of(run_dir)?;
        let broken = found.complaints();
        let rules = found.rules.with_context(|| format!("{}: no journal\n{}", run_dir.display(), broken.join("\n")))?;
        Ok(Self { rules, broken })
    }

    /// Nothing lost, nothing doubled, no rule broken, no byte damaged, and the run at its end.
    pub fn is_good(&self) -> bool {
        self.complaints().is_empty() && self.rules.lost == 0 && self.rules.doubled == 0
    }

    /// What is wrong, a line each.
    pub fn complaints(&self) -> Vec<String> {
        let end = (!self.rules.finished).then(|| "the journal does not say that the run is finished".to_owned());
        self.broken.iter().cloned().chain(end).collect()
    }

    /// The last line.
    pub fn line(&self, kills: usize) -> String {
        let Report { lost, doubled, steps_committed, .. } = self.rules;
        format!(
            "chaos: {}, {lost} lost, {doubled} doubled, {}",
            api::count(kills, "kill"),
            api::count(steps_committed, "step")
        )
    }
}
