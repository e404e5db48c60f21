//! The figures that count, each beside the raw file system and beside straw-queue, by turns: on a local disk, and again on a
//! JuiceFS mount (names with `_juicefs`).
//!
//! `ratio_floor` is ours over raw writes and syncs (or reads) of the same bytes, `ratio_peer` ours over straw-queue; above 1 ours
//! is faster. Both are medians over rounds.

use std::cell::RefCell;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use anyhow::{Result, anyhow, ensure};
use serde_json::{Value, json};
use straw::queue::TaskId;
use straw::{Queue, RealFs, Record, Ref, Store};

use super::coordinator::{self, Owner, reference};
use super::floor::{Appender, Reader};
use super::group_commit::{at_once, floor};
use super::peer::{NAME, Peer};
use super::{KIB, MIB, noise, recovery};
use crate::Options;
use crate::line::{Line, Lines};
use crate::rounds::{Side, Times, by_turns, duration, median, rate, seconds};

/// Workers, or publishers, at once.
const CALLERS: usize = 32;
/// What a publish of one record adds to its bytes, about.
const EXTENT_BYTES: usize = 128;

/// Where to measure.
pub struct Place<'a> {
    /// How and with what.
    pub options: &'a Options,
    /// A folder of our own there.
    pub dir: PathBuf,
    /// It is on JuiceFS.
    pub juicefs: bool,
    /// The peer, where it is installed.
    pub peer: Option<&'a RefCell<Peer>>,
}

/// What a case measured: rounds of ours, of the floor, and of the peer.
type Measured = (Times, Times, Option<Times>);

impl Place<'_> {
    fn wants(&self, bench: &str) -> bool {
        self.options.wants(&self.named(bench))
    }

    fn named(&self, bench: &str) -> String {
        format!("{bench}{}", if self.juicefs { "_juicefs" } else { "" })
    }

    fn store(&self, name: &str) -> Result<Store> {
        Ok(Store::open(RealFs::new() as Arc<dyn straw::Fs>, self.dir.join(name))?)
    }

    fn begin(&self, kind: &str, name: &str, of: Value) -> Result<()> {
        match self.peer {
            Some(peer) => peer.borrow_mut().open(kind, &self.dir.join(format!("{name}-peer")), self.juicefs, of),
            None => Ok(()),
        }
    }

    /// By turns: ours, the floor, and the peer with `round`, whose seconds count `scale` times.
    fn turns<'a>(&'a self, ours: Side<'a>, floor: Side<'a>, round: Value, scale: f64) -> Result<Measured> {
        let mut sides = vec![ours, floor];
        if let Some(peer) = self.peer {
            sides.push(Box::new(move || Ok(peer.borrow_mut().round(round.clone())? * scale)));
        }
        let mut times = by_turns(self.options.rounds, sides)?.into_iter();
        let mut next = || times.next();
        match (next(), next()) {
            (Some(ours), Some(floor)) => Ok((ours, floor, next())),
            _ => Err(anyhow!("two sides took turns")),
        }
    }

    /// Adds both ratios and what the peer left on disk.
    fn line(&self, line: Line, floor_name: &str, (ours, floor, peer): &Measured) -> Result<Line> {
        let mut line = line.against(floor_name, ours, floor);
        line.bench = self.named(&line.bench);
        let to_floor = line.ratio.unwrap_or(f64::NAN);
        line = line.with("ratio_floor", to_floor);
        if let (Some(times), Some(peer)) = (peer, self.peer) {
            let ratios: Vec<f64> = ours.0.iter().zip(&times.0).map(|(a, b)| b / a).collect();
            let (files, bytes) = peer.borrow_mut().usage()?;
            line = line.with("ratio_peer", median(&ratios)).with("beside", NAME);
            line = line.with("peer_files", files).with("peer_bytes", bytes);
        }
        Ok(line)
    }

    /// Removes what a case wrote, so that the next one meets an empty volume.
    fn clear(&self) -> Result<()> {
        std::fs::remove_dir_all(&self.dir)?;
        Ok(std::fs::create_dir_all(&self.dir)?)
    }
}

/// All of them.
pub fn run(place: &Place, lines: &mut Lines, tasks: usize) -> Result<()> {
    std::fs::create_dir_all(&place.dir)?;
    for (bench, bytes, calls) in [("publish_256k", 256 * KIB, 20), ("publish_4m", 4 * MIB, 6)] {
        publish(place, lines, bench, bytes, calls)?;
    }
    callers(place, lines)?;
    cycle(place, lines, "task_cycle", CALLERS, 8)?;
    cycle(place, lines, "task_cycle_1caller", 1, 1)?;
    read(place, lines)?;
    recover(place, lines, tasks)
}

/// A record without tensors or other structure, as the peer's.
fn plain(bytes: usize) -> Record {
    Record::new(noise(bytes))
}

fn publish(place: &Place, lines: &mut Lines, bench: &str, bytes: usize, calls: usize) -> Result<()> {
    if !place.wants(bench) {
        return Ok(());
    }
    place.begin("publish", bench, json!({"bytes": bytes}))?;
    let writer = place.store("ours")?.writer("bench")?;
    let payload = [plain(bytes)];
    let mut raw = Appender::create(&place.dir.join("floor"))?;
    let block = noise(bytes);
    let mut n = 0;
    let ours = Box::new(|| {
        seconds(|| {
            for _ in 0..calls {
                n += 1;
                writer.publish(&format!("s{n}"), &payload)?;
            }
            Ok(())
        })
    });
    let floor = Box::new(|| seconds(|| (0..calls).try_for_each(|_| raw.append(&block))));
    let measured = place.turns(ours, floor, json!({"calls": calls}), 1.0)?;
    writer.seal();
    let line = rate(bench, "", calls as f64, "records/s", &measured.0)
        .with("mb_s", (bytes * calls) as f64 / measured.0.median() / 1e6);
    let line = place.line(line, "write+fdatasync", &measured)?;
    lines.add(with_usage(line, &place.dir.join("ours"), (n * bytes) as f64)?)?;
    place.clear()
}

/// Files that lie there, and bytes on disk for one of payload.
fn with_usage(line: Line, dir: &Path, payload: f64) -> Result<Line> {
    let mut bytes = 0;
    let mut files = 0;
    for entry in std::fs::read_dir(dir)? {
        bytes += entry?.metadata()?.len();
        files += 1;
    }
    let mut line = line.with("files", files).with("write_amplification", bytes as f64 / payload);
    if let Some(theirs) = line.more.remove("peer_bytes").and_then(|bytes| bytes.as_f64()) {
        line = line.with("peer_write_amplification", theirs / payload);
    }
    Ok(line)
}

fn callers(place: &Place, lines: &mut Lines) -> Result<()> {
    let bench = "publish_4k_32callers";
    if !place.wants(bench) {
        return Ok(());
    }
    let calls = if place.juicefs { 2 } else { 8 };
    place.begin("callers", bench, json!({"bytes": 4 * KIB}))?;
    let writer = place.store("ours")?.writer("bench")?;
    let payload = [plain(4 * KIB)];
    let rounds = AtomicUsize::new(0);
    let mut ours: Side<'_> = Box::new(|| {
        let round = rounds.fetch_add(1, Relaxed);
        at_once(CALLERS, |caller| {
            for call in 0..calls {
                writer.publish(&format!("s{round}-{caller}-{call}"), &payload)?;
            }
            Ok(())
        })
    });
    let floor = Box::new(floor(&place.dir, CALLERS, calls, &noise(4 * KIB), "callers")?);
    let measured = place.turns(Box::new(&mut *ours), floor, json!({"calls": calls}), 1.0)?;
    let line = rate(bench, "", (CALLERS * calls) as f64, "records/s", &measured.0);
    let mut line = place.line(line, "write+fdatasync, a file each", &measured)?;
    // What no group commit of these callers can pass: the same bytes with one write and one sync for all of them, by one thread.
    let mut raw = Appender::create(&place.dir.join("floor-of-groups"))?;
    let group = noise(CALLERS * (4 * KIB + EXTENT_BYTES));
    let groups = Box::new(|| seconds(|| (0..calls).try_for_each(|_| raw.append(&group))));
    let again = place.turns(Box::new(&mut *ours), groups, json!({"calls": calls}), 1.0)?;
    let ratios: Vec<f64> = again.0.0.iter().zip(&again.1.0).map(|(ours, floor)| floor / ours).collect();
    line = line.with("ratio_floor_of_groups", median(&ratios));
    line = line.with("floor_of_groups", (CALLERS * calls) as f64 / again.1.median());
    writer.seal();
    let payload = (rounds.load(Relaxed) * CALLERS * calls * 4 * KIB) as f64;
    lines.add(with_usage(line, &place.dir.join("ours"), payload)?)?;
    place.clear()
}

/// Lease, complete, acknowledge: so many workers at once lease and complete `each` tasks, then all are acknowledged together.
fn cycle(place: &Place, lines: &mut Lines, bench: &str, workers: usize, each: usize) -> Result<()> {
    if !place.wants(bench) {
        return Ok(());
    }
    let turns = if workers == 1 { 32 } else { 1 };
    let tasks = workers * each * turns;
    place.begin("cycle", bench, json!({"callers": workers, "each": each}))?;
    let owner = coordinator::begin(&place.dir.join("ours"))?;
    let small = noise(160); // about what a completion appends, framed
    let files: Vec<_> = (0..workers)
        .map(|i| Appender::create(&place.dir.join(format!("floor-{i}"))).map(std::sync::Mutex::new))
        .collect::<Result<_>>()?;
    let append = |worker: usize| -> Result<()> {
        files[worker].lock().map_err(|_| anyhow!("a thread of the floor died"))?.append(&small)
    };
    let ours = Box::new(|| (0..turns).map(|_| turn(&owner, workers, each)).sum());
    let floor = Box::new(|| {
        (0..turns)
            .map(|_| {
                let complete = at_once(workers, |worker| (0..each).try_for_each(|_| append(worker)))?;
                Ok(complete + seconds(|| append(0))?)
            })
            .sum()
    });
    let measured = place.turns(ours, floor, json!({"calls": turns}), 1.0)?;
    drop(owner);
    let line = rate(bench, "", tasks as f64, "tasks/s", &measured.0);
    let line = place.line(line, "write+fdatasync for each completion and acknowledgement", &measured)?;
    let done = (tasks * (place.options.rounds + 1)) as f64;
    let mut bytes = 0;
    for entry in std::fs::read_dir(place.dir.join("ours"))? {
        bytes += entry?.metadata()?.len();
    }
    let mut line = line.with("bytes_per_task", bytes as f64 / done);
    line.more.remove("peer_bytes"); // its results lie beside its journal
    lines.add(line)?;
    place.clear()
}

fn turn(owner: &Owner, workers: usize, each: usize) -> Result<f64> {
    owner.submit((workers * each) as u64)?;
    let leases: Vec<_> = (0..workers).map(|_| std::sync::Mutex::new(Vec::new())).collect();
    let own = |worker: usize| leases[worker].lock().map_err(|_| anyhow!("a worker died"));
    let mut spent = at_once(workers, |worker| {
        let mut leases = own(worker)?;
        let name = format!("w{worker}");
        for _ in 0..each {
            leases.push(owner.lease(&name)?);
        }
        Ok(())
    })?;
    spent += at_once(workers, |worker| {
        let mut leases = own(worker)?;
        for lease in leases.drain(..) {
            owner.complete(&lease, &[reference(lease.task.0)])?;
        }
        Ok(())
    })?;
    Ok(spent + seconds(|| owner.ack())?)
}

fn read(place: &Place, lines: &mut Lines) -> Result<()> {
    let bench = "read_4k";
    if !place.wants(bench) {
        return Ok(());
    }
    // The peer is slow enough that a tenth shows it.
    let (bytes, records, reads, peers) = (4 * KIB, 256, 4000, 400);
    place.begin("read", bench, json!({"bytes": bytes, "records": records}))?;
    let store = place.store("ours")?;
    let writer = store.writer("bench")?;
    let payload = [plain(bytes)];
    let mut refs: Vec<Ref> = Vec::new();
    for i in 0..records {
        refs.extend(writer.publish(&format!("s{i}"), &payload)?);
    }
    let raw = Reader::create(&place.dir.join("floor"), &noise(bytes), records)?;
    let order: Vec<usize> = (0..reads).map(|i| (i * 7919 + 13) % records).collect();
    let ours = || {
        seconds(|| {
            order.iter().try_for_each(|i| {
                let record = store.read(&refs[*i])?;
                ensure!(record.meta.len() == bytes, "a record has another length");
                Ok(())
            })
        })
    };
    let floor = || {
        seconds(|| {
            order.iter().try_for_each(|i| {
                black_box(raw.read(i * bytes, bytes)?);
                Ok(())
            })
        })
    };
    let scale = reads as f64 / peers as f64;
    let measured = place.turns(Box::new(ours), Box::new(floor), json!({"calls": peers}), scale)?;
    let mut line = place.line(rate(bench, "", reads as f64, "records/s", &measured.0), "pread", &measured)?;
    line.more.remove("peer_bytes");
    if place.peer.is_some() {
        let (ours, _, peer) =
            place.turns(Box::new(ours), Box::new(floor), json!({"calls": peers, "session": true}), scale)?;
        let peer = peer.unwrap_or_default();
        let ratios: Vec<f64> = ours.0.iter().zip(&peer.0).map(|(a, b)| b / a).collect();
        line = line.with("ratio_peer_in_a_read_session", median(&ratios));
    }
    lines.add(line)?;
    place.clear()
}

/// A journal with many finished tasks is taken over: with the snapshots that its owner makes, and without any.
fn recover(place: &Place, lines: &mut Lines, tasks: usize) -> Result<()> {
    /// The peer's are fewer: it keeps them all, and its seconds grow with them.
    const PEERS: usize = 2048;
    let benches = [("recover_1m_tasks", true), ("recover_1m_tasks_without_snapshot", false)];
    for (bench, snapshots) in benches.into_iter().filter(|(bench, _)| place.wants(bench)) {
        place.begin("recover", bench, json!({"tasks": PEERS}))?;
        // Written on the local disk: what is measured is to read it.
        let scratch = tempfile::Builder::new().prefix("straw-finished-").tempdir_in(&place.options.out)?;
        let dir = place.dir.join("ours");
        recovery::write_finished(scratch.path(), tasks, snapshots)?;
        std::fs::create_dir_all(&dir)?;
        let mut bytes = 0;
        for entry in std::fs::read_dir(scratch.path())? {
            let entry = entry?;
            bytes += std::fs::copy(entry.path(), dir.join(entry.file_name()))?;
        }
        let ours = Box::new(|| {
            let mut kept = None;
            let spent = seconds(|| {
                kept = Some(recovery::recover(&dir)?);
                Ok(())
            })?;
            let finished = |(_, queue): &(_, Queue)| (0..tasks).all(|id| queue.is_settled(TaskId(id as u64)));
            ensure!(kept.as_ref().is_some_and(finished), "not all of {tasks} finished tasks were recovered");
            Ok(spent)
        });
        let floor = Box::new(|| recovery::read_all(&dir));
        let measured = place.turns(ours, floor, json!({"calls": 1}), tasks as f64 / PEERS as f64)?;
        let line = duration(bench, "", 1.0, &measured.0)
            .with("seconds", measured.0.median())
            .with("tasks", tasks)
            .with("journal_mb", bytes as f64 / 1e6)
            .with("peer_tasks", PEERS);
        let mut line = place.line(line, "read+CRC-32C of its files", &measured)?;
        line.more.remove("peer_bytes");
        lines.add(line)?;
        place.clear()?;
    }
    Ok(())
}
