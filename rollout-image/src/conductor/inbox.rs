//! Where events wait for the brain, and requests for their answers.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
};

use conductor::{Event, Reply, ReplyId};
use control::wire::{Progress, Wait};
use tokio::sync::oneshot;

/// What the brain's thread receives.
pub enum Input {
    /// Something happened.
    Event(Event),
    /// End, after what was received before.
    Stop,
    /// Look up: something else than an event has changed.
    Wake,
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
    stopping: AtomicBool,
    /// The last progress that was given out, since what is newer may not be durable.
    last: Mutex<Option<Progress>>,
    /// What is said of how the run stands while the volume is full or away.
    waiting_for_volume: Mutex<Option<Progress>>,
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
            stopping: AtomicBool::new(false),
            last: Mutex::default(),
            waiting_for_volume: Mutex::default(),
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
        self.0.stopping.store(true, Ordering::Release);
        let _ = self.0.sender.send(Input::Stop);
    }

    /// It was asked to end.
    pub fn is_stopping(&self) -> bool {
        self.0.stopping.load(Ordering::Acquire)
    }

    /// Lets the brain look up.
    pub fn wake(&self) {
        let _ = self.0.sender.send(Input::Wake);
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

    /// Takes note of how the run stands, as somebody was told.
    pub fn remember(&self, progress: &Progress) {
        *lock(&self.0.last) = Some(progress.clone());
    }

    /// Nothing was told since this process began.
    pub fn remembers_nothing(&self) -> bool {
        lock(&self.0.last).is_none()
    }

    /// From now on whoever asks is told how the run stood, and that it waits for the volume: a conductor that says nothing is
    /// taken for one that is gone.
    pub fn show_waiting(&self, what: String, since_ms: u64) {
        let mut progress = lock(&self.0.last).clone().unwrap_or_default();
        progress.waits.insert(0, Wait { what, owner: "storage".to_owned(), since_ms, until_ms: None });
        *lock(&self.0.waiting_for_volume) = Some(progress);
    }

    /// The volume is there again: the brain answers.
    pub fn show_nothing(&self) {
        *lock(&self.0.waiting_for_volume) = None;
    }

    /// See [`Inbox::show_waiting`].
    pub fn shown(&self) -> Option<Progress> {
        lock(&self.0.waiting_for_volume).clone()
    }

    /// Epoch of the reign at hand, 0 between two.
    pub fn epoch(&self) -> u64 {
        self.0.epoch.load(Ordering::Acquire)
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<ReplyId, oneshot::Sender<Reply>>> {
        lock(&self.0.waiting)
    }
}

fn lock<T>(place: &Mutex<T>) -> MutexGuard<'_, T> {
    place.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A request whose caller went away needs no answer.
struct Forget<'a>(&'a Inbox, ReplyId);

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.0.waiting().remove(&self.1);
    }
}
