//! Which state folder a person means.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

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
        (Some(run), []) => bail!("{run}: no state folder of a run, and none under {}", runs.display()),
        (Some(run), _) => bail!("{run}: no state folder of a run\n  fix: use one of {}", names.join(", ")),
    }
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
        assert!(find_in(&runs, Some("c")).unwrap_err().to_string().contains("use one of a, b"));
    }
}
