//! The one place where a rank waits.
//!
//! Every transport delivers into an [`Inbox`]; every receive takes from it. Therefore deadlines, aborts, deaths of
//! peers and diverging programs are handled once, here, and not once per transport.

use std::collections::HashMap;
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::message::{Message, Tag};

/// Buffers kept for reuse, so that a training step allocates nothing once every message size has been seen.
const SPARE_BUFFERS_MAX: usize = 64;

/// Why a peer is no longer there.
#[derive(Debug, Clone)]
pub(crate) struct Departure {
    pub why: String,
    /// The peer said that it was done. Only waits for that very peer fail; after a death every wait does, since a
    /// world with a dead rank cannot finish anything.
    pub orderly: bool,
}

/// What one thread of this rank is blocked on.
#[derive(Debug, Clone)]
pub(crate) struct Wait {
    pub from: usize,
    pub group: String,
    pub tag: Tag,
}

#[derive(Default)]
struct State {
    queues: HashMap<(usize, u64, bool), VecDeque<Message>>,
    departed: HashMap<usize, Departure>,
    aborted: Option<String>,
    waits: Vec<(u64, Wait)>,
    waits_made: u64,
    /// By peer: how often anything came from it.
    heard: HashMap<usize, u64>,
    spare: Vec<Vec<u8>>,
}

pub(crate) struct Inbox {
    rank: usize,
    state: Mutex<State>,
    changed: Condvar,
}

/// A collective and a point-to-point stream of one group are counted apart, so they are queued apart.
fn queue_key(from: usize, tag: &Tag) -> (usize, u64, bool) {
    (from, tag.group, tag.op == crate::message::Op::PointToPoint)
}

impl Inbox {
    pub(crate) fn new(rank: usize) -> Inbox {
        Inbox { rank, state: Mutex::new(State::default()), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A thread that panicked while it held the lock left plain queues behind: they are still sound.
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// A buffer of `len` bytes of unspecified content, reused where possible.
    pub(crate) fn buffer(&self, len: usize) -> Vec<u8> {
        let mut state = self.lock();
        let fit = state.spare.iter().position(|b| b.capacity() >= len);
        let mut buffer = match fit {
            Some(at) => state.spare.swap_remove(at),
            None => Vec::with_capacity(len),
        };
        drop(state);
        buffer.resize(len, 0);
        buffer
    }

    pub(crate) fn deliver(&self, from: usize, message: Message) {
        self.lock().queues.entry(queue_key(from, &message.tag)).or_default().push_back(message);
        self.changed.notify_all();
    }

    /// Something came from `peer`.
    pub(crate) fn hear(&self, peer: usize) {
        *self.lock().heard.entry(peer).or_default() += 1;
    }

    /// By peer: how often anything came from it.
    pub(crate) fn heard(&self) -> HashMap<usize, u64> {
        self.lock().heard.clone()
    }

    pub(crate) fn depart(&self, peer: usize, departure: Departure) {
        self.lock().departed.entry(peer).or_insert(departure);
        self.changed.notify_all();
    }

    pub(crate) fn abort(&self, why: &str) {
        self.lock().aborted.get_or_insert_with(|| why.to_owned());
        self.changed.notify_all();
    }

    /// The first reason why no operation of this rank can succeed any more, if there is one.
    pub(crate) fn check(&self, group: &str, tag: Tag) -> Result<()> {
        self.failure(&self.lock(), group, tag, None)
    }

    fn failure(&self, state: &State, group: &str, tag: Tag, from: Option<usize>) -> Result<()> {
        let (rank, op) = (self.rank, tag.op.name());
        if let Some(why) = &state.aborted {
            return Err(Error::Aborted { rank, op, group: group.to_owned(), why: why.clone() });
        }
        let fatal = state
            .departed
            .iter()
            .filter(|(peer, d)| !d.orderly || Some(**peer) == from)
            // An unexpected death explains more than an orderly goodbye.
            .min_by_key(|(peer, d)| (d.orderly, **peer));
        match fatal {
            Some((peer, d)) => {
                Err(Error::PeerGone { rank, peer: *peer, op, group: group.to_owned(), why: d.why.clone() })
            }
            None => Ok(()),
        }
    }

    /// Waits until it is known why `peer` left (or this rank was aborted), for at most `patience`.
    pub(crate) fn await_departure(&self, peer: usize, patience: Duration) {
        let started = Instant::now();
        let mut state = self.lock();
        while state.aborted.is_none() && !state.departed.contains_key(&peer) {
            let Some(left) = patience.checked_sub(started.elapsed()).filter(|d| !d.is_zero()) else { return };
            state = match self.changed.wait_timeout(state, left) {
                Ok((guard, _)) => guard,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }

    pub(crate) fn waits(&self) -> Vec<Wait> {
        self.lock().waits.iter().map(|(_, w)| w.clone()).collect()
    }

    /// Waits for the next message of `tag`'s queue from world rank `from` and copies it to `out`.
    ///
    /// `describe` is asked for the picture of who waits for whom when the deadline passes.
    pub(crate) fn take(
        &self,
        from: usize,
        group: &str,
        tag: Tag,
        out: &mut [u8],
        timeout: Duration,
        describe: &dyn Fn() -> String,
    ) -> Result<()> {
        let started = Instant::now();
        let mut state = self.lock();
        let mut wait_id = None;
        let message = loop {
            if state.aborted.is_none()
                && let Some(message) = state.queues.get_mut(&queue_key(from, &tag)).and_then(VecDeque::pop_front)
            {
                break Ok(message);
            }
            if let Err(e) = self.failure(&state, group, tag, Some(from)) {
                break Err(e);
            }
            let waited = started.elapsed();
            let Some(left) = timeout.checked_sub(waited).filter(|d| !d.is_zero()) else {
                drop(state);
                let waits = describe();
                state = self.lock();
                break Err(Error::Deadline {
                    rank: self.rank,
                    from,
                    op: tag.op.name(),
                    group: group.to_owned(),
                    waited,
                    waits,
                });
            };
            if wait_id.is_none() {
                state.waits_made += 1;
                let id = state.waits_made;
                state.waits.push((id, Wait { from, group: group.to_owned(), tag }));
                wait_id = Some(id);
            }
            state = match self.changed.wait_timeout(state, left) {
                Ok((guard, _)) => guard,
                Err(poisoned) => poisoned.into_inner().0,
            };
        };
        if let Some(id) = wait_id {
            state.waits.retain(|(w, _)| *w != id);
        }
        let message = message?;
        drop(state);
        if message.tag != tag || message.bytes.len() != out.len() {
            return Err(Error::Diverged {
                rank: self.rank,
                from,
                group: group.to_owned(),
                op: tag.op.name(),
                expected: format!("{tag} expecting {} bytes", out.len()),
                got: format!("{} of {} bytes", message.tag, message.bytes.len()),
            });
        }
        out.copy_from_slice(&message.bytes);
        let mut state = self.lock();
        if state.spare.len() < SPARE_BUFFERS_MAX {
            state.spare.push(message.bytes);
        }
        Ok(())
    }
}
