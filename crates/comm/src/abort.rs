//! Ends another thread's waiting.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::transport::Transport;

/// A handle by which any thread can end every wait of the worlds attached to it, now and for ever.
///
/// Made before a world exists (so that even the wait for the other ranks can be ended) or taken from one by
/// [`crate::Group::abort_handle`]. The other ranks notice at once that this one is gone.
#[derive(Clone, Default)]
pub struct Abort {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    why: Option<String>,
    worlds: Vec<Weak<dyn Transport>>,
}

impl Abort {
    /// A handle with nothing attached yet.
    pub fn new() -> Abort {
        Abort::default()
    }

    /// Ends every wait with [`crate::Error::Aborted`] and this reason. Only the first reason is kept.
    pub fn abort(&self, why: &str) {
        let worlds: Vec<_> = {
            let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            inner.why.get_or_insert_with(|| why.to_owned());
            inner.worlds.iter().filter_map(Weak::upgrade).collect()
        };
        for world in worlds {
            world.abort(why);
        }
    }

    /// The reason given, once there is one.
    pub fn reason(&self) -> Option<String> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).why.clone()
    }

    pub(crate) fn attach(&self, world: &Arc<dyn Transport>) {
        let why = {
            let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            inner.worlds.push(Arc::downgrade(world));
            inner.why.clone()
        };
        if let Some(why) = why {
            world.abort(&why);
        }
    }
}
