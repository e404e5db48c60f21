//! A real process on a real folder, killed at random moments, again and again: what it had acknowledged is there, what it had not even
//! tried is not, and all that is there is sound.
//!
//! `STRAW_KILLS` is how often (30), `STRAW_KILL_MS` how long a life may be (150), `STRAW_KILL_SEED` begins the random moments, and
//! `STRAW_KILL_DIR` is where (a temporary folder): on a mount of a shared volume, for instance.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use straw::queue::{BatchId, Completion, LeaseTerms, NewTask, Op, Refused, TaskId};
use straw::{Collector, Coordinator, Error, Fs, Options, Queue, RealFs, Record, Ref, Store, Tensor, Writer, compact};

const FOLDER: &str = "STRAW_KILL_LOOP_CHILD";
/// A child whose parent is gone ends.
const LIFE: Duration = Duration::from_secs(60);

fn store(dir: &Path) -> Store {
    // Small packs, so that there is much to seal, to collect and to compact.
    let options = Options { pack_bytes_target: 48 << 10, ..Options::default() };
    Store::open_with(RealFs::new(), dir.join("packs"), options).unwrap()
}

/// What is published for a task: anyone can tell what it must be.
fn record(task: u64) -> Record {
    let rows = task * 37 % 900 + 1;
    let values: Vec<u64> = (0..rows).map(|i| i * task).collect();
    Record::new(format!("task {task}")).with("values", Tensor::from_vec(&[rows], values).unwrap())
}

// ---- the child

/// One line, written at once: it is in the pipe, or it was never said.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    if out.write_all(format!("{line}\n").as_bytes()).and_then(|()| out.flush()).is_err() {
        std::process::exit(1); // nobody listens any more
    }
}

struct Child {
    coordinator: Coordinator,
    store: Store,
    epoch: u64,
    begun: Instant,
}

impl Child {
    fn now_us(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_micros()).unwrap()
    }

    fn now_ms(&self) -> u64 {
        self.now_us() / 1000
    }

    fn commit<T>(&self, decide: impl FnOnce(&Queue) -> Result<(Vec<Op>, T), Refused>) -> T {
        self.coordinator.commit(decide).unwrap()
    }

    /// Takes tasks, publishes what they give, completes them; adds new ones when there are few.
    fn work(&self, number: usize) {
        let owner = format!("worker-{number}");
        let writer = self.store.writer(&owner).unwrap();
        while self.begun.elapsed() < LIFE {
            let terms = LeaseTerms { per_worker_max: 2, ..LeaseTerms::default() };
            let leases = self.coordinator.lease(|queue| queue.acquire(&owner, 2, self.now_ms(), terms)).unwrap();
            if leases.is_empty() {
                self.submit(number);
            }
            for lease in leases {
                let task = lease.task.0;
                let submission = format!("{task}-of-{}", self.epoch);
                let refs = writer.publish(&submission, &[record(task)]).unwrap();
                say(&format!("published {task} {owner} {submission}"));
                say(&format!("completing {task} {submission}"));
                let done = self.coordinator.commit(|queue| {
                    let Completion::Accept(op) = queue.complete(lease.task, lease.attempt, &submission, &refs)? else {
                        panic!("a task is completed once");
                    };
                    // Some are kept for longer than their batch, so that packs become sparse.
                    let keep = (task % 5 == 0).then(|| queue.retain(&format!("keep-{task:08}"), &refs)).transpose()?;
                    Ok(([op].into_iter().chain(keep).collect(), ()))
                });
                match done {
                    Ok(()) => say(&format!("completed {task} {submission}")),
                    Err(Error::Refused(Refused::PackRetired(pack))) => writer.retired(&pack),
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }

    fn submit(&self, number: usize) {
        // Each worker has numbers of its own, in each epoch; a number that is taken is tried again a little later.
        let moment = (self.now_us() >> 6) & 0xff_ffff;
        let first = self.epoch << 32 | (number as u64) << 24 | moment;
        let ids: Vec<u64> = (first..first + 4).collect();
        ids.iter().for_each(|id| say(&format!("submitting {id}")));
        let task = |id: &u64| NewTask { id: TaskId(*id), input: b"row".to_vec(), attempts_max: 3 };
        let done = self.coordinator.commit(|queue| Ok((vec![queue.submit(ids.iter().map(task).collect())?], ())));
        match done {
            Ok(()) => ids.iter().for_each(|id| say(&format!("submitted {id}"))),
            Err(Error::Refused(Refused::TaskExists(_))) => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// Batches, collects, compacts, and takes snapshots and checkpoints.
    fn govern(&self) {
        let writer = self.store.writer("governor").unwrap();
        let member = self.store.register("main").unwrap();
        let mut collector = Collector::new(0);
        let retired = self.commit(|queue| Ok((vec![], queue.retired().clone())));
        member.remove(&retired).unwrap();
        for turn in 0u64.. {
            if self.begun.elapsed() > LIFE {
                return;
            }
            self.batch(&writer);
            match turn % 6 {
                1 => self.collect(&mut collector, &member),
                3 => self.compact(&writer),
                4 if turn % 12 == 4 => {
                    self.coordinator.snapshot().unwrap();
                    say("snapshot");
                }
                5 => self.checkpoint(turn),
                _ => {}
            }
        }
    }

    fn batch(&self, writer: &Writer) {
        let planned = self.commit(|queue| {
            let positions: Vec<_> = queue.unbatched().map(|(position, _)| position).take(8).collect();
            let batch = queue.next_batch();
            let op = (!positions.is_empty()).then(|| queue.plan_batch(batch, &positions)).transpose()?;
            let keeps: Vec<String> = queue.owners().map(|(owner, _)| owner.to_owned()).collect();
            let old = keeps.iter().take(keeps.len().saturating_sub(24)).filter_map(|owner| queue.release_owner(owner));
            Ok((op.iter().cloned().chain(old).collect(), op.map(|_| batch)))
        });
        // One that a process before has planned, or made ready, goes on from there.
        let (batch, ready) = self.commit(|queue| {
            let next = queue.consumed();
            Ok((vec![], (queue.batch(next).map(|_| next), queue.batch(next).is_some_and(|b| b.ready))))
        });
        let Some(batch) = batch else { return };
        assert!(planned.is_none_or(|planned| planned >= batch));
        if !ready {
            let payload = writer.publish(&format!("batch-{}-of-{}", batch.0, self.epoch), &[record(batch.0)]).unwrap();
            self.commit(|queue| Ok((vec![queue.batch_ready(batch, &payload)?], ())));
        }
        say(&format!("consuming {}", batch.0));
        self.commit(|queue| Ok((queue.ack(batch)?.into_iter().collect(), ())));
        say(&format!("consumed {}", batch.0));
        let below = BatchId(batch.0.saturating_sub(1));
        self.commit(|queue| Ok((vec![queue.release(below.max(queue.released()))?], ())));
    }

    fn collect(&self, collector: &mut Collector, member: &straw::Member) {
        let packs = self.store.packs().unwrap();
        let (chosen, retired) = self.commit(|queue| {
            let chosen = collector.candidates(&packs, queue, self.now_ms());
            let mut ops = vec![queue.retire(&chosen)?];
            ops.extend(collector.horizon(&packs, queue, self.now_ms()).map(|below| queue.forget(below)).transpose()?);
            Ok((ops, (chosen, queue.retired().clone())))
        });
        chosen.iter().for_each(|pack| say(&format!("retired {pack}")));
        let all: BTreeSet<String> = retired.into_iter().chain(chosen).collect();
        if member.remove(&all).unwrap() > 0 {
            say("freed");
        }
    }

    fn compact(&self, writer: &Writer) {
        let packs = self.store.packs().unwrap();
        let sparse = self.commit(|queue| Ok((vec![], compact::sparse(&packs, queue, 70, |_| false))));
        let Some(one) = sparse.into_iter().find(|one| Some(&one.pack) != writer.pack().as_ref()) else { return };
        let moves = compact::copy(&self.store, writer, &one.pack, &one.live).unwrap();
        self.commit(|queue| Ok((vec![queue.move_records(&moves)?], ())));
        say("moved");
    }

    fn checkpoint(&self, turn: u64) {
        let name = format!("{:06}-{turn:06}", self.epoch);
        self.commit(|queue| {
            let old: Vec<String> = queue.checkpoints().map(|(name, _)| name.to_owned()).collect();
            let old = old.iter().take(old.len().saturating_sub(1)).map(|name| queue.drop_checkpoint(name));
            let ops: Result<Vec<Op>, Refused> = [queue.checkpoint(&name, b"model")].into_iter().chain(old).collect();
            Ok((ops?, ()))
        });
        say(&format!("checkpoint {name}"));
    }
}

/// Does nothing unless it is started by the test below.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    let coordinator = Coordinator::claim(RealFs::new(), dir.join("journal"), "child").unwrap();
    let epoch = coordinator.journal().epoch();
    let child = Child { coordinator, store: store(&dir), epoch, begun: Instant::now() };
    say("ready");
    std::thread::scope(|scope| {
        let child = &child;
        (0..3).for_each(|number| drop(scope.spawn(move || child.work(number))));
        child.govern();
    });
}

// ---- the parent

#[derive(Default)]
struct Said {
    submitting: BTreeSet<u64>,
    submitted: BTreeSet<u64>,
    completing: BTreeSet<(u64, String)>,
    completed: BTreeMap<u64, String>,
    /// Of the last child alone: owner by submission.
    published: BTreeMap<String, (u64, String)>,
    consuming: u64,
    consumed: u64,
    retired: BTreeSet<String>,
    checkpoint: Option<String>,
    counts: BTreeMap<String, u64>,
}

impl Said {
    fn hear(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |i: usize| words[i].parse::<u64>().unwrap();
        match words[0] {
            "submitting" => drop(self.submitting.insert(number(1))),
            "submitted" => drop(self.submitted.insert(number(1))),
            "completing" => drop(self.completing.insert((number(1), words[2].to_owned()))),
            "completed" => {
                let before = self.completed.insert(number(1), words[2].to_owned());
                assert_eq!(before, None, "a task is accepted once");
            }
            "published" => drop(self.published.insert(words[3].to_owned(), (number(1), words[2].to_owned()))),
            "consuming" => self.consuming = self.consuming.max(number(1) + 1),
            "consumed" => self.consumed = self.consumed.max(number(1) + 1),
            "retired" => drop(self.retired.insert(words[1].to_owned())),
            "checkpoint" => self.checkpoint = Some(words[1].to_owned()),
            "ready" | "snapshot" | "freed" | "moved" => {}
            _ => return, // the test harness
        }
        *self.counts.entry(words[0].to_owned()).or_default() += 1;
    }

    fn check(&self, dir: &Path) {
        let fs = RealFs::new();
        let dyn_fs: Arc<dyn Fs> = fs.clone();
        let queue = read(&*dyn_fs, &dir.join("journal"));
        let store = store(dir);
        self.check_queue(&queue);
        self.check_bytes(&queue, &store);
        let seen = straw::verify(&*fs, dir).unwrap();
        assert_eq!(seen.errors, [], "what is there is sound");
        // A claim finds what was read without one.
        let claimed = Coordinator::claim(dyn_fs, dir.join("journal"), "parent").unwrap();
        assert!(claimed.commit(|found| Ok((vec![], *found == queue))).unwrap(), "a claim finds the same");
    }

    fn check_queue(&self, queue: &Queue) {
        let over = |task: u64| queue.is_settled(TaskId(task));
        for task in &self.submitted {
            let known = queue.task(TaskId(*task)).is_some() || queue.accepted_of(TaskId(*task)).is_some();
            assert!(known || over(*task), "task {task} was submitted and is not there");
        }
        for (task, submission) in &self.completed {
            let accepted = queue.accepted_of(TaskId(*task)).map(|(_, group)| group.submission.as_str());
            assert!(accepted == Some(submission) || accepted.is_none() && over(*task), "task {task} was completed");
        }
        for (_, group) in queue.accepted() {
            let tried = (group.task.0, group.submission.clone());
            assert!(self.completing.contains(&tried), "{tried:?} is accepted, and nobody had tried it");
            assert_eq!(group.result.len(), 1);
        }
        let known = queue.tasks().map(|task| task.id).chain(queue.accepted().map(|(_, group)| group.task));
        known.for_each(|id| assert!(self.submitting.contains(&id.0), "task {} comes from nowhere", id.0));
        assert!((self.consumed..=self.consuming.max(self.consumed)).contains(&queue.consumed().0), "batches");
        self.retired.iter().for_each(|pack| assert!(queue.is_given_up(pack), "{pack} was given up"));
        if let Some(name) = &self.checkpoint {
            let newest = queue.checkpoints().map(|(name, _)| name.to_owned()).max();
            assert!(newest.as_ref() >= Some(name), "checkpoint {name} was taken, {newest:?} is there");
        }
    }

    fn check_bytes(&self, queue: &Queue, store: &Store) {
        assert_eq!(straw::verify_refs(store, queue.live_refs()).len(), 0, "what is referred to can be read");
        for (_, group) in queue.accepted() {
            assert_eq!(store.read(&group.result[0]).unwrap(), record(group.task.0), "task {}", group.task.0);
        }
        let kept: Vec<(&str, &[Ref])> = queue.owners().collect();
        for (owner, refs) in kept {
            let task: u64 = owner.strip_prefix("keep-").unwrap().parse().unwrap();
            assert_eq!(store.read(&refs[0]).unwrap(), record(task), "{owner}, wherever it was moved");
        }
        // What was published and never accepted is found by whoever comes next.
        let mut receipts = BTreeMap::new();
        for (submission, (task, owner)) in &self.published {
            if queue.task(TaskId(*task)).is_none() {
                continue; // accepted, and perhaps gone since
            }
            let of_owner = receipts.entry(owner).or_insert_with(|| store.receipts(owner).unwrap());
            let refs = of_owner.get(submission).unwrap_or_else(|| panic!("{submission} was published"));
            assert_eq!(store.read(&refs[0]).unwrap(), record(*task));
        }
    }
}

fn read(fs: &dyn Fs, journal: &Path) -> Queue {
    let (snapshot, txns) = match straw::journal::read(fs, journal) {
        Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => (None, Vec::new()),
        found => found.unwrap(),
    };
    let mut queue = snapshot.map_or_else(Queue::new, |bytes| postcard::from_bytes(&bytes).unwrap());
    txns.iter().flatten().for_each(|op| queue.apply_owned(postcard::from_bytes(op).unwrap()).unwrap());
    queue
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Starts a child, kills it, and hears what it had said.
fn one_life(dir: &Path, said: &mut Said, moments: &mut u64) {
    let program = std::env::current_exe().unwrap();
    let mut child = Command::new(program)
        .args(["child", "--exact", "--nocapture", "--test-threads=1"])
        .env(FOLDER, dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    // Now and then it dies as it starts: in the middle of a claim.
    let early = random(moments).is_multiple_of(4);
    let pause = Duration::from_micros(
        random(moments) % if early { 20_000 } else { 1000 * number("STRAW_KILL_MS", 150).max(1) },
    );
    let mut first = Vec::new();
    while !early && !first.ends_with(b"ready\n") && lines.read_until(b'\n', &mut first).unwrap() > 0 {}
    std::thread::sleep(pause);
    let ended = child.try_wait().unwrap();
    child.kill().unwrap();
    let mut rest = first;
    std::io::Read::read_to_end(&mut lines, &mut rest).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(ended.is_none(), "it ended by itself: {}", String::from_utf8_lossy(&output.stderr));
    said.published.clear();
    let text = String::from_utf8(rest).unwrap();
    text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')).for_each(|line| said.hear(line));
}

#[test]
fn what_a_killed_process_acknowledged_is_there_and_nothing_that_it_did_not_try() {
    let temporary = tempfile::tempdir().unwrap();
    let place = std::env::var_os("STRAW_KILL_DIR").map_or_else(|| temporary.path().to_owned(), PathBuf::from);
    let dir = place.join(format!("kill-loop-{:016x}", RealFs::new().unique()));
    std::fs::create_dir(&dir).unwrap();
    let seed = number("STRAW_KILL_SEED", 1).max(1);
    let (mut said, mut moments) = (Said::default(), seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    for life in 0..number("STRAW_KILLS", 30) {
        one_life(&dir, &mut said, &mut moments);
        eprintln!("life {life}: {:?}", said.counts);
        said.check(&dir);
    }
    assert!(!said.completed.is_empty(), "something was done");
    std::fs::remove_dir_all(&dir).unwrap();
}
