//! Taking a journal over: claim, read, decode, rebuild the queue.

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};
use straw::queue::{BatchId, NewTask, Op, Position, TaskId};
use straw::{Journal, Queue, RealFs};

use super::Case;
use super::coordinator::reference;
use crate::line::Lines;
use crate::rounds::{by_turns, duration};

/// Tasks of one transaction: an epoch of data is submitted in such pages.
const PAGE: usize = 512;

/// Live tasks of two sizes, from the records and from a snapshot, against reading the same files and their checksum.
pub fn run(case: &Case, lines: &mut Lines, tasks: usize) -> Result<()> {
    if !case.wants("recovery") {
        return Ok(());
    }
    for count in [tasks / 10, tasks] {
        let dir = case.dir.join(format!("recovery-{count}"));
        write(&dir, count)?;
        measure(case, lines, &dir, count, "records")?;
        let (journal, queue) = recover(&dir)?;
        journal.snapshot(journal.last(), &postcard::to_stdvec(&queue)?)?;
        drop((journal, queue));
        measure(case, lines, &dir, count, "snapshot")?;
        std::fs::remove_dir_all(&dir)?;
    }
    Ok(())
}

fn write(dir: &Path, count: usize) -> Result<()> {
    let (journal, found) = Journal::claim(RealFs::new(), dir, "bench")?;
    let mut queue = Queue::new();
    queue.begin_epoch(found.epoch);
    let ids: Vec<u64> = (0..count as u64).collect();
    for page in ids.chunks(PAGE) {
        let task = |id: &u64| NewTask { id: TaskId(*id), input: vec![7; 64], attempts_max: 3 };
        let op = queue.submit(page.iter().map(task).collect())?;
        journal.append(&[postcard::to_stdvec(&op)?])?;
        queue.apply(&op)?;
    }
    Ok(())
}

/// Takes a journal over.
pub fn recover(dir: &Path) -> Result<(Journal, Queue)> {
    let (journal, found) = Journal::claim(RealFs::new(), dir, "bench")?;
    let mut queue = Queue::replay(found.snapshot.as_deref(), &found.txns)?;
    queue.begin_epoch(found.epoch);
    Ok((journal, queue))
}

fn measure(case: &Case, lines: &mut Lines, dir: &Path, count: usize, from: &str) -> Result<()> {
    let bytes: u64 = std::fs::read_dir(dir)?.map(|f| Ok(f?.metadata()?.len())).sum::<Result<u64>>()?;
    // What is freed stays with the process, so only the first time shows what is needed.
    let mut grown = 0;
    let times = by_turns(
        case.options.rounds.min(5),
        vec![
            Box::new(|| {
                let before = resident();
                let since = Instant::now();
                let (journal, queue) = recover(dir)?;
                let spent = since.elapsed().as_secs_f64();
                ensure!(queue.tasks_len() == count, "{} of {count} tasks were recovered", queue.tasks_len());
                grown = grown.max(resident().saturating_sub(before));
                drop((journal, queue));
                Ok(spent)
            }),
            Box::new(|| read_all(dir)),
        ],
    )?;
    let mut line = duration("journal_recovery", format!("{count} live tasks, from {from}"), 1.0, &times[0])
        .with("journal_mb", bytes as f64 / 1e6)
        .with("tasks_per_s", count as f64 / times[0].median());
    if from == "records" {
        line = line.with("peak_bytes_per_task", grown as f64 / count as f64);
    }
    lines.add(line.against("read+CRC-32C of its files", &times[0], &times[1]))
}

/// Seconds of reading every file of a folder, and of its checksum.
pub fn read_all(dir: &Path) -> Result<f64> {
    let since = Instant::now();
    let mut crc = 0;
    for file in std::fs::read_dir(dir)? {
        crc ^= crc32c::crc32c(&std::fs::read(file?.path())?);
    }
    std::hint::black_box(crc);
    Ok(since.elapsed().as_secs_f64())
}

/// A journal of tasks that were submitted, completed, put into batches of [`PAGE`] and let go; with the snapshots that a
/// conductor would make, or without any.
pub fn write_finished(dir: &Path, count: usize, snapshots: bool) -> Result<()> {
    const AT_ONCE: usize = 64;
    const SNAPSHOT_BYTES: u64 = 64 << 20;
    let (journal, found) = Journal::claim(RealFs::new(), dir, "bench")?;
    let mut queue = Queue::new();
    queue.begin_epoch(found.epoch);
    let commit = |queue: &mut Queue, ops: &[Op]| -> Result<()> {
        let records: Vec<Vec<u8>> = ops.iter().map(postcard::to_stdvec).collect::<Result<_, _>>()?;
        journal.append(&records)?;
        ops.iter().try_for_each(|op| Ok(queue.apply(op)?))
    };
    let mut batch = BatchId(0);
    for first in (0..count).step_by(PAGE) {
        let ids: Vec<u64> = (first..count.min(first + PAGE)).map(|id| id as u64).collect();
        let task = |id: &u64| NewTask { id: TaskId(*id), input: vec![7; 64], attempts_max: 3 };
        commit(&mut queue, &[Op::Submit { tasks: ids.iter().map(task).collect() }])?;
        for some in ids.chunks(AT_ONCE) {
            let complete = |id: &u64| Op::Complete {
                task: TaskId(*id),
                submission: format!("group-{id}"),
                result: vec![reference(*id)],
                attempt: None,
            };
            commit(&mut queue, &some.iter().map(complete).collect::<Vec<_>>())?;
        }
        let positions = ids.iter().map(|id| Position(*id)).collect();
        let next = BatchId(batch.0 + 1);
        let plan = Op::PlanBatch { batch, positions };
        let ready = Op::BatchReady { batch, payload: vec![reference(0)] };
        commit(&mut queue, &[plan, ready, Op::Consume { batch }, Op::Release { below: next }])?;
        batch = next;
        if snapshots && journal.bytes_since_snapshot() >= SNAPSHOT_BYTES {
            journal.snapshot(journal.last(), &postcard::to_stdvec(&queue)?)?;
        }
    }
    Ok(())
}

/// Bytes of this process in memory now.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    kib.and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) << 10
}
