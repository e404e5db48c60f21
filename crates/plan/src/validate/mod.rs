//! What the API server refuses, and what it cannot see. A laptop refuses exactly what a cluster refuses.
//!
//! [`validate`] repeats every CEL rule of `api` (a test compares the two), decodes pod templates strictly, and checks what CEL
//! cannot say. A problem's `rule` is, for a repeated rule, the very message of the API server.

mod edit;
mod manifest;
pub mod pod_template;
mod rljob;
mod roles;

pub use edit::{Edit, Effect, edits, restarts_trainer};
pub use manifest::check;
pub use rljob::validate;
pub use roles::{validate_pool, validate_serving};

use api::Problem;

/// Collects problems.
pub(crate) struct Checks {
    pub problems: Vec<Problem>,
}

impl Checks {
    pub fn new() -> Self {
        Self { problems: Vec::new() }
    }

    /// Adds a problem unless `holds`. The rule is the API server's message where it has the same rule.
    pub fn rule(&mut self, holds: bool, path: &str, rule: &str, message: impl Into<String>, fix: impl Into<String>) {
        if !holds {
            self.problems.push(Problem::new(path, message, rule, fix));
        }
    }

    pub fn name(&mut self, name: &str, max: usize) {
        self.rule(
            name.chars().count() <= max,
            "metadata.name",
            &format!("metadata.name must be at most {max} characters"),
            format!("`{name}` has {} characters; names of its children would be too long", name.chars().count()),
            format!("use at most {max} characters"),
        );
        self.rule(
            dns_label(name),
            "metadata.name",
            "metadata.name must be lower-case letters, digits and '-', beginning with a letter",
            format!("`{name}` cannot be part of a host name"),
            "use lower-case letters, digits and '-', beginning with a letter and not ending with '-'",
        );
    }

    pub fn source(&mut self, source: &str, claim: &str, spec: &str) {
        let shaped = pvc_shaped(source);
        self.rule(
            shaped,
            &format!("{spec}model.source"),
            "must be pvc://CLAIM/PATH",
            format!("`{source}` does not name a folder on a volume"),
            format!("write pvc://{claim}/FOLDER"),
        );
        let on_claim = source.starts_with(&format!("pvc://{claim}/"));
        self.rule(
            on_claim,
            &format!("{spec}model"),
            "model.source must be on storage.claimName",
            format!("`{source}` is not on the claim `{claim}`, the only volume that is mounted"),
            format!("write pvc://{claim}/FOLDER, or change storage.claimName"),
        );
    }
}

fn dns_label(name: &str) -> bool {
    let ok = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    name.starts_with(|c: char| c.is_ascii_lowercase()) && name.chars().all(ok) && !name.ends_with('-')
}

/// The CEL rule's regular expression, by hand: `^pvc://[a-z0-9][-a-z0-9.]*/[^/].*$` and no `..`.
fn pvc_shaped(source: &str) -> bool {
    let Some(rest) = source.strip_prefix("pvc://") else { return false };
    let Some((claim, path)) = rest.split_once('/') else { return false };
    let first = claim.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
    let all = claim.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.');
    first && all && !path.is_empty() && !path.starts_with('/') && !source.contains("..") && !source.contains('\n')
}

/// A path on the volume that cannot leave it.
fn relative(path: &str) -> bool {
    !path.is_empty() && !path.starts_with('/') && !path.contains("..")
}
