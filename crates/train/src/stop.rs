//! The wish that an attempt ends, from a signal to whoever waits.

use std::sync::Arc;

use tokio::sync::watch;

/// Asked once, heard by everyone who holds a clone.
#[derive(Clone, Debug)]
pub struct Stop(Arc<watch::Sender<bool>>);

impl Default for Stop {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }
}

impl Stop {
    /// Asks.
    pub fn ask(&self) {
        self.0.send_replace(true);
    }

    /// Whether it was asked for.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        *self.0.borrow()
    }

    /// Resolves when it is asked for.
    pub(crate) async fn asked(&self) {
        // It fails only when the sender is gone, and we hold it.
        let _ = self.0.subscribe().wait_for(|asked| *asked).await;
    }
}
