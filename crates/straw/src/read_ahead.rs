//! Reading what is needed next while what is at hand is used.

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::record::Record;
use crate::store::Store;
use crate::{Error, Ref, Result};

/// Threads that one may have.
const THREADS_MAX: usize = 64;

/// Reads in the background, and hands over in the order in which it was asked.
///
/// ```text
/// want(next batch); loop { take(); want(the one behind it); use what was taken }
/// ```
/// It holds `bytes_max` at most of what was read and not taken, or one read alone when that has more; what is asked beyond that waits.
/// The threads are its own: they end when it is dropped, after the reads at hand, and [`ReadAhead`]'s drop waits for them.
///
/// It pays where a read waits. Of `read_ahead` of the bench, by turns in one run of 9 rounds, two busy cores: batches of 8 records of
/// 256 KiB, each used for about as long as it takes to read, 1.25x as fast as reading and then using when each read waits 1 ms, and
/// eight columns of 256 KiB by four threads 3.4x; from the page cache 0.70x and 0.25x, since a read costs no more there than handing it
/// over. So ask [`Store::is_of_one_host`], and say 0 threads there: each read is then made when it is taken.
pub struct ReadAhead<T> {
    shared: Arc<Shared<T>>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared<T> {
    store: Store,
    bytes_max: u64,
    state: Mutex<State<T>>,
    /// Something was asked, or bytes were let go, or it is over.
    work: Condvar,
    /// A read is done.
    done: Condvar,
}

type Job<T> = Box<dyn FnOnce(&Store) -> Result<T> + Send>;
/// What a read gave, or what it panicked with.
type Outcome<T> = std::result::Result<Result<T>, Box<dyn Any + Send>>;

struct State<T> {
    /// Not begun, in order: bytes and the read.
    wanted: VecDeque<(u64, Job<T>)>,
    /// Number of the next one to begin, and of the next to be taken.
    begin: u64,
    take: u64,
    /// Done and not taken, by number.
    ready: BTreeMap<u64, (u64, Outcome<T>)>,
    /// Bytes of those begun and not taken.
    held: u64,
    over: bool,
}

impl<T: Send + 'static> ReadAhead<T> {
    /// Starts `threads` threads that read from `store`; with none each read is made when it is taken.
    ///
    /// # Errors
    /// [`Error::Io`] when the system gives no thread.
    pub fn start(store: &Store, threads: usize, bytes_max: u64) -> Result<Self> {
        let state = State { wanted: VecDeque::new(), begin: 0, take: 0, ready: BTreeMap::new(), held: 0, over: false };
        let shared = Arc::new(Shared {
            store: store.clone(),
            bytes_max,
            state: Mutex::new(state),
            work: Condvar::new(),
            done: Condvar::new(),
        });
        let mut ahead = ReadAhead { shared, threads: Vec::new() };
        for _ in 0..threads.min(THREADS_MAX) {
            let shared = ahead.shared.clone();
            let thread = std::thread::Builder::new().name("read-ahead".to_owned()).spawn(move || shared.work());
            ahead.threads.push(thread.map_err(|e| Error::io("start", "a thread that reads ahead", e))?);
        }
        Ok(ahead)
    }

    /// Asks for a read that will have `bytes` in memory. Does not wait.
    pub fn want(&self, bytes: u64, read: impl FnOnce(&Store) -> Result<T> + Send + 'static) {
        self.shared.state().wanted.push_back((bytes, Box::new(read)));
        self.shared.work.notify_one();
    }

    /// What was asked first of what was not taken yet; waits for it. `None` when nothing is asked.
    ///
    /// # Errors
    /// Those of the read. A read that panicked panics here.
    pub fn take(&self) -> Option<Result<T>> {
        let mut state = self.shared.state();
        loop {
            let number = state.take;
            if let Some((bytes, outcome)) = state.ready.remove(&number) {
                state.take += 1;
                state.held -= bytes;
                drop(state);
                self.shared.work.notify_all();
                return Some(outcome.unwrap_or_else(|panic| resume_unwind(panic)));
            }
            if number == state.begin + state.wanted.len() as u64 {
                return None;
            }
            if self.threads.is_empty() {
                let (_, read) = state.wanted.pop_front()?;
                state.begin += 1;
                state.take += 1;
                drop(state);
                return Some(read(&self.shared.store));
            }
            state = self.shared.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl ReadAhead<Vec<Record>> {
    /// Asks for the records of a batch, as [`Store::read_many`] gives them. Counted with their bytes as they are stored.
    pub fn want_records(&self, references: Vec<Ref>) {
        let bytes = references.iter().flat_map(Ref::bytes_in_packs).map(|(_, bytes)| bytes).sum();
        self.want(bytes, move |store| store.read_many(&references));
    }
}

impl<T> Shared<T> {
    fn work(&self) {
        let mut state = self.state();
        while !state.over {
            let held = state.held;
            let fits = |bytes: u64| held == 0 || held.saturating_add(bytes) <= self.bytes_max;
            let next = state.wanted.front().is_some_and(|(bytes, _)| fits(*bytes));
            let Some((bytes, read)) = next.then(|| state.wanted.pop_front()).flatten() else {
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let number = state.begin;
            state.begin += 1;
            state.held += bytes;
            drop(state);
            let outcome = catch_unwind(AssertUnwindSafe(|| read(&self.store)));
            state = self.state();
            state.ready.insert(number, (bytes, outcome));
            self.done.notify_all();
        }
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Drop for ReadAhead<T> {
    fn drop(&mut self) {
        self.shared.state().over = true;
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join(); // a read that panicked was caught
        }
    }
}

impl<T> std::fmt::Debug for ReadAhead<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ReadAhead({} threads)", self.threads.len())
    }
}
