//! The manifest that is played: the user's own, with more steps when the kills need them.

/// The text with another `totalSteps`; none when it has none.
pub fn with_total_steps(text: &str, steps: u64) -> Option<String> {
    let mut found = false;
    let lines: Vec<String> = text
        .lines()
        .map(|line| {
            let indent = line.len() - line.trim_start().len();
            if found || !line[indent..].starts_with("totalSteps:") {
                return line.to_owned();
            }
            found = true;
            format!("{}totalSteps: {steps}", &line[..indent])
        })
        .collect();
    found.then(|| lines.join("\n") + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_number_of_steps_changes() {
        let text = "spec:\n  mode: Sync\n  totalSteps: 50   # so many\n  # totalSteps: of old\n";
        assert_eq!(
            with_total_steps(text, 62).unwrap(),
            "spec:\n  mode: Sync\n  totalSteps: 62\n  # totalSteps: of old\n"
        );
        assert!(with_total_steps("spec: {}", 1).is_none());
    }
}
