//! `thresh straw inspect` and `thresh straw verify`

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use local::status_file::StatusFile;
use serde_json::json;
use straw::{Inspection, RealFs, inspect};

use crate::{
    FAILED,
    args::{Output, Straw, StrawFolder},
    display::say,
    find_run::run_dir_of,
    soundness::Soundness,
};

const NOT_SOUND: &str = "not sound\n  \
    fix: restore the files named above from a copy; if only tiles or weights are damaged, an earlier commit may be whole\n  \
    (`thresh hf export` checks what it reads), and `thresh straw inspect` shows what is there";

/// Describes or checks a store.
pub fn straw(command: Straw) -> Result<u8> {
    match command {
        Straw::Inspect(args) => {
            let folder = store_of(&args)?;
            let found = inspect(&*RealFs::new(), &folder).with_context(|| folder.display().to_string())?;
            show(&args, &found, None)
        }
        Straw::Verify(args) => {
            let found = Soundness::of(&store_of(&args)?)?;
            show(&args, &found.store, Some(&found))
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

/// Shows what was found; `verified` where it was also checked.
fn show(args: &StrawFolder, found: &Inspection, verified: Option<&Soundness>) -> Result<u8> {
    let sound = verified.map_or(found.errors.is_empty(), Soundness::is_sound);
    let rules = verified.and_then(|verified| verified.rules.as_ref());
    if args.output == Output::Json {
        let named = verified.map(|verified| verified.named);
        say(&json!({"sound": sound, "store": found, "rules": rules, "named": named}).to_string());
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
    }
    if let Some(Soundness { named, rules: Some(_), .. }) = verified {
        say(&format!(
            "named    {}, {} and {} that the journal names were read and are whole",
            counted(named.records, "record"),
            counted(named.commits, "commit"),
            counted(named.weights, "folder") + " of weights",
        ));
    }
    match verified {
        Some(verified) => verified.complaints().iter().for_each(|complaint| say(complaint)),
        None => found
            .errors
            .iter()
            .for_each(|one| say(&format!("damage   {} at byte {}: {}", one.file, one.offset, one.what))),
    }
    say(if sound { "sound" } else { NOT_SOUND });
    Ok(if sound { 0 } else { FAILED })
}
