//! Compaction on real files: the same records from a smaller pack.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use straw::{Queue, RealFs, Record, Store, Tensor, compact};

#[test]
fn live_records_move_as_they_are_and_what_is_mostly_needed_stays() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(RealFs::new(), dir.path()).unwrap();
    let record = |i: u64| {
        let values: Vec<i64> = (0..3000 * (i as i64 + 1)).collect();
        let rows = values.len() as u64;
        Record::new(format!("{i}")).with("tokens", Tensor::from_vec(&[rows], values).unwrap())
    };
    let writer = store.writer("w").unwrap();
    let mut published = Vec::new();
    for pack in 0..2 {
        for i in 0..10 {
            published.push(writer.publish(&format!("{pack}-{i}"), &[record(i)]).unwrap().remove(0));
        }
        writer.seal();
    }
    let mut queue = Queue::new();
    let few = [published[2].clone(), published[7].clone()];
    let op = queue.retain("few", &few).unwrap();
    queue.apply(&op).unwrap();
    let op = queue.retain("many", &published[10..]).unwrap();
    queue.apply(&op).unwrap();
    let found = compact::sparse(&store.packs().unwrap(), &queue, 50, |_| false);
    assert_eq!(found.len(), 1);
    assert_eq!((&found[0].pack, &found[0].live[..]), (&few[0].pack, &few[..]));
    assert_eq!(found[0].live_bytes, few.iter().map(|r| r.len).sum::<u64>());

    let copier = store.writer("copier").unwrap();
    let moves = compact::copy(&store, &copier, &found[0].pack, &found[0].live).unwrap();
    assert_eq!(
        compact::copy(&store, &copier, &found[0].pack, &found[0].live).unwrap(),
        moves,
        "again, and nothing is written"
    );
    queue.apply(&queue.move_records(&moves).unwrap()).unwrap();
    queue.apply(&queue.retire(std::slice::from_ref(&found[0].pack)).unwrap()).unwrap();
    assert!(store.register("main").unwrap().remove(queue.retired()).unwrap() > 0);
    for (i, old) in [2, 7].into_iter().zip(&few) {
        assert!(store.read(old).is_err());
        assert_eq!(store.read(&queue.resolve(old)).unwrap(), record(i));
        assert_eq!(store.read_rows(&queue.resolve(old), "tokens", 5..6).unwrap().to_vec::<i64>().unwrap(), [5]);
    }
    assert!(compact::sparse(&store.packs().unwrap(), &queue, 50, |_| false).is_empty());
}

#[test]
fn a_damaged_record_is_not_copied() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(RealFs::new(), dir.path()).unwrap();
    let writer = store.writer("w").unwrap();
    let r = writer.publish("s", &[Record::new(vec![7; 500])]).unwrap().remove(0);
    let path = dir.path().join(format!("{}.pack", r.pack));
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[(r.offset + r.len - 1) as usize] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let copied = compact::copy(&store, &store.writer("copier").unwrap(), &r.pack, std::slice::from_ref(&r));
    assert!(matches!(copied, Err(straw::Error::Corrupt { .. })), "{copied:?}");
}

#[test]
fn a_writer_that_lost_its_lock_does_not_copy_a_pack_into_itself() {
    let sim = straw::SimFs::new(1);
    let store = Store::open(std::sync::Arc::new(sim.clone()), "/packs").unwrap();
    let writer = store.writer("w").unwrap();
    let r = writer.publish("s", &[Record::new("x")]).unwrap().remove(0);
    sim.lose_locks();
    let mut queue = Queue::new();
    queue.apply(&queue.retain("o", std::slice::from_ref(&r)).unwrap()).unwrap();
    let found = compact::sparse(&store.packs().unwrap(), &queue, 100, |_| false);
    let moves = compact::copy(&store, &writer, &found[0].pack, &found[0].live).unwrap();
    queue.apply(&queue.move_records(&moves).unwrap()).unwrap();
    assert!(!queue.is_live(&r.pack));
}

#[test]
fn a_record_whose_references_are_written_down_elsewhere_is_not_moved() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(RealFs::new(), dir.path()).unwrap();
    let writer = store.writer("w").unwrap();
    let refs = writer.publish("s", &[Record::new("a"), Record::new("b"), Record::new(vec![0; 9000])]).unwrap();
    writer.seal();
    let mut queue = Queue::new();
    queue.apply(&queue.retain("commit", &refs[..1]).unwrap()).unwrap();
    queue.apply(&queue.retain("archive/x/0", &refs[1..2]).unwrap()).unwrap();
    let found =
        |queue: &Queue| compact::sparse(&store.packs().unwrap(), queue, 50, |owner| owner.starts_with("archive/"));
    assert!(found(&queue).is_empty(), "the pack could not be given up anyway");
    queue.apply(&queue.checkpoint("step-1", b"model").unwrap()).unwrap();
    queue.apply(&queue.release_owner("archive/x/0").unwrap()).unwrap();
    assert!(found(&queue).is_empty(), "the checkpoint brings the archive back");
    queue.apply(&queue.drop_checkpoint("step-1").unwrap()).unwrap();
    assert_eq!(found(&queue)[0].live, refs[..1]);
}
