//! Replays the corpora, and what a deterministic mutator makes of them: no decoder panics, allocates beyond a bound, or gives what
//! is not the same after another encoding. `STRAW_MUTATIONS` sets how many there are for each decoder; `UPDATE=1` makes the corpora anew
//! (those files alone that are made here: what a fuzzer has found stays).
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::PathBuf;

use super::*;
use crate::Entry;
use crate::Journal;
use crate::head::HeadTensor;
use crate::laid::{Content, Kept, Source};
use crate::queue::{BatchId, Class, DropCause, LeaseTerms, NewTask, Position, TaskId};
use crate::sim_fs::random::Random;

/// Counts what a thread has allocated.
struct Counting;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    let _ = LIVE.try_with(|live| {
        live.set(live.get() + bytes);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(live.get())));
    });
}

unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Bytes that decoding `len` bytes may take: what a claimed length makes a decoder reserve at once is a few MiB at most.
fn allowed(len: usize) -> isize {
    (8 << 20) + 256 * len as isize
}

fn checked(decoder: Decoder, name: &str, bytes: &[u8]) -> bool {
    let before = LIVE.get();
    PEAK.set(before);
    let decoded = std::panic::catch_unwind(|| decoder.check(bytes));
    let taken = PEAK.get() - before;
    let decoded = decoded.unwrap_or_else(|_| panic!("{decoder:?} panics at {name}: {}", hex(bytes)));
    assert!(taken <= allowed(bytes.len()), "{decoder:?} takes {taken} bytes at {name}: {}", hex(bytes));
    decoded
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// The bytes of a file.
fn read(sim: &SimFs, folder: &str, begins: &str) -> (String, Vec<u8>) {
    let dir = sim.open_dir(Path::new(folder)).unwrap();
    let entry = dir.list().unwrap().into_iter().find(|e| e.name.starts_with(begins)).unwrap();
    let bytes = dir.open(&entry.name).unwrap().read_at(0, entry.len as usize).unwrap();
    (entry.name, bytes)
}

/// A record that shrinks.
fn zeros() -> Record {
    let tensor = Tensor::from_vec(&[300], vec![0u16; 300]).unwrap();
    Record::new("zeros").with("t", tensor).compressed(Compression::Zstd(3))
}

/// A record of the tokens 1 to 6, and of the same ones again, which lie at `at` of a pack.
fn sharing(pack: &str, at: u64) -> Laid<'static> {
    let tokens: Vec<u8> = (1..7i32).flat_map(i32::to_le_bytes).collect();
    let content = |name: &str, block| {
        let head = HeadTensor::of(name, crate::DType::I32, &[6], &tokens);
        Content { head, blocks: vec![block] }
    };
    let own = Source::New(Cow::Owned(tokens.clone()));
    let kept = Source::Kept(Kept { pack: pack.into(), at, len: 24, zstd: None });
    Laid::new(Cow::Borrowed(b"meta"), vec![content("own", own), content("kept", kept)], Compression::None).unwrap()
}

/// A record that shares a part of itself, so that one input has all of it.
fn sharing_itself() -> Vec<u8> {
    let place = |laid: &Laid<'_>| (laid.front.len() as u64).next_multiple_of(64);
    let laid = sharing(PACK, place(&sharing(PACK, 64)));
    assert_eq!(place(&laid), place(&sharing(PACK, 64)), "the number is as short");
    let mut bytes = laid.front.clone();
    for tensor in &laid.tensors {
        bytes.resize(bytes.len().next_multiple_of(64), 0);
        tensor.iter().for_each(|block| bytes.extend_from_slice(block));
    }
    bytes.extend_from_slice(&laid.meta);
    bytes
}

/// A sealed pack with three extents, and the references into it.
fn sealed_pack() -> (Vec<u8>, Vec<Ref>) {
    let sim = SimFs::new(1);
    let writer = Store::open(Arc::new(sim.clone()), "/packs").unwrap().writer("w").unwrap();
    let record = |n: i32| {
        let tokens = Tensor::from_vec(&[2, 3], (n..n + 6).collect()).unwrap();
        Record::new(format!("{{\"n\":{n}}}"))
            .with("tokens", tokens)
            .with("none", Tensor::from_vec::<f32>(&[0], vec![]).unwrap())
    };
    let mut refs = writer.publish("group-0", &[record(1), record(2)]).unwrap();
    refs.extend(writer.publish("group-1", &[Record::new("plain")]).unwrap());
    // One that is compressed, and one that shares the tokens of the first.
    let place = u64::from(refs[0].head).next_multiple_of(64);
    let zeros = zeros();
    let laid = vec![Laid::of(&zeros, Compression::None).unwrap(), sharing(PACK, refs[0].offset + place)];
    refs.extend(writer.publish_laid("group-2", laid).unwrap());
    writer.seal();
    let (name, bytes) = read(&sim, "/packs", "w-");
    assert_eq!(name, format!("{PACK}.pack"));
    (bytes, refs)
}

/// Ops of every kind that build upon each other, and the queue that they add up to.
fn ops() -> (Vec<Op>, Queue) {
    let at = |n: u64| Ref { pack: PACK.into(), offset: 64 * n, len: 100, head: 40, crc: 9, ..Ref::default() };
    let other = |n: u64| Ref { pack: "w-000000000000000000000002".into(), ..at(n) };
    let task = |id| NewTask { id: TaskId(id), input: b"row".to_vec(), attempts_max: 2 };
    let mut queue = Queue::new();
    queue.begin_epoch(1);
    let mut ops = vec![Op::Submit { tasks: (0..6).map(task).collect() }];
    queue.apply(&ops[0]).unwrap();
    let lease = queue.acquire("w", 2, 0, LeaseTerms::default());
    let (attempt, reason) = (lease[1].attempt, String::from("why"));
    let done =
        |id| Op::Complete { task: TaskId(id), submission: format!("s{id}"), result: vec![at(id)], attempt: None };
    let name = String::from("name");
    ops.extend([
        Op::OpenConsumer { name: name.clone(), from: Position(0) },
        done(0),
        Op::Yield { task: TaskId(1), class: Class::Partial, key: Some(3), parts: vec![at(9)], attempt },
        Op::Fail { task: TaskId(1), cause: DropCause::Lapsed, reason: reason.clone(), drop: false, attempt },
        done(2),
        done(3),
        Op::Cancel { task: TaskId(4), cause: DropCause::Cancelled, reason: reason.clone() },
        Op::DropAccepted { positions: vec![Position(2)], cause: DropCause::Filtered, reason },
        Op::PlanBatch { batch: BatchId(0), positions: vec![Position(0)] },
        Op::BatchReady { batch: BatchId(0), payload: vec![at(11)] },
        Op::Checkpoint { name: name.clone(), model: b"model".to_vec() },
        Op::HoldFork { fork: name.clone(), checkpoint: name.clone() },
        Op::Consume { batch: BatchId(0) },
        Op::Rewind { to: BatchId(0) },
        Op::Consume { batch: BatchId(0) },
        Op::Retain { owner: name.clone(), refs: vec![at(12)] },
        Op::Move { moves: vec![(at(12), other(12))] },
        Op::AckConsumer { name: name.clone(), positions: vec![Position(0)], state: Some(b"state".to_vec()) },
        Op::SettleAccepted { positions: vec![Position(1)] },
        Op::CloseConsumer { name: name.clone() },
        Op::Release { below: BatchId(1) },
        Op::ReleaseOwner { owner: name.clone() },
        Op::Rollback { name: name.clone() },
        Op::EndFork { fork: name.clone() },
        Op::Retire { packs: vec!["w-000000000000000000000003".into()] },
        Op::Forget { below: 1 },
    ]);
    let kept = queue.tasks_len();
    assert_eq!(kept, 6);
    let mut queue = Queue::new();
    queue.begin_epoch(1);
    for op in &ops {
        queue.apply(op).unwrap_or_else(|e| panic!("{op:?}: {e}"));
    }
    ops.push(Op::DropCheckpoint { name });
    (ops, queue)
}

/// What is written, by decoder.
fn real(decoder: Decoder) -> Vec<Vec<u8>> {
    let (pack, refs) = sealed_pack();
    let journal = |begins: &str| {
        let sim = SimFs::new(1);
        let (journal, _) = Journal::claim(Arc::new(sim.clone()), "/journal", "pod-0").unwrap();
        for op in ops().0.chunks(2) {
            let records: Vec<Vec<u8>> = op.iter().map(|op| postcard::to_stdvec(op).unwrap()).collect();
            journal.append(&records).unwrap();
        }
        let segment = read(&sim, "/journal", begins);
        (segment, sim, journal)
    };
    match decoder {
        Decoder::PackHeader => vec![pack[..64].to_vec(), pack::encode_header(PACK, "w", false)],
        Decoder::PackFooter => {
            let (_, begins) = pack::read_footer(PACK, &MemoryFile(&pack)).unwrap().unwrap();
            let mut footer = pack::Footer::default();
            footer.extents.push(pack::Slot { offset: 64, header_len: 50, submission: "s".into() });
            vec![
                [vec![0; begins as usize], pack[begins as usize..].to_vec()].concat(),
                pack::encode_footer(PACK, 0, &footer),
            ]
        }
        Decoder::Pack => {
            let (_, begins) = pack::read_footer(PACK, &MemoryFile(&pack)).unwrap().unwrap();
            vec![pack.clone(), pack[..begins as usize].to_vec()]
        }
        Decoder::ExtentHeader => {
            let shared = crate::extent::Encoded::new("shared", vec![sharing(PACK, 192)]).unwrap();
            let mut header = Vec::new();
            let collect = |bufs: &mut [std::io::IoSlice<'_>]| {
                bufs.iter().for_each(|buf| header.extend_from_slice(buf));
                Ok(())
            };
            let (refs_of_it, _) = shared.write(PACK, EXTENT_AT, 64, collect).unwrap();
            header.truncate((refs_of_it[0].offset - EXTENT_AT) as usize);
            vec![pack[64..refs[0].offset as usize].to_vec(), header]
        }
        Decoder::RecordHead => {
            let record = |r: &Ref| pack[r.offset as usize..(r.offset + r.len) as usize].to_vec();
            refs.iter().map(record).chain([sharing_itself()]).collect()
        }
        Decoder::Frame => vec![journal("seg-").0.1[128..].to_vec()],
        Decoder::Claim => vec![journal("epoch-").0.1, b"seg-0000000001-00000000.log".to_vec()],
        Decoder::Segment => vec![journal("seg-").0.1],
        Decoder::Snapshot => {
            let sim = SimFs::new(1);
            let (journal, _) = Journal::claim(Arc::new(sim.clone()), "/journal", "pod-0").unwrap();
            (0..7).for_each(|i| assert_eq!(journal.append(&[vec![i]]).unwrap(), u64::from(i) + 1));
            journal.snapshot(7, &postcard::to_stdvec(&ops().1).unwrap()).unwrap();
            vec![read(&sim, "/journal", "snap-").1]
        }
        Decoder::QueueOp => {
            let ops = ops().0;
            let bytes = |op: &Op| postcard::to_stdvec(op).unwrap();
            let mut all: Vec<Vec<u8>> = vec![ops.iter().flat_map(bytes).collect()];
            all.extend(ops.iter().step_by(5).map(bytes));
            all
        }
        Decoder::QueueState => {
            vec![postcard::to_stdvec(&ops().1).unwrap(), postcard::to_stdvec(&Queue::new()).unwrap()]
        }
        Decoder::ArchivePage => {
            let sim = SimFs::new(1);
            let store = Store::open(Arc::new(sim), "/packs").unwrap();
            let writer = store.writer("w").unwrap();
            let entry = |i: u32| Entry {
                key: format!("task {}", i / 2).into(),
                part: i,
                reference: refs[i as usize % 3].clone(),
            };
            let index = Archive::write(&writer, "index", &(0..6).map(entry).collect::<Vec<_>>()).unwrap();
            let index = store.read(&index).unwrap();
            let len = u16::try_from(index.meta.len()).unwrap().to_le_bytes();
            vec![[&len[..], &index.meta, index.tensor("pages").unwrap().bytes()].concat()]
        }
        Decoder::GoneFile => {
            let names: std::collections::BTreeSet<String> =
                refs.iter().map(|r| r.pack.clone()).chain(["x-1".into()]).collect();
            vec![frame::encode(*b"SGON", &Salt { file: GONE, offset: 0 }, &names).0]
        }
    }
}

/// The files of a corpus that are made here: what is written, cut short, and with a bit flipped.
fn made(decoder: Decoder) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for (i, bytes) in real(decoder).into_iter().enumerate() {
        let mut flipped = bytes.clone();
        let at = flipped.len() * 2 / 3;
        flipped[at] ^= 0x10;
        files.insert(format!("real-{i}"), bytes.clone());
        files.insert(format!("cut-{i}"), bytes[..bytes.len() / 2].to_vec());
        files.insert(format!("flipped-{i}"), flipped);
    }
    files
}

fn corpus(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(name)
}

fn files(name: &str) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(corpus(name)).unwrap_or_else(|e| panic!("corpus {name}: {e}"));
    let file =
        |path: PathBuf| (path.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(&path).unwrap());
    entries.map(|entry| file(entry.unwrap().path())).collect()
}

#[test]
fn what_is_written_today_is_in_the_corpora_and_is_decoded() {
    for (decoder, name) in Decoder::ALL {
        let made = made(decoder);
        for (file, bytes) in &made {
            assert!(!file.starts_with("real") || checked(decoder, file, bytes), "{decoder:?}: {file} is good");
        }
        if std::env::var_os("UPDATE").is_some() {
            std::fs::create_dir_all(corpus(name)).unwrap();
            for (file, bytes) in &made {
                std::fs::write(corpus(name).join(file), bytes).unwrap();
            }
        }
        let there = files(name);
        for (file, bytes) in &made {
            assert!(
                there.get(file) == Some(bytes),
                "corpus {name}/{file} is of another format: UPDATE=1 makes it anew"
            );
        }
    }
}

/// Changes bytes in a few places.
fn mutate(random: &Random, seeds: &[Vec<u8>]) -> Vec<u8> {
    const EDGES: [&[u8]; 8] = [
        &[0xff; 8],
        &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01], // the largest varint
        &[0xff, 0xff, 0xff, 0xff, 0x0f],
        &[0; 8],
        &[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01],
        &[0xff, 0xff, 0x03],
        &[0x7f],
        &[0xc0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01], // ... that is a multiple of 64
    ];
    let below = |end: usize| random.below(end as u64) as usize;
    let mut bytes = seeds[below(seeds.len())].clone();
    for _ in 0..1 + below(4) {
        let at = below(bytes.len());
        match below(8) {
            0 | 1 if at < bytes.len() => bytes[at] ^= 1 << below(8),
            2 if at < bytes.len() => bytes[at] = below(256) as u8,
            3 => bytes.truncate(at),
            4 => drop(bytes.splice(at..at, EDGES[below(EDGES.len())].iter().copied())),
            5 => {
                let edge = EDGES[below(EDGES.len())];
                let end = (at + 1 + below(edge.len())).min(bytes.len());
                bytes.splice(at.min(end)..end, edge.iter().copied());
            }
            6 => {
                let other = &seeds[below(seeds.len())];
                let (from, len) = (below(other.len()), below(40));
                let part = other[from..(from + len).min(other.len())].to_vec();
                bytes.splice(at..at, part);
            }
            _ => {
                let end = (at + below(8)).min(bytes.len());
                bytes.drain(at.min(end)..end);
            }
        }
    }
    bytes
}

#[test]
fn no_decoder_panics_or_takes_more_memory_than_its_input_allows() {
    let mutations: usize = std::env::var("STRAW_MUTATIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(10_000);
    for (decoder, name) in Decoder::ALL {
        let files = files(name);
        for (file, bytes) in &files {
            checked(decoder, file, bytes);
        }
        let seeds: Vec<Vec<u8>> = files.into_values().filter(|bytes| !bytes.is_empty()).collect();
        let random = Random::new(0x5EED_0000 + name.len() as u64);
        let mut decoded = 0;
        for i in 0..mutations {
            let bytes = mutate(&random, &seeds);
            decoded += usize::from(checked(decoder, &format!("mutation {i}"), &bytes));
        }
        assert!(
            decoded * 50 > mutations,
            "{name}: of {mutations} mutations only {decoded} are reached behind the checksums"
        );
    }
}

#[test]
fn a_reference_to_more_than_its_pack_has_takes_no_memory_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(crate::RealFs::new(), dir.path()).unwrap();
    let r = store.writer("w").unwrap().publish("s", &[Record::new("x")]).unwrap().remove(0);
    let long = Ref { len: crate::limits::RECORD_BYTES_MAX, ..r.clone() };
    let before = LIVE.get();
    PEAK.set(before);
    assert!(matches!(store.read(&long), Err(crate::Error::NotVisible { .. })));
    assert!(PEAK.get() - before < 8 << 20, "{} bytes were reserved", PEAK.get() - before);
    // One that is long and there is read whole.
    let bytes: Vec<u8> = (0..5 << 20).map(|i: u32| (i % 251) as u8).collect();
    let tensor = Tensor::from_vec(&[bytes.len() as u64], bytes).unwrap();
    let record = Record::new("long").with("t", tensor);
    let r = store.writer("w").unwrap().publish("long", std::slice::from_ref(&record)).unwrap().remove(0);
    assert_eq!(store.read(&r).unwrap(), record);
}
