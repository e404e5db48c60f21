//! A full disk under the state folder is waited for, there and then: what a pod or an attempt has become is written down
//! before anything follows from it, so nothing may follow until it is. The processes of the run go on meanwhile.
//!
//! One for the whole process, since every writer of it waits for the same disk.

use std::{
    io::ErrorKind,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::sync::mpsc::{UnboundedSender, WeakUnboundedSender};

use crate::{
    error::{Error, Result},
    event::Event,
    run::Update,
};

const PAUSE: Duration = Duration::from_millis(250);

static EARS: Mutex<Option<WeakUnboundedSender<Update>>> = Mutex::new(None);
static GIVEN_UP: AtomicBool = AtomicBool::new(false);

/// Who is told of a wait, and of its end.
pub(crate) fn tell(updates: &UnboundedSender<Update>) {
    *EARS.lock().unwrap_or_else(PoisonError::into_inner) = Some(updates.downgrade());
}

/// Ends the waiting, now and later: a full disk is an error from now on.
pub fn give_up() {
    GIVEN_UP.store(true, Ordering::Release);
}

/// Writes until the disk has room.
pub(crate) fn wait_for_room(mut write: impl FnMut() -> Result<()>) -> Result<()> {
    let mut told = false;
    loop {
        match write() {
            Err(error) if is_full(&error) && !GIVEN_UP.load(Ordering::Acquire) => {
                if !told {
                    told = true;
                    say(true, "WaitingForStorage", format!("{error}; free some space: the run waits for it"));
                }
                std::thread::sleep(PAUSE);
            }
            result => {
                if told && result.is_ok() {
                    say(false, "StorageBack", "the state folder can be written again".into());
                }
                return result;
            }
        }
    }
}

fn is_full(error: &Error) -> bool {
    let Error::File { source, .. } = error else { return false };
    matches!(source.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

fn say(warning: bool, reason: &str, text: String) {
    let ears = EARS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(updates) = ears.as_ref().and_then(WeakUnboundedSender::upgrade) {
        // Nobody listens any more: nobody is to be told.
        let _ = updates.send(Update::Event(Event::now(warning, reason, text)));
    }
}
