//! What happened in a run, for people and for machines.

use api::Problem;
use jiff::Timestamp;
use plan::validate::{Edit, Effect};
use serde::Serialize;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// When.
    pub time: Timestamp,
    /// Worth a look.
    pub warning: bool,
    /// Stable word.
    pub reason: String,
    /// One line, or a few for a refused edit.
    pub text: String,
}

impl Event {
    /// Now.
    #[must_use]
    pub fn now(warning: bool, reason: &str, text: impl Into<String>) -> Self {
        Self { time: Timestamp::now(), warning, reason: reason.into(), text: text.into() }
    }

    /// The manifest was saved and is not good: nothing changes.
    #[must_use]
    pub fn edit_refused(problems: &[Problem]) -> Self {
        Self::now(true, "EditRefused", format!("edit refused, nothing changes\n{}", api::render(problems).trim_end()))
    }

    /// The manifest was saved and applied.
    #[must_use]
    pub fn edit_accepted(edits: &[Edit]) -> Self {
        if edits.is_empty() {
            return Self::now(false, "EditAccepted", "edit: the run is what the file says already");
        }
        let effects: Vec<String> =
            edits.iter().map(|edit| format!("{} ({})", edit.path, effect(edit.effect))).collect();
        Self::now(false, "EditAccepted", format!("edit: {}", effects.join(", ")))
    }
}

fn effect(effect: Effect) -> &'static str {
    match effect {
        Effect::Live => "takes effect without a restart",
        Effect::NextAttempt => "takes effect with the next attempt",
        Effect::RestartsTrainer => "checkpoints and restarts the trainer alone",
        Effect::Suspends => "saves and stops the trainer",
        Effect::Resumes => "the trainer goes on from its last commit",
        Effect::RestartsConductor => "restarts the conductor alone",
        Effect::RollsServing => "replaces the engines one by one",
        Effect::RollsRollout => "replaces the workers one by one",
        Effect::Refused => "refused",
    }
}

/// How a process ended, for people, after its name: by a signal, or with an exit code.
#[must_use]
pub fn end_in_words(code: i32, signal: Option<i32>) -> String {
    match signal.or((code > 128).then(|| code - 128)) {
        Some(9) => "was killed (SIGKILL)".into(),
        Some(15) => "was ended (SIGTERM)".into(),
        Some(signal) => format!("died of {}", signal_name(signal)),
        None if code == 0 => "ended".into(),
        None => format!("failed (exit code {code})"),
    }
}

/// Name of a signal, as people know it.
fn signal_name(signal: i32) -> String {
    let name = match signal {
        2 => "SIGINT",
        4 => "SIGILL",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        15 => "SIGTERM",
        other => return format!("signal {other}"),
    };
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_told_in_words_whether_its_signal_is_known_or_only_its_code() {
        assert_eq!(end_in_words(137, Some(9)), "was killed (SIGKILL)");
        assert_eq!(end_in_words(143, None), "was ended (SIGTERM)");
        assert_eq!(end_in_words(139, None), "died of SIGSEGV");
        assert_eq!(end_in_words(128 + 60, None), "died of signal 60");
        assert_eq!(end_in_words(7, None), "failed (exit code 7)");
        assert_eq!(end_in_words(0, None), "ended");
    }
}
