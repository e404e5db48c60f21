//! Watches the manifest's file: saving it is `kubectl apply`.
//!
//! Editors write in several steps (truncate and write, or a new file renamed over the old one), so a change counts only when
//! the file has been the same for a whole poll.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// What tells one state of a file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Signature {
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
}

fn signature(path: &Path) -> Option<Signature> {
    let meta = fs::metadata(path).ok()?;
    Some(Signature { inode: meta.ino(), bytes: meta.len(), modified: (meta.mtime(), meta.mtime_nsec()) })
}

/// A watched file.
#[derive(Debug)]
pub struct ManifestWatch {
    path: PathBuf,
    text: String,
    taken: Option<Signature>,
    moving: Option<Signature>,
}

impl ManifestWatch {
    /// Watches `path`, whose content so far is `text`.
    #[must_use]
    pub fn new(path: &Path, text: &str) -> Self {
        // No signature yet: what was saved between reading and now is found by the first polls.
        Self { path: path.into(), text: text.into(), taken: None, moving: None }
    }

    /// Looks at the file; returns its text when it has been changed and has come to rest. Call it a few times a second.
    pub fn poll(&mut self) -> Option<String> {
        // No file: an editor is between removing and renaming, or the user moved it. Nothing is deleted because of that.
        let now = signature(&self.path)?;
        if self.taken == Some(now) {
            self.moving = None;
            return None;
        }
        if self.moving != Some(now) {
            self.moving = Some(now);
            return None;
        }
        let text = fs::read_to_string(&self.path).ok()?;
        if signature(&self.path) != Some(now) {
            return None;
        }
        self.taken = Some(now);
        self.moving = None;
        if text == self.text {
            return None;
        }
        self.text.clone_from(&text);
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_taken_once_and_only_when_the_file_has_come_to_rest() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.yaml");
        fs::write(&path, "one").unwrap();
        let mut watch = ManifestWatch::new(&path, "one");
        for _ in 0..3 {
            assert_eq!(watch.poll(), None);
        }
        fs::write(&path, "t").unwrap();
        assert_eq!(watch.poll(), None, "it may still be written");
        fs::write(&path, "two, longer").unwrap();
        assert_eq!(watch.poll(), None, "it was still being written");
        assert_eq!(watch.poll().as_deref(), Some("two, longer"));
        assert_eq!(watch.poll(), None);
    }

    #[test]
    fn a_file_that_is_replaced_or_away_for_a_moment_is_no_change_until_it_differs() {
        let folder = tempfile::tempdir().unwrap();
        let (path, new) = (folder.path().join("a.yaml"), folder.path().join("new"));
        fs::write(&path, "one").unwrap();
        let mut watch = ManifestWatch::new(&path, "one");
        fs::remove_file(&path).unwrap();
        assert_eq!(watch.poll(), None);
        fs::write(&new, "one").unwrap();
        fs::rename(&new, &path).unwrap();
        assert_eq!((watch.poll(), watch.poll()), (None, None), "touched, not changed");
        fs::write(&new, "two").unwrap();
        fs::rename(&new, &path).unwrap();
        assert_eq!((watch.poll(), watch.poll()), (None, Some("two".into())));
    }

    #[test]
    fn what_was_saved_before_the_watch_began_is_not_missed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.yaml");
        fs::write(&path, "two").unwrap();
        let mut watch = ManifestWatch::new(&path, "one");
        assert_eq!((watch.poll(), watch.poll()), (None, Some("two".into())));
    }
}
