//! Who still needs which bytes: what keeps a pack from being given back.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::Ref;
use crate::queue::Queue;

/// Why a reference is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Need {
    /// What an unfinished task has so far.
    Task,
    /// A finished group that is in no batch yet.
    Group,
    /// A batch, its groups and what was made of them, until it is released.
    Batch,
    /// An owner of its own name.
    Owner,
}

/// One who needs bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Holder {
    /// Why.
    pub need: Need,
    /// Which one: number of the task or of the batch, or the owner's name.
    pub name: String,
    /// References held, each counted once.
    pub records: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes in each pack, those of blocks that its records share included.
    pub packs: BTreeMap<String, u64>,
}

/// Everyone who needs bytes, by need and then in their order. A record that several need is counted for each of them.
pub fn holders(queue: &Queue) -> Vec<Holder> {
    let mut all: BTreeMap<(Need, u64, String), BTreeSet<&Ref>> = BTreeMap::new();
    let numbered = |need, number: u64| (need, number, number.to_string());
    for task in queue.tasks().filter(|task| !task.parts.is_empty()) {
        all.entry(numbered(Need::Task, task.id.0)).or_default().extend(&task.parts);
    }
    for (_, group) in queue.accepted() {
        let holder = group.batch.map_or(numbered(Need::Group, group.task.0), |batch| numbered(Need::Batch, batch.0));
        all.entry(holder).or_default().extend(&group.result);
    }
    for (id, batch) in queue.batches() {
        all.entry(numbered(Need::Batch, id.0)).or_default().extend(&batch.payload);
    }
    for (name, refs) in queue.owners() {
        all.entry((Need::Owner, 0, name.to_owned())).or_default().extend(refs);
    }
    all.into_iter().map(|((need, _, name), refs)| holder(need, name, &refs)).collect()
}

fn holder(need: Need, name: String, refs: &BTreeSet<&Ref>) -> Holder {
    let mut packs = BTreeMap::new();
    add(&mut packs, refs);
    Holder { need, name, records: refs.len() as u64, bytes: packs.values().sum(), packs }
}

/// Bytes of records that something needs, in each pack. A record that several need is counted once; a block that several records
/// share is counted for each of them.
pub fn live_bytes(queue: &Queue) -> BTreeMap<String, u64> {
    let refs: BTreeSet<&Ref> = queue.live_refs().collect();
    let mut packs = BTreeMap::new();
    add(&mut packs, &refs);
    packs
}

fn add(packs: &mut BTreeMap<String, u64>, refs: &BTreeSet<&Ref>) {
    for (pack, bytes) in refs.iter().flat_map(|r| r.bytes_in_packs()) {
        *packs.entry(pack.to_owned()).or_default() += bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::{BatchId, LeaseTerms, NewTask, Op, Position, TaskId};

    fn record(pack: &str, offset: u64) -> Ref {
        Ref { pack: pack.into(), offset, len: 100, head: 64, ..Ref::default() }
    }

    #[test]
    fn whoever_needs_a_pack_is_named_and_a_shared_record_counts_once_in_it() {
        let mut queue = Queue::new();
        queue.begin_epoch(1);
        let task = |id| NewTask { id: TaskId(id), input: Vec::new(), attempts_max: 3 };
        queue.apply(&Op::Submit { tasks: (0..4).map(task).collect() }).unwrap();
        let done = |id: u64| Op::Complete {
            task: TaskId(id),
            submission: format!("s{id}"),
            result: vec![record("a-0", id * 128)],
            attempt: None,
        };
        for id in 0..2 {
            queue.apply(&done(id)).unwrap();
        }
        queue.apply(&Op::PlanBatch { batch: BatchId(0), positions: vec![Position(0)] }).unwrap();
        queue.apply(&Op::BatchReady { batch: BatchId(0), payload: vec![record("b-0", 0)] }).unwrap();
        let lease = queue.acquire("w", 1, 0, LeaseTerms::default()).remove(0);
        let parts = vec![record("c-0", 0)];
        let class = crate::queue::Class::Partial;
        queue.apply(&Op::Yield { task: lease.task, class, key: None, parts, attempt: lease.attempt }).unwrap();
        queue
            .apply(&Op::Retain { owner: "commit-3".into(), refs: vec![record("b-0", 0), record("b-0", 128)] })
            .unwrap();
        let found: Vec<_> = holders(&queue).into_iter().map(|h| (h.need, h.name, h.records, h.bytes)).collect();
        let expected = [
            (Need::Task, "2", 1, 100),
            (Need::Group, "1", 1, 100),
            (Need::Batch, "0", 2, 200),
            (Need::Owner, "commit-3", 2, 200),
        ];
        assert_eq!(found, expected.map(|(need, name, records, bytes)| (need, name.to_owned(), records, bytes)));
        let live: Vec<_> = live_bytes(&queue).into_iter().collect();
        assert_eq!(live, [("a-0", 200), ("b-0", 200), ("c-0", 100)].map(|(pack, bytes)| (pack.to_owned(), bytes)));
    }
}
