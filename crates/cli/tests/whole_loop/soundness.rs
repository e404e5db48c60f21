//! `thresh straw verify` finds whatever is damaged of what the journal names.

use std::{fs, path::Path, process::Command};

use conductor::State;
use rustix::process::Signal;
use straw::RealFs;

use crate::local_run::{LocalRun, copy_folder, quickstart_manifest, signal};

type Damage<'a> = &'a dyn Fn(&Path);

fn verify(folder: &Path) -> (bool, String) {
    let out = Command::new(env!("CARGO_BIN_EXE_thresh")).args(["straw", "verify"]).arg(folder).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    (out.status.success(), text)
}

fn flip(path: &Path, offset: u64) {
    let mut bytes = fs::read(path).unwrap();
    bytes[usize::try_from(offset).unwrap()] ^= 1;
    fs::write(path, bytes).unwrap();
}

fn state_of(run_dir: &Path) -> State {
    let (snapshot, txns) = straw::journal::read(&*RealFs::new(), run_dir.join("journal")).unwrap();
    conductor::replay(snapshot.as_deref(), txns.iter().flatten().map(Vec::as_slice)).unwrap()
}

fn weights_in(folder: &Path) -> std::path::PathBuf {
    let mut entries = fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path());
    entries.find(|path| path.extension().is_some_and(|kind| kind == "safetensors")).unwrap()
}

#[test]
fn verify_finds_damage_in_everything_the_journal_names() {
    let manifest = quickstart_manifest().replace("totalSteps: 50", "totalSteps: 100000");
    let mut run = LocalRun::start(&manifest, &[], &[]);
    run.wait_for_steps(5);
    // At once: what is in flight stays in the queue.
    signal(run.pid(), Signal::KILL);
    run.wait();
    let run_dir = run.run_dir().unwrap();
    let state = state_of(&run_dir);
    let (sound, text) = verify(&run_dir);
    assert!(sound && text.trim_end().ends_with("sound"), "{text}");

    let record = state.queue.live_refs().next().expect("a batch is retained").clone();
    let pack = format!("packs/{}.pack", record.pack);
    let tiles = state.commits.back().unwrap().commit.folder.clone();
    let weights = state.versions[&state.version].folder.clone();
    let damages: [(&str, Damage); 5] = [
        (&record.pack, &|copy| flip(&copy.join(&pack), record.offset + record.len / 2)),
        ("packs", &|copy| fs::remove_dir_all(copy.join("packs")).unwrap()),
        ("journal", &|copy| fs::remove_dir_all(copy.join("journal")).unwrap()),
        (&tiles, &|copy| flip(&weights_in(&copy.join(&tiles)), 3_000)),
        (&weights, &|copy| flip(&weights_in(&copy.join(&weights)), 30_000)),
    ];
    for (named, damage) in damages {
        let copy = tempfile::tempdir().unwrap();
        copy_folder(&run_dir, copy.path());
        damage(copy.path());
        let (sound, text) = verify(copy.path());
        assert!(
            !sound && text.contains(&format!("damage   {named}")) || text.contains(&format!("damage   packs/{named}")),
            "{named}: {text}"
        );
        assert!(text.contains("not sound") && text.contains("fix:"), "{text}");
    }

    let nothing = tempfile::tempdir().unwrap();
    let (sound, text) = verify(nothing.path());
    assert!(!sound && text.contains("there is no store here") && text.contains("fix:"), "{text}");
}
