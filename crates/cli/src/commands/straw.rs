//! `thresh straw inspect` and `thresh straw verify`

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use local::status_file::StatusFile;
use serde_json::json;
use straw::{Inspection, RealFs, inspect, verify};

use crate::{
    FAILED,
    args::{Output, Straw, StrawFolder},
    display::say,
    find_run::run_dir_of,
};

/// Describes or checks a store.
pub fn straw(command: Straw) -> Result<u8> {
    match command {
        Straw::Inspect(args) => {
            let folder = store_of(&args)?;
            let found = inspect(&*RealFs::new(), &folder).with_context(|| folder.display().to_string())?;
            show(&args, &found, None)
        }
        Straw::Verify(args) => {
            let folder = store_of(&args)?;
            let fs = RealFs::new();
            let found = verify(&*fs, &folder).with_context(|| folder.display().to_string())?;
            let rules = found.journal.is_some().then(|| rules_of(&folder)).transpose()?;
            show(&args, &found, rules)
        }
    }
}

/// The run's folder, also when its state folder was named.
fn store_of(args: &StrawFolder) -> Result<PathBuf> {
    match StatusFile::read(&args.folder)? {
        Some(status) => run_dir_of(&status).map(Path::to_owned),
        None if args.folder.is_dir() => Ok(args.folder.clone()),
        None => anyhow::bail!(
            "{}: no such folder\n  fix: name a run's folder on its volume, or its state folder",
            args.folder.display()
        ),
    }
}

/// `1 claim`, `2 claims`.
fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Reads the whole journal and checks that everything in it happened once.
fn rules_of(folder: &Path) -> Result<conductor::check::Report> {
    let inside = folder.join("journal");
    let journal = if inside.is_dir() { inside } else { folder.to_owned() };
    let (snapshot, txns) = straw::journal::read(&*RealFs::new(), &journal)?;
    let records = txns.iter().flatten().map(Vec::as_slice);
    conductor::check::journal(snapshot.as_deref(), records)
        .with_context(|| format!("{}: a record cannot be understood", journal.display()))
}

fn show(args: &StrawFolder, found: &Inspection, rules: Option<conductor::check::Report>) -> Result<u8> {
    let sound = found.errors.is_empty() && rules.as_ref().is_none_or(conductor::check::Report::is_sound);
    if args.output == Output::Json {
        say(&json!({"sound": sound, "store": found, "rules": rules}).to_string());
        return Ok(if sound { 0 } else { FAILED });
    }
    for pack in &found.packs {
        say(&format!(
            "pack     {}  owner {}  {} bytes{}  {}  {} of {} bytes  {} never acknowledged",
            pack.name,
            pack.owner,
            pack.bytes,
            if pack.sealed { ", sealed" } else { "" },
            if pack.extents == 1 { "1 publish".to_owned() } else { format!("{} publishes", pack.extents) },
            counted(pack.records, "record"),
            pack.record_bytes,
            counted(pack.gap_bytes, "byte"),
        ));
    }
    if let Some(journal) = &found.journal {
        say(&format!(
            "journal  epoch {}  {}  {}  last transaction {}  {}{}  {}",
            journal.epoch,
            counted(journal.claims.len() as u64, "claim"),
            counted(journal.segments.len() as u64, "segment"),
            journal.last,
            counted(journal.records, "record"),
            if journal.snapshot.is_some() { " after the snapshot" } else { ", no snapshot yet" },
            counted(journal.torn_bytes, "torn byte"),
        ));
        if let Some(snapshot) = &journal.snapshot {
            say(&format!("snapshot {}  up to transaction {}  {} bytes", snapshot.file, snapshot.last, snapshot.bytes));
        }
    }
    if let Some(rules) = &rules {
        say(&format!(
            "rules    {} groups drawn, {} finished, {} in {} batches, {} open;  {} steps committed, {} replayed;  \
             {} doubled, {} lost",
            rules.groups_drawn,
            rules.groups_completed,
            rules.groups_batched,
            rules.batches,
            rules.groups_open,
            rules.steps_committed,
            rules.replays,
            rules.doubled,
            rules.lost,
        ));
        for violation in &rules.violations {
            say(&format!("broken   {violation}"));
        }
    }
    for damage in &found.errors {
        say(&format!("damage   {} at byte {}: {}", damage.file, damage.offset, damage.what));
    }
    say(if sound { "sound" } else { "not sound" });
    Ok(if sound { 0 } else { FAILED })
}
