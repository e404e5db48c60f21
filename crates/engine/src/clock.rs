//! Wall-clock stamps from a monotonic clock: never going back, comparable within one process.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Seconds since 1970 of an [`Instant`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
    unix: f64,
}

impl Clock {
    pub(crate) fn start() -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        Self { start: Instant::now(), unix }
    }

    pub(crate) fn unix(&self, at: Instant) -> f64 {
        self.unix + at.saturating_duration_since(self.start).as_secs_f64()
    }

    pub(crate) fn uptime_ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}
