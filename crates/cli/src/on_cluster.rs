//! A run that is not on this machine: `kubectl-thresh` beside this binary shows it. This one knows no cluster.

use std::{
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, anyhow};

use crate::{args::Which, find_run::find_run};

const NAME: &str = "kubectl-thresh";

/// The state folder that is meant. When the run is not on this machine but may be on a cluster, this does not return:
/// `kubectl-thresh` takes over with the very same arguments.
///
/// # Errors
/// Says what there is instead.
pub fn find_here_or_hand_over(which: &Which) -> Result<PathBuf> {
    if which.namespace.is_some() {
        let helper = beside().context(format!(
            "{NAME} is not beside thresh: only it knows clusters\n  fix: cargo build --release -p {NAME}"
        ))?;
        return Err(hand_over(&helper));
    }
    let missing = match find_run(which.run.as_deref()) {
        Ok(state) => return Ok(state),
        Err(missing) => missing,
    };
    match (&which.run, beside()) {
        (Some(run), Some(helper)) if is_a_name(run) && knows_a_cluster() => Err(hand_over(&helper)),
        _ => Err(missing),
    }
}

/// Only returns if it fails.
fn hand_over(helper: &Path) -> anyhow::Error {
    let failed = Command::new(helper).args(std::env::args_os().skip(1)).exec();
    anyhow!(failed).context(helper.display().to_string())
}

fn beside() -> Option<PathBuf> {
    let helper = std::env::current_exe().ok()?.parent()?.join(NAME);
    helper.is_file().then_some(helper)
}

/// No path.
fn is_a_name(run: &str) -> bool {
    !run.contains(['/', '.'])
}

fn knows_a_cluster() -> bool {
    let home = || std::env::var_os("HOME").is_some_and(|home| Path::new(&home).join(".kube/config").is_file());
    std::env::var_os("KUBECONFIG").is_some_and(|value| !value.is_empty()) || home()
}
