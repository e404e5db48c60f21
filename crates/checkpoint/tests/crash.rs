//! A save or a publish that is cut short at every single thing it does to the file system.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use checkpoint::disk::DiskFile;
use checkpoint::{Checkpoint, Disk, ExportTypes, FILE_BYTES_MAX, PublishTo, RealDisk, hf, publish};
use support::{Rank, config, on_ranks};
use tensor::DType;

/// What a power cut may do to what was never synced.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Cut {
    /// The process dies, the machine lives on: everything written is there.
    KillOnly,
    /// Every entry and every byte that was not synced is gone.
    AllLost,
    /// Entries are there, contents are torn in the middle.
    Torn,
    /// Entries and lengths are there, contents are zeros.
    Zeroed,
}

const CUTS: [Cut; 4] = [Cut::KillOnly, Cut::AllLost, Cut::Torn, Cut::Zeroed];

#[derive(Default)]
struct Log {
    operations: usize,
    fail_at: Option<usize>,
    /// Files whose contents are not synced, with the length that is.
    dirty: BTreeMap<PathBuf, u64>,
    /// Entries that their folder's sync has not covered: the new path, and where it was renamed from.
    entries: Vec<(PathBuf, Option<PathBuf>)>,
    names: BTreeSet<&'static str>,
}

/// The real file system up to operation `fail_at`; from then on everything fails.
#[derive(Clone, Default)]
struct CrashDisk(Arc<Mutex<Log>>);

struct CrashFile {
    disk: CrashDisk,
    path: PathBuf,
    file: Box<dyn DiskFile>,
}

impl CrashDisk {
    fn until(fail_at: usize) -> CrashDisk {
        CrashDisk(Arc::new(Mutex::new(Log { fail_at: Some(fail_at), ..Log::default() })))
    }

    fn operation(&self, name: &'static str) -> io::Result<()> {
        let mut log = self.0.lock().unwrap();
        log.operations += 1;
        log.names.insert(name);
        if log.fail_at.is_some_and(|at| log.operations > at) {
            return Err(io::Error::other("the machine is gone"));
        }
        Ok(())
    }

    /// Plays the power cut on a copy of everything, `copy`, of what was done below `root`.
    fn cut(&self, how: Cut, root: &Path, copy: &Path) {
        let log = self.0.lock().unwrap();
        let at = |path: &Path| copy.join(path.strip_prefix(root).unwrap());
        copy_tree(root, copy);
        if how == Cut::KillOnly {
            return;
        }
        if how == Cut::AllLost {
            for (path, from) in log.entries.iter().rev() {
                let path = at(path);
                match from {
                    Some(from) => drop(std::fs::rename(path, at(from))),
                    None if path.is_dir() => drop(std::fs::remove_dir_all(path)),
                    None => drop(std::fs::remove_file(path)),
                }
            }
        }
        for (path, synced) in &log.dirty {
            let Ok(mut bytes) = std::fs::read(at(path)) else { continue };
            let synced = *synced as usize;
            match how {
                Cut::Zeroed => bytes[synced..].fill(0),
                Cut::Torn => bytes.truncate(synced + (bytes.len() - synced) / 2),
                _ => bytes.truncate(synced),
            }
            std::fs::write(at(path), bytes).unwrap();
        }
    }
}

fn copy_tree(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy_tree(&path, &target);
        } else {
            std::fs::copy(&path, &target).unwrap();
        }
    }
}

impl DiskFile for CrashFile {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        if let Err(e) = self.disk.operation("write") {
            // A dying machine gets half of it down.
            let _ = self.file.write_all(&bytes[..bytes.len() / 2]);
            return Err(e);
        }
        self.file.write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.disk.operation("sync")?;
        self.file.sync()?;
        self.disk.0.lock().unwrap().dirty.remove(&self.path);
        Ok(())
    }
}

impl Disk for CrashDisk {
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.operation("create_dir")?;
        let new: Vec<PathBuf> = path.ancestors().take_while(|p| !p.exists()).map(Path::to_owned).collect();
        RealDisk.create_dir_all(path)?;
        self.0.lock().unwrap().entries.extend(new.into_iter().rev().map(|p| (p, None)));
        Ok(())
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.operation("create")?;
        let new = !path.exists();
        let file = RealDisk.create(path)?;
        let mut log = self.0.lock().unwrap();
        log.dirty.insert(path.to_owned(), 0);
        if new {
            log.entries.push((path.to_owned(), None));
        }
        Ok(Box::new(CrashFile { disk: self.clone(), path: path.to_owned(), file }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.operation("rename")?;
        RealDisk.rename(from, to)?;
        let mut log = self.0.lock().unwrap();
        // Whatever was below the old name is below the new one now.
        let moved = |p: &PathBuf| p.strip_prefix(from).map_or_else(|_| p.clone(), |rest| to.join(rest));
        let entries = log.entries.iter().map(|(p, f)| (moved(p), f.clone())).collect();
        log.entries = entries;
        // A file that was created and renamed without a sync in between has no entry to go back to.
        if !log.entries.iter().any(|(p, f)| p == to && f.is_none()) {
            log.entries.push((to.to_owned(), Some(from.to_owned())));
        }
        log.dirty = log.dirty.iter().map(|(p, n)| (moved(p), *n)).collect();
        Ok(())
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.operation("sync_dir")?;
        RealDisk.sync_dir(path)?;
        self.0.lock().unwrap().entries.retain(|(p, _)| p.parent() != Some(path));
        Ok(())
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.operation("remove_dir")?;
        RealDisk.remove_dir_all(path)
    }
}

const LAYOUT: (usize, usize) = (2, 1);
const VERSION: &str = "weights/v000001-e1";
const NEW: &str = "tiles/step-000008-e1";

/// The old checkpoint must be loadable whatever happened to the new one.
fn loads(folder: &Path, sha: &str) -> checkpoint::Result<()> {
    let mut outcomes = on_ranks((1, 2), |g| {
        let mut rank = Rank::new(g, &config(true), DType::F32);
        rank.load(folder, Some(sha)).map(|_| rank.assert_filled())
    });
    outcomes.remove(0)
}

#[test]
fn a_save_cut_short_anywhere_leaves_the_old_checkpoint_and_never_a_false_one() {
    let run = |disk: &CrashDisk, folder: &Path| {
        on_ranks(LAYOUT, |g| Rank::filled(g, &config(true), DType::F32).save_on(disk, folder, 8))
    };
    let dir = tempfile::tempdir().unwrap();
    let old = dir.path().join("tiles/step-000005-e1");
    let old_sha = run(&CrashDisk::default(), &old)[0].as_ref().unwrap().index_sha256.clone();

    // How many operations there are, and that all kinds are among them.
    std::fs::create_dir_all(dir.path().join("count")).unwrap();
    let whole = CrashDisk::default();
    let new_sha = run(&whole, &dir.path().join("count").join(NEW))[0].as_ref().unwrap().index_sha256.clone();
    let operations = whole.0.lock().unwrap().operations;
    let names = whole.0.lock().unwrap().names.clone();
    assert_eq!(names, BTreeSet::from(["create", "create_dir", "rename", "sync", "sync_dir", "write"]));

    let (mut refused, mut survived) = (0, 0);
    for fail_at in 0..=operations {
        let root = dir.path().join(format!("at-{fail_at}"));
        std::fs::create_dir_all(&root).unwrap();
        let disk = CrashDisk::until(fail_at);
        let outcomes = run(&disk, &root.join(NEW));
        let promised = outcomes.iter().all(Result::is_ok);
        assert_eq!(promised, outcomes.iter().any(Result::is_ok), "all ranks or none");
        assert_eq!(promised, fail_at == operations, "operation {fail_at} of {operations}");
        for cut in CUTS {
            let copy = dir.path().join(format!("at-{fail_at}-{cut:?}"));
            disk.cut(cut, &root, &copy);
            let folder = copy.join(NEW);
            match Checkpoint::open(&folder, Some(&new_sha)).and_then(|c| c.verify()) {
                // Only whole if everything but the last word was done.
                Ok(_) => {
                    loads(&folder, &new_sha).unwrap();
                    survived += 1;
                }
                Err(error) => {
                    assert!(!promised, "it was promised, and lost to {cut:?}: {error}");
                    refused += 1;
                }
            }
        }
        loads(&old, &old_sha).unwrap();
    }
    assert!(refused > 4 * (operations - 4), "{refused} refused, {survived} survived");
    assert!(survived >= CUTS.len(), "{refused} refused, {survived} survived");
}

#[test]
fn a_save_after_a_cut_one_succeeds_in_the_same_folder() {
    let dir = tempfile::tempdir().unwrap();
    for fail_at in [3, 9, 14, 18] {
        let root = dir.path().join(format!("{fail_at}"));
        std::fs::create_dir_all(&root).unwrap();
        let disk = CrashDisk::until(fail_at);
        on_ranks(LAYOUT, |g| {
            Rank::filled(g, &config(true), DType::F32).save_on(&disk, &root.join(NEW), 8).unwrap_err()
        });
        let copy = dir.path().join(format!("{fail_at}-cut"));
        disk.cut(Cut::Torn, &root, &copy);
        let folder = copy.join(NEW);
        let saved = on_ranks(LAYOUT, |g| Rank::filled(g, &config(true), DType::F32).save(&folder, 8).unwrap());
        loads(&folder, &saved[0].index_sha256).unwrap();
    }
}

#[test]
fn a_folder_with_its_final_name_is_complete_wherever_a_publish_is_cut() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model");
    std::fs::create_dir_all(&model).unwrap();
    std::fs::write(model.join("config.json"), support::config_json(32, true)).unwrap();
    std::fs::write(model.join("tokenizer.json"), b"{}").unwrap();
    let run = |disk: &CrashDisk, folder: &Path| {
        on_ranks(LAYOUT, |g| {
            let rank = Rank::filled(g, &config(true), DType::F32);
            let to = PublishTo {
                folder,
                config_from: &model,
                types: ExportTypes::All(DType::F32),
                file_bytes_max: FILE_BYTES_MAX.min(20_000),
            };
            publish(disk, &to, &rank.groups, &*rank.be, &rank.store).map(|()| rank.digest())
        })
    };
    let whole = CrashDisk::default();
    std::fs::create_dir_all(dir.path().join("count")).unwrap();
    let digest = run(&whole, &dir.path().join("count").join(VERSION))[0].as_ref().unwrap().clone();
    let operations = whole.0.lock().unwrap().operations;
    for fail_at in 0..=operations {
        let root = dir.path().join(format!("at-{fail_at}"));
        std::fs::create_dir_all(&root).unwrap();
        let disk = CrashDisk::until(fail_at);
        let promised = run(&disk, &root.join(VERSION)).iter().all(Result::is_ok);
        assert_eq!(promised, fail_at == operations, "operation {fail_at} of {operations}");
        for cut in CUTS {
            let copy = dir.path().join(format!("at-{fail_at}-{cut:?}"));
            disk.cut(cut, &root, &copy);
            let folder = copy.join(VERSION);
            assert!(folder.exists() || !promised, "{fail_at} {cut:?}");
            if !folder.exists() {
                // The next try finds whatever is left under the temporary name, and is not troubled by it.
                assert!(run(&CrashDisk::default(), &folder).iter().all(Result::is_ok));
            }
            assert_eq!(hf::folder_digest(&folder).unwrap(), digest, "{fail_at} {cut:?}");
            assert_eq!(std::fs::read(folder.join("tokenizer.json")).unwrap(), b"{}");
        }
    }
}
