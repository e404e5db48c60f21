//! Paths on the volume.

/// `pvc://CLAIM/PATH` in its two parts, or nothing if it is not one.
pub fn parse_pvc(source: &str) -> Option<(&str, &str)> {
    let (claim, path) = source.strip_prefix("pvc://")?.split_once('/')?;
    let path = path.trim_end_matches('/');
    (!claim.is_empty() && !path.is_empty()).then_some((claim, path))
}

/// The folder of a run, relative to the volume's root.
pub fn run_dir(uid: &str) -> String {
    format!("runs/{uid}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_names_a_claim_and_a_path() {
        assert_eq!(parse_pvc("pvc://data/sort5/model/"), Some(("data", "sort5/model")));
        assert_eq!(parse_pvc("pvc://data"), None);
        assert_eq!(parse_pvc("pvc:///x"), None);
        assert_eq!(parse_pvc("/x"), None);
    }
}
