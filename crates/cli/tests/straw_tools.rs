//! `thresh straw` on real folders.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use straw::queue::{BatchId, NewTask, Op, Position, TaskId};
use straw::{Journal, Queue, RealFs, Record, Store};

fn thresh(args: &[&str], folder: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_thresh")).arg("straw").args(args).arg(folder).output().unwrap()
}

fn told(args: &[&str], folder: &Path) -> (i32, String) {
    let out = thresh(args, folder);
    (out.status.code().unwrap(), String::from_utf8(out.stdout).unwrap() + &String::from_utf8(out.stderr).unwrap())
}

fn json(args: &[&str], folder: &Path) -> serde_json::Value {
    let args: Vec<&str> = args.iter().copied().chain(["-o", "json"]).collect();
    serde_json::from_slice(&thresh(&args, folder).stdout).unwrap()
}

/// A store of straw's own queue: of three finished tasks one is in a batch, one waits for one, one was let go and its pack
/// retired.
struct Pool {
    folder: tempfile::TempDir,
    journal: Journal,
    queue: Queue,
}

impl Pool {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(RealFs::new(), folder.path().join("packs")).unwrap();
        let (journal, found) = Journal::claim(RealFs::new(), folder.path().join("journal"), "owner-0").unwrap();
        let mut queue = Queue::new();
        queue.begin_epoch(found.epoch);
        let mut pool = Self { folder, journal, queue };
        let task = |id| NewTask { id: TaskId(id), input: Vec::new(), attempts_max: 3 };
        pool.commit(&Op::Submit { tasks: (0..4).map(task).collect() });
        let mut packs = Vec::new();
        for id in 0..3 {
            let writer = store.writer("worker-0").unwrap();
            let result = writer.publish(&format!("group-{id}"), &[Record::new(vec![7; 5000])]).unwrap();
            writer.seal();
            packs.push(result[0].pack.clone());
            pool.commit(&Op::Complete { task: TaskId(id), submission: format!("s{id}"), result, attempt: None });
        }
        pool.commit(&Op::PlanBatch { batch: BatchId(0), positions: vec![Position(0)] });
        let cause = straw::queue::DropCause::Filtered;
        pool.commit(&Op::DropAccepted { positions: vec![Position(2)], cause, reason: "alike".into() });
        pool.commit(&Op::Retire { packs: vec![packs[2].clone()] });
        pool
    }

    fn commit(&mut self, op: &Op) {
        self.journal.append(&[postcard::to_stdvec(op).unwrap()]).unwrap();
        self.queue.apply(op).unwrap();
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn files(&self, of: &str) -> Vec<PathBuf> {
        let mut files: Vec<_> = fs::read_dir(self.path().join(of)).unwrap().flatten().map(|e| e.path()).collect();
        files.sort();
        files
    }
}

#[test]
fn a_folder_without_a_store_is_one_clear_error_for_every_command() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("notes.txt"), "x").unwrap();
    for args in
        [&["inspect"][..], &["verify"], &["owners"], &["du"], &["repair"], &["compact"], &["top", "--count", "1"]]
    {
        for (path, said) in [
            (folder.path().to_owned(), "there is no store here"),
            (folder.path().join("missing"), "no such folder"),
            (folder.path().join("notes.txt"), "it is a file"),
        ] {
            let (code, text) = told(args, &path);
            assert!(code == 1 && text.contains(said) && text.matches("\n  fix: ").count() == 1, "{args:?}: {text}");
        }
    }
}

#[test]
fn a_store_that_is_still_empty_is_sound_and_said_to_be_empty() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("packs")).unwrap();
    let (code, text) = told(&["inspect"], folder.path());
    assert!(code == 0 && text.starts_with("empty ") && text.ends_with("sound\n"), "{text}");
}

#[test]
fn inspect_tells_the_mount_and_its_self_test_leaves_nothing() {
    let pool = Pool::new();
    let before = pool.files(".");
    let (code, text) = told(&["inspect", "--self-test"], pool.path());
    assert!(code == 0 && text.contains("\nmount    ") && text.contains("seen by a file opened anew"), "{text}");
    assert_eq!(pool.files("."), before);
    let found = json(&["inspect"], pool.path());
    assert_eq!(found["mount"]["refusals"], serde_json::json!([]));
    assert!(found["mount"]["mount"]["kind"].is_string(), "{found}");
}

#[test]
fn owners_and_du_tell_who_needs_what_while_the_owner_lives() {
    let pool = Pool::new();
    let (code, text) = told(&["owners"], pool.path());
    assert_eq!(code, 0);
    insta::assert_snapshot!("owners", text);
    let owners = json(&["owners"], pool.path());
    assert_eq!((&owners["owners"][0]["need"], &owners["owners"][1]["need"]), (&"group".into(), &"batch".into()));
    let usage = json(&["du"], pool.path());
    let writer = &usage["writers"]["worker-0"];
    assert_eq!((&writer["packs"], &writer["open"]), (&3.into(), &0.into()));
    let third = fs::metadata(&pool.files("packs")[0]).unwrap().len();
    assert_eq!(writer["free"], third);
    let (code, text) = told(&["du"], pool.path());
    assert!(code == 0 && text.contains("can be given back") && text.ends_with("in all\n"), "{text}");
}

#[test]
fn top_shows_as_many_looks_as_asked_for() {
    let pool = Pool::new();
    let (code, text) = told(&["top", "--count", "2", "--interval", "0.1"], pool.path());
    assert_eq!((code, text.lines().count()), (0, 2));
    assert!(text.contains("tasks 1 unfinished, 1 finished in no batch  batches 1") && text.contains("/s)"), "{text}");
}

#[test]
fn repair_says_first_and_then_does_and_removes_only_what_the_journal_gave_up() {
    let pool = Pool::new();
    let before = pool.files("packs");
    let (code, said) = told(&["repair"], pool.path());
    assert!(code == 0 && said.contains("would remove ") && said.contains("say --yes to do it"), "{said}");
    assert_eq!(pool.files("packs"), before, "nothing was changed");
    let (code, did) = told(&["repair", "--yes"], pool.path());
    assert!(code == 0 && did.contains("removed ") && did.ends_with("done\n"), "{did}");
    assert_eq!(pool.files("packs").len(), 2);
    assert_eq!(
        told(&["repair"], pool.path()),
        (0, "nothing that can be mended; `thresh straw verify` looks at every byte that is needed\n".to_owned())
    );
    for r in pool.queue.live_refs() {
        Store::open(RealFs::new(), pool.path().join("packs")).unwrap().read(r).unwrap();
    }
}

#[test]
fn repair_names_damage_that_only_a_copy_can_mend_and_leaves_it() {
    let pool = Pool::new();
    let segment = pool.files("journal").into_iter().find(|path| path.extension().is_some_and(|e| e == "log")).unwrap();
    let mut bytes = fs::read(&segment).unwrap();
    bytes[140] ^= 1;
    fs::write(&segment, &bytes).unwrap();
    let before = pool.files("packs");
    let (code, text) = told(&["repair", "--yes"], pool.path());
    assert!(
        code == 1 && text.contains("cannot be mended: journal/seg-") && text.contains("\n  fix: restore"),
        "{text}"
    );
    assert_eq!((pool.files("packs"), fs::read(&segment).unwrap()), (before, bytes));
    let (code, text) = told(&["owners"], pool.path());
    assert!(code == 1 && text.contains("corrupt"), "{text}");
}

#[test]
fn compact_says_first_and_then_moves_what_is_needed_and_gives_the_rest_back() {
    let mut pool = Pool::new();
    // A fourth task ends in a pack of which nothing else is needed.
    let store = Store::open(RealFs::new(), pool.path().join("packs")).unwrap();
    let writer = store.writer("worker-1").unwrap();
    writer.publish("rejected", &[Record::new(vec![1; 50_000])]).unwrap();
    let result = writer.publish("group-3", &[Record::new(vec![3; 5000])]).unwrap();
    writer.seal();
    let old = result[0].clone();
    pool.commit(&Op::Complete { task: TaskId(3), submission: "s3".into(), result, attempt: None });
    let before = pool.files(".");
    let packs = pool.files("packs");
    let (code, said) = told(&["compact"], pool.path());
    assert!(code == 0 && said.contains("would move 1 record") && said.contains("\n  fix: say --yes"), "{said}");
    assert_eq!((pool.files("."), pool.files("packs")), (before, packs), "nothing was changed");
    assert_eq!(json(&["compact"], pool.path())["plan"][0]["pack"], old.pack);

    let (code, did) = told(&["compact", "--yes"], pool.path());
    assert!(code == 0 && did.contains("moved 1 record") && did.contains("done; files of"), "{did}");
    assert!(!pool.path().join(format!("packs/{}.pack", old.pack)).exists());
    let (_, found) = Journal::claim(RealFs::new(), pool.path().join("journal"), "owner-1").unwrap();
    let mut queue = Queue::new();
    for record in found.txns.iter().flatten() {
        queue.apply(&postcard::from_bytes(record).unwrap()).unwrap();
    }
    assert_eq!(store.read(&queue.resolve(&old)).unwrap().meta, vec![3; 5000]);
    for r in queue.live_refs() {
        store.read(r).unwrap();
    }
    assert_eq!(told(&["compact"], pool.path()), (0, "no pack is mostly dead\n".to_owned()));
    // Whoever owned the journal before is told at its next transaction.
    assert!(matches!(pool.journal.append(&[vec![]]), Err(straw::Error::Fenced { .. })));
}

#[test]
fn compact_gives_back_what_nothing_needs_and_keeps_its_hands_off_a_run_that_lives() {
    let pool = Pool::new();
    let store = Store::open(RealFs::new(), pool.path().join("packs")).unwrap();
    let writer = store.writer("worker-9").unwrap();
    let dead = writer.publish("rejected", &[Record::new(vec![1; 50_000])]).unwrap()[0].pack.clone();
    let before = pool.files(".");
    let (code, said) = told(&["compact", "--yes"], pool.path());
    assert!(code == 1 && said.contains("worker-9 is writing to pack") && said.contains("or stop the run"), "{said}");
    assert_eq!(pool.files("."), before, "nobody was fenced");
    // Its process ends without a word.
    drop(writer);
    let (code, did) = told(&["compact", "--yes"], pool.path());
    assert!(code == 0 && did.contains("that nothing needs were removed"), "{did}");
    assert!(!pool.path().join(format!("packs/{dead}.pack")).exists());
}

const ALL: [&[&str]; 8] = [
    &["inspect"],
    &["verify"],
    &["owners"],
    &["du"],
    &["repair", "--yes"],
    &["compact"],
    &["compact", "--yes"],
    &["top", "--count", "1"],
];

#[test]
fn verify_reads_what_a_queue_of_straws_own_names() {
    let pool = Pool::new();
    let (code, text) = told(&["verify"], pool.path());
    assert!(code == 0 && text.contains("named    2 records that the journal names were read and are whole"), "{text}");
    let r = pool.queue.live_refs().next().unwrap().clone();
    let path = pool.path().join(format!("packs/{}.pack", r.pack));
    let mut bytes = fs::read(&path).unwrap();
    bytes[(r.offset + r.len - 1) as usize] ^= 1;
    fs::write(&path, bytes).unwrap();
    let (code, text) = told(&["verify"], pool.path());
    assert!(code == 1 && text.contains(&r.pack), "{text}");
}

#[test]
fn a_pack_that_is_needed_and_missing_is_named_by_every_command_and_nothing_is_done_about_it() {
    let pool = Pool::new();
    let needed = pool.queue.live_refs().next().unwrap().pack.clone();
    fs::remove_file(pool.path().join(format!("packs/{needed}.pack"))).unwrap();
    let missing = format!("packs/{needed}.pack at byte 0: it is missing; needed of it: 1 record (4.9 KiB)");
    let (code, text) = told(&["inspect"], pool.path());
    assert!(
        code == 1 && text.contains(&format!("damage   {missing}")) && text.contains("not sound\n  fix: "),
        "{text}"
    );
    assert!(json(&["inspect"], pool.path())["store"]["errors"][0]["file"].as_str().unwrap().contains(&needed));
    let (code, text) = told(&["repair"], pool.path());
    assert!(code == 1 && text.contains(&format!("cannot be mended: {missing}")), "{text}");
    let (code, text) = told(&["verify"], pool.path());
    assert!(code == 1 && text.contains(&needed), "{text}");
    for args in [&["owners"][..], &["du"], &["top", "--count", "1"]] {
        let (code, text) = told(args, pool.path());
        assert!(code == 0 && text.contains("1 place damaged or missing: look with"), "{args:?}: {text}");
    }
    let before = (pool.files("packs"), pool.files("journal"));
    let (code, text) = told(&["compact", "--yes"], pool.path());
    assert!(code == 1 && text.contains("it is missing") && text.contains("\n  fix: "), "{text}");
    assert_eq!((pool.files("packs"), pool.files("journal")), before);
    // The whole folder.
    fs::remove_dir_all(pool.path().join("packs")).unwrap();
    for args in [&["inspect"][..], &["verify"], &["repair"]] {
        let (code, text) = told(args, pool.path());
        assert!(code == 1 && text.contains("packs at byte 0: the folder is missing"), "{args:?}: {text}");
    }
}

#[test]
fn a_pack_that_was_given_up_and_is_gone_is_no_damage() {
    let pool = Pool::new();
    let gone = pool.queue.retired().first().unwrap();
    fs::remove_file(pool.path().join(format!("packs/{gone}.pack"))).unwrap();
    for args in ALL {
        let (code, text) = told(args, pool.path());
        assert!(code == 0 && !text.contains("missing"), "{args:?}: {text}");
    }
}

#[test]
fn a_journal_that_is_gone_is_named_by_every_command_and_costs_no_pack() {
    let empty = |journal: &Path| fs::create_dir(journal).unwrap();
    let absent = |_: &Path| ();
    let only_claims = |journal: &Path| {
        fs::create_dir(journal).unwrap();
        fs::write(journal.join("epoch-0000000001"), "owner-0").unwrap();
    };
    for (what, makes) in [
        ("it is missing", &absent as &dyn Fn(&Path)),
        ("it is missing", &empty),
        ("its segments are missing", &only_claims),
    ] {
        let pool = Pool::new();
        let journal = pool.path().join("journal");
        fs::remove_dir_all(&journal).unwrap();
        makes(&journal);
        let packs = pool.files("packs");
        for args in ALL {
            let (code, text) = told(args, pool.path());
            let sizes = matches!(args[0], "du" | "top");
            assert_eq!(code, if sizes { 0 } else { 1 }, "{args:?}: {text}");
            let said = match args[0] {
                "inspect" | "verify" => format!("damage   journal at byte 0: {what}"),
                "repair" => format!("cannot be mended: journal at byte 0: {what}"),
                "owners" => "fix: restore the journal from a copy".to_owned(),
                "compact" => "\n  fix: ".to_owned(),
                _ => "1 place damaged or missing".to_owned(),
            };
            assert!(text.contains(&said), "{args:?}: {text}");
            assert_eq!(pool.files("packs"), packs, "{args:?} removed packs that nothing is known of");
        }
    }
}

#[test]
fn a_damaged_journal_is_named_by_every_command_and_costs_no_pack() {
    let pool = Pool::new();
    let segment = pool.files("journal").into_iter().find(|path| path.extension().is_some_and(|e| e == "log")).unwrap();
    let mut bytes = fs::read(&segment).unwrap();
    bytes[140] ^= 1;
    fs::write(&segment, &bytes).unwrap();
    let packs = pool.files("packs");
    for args in ALL {
        let (code, text) = told(args, pool.path());
        let sizes = matches!(args[0], "du" | "top");
        assert_eq!(code, if sizes { 0 } else { 1 }, "{args:?}: {text}");
        let said = text.contains("seg-0000000001-00000000.log") || text.contains("1 place damaged or missing");
        assert!(said, "{args:?}: {text}");
        assert_eq!((pool.files("packs"), fs::read(&segment).unwrap()), (packs.clone(), bytes.clone()), "{args:?}");
    }
}

#[test]
fn in_a_pool_that_queues_share_what_others_may_need_is_told_and_kept() {
    let pool = Pool::new();
    let store = Store::open(RealFs::new(), pool.path().join("packs")).unwrap();
    store.register(straw::pool::MAIN).unwrap();
    let fork = store.register("fork").unwrap();
    let retired = pool.queue.retired().clone();
    let packs = pool.files("packs");
    let (code, text) = told(&["inspect"], pool.path());
    assert!(code == 0 && text.contains("queue    fork  uses the packs") && text.contains("queue    main  "), "{text}");
    let third = fs::metadata(packs.iter().find(|p| p.to_str().unwrap().contains(retired.first().unwrap())).unwrap());
    let third = third.unwrap().len();
    let usage = json(&["du"], pool.path());
    let writer = &usage["writers"]["worker-0"];
    assert_eq!((&writer["free"], &writer["forOthers"]), (&0.into(), &third.into()));
    assert!(told(&["du"], pool.path()).1.contains("kept for other queues"));
    let (code, text) = told(&["owners"], pool.path());
    assert!(code == 0 && text.contains("packs are shared with fork"), "{text}");
    for args in ALL {
        let (code, text) = told(args, pool.path());
        assert_eq!(code, 0, "{args:?}: {text}");
        let there: Vec<PathBuf> = pool.files("packs").into_iter().filter(|p| packs.contains(p)).collect();
        assert_eq!(there, packs, "{args:?} took what the fork may need");
    }
    // Once it has left, what the run gave up goes.
    fork.leave().unwrap();
    let (code, text) = told(&["inspect"], pool.path());
    assert!(code == 0 && text.contains("queue    fork  has left"), "{text}");
    let (code, text) = told(&["repair", "--yes"], pool.path());
    assert!(code == 0 && text.contains("removed "), "{text}");
    assert!(pool.files("packs").len() < packs.len());
}
