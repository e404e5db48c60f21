//! What the scheduler's thread and the HTTP tasks both see: who is live, which weights are served, whether the scheduler lives.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::clock::Clock;

/// Which weights are served.
#[derive(Clone, Debug)]
pub(crate) struct Served {
    pub(crate) model_path: PathBuf,
    pub(crate) weight_version: Arc<str>,
    /// False until the first weights.
    pub(crate) has_weights: bool,
}

/// State that both sides see.
pub(crate) struct Shared {
    pub(crate) clock: Clock,
    served: RwLock<Served>,
    live: Mutex<HashMap<Arc<str>, u64>>,
    next_id: AtomicU64,
    beat_ms: AtomicU64,
    pub(crate) draining: AtomicBool,
    /// The engine will end: it is not ready, and may still take requests for a while.
    pub(crate) leaving: AtomicBool,
}

/// A request id is in use.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Duplicate;

impl Shared {
    pub(crate) fn new(served: Served) -> Self {
        Self {
            clock: Clock::start(),
            served: RwLock::new(served),
            live: Mutex::new(HashMap::new()),
            next_id: AtomicU64::new(1),
            beat_ms: AtomicU64::new(0),
            draining: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
        }
    }

    /// The scheduler says that it lives.
    pub(crate) fn beat(&self) {
        self.beat_ms.store(self.clock.uptime_ms(), Ordering::Relaxed);
    }

    /// How long the scheduler has been silent.
    pub(crate) fn silence(&self) -> Duration {
        Duration::from_millis(self.clock.uptime_ms().saturating_sub(self.beat_ms.load(Ordering::Relaxed)))
    }

    pub(crate) fn served(&self) -> Served {
        self.served.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn weight_version(&self) -> Arc<str> {
        self.served.read().unwrap_or_else(PoisonError::into_inner).weight_version.clone()
    }

    pub(crate) fn set_weight_version(&self, version: Arc<str>) {
        self.served.write().unwrap_or_else(PoisonError::into_inner).weight_version = version;
    }

    pub(crate) fn installed(&self, weight_version: Arc<str>, model_path: PathBuf) {
        *self.served.write().unwrap_or_else(PoisonError::into_inner) =
            Served { model_path, weight_version, has_weights: true };
    }

    /// Makes a request known by its id, until [`gone`](Self::gone). `hand_over` runs before anybody can find it, so that an abort
    /// always comes after what it aborts.
    pub(crate) fn enter<E>(
        &self,
        rid: &Arc<str>,
        hand_over: impl FnOnce(u64) -> Result<(), E>,
    ) -> Result<Result<u64, E>, Duplicate> {
        let mut live = self.live();
        if live.contains_key(rid) {
            return Err(Duplicate);
        }
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let handed_over = hand_over(id);
        if handed_over.is_ok() {
            live.insert(rid.clone(), id);
        }
        Ok(handed_over.map(|()| id))
    }

    pub(crate) fn gone(&self, rid: &str) {
        self.live().remove(rid);
    }

    /// The scheduler's id of a live request.
    pub(crate) fn find(&self, rid: &str) -> Option<u64> {
        self.live().get(rid).copied()
    }

    pub(crate) fn live_count(&self) -> usize {
        self.live().len()
    }

    fn live(&self) -> MutexGuard<'_, HashMap<Arc<str>, u64>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
