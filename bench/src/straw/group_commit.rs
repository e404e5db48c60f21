//! Many at once: publishers of one writer, and appenders of one journal, share syncs.

use std::path::Path;
use std::sync::Barrier;
use std::time::Instant;

use anyhow::{Result, anyhow};
use straw::{Journal, RealFs, Record};

use super::floor::Appender;
use super::{Case, KIB, noise, record};
use crate::line::Lines;
use crate::rounds::{by_turns, rate};

/// Threads, and calls of each in a round.
const PLAN: [(usize, usize); 4] = [(1, 24), (4, 12), (16, 8), (64, 4)];

/// Both, against as many threads that each append to and sync a file of their own.
pub fn run(case: &Case, lines: &mut Lines) -> Result<()> {
    if !case.wants("group_commit") {
        return Ok(());
    }
    for (threads, calls) in PLAN {
        let name = format!("{threads} at once");
        let amount = (threads * calls) as f64;

        let writer = case.store(&format!("group-{threads}"))?.writer("bench")?;
        let payload: Vec<Record> = vec![record(4 * KIB)?];
        let round = std::sync::atomic::AtomicUsize::new(0);
        let publish = || {
            let round = round.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            at_once(threads, |thread| {
                for i in 0..calls {
                    writer.publish(&format!("s{round}-{thread}-{i}"), &payload)?;
                }
                Ok(())
            })
        };
        let times = by_turns(
            case.options.rounds,
            vec![Box::new(publish), Box::new(floor(case.dir, threads, calls, &noise(4 * KIB), "publish")?)],
        )?;
        let line = rate("publish_group_commit", &name, amount, "records/s", &times[0]);
        lines.add(line.against("write+fdatasync each", &times[0], &times[1]))?;

        let (journal, _) = Journal::claim(RealFs::new(), case.dir.join(format!("group-journal-{threads}")), "bench")?;
        let bytes = noise(512);
        let append = || {
            at_once(threads, |_| {
                for _ in 0..calls {
                    journal.append(&[&bytes])?;
                }
                Ok(())
            })
        };
        let times = by_turns(
            case.options.rounds,
            vec![Box::new(append), Box::new(floor(case.dir, threads, calls, &bytes, "append")?)],
        )?;
        let line = rate("journal_group_commit", &name, amount, "transactions/s", &times[0]);
        lines.add(line.against("write+fdatasync each", &times[0], &times[1]))?;
    }
    Ok(())
}

/// As many threads that each append to and sync a file of their own.
pub fn floor(
    dir: &Path,
    threads: usize,
    calls: usize,
    bytes: &[u8],
    name: &str,
) -> Result<impl FnMut() -> Result<f64> + use<>> {
    let files: Vec<std::sync::Mutex<Appender>> = (0..threads)
        .map(|i| Appender::create(&dir.join(format!("floor-{name}-{threads}-{i}"))).map(std::sync::Mutex::new))
        .collect::<Result<_>>()?;
    let bytes = bytes.to_vec();
    Ok(move || {
        at_once(threads, |thread| {
            let mut file = files[thread].lock().map_err(|_| anyhow!("a thread of the floor died"))?;
            (0..calls).try_for_each(|_| file.append(&bytes))
        })
    })
}

/// Seconds from when all threads stand ready until the last is done.
pub fn at_once(threads: usize, work: impl Fn(usize) -> Result<()> + Sync) -> Result<f64> {
    let ready = Barrier::new(threads + 1);
    std::thread::scope(|scope| {
        let (ready, work) = (&ready, &work);
        let all: Vec<_> = (0..threads)
            .map(|i| {
                scope.spawn(move || {
                    ready.wait();
                    work(i)
                })
            })
            .collect();
        ready.wait();
        let since = Instant::now();
        for thread in all {
            thread.join().map_err(|_| anyhow!("a thread panicked"))??;
        }
        Ok(since.elapsed().as_secs_f64())
    })
}
