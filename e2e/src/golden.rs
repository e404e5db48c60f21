//! What people see of an object, on record under `e2e/goldens/`.

use std::process::Command;

use anyhow::{Context as _, ensure};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::{
    columns,
    stage::{Stage, repository},
};

/// `kubectl get`, one space between columns, without the age; columns named in `vary` are `*`.
///
/// # Errors
/// When kubectl fails.
pub fn line(stage: &Stage, kind: &str, name: &str, vary: &[&str]) -> anyhow::Result<String> {
    let output = Command::new("kubectl").args(["get", kind, name, "--namespace", &stage.namespace]).output()?;
    ensure!(output.status.success(), "kubectl get: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout)?;
    let (mut heads, mut cells) = (Vec::new(), Vec::new());
    for (head, cell) in columns::of(&text)? {
        if head == "AGE" {
            continue;
        }
        let value = if vary.contains(&head.as_str()) { "*".into() } else { cell };
        cells.push(if value.is_empty() { "-".into() } else { value });
        heads.push(head);
    }
    Ok(format!("{}\n{}\n", heads.join(" "), cells.join(" ")))
}

/// Type, status and reason of each condition, by type.
pub fn conditions(list: &[Condition]) -> String {
    let mut lines: Vec<_> = list.iter().map(|c| format!("{} {} {}\n", c.type_, c.status, c.reason)).collect();
    lines.sort();
    lines.concat()
}

/// Compares with what is on record; `THRESH_E2E_BLESS=1` puts it there.
///
/// # Errors
/// When it differs.
pub fn compare(name: &str, text: &str) -> anyhow::Result<()> {
    let path = repository().join("e2e/goldens").join(format!("{name}.txt"));
    if std::env::var("THRESH_E2E_BLESS").is_ok_and(|v| v == "1") {
        std::fs::create_dir_all(repository().join("e2e/goldens"))?;
        std::fs::write(&path, text)?;
    }
    let wanted = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    ensure!(text == wanted, "{} says\n{wanted}\nand it is\n{text}", path.display());
    Ok(())
}
