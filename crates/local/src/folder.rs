//! The state folder of one run: who holds it, where things lie in it, and how files in it are replaced.

use std::{
    fs::{self, File, OpenOptions},
    io::{Read, Seek, Write},
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, flock};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    error::{At, Error, Result},
    full_disk,
};

/// An open state folder. One process holds it at a time; the lock goes with the process, however it ends.
#[derive(Debug)]
pub struct Folder {
    root: PathBuf,
    _lock: File,
}

impl Folder {
    /// Creates the folder if need be and locks it.
    ///
    /// # Errors
    /// [`Error::Busy`] when another process holds it, [`Error::NoState`] when it cannot be created.
    pub fn open(root: &Path) -> Result<Self> {
        fs::create_dir_all(root).map_err(|source| Error::NoState { path: root.into(), source })?;
        let root = root.canonicalize().at("find", root)?;
        let path = root.join("lock");
        let mut lock =
            OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&path).at("open", &path)?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            let mut pid = String::new();
            lock.read_to_string(&mut pid).at("read", &path)?;
            let pid = if pid.trim().is_empty() { "unknown".into() } else { pid.trim().into() };
            return Err(Error::Busy { path: root, pid });
        }
        lock.set_len(0).at("write", &path)?;
        lock.rewind().at("write", &path)?;
        write!(lock, "{}", std::process::id()).at("write", &path)?;
        for sub in ["objects", "logs", "pods", "volumes"] {
            let path = root.join(sub);
            fs::create_dir_all(&path).at("create", &path)?;
        }
        Ok(Self { root, _lock: lock })
    }

    /// Pid of the process that holds `root`, if one does.
    #[must_use]
    pub fn holder(root: &Path) -> Option<u32> {
        let lock = File::open(root.join("lock")).ok()?;
        if flock(&lock, FlockOperation::NonBlockingLockShared).is_ok() {
            return None;
        }
        fs::read_to_string(root.join("lock")).ok()?.trim().parse().ok()
    }

    /// The folder itself, absolute.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where the API objects are kept.
    #[must_use]
    pub fn objects(&self) -> PathBuf {
        self.root.join("objects")
    }

    /// Log file of a pod's container (the first container has the pod's name alone).
    #[must_use]
    pub fn log(&self, pod: &str, container: Option<&str>) -> PathBuf {
        match container {
            None => self.root.join("logs").join(format!("{pod}.log")),
            Some(container) => self.root.join("logs").join(format!("{pod}.{container}.log")),
        }
    }

    /// Scratch of a pod: its config files, secrets and empty folders. A successor of the same name has its own.
    #[must_use]
    pub fn pod(&self, pod: &str, uid: &str) -> PathBuf {
        self.root.join("pods").join(format!("{pod}.{}", uid.get(..8).unwrap_or(uid)))
    }

    /// Default folder of a claim.
    #[must_use]
    pub fn volume(&self, claim: &str) -> PathBuf {
        self.root.join("volumes").join(claim)
    }

    /// Name resolution for the processes of this run.
    #[must_use]
    pub fn hosts(&self) -> PathBuf {
        self.root.join("hosts")
    }

    /// Processes started and not yet seen to end.
    #[must_use]
    pub fn processes(&self) -> PathBuf {
        self.root.join("processes.json")
    }
}

/// Replaces a file in one step: a reader, and a crash, meet the old content or the new, never a part. A full disk is waited
/// for.
///
/// # Errors
/// [`Error::File`].
pub fn replace(path: &Path, content: &[u8]) -> Result<()> {
    full_disk::wait_for_room(|| try_replace(path, content))
}

/// [`replace`] for what may as well not be written: it does not wait.
///
/// # Errors
/// [`Error::File`].
pub fn try_replace(path: &Path, content: &[u8]) -> Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let temporary = PathBuf::from(temporary);
    let mut file = File::create(&temporary).at("create", &temporary)?;
    file.write_all(content).at("write", &temporary)?;
    file.sync_data().at("write", &temporary)?;
    fs::rename(&temporary, path).at("write", path)?;
    File::open(folder).and_then(|folder| folder.sync_all()).at("write", folder)
}

/// [`replace`] with pretty JSON.
///
/// # Errors
/// [`Error::File`].
pub fn replace_json<T: Serialize>(path: &Path, value: &T) -> Result<()> {
    replace(path, &pretty(path, value)?)
}

/// [`try_replace`] with pretty JSON.
///
/// # Errors
/// [`Error::File`].
pub fn try_replace_json<T: Serialize>(path: &Path, value: &T) -> Result<()> {
    try_replace(path, &pretty(path, value)?)
}

fn pretty<T: Serialize>(path: &Path, value: &T) -> Result<Vec<u8>> {
    serde_json::to_vec_pretty(value).map_err(|source| Error::Damaged { path: path.into(), reason: source.to_string() })
}

/// Reads JSON; `None` when there is no such file.
///
/// # Errors
/// [`Error::File`], [`Error::Damaged`].
pub fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(Error::File { doing: "read", path: path.into(), source }),
    };
    serde_json::from_slice(&text)
        .map(Some)
        .map_err(|source| Error::Damaged { path: path.into(), reason: source.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_holds_a_state_folder() {
        let folder = tempfile::tempdir().unwrap();
        let first = Folder::open(folder.path()).unwrap();
        let Err(Error::Busy { pid, .. }) = Folder::open(folder.path()) else {
            panic!("the second open must be refused")
        };
        assert_eq!(pid, std::process::id().to_string());
        assert_eq!(Folder::holder(folder.path()), Some(std::process::id()));
        drop(first);
        assert_eq!(Folder::holder(folder.path()), None);
        Folder::open(folder.path()).unwrap();
    }

    #[test]
    fn a_damaged_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.json");
        fs::write(&path, "{").unwrap();
        let error = read_json::<serde_json::Value>(&path).unwrap_err();
        assert!(error.to_string().contains("x.json is damaged"), "{error}");
        assert!(read_json::<serde_json::Value>(&folder.path().join("none")).unwrap().is_none());
    }
}
