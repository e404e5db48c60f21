//! What a journal adds up to, for whoever only reads it.

use crate::{Error, Record, Snapshot, State};

/// The state after a snapshot, if there is one, and the records behind it.
///
/// # Errors
/// When bytes are not a snapshot or a record, or a record cannot follow.
pub fn replay<'a>(snapshot: Option<&[u8]>, records: impl IntoIterator<Item = &'a [u8]>) -> Result<State, Error> {
    let mut state = match snapshot {
        Some(bytes) => Snapshot::decode(bytes)?.state,
        None => State::default(),
    };
    for bytes in records {
        state.apply(&Record::decode(bytes)?)?;
    }
    Ok(state)
}
