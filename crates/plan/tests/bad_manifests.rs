//! Bad manifests: each is refused before anything starts, and each message is on record.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::Path;

#[test]
fn every_bad_manifest_is_refused_with_a_message_that_names_line_field_and_fix() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bad");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 30, "{} fixtures", files.len());
    for path in files {
        let text = std::fs::read_to_string(&path).unwrap();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let Err(problems) = plan::check(&text, "rljob.yaml", &[]) else {
            panic!("{name} is accepted");
        };
        assert!(!problems.is_empty(), "{name}");
        for p in &problems {
            assert!(!p.message.is_empty() && !p.fix.is_empty(), "{name}: {p:?}");
            assert!(p.line.is_some() || name == "01-empty", "{name}: {p:?}");
        }
        insta::with_settings!({ prepend_module_to_snapshot => false, snapshot_path => "bad_snapshots" }, {
            insta::assert_snapshot!(name, api::render(&problems));
        });
    }
}
