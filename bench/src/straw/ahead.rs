//! Reading ahead: batches while the one before is used, and the columns of one batch side by side.

use std::hint::black_box;
use std::time::Duration;

use anyhow::{Context, Result};
use straw::{ReadAhead, Record, Ref, Store, Tensor};

use super::calls::Calls;
use super::{Case, KIB, noise, record};
use crate::line::Lines;
use crate::rounds::{by_turns, rate, seconds};

/// From the page cache, and as if each read waited for a network.
const PLACES: [(&str, u64); 2] = [("page cache", 0), ("1 ms a read", 1)];
const BATCHES: usize = 12;
const RECORDS: usize = 8;
const BYTES: usize = 256 * KIB;
/// The columns of a batch that a trainer's rank reads.
const COLUMNS: usize = 8;
const THREADS: usize = 4;
const AHEAD_BYTES: u64 = 64 << 20;

/// Both, against the same reads one after the other.
pub fn run(case: &Case, lines: &mut Lines) -> Result<()> {
    if !case.wants("read_ahead") {
        return Ok(());
    }
    for (place, wait_ms) in PLACES {
        let fs = Calls::waiting(Duration::from_millis(wait_ms)).fs();
        let store = Store::open(fs, case.dir.join(format!("ahead-{wait_ms}")))?;
        batches(case, lines, &store, place)?;
        columns(case, lines, &store, place)?;
    }
    Ok(())
}

/// Takes about as long as to read them.
fn used(records: &[Record]) {
    for bytes in records.iter().flat_map(|record| &record.tensors).map(|t| t.tensor.bytes()) {
        for _ in 0..3 {
            black_box(crc32c::crc32c(black_box(bytes)));
        }
    }
}

fn batches(case: &Case, lines: &mut Lines, store: &Store, place: &str) -> Result<()> {
    let writer = store.writer("bench")?;
    let payload = vec![record(BYTES)?; RECORDS];
    let publish = |i| writer.publish(&format!("batch-{i}"), &payload);
    let batches: Vec<Vec<Ref>> = (0..BATCHES).map(publish).collect::<straw::Result<_>>()?;
    let times = by_turns(
        case.options.rounds,
        vec![
            Box::new(|| {
                seconds(|| {
                    let ahead = ReadAhead::start(store, 1, AHEAD_BYTES)?;
                    let mut later = batches.iter().cloned();
                    later.by_ref().take(1).for_each(|batch| ahead.want_records(batch));
                    while let Some(batch) = ahead.take() {
                        let batch = batch?;
                        later.by_ref().take(1).for_each(|batch| ahead.want_records(batch));
                        used(&batch);
                    }
                    Ok(())
                })
            }),
            Box::new(|| {
                seconds(|| {
                    for batch in &batches {
                        used(&store.read_many(batch)?);
                    }
                    Ok(())
                })
            }),
        ],
    )?;
    let line = rate("read_ahead", format!("batches, {place}"), BATCHES as f64, "batches/s", &times[0]);
    lines.add(line.against("read, then use", &times[0], &times[1]))
}

fn columns(case: &Case, lines: &mut Lines, store: &Store, place: &str) -> Result<()> {
    let rows = (BYTES / 4) as u64;
    let values: Vec<i32> = noise(BYTES).chunks_exact(4).map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    let tensor = Tensor::from_vec(&[rows], values)?;
    let batch = (0..COLUMNS).fold(Record::new("{}"), |batch, i| batch.with(format!("{i}"), tensor.clone()));
    let at = store.writer("bench")?.publish("columns", &[batch])?.remove(0);
    let times = by_turns(
        case.options.rounds,
        vec![
            Box::new(|| {
                seconds(|| {
                    let ahead: ReadAhead<Tensor> = ReadAhead::start(store, THREADS, AHEAD_BYTES)?;
                    for i in 0..COLUMNS {
                        let at = at.clone();
                        ahead.want(BYTES as u64, move |store| store.read_rows(&at, &format!("{i}"), 0..rows));
                    }
                    for _ in 0..COLUMNS {
                        black_box(ahead.take().context("it was asked")??.to_vec::<i32>()?);
                    }
                    Ok(())
                })
            }),
            Box::new(|| {
                seconds(|| {
                    for i in 0..COLUMNS {
                        black_box(store.read_rows(&at, &format!("{i}"), 0..rows)?.to_vec::<i32>()?);
                    }
                    Ok(())
                })
            }),
        ],
    )?;
    let line = rate("read_ahead", format!("columns, {place}"), 1.0, "batches/s", &times[0]);
    lines.add(line.against("one after the other", &times[0], &times[1]))
}
