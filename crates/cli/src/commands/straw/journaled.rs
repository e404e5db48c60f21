//! The queue that a journal describes: a run's, or a queue of straw's own operations.

use std::path::Path;

use anyhow::{Context, Result, bail};
use conductor::Record;
use straw::queue::Op;
use straw::{Queue, RealFs};

/// A queue, and how its journal writes down what changes it.
pub struct Journaled {
    pub queue: Queue,
    run: bool,
}

impl Journaled {
    /// A change of where records lie, as this journal has it.
    pub fn record(&self, op: &Op) -> Result<Vec<u8>> {
        if !self.run {
            return Ok(postcard::to_stdvec(op)?);
        }
        let record = match op.clone() {
            Op::Move { moves } => Record::RecordsMoved { moves },
            Op::Retire { packs } => Record::PacksRetired { packs },
            other => bail!("a run's journal has no record for {other:?}"),
        };
        Ok(record.encode()?)
    }
}

/// Reads a journal, whose owner may live.
pub fn queue_of(journal: &Path) -> Result<Queue> {
    let name = || journal.display().to_string();
    let (snapshot, txns) = straw::journal::read(&*RealFs::new(), journal).with_context(name)?;
    Ok(journaled(snapshot.as_deref(), &txns).with_context(name)?.queue)
}

/// The queue that a snapshot and the transactions behind it describe.
pub fn journaled(snapshot: Option<&[u8]>, txns: &[straw::Txn]) -> Result<Journaled> {
    let records: Vec<&[u8]> = txns.iter().flatten().map(Vec::as_slice).collect();
    match conductor::replay(snapshot, records.iter().copied()) {
        Ok(state) => Ok(Journaled { queue: state.queue, run: true }),
        Err(error) => match of_a_queue(snapshot, &records) {
            Some(queue) => Ok(Journaled { queue, run: false }),
            None => bail!(
                "its records are neither a run's nor a queue's: {error:#}\n  \
                 fix: use the `thresh` of the version that wrote them; `inspect` and `verify` do without"
            ),
        },
    }
}

/// The queue of a journal of straw's own operations.
pub fn of_a_queue(snapshot: Option<&[u8]>, records: &[&[u8]]) -> Option<Queue> {
    let mut queue: Queue = match snapshot {
        Some(bytes) => postcard::from_bytes(bytes).ok()?,
        None => Queue::new(),
    };
    for bytes in records {
        queue.apply(&postcard::from_bytes::<Op>(bytes).ok()?).ok()?;
    }
    Some(queue)
}
