//! Compressed records: the same content, row reads that cost about a row, and bytes that are not believed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use straw::watched_fs::{Call, Operation, Watch, WatchedFs};
use straw::{BLOCK_BYTES, Compression, Error, Options, RealFs, Record, Ref, SimFs, Store, Tensor, verify};

fn on(sim: &SimFs, compression: Compression) -> Store {
    let options = Options { compression, ..Options::default() };
    Store::open_with(Arc::new(sim.clone()), "/packs", options).unwrap()
}

/// Token ids, as they come; a mask; and bytes that do not shrink.
fn record(rows: u32) -> Record {
    let tokens: Vec<i32> = (0..rows).map(|i| (i.wrapping_mul(0x9E37_79B9) >> 18) as i32).collect();
    let mask: Vec<u8> = (0..rows).map(|i| u8::from(i % 50 < 30)).collect();
    let mut x = 0x0123_4567_89AB_CDEFu64;
    let noise = (0..rows).map(|_| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x
    });
    Record::new("{}")
        .with("tokens", Tensor::from_vec(&[rows.into()], tokens).unwrap())
        .with("mask", Tensor::from_vec(&[rows.into()], mask).unwrap())
        .with("noise", Tensor::from_vec(&[rows.into()], noise.collect::<Vec<u64>>()).unwrap())
        .with("none", Tensor::from_vec::<f32>(&[0, 4], vec![]).unwrap())
        .with("one", Tensor::from_vec(&[], vec![7i64]).unwrap())
}

fn publish(store: &Store, submission: &str, record: &Record) -> Ref {
    store.writer("w").unwrap().publish(submission, std::slice::from_ref(record)).unwrap().remove(0)
}

#[test]
fn a_compressed_record_is_smaller_and_the_same() {
    let sim = SimFs::new(1);
    let (plain, zstd) = (on(&sim, Compression::None), on(&sim, Compression::Zstd(3)));
    let record = record(100_000);
    let (a, b) = (publish(&plain, "s", &record), publish(&zstd, "s", &record));
    let noise = 800_000;
    assert!(b.len - noise < (a.len - noise) * 2 / 3, "{} and {}", a.len, b.len);
    assert_eq!((b.head, b.crc), (a.head, a.crc), "what it holds is the same");
    for store in [&plain, &zstd] {
        assert_eq!(store.read(&b).unwrap(), record);
        assert_eq!(store.read_many(&[b.clone(), a.clone()]).unwrap(), [record.clone(), record.clone()]);
        for rows in [0..1, 16_383..16_385, 99_999..100_000, 0..100_000, 50_000..50_000] {
            let want = store.read_rows(&a, "tokens", rows.clone()).unwrap();
            assert_eq!(store.read_rows(&b, "tokens", rows.clone()).unwrap(), want);
            let want = store.read_rows(&a, "noise", rows.clone()).unwrap();
            assert_eq!(store.read_rows(&b, "noise", rows).unwrap(), want);
        }
    }
    // One record says it for itself, either way.
    let c = publish(&plain, "c", &record.clone().compressed(Compression::Zstd(3)));
    let d = publish(&zstd, "d", &record.clone().compressed(Compression::None));
    assert_eq!((c.len, d.len, d.table), (b.len, a.len, 0));
    assert_eq!(verify(&sim, "/packs").unwrap().errors, []);
    assert_eq!(zstd.receipt("w", "s").unwrap().map(|refs| refs.len()), Some(1));
}

#[test]
fn what_does_not_shrink_is_stored_as_if_nobody_had_tried() {
    let sim = SimFs::new(1);
    let noise = |record: Record| Record::new("{}").with("noise", record.tensor("noise").unwrap().clone());
    let record = noise(record(50_000));
    let a = publish(&on(&sim, Compression::None), "a", &record);
    let b = publish(&on(&sim, Compression::Zstd(19)), "b", &record);
    assert_eq!((b.len, b.table), (a.len, 0));
}

#[test]
fn a_row_of_a_compressed_tensor_costs_about_a_block() {
    let sim = SimFs::new(1);
    let r = publish(&on(&sim, Compression::Zstd(3)), "s", &record(1_000_000));
    let read = Arc::new(AtomicU64::new(0));
    let fs = WatchedFs::new(Arc::new(sim), Arc::new(Counting(read.clone())));
    let store = Store::open(fs, "/packs").unwrap();
    store.tensors(&r).unwrap();
    read.store(0, Relaxed);
    store.read_rows(&r, "tokens", 700_000..700_001).unwrap();
    let bytes = read.load(Relaxed);
    assert!(bytes > 0 && bytes <= BLOCK_BYTES, "{bytes} bytes for one row");
}

#[test]
fn damage_of_any_byte_of_a_compressed_record_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { compression: Compression::Zstd(3), ..Options::default() };
    let open = || Store::open_with(RealFs::new(), dir.path(), options).unwrap();
    let tensor = Tensor::from_vec(&[2000], vec![3u16; 2000]).unwrap();
    let record = Record::new("meta").with("t", tensor);
    let r = publish(&open(), "s", &record);
    assert!(r.table > 0 && r.len < 1000);
    let path = dir.path().join(format!("{}.pack", r.pack));
    let good = std::fs::read(&path).unwrap();
    let mut noticed = 0;
    for at in r.offset..r.offset + r.len {
        let mut bytes = good.clone();
        bytes[at as usize] ^= 0x10;
        std::fs::write(&path, bytes).unwrap();
        match open().read(&r) {
            Err(Error::Corrupt { .. }) => noticed += 1,
            Ok(same) => assert_eq!(same, record, "only padding may change unseen"),
            Err(e) => panic!("{e}"),
        }
    }
    assert!(noticed > r.len / 2, "{noticed} of {}", r.len);
}

/// Counts bytes that are read.
struct Counting(Arc<AtomicU64>);

impl Watch for Counting {
    fn before(&self, call: &Call<'_>) -> std::io::Result<()> {
        if call.operation == Operation::Read {
            self.0.fetch_add(call.bytes, Relaxed);
        }
        Ok(())
    }
}
