//! Every manifest under examples/ is valid.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::{Path, PathBuf};

fn manifests(folder: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && path.file_name().is_some_and(|n| n != "volumes") {
            manifests(&path, out);
        } else if path.extension().is_some_and(|e| e == "yaml") {
            out.push(path);
        }
    }
}

#[test]
fn every_example_is_valid() {
    let mut found = Vec::new();
    manifests(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples"), &mut found);
    assert!(found.len() >= 3, "{found:?}");
    for path in found {
        let text = std::fs::read_to_string(&path).unwrap();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        match plan::check(&text, &name, &[]) {
            Ok(objects) => assert!(!objects.is_empty()),
            Err(problems) => panic!("{}\n{}", path.display(), api::render(&problems)),
        }
    }
}
