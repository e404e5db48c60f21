//! A refused manifest, or a wrong flag, changes nothing and starts nothing.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

const GOOD: &str = include_str!("../../../examples/quickstart/rljob.yaml");

struct Desk {
    folder: tempfile::TempDir,
}

impl Desk {
    /// A folder with the quickstart's data and this manifest.
    fn new(manifest: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("rljob.yaml"), manifest).unwrap();
        let claim = folder.path().join("volumes/thresh-data/sort5");
        fs::create_dir_all(claim.join("model")).unwrap();
        for file in ["model/config.json", "model/tokenizer.json"] {
            fs::write(claim.join(file), "{}").unwrap();
        }
        for file in ["train.jsonl", "eval.jsonl", "warm.jsonl"] {
            fs::write(claim.join(file), r#"{"prompt": "p", "label": "l", "completion": "c"}"#).unwrap();
        }
        Self { folder }
    }

    fn thresh(&self, args: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_thresh")).args(args).current_dir(self.folder.path()).output().unwrap()
    }

    fn refused(&self, args: &[&str]) -> String {
        let before = self.files();
        let output = self.thresh(args);
        assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(self.files(), before, "a refused run leaves no trace");
        assert!(output.stdout.is_empty());
        String::from_utf8(output.stderr).unwrap()
    }

    fn files(&self) -> Vec<String> {
        fn walk(folder: &Path, all: &mut Vec<String>) {
            for entry in fs::read_dir(folder).unwrap().flatten() {
                all.push(entry.path().display().to_string());
                if entry.path().is_dir() {
                    walk(&entry.path(), all);
                }
            }
        }
        let mut all = Vec::new();
        walk(self.folder.path(), &mut all);
        all.sort();
        all
    }
}

#[test]
fn all_problems_are_told_at_once_with_file_and_line_and_nothing_is_left_behind() {
    let bad = GOOD
        .replace("perNode: 2", "perNode: 3")
        .replace("maxNewTokens: 8", "maxNewTokens: 0")
        .replace("  reward:", "  rewrd:");
    let error = Desk::new(&bad).refused(&["run", "rljob.yaml"]);
    insta::assert_snapshot!(error);
}

#[test]
fn files_that_a_run_needs_at_once_are_looked_for_before_it_starts() {
    let desk = Desk::new(GOOD);
    fs::remove_file(desk.folder.path().join("volumes/thresh-data/sort5/train.jsonl")).unwrap();
    fs::remove_file(desk.folder.path().join("volumes/thresh-data/sort5/model/config.json")).unwrap();
    let error = desk.refused(&["run", "rljob.yaml", "--state", "st"]);
    let folder = fs::canonicalize(desk.folder.path()).unwrap().display().to_string();
    insta::assert_snapshot!(error.replace(&folder, "FOLDER"));
}

#[test]
fn answers_longer_than_the_models_context_are_refused() {
    let desk = Desk::new(&GOOD.replace("maxNewTokens: 8", "maxNewTokens: 64"));
    let config = desk.folder.path().join("volumes/thresh-data/sort5/model/config.json");
    fs::write(config, r#"{"max_position_embeddings": 64}"#).unwrap();
    let error = desk.refused(&["run", "rljob.yaml"]);
    assert!(
        error.contains(
            "spec.sampling.maxNewTokens: 64 new tokens leave no room for a prompt in the model's 64 positions"
        ) && error.contains("fix: write at most 64 less the longest prompt"),
        "{error}"
    );
}

#[test]
fn flags_that_no_engine_has_are_refused() {
    let error = Desk::new(&GOOD.replace("--threads=1", "--thread=1")).refused(&["run", "rljob.yaml"]);
    assert!(
        error.contains("engine.args[0]: the native engine has no --thread\n  fix: did you mean --threads?"),
        "{error}"
    );
    let error = Desk::new(&GOOD.replace("--threads=1", "--threads=two")).refused(&["run", "rljob.yaml"]);
    assert!(
        error.contains("engine.args[0]: --threads takes a whole number, not `two`\n  fix: write a number"),
        "{error}"
    );
}

#[test]
fn data_and_models_that_cannot_be_read_are_refused_with_the_file_and_the_line() {
    for (file, content, said) in [
        ("train.jsonl", "", "train.jsonl: it holds no rows"),
        (
            "train.jsonl",
            "{\"prompt\": \"p\", \"label\": \"l\"}\n{\"prompt\": \"p\"}\n",
            "train.jsonl: line 2: it has no text under `label`",
        ),
        ("train.jsonl", "{\"prompt\": \"p\", \"label\": 3}\n", "line 1: it has no text under `label`"),
        ("eval.jsonl", "\u{feff}{}", "eval.jsonl: line 1: it begins with a byte order mark"),
        ("warm.jsonl", "[1", "warm.jsonl: line 1: not JSON"),
        ("model/tokenizer.json", "{", "tokenizer.json: not JSON"),
        ("model/config.json", "no", "config.json: not JSON"),
    ] {
        let desk = Desk::new(GOOD);
        fs::write(desk.folder.path().join("volumes/thresh-data/sort5").join(file), content).unwrap();
        let error = desk.refused(&["run", "rljob.yaml"]);
        assert!(error.contains(said) && error.contains("fix: "), "{file}: {error}");
    }
}

#[test]
fn what_can_never_work_here_is_refused() {
    let replicas = GOOD.replacen("        replicas: 2", "        replicas: 0", 1);
    assert_ne!(replicas, GOOD);
    let error = Desk::new(&replicas).refused(&["run", "rljob.yaml"]);
    assert!(error.contains("replicas: a run without engines generates nothing"), "{error}");
    let desk = Desk::new(GOOD);
    let error = desk.refused(&["run", "rljob.yaml", "--volume", "thresh-dat=."]);
    assert!(error.contains("--volume names the claim thresh-dat, and this run has only thresh-data"), "{error}");
    for (from, to, said) in [
        ("temperature: 1.0", "temperature: 1e39", "spec.sampling.temperature"),
        ("temperature: 1.0", "temperature: 1e-8", "spec.sampling.temperature"),
        ("lr: 5e-4", "lr: 1e38", "spec.optimizer.lr"),
    ] {
        assert!(GOOD.contains(from), "{from}");
        let error = Desk::new(&GOOD.replace(from, to)).refused(&["run", "rljob.yaml"]);
        assert!(error.contains(said), "{to}: {error}");
    }
}

#[test]
fn a_wrong_volume_flag_is_an_error_of_the_flags() {
    let desk = Desk::new(GOOD);
    let error = desk.refused(&["run", "rljob.yaml", "--volume", "thresh-data=/no/such/folder"]);
    assert!(error.contains("--volume thresh-data=/no/such/folder: no such folder"), "{error}");
    let output = desk.thresh(&["run", "rljob.yaml", "--volume", "nonsense"]);
    assert_eq!(output.status.code(), Some(2));
    let output = desk.thresh(&["run", "missing.yaml"]);
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.starts_with("error: cannot read missing.yaml: there is no such file\n  fix: "), "{error}");
    let error = desk.refused(&["run", "rljob.yaml", "--state", "rljob.yaml"]);
    assert!(
        error.contains("the state folder rljob.yaml cannot be made: ") && error.contains("with --state"),
        "{error}"
    );
    fs::create_dir(desk.folder.path().join("folder")).unwrap();
    for (folder, said) in [("folder", "it is a folder\n  fix: "), (".", "name the manifest in it: ./rljob.yaml")] {
        let error = desk.refused(&["run", folder]);
        assert!(error.starts_with(&format!("error: cannot read {folder}: ")) && error.contains(said), "{error}");
    }
}

#[test]
fn yaml_that_cannot_be_read_is_told_with_its_place() {
    let line = GOOD.lines().position(|line| line == "  mode: Sync").unwrap() + 1;
    for (to, place, fix) in
        [("  mode: [Sync", line + 1, "a bracket or a quote is open"), ("\tmode: Sync", line, "with blanks")]
    {
        let error = Desk::new(&GOOD.replace("  mode: Sync", to)).refused(&["run", "rljob.yaml"]);
        let broken = if place == line { "`mode: Sync`" } else { "`batch:`" };
        assert!(error.starts_with(&format!("error: rljob.yaml:{place}: ")), "{error}");
        assert!(error.contains(broken) && error.contains("\n  fix: ") && error.contains(fix), "{error}");
    }
    let error = Desk::new(&GOOD.replace("temperature: 1.0", "temperature: .nan")).refused(&["run", "rljob.yaml"]);
    assert!(
        error.contains(": non-finite float `.nan`, at `temperature: .nan`\n  fix: write a number that is finite"),
        "{error}"
    );
}

#[test]
fn what_cannot_be_exported_is_told_with_a_fix() {
    let desk = Desk::new(GOOD);
    let export = |folder: &str, out: &str| {
        let output = desk.thresh(&["hf", "export", folder, "--out", out]);
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    fs::create_dir_all(desk.folder.path().join("st/objects")).unwrap();
    fs::write(desk.folder.path().join("st/status.json"), r#"{"name": "r"}"#).unwrap();
    fs::create_dir_all(desk.folder.path().join("tiles")).unwrap();
    fs::write(desk.folder.path().join("tiles/index.json"), "{}").unwrap();
    for (folder, out, said) in [
        (".", "model", "neither a state folder of a run nor a folder of tiles\n  fix: "),
        ("st", "model", "has no commit yet, so there are no weights to export\n  fix: "),
        ("tiles", "model", "thresh hf export tiles --out model --model "),
        (
            "st",
            "tiles",
            "--out tiles: is there already, and nothing is written over\n  fix: name another folder with --out",
        ),
    ] {
        let error = export(folder, out);
        assert!(error.starts_with("error: ") && error.contains(said), "{error}");
    }
}

#[test]
fn chaos_names_the_folder_that_holds_a_run() {
    let desk = Desk::new(GOOD);
    fs::create_dir_all(desk.folder.path().join("st/objects")).unwrap();
    let error = desk.refused(&["chaos", "rljob.yaml", "--state", "st"]);
    assert!(error.starts_with("error: st: holds a run already") && error.contains("\n  fix: "), "{error}");
}

#[test]
fn one_file_is_one_run_and_what_it_refers_to_is_in_it() {
    let two = format!("{GOOD}\n---\n{}", GOOD.replace("name: sort5-grpo", "name: second"));
    let error = Desk::new(&two).refused(&["run", "rljob.yaml"]);
    assert!(error.contains("a second RLJob in one file"), "{error}");
    let serving = "apiVersion: thresh.dev/v1alpha1\nkind: RolloutPool\nmetadata: {name: p}\nspec:\n  placement: Replicas\n  \
                   replicas: 1\n  storage: {claimName: c}\n";
    let error = Desk::new(serving).refused(&["run", "rljob.yaml"]);
    assert!(error.contains("the file holds no RLJob"), "{error}");
}

#[test]
fn a_refused_edit_of_a_stopped_run_changes_nothing_in_its_state() {
    let desk = Desk::new(GOOD);
    let stored = desk.folder.path().join("st/objects/rljobs");
    fs::create_dir_all(&stored).unwrap();
    let mut job: serde_json::Value = stored_job();
    job["spec"]["sampling"]["samplesPerPrompt"] = 4.into();
    fs::write(stored.join("sort5-grpo.json"), job.to_string()).unwrap();
    let error = desk.refused(&["run", "rljob.yaml", "--state", "st"]);
    assert!(error.contains("rljob.yaml:") && error.contains("spec.sampling"), "{error}");
    let renamed = GOOD.replace("name: sort5-grpo", "name: another");
    fs::write(desk.folder.path().join("rljob.yaml"), renamed).unwrap();
    let error = desk.refused(&["run", "rljob.yaml", "--state", "st"]);
    assert!(error.contains("the state folder holds the run `sort5-grpo`"), "{error}");
}

fn stored_job() -> serde_json::Value {
    let objects = api::manifest::read(GOOD, "rljob.yaml").unwrap();
    match &objects[0].kind {
        api::manifest::Kind::RLJob(job) => serde_json::to_value(job).unwrap(),
        other => panic!("{}", other.name()),
    }
}

#[test]
fn who_looks_at_nothing_is_told_what_to_do() {
    let desk = Desk::new(GOOD);
    for command in ["status", "report", "logs", "events", "why"] {
        let output = desk.thresh(&[command]);
        assert_eq!(output.status.code(), Some(1));
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.starts_with("error: no run under runs\n  fix: "), "{error}");
    }
}

#[test]
fn crds_are_written_as_they_are_checked_in() {
    let desk = Desk::new(GOOD);
    assert!(desk.thresh(&["crds", "--out", "crds"]).status.success());
    let checked_in = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crds");
    let mut files = 0;
    for entry in fs::read_dir(desk.folder.path().join("crds")).unwrap().flatten() {
        files += 1;
        let there = checked_in.join(entry.file_name());
        assert_eq!(
            fs::read_to_string(entry.path()).unwrap(),
            fs::read_to_string(&there).unwrap(),
            "{}",
            there.display()
        );
    }
    assert_eq!(files, 3);
}
