//! Durable publishes by one writer.

use anyhow::Result;
use straw::queue::{Completion, LeaseTerms, NewTask, TaskId};
use straw::{Journal, Queue, Record, Store};

use super::calls::{Calls, Counted};
use super::floor::Appender;
use super::{Case, KIB, MIB, noise, record, size};
use crate::line::{Line, Lines};
use crate::rounds::{by_turns, rate, seconds};

/// (bytes of a record, records of a call, calls of a round)
const PLAN: [(usize, usize, usize); 6] =
    [(4 * KIB, 1, 40), (256 * KIB, 1, 20), (4 * MIB, 1, 6), (4 * KIB, 256, 6), (256 * KIB, 64, 3), (4 * MIB, 8, 2)];

/// Publishes of some sizes, alone and many in one call, against one write and one sync of the same bytes.
pub fn run(case: &Case, lines: &mut Lines) -> Result<()> {
    if !case.wants("publish") {
        return Ok(());
    }
    for (bytes, records, calls) in PLAN {
        let name = if records == 1 { size(bytes) } else { format!("{} x {records} in one call", size(bytes)) };
        let writer = case.store("publish")?.writer("bench")?;
        let payload: Vec<Record> = (0..records).map(|_| record(bytes)).collect::<Result<_>>()?;
        let mut floor = Appender::create(&case.dir.join(format!("publish-floor-{bytes}-{records}")))?;
        let raw = noise(bytes * records);
        let mut n = 0;
        let times = by_turns(
            case.options.rounds,
            vec![
                Box::new(|| {
                    seconds(|| {
                        for _ in 0..calls {
                            n += 1;
                            writer.publish(&format!("s{bytes}-{records}-{n}"), &payload)?;
                        }
                        Ok(())
                    })
                }),
                Box::new(|| seconds(|| (0..calls).try_for_each(|_| floor.append(&raw)))),
            ],
        )?;
        let total = (calls * records) as f64;
        let line = rate("publish", name, total, "records/s", &times[0])
            .against("write+fdatasync", &times[0], &times[1])
            .with("mb_s", bytes as f64 * total / times[0].median() / 1e6);
        lines.add(line)?;
        writer.seal();
        std::fs::remove_dir_all(case.dir.join("publish"))?;
    }
    Ok(())
}

/// Calls to the file system of each step in a task's life, in the steady state.
pub fn counts(case: &Case, lines: &mut Lines) -> Result<()> {
    const TIMES: u64 = 50;
    if !case.wants("calls") {
        return Ok(());
    }
    let calls = Calls::new();
    let fs = calls.fs();
    let store = Store::open(fs.clone(), case.dir.join("calls/packs"))?;
    let writer = store.writer("bench")?;
    let (journal, found) = Journal::claim(fs, case.dir.join("calls/journal"), "bench")?;
    let mut queue = Queue::new();
    queue.begin_epoch(found.epoch);
    let payload = [record(4 * KIB)?];
    let warm = writer.publish("warm", &payload)?;
    store.read(&warm[0])?;
    journal.append(&[b"warm"])?;

    let mut report = |case: &str, before: Counted, calls: &Calls| {
        let now = calls.now();
        let each = |a: u64, b: u64| (b - a) as f64 / TIMES as f64;
        let line = Line::new("calls", case, each(before.syncs, now.syncs), "syncs")
            .with("writes", each(before.writes, now.writes))
            .with("reads", each(before.reads, now.reads))
            .with("name_lookups", each(before.names, now.names));
        lines.add(line)
    };
    let before = calls.now();
    let refs: Vec<_> = (0..TIMES).map(|i| writer.publish(&format!("s{i}"), &payload)).collect::<straw::Result<_>>()?;
    report("publish 1 record", before, &calls)?;
    let before = calls.now();
    refs.iter().try_for_each(|r| store.read(&r[0]).map(drop))?;
    report("read 1 record", before, &calls)?;
    let before = calls.now();
    for i in 0..TIMES {
        let op = queue.submit(vec![NewTask { id: TaskId(i), input: vec![0; 64], attempts_max: 3 }])?;
        journal.append(&[postcard::to_stdvec(&op)?])?;
        queue.apply(&op)?;
    }
    report("submit 1 task", before, &calls)?;
    let before = calls.now();
    let leases = queue.acquire("w", TIMES as usize, 0, LeaseTerms::default());
    report("acquire 1 task", before, &calls)?;
    let before = calls.now();
    for (lease, result) in leases.iter().zip(&refs) {
        if let Completion::Accept(op) =
            queue.complete(lease.task, lease.attempt, &format!("s{}", lease.task.0), result)?
        {
            journal.append(&[postcard::to_stdvec(&op)?])?;
            queue.apply(&op)?;
        }
    }
    report("complete 1 task", before, &calls)
}
