//! Rebuilding a queue from what its journal holds.

use std::sync::mpsc::sync_channel;

use super::{Op, Queue};
use crate::journal::Txn;
use crate::{Error, Result};

/// Fewer records are decoded where they are applied: to begin a thread costs more.
const FEW: usize = 4096;
/// Records that are decoded together, and how many such pages may wait.
const PAGE: usize = 1024;
const PAGES_AHEAD: usize = 8;

impl Queue {
    /// The queue that a snapshot and the transactions behind it add up to, where each record is an [`Op`]. Of a long journal another
    /// thread decodes the records while this one applies them; it ends with the call.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when they are not a queue's; [`Error::Refused`] for an op that does not follow from those before it.
    pub fn replay(snapshot: Option<&[u8]>, txns: &[Txn]) -> Result<Queue> {
        let mut queue = match snapshot {
            Some(bytes) => postcard::from_bytes(bytes).map_err(not_ours)?,
            None => Queue::new(),
        };
        let records: Vec<&[u8]> = txns.iter().flatten().map(Vec::as_slice).collect();
        if records.len() < FEW {
            records.iter().try_for_each(|record| Ok::<_, Error>(queue.apply_owned(decode(record)?)?))?;
            return Ok(queue);
        }
        std::thread::scope(|scope| {
            let (send, pages) = sync_channel(PAGES_AHEAD);
            scope.spawn(move || {
                for page in records.chunks(PAGE) {
                    let ops: Result<Vec<Op>> = page.iter().map(|record| decode(record)).collect();
                    if send.send(ops).is_err() {
                        return; // an op was refused
                    }
                }
            });
            for page in pages {
                page?.into_iter().try_for_each(|op| queue.apply_owned(op))?;
            }
            Ok(queue)
        })
    }
}

fn decode(record: &[u8]) -> Result<Op> {
    postcard::from_bytes(record).map_err(not_ours)
}

fn not_ours(e: postcard::Error) -> Error {
    Error::corrupt("the journal", 0, format!("not a queue's: {e}"))
}
