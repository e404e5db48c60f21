//! The commands that README and docs show are run, in the order in which they stand there.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use crate::local_run::{binaries, copy_folder, repository};

/// Lines of a page's `sh` blocks, without comments.
fn commands(page: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(page).unwrap();
    let blocks = text.split("```").skip(1).step_by(2).filter_map(|block| block.strip_prefix("sh\n"));
    let lines = blocks.flat_map(str::lines).map(|line| line.split(" #").next().unwrap_or_default().trim());
    lines.filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

fn pages() -> Vec<PathBuf> {
    let docs = std::fs::read_dir(repository().join("docs/src")).unwrap().flatten().map(|entry| entry.path());
    let mut pages: Vec<PathBuf> = docs.filter(|path| path.extension().is_some_and(|ending| ending == "md")).collect();
    pages.sort();
    pages.insert(0, repository().join("README.md"));
    pages
}

#[test]
fn every_command_in_readme_and_docs_does_what_it_says() {
    let folder = tempfile::tempdir().unwrap();
    copy_folder(&repository().join("examples"), &folder.path().join("examples"));
    let path = format!("{}:{}", binaries().display(), std::env::var("PATH").unwrap());
    let mut ran = 0;
    for page in pages() {
        for command in commands(&page) {
            if let Some(target) = command.strip_prefix("make ") {
                // They run this very test, or hours: that they exist and parse is what can be said here.
                let make = Command::new("make")
                    .arg("-n")
                    .args(target.split_whitespace())
                    .current_dir(repository())
                    .output()
                    .unwrap();
                assert!(make.status.success(), "{}: {command}", page.display());
                continue;
            }
            let mut shell = Command::new("sh");
            let run = shell.args(["-c", &command]).current_dir(folder.path()).env("PATH", &path).output().unwrap();
            let error = String::from_utf8_lossy(&run.stderr);
            assert!(run.status.success(), "{}: {command}\n{error}", page.display());
            ran += 1;
        }
    }
    assert!(ran >= 6, "the README's commands were found");
    assert!(folder.path().join("model/model.safetensors").is_file());
}

#[test]
fn every_link_between_pages_leads_somewhere() {
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap();
        let links = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for link in links.filter(|link| !link.contains("://") && !link.starts_with('#')) {
            let target = page.parent().unwrap().join(link.split('#').next().unwrap_or_default());
            assert!(target.exists(), "{}: {link}", page.display());
        }
    }
}
