//! Whether the volume can hold a checkpoint, said before the first step rather than at the first save of a long run.

use std::path::Path;

/// What to tell people when the volume has fewer bytes than one checkpoint takes.
pub(crate) fn shortage(needed: u64, available: u64) -> Option<String> {
    (available < needed).then(|| {
        format!(
            "a checkpoint takes {needed} bytes and the volume has {available} left: the first save will not succeed; \
             make room before it, or keep fewer checkpoints"
        )
    })
}

/// Bytes that may still be written below `folder`; nothing when the file system does not say.
pub(crate) fn available(folder: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(folder).ok()?;
    stat.f_bavail.checked_mul(stat.f_frsize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_that_cannot_hold_one_checkpoint_is_said_before_the_first_step() {
        let said = shortage(1000, 500).unwrap();
        assert!(said.contains("1000") && said.contains("500"), "{said}");
        assert_eq!(shortage(1000, 1000), None);
        assert_eq!(shortage(1000, 1500), None, "one and a half is enough to begin with");
        assert!(available(Path::new("/")).is_some_and(|bytes| bytes > 0));
        assert_eq!(available(Path::new("/nowhere at all")), None, "what is not known is not held against the volume");
    }
}
