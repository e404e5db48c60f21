//! Condition types, and how a list of conditions is changed.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;

/// The spec is valid and everything it refers to exists. All kinds.
pub const ACCEPTED: &str = "Accepted";
/// The last apply of children succeeded. All kinds.
pub const RECONCILED: &str = "Reconciled";
/// The conductor answers. RLJob.
pub const CONDUCTOR_READY: &str = "ConductorReady";
/// Enough engines are live and current. RLJob.
pub const SERVING_READY: &str = "ServingReady";
/// Workers are there. RLJob.
pub const ROLLOUT_READY: &str = "RolloutReady";
/// All ranks of the attempt are ready. RLJob.
pub const TRAINER_READY: &str = "TrainerReady";
/// Steps advance (RLJob), or a roll-out or scaling is under way (the others).
pub const PROGRESSING: &str = "Progressing";
/// The running attempt is the one the spec asks for. RLJob.
pub const UP_TO_DATE: &str = "UpToDate";
/// Something works less well than asked. RLJob.
pub const DEGRADED: &str = "Degraded";
/// The queue has let the attempt go. RLJob, only with a queue.
pub const QUOTA_RESERVED: &str = "QuotaReserved";
/// No trainer, by request or because its queue holds it. RLJob.
pub const SUSPENDED: &str = "Suspended";
/// The run has reached its end. RLJob; absolute.
pub const COMPLETE: &str = "Complete";
/// The run has failed. RLJob; left only by a new `restart.token`.
pub const FAILED: &str = "Failed";
/// Enough of it answers. ServingCluster, RolloutPool.
pub const AVAILABLE: &str = "Available";
/// All engines are at the writer's version. ServingCluster.
pub const WEIGHTS_IN_SYNC: &str = "WeightsInSync";

/// Its engines have finished what they had, for its deletion. ServingCluster.
pub const DRAINED: &str = "Drained";

/// Why a run is at its end (the reason of [`COMPLETE`] or [`FAILED`]), for people.
pub fn in_words(reason: &str) -> &str {
    match reason {
        "TrainingFinished" => "done",
        "FailJobRule" => "another attempt would fail as this one did",
        "ConductorGaveUp" => "the run cannot go on",
        "BackoffLimitExceeded" => "too many failures",
        "DeadlineExceeded" => "its time is over",
        other => other,
    }
}

/// Longest message kept.
pub const MESSAGE_MAX: usize = 1024;

/// Truth of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truth {
    /// It holds.
    True,
    /// It does not.
    False,
    /// It cannot be told.
    Unknown,
}

impl Truth {
    /// As written in a condition.
    pub fn as_str(self) -> &'static str {
        match self {
            Truth::True => "True",
            Truth::False => "False",
            Truth::Unknown => "Unknown",
        }
    }
}

impl From<bool> for Truth {
    fn from(b: bool) -> Self {
        if b { Truth::True } else { Truth::False }
    }
}

/// Sets a condition. `lastTransitionTime` moves only when the status does, so an unchanged world writes nothing.
pub fn set(
    list: &mut Vec<Condition>,
    type_: &str,
    truth: Truth,
    reason: &str,
    message: &str,
    generation: Option<i64>,
    now: Timestamp,
) {
    let mut message = message.to_owned();
    if message.len() > MESSAGE_MAX {
        let mut end = MESSAGE_MAX;
        while !message.is_char_boundary(end) {
            end -= 1;
        }
        message.truncate(end);
    }
    let since = match list.iter().find(|c| c.type_ == type_) {
        Some(c) if c.status == truth.as_str() => c.last_transition_time.clone(),
        // Whole seconds, as the API stores them: a comparison with what was read back must find no difference.
        _ => Time(Timestamp::from_second(now.as_second()).unwrap_or(now)),
    };
    let new = Condition {
        type_: type_.to_owned(),
        status: truth.as_str().to_owned(),
        reason: reason.to_owned(),
        message,
        observed_generation: generation,
        last_transition_time: since,
    };
    match list.iter_mut().find(|c| c.type_ == type_) {
        Some(c) => *c = new,
        None => {
            list.push(new);
            list.sort_by(|a, b| a.type_.cmp(&b.type_));
        }
    }
}

/// Removes a condition.
pub fn clear(list: &mut Vec<Condition>, type_: &str) {
    list.retain(|c| c.type_ != type_);
}

/// The condition of that type.
pub fn get<'a>(list: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    list.iter().find(|c| c.type_ == type_)
}

/// True only if the condition is there and True.
pub fn is_true(list: &[Condition], type_: &str) -> bool {
    get(list, type_).is_some_and(|c| c.status == "True")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transition_time_moves_only_with_the_status() {
        let t = |s| Timestamp::from_second(s).unwrap();
        let mut list = Vec::new();
        set(&mut list, READY, Truth::False, "A", "m", Some(1), t(10));
        set(&mut list, READY, Truth::False, "B", "n", Some(2), t(20));
        assert_eq!(list[0].last_transition_time.0, t(10));
        assert_eq!(list[0].reason, "B");
        set(&mut list, READY, Truth::True, "C", "", Some(2), t(30));
        assert_eq!(list[0].last_transition_time.0, t(30));
        assert!(is_true(&list, READY));
    }

    const READY: &str = "Ready";

    #[test]
    fn a_long_message_is_cut_at_a_character() {
        let mut list = Vec::new();
        set(&mut list, READY, Truth::False, "A", &"é".repeat(2000), None, Timestamp::UNIX_EPOCH);
        assert!(list[0].message.len() <= MESSAGE_MAX);
    }
}
