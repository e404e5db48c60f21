//! Which folder a person means, and how sizes are shown.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use local::status_file::StatusFile;

use crate::{args::StrawFolder, find_run::run_dir_of};

/// The run's folder, also when its state folder was named; one that holds a store.
pub fn pool_of(args: &StrawFolder) -> Result<PathBuf> {
    let fix = "\n  fix: name a run's folder on its volume (`runs/UID`, with `packs` and `journal` in it), or its state folder";
    match std::fs::metadata(&args.folder) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => bail!("{}: no such folder{fix}", args.folder.display()),
        Err(e) => return Err(e).with_context(|| args.folder.display().to_string()),
        Ok(found) if !found.is_dir() => bail!("{}: it is a file, and a store is a folder{fix}", args.folder.display()),
        Ok(_) => {}
    }
    let folder = match StatusFile::read(&args.folder)? {
        Some(status) => run_dir_of(&status)?.to_owned(),
        None => args.folder.clone(),
    };
    if !is_pool(&folder)? {
        bail!("{}: there is no store here: neither packs nor a journal{fix}", folder.display());
    }
    Ok(folder)
}

/// A folder of a run, or one of packs or of a journal. A run that lost both still has its list of steps.
fn is_pool(folder: &Path) -> Result<bool> {
    let whole = ["packs", "journal"].iter().any(|name| folder.join(name).is_dir());
    if whole || folder.join("steps.jsonl").is_file() {
        return Ok(true);
    }
    let entries = std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let is_ours = |name: &str| {
        name.ends_with(".pack") || name.ends_with(".snap") || name.starts_with("epoch-") || name.starts_with("seg-")
    };
    Ok(entries.flatten().any(|entry| entry.file_name().to_str().is_some_and(is_ours)))
}

/// The journal of a store, if it has one.
pub fn journal_of(pool: &Path) -> Option<PathBuf> {
    let inside = pool.join("journal");
    if inside.is_dir() {
        return Some(inside);
    }
    let is_one = |name: &str| name.starts_with("epoch-") || name.starts_with("seg-");
    let entries = std::fs::read_dir(pool).ok()?;
    entries.flatten().any(|entry| entry.file_name().to_str().is_some_and(is_one)).then(|| pool.to_owned())
}

/// The folder of packs.
pub fn packs_of(pool: &Path) -> PathBuf {
    let inside = pool.join("packs");
    if inside.is_dir() { inside } else { pool.to_owned() }
}

/// Bytes for people: `512 B`, `1.5 KiB`, `20 MiB`.
pub fn size(bytes: u64) -> String {
    let mut value = bytes as f64;
    let mut unit = "B";
    for next in ["KiB", "MiB", "GiB", "TiB"] {
        if value < 1000.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    if unit == "B" || value >= 10.0 { format!("{value:.0} {unit}") } else { format!("{value:.1} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_two_or_three_digits() {
        let shown: Vec<String> = [0, 999, 1000, 1536, 20 << 20, 1023 << 20, 5 << 40].into_iter().map(size).collect();
        assert_eq!(shown, ["0 B", "999 B", "1.0 KiB", "1.5 KiB", "20 MiB", "1.0 GiB", "5.0 TiB"]);
    }
}
