//! Mending takes away only what nothing can need.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use straw::repair::{Action, act, plan_journal, plan_packs};
use straw::{Journal, RealFs, Record, Store, journal};

fn append(journal: &Journal, texts: &[&str]) {
    for text in texts {
        journal.append(&[text.as_bytes()]).unwrap();
    }
}

fn flip_last(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(path, bytes).unwrap();
}

fn snapshot_in(dir: &Path) -> std::path::PathBuf {
    let mut entries = fs::read_dir(dir).unwrap().flatten().map(|entry| entry.path());
    entries.find(|path| path.extension().is_some_and(|end| end == "snap")).unwrap()
}

fn names(dir: &Path) -> BTreeSet<String> {
    fs::read_dir(dir).unwrap().flatten().map(|entry| entry.file_name().into_string().unwrap()).collect()
}

#[test]
fn a_damaged_snapshot_is_set_aside_only_when_older_files_hold_all_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let fs_ = RealFs::new();
    let (owner, _) = Journal::claim(fs_.clone(), dir.path(), "a").unwrap();
    append(&owner, &["1", "2", "3"]);
    let before: Vec<(String, Vec<u8>)> =
        names(dir.path()).into_iter().map(|name| (name.clone(), fs::read(dir.path().join(name)).unwrap())).collect();
    owner.snapshot(3, b"state").unwrap();
    append(&owner, &["4"]);
    drop(owner);
    assert_eq!(plan_journal(&*fs_, dir.path()).unwrap(), [], "a whole journal needs nothing");

    // Alone it is all there is: it stays.
    let damaged = snapshot_in(dir.path());
    flip_last(&damaged);
    assert!(journal::read(&*fs_, dir.path()).is_err());
    assert_eq!(plan_journal(&*fs_, dir.path()).unwrap(), []);

    // The owner had died before it removed what the snapshot covers.
    for (name, bytes) in before {
        fs::write(dir.path().join(name), bytes).unwrap();
    }
    let plan = plan_journal(&*fs_, dir.path()).unwrap();
    let name = damaged.file_name().unwrap().to_str().unwrap();
    assert!(matches!(&plan[..], [Action::SetAside { file, .. }] if file == name), "{plan:?}");
    act(&*fs_, dir.path(), &plan).unwrap();
    act(&*fs_, dir.path(), &plan).unwrap();
    assert!(names(dir.path()).contains(&format!("{name}.damaged")));
    let (snapshot, txns) = journal::read(&*fs_, dir.path()).unwrap();
    let texts: Vec<&[u8]> = txns.iter().flatten().map(Vec::as_slice).collect();
    assert_eq!((snapshot, texts), (None, vec![&b"1"[..], b"2", b"3", b"4"]));
    Journal::claim(fs_, dir.path(), "b").unwrap();
}

#[test]
fn damage_that_only_a_copy_can_mend_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let fs_ = RealFs::new();
    let (owner, _) = Journal::claim(fs_.clone(), dir.path(), "a").unwrap();
    append(&owner, &["one", "two", "three"]);
    drop(owner);
    let segment = names(dir.path()).into_iter().find(|name| name.ends_with(".log")).unwrap();
    let mut bytes = fs::read(dir.path().join(&segment)).unwrap();
    bytes[130] ^= 1;
    fs::write(dir.path().join(&segment), bytes).unwrap();
    assert!(journal::read(&*fs_, dir.path()).is_err());
    assert_eq!(plan_journal(&*fs_, dir.path()).unwrap(), []);
}

#[test]
fn unfinished_snapshots_of_former_owners_are_removed_and_a_present_owners_stay() {
    let dir = tempfile::tempdir().unwrap();
    let fs_ = RealFs::new();
    for owner in ["a", "b"] {
        Journal::claim(fs_.clone(), dir.path(), owner).unwrap();
    }
    for epoch in [1, 2] {
        fs::write(dir.path().join(format!("snap-{epoch:010}.tmp")), b"half").unwrap();
    }
    let plan = plan_journal(&*fs_, dir.path()).unwrap();
    assert!(matches!(&plan[..], [Action::Remove { file, bytes: 4, .. }] if file == "snap-0000000001.tmp"), "{plan:?}");
    act(&*fs_, dir.path(), &plan).unwrap();
    assert!(names(dir.path()).contains("snap-0000000002.tmp"));
}

#[test]
fn of_packs_only_those_go_that_the_journal_gave_up() {
    let dir = tempfile::tempdir().unwrap();
    let fs_ = RealFs::new();
    let store = Store::open(fs_.clone(), dir.path()).unwrap();
    let publish = |owner: &str| store.writer(owner).unwrap().publish("s", &[Record::new("x")]).unwrap().remove(0);
    let (kept, gone) = (publish("a"), publish("b"));
    let plan = plan_packs(&*fs_, dir.path(), "main", &BTreeSet::from([gone.pack.clone(), "c-0000000000000000".into()]))
        .unwrap();
    assert_eq!(plan.len(), 1);
    act(&*fs_, dir.path(), &plan).unwrap();
    assert_eq!(names(dir.path()), BTreeSet::from([format!("{}.pack", kept.pack)]));
}
