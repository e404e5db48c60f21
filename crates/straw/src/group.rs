//! What many callers wait for together: one outcome, and a wake-up for exactly those whom it concerns.

use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

/// A group of callers with one outcome. The lock they wait under is that of what they share.
#[derive(Debug)]
pub(crate) struct Group<T> {
    outcome: OnceLock<T>,
    done: Condvar,
}

impl<T> Default for Group<T> {
    fn default() -> Self {
        Group { outcome: OnceLock::new(), done: Condvar::new() }
    }
}

impl<T> Group<T> {
    /// The outcome, once there is one.
    pub(crate) fn outcome(&self) -> Option<&T> {
        self.outcome.get()
    }

    /// Sleeps until there is an outcome. Whoever wakes needs no lock, so that many who wake at once are in nobody's way.
    pub(crate) fn wait_for_outcome(&self) -> &T {
        self.outcome.wait()
    }

    /// Sets the outcome. To be followed by [`Group::wake_all`], best after the lock was let go: those who wake need it.
    pub(crate) fn settle(&self, outcome: T) {
        let first = self.outcome.set(outcome).is_ok();
        assert!(first, "a group has one outcome");
    }

    /// Wakes all who wait.
    pub(crate) fn wake_all(&self) {
        self.done.notify_all();
    }

    /// Wakes one who waits, to do the work of the group.
    pub(crate) fn wake_one(&self) {
        self.done.notify_one();
    }

    /// Waits for a wake-up.
    pub(crate) fn wait<'a, S>(&self, state: MutexGuard<'a, S>) -> MutexGuard<'a, S> {
        self.done.wait(state).unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lets those who are about to join a group do so: `joined` many are in it by now, and the last one had `before`. Whom its sync
/// woke come back about now, and one turn for them costs less than a sync that leaves them out.
pub(crate) fn let_join<'a, S>(
    lock: &'a Mutex<S>,
    mut state: MutexGuard<'a, S>,
    before: u64,
    joined: impl Fn(&S) -> u64,
) -> MutexGuard<'a, S> {
    let mut seen = 0;
    while seen < joined(&state) && joined(&state) < before {
        seen = joined(&state);
        drop(state);
        std::thread::yield_now();
        state = lock.lock().unwrap_or_else(PoisonError::into_inner);
    }
    state
}
