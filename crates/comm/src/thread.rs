//! Ranks that are threads of one process: most parallel tests, and any laptop run with one trainer process.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::group::Group;
use crate::inbox::{Departure, Inbox};
use crate::message::{Message, Tag};
use crate::transport::{Transport, describe_wait};

/// Makes the `size` ranks of a world whose ranks are threads of this process; element `r` goes to the thread of
/// rank `r`. `timeout` bounds every single wait.
///
/// A rank's place in the world ends when its last handle (the world or any group split from it) is dropped; a drop
/// during a panic counts as a death.
///
/// # Errors
/// [`Error::Config`] for a world of no ranks.
pub fn world(size: usize, timeout: Duration) -> Result<Vec<Group>> {
    if size == 0 {
        return Err(Error::Config("a world needs at least one rank".into()));
    }
    let inboxes: Arc<[Inbox]> = (0..size).map(Inbox::new).collect();
    Ok((0..size)
        .map(|rank| Group::world(Arc::new(ThreadTransport { rank, timeout, inboxes: inboxes.clone() })))
        .collect())
}

struct ThreadTransport {
    rank: usize,
    timeout: Duration,
    inboxes: Arc<[Inbox]>,
}

impl ThreadTransport {
    fn leave(&self, why: String, orderly: bool) {
        for (rank, inbox) in self.inboxes.iter().enumerate() {
            if rank != self.rank {
                inbox.depart(self.rank, Departure { why: why.clone(), orderly });
            }
        }
    }
}

impl Transport for ThreadTransport {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.inboxes.len()
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn inbox(&self) -> &Inbox {
        &self.inboxes[self.rank]
    }

    fn send(&self, to: usize, group: &str, tag: Tag, bytes: &[u8]) -> Result<()> {
        self.inbox().check(group, tag)?;
        let inbox = &self.inboxes[to];
        let mut copy = inbox.buffer(bytes.len());
        copy.copy_from_slice(bytes);
        inbox.deliver(self.rank, Message { tag, bytes: copy });
        Ok(())
    }

    fn abort(&self, why: &str) {
        self.inbox().abort(why);
        self.leave(format!("it was told to stop: {why}"), false);
    }

    fn describe_waits(&self) -> String {
        let mut lines: Vec<String> = Vec::new();
        for (rank, inbox) in self.inboxes.iter().enumerate() {
            let waits = inbox.waits();
            if waits.is_empty() {
                lines.push(format!("rank {rank} waits for nobody"));
            }
            lines.extend(waits.iter().map(|w| describe_wait(rank, w)));
        }
        lines.join("; ")
    }
}

impl Drop for ThreadTransport {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.leave("its thread panicked".into(), false);
        } else {
            self.leave("it finished and left the world".into(), true);
        }
    }
}
