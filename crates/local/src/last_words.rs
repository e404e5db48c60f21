//! The one line of a log that says why a process ended.

use control::log::words_of;

const LONGEST: usize = 300;

/// The last line that complains, or else the last line; without its time and level, from human and from JSON logs. Whom SIGKILL met
/// (`killed`) had no time to say why: then only a complaint counts.
#[must_use]
pub fn last_words(lines: &[String], killed: bool) -> String {
    let complains = |line: &String| line.contains("ERROR") || line.contains("panicked at") || line.contains("rror:");
    let last = lines.len().checked_sub(1).filter(|_| !killed);
    let Some(place) = lines.iter().rposition(complains).or(last) else { return String::new() };
    let mut text = words_of(&lines[place]);
    // A panic says where on one line and why on the next.
    if lines[place].contains("panicked at")
        && let Some(why) = lines.get(place + 1)
    {
        text = format!("{text} {}", why.trim());
    }
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(lines: &[&str]) -> String {
        last_words(&lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>(), false)
    }

    #[test]
    fn the_last_complaint_is_taken_without_its_time_and_level() {
        assert_eq!(
            words(&[
                "2026-11-29T17:50:48.868559Z ERROR rank 1 failed first code=137",
                "2026-11-29T17:50:48.900000Z  INFO bye",
            ]),
            "rank 1 failed first code=137"
        );
        assert_eq!(words(&["2026-11-29T17:50:48.9Z  INFO a", "boom"]), "boom");
        assert_eq!(
            words(&[r#"{"timestamp":"2026-11-29T17:50:48Z","level":"ERROR","message":"no space left","code":1}"#]),
            "no space left"
        );
        assert_eq!(
            words(&["thread 'main' panicked at src/x.rs:1:2:", "index out of bounds", "note: run with"]),
            "thread 'main' panicked at src/x.rs:1:2: index out of bounds"
        );
        assert_eq!(words(&[]), "");
    }

    #[test]
    fn who_was_killed_is_not_quoted_unless_it_complained() {
        let lines = ["2026-11-29T17:50:48Z  INFO step 3".to_owned()];
        assert_eq!(last_words(&lines, true), "");
        let lines = ["ERROR rank 1 failed first".to_owned(), lines[0].clone()];
        assert_eq!(last_words(&lines, true), "ERROR rank 1 failed first");
    }

    #[test]
    fn long_lines_are_cut_between_characters() {
        assert_eq!(words(&["é".repeat(400).as_str()]).chars().count(), LONGEST + 1);
    }
}
