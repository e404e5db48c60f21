//! The queue that a journal describes: a run's, or a queue of straw's own operations.

use std::path::Path;

use anyhow::{Context, Result, bail};
use conductor::{Record, State};
use straw::queue::Op;
use straw::{Queue, RealFs};

/// Reads a journal, whose owner may live.
pub fn queue_of(journal: &Path) -> Result<Queue> {
    let (snapshot, txns) =
        straw::journal::read(&*RealFs::new(), journal).with_context(|| journal.display().to_string())?;
    let records: Vec<&[u8]> = txns.iter().flatten().map(Vec::as_slice).collect();
    match of_a_run(snapshot.as_deref(), &records) {
        Ok(queue) => Ok(queue),
        Err(error) => match of_a_queue(snapshot.as_deref(), &records) {
            Some(queue) => Ok(queue),
            None => bail!(
                "{}: its records are neither a run's nor a queue's: {error:#}\n  \
                 fix: use the `thresh` of the version that wrote them; `inspect` and `verify` do without",
                journal.display()
            ),
        },
    }
}

fn of_a_run(snapshot: Option<&[u8]>, records: &[&[u8]]) -> Result<Queue> {
    let mut state = match snapshot {
        Some(bytes) => conductor::Snapshot::decode(bytes)?.state,
        None => State::default(),
    };
    for bytes in records {
        state.apply(&Record::decode(bytes)?)?;
    }
    Ok(state.queue)
}

fn of_a_queue(snapshot: Option<&[u8]>, records: &[&[u8]]) -> Option<Queue> {
    let mut queue: Queue = match snapshot {
        Some(bytes) => postcard::from_bytes(bytes).ok()?,
        None => Queue::new(),
    };
    for bytes in records {
        queue.apply(&postcard::from_bytes::<Op>(bytes).ok()?).ok()?;
    }
    Some(queue)
}
