//! A disk that fills up during a save.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use checkpoint::{Checkpoint, Disk, Error, RealDisk, Saved, disk::DiskFile};
use support::{Rank, config, on_ranks};
use tensor::DType;

/// The real file system with so many bytes and no more.
#[derive(Clone)]
struct Quota(Arc<Mutex<Used>>);

struct Used {
    bytes_max: u64,
    files: BTreeMap<PathBuf, u64>,
}

struct QuotaFile {
    quota: Quota,
    path: PathBuf,
    file: Box<dyn DiskFile>,
}

/// What Linux says.
fn enospc() -> io::Error {
    io::Error::from_raw_os_error(28)
}

impl DiskFile for QuotaFile {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let fits = {
            let mut used = self.quota.0.lock().unwrap();
            let room = used.bytes_max.saturating_sub(used.files.values().sum());
            let fits = room.min(bytes.len() as u64);
            *used.files.entry(self.path.clone()).or_default() += fits;
            fits as usize
        };
        self.file.write_all(&bytes[..fits])?;
        if fits == bytes.len() { Ok(()) } else { Err(enospc()) }
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.sync()
    }
}

impl Disk for Quota {
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        RealDisk.create_dir_all(path)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.0.lock().unwrap().files.insert(path.to_owned(), 0);
        Ok(Box::new(QuotaFile { quota: self.clone(), path: path.to_owned(), file: RealDisk.create(path)? }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut used = self.0.lock().unwrap();
        let bytes = used.files.remove(from).unwrap_or(0);
        used.files.insert(to.to_owned(), bytes);
        RealDisk.rename(from, to)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        RealDisk.sync_dir(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.0.lock().unwrap().files.retain(|file, _| !file.starts_with(path));
        RealDisk.remove_dir_all(path)
    }
}

fn save(layout: (usize, usize), disk: &dyn Disk, folder: &Path, step: u64) -> Vec<checkpoint::Result<Saved>> {
    on_ranks(layout, |g| Rank::filled(g, &config(true), DType::F32).save_on(disk, folder, step))
}

fn loads(folder: &Path, saved: &Saved) {
    Checkpoint::open(folder, Some(&saved.index_sha256)).unwrap().verify().unwrap();
    on_ranks((1, 1), |g| {
        let mut rank = Rank::new(g, &config(true), DType::F32);
        rank.load(folder, Some(&saved.index_sha256)).unwrap();
        rank.assert_filled();
    });
}

#[test]
fn a_save_that_fills_the_disk_leaves_the_old_checkpoint_and_nothing_of_its_own() {
    for layout in [(1, 1), (2, 1), (2, 2)] {
        let dir = tempfile::tempdir().unwrap();
        let disk = Quota(Arc::new(Mutex::new(Used { bytes_max: u64::MAX, files: BTreeMap::new() })));
        let (first, second) = (dir.path().join("tiles/step-000001-e1"), dir.path().join("tiles/step-000002-e1"));
        let old = save(layout, &disk, &first, 1).remove(0).unwrap();
        let took: u64 = disk.0.lock().unwrap().files.values().sum();
        // Room for one and a half.
        disk.0.lock().unwrap().bytes_max = took + took / 2;

        let outcomes = save(layout, &disk, &second, 2);
        let text: Vec<String> = outcomes.iter().map(|o| o.as_ref().unwrap_err().to_string()).collect();
        let full = |e: &Error| matches!(e, Error::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull);
        assert!(outcomes.iter().any(|o| full(o.as_ref().unwrap_err())), "{text:?}");
        let reason = |text: &String| text.contains("step-000002-e1") && text.contains("No space left");
        assert!(text.iter().all(reason), "every rank says what was full and where: {text:?}");

        let left: Vec<_> = std::fs::read_dir(dir.path().join("tiles")).unwrap().map(|e| e.unwrap().path()).collect();
        assert_eq!(left, [first.as_path()], "{layout:?}");
        assert_eq!(disk.0.lock().unwrap().files.values().sum::<u64>(), took, "and its room is free again");
        loads(&first, &old);

        // With room made, the same save succeeds in the same folder.
        disk.0.lock().unwrap().bytes_max = u64::MAX;
        let new = save(layout, &disk, &second, 2).remove(0).unwrap();
        loads(&second, &new);
        loads(&first, &old);
    }
}

#[test]
fn the_bytes_of_a_save_are_known_before_it() {
    for dtype in [DType::F32, DType::BF16] {
        for layout in [(1, 1), (2, 2)] {
            let dir = tempfile::tempdir().unwrap();
            let folder = dir.path().join("a");
            let known = on_ranks(layout, |g| {
                let rank = Rank::filled(g, &config(true), dtype);
                (checkpoint::bytes_of_save(&rank.store), rank.save(&folder, 1).unwrap().bytes)
            });
            assert!(known.iter().all(|(expected, bytes)| expected == bytes), "{dtype:?} {layout:?}: {known:?}");
        }
    }
}
