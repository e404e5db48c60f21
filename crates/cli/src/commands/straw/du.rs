//! `thresh straw du`

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use serde::Serialize;
use serde_json::json;
use straw::{Inspection, QueueReport, owners::live_bytes, pool::MAIN};

use super::look::Look;
use super::pool::{pool_of, size};
use crate::{
    args::{Output, StrawFolder},
    display::say,
};

/// Packs of one writer.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct OfWriter {
    packs: u64,
    open: u64,
    bytes: u64,
    /// Bytes of records that something needs; nothing where no journal tells.
    live: Option<u64>,
    /// Bytes of packs that nothing needs and that are sealed: what the next collection can give back.
    free: Option<u64>,
    /// Bytes of packs that only other queues of the pool may need.
    for_others: Option<u64>,
}

/// The whole.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Usage {
    writers: BTreeMap<String, OfWriter>,
    journal_bytes: u64,
    snapshot_bytes: u64,
    /// Segments that the newest snapshot covers, or that were never used.
    journal_free: u64,
    /// Other folders of the run: tiles, weights.
    others: BTreeMap<String, u64>,
    total: u64,
}

/// Tells where the bytes of a store are.
pub fn du(args: &StrawFolder) -> Result<u8> {
    let pool = pool_of(args)?;
    let look = Look::at(&pool)?;
    // A journal that cannot be read says nothing of what is needed; the sizes are known all the same.
    let live = look.known().map(live_bytes);
    let usage = usage(&look.found, live.as_ref(), others(&pool));
    if args.output == Output::Json {
        say(&json!(usage).to_string());
        return Ok(0);
    }
    if let Some(Err(error)) = &look.queue {
        say(&format!("what is needed is not known: {error:#}"));
    }
    human(&usage).iter().for_each(|line| say(line));
    look.hint().iter().for_each(|line| say(line));
    Ok(0)
}

fn usage(found: &Inspection, live: Option<&BTreeMap<String, u64>>, others: BTreeMap<String, u64>) -> Usage {
    let mut usage = Usage { others, ..Usage::default() };
    for pack in &found.packs {
        let of = usage.writers.entry(pack.owner.clone()).or_default();
        of.packs += 1;
        of.open += u64::from(!pack.sealed);
        of.bytes += pack.bytes;
        if let Some(live) = live {
            let needed = live.get(&pack.name).copied();
            let unneeded = if needed.is_none() && pack.sealed { pack.bytes } else { 0 };
            let keeps = |queue: &&QueueReport| !queue.left && queue.name != MAIN && !queue.gave_up.contains(&pack.name);
            let kept = found.queues.iter().any(|queue| keeps(&queue));
            *of.live.get_or_insert(0) += needed.unwrap_or(0);
            *of.free.get_or_insert(0) += if kept { 0 } else { unneeded };
            *of.for_others.get_or_insert(0) += if kept { unneeded } else { 0 };
        }
    }
    if let Some(journal) = &found.journal {
        usage.snapshot_bytes = journal.snapshot.as_ref().map_or(0, |snapshot| snapshot.bytes);
        usage.journal_bytes = journal.segments.iter().map(|segment| segment.bytes).sum();
        // Of a damaged segment nothing is used, either: that does not make it superfluous.
        let unused = journal.segments.iter().filter(|s| s.used_bytes == 0 && live.is_some());
        usage.journal_free = unused.map(|s| s.bytes).sum();
    }
    let packs: u64 = usage.writers.values().map(|of| of.bytes).sum();
    usage.total = packs + usage.journal_bytes + usage.snapshot_bytes + usage.others.values().sum::<u64>();
    usage
}

/// Sizes of what else lies in a run's folder; nothing for packs or a journal alone.
fn others(pool: &Path) -> BTreeMap<String, u64> {
    let is_run = ["packs", "journal"].iter().any(|name| pool.join(name).is_dir());
    let entries = std::fs::read_dir(pool).into_iter().flatten().flatten().filter(|_| is_run);
    let sizes = entries.filter_map(|entry| {
        let name = entry.file_name().to_str()?.to_owned();
        (name != "packs" && name != "journal").then(|| (name, bytes_in(&entry.path())))
    });
    sizes.collect()
}

fn bytes_in(path: &Path) -> u64 {
    match path.symlink_metadata() {
        Ok(found) if found.is_dir() => {
            std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| bytes_in(&entry.path())).sum()
        }
        Ok(found) => found.len(),
        Err(_) => 0, // removed meanwhile
    }
}

fn human(usage: &Usage) -> Vec<String> {
    let mut lines = Vec::new();
    for (writer, of) in &usage.writers {
        let open = if of.open == 0 { String::new() } else { format!(", {} open", of.open) };
        let told = |bytes: Option<u64>, what: &str| bytes.map(|bytes| format!("  {} {what}", size(bytes)));
        let some = |bytes: Option<u64>| bytes.filter(|bytes| *bytes > 0);
        let needed: String = [
            told(of.live, "needed"),
            told(some(of.free), "can be given back"),
            told(some(of.for_others), "kept for other queues"),
        ]
        .into_iter()
        .flatten()
        .collect();
        lines.push(format!("{:>9}  packs of {writer}  {}{open}{needed}", size(of.bytes), api::count(of.packs, "pack")));
    }
    if usage.journal_bytes > 0 {
        let free = match usage.journal_free {
            0 => String::new(),
            free => format!("  {} are not needed", size(free)),
        };
        lines.push(format!("{:>9}  journal{free}", size(usage.journal_bytes)));
    }
    if usage.snapshot_bytes > 0 {
        lines.push(format!("{:>9}  snapshot of the journal", size(usage.snapshot_bytes)));
    }
    lines.extend(usage.others.iter().map(|(name, bytes)| format!("{:>9}  {name}", size(*bytes))));
    lines.push(format!("{:>9}  in all", size(usage.total)));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use straw::{JournalReport, PackReport, SegmentReport, SnapshotReport};

    fn pack(name: &str, owner: &str, sealed: bool) -> PackReport {
        PackReport {
            name: name.into(),
            owner: owner.into(),
            bytes: 3 << 20,
            sealed,
            extents: 1,
            records: 1,
            record_bytes: 3 << 20,
            shared_bytes: 0,
            gap_bytes: 0,
        }
    }

    #[test]
    fn what_can_be_given_back_is_what_is_sealed_and_needed_by_nobody() {
        let segment =
            |used_bytes| SegmentReport { file: "s".into(), bytes: 2048, used_bytes, first: 1, frames: 1, txns: 1 };
        let found = Inspection {
            packs: vec![
                pack("w-0", "w", true),
                pack("w-1", "w", true),
                pack("w-2", "w", false),
                pack("x-0", "x", false),
            ],
            journal: Some(JournalReport {
                segments: vec![segment(0), segment(2048)],
                snapshot: Some(SnapshotReport { file: "p".into(), last: 1, bytes: 5000 }),
                ..JournalReport::default()
            }),
            ..Inspection::default()
        };
        let live = BTreeMap::from([("w-1".to_owned(), 1 << 20)]);
        let known = usage(&found, Some(&live), BTreeMap::from([("tiles".to_owned(), 5 << 30)]));
        assert_eq!((known.writers["w"].live, known.writers["w"].free), (Some(1 << 20), Some(3 << 20)));
        insta::assert_snapshot!(human(&known).join("\n"));
        let unknown = usage(&found, None, BTreeMap::new());
        assert_eq!((unknown.writers["w"].live, unknown.writers["w"].free), (None, None));
        assert_eq!((known.journal_free, unknown.journal_free), (2048, 0), "what cannot be read may be needed");
    }
}
