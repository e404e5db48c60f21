//! Where events wait for the brain, and requests for their answers.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
};

use conductor::{Event, Reply, ReplyId};
use control::wire::Progress;
use tokio::sync::oneshot;

/// What the brain's thread receives.
pub enum Input {
    /// Something happened.
    Event(Event),
    /// End, after what was received before.
    Stop,
}

/// The sending side. Cloning shares it.
#[derive(Clone)]
pub struct Inbox(Arc<Inner>);

struct Inner {
    sender: mpsc::Sender<Input>,
    next: AtomicU64,
    waiting: Mutex<HashMap<ReplyId, oneshot::Sender<Reply>>>,
    /// Epoch of the reign at hand, 0 between two.
    epoch: AtomicU64,
    /// What is said between two reigns of how the run stands.
    between: Mutex<Option<Progress>>,
}

impl Inbox {
    /// An inbox and its other end.
    pub fn new() -> (Self, mpsc::Receiver<Input>) {
        let (sender, receiver) = mpsc::channel();
        let inner = Inner {
            sender,
            next: AtomicU64::new(1),
            waiting: Mutex::default(),
            epoch: AtomicU64::new(0),
            between: Mutex::default(),
        };
        (Self(Arc::new(inner)), receiver)
    }

    /// Hands an event in.
    pub fn post(&self, event: Event) {
        // Failing means that the brain is gone, and the process with it soon.
        let _ = self.0.sender.send(Input::Event(event));
    }

    /// Asks the brain to end.
    pub fn stop(&self) {
        let _ = self.0.sender.send(Input::Stop);
    }

    /// Hands a request in and waits for its answer; nothing when the reign ended before there was one.
    pub async fn ask(&self, event: impl FnOnce(ReplyId) -> Event) -> Option<Reply> {
        let id = self.0.next.fetch_add(1, Ordering::Relaxed);
        let (send, answer) = oneshot::channel();
        self.waiting().insert(id, send);
        let _forget = Forget(self, id);
        self.post(event(id));
        answer.await.ok()
    }

    /// Answers a request.
    pub fn answer(&self, id: ReplyId, reply: Reply) {
        if let Some(waiting) = self.waiting().remove(&id) {
            // The caller may have gone away meanwhile.
            let _ = waiting.send(reply);
        }
    }

    /// Leaves all requests without an answer: their callers will ask again.
    pub fn forget_all(&self) {
        self.waiting().clear();
    }

    /// Takes note of the reign at hand.
    pub fn set_epoch(&self, epoch: u64) {
        self.0.epoch.store(epoch, Ordering::Release);
    }

    /// What is said of how the run stands while nobody reigns.
    pub fn show(&self, progress: Option<Progress>) {
        *self.0.between.lock().unwrap_or_else(PoisonError::into_inner) = progress;
    }

    /// See [`Inbox::show`].
    pub fn shown(&self) -> Option<Progress> {
        self.0.between.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Epoch of the reign at hand, 0 between two.
    pub fn epoch(&self) -> u64 {
        self.0.epoch.load(Ordering::Acquire)
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<ReplyId, oneshot::Sender<Reply>>> {
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request whose caller went away needs no answer.
struct Forget<'a>(&'a Inbox, ReplyId);

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.0.waiting().remove(&self.1);
    }
}
