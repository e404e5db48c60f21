//! What callers can get wrong.

/// A refused input: the caller's data contradicts itself.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// A slice is not as long as the others.
    #[error(
        "{what} has {got} elements, expected {expected}: every per-token slice of a loss must have the same length"
    )]
    Length {
        /// Which slice.
        what: &'static str,
        /// Its length.
        got: usize,
        /// The length of the others.
        expected: usize,
    },
    /// The configuration asks for log-probs that were not given.
    #[error("{what} are needed by the loss configuration ({because}) and were not given")]
    Missing {
        /// Which slice.
        what: &'static str,
        /// The setting that needs it.
        because: &'static str,
    },
    /// A rollout's samples lie in different groups.
    #[error("rollout {rollout_id} has samples in groups {first} and {second}: a rollout belongs to one prompt group")]
    RolloutInTwoGroups {
        /// The rollout.
        rollout_id: u64,
        /// Group of its first sample.
        first: u64,
        /// Another group.
        second: u64,
    },
    /// A setting outside its range.
    #[error("{field} is {value}: {rule}")]
    Setting {
        /// Name of the field.
        field: &'static str,
        /// Its value.
        value: f64,
        /// What it must satisfy.
        rule: &'static str,
    },
}
