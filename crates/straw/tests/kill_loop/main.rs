//! A real process on a real folder, killed at random moments, again and again: what it had acknowledged is there, what it had not even
//! tried is not, and all that is there is sound. It goes back to checkpoints, makes forks that leave again, and keeps archives.
//!
//! `STRAW_KILLS` is how often at least (30): it goes on until every kind of thing has happened. `STRAW_KILL_MS` is how long a life may
//! be (150), `STRAW_KILL_SEED` begins the random moments, and `STRAW_KILL_DIR` is where (a temporary folder): on a mount of a shared
//! volume, for instance.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod branches;
mod child;
#[path = "../../src/sim_fs/random.rs"]
mod random;
mod said;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use straw::{Options, RealFs, Record, Store, Tensor};

use random::Random;
use said::Said;

/// Names the folder, for a child.
const FOLDER: &str = "STRAW_KILL_LOOP_CHILD";

fn store(dir: &Path) -> Store {
    // Small packs, so that there is much to seal, to collect and to compact.
    let options = Options { pack_bytes_target: 48 << 10, ..Options::default() };
    Store::open_with(RealFs::new(), dir.join("packs"), options).unwrap()
}

/// What is published for a task: anyone can tell what it must be.
fn record(task: u64) -> Record {
    let rows = task * 37 % 900 + 1;
    let values: Vec<u64> = (0..rows).map(|i| i.wrapping_mul(task)).collect();
    Record::new(format!("task {task}")).with("values", Tensor::from_vec(&[rows], values).unwrap())
}

/// Rows of the sheet: three blocks.
const SHEET_ROWS: u64 = 3 * (64 << 10) / 8;

/// The row that makes version `n` of the sheet, out of the one before it.
fn sheet_row(n: u64) -> u64 {
    n * 7919 % SHEET_ROWS
}

/// The sheet is one record that changes a little with each version: what did not change lies where it was first written.
fn sheet(n: u64) -> Record {
    let mut values: Vec<u64> = (0..SHEET_ROWS).collect();
    (1..=n).for_each(|n| values[sheet_row(n) as usize] = n);
    Record::new("sheet").with("values", Tensor::from_vec(&[SHEET_ROWS], values).unwrap())
}

/// Version of the sheet that an owner's name says.
fn sheet_of(owner: &str) -> Option<u64> {
    owner.strip_prefix("sheet-").map(|n| n.parse().unwrap())
}

/// Folders of forks' journals, by age.
fn forks(dir: &Path) -> Vec<String> {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut forks: Vec<String> = names.filter(|name| name.starts_with("fork-")).collect();
    forks.sort();
    forks
}

/// Does nothing unless it is started by the test below.
#[test]
fn child() {
    if let Some(dir) = std::env::var_os(FOLDER).map(PathBuf::from) {
        child::live(&dir);
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}

/// Starts a child, kills it, and hears what it had said.
fn one_life(dir: &Path, said: &mut Said, moments: &Random) {
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
    let early = *moments.pick(&[true, false, false, false]).unwrap();
    let life_us = if early { 20_000 } else { 1000 * number("STRAW_KILL_MS", 150).max(1) };
    let pause = Duration::from_micros(moments.below(life_us));
    let mut first = Vec::new();
    while !early && !first.ends_with(b"ready\n") && lines.read_until(b'\n', &mut first).unwrap() > 0 {}
    std::thread::sleep(pause);
    let ended = child.try_wait().unwrap();
    child.kill().unwrap();
    let mut rest = first;
    std::io::Read::read_to_end(&mut lines, &mut rest).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(ended.is_none(), "it ended by itself: {}", String::from_utf8_lossy(&output.stderr));
    said.begin_life();
    let text = String::from_utf8(rest).unwrap();
    text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')).for_each(|line| said.hear(line));
}

#[test]
fn what_a_killed_process_acknowledged_is_there_and_nothing_that_it_did_not_try() {
    let temporary = tempfile::tempdir().unwrap();
    let place = std::env::var_os("STRAW_KILL_DIR").map_or_else(|| temporary.path().to_owned(), PathBuf::from);
    let dir = place.join(format!("kill-loop-{:016x}", straw::Fs::unique(&*RealFs::new())));
    std::fs::create_dir(&dir).unwrap();
    let (mut said, moments) = (Said::default(), Random::new(number("STRAW_KILL_SEED", 1)));
    let kills = number("STRAW_KILLS", 30);
    let mut life = 0;
    while life < kills || (life < 20 * kills && !said.everything_happened()) {
        one_life(&dir, &mut said, &moments);
        eprintln!("life {life}: {:?}", said.counts);
        said.check(&dir);
        life += 1;
    }
    assert!(said.everything_happened(), "something never happened in {life} lives: {:?}", said.counts);
    std::fs::remove_dir_all(&dir).unwrap();
}
