//! The volume, who is on it, and what happens next.

use std::cell::{Cell, RefCell, RefMut};
use std::rc::Rc;
use std::sync::Arc;

use straw::watched_fs::Operation;
use straw::{Error, Fault, Fs, SimFs, Store, inspect, verify};

use crate::coordinator::{Coordinator, leave_again, store};
use crate::facts::{Facts, LINES};
use crate::random::Random;
use crate::support::hooked;
use crate::worker::Worker;

/// Steps of one history, those of frozen participants' neighbours not counted.
const STEPS: u64 = 150;
const FROZEN_IN_EACH_OTHER_MAX: u32 = 3;
/// The last one works for the fork.
const WORKERS: usize = 3;

/// What happened, so that a search which finds nothing is known to have looked.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    pub steps: u64,
    pub operations: u64,
    pub claims: u64,
    pub fenced: u64,
    pub txns: u64,
    pub pipelined: u64,
    pub pipelines_lost: u64,
    pub publishes: u64,
    pub shared: u64,
    pub accepted: u64,
    pub republished: u64,
    pub snapshots: u64,
    pub abandoned: u64,
    pub locked_out: u64,
    pub moves: u64,
    pub old_parts_read: u64,
    pub resolved: u64,
    pub retired: u64,
    pub forgotten: u64,
    pub forks: u64,
    pub fork_steps: u64,
    pub left: u64,
    pub gone_with_a_queue: u64,
    pub removals: u64,
    pub checkpoints: u64,
    pub rollbacks: u64,
    pub receipts: u64,
    pub reads: u64,
    pub freezes: u64,
    pub faults: u64,
    pub full: u64,
    pub hosts_lost: u64,
    pub power_cuts: u64,
}

macro_rules! each {
    ($of:expr, $with:expr, $do:expr) => {
        each!(@ $of, $with, $do, steps operations claims fenced txns pipelined pipelines_lost publishes shared accepted republished snapshots abandoned locked_out
            moves old_parts_read resolved retired forgotten forks fork_steps left gone_with_a_queue removals
            checkpoints rollbacks receipts reads freezes faults full hosts_lost power_cuts)
    };
    (@ $of:expr, $with:expr, $do:expr, $($name:ident)*) => { $($do(stringify!($name), &mut $of.$name, $with.$name);)* };
}

impl Counts {
    pub fn add(&mut self, other: &Counts) {
        each!(self, other, |_, to: &mut u64, from: u64| *to += from);
    }

    pub fn assert_every_thing_happened(&self) {
        let mut all = self.clone();
        each!(all, self, |name, _: &mut u64, count: u64| assert!(count > 0, "the histories had no {name}"));
    }
}

pub struct World {
    pub random: Random,
    sim: RefCell<SimFs>,
    /// All on one host, or each on its own.
    one_host: bool,
    fault_per_mille: u64,
    freeze_per_mille: u64,
    loss_per_myriad: u64,
    depth: Cell<u32>,
    coordinators: RefCell<Vec<Option<Box<Coordinator>>>>,
    workers: RefCell<Vec<Option<Box<Worker>>>>,
    readers: RefCell<Vec<(SimFs, Store)>>,
    facts: RefCell<Facts>,
    counts: RefCell<Counts>,
    /// Hosts that lost their locks while they lived.
    locked_out: RefCell<Vec<SimFs>>,
    /// Set while the end is checked: nothing fails and no one is frozen.
    quiet: Cell<bool>,
}

thread_local! {
    static WORLD: RefCell<Option<Rc<World>>> = const { RefCell::new(None) };
}

/// Runs the history of a seed.
pub fn run(seed: u64) -> Counts {
    let random = Random::new(seed);
    let sim = SimFs::new(seed);
    let one_host = random.below(3) == 0;
    if random.below(2) == 0 {
        sim.set_stale_ms(1 + random.below(60));
    }
    sim.set_lock_session_ms([0, 50, 5000][random.below(3) as usize]);
    if random.below(2) == 0 {
        sim.set_zeros_ahead(1 + random.below(700));
    }
    let world = Rc::new(World {
        one_host,
        fault_per_mille: [0, 0, 5, 30][random.below(4) as usize],
        freeze_per_mille: [5, 20, 60][random.below(3) as usize],
        loss_per_myriad: [0, 10, 60][random.below(3) as usize],
        random,
        sim: RefCell::new(sim),
        depth: Cell::new(0),
        coordinators: RefCell::default(),
        workers: RefCell::new((0..WORKERS).map(|_| None).collect()),
        readers: RefCell::default(),
        facts: RefCell::default(),
        locked_out: RefCell::default(),
        counts: RefCell::default(),
        quiet: Cell::new(false),
    });
    WORLD.with(|w| *w.borrow_mut() = Some(world.clone()));
    for _ in 0..STEPS {
        world.step();
        if world.sim().is_crashed() {
            world.power_cut();
        }
    }
    world.end();
    World::forget();
    world.counts.take()
}

fn line_of(worker: usize) -> usize {
    usize::from(worker == WORKERS - 1)
}

/// Called before each operation on the volume.
fn before(host: &SimFs, operation: Operation) {
    let Some(world) = WORLD.with(|w| w.borrow().clone()) else { return };
    world.count(|c| c.operations += 1);
    if !world.quiet.get() {
        world.interfere(host, Some(operation));
    }
}

impl World {
    pub fn forget() {
        WORLD.with(|w| *w.borrow_mut() = None);
    }

    pub fn sim(&self) -> SimFs {
        self.sim.borrow().clone()
    }

    pub fn facts(&self) -> RefMut<'_, Facts> {
        self.facts.borrow_mut()
    }

    pub fn count(&self, f: impl FnOnce(&mut Counts)) {
        f(&mut self.counts.borrow_mut());
    }

    pub fn now_ms(&self) -> u64 {
        self.sim.borrow().now_ms()
    }

    pub fn fails(&self) -> bool {
        !self.quiet.get()
    }

    pub fn hooked(&self, sim: &SimFs) -> Arc<dyn Fs> {
        let host = sim.clone();
        hooked(sim, move |operation| before(&host, operation))
    }

    /// A host for a new process.
    fn host(&self) -> SimFs {
        if self.one_host { self.sim() } else { self.sim.borrow().mount() }
    }

    /// A moment in which others may go on, and the host may be lost.
    pub fn pause(&self, host: &SimFs) {
        if !self.quiet.get() {
            self.interfere(host, None);
        }
    }

    fn interfere(&self, host: &SimFs, operation: Option<Operation>) {
        let roll = self.random.below(1000);
        if roll < self.freeze_per_mille && self.depth.get() < FROZEN_IN_EACH_OTHER_MAX && !self.facts_are_borrowed() {
            self.count(|c| c.freezes += 1);
            self.depth.set(self.depth.get() + 1);
            let steps = [1, 3, 12][self.random.below(3) as usize];
            (0..steps).for_each(|_| self.step());
            self.depth.set(self.depth.get() - 1);
        }
        if self.random.below(10_000) < self.loss_per_myriad {
            if std::env::var_os("STRAW_TRACE").is_some() {
                eprintln!("host lost at {operation:?}");
            }
            if self.one_host {
                self.sim().crash_now();
            } else {
                self.count(|c| c.hosts_lost += 1);
                host.host_loss(self.random.next());
            }
        }
        if self.random.below(1000) < self.fault_per_mille {
            self.count(|c| c.faults += 1);
            use Operation::{Create, Remove, Rename, Sync, SyncDir, Write};
            match operation {
                Some(Write | Sync | SyncDir | Rename | Remove | Create) => {
                    let fault = [Fault::NoSpace, Fault::Io][self.random.below(2) as usize];
                    host.fail_at(host.mutations(), fault);
                }
                _ => host.fail_next_look(),
            }
        }
    }

    fn facts_are_borrowed(&self) -> bool {
        self.facts.try_borrow_mut().is_err()
    }

    /// Something happens.
    fn step(&self) {
        if self.sim().is_crashed() {
            return;
        }
        self.count(|c| c.steps += 1);
        self.sim().advance(self.random.below(20));
        let roll = self.random.below(100);
        if std::env::var_os("STRAW_TRACE").is_some() {
            eprintln!("{}step {roll}", ">".repeat(self.depth.get() as usize));
        }
        match roll {
            0..8 => self.start_coordinator(),
            8..14 => self.start_worker(),
            14..54 => {
                let line = self.some_line();
                self.with_coordinator(line, |c| c.step(self));
                self.count(|c| c.fork_steps += line as u64);
            }
            54..88 => self.worker_step(),
            88..95 => self.read(),
            95 | 96 => self.sim().write_back(self.random.next()),
            97 => self.lose_someone(),
            98 => self.lock_someone_out(),
            _ => self.cut(),
        }
    }

    /// One that is used; mostly the run's.
    fn some_line(&self) -> usize {
        let lines = self.facts().in_use();
        let at = usize::from(lines.len() > 1 && self.random.below(3) == 0);
        lines[at]
    }

    fn start_coordinator(&self) {
        let half_left = self.facts().half_left();
        if let Some(line) = half_left {
            leave_again(self, &self.host(), line);
        }
        // Mostly because the one before is over, at times beside it.
        let line = self.some_line();
        let alive = self.coordinators.borrow().iter().flatten().filter(|c| !c.over && c.line == line).count();
        if alive > 0 && self.random.below(4) > 0 {
            return;
        }
        if let Some(new) = Coordinator::start(self, self.host(), line) {
            let mut all = self.coordinators.borrow_mut();
            all.retain(|c| c.as_ref().is_none_or(|c| !c.over));
            all.push(Some(new));
        }
    }

    fn start_worker(&self) {
        let at = self.random.below(WORKERS as u64) as usize;
        if self.workers.borrow()[at].is_none() {
            let new = Worker::start(self, self.host(), &format!("worker-{at}"), line_of(at));
            self.workers.borrow_mut()[at] = new;
        }
    }

    /// Lets someone that is a coordinator, or believes so, act; nobody when all are in the middle of something.
    pub fn with_coordinator<T>(&self, line: usize, act: impl FnOnce(&mut Coordinator) -> T) -> Option<T> {
        let mut coordinator = {
            let mut all = self.coordinators.borrow_mut();
            let free: Vec<usize> =
                (0..all.len()).filter(|i| all[*i].as_ref().is_some_and(|c| c.line == line)).collect();
            all[*self.random.pick(&free)?].take()?
        };
        let done = act(&mut coordinator);
        let mut all = self.coordinators.borrow_mut();
        all.retain(Option::is_some); // places of those that are busy come back with them
        if !coordinator.over {
            all.push(Some(coordinator));
        }
        Some(done)
    }

    fn worker_step(&self) {
        let at = self.random.below(WORKERS as u64) as usize;
        let taken = self.workers.borrow_mut()[at].take();
        let Some(mut worker) = taken else { return };
        worker.step(self);
        let mut all = self.workers.borrow_mut();
        if all[at].is_none() && worker.sim.is_alive() {
            all[at] = Some(worker);
        }
    }

    fn read(&self) {
        if self.readers.borrow().len() < 2 {
            let sim = self.host();
            let Ok(store) = store(self, &sim) else { return };
            self.readers.borrow_mut().push((sim, store));
        }
        let at = self.random.below(self.readers.borrow().len() as u64) as usize;
        let store = self.readers.borrow()[at].1.clone();
        let facts = self.facts();
        let all: Vec<&String> = facts.published.keys().collect();
        let Some(submission) = self.random.pick(&all) else { return };
        let Some(refs) = facts.published[*submission].first() else { return };
        facts.check_read(&store, submission, refs, || true);
        drop(facts);
        self.count(|c| c.reads += 1);
        if self.random.below(16) == 0 {
            self.readers.borrow_mut().remove(at);
        }
    }

    fn lose_someone(&self) {
        if self.one_host {
            // The process is killed; its host, and what it had not synced, live on.
            let all = &mut *self.coordinators.borrow_mut();
            all.retain(Option::is_some);
            all.pop();
            return;
        }
        let lost = match self.random.below(2) {
            0 => self.coordinators.borrow_mut().iter_mut().find_map(Option::take).map(|c| c.sim.clone()),
            _ => self.workers.borrow_mut().iter_mut().find_map(Option::take).map(|w| w.sim.clone()),
        };
        if let Some(host) = lost {
            self.count(|c| c.hosts_lost += 1);
            host.host_loss(self.random.next());
        }
    }

    /// A host whose session with the volume ends while it is frozen: it wakes up and writes on.
    fn lock_someone_out(&self) {
        let of_workers = self.workers.borrow().iter().flatten().map(|w| w.sim.clone()).next();
        let host = of_workers.or_else(|| self.coordinators.borrow().iter().flatten().map(|c| c.sim.clone()).next());
        if let Some(host) = host {
            self.count(|c| c.locked_out += 1);
            host.lose_locks();
            self.locked_out.borrow_mut().push(host);
        }
    }

    pub fn was_locked_out(&self, host: &SimFs) -> bool {
        self.locked_out.borrow().iter().any(|one| one.is_host_of(host))
    }

    fn cut(&self) {
        if self.random.below(3) == 0 {
            self.sim().crash_now();
        }
    }

    /// All that was running is gone, and the volume comes back with what was durable.
    fn power_cut(&self) {
        self.count(|c| c.power_cuts += 1);
        self.coordinators.borrow_mut().clear();
        self.workers.borrow_mut().iter_mut().for_each(|w| *w = None);
        self.readers.borrow_mut().clear();
        let after = self.sim().power_loss(self.random.next());
        *self.sim.borrow_mut() = after;
    }

    /// Everything stops; what is left is checked as it is, and again after the work has gone on a little.
    fn end(&self) {
        self.quiet.set(true);
        self.sim().clear_faults();
        if self.random.below(2) == 0 {
            self.power_cut();
        } else {
            self.coordinators.borrow_mut().clear();
            self.workers.borrow_mut().iter_mut().for_each(|w| *w = None);
        }
        let errors = verify(&self.sim(), "/run").map(|v| v.errors).unwrap_or_default();
        assert_eq!(errors, [], "a crash is not damage");
        for line in (0..LINES).filter(|line| self.facts().leaving[*line]) {
            leave_again(self, &self.host(), line);
            assert!(self.facts().left[line], "a quiet volume lets it leave");
        }
        let start = |line| Coordinator::start(self, self.host(), line).expect("a quiet volume is claimed");
        let lines = self.facts().in_use();
        let mut coordinators: Vec<_> = lines.iter().map(|line| start(*line)).collect();
        self.check(&coordinators[0].store);
        for step in 0..20 {
            let at = step % coordinators.len();
            coordinators[at].step(self);
        }
        coordinators.iter_mut().for_each(|c| c.accepts_new_work(self));
        for at in 0..WORKERS {
            Worker::start(self, self.host(), &format!("worker-{at}"), line_of(at))
                .expect("a quiet volume has its receipts");
        }
        drop(coordinators);
        self.power_cut();
        let lines = self.facts().in_use();
        let coordinators: Vec<_> = lines.iter().map(|line| start(*line)).collect();
        self.check(&coordinators[0].store);
        assert_eq!(inspect(&self.sim(), "/run").unwrap().errors, []);
    }

    fn check(&self, store: &Store) {
        let facts = self.facts();
        let (used, left): (Vec<usize>, Vec<usize>) = (0..LINES).partition(|line| !facts.leaving[*line]);
        for r in used.iter().flat_map(|line| facts.lines[*line].model.live_refs()) {
            store.read(r).expect("durable state refers to it");
        }
        for r in left.iter().flat_map(|line| facts.lines[*line].model.live_refs()) {
            let gone = matches!(store.read(r), Err(Error::PackMissing { .. }));
            self.count(|c| c.gone_with_a_queue += u64::from(gone));
            assert!(!gone || facts.is_retired(std::slice::from_ref(r)), "the queue that stays had not given it up");
        }
        for (line, r) in
            used.iter().flat_map(|line| facts.published.values().flatten().flatten().map(move |r| (line, r)))
        {
            let to = facts.lines[*line].model.resolve(r);
            if to != *r {
                store.read(&to).expect("a record that was moved is where it is said to be");
                self.count(|c| c.resolved += 1);
            }
        }
        for (submission, all) in &facts.published {
            all.iter().for_each(|refs| facts.check_read(store, submission, refs, || false));
        }
    }
}
