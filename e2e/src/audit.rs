//! Who wrote what, from the API server's own audit log.

use std::{
    io::{Read, Seek, SeekFrom},
    path::PathBuf,
};

use anyhow::Context as _;
use serde_json::Value;

use crate::harness::Skip;

/// A place in the log.
pub struct Mark(u64);

/// A request that changed, or was to change, something.
#[derive(Clone, Debug)]
pub struct Write {
    /// `create`, `patch`, ...
    pub verb: String,
    /// `rljobs`, `rljobs/status`, ...
    pub resource: String,
    /// Name of the object.
    pub name: String,
    /// Who.
    pub user: String,
    /// Path and query: it holds the field manager.
    pub uri: String,
}

fn path() -> PathBuf {
    std::env::var_os("THRESH_E2E_AUDIT")
        .map_or_else(|| PathBuf::from("/var/lib/thresh-e2e/log/audit.jsonl"), PathBuf::from)
}

/// The end of the log as it is now.
///
/// # Errors
/// [`Skip`] when there is no log to read.
pub fn mark() -> anyhow::Result<Mark> {
    let path = path();
    let there = std::fs::metadata(&path);
    Ok(Mark(there.map_err(|e| Skip(format!("no audit log at {} ({e}): set THRESH_E2E_AUDIT", path.display())))?.len()))
}

/// Writes in a namespace since then, but for what kubelets, controllers and garbage collection did, and for Leases and events.
///
/// # Errors
/// When the log cannot be read.
pub fn writes(since: &Mark, namespace: &str) -> anyhow::Result<Vec<Write>> {
    let mut file = std::fs::File::open(path()).context("open the audit log")?;
    file.seek(SeekFrom::Start(since.0))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let mut found = Vec::new();
    // The last line may be half written.
    for entry in text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        let word = |pointer: &str| entry.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (verb, user, resource) = (word("/verb"), word("/user/username"), word("/objectRef/resource"));
        let changes = ["create", "update", "patch", "delete", "deletecollection"].contains(&verb.as_str());
        let ours = word("/objectRef/namespace") == namespace && !user.starts_with("system:node:");
        let controllers = user.starts_with("system:serviceaccount:kube-system:") || user.starts_with("system:kube-");
        if !changes || !ours || controllers || resource == "leases" || resource == "events" {
            continue;
        }
        let sub = word("/objectRef/subresource");
        found.push(Write {
            verb,
            resource: if sub.is_empty() { resource } else { format!("{resource}/{sub}") },
            name: word("/objectRef/name"),
            user,
            uri: word("/requestURI"),
        });
    }
    Ok(found)
}
