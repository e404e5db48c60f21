//! `thresh straw inspect` and `thresh straw verify`

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use straw::Inspection;
use straw::mount_probe::{Finding, MountReport, Seen, probe, self_test};

use super::look::Look;
use super::pool::pool_of;
use crate::{
    FAILED,
    args::{Output, StrawFolder, StrawInspect},
    display::say,
    soundness::Soundness,
};

const NOT_SOUND: &str = "not sound\n  \
    fix: restore the files named above from a copy; if only tiles or weights are damaged, an earlier commit may be whole\n  \
    (`thresh hf export` checks what it reads), and `thresh straw inspect` shows what is there";

/// The mount that a store lies on.
struct Ground {
    report: MountReport,
    seen: Option<Seen>,
}

impl Ground {
    fn of(pool: &Path, test: bool) -> Result<Self> {
        let name = || pool.display().to_string();
        let seen = if test { Some(self_test(pool).with_context(name)?) } else { None };
        Ok(Self { report: probe(pool).with_context(name)?, seen })
    }

    fn refusals(&self) -> Vec<Finding> {
        let seen = self.seen.as_ref().and_then(Seen::refusal);
        self.report.refusals.iter().cloned().chain(seen).collect()
    }

    fn json(&self) -> Value {
        json!({
            "mount": self.report.mount, "juicefs": self.report.juicefs, "selfTest": self.seen,
            "refusals": self.refusals(), "warnings": self.report.warnings,
        })
    }

    fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some(mount) = &self.report.mount {
            lines.push(format!("mount    {} at {}{}", mount.kind, mount.point.display(), self.settings()));
        }
        if let Some(seen) = &self.seen {
            lines.push(format!(
                "test     a write and sync of 4 KiB took {:.1} ms; {} by a file opened anew, {} by one opened before",
                1e3 * seen.sync_s,
                if seen.fresh_handle { "seen" } else { "not seen" },
                if seen.old_handle { "seen" } else { "not seen" },
            ));
        }
        let told = |word: &str, finding: &Finding| format!("{word:<9}{}\n  fix: {}", finding.what, finding.fix);
        lines.extend(self.report.warnings.iter().map(|finding| told("warning", finding)));
        lines.extend(self.refusals().iter().map(|finding| told("unsafe", finding)));
        lines
    }

    fn settings(&self) -> String {
        let Some(juicefs) = &self.report.juicefs else { return String::new() };
        let seconds = |nanoseconds: u64| nanoseconds as f64 / 1e9;
        format!(
            "  client {}  writeback {}  open-cache {} s  attr-cache {} s  entry-cache {} s  dir-entry-cache {} s",
            juicefs.version,
            if juicefs.chunk.writeback { "on" } else { "off" },
            seconds(juicefs.meta.open_cache),
            seconds(juicefs.attr_timeout),
            seconds(juicefs.entry_timeout),
            seconds(juicefs.dir_entry_timeout),
        )
    }
}

/// Describes a store and the mount it lies on.
pub fn inspect(args: &StrawInspect) -> Result<u8> {
    let pool = pool_of(&args.folder)?;
    let ground = Ground::of(&pool, args.self_test)?;
    show(&args.folder, &Look::at(&pool)?.found, None, Some(&ground))
}

/// Checks a store.
pub fn verify(args: &StrawFolder) -> Result<u8> {
    let found = Soundness::of(&pool_of(args)?)?;
    show(args, &found.store, Some(&found), None)
}

/// Shows what was found; `verified` where it was also checked.
fn show(args: &StrawFolder, found: &Inspection, verified: Option<&Soundness>, ground: Option<&Ground>) -> Result<u8> {
    let safe = ground.is_none_or(|ground| ground.refusals().is_empty());
    let code = |sound: bool| if sound && safe { 0 } else { FAILED };
    let sound = verified.map_or(found.errors.is_empty(), Soundness::is_sound);
    let rules = verified.and_then(|verified| verified.rules.as_ref());
    if args.output == Output::Json {
        let named = verified.map(|verified| verified.named);
        let mount = ground.map(Ground::json);
        say(&json!({"sound": sound, "store": found, "rules": rules, "named": named, "mount": mount}).to_string());
        return Ok(code(sound));
    }
    for pack in &found.packs {
        say(&format!(
            "pack     {}  owner {}  {} bytes{}  {}  {} of {} bytes{}  {} never acknowledged",
            pack.name,
            pack.owner,
            pack.bytes,
            if pack.sealed { ", sealed" } else { "" },
            if pack.extents == 1 { "1 publish".to_owned() } else { format!("{} publishes", pack.extents) },
            api::count(pack.records, "record"),
            pack.record_bytes,
            if pack.shared_bytes > 0 { format!(", which share {} bytes", pack.shared_bytes) } else { String::new() },
            api::count(pack.gap_bytes, "byte"),
        ));
    }
    if let Some(journal) = &found.journal {
        say(&format!(
            "journal  epoch {}  {}  {}  last transaction {}  {}{}  {}",
            journal.epoch,
            api::count(journal.claims.len(), "claim"),
            api::count(journal.segments.len(), "segment"),
            journal.last,
            api::count(journal.records, "record"),
            if journal.snapshot.is_some() { " after the snapshot" } else { ", no snapshot yet" },
            api::count(journal.torn_bytes, "torn byte"),
        ));
        if let Some(snapshot) = &journal.snapshot {
            say(&format!("snapshot {}  up to transaction {}  {} bytes", snapshot.file, snapshot.last, snapshot.bytes));
        }
    }
    for queue in found.queues.iter().filter(|_| found.queues.len() > 1) {
        let gave_up =
            || format!("uses the packs; gave up {} that others may need", api::count(queue.gave_up.len(), "pack"));
        say(&format!("queue    {}  {}", queue.name, if queue.left { "has left".to_owned() } else { gave_up() }));
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
    if let Some(Soundness { named, rules, .. }) = verified {
        let records = api::count(named.records, "record");
        let all = match rules {
            Some(_) => format!(
                "{records}, {} and {} of weights",
                api::count(named.commits, "commit"),
                api::count(named.weights, "folder")
            ),
            None => records,
        };
        say(&format!("named    {all} that the journal names were read and are whole"));
    }
    match verified {
        Some(verified) => verified.complaints().iter().for_each(|complaint| say(complaint)),
        None => found
            .errors
            .iter()
            .for_each(|one| say(&format!("damage   {} at byte {}: {}", one.file, one.offset, one.what))),
    }
    if found.packs.is_empty() && found.journal.is_none() {
        say("empty    nothing was ever published or journaled here");
    }
    ground.iter().flat_map(|ground| ground.lines()).for_each(|line| say(&line));
    say(match (sound, safe) {
        (true, true) => "sound",
        (true, false) => "sound, and not safe on this mount",
        (false, _) => NOT_SOUND,
    });
    Ok(code(sound))
}
