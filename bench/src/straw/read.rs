//! Reads by reference: whole records and rows of a tensor, from the page cache.

use std::hint::black_box;

use anyhow::{Result, ensure};
use straw::{Record, Ref, Tensor};

use super::floor::Reader;
use super::{Case, KIB, MIB, noise, record, size};
use crate::line::Lines;
use crate::rounds::{by_turns, rate, seconds};

/// (bytes of a record, records, reads of a round)
const PLAN: [(usize, usize, usize); 3] = [(4 * KIB, 1024, 4000), (256 * KIB, 128, 256), (4 * MIB, 16, 16)];
/// The sliced tensor: 8192 rows of 8 KiB.
const ROWS: usize = 8192;
const ROW_BYTES: usize = 8 * KIB;

/// Both, against one `pread` of the same bytes, and against that and a checksum.
pub fn run(case: &Case, lines: &mut Lines) -> Result<()> {
    if case.wants("read") {
        for (bytes, records, reads) in PLAN {
            whole(case, lines, bytes, records, reads)?;
        }
    }
    if case.wants("rows") {
        rows(case, lines)?;
    }
    Ok(())
}

/// A fixed order without any.
fn scattered(count: usize, below: usize) -> Vec<usize> {
    (0..count).map(|i| (i * 7919 + 13) % below).collect()
}

/// Seconds of one read after the other.
fn each(order: &[usize], mut read: impl FnMut(usize) -> Result<()>) -> Result<f64> {
    seconds(|| order.iter().try_for_each(|i| read(*i)))
}

fn whole(case: &Case, lines: &mut Lines, bytes: usize, records: usize, reads: usize) -> Result<()> {
    let store = case.store(&format!("read-{bytes}"))?;
    let writer = store.writer("bench")?;
    let payload = record(bytes)?;
    let mut refs: Vec<Ref> = Vec::new();
    for i in (0..records).step_by(16) {
        let many: Vec<Record> = vec![payload.clone(); 16.min(records - i)];
        refs.extend(writer.publish(&format!("s{i}"), &many)?);
    }
    writer.seal();
    let mapped = store.mapped();
    let floor = Reader::create(&case.dir.join(format!("read-floor-{bytes}")), &noise(bytes), records)?;
    let order = scattered(reads, records);
    let times = by_turns(
        case.options.rounds,
        vec![
            Box::new(|| {
                each(&order, |i| {
                    let read = store.read(&refs[i])?;
                    ensure!(read.tensors.len() == 1, "a record has other tensors");
                    Ok(())
                })
            }),
            Box::new(|| {
                each(&order, |i| {
                    black_box(floor.read(i * bytes, bytes)?);
                    Ok(())
                })
            }),
            Box::new(|| {
                each(&order, |i| {
                    let read = mapped.read(&refs[i])?;
                    // Every cache line is touched.
                    let bytes = read.tensors.first().map(|t| t.tensor.bytes()).unwrap_or_default();
                    black_box(bytes.iter().step_by(64).fold(0u8, |sum, byte| sum ^ byte));
                    Ok(())
                })
            }),
            Box::new(|| {
                each(&order, |i| {
                    black_box(crc32c::crc32c(&floor.read(i * bytes, bytes)?));
                    Ok(())
                })
            }),
        ],
    )?;
    let amount = reads as f64;
    let mb_s = bytes as f64 * amount / times[0].median() / 1e6;
    let line = |peer: &str, i: usize| {
        let line = rate("read", size(bytes), amount, "records/s", &times[0]).with("mb_s", mb_s);
        line.against(peer, &times[0], &times[i])
    };
    lines.add(line("pread", 1))?;
    lines.add(line("pread+CRC-32C", 3))?;
    let line = rate("read_mapped", size(bytes), amount, "records/s", &times[2]);
    lines.add(line.against("read", &times[2], &times[0]))
}

fn rows(case: &Case, lines: &mut Lines) -> Result<()> {
    let store = case.store("rows")?;
    let payload = noise(ROWS * ROW_BYTES);
    let floor = Reader::create(&case.dir.join("rows-floor"), &payload, 1)?;
    let tensor = Tensor::from_vec(&[ROWS as u64, ROW_BYTES as u64], payload)?;
    let at = store.writer("bench")?.publish("s", &[Record::new("{}").with("t", tensor)])?.remove(0);
    for (count, reads) in [(1, 500), (64, 100), (512, 20), (ROWS, 2)] {
        let order = scattered(reads, ROWS - count + 1);
        let bytes = count * ROW_BYTES;
        let times = by_turns(
            case.options.rounds,
            vec![
                Box::new(|| {
                    each(&order, |i| {
                        let rows = store.read_rows(&at, "t", i as u64..(i + count) as u64)?;
                        ensure!(rows.bytes().len() == bytes, "a slice has another length");
                        Ok(())
                    })
                }),
                Box::new(|| {
                    each(&order, |i| {
                        black_box(floor.read(i * ROW_BYTES, bytes)?);
                        Ok(())
                    })
                }),
            ],
        )?;
        let line = rate("read_rows", format!("{count} of {ROWS} x 8 KiB"), reads as f64, "slices/s", &times[0])
            .with("mb_s", (reads * count * ROW_BYTES) as f64 / times[0].median() / 1e6);
        lines.add(line.against("pread", &times[0], &times[1]))?;
    }
    Ok(())
}
