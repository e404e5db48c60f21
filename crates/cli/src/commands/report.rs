//! `thresh report`

use std::path::{Path, PathBuf};

use anyhow::Result;
use control::wire::StepRecord;
use local::{folder, steps};

use crate::{
    FAILED,
    args::Report,
    closing::{Closing, quickstart_line},
    display::say,
    find_run::{find_run, run_dir_of, status_of},
    reward_svg,
};

/// Draws the curve and prints the closing line.
pub fn report(args: Report) -> Result<u8> {
    if let Some(dir) = &args.dir {
        anyhow::ensure!(
            dir.is_dir(),
            "--dir {}: no such folder\n  fix: give runs/UID on the run's volume",
            dir.display()
        );
        let (ok, line) = closing_line(&steps_of(dir)?, args.quickstart_check);
        say(&line);
        return Ok(if ok { 0 } else { FAILED });
    }
    let state = find_run(args.run.as_deref())?;
    let status = status_of(&state)?;
    // Before its conductor has spoken a run need not have a folder.
    let steps = if status.progress.is_some() { steps_of(run_dir_of(&status)?)? } else { Vec::new() };
    if let Some(curve) = draw(&state, &status.name, &steps)? {
        say(&format!("curve {}", curve.display()));
    }
    let (ok, line) = closing_line(&steps, args.quickstart_check);
    say(&line);
    Ok(if ok { 0 } else { FAILED })
}

/// The steps on record; none at all before the first one.
pub fn steps_of(run_dir: &Path) -> Result<Vec<StepRecord>> {
    let path = run_dir.join(steps::FILE);
    if !path.exists() {
        return Ok(Vec::new());
    }
    Ok(steps::read(&path)?)
}

/// Draws `reward.svg` in the state folder; without a step there is nothing to draw.
pub fn draw(state: &Path, name: &str, steps: &[StepRecord]) -> Result<Option<PathBuf>> {
    if steps.is_empty() {
        return Ok(None);
    }
    let path = state.join("reward.svg");
    folder::replace(&path, reward_svg::draw(name, steps)?.as_bytes())?;
    Ok(Some(path))
}

/// The last line, and whether it is a good one.
pub fn closing_line(steps: &[StepRecord], quickstart: bool) -> (bool, String) {
    if quickstart {
        return quickstart_line(steps);
    }
    match Closing::of(steps) {
        Some(closing) => (true, format!("done: {closing}")),
        None => (true, "done: no step of reinforcement is on record".into()),
    }
}
