//! Reads of sealed packs without a copy.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use straw::{Compression, Error, RealFs, Record, Ref, SimFs, Store, Tensor};

fn store(dir: &Path) -> Store {
    Store::open(RealFs::new(), dir).unwrap()
}

fn record(seed: u64) -> Record {
    let values: Vec<u64> = (0..40_000).map(|i| i * 31 + seed).collect();
    Record::new(format!("{seed}"))
        .with("few", Tensor::from_vec(&[3], vec![seed as u8, 1, 2]).unwrap())
        .with("values", Tensor::from_vec(&[10_000, 4], values).unwrap())
        .with("none", Tensor::from_vec::<f32>(&[0, 4], vec![]).unwrap())
        .with("one", Tensor::from_vec(&[], vec![7i64]).unwrap())
}

fn publish(store: &Store, seed: u64) -> Ref {
    let writer = store.writer("w").unwrap();
    let r = writer.publish("s", &[record(seed)]).unwrap().remove(0);
    writer.seal();
    r
}

/// Where a tensor's bytes are in memory.
fn place(tensor: &Tensor) -> usize {
    tensor.bytes().as_ptr() as usize
}

fn flip(dir: &Path, pack: &str, at: u64) {
    let path = dir.join(format!("{pack}.pack"));
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
}

#[test]
fn what_is_mapped_is_what_is_read_and_is_not_copied() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    let r = publish(&store, 5);
    let mapped = store.mapped();
    assert!(mapped.refusal().is_none(), "{:?}", mapped.refusal());
    let read = mapped.read(&r).unwrap();
    assert_eq!(read, store.read(&r).unwrap());
    let again = mapped.read(&r).unwrap();
    let values = read.tensor("values").unwrap();
    assert_eq!(place(values), place(again.tensor("values").unwrap()), "both look at the same bytes");
    assert_ne!(place(values), place(store.read(&r).unwrap().tensor("values").unwrap()));
    assert!(place(values).is_multiple_of(64));
    for rows in [0..1, 2047..2049, 9_999..10_000, 0..10_000, 7..7] {
        let some = mapped.read_rows(&r, "values", rows.clone()).unwrap();
        assert_eq!(some, store.read_rows(&r, "values", rows.clone()).unwrap());
        assert_eq!(place(&some), place(values) + rows.start as usize * 32);
    }
    assert!(matches!(mapped.read_rows(&r, "values", 0..10_001), Err(Error::Tensor { .. })));
    assert!(matches!(mapped.read_rows(&r, "nothing", 0..1), Err(Error::Tensor { .. })));
}

#[test]
fn a_block_is_checked_when_it_is_first_asked_for_and_once_for_as_long_as_it_is_mapped() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    let r = publish(&store, 5);
    let values = r.offset + u64::from(r.head).next_multiple_of(64) + 64;
    let mapped = store.mapped();
    flip(dir.path(), &r.pack, values + 200_000); // in the fourth block: rows 6144..8192
    assert!(mapped.read_rows(&r, "values", 0..6_144).is_ok(), "what is not asked for is not looked at");
    let damaged = mapped.read_rows(&r, "values", 6_000..6_200);
    assert!(matches!(damaged, Err(Error::Corrupt { offset, .. }) if offset == values + 3 * 65_536), "{damaged:?}");
    assert!(matches!(mapped.read(&r), Err(Error::Corrupt { .. })));
    flip(dir.path(), &r.pack, values + 200_000);
    assert!(mapped.read(&r).is_ok(), "what was found damaged is looked at again");
    flip(dir.path(), &r.pack, values + 100);
    assert!(mapped.read_rows(&r, "values", 0..10).is_ok(), "it was checked");
    mapped.forget(&r.pack);
    assert!(matches!(mapped.read_rows(&r, "values", 0..10), Err(Error::Corrupt { .. })), "it is mapped anew");
    // Another reference to the same place is not taken for the one that was checked.
    let other = Ref { crc: r.crc ^ 1, ..r };
    assert!(matches!(mapped.read(&other), Err(Error::Corrupt { .. })));
}

#[test]
fn what_cannot_be_mapped_is_read_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    let mapped = store.mapped();
    // A pack that is still written.
    let writer = store.writer("w").unwrap();
    let open = writer.publish("a", &[record(1)]).unwrap().remove(0);
    let first = mapped.read(&open).unwrap();
    assert_eq!(first, record(1));
    assert_ne!(place(&first.tensors[1].tensor), place(&mapped.read(&open).unwrap().tensors[1].tensor));
    // Compressed blocks, and shared ones.
    let zstd = writer.publish("b", &[record(2).compressed(Compression::Zstd(1))]).unwrap().remove(0);
    let mut update = store.update(&open).unwrap();
    update.set_rows("values", 9_000..9_001, &Tensor::from_vec(&[1, 4], vec![0u64; 4]).unwrap()).unwrap();
    let shared = writer.publish_updates("c", &[update]).unwrap().remove(0);
    writer.seal();
    for r in [&open, &zstd, &shared] {
        assert_eq!(mapped.read(r).unwrap(), store.read(r).unwrap());
        let rows = mapped.read_rows(r, "values", 8_000..9_500).unwrap();
        assert_eq!(rows, store.read_rows(r, "values", 8_000..9_500).unwrap());
    }
    assert_eq!(
        place(&mapped.read(&open).unwrap().tensors[1].tensor),
        place(&mapped.read(&open).unwrap().tensors[1].tensor)
    );
    // A reference that leads nowhere.
    let gone = Ref { pack: "w-000000000000000000000009".into(), ..open.clone() };
    assert!(matches!(mapped.read(&gone), Err(Error::PackMissing { .. })));
    let long = Ref { offset: 1 << 40, ..open };
    assert!(matches!(mapped.read(&long), Err(Error::NotVisible { .. })));
}

#[test]
fn where_others_can_change_files_nothing_is_mapped_and_it_is_said_why() {
    let sim = SimFs::new(1);
    let store = Store::open(Arc::new(sim), "/packs").unwrap();
    let r = publish(&store, 3);
    let mapped = store.mapped();
    let why = mapped.refusal().unwrap().to_string();
    assert!(why.contains("/packs is not mapped: it is not known who else can change files there"), "{why}");
    assert_eq!(mapped.read(&r).unwrap(), record(3));
    assert_eq!(mapped.read_rows(&r, "values", 1..2).unwrap(), store.read_rows(&r, "values", 1..2).unwrap());
}

#[test]
fn tensors_outlive_the_file_and_the_mapped_store() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    let r = publish(&store, 5);
    let mapped = store.mapped();
    let read = mapped.read(&r).unwrap();
    store.register("main").unwrap().remove(&[r.pack.clone()].into()).unwrap();
    mapped.forget(&r.pack);
    assert!(matches!(mapped.read(&r), Err(Error::PackMissing { .. })));
    drop((mapped, store));
    assert_eq!(read, record(5));
}

#[test]
fn many_threads_check_and_read_the_same_pack() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    let r = publish(&store, 5);
    let mapped = store.mapped();
    std::thread::scope(|scope| {
        for t in 0..4 {
            let (mapped, r) = (&mapped, &r);
            scope.spawn(move || {
                for i in 0..50u64 {
                    let row = (i * 197 + t * 31) % 10_000;
                    let read = mapped.read_rows(r, "values", row..row + 1).unwrap();
                    assert_eq!(read.to_vec::<u64>().unwrap()[0], row * 4 * 31 + 5);
                }
                assert_eq!(mapped.read(r).unwrap(), record(5));
            });
        }
    });
}
