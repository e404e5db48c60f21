//! What a run's store says after all the kills.

use std::path::Path;

use anyhow::{Context, Result};
use conductor::check::{self, Report};
use straw::{Inspection, RealFs};

/// See the module.
#[derive(Debug)]
pub struct Verdict {
    /// The journal, by its rules.
    pub rules: Report,
    /// Every acknowledged byte, by its sums.
    pub store: Inspection,
}

impl Verdict {
    /// Reads all of it.
    pub fn of(run_dir: &Path) -> Result<Self> {
        let fs = RealFs::new();
        let store = straw::verify(&*fs, run_dir).with_context(|| run_dir.display().to_string())?;
        let (snapshot, txns) = straw::journal::read(&*fs, run_dir.join("journal"))?;
        let rules = check::journal(snapshot.as_deref(), txns.iter().flatten().map(Vec::as_slice))
            .with_context(|| format!("{}: a record cannot be understood", run_dir.join("journal").display()))?;
        Ok(Self { rules, store })
    }

    /// Nothing lost, nothing doubled, no rule broken, no byte damaged, and the run at its end.
    pub fn is_good(&self) -> bool {
        self.complaints().is_empty() && self.rules.lost == 0 && self.rules.doubled == 0
    }

    /// What is wrong, a line each.
    pub fn complaints(&self) -> Vec<String> {
        let broken = self.rules.violations.iter().map(|rule| format!("broken   {rule}"));
        let damage = self.store.errors.iter();
        let damage = damage.map(|one| format!("damage   {} at byte {}: {}", one.file, one.offset, one.what));
        let end = (!self.rules.finished).then(|| "the journal does not say that the run is finished".to_owned());
        broken.chain(damage).chain(end).collect()
    }

    /// The last line.
    pub fn line(&self, kills: usize) -> String {
        let Report { lost, doubled, steps_committed, .. } = self.rules;
        format!("chaos: {kills} kills, {lost} lost, {doubled} doubled, {steps_committed} steps")
    }
}
