//! What the children said, and what must follow from it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use straw::queue::{FORKED, TaskId};
use straw::{Archive, Coordinator, Error, Fs, Queue, RealFs, Ref, Store};

use crate::{forks, record, sheet, sheet_of, store};

/// What was acknowledged of the run's queue and not taken back since.
#[derive(Clone, Debug, Default)]
struct Acknowledged {
    submitted: BTreeSet<u64>,
    completed: BTreeMap<u64, String>,
    /// Batches below this are consumed.
    consumed: u64,
    archives: BTreeSet<String>,
    sheet: Option<u64>,
}

/// A result that was published and perhaps never accepted.
struct Published {
    task: u64,
    owner: String,
    pack: String,
}

#[derive(Default)]
pub struct Said {
    submitting: BTreeSet<u64>,
    completing: BTreeSet<(u64, String)>,
    consuming: u64,
    writing_on: u64,
    acknowledged: Acknowledged,
    /// What had been acknowledged when a checkpoint was begun.
    at: BTreeMap<String, Acknowledged>,
    checkpoint: Option<String>,
    /// How often the last child began to go back.
    times_back: u64,
    /// Of the last child alone, by submission.
    published: BTreeMap<String, Published>,
    retired: BTreeSet<String>,
    /// Tasks of each archive that was ever tried.
    archiving: BTreeMap<String, Vec<u64>>,
    forked: BTreeSet<String>,
    leaving: BTreeSet<String>,
    fork_completing: BTreeMap<String, BTreeSet<(u64, String)>>,
    fork_completed: BTreeMap<String, BTreeSet<(u64, String)>>,
    pub counts: BTreeMap<String, u64>,
}

impl Said {
    pub fn begin_life(&mut self) {
        self.published.clear();
        self.times_back = 0;
    }

    pub fn everything_happened(&self) -> bool {
        let all = [
            "completed",
            "consumed",
            "retired",
            "freed",
            "moved",
            "wrote-on",
            "snapshot",
            "checkpoint",
            "went-back",
            "forked",
            "fork-completed",
            "left",
            "archived",
            "released",
        ];
        all.iter().all(|what| self.counts.contains_key(*what))
    }

    pub fn hear(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |i: usize| words[i].parse::<u64>().unwrap();
        let word = |i: usize| words[i].to_owned();
        match words[0] {
            "submitting" => drop(self.submitting.insert(number(1))),
            "submitted" if self.is_present(number(2)) => drop(self.acknowledged.submitted.insert(number(1))),
            "completing" => drop(self.completing.insert((number(1), word(2)))),
            "completed" if self.is_present(number(3)) => {
                let before = self.acknowledged.completed.insert(number(1), word(2));
                assert_eq!(before, None, "a task is accepted once");
            }
            "published" => {
                let published = Published { task: number(1), owner: word(2), pack: word(4) };
                self.published.insert(word(3), published);
            }
            "consuming" => self.consuming = self.consuming.max(number(1) + 1),
            "consumed" => self.acknowledged.consumed = self.acknowledged.consumed.max(number(1) + 1),
            "writing-on" => self.writing_on = self.writing_on.max(number(1)),
            "wrote-on" => self.acknowledged.sheet = Some(number(1)),
            "retired" => drop(self.retired.insert(word(1))),
            "checkpointing" => drop(self.at.insert(word(1), self.acknowledged.clone())),
            "checkpoint" => {
                // The one before it is the oldest that is still there.
                let oldest = self.checkpoint.replace(word(1));
                self.at.retain(|name, _| oldest.as_ref().is_none_or(|oldest| name >= oldest));
            }
            "going-back" => {
                // Whether or not it came to that, this much is there.
                self.times_back = number(2);
                self.acknowledged = self.at[words[1]].clone();
            }
            "archiving" => {
                let tasks = words[2].split(',').map(|task| task.parse().unwrap()).collect();
                self.archiving.insert(word(1), tasks);
            }
            "archived" => drop(self.acknowledged.archives.insert(word(1))),
            "releasing" => drop(self.acknowledged.archives.remove(words[1])),
            "forked" => drop(self.forked.insert(word(1))),
            "leaving" => drop(self.leaving.insert(word(1))),
            "fork-completing" => drop(self.fork_completing.entry(word(1)).or_default().insert((number(2), word(3)))),
            "fork-completed" => drop(self.fork_completed.entry(word(1)).or_default().insert((number(2), word(3)))),
            "submitted" | "completed" => {} // and taken back
            "ready" | "snapshot" | "freed" | "moved" | "went-back" | "left" | "released" => {}
            _ => return, // the test harness
        }
        *self.counts.entry(words[0].to_owned()).or_default() += 1;
    }

    /// A commit that was behind so many times of going back was taken back by none.
    fn is_present(&self, times_back: u64) -> bool {
        times_back >= self.times_back
    }

    pub fn check(&self, dir: &Path) {
        let fs = RealFs::new();
        let dyn_fs: Arc<dyn Fs> = fs.clone();
        let queue = read(&*dyn_fs, &dir.join("journal"));
        let store = store(dir);
        self.check_queue(&queue);
        self.check_bytes(&queue, &store);
        self.check_archives(&queue, &store);
        self.check_forks(dir, &store);
        let seen = straw::verify(&*fs, dir).unwrap();
        assert_eq!(seen.errors, [], "what is there is sound");
        // A claim finds what was read without one.
        let claimed = Coordinator::claim(dyn_fs, dir.join("journal"), "parent").unwrap();
        assert!(claimed.commit(|found| Ok((vec![], *found == queue))).unwrap(), "a claim finds the same");
    }

    fn check_queue(&self, queue: &Queue) {
        let Acknowledged { submitted, completed, consumed, .. } = &self.acknowledged;
        let over = |task: u64| queue.is_settled(TaskId(task));
        for task in submitted {
            let known = queue.task(TaskId(*task)).is_some() || queue.accepted_of(TaskId(*task)).is_some();
            assert!(known || over(*task), "task {task} was submitted and is not there");
        }
        for (task, submission) in completed {
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
        assert!((*consumed..=self.consuming.max(*consumed)).contains(&queue.consumed().0), "batches");
        self.retired.iter().for_each(|pack| assert!(queue.is_given_up(pack), "{pack} was given up"));
        if let Some(name) = &self.checkpoint {
            let newest = queue.checkpoints().map(|(name, _)| name.to_owned()).max();
            assert!(newest.as_ref() >= Some(name), "checkpoint {name} was taken, {newest:?} is there");
        }
    }

    fn check_bytes(&self, queue: &Queue, store: &Store) {
        check_refs(queue, store);
        let sheets: Vec<(u64, &Ref)> = queue.owners().filter_map(|(o, refs)| Some((sheet_of(o)?, &refs[0]))).collect();
        assert!(sheets.len() <= 1 && sheets.first().map(|(n, _)| *n) >= self.acknowledged.sheet, "{sheets:?}");
        for (version, reference) in sheets {
            assert!(version <= self.writing_on, "sheet {version} comes from nowhere");
            assert_eq!(
                store.read(reference).unwrap(),
                sheet(version),
                "sheet {version}, wherever its blocks were moved"
            );
        }
        let of_tasks = |owner: &str| !Archive::is_owner(owner) && sheet_of(owner).is_none();
        for (owner, refs) in queue.owners().filter(|(owner, _)| of_tasks(owner)) {
            let task: u64 = owner.strip_prefix("keep-").unwrap().parse().unwrap();
            assert_eq!(store.read(&refs[0]).unwrap(), record(task), "{owner}, wherever it was moved");
        }
        // What was published and never accepted is found by whoever comes next.
        let mut receipts = BTreeMap::new();
        for (submission, Published { task, owner, pack }) in &self.published {
            // Going back makes a task pending again whose result was let go of before.
            let taken_back = self.times_back > 0 && queue.is_given_up(pack);
            if queue.task(TaskId(*task)).is_none() || taken_back {
                continue; // accepted, and perhaps gone since
            }
            let of_owner = receipts.entry(owner).or_insert_with(|| store.receipts(owner).unwrap());
            let refs = of_owner.get(submission).unwrap_or_else(|| panic!("{submission} was published"));
            assert_eq!(store.read(&refs[0]).unwrap(), record(*task));
        }
    }

    fn check_archives(&self, queue: &Queue, store: &Store) {
        let of = |owner: &str| owner.strip_prefix("archive/").and_then(|o| o.split('/').next()).map(str::to_owned);
        let held: BTreeSet<String> = queue.owners().filter_map(|(owner, _)| of(owner)).collect();
        let lost: Vec<&String> = self.acknowledged.archives.difference(&held).collect();
        assert!(lost.is_empty(), "archives that were held are gone: {lost:?}");
        for name in held {
            let tasks = self.archiving.get(&name).unwrap_or_else(|| panic!("archive {name} comes from nowhere"));
            let archive = Archive::open(store, Archive::find(queue, &name).unwrap()).unwrap();
            assert_eq!(archive.len(), tasks.len() as u64, "archive {name}");
            let keys: Vec<[u8; 8]> = tasks.iter().map(|task| task.to_be_bytes()).collect();
            for (task, found) in tasks.iter().zip(archive.load(&keys).unwrap()) {
                let [(_, one)] = &found[..] else { panic!("task {task} is {} times in archive {name}", found.len()) };
                assert_eq!(*one, record(*task), "task {task} of archive {name}");
            }
        }
    }

    /// Each fork that began and was not told to leave is whole, whatever became of the run's own state.
    fn check_forks(&self, dir: &Path, store: &Store) {
        let there: BTreeSet<String> = forks(dir).into_iter().collect();
        for name in self.forked.difference(&self.leaving) {
            assert!(there.contains(name), "{name} had begun");
            let fs = RealFs::new();
            let queue = read(&*fs, &dir.join(name));
            assert!(queue.checkpoint_named(FORKED).is_some(), "{name} began with a checkpoint");
            check_refs(&queue, store);
            let accepted = |task: u64| queue.accepted_of(TaskId(task)).map(|(_, group)| group.submission.clone());
            for (task, submission) in self.fork_completed.get(name).into_iter().flatten() {
                assert_eq!(accepted(*task).as_ref(), Some(submission), "task {task} of {name}");
            }
            let tried = self.fork_completing.get(name).cloned().unwrap_or_default();
            for (_, group) in queue.accepted() {
                let one = (group.task.0, group.submission.clone());
                assert!(self.completing.contains(&one) || tried.contains(&one), "{one:?} of {name}: nobody tried it");
            }
            assert_eq!(straw::verify(&*fs, dir.join(name)).unwrap().errors, [], "{name}");
        }
    }
}

fn check_refs(queue: &Queue, store: &Store) {
    let lost = straw::verify_refs(store, queue.live_refs());
    assert!(lost.is_empty(), "what is referred to can be read: {lost:?}");
    for (_, group) in queue.accepted() {
        assert_eq!(store.read(&group.result[0]).unwrap(), record(group.task.0), "task {}", group.task.0);
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
