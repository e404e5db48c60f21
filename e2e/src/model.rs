//! A small model with weights, on the shared volume: engines that serve it can answer before anybody publishes.

use std::{path::Path, process::Command, sync::Mutex};

use anyhow::{Context as _, ensure};

use crate::stage::{repository, volume};

/// Its folder on the volume.
pub const FOLDER: &str = "sort5/with-weights";

static ONCE: Mutex<()> = Mutex::new(());

/// Makes it, once: a run of one step on this machine, exported.
///
/// # Errors
/// When the run or the export fails.
pub fn bring() -> anyhow::Result<()> {
    let _one = ONCE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let there = volume().join(FOLDER);
    if there.join("config.json").is_file() {
        return Ok(());
    }
    let work = repository().join("target/e2e/model");
    let made = work.join("made");
    if !made.join("config.json").is_file() {
        make(&work, &made)?;
    }
    crate::stage::copy(&made, &there)
}

fn make(work: &Path, made: &Path) -> anyhow::Result<()> {
    // What is half made is made again.
    let _ = std::fs::remove_dir_all(work);
    std::fs::create_dir_all(work)?;
    let example = repository().join("examples/chaos");
    crate::stage::copy(&example.join("volumes"), &work.join("volumes"))?;
    let mut job = crate::run::manifest("model", |job| job["spec"]["totalSteps"] = serde_json::json!(1))?;
    job.spec.checkpoint.every_steps = 1;
    let mut manifest = serde_json::to_value(&job)?;
    api::without_nulls(&mut manifest);
    std::fs::write(work.join("rljob.yaml"), manifest.to_string())?;
    thresh(&["run", &work.join("rljob.yaml").to_string_lossy(), "--state", &work.join("state").to_string_lossy()])?;
    let out = made.to_string_lossy().into_owned();
    thresh(&["hf", "export", &work.join("state").to_string_lossy(), "--out", &out])?;
    let model = example.join("volumes/thresh-data/sort5/model");
    for entry in std::fs::read_dir(model)? {
        let entry = entry?;
        let target = made.join(entry.file_name());
        if !target.exists() {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

fn thresh(args: &[&str]) -> anyhow::Result<()> {
    let program = repository().join("target/release/thresh");
    let output = Command::new(&program).args(args).output().with_context(|| program.display().to_string())?;
    ensure!(output.status.success(), "thresh {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}
