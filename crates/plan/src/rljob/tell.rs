//! What the conductor is told.

use api::{SettingsHeld, hash};
use serde_json::{Value, json};

use super::Pass;
use crate::{Action, ConductorSettings};

impl Pass<'_> {
    /// The settings as they should be, without number and spec, and the hash of their meaning.
    fn wanted_settings(&self) -> (String, ConductorSettings) {
        let fence = self.s.fence_asked.unwrap_or(0);
        let cordoned: Vec<String> = self.world.cordoned.iter().cloned().collect();
        // Intake stops when the trainer has: before, the batch at hand must be filled so that it can be learnt and saved.
        let paused = self.terminal() || (self.job.spec.suspend && self.s.attempt.is_none());
        let hash = hash::of_entries(&[
            ("fence", &json!(fence)),
            ("cordoned", &json!(cordoned)),
            ("paused", &json!(paused)),
            ("spec", self.spec_json()),
        ]);
        let settings = ConductorSettings {
            number: 0,
            fence_attempts_up_to: fence,
            cordoned_nodes: cordoned,
            paused,
            spec: Value::Null,
        };
        (hash, settings)
    }

    fn spec_json(&self) -> &Value {
        &self.run_json()["spec"]
    }

    /// True when the conductor holds exactly the settings that are wanted now.
    pub(super) fn settings_are_held(&self) -> bool {
        let (hash, _) = self.wanted_settings();
        let (Some(held), Some(report)) = (&self.s.settings, self.report()) else { return false };
        held.hash == hash && report.settings_number >= held.number
    }

    pub(super) fn tell(&mut self) {
        let (hash, mut settings) = self.wanted_settings();
        let theirs = self.report().map_or(0, |r| r.settings_number);
        let number = match &self.s.settings {
            Some(held) if held.hash == hash => held.number,
            Some(held) => held.number.max(theirs) + 1,
            // Nothing is known of what was told before: a number above theirs says it again.
            None => theirs + 1,
        };
        self.s.settings = Some(SettingsHeld { number, hash });
        if self.report().is_some() && theirs < number {
            settings.number = number;
            settings.spec = self.spec_json().clone();
            self.actions.push(Action::Tell(settings));
            self.poll();
        }
    }
}
