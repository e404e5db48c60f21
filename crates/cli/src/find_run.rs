//! Which state folder a person means, and where what it speaks of lies.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use local::status_file::StatusFile;

/// A folder, a name under `./runs`, or the only run there.
///
/// # Errors
/// Says what there is instead.
pub fn find_run(run: Option<&str>) -> Result<PathBuf> {
    find_in(Path::new("runs"), run)
}

fn find_in(runs: &Path, run: Option<&str>) -> Result<PathBuf> {
    if let Some(run) = run {
        for folder in [PathBuf::from(run), runs.join(run)] {
            if is_state(&folder) {
                return Ok(folder);
            }
        }
    }
    let mut all: Vec<PathBuf> = std::fs::read_dir(runs)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| is_state(path))
        .collect();
    all.sort();
    let names: Vec<String> =
        all.iter().filter_map(|path| path.file_name()).map(|name| name.to_string_lossy().into_owned()).collect();
    match (run, all.as_slice()) {
        (None, [only]) => Ok(only.clone()),
        (None, []) => {
            bail!("no run under {}\n  fix: name a state folder, or start one with `thresh run FILE`", runs.display())
        }
        (None, _) => bail!("several runs under {}: {}\n  fix: name one", runs.display(), names.join(", ")),
        (Some(run), []) => bail!(
            "{run}: {}, and none under {}\n  fix: name the folder that --state named, or start a run with `thresh run FILE`",
            instead(run),
            runs.display()
        ),
        (Some(run), _) => bail!("{run}: {}\n  fix: use one of {}", instead(run), names.join(", ")),
    }
}

/// The folder of that name, or else the state folder of the run of that name under `./runs`.
pub fn folder_or_name(named: PathBuf) -> PathBuf {
    folder_or_name_in(Path::new("runs"), named)
}

fn folder_or_name_in(runs: &Path, named: PathBuf) -> PathBuf {
    let run = runs.join(&named);
    if !named.exists() && is_state(&run) { run } else { named }
}

/// What was named that is no run.
fn instead(run: &str) -> &'static str {
    match Path::new(run) {
        path if path.is_dir() => "this folder holds no run (there is no objects/ in it)",
        path if path.exists() => "a file, where the state folder of a run is wanted",
        _ => "no such folder, nor a run of this name",
    }
}

/// The status file of a state folder.
///
/// # Errors
/// Says where to look when there is none yet.
pub fn status_of(state: &Path) -> Result<StatusFile> {
    StatusFile::read(state)?.with_context(|| {
        format!(
            "{}: not there yet\n  fix: the run has not got that far; look at {}",
            state.join("status.json").display(),
            state.join("logs").display()
        )
    })
}

/// The run's folder on its volume, which must be there.
///
/// # Errors
/// Says what is gone, and what to do.
pub fn run_dir_of(status: &StatusFile) -> Result<&Path> {
    let name = &status.name;
    if let Some(reason) = absent(&status.volume) {
        bail!(
            "{}: the volume of the run {name} is not there: {reason}\n  fix: bring it back to that place; the run's model, \
             journal and commits are on it",
            status.volume.display()
        );
    }
    if let Some(reason) = absent(&status.run_dir) {
        bail!(
            "{}: the folder of the run {name} is not on its volume: {reason}\n  fix: bring it back, or start a new run with \
             another --state folder",
            status.run_dir.display()
        );
    }
    Ok(&status.run_dir)
}

/// Why there is no folder, if there is none.
fn absent(folder: &Path) -> Option<std::io::Error> {
    std::fs::read_dir(folder).err()
}

fn is_state(folder: &Path) -> bool {
    folder.join("objects").is_dir()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_found_by_folder_by_name_or_by_being_the_only_one() {
        let folder = tempfile::tempdir().unwrap();
        let runs = folder.path().join("runs");
        assert!(find_in(&runs, None).unwrap_err().to_string().contains("no run under"));
        std::fs::create_dir_all(runs.join("a/objects")).unwrap();
        assert_eq!(find_in(&runs, None).unwrap(), runs.join("a"));
        std::fs::create_dir_all(runs.join("b/objects")).unwrap();
        assert!(find_in(&runs, None).unwrap_err().to_string().contains("several runs"));
        assert_eq!(find_in(&runs, Some("b")).unwrap(), runs.join("b"));
        let by_path = runs.join("a").display().to_string();
        assert_eq!(find_in(&runs, Some(&by_path)).unwrap(), runs.join("a"));
        let absent = find_in(&runs, Some("c")).unwrap_err().to_string();
        assert!(absent.contains("c: no such folder") && absent.contains("use one of a, b"), "{absent}");
        let other = find_in(&runs, Some(&runs.display().to_string())).unwrap_err().to_string();
        assert!(other.contains("this folder holds no run") && other.contains("use one of a, b"), "{other}");
    }

    #[test]
    fn a_store_is_named_by_its_folder_or_by_its_run() {
        let folder = tempfile::tempdir().unwrap();
        let runs = folder.path().join("runs");
        std::fs::create_dir_all(runs.join("a/objects")).unwrap();
        assert_eq!(folder_or_name_in(&runs, "a".into()), runs.join("a"));
        assert_eq!(folder_or_name_in(&runs, "b".into()), PathBuf::from("b"));
        assert_eq!(folder_or_name_in(&runs, folder.path().to_owned()), folder.path());
    }

    #[test]
    fn a_volume_that_is_gone_is_one_error_with_a_fix_and_the_reason_once() {
        let folder = tempfile::tempdir().unwrap();
        let volume = folder.path().join("volume");
        let status = StatusFile { run_dir: volume.join("runs/u"), volume, name: "r".into(), ..Default::default() };
        let error = format!("{:#}", run_dir_of(&status).unwrap_err());
        assert!(error.contains("the volume of the run r is not there") && error.contains("\n  fix: "), "{error}");
        assert_eq!(error.matches("os error").count(), 1, "{error}");
        std::fs::create_dir_all(&status.volume).unwrap();
        let error = format!("{:#}", run_dir_of(&status).unwrap_err());
        assert!(error.contains("the folder of the run r is not on its volume"), "{error}");
        assert_eq!(error.matches("os error").count(), 1, "{error}");
        std::fs::create_dir_all(&status.run_dir).unwrap();
        assert_eq!(run_dir_of(&status).unwrap(), status.run_dir);
    }
}
