//! Store, journal and queue against the raw file system.
//!
//! The floor of a durable write is one `write` and one `fdatasync` of the same bytes on the same file system; of a read, one
//! `pread`. Counts of system calls come first: they are the same on every machine.

mod ahead;
mod beside;
mod calls;
mod coordinator;
mod floor;
mod group_commit;
mod peer;
mod publish;
mod queue;
mod read;
mod recovery;

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use straw::{RealFs, Record, Store, Tensor};

use crate::Options;
use crate::line::{Line, Lines};
use beside::Place;
use peer::{NAME, Peer};

/// Measures everything of `straw`; what counts also in `juicefs`, a folder on such a mount.
pub fn run(options: &Options, tasks: usize, juicefs: Option<&Path>) -> Result<()> {
    let mut lines = Lines::begin(&options.out, "straw")?;
    let scratch = tempfile::Builder::new().prefix("straw-").tempdir_in(&options.out)?;
    let peer = Peer::start(&options.out)?.map(RefCell::new);
    if let Some(peer) = &peer {
        lines.add(Line::new(NAME, peer.borrow_mut().version()?, 1.0, "peer"))?;
    }
    for (dir, juicefs) in [(Some(scratch.path()), false), (juicefs, true)] {
        if let Some(dir) = dir {
            let place = Place { options, dir: dir.join("beside"), juicefs, peer: peer.as_ref() };
            beside::run(&place, &mut lines, tasks)?;
        }
    }
    drop(peer);
    let case = Case { options, dir: scratch.path() };
    publish::counts(&case, &mut lines)?;
    publish::run(&case, &mut lines)?;
    group_commit::run(&case, &mut lines)?;
    read::run(&case, &mut lines)?;
    ahead::run(&case, &mut lines)?;
    queue::run(&case, &mut lines)?;
    recovery::run(&case, &mut lines, tasks)
}

/// Where and how to measure.
struct Case<'a> {
    options: &'a Options,
    dir: &'a Path,
}

impl Case<'_> {
    fn wants(&self, bench: &str) -> bool {
        self.options.wants(bench)
    }

    fn store(&self, name: &str) -> Result<Store> {
        Ok(Store::open(RealFs::new() as Arc<dyn straw::Fs>, self.dir.join(name))?)
    }
}

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Bytes that do not compress.
fn noise(len: usize) -> Vec<u8> {
    let mut x = 0x9E37_79B9_7F4A_7C15u64 ^ len as u64;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        bytes.extend_from_slice(&x.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// A record of one tensor of `len` bytes.
fn record(len: usize) -> Result<Record> {
    Ok(Record::new("{}").with("t", Tensor::from_vec(&[len as u64], noise(len))?))
}

fn size(len: usize) -> String {
    if len.is_multiple_of(MIB) { format!("{} MiB", len / MIB) } else { format!("{} KiB", len / KIB) }
}
