use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// A bounded pool whose idle threads sleep. It never spins: several processes share the cores, and spinning barriers
/// cost them ten times their work.
///
/// Work is cut into jobs by rules that know nothing about threads, so results do not either.
pub(crate) struct Threads {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// one operation at a time uses the workers; others run alone
    turn: Mutex<()>,
}

struct Shared {
    state: Mutex<State>,
    work: Condvar,
    done: Condvar,
}

#[derive(Default)]
struct State {
    /// raised for every batch of jobs
    batch: u64,
    job: Option<Job>,
    next: usize,
    total: usize,
    running: usize,
    panicked: bool,
    stop: bool,
}

/// A borrowed closure whose lifetime the compiler no longer sees.
#[derive(Clone, Copy)]
struct Job(*const (dyn Fn(usize) + Sync));

// SAFETY: the pointee is `Sync`, and `run` keeps it alive until no worker can reach it any more.
unsafe impl Send for Job {}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Threads {
    /// `threads` in all, the caller's included.
    pub(crate) fn new(threads: usize) -> Threads {
        let shared = Arc::new(Shared { state: Mutex::default(), work: Condvar::new(), done: Condvar::new() });
        let workers = (1..threads.max(1))
            .filter_map(|i| {
                let shared = shared.clone();
                // A thread the system refuses is one thread less, nothing worse.
                std::thread::Builder::new().name(format!("tensor-{i}")).spawn(move || worker(&shared)).ok()
            })
            .collect();
        Threads { shared, workers, turn: Mutex::new(()) }
    }

    pub(crate) fn count(&self) -> usize {
        self.workers.len() + 1
    }

    /// `f(i)` for every `i` in `0..n`, in any order, on any thread; returns when all are done.
    pub(crate) fn run(&self, n: usize, f: &(dyn Fn(usize) + Sync)) {
        let turn = if self.workers.is_empty() || n < 2 { None } else { self.turn.try_lock().ok() };
        if turn.is_none() {
            (0..n).for_each(f);
            return;
        }
        // SAFETY: only the lifetime changes. Workers take the pointer under the lock and count themselves in
        // `running`; below we clear it and wait until `running` is 0, so no call outlives `f`, panic or not.
        let job = Job(unsafe {
            std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), *const (dyn Fn(usize) + Sync + 'static)>(f)
        });
        {
            let mut s = lock(&self.shared.state);
            s.batch += 1;
            (s.job, s.next, s.total, s.panicked) = (Some(job), 0, n, false);
        }
        self.shared.work.notify_all();
        let mine = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            while let Some(i) = self.take() {
                f(i);
            }
        }));
        let mut s = lock(&self.shared.state);
        s.job = None;
        s.next = s.total;
        while s.running > 0 {
            s = self.shared.done.wait(s).unwrap_or_else(PoisonError::into_inner);
        }
        let panicked = s.panicked;
        drop(s);
        if let Err(p) = mine {
            std::panic::resume_unwind(p);
        }
        assert!(!panicked, "a job of a tensor operation panicked");
    }

    fn take(&self) -> Option<usize> {
        let mut s = lock(&self.shared.state);
        (s.next < s.total).then(|| {
            s.next += 1;
            s.next - 1
        })
    }

    /// `f(job)` for every job, on all threads when there are more than one.
    pub(crate) fn for_each<J: Send>(&self, jobs: impl Iterator<Item = J>, f: impl Fn(J) + Sync) {
        if self.workers.is_empty() {
            jobs.for_each(f);
            return;
        }
        let jobs: Vec<Mutex<Option<J>>> = jobs.map(|j| Mutex::new(Some(j))).collect();
        self.run(jobs.len(), &|i| {
            let job = lock(&jobs[i]).take();
            if let Some(j) = job {
                f(j);
            }
        });
    }
}

fn worker(shared: &Shared) {
    let mut seen = 0;
    let mut s = lock(&shared.state);
    loop {
        if s.stop {
            return;
        }
        let Some(job) = s.job.filter(|_| s.batch != seen) else {
            s = shared.work.wait(s).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        seen = s.batch;
        s.running += 1;
        while s.next < s.total {
            let i = s.next;
            s.next += 1;
            drop(s);
            // SAFETY: `running` counts us and `run` waits for it to reach 0 before the closure can die.
            let ok = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| unsafe { (*job.0)(i) })).is_ok();
            s = lock(&shared.state);
            if !ok {
                s.panicked = true;
                s.next = s.total;
            }
        }
        s.running -= 1;
        if s.running == 0 {
            shared.done.notify_all();
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        lock(&self.shared.state).stop = true;
        self.shared.work.notify_all();
        for w in self.workers.drain(..) {
            // A worker that panicked outside of a job has nothing left to say.
            drop(w.join());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn every_job_runs_once() {
        let pool = Threads::new(3);
        for n in [0, 1, 2, 7, 100] {
            let hits: Vec<AtomicUsize> = (0..n).map(|_| AtomicUsize::new(0)).collect();
            pool.run(n, &|i| {
                hits[i].fetch_add(1, Ordering::Relaxed);
            });
            assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 1));
        }
    }

    #[test]
    fn a_panic_in_a_job_reaches_the_caller_and_spares_the_pool() {
        let pool = Threads::new(2);
        let r = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| pool.run(8, &|i| assert!(i != 3))));
        assert!(r.is_err());
        let n = AtomicUsize::new(0);
        pool.run(8, &|_| {
            n.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(n.load(Ordering::Relaxed), 8);
    }
}
