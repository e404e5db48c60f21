//! What the child does beside its run: it goes back to a checkpoint, forks, and archives.

use std::sync::atomic::Ordering::SeqCst;

use straw::queue::{Completion, NewTask, TaskId};
use straw::{Archive, Collector, Coordinator, Error, Journal, RealFs, Writer, queue};

use crate::child::{Child, FORKS, say};
use crate::{forks, record};

/// Forks, and archives, that are there at a time.
const FEW: usize = 2;

impl Child {
    /// The state is that of the newest checkpoint again.
    pub fn go_back(&self) {
        let newest = self.commit(|queue| Ok((vec![], queue.checkpoints().map(|(name, _)| name.to_owned()).max())));
        let Some(name) = newest else { return };
        let back = self.times_back.load(SeqCst) + 1;
        say(&format!("going-back {name} {back}"));
        self.commit(|queue| {
            let op = queue.rollback(&name)?;
            self.times_back.store(back, SeqCst);
            Ok((vec![op], ()))
        });
        say("went-back");
    }

    /// Forks the newest checkpoint, or goes on where an earlier process was interrupted.
    pub fn fork(&self, turn: u64) {
        let held = self.commit(|queue| Ok((vec![], queue.forks().next().map(|(f, c)| (f.to_owned(), c.to_owned())))));
        let newest = self.commit(|queue| Ok((vec![], queue.checkpoints().map(|(name, _)| name.to_owned()).max())));
        let (name, checkpoint) = match (held, newest) {
            (Some(held), _) => held,
            (None, Some(newest)) => {
                let name = format!("fork-{:06}-{turn:06}", self.epoch);
                self.commit(|queue| Ok((vec![queue.hold_for(&name, &newest)?], ())));
                (name, newest)
            }
            (None, None) => return,
        };
        self.store.register(&name).unwrap();
        let state = self.commit(|queue| Ok((vec![], postcard::to_stdvec(&queue.fork(&checkpoint)?).unwrap())));
        Journal::begin(RealFs::new(), self.dir.join(&name), "forker", &state).unwrap();
        say(&format!("forked {name}"));
        self.commit(|queue| Ok((queue.end_hold(&name).into_iter().collect(), ())));
    }

    /// Each fork finishes a task and gives up what it does not need; the oldest leaves when there are too many.
    pub fn work_in_forks(&self) {
        let held = self.commit(|queue| Ok((vec![], queue.forks().map(|(f, _)| f.to_owned()).collect::<Vec<_>>())));
        let mut begun: Vec<String> = forks(&self.dir).into_iter().filter(|name| !held.contains(name)).collect();
        if begun.len() > FEW {
            self.leave(&begun.remove(0));
        }
        begun.iter().for_each(|name| self.work_in(name));
    }

    fn work_in(&self, name: &str) {
        let member = match self.store.register(name) {
            Err(Error::QueueLeft { .. }) => return self.clear(name), // an earlier process was interrupted
            member => member.unwrap(),
        };
        let of_fork = Coordinator::claim(RealFs::new(), self.dir.join(name), "forks-owner").unwrap();
        let task = self.number(FORKS);
        let submission = format!("{task}-of-{name}");
        let writer = self.store.writer("forker").unwrap();
        let refs = writer.publish(&submission, &[record(task)]).unwrap();
        say(&format!("fork-completing {name} {task} {submission}"));
        let new = NewTask { id: TaskId(task), input: b"row".to_vec(), attempts_max: 3 };
        let submitted = of_fork.commit(|queue| Ok((vec![queue.submit(vec![new])?], ())));
        match submitted {
            Err(Error::Refused(queue::Refused::TaskExists(_))) => return, // of the same moment
            done => done.unwrap(),
        }
        let done = of_fork.commit(|queue| match queue.offer(TaskId(task), &submission, &refs)? {
            Completion::Accept(op) => Ok((vec![op], ())),
            other => panic!("a fresh result: {other:?}"),
        });
        done.unwrap();
        say(&format!("fork-completed {name} {task} {submission}"));
        writer.seal();
        // Its own journal says what it gave up; the run may need the files still.
        let packs = self.store.packs().unwrap();
        let mut collector = Collector::new(0);
        let retired = of_fork.commit(|queue| {
            let chosen = collector.candidates(&packs, queue, 0);
            let retired = queue.retired().iter().cloned().chain(chosen.iter().cloned()).collect();
            Ok((vec![queue.retire(&chosen)?], retired))
        });
        if member.remove(&retired.unwrap()).unwrap() > 0 {
            say("freed");
        }
    }

    fn leave(&self, name: &str) {
        say(&format!("leaving {name}"));
        match self.store.register(name) {
            Err(Error::QueueLeft { .. }) => {}
            member => {
                member.unwrap().leave().unwrap();
                say(&format!("left {name}"));
            }
        }
        self.clear(name);
    }

    fn clear(&self, name: &str) {
        std::fs::remove_dir_all(self.dir.join(name)).unwrap();
    }

    /// Archives what was accepted last, and lets go of the oldest archive when there are too many.
    pub fn archive(&self, turn: u64, writer: &Writer) {
        let name = format!("{:06}-{turn:06}", self.epoch);
        let groups = self.commit(|queue| {
            let of = |a: &queue::Accepted| (a.task.0, a.result[0].clone());
            Ok((vec![], queue.accepted().map(|(_, a)| of(a)).take(16).collect::<Vec<_>>()))
        });
        let entry = |(task, reference): &(u64, straw::Ref)| straw::Entry {
            key: task.to_be_bytes().to_vec(),
            part: 0,
            reference: reference.clone(),
        };
        let entries: Vec<straw::Entry> = groups.iter().map(entry).collect();
        if !entries.is_empty() {
            let tasks: Vec<String> = groups.iter().map(|(task, _)| task.to_string()).collect();
            say(&format!("archiving {name} {}", tasks.join(",")));
            let index = Archive::write(writer, &format!("archive-{name}"), &entries).unwrap();
            self.commit(|queue| Ok((Archive::hold(queue, &name, &index, &entries)?, ())));
            say(&format!("archived {name}"));
        }
        let held = self.commit(|queue| {
            let of = |owner: &str| owner.strip_prefix("archive/").and_then(|o| o.split('/').next()).map(str::to_owned);
            Ok((vec![], queue.owners().filter_map(|(owner, _)| of(owner)).collect::<Vec<String>>()))
        });
        if let Some(oldest) = held.first().filter(|_| held.len() > FEW) {
            say(&format!("releasing {oldest}"));
            self.commit(|queue| Ok((Archive::release(queue, oldest), ())));
            say("released");
        }
    }
}
