//! The one error type of this crate.

/// What is wrong, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The RLJob and what lies on the volume do not fit together.
    #[error("spec.{field}: {what}")]
    BadConfig {
        /// Field of the spec.
        field: String,
        /// What is wrong with it.
        what: String,
    },
    /// A field that is fixed for a run's life was changed.
    #[error(
        "{field} is fixed for the life of a run: it began with {before}, now {after} is asked for. Put it back, or start a new run"
    )]
    Changed {
        /// Which field.
        field: String,
        /// What the run began with.
        before: String,
        /// What is asked for now.
        after: String,
    },
    /// A record that cannot follow the ones before it: the journal is damaged or of another version.
    #[error(
        "record {record} cannot follow the journal before it: {what}. The journal is damaged or was written by another version of Thresh"
    )]
    Inconsistent {
        /// Which record.
        record: &'static str,
        /// What contradicts it.
        what: String,
    },
    /// Bytes that are not a record or a snapshot.
    #[error("the journal holds bytes that are not a {what} of this version: {why}")]
    Undecodable {
        /// What was expected.
        what: &'static str,
        /// What the decoder said.
        why: String,
    },
    /// A batch cannot be made of these groups.
    #[error("batch of {step}: {what}")]
    Conversion {
        /// Which batch.
        step: String,
        /// What does not fit.
        what: String,
    },
    /// The volume remembers a run that its journal does not.
    #[error(
        "the run's folder holds {folder}, and its journal is empty: the journal was lost or moved. To begin anew would learn everything again and sweep the old checkpoints away; restore the journal, or start a new run"
    )]
    JournalLost {
        /// A folder of tiles or weights.
        folder: String,
    },
}
