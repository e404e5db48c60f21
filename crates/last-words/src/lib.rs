//! The one line of a log that says why a process ended.
//!
//! What it is: pure functions on text. A cluster hands over the raw end of a container's log, a laptop one line that was chosen
//! when the process ended; both come out as the same line, and a line that was chosen before comes out as it is.
//!
//! What it is **not**: it reads no log and knows no pod.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod said_once;
mod words_of;

pub use said_once::said_once;
pub use words_of::words_of;

/// Characters of the longest line that is quoted whole.
const LONGEST: usize = 300;

/// The last line that complains, or else the last line; without its time and level, from human and from JSON logs. Whom SIGKILL met
/// (`killed`) had no time to say why: then only a complaint counts.
#[must_use]
pub fn last_words(log: &str, killed: bool) -> String {
    if chosen_before(log) {
        return log.trim().to_owned();
    }
    let lines: Vec<&str> = log.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let complains = |line: &&str| line.contains("ERROR") || line.contains("panicked at") || line.contains("rror:");
    let last = lines.len().checked_sub(1).filter(|_| !killed);
    let Some(place) = lines.iter().rposition(complains).or(last) else { return String::new() };
    let Some(line) = lines.get(place) else { return String::new() };
    let mut text = whole(line).map_or_else(|| words_of(line), |line| words_of(&line));
    // A panic says where on one line and why on the next.
    if line.contains("panicked at")
        && let Some(why) = lines.get(place + 1)
    {
        text = format!("{text} {why}");
    }
    one_line(text)
}

/// One line that is no record of a log: nothing is left to choose. Also of a killed process, since whoever chose it knew that.
fn chosen_before(log: &str) -> bool {
    let log = log.trim();
    one_line(log.to_owned()) == log && whole(log).is_none()
}

/// Without the line breaks a message may hold, the records in its words, and what is too long to be read at a glance.
fn one_line(text: String) -> String {
    let mut text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    loop {
        let words = words_of(&text);
        if words == text {
            break;
        }
        text = words.split_whitespace().collect::<Vec<_>>().join(" ");
    }
    match text.char_indices().nth(LONGEST) {
        // What was cut before ends so, and is not cut again.
        Some((end, _)) if text.get(end..) != Some("…") => {
            format!("{}…", text.get(..end).unwrap_or_default().trim_end())
        }
        _ => text,
    }
}

/// A JSON record whose beginning was cut off, since only so many bytes of a log are handed over: from its next field on.
fn whole(line: &str) -> Option<String> {
    let cut = !line.starts_with('{') && line.ends_with('}');
    let (_, rest) = line.split_once(",\"").filter(|_| cut)?;
    let line = format!("{{\"{rest}");
    serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(&line).is_ok().then_some(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(lines: &[&str]) -> String {
        last_words(&lines.join("\n"), false)
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
        let step = "2026-11-29T17:50:48Z  INFO step 3";
        assert_eq!(last_words(step, true), "");
        assert_eq!(last_words(&format!("loading\n{step}"), true), "");
        assert_eq!(last_words(&format!("ERROR rank 1 failed first\n{step}"), true), "ERROR rank 1 failed first");
    }

    #[test]
    fn long_lines_are_cut_between_characters() {
        assert_eq!(words(&["é".repeat(400).as_str()]).chars().count(), LONGEST + 1);
    }

    #[test]
    fn what_was_chosen_before_comes_out_as_it_is() {
        let logs = [
            "2026-11-29T17:50:48Z ERROR rank 1 failed first: out of memory on cuda:0\n2026-11-29T17:50:48Z  INFO bye",
            r#"{"timestamp":"x","level":"ERROR","message":"two\nlines","code":1}"#,
            "2026-11-29T17:50:48Z ERROR 2026-11-29T17:50:48Z  WARN a record in a record",
            r#"{"level":"ERROR","message":"{\"message\":\"a record in a record\"}"}"#,
            "thread 'main' panicked at src/x.rs:1:2:\nindex out of bounds\nnote: run with",
            "boom",
            "",
            &"é ".repeat(400),
            &format!("{} and more", "x".repeat(299)),
            &format!("ERROR {}\nrest", "long ".repeat(99)),
        ];
        for log in logs {
            for killed in [false, true] {
                let once = last_words(log, killed);
                assert_eq!(last_words(&once, false), once);
                assert_eq!(last_words(&once, true), once, "what is known of the end does not take the words away");
                assert!(!once.contains('\n'));
            }
        }
    }

    #[test]
    fn a_record_whose_beginning_was_cut_off_still_says_why() {
        let lone = r#"Z","level":"ERROR","message":"boom"}"#;
        assert_eq!(words(&[lone]), "boom");
        let tail = [
            r#"9T17:50:48Z","level":"ERROR","message":"rank 0 failed first: out of memory on cuda:0","code":1}"#,
            r#"{"timestamp":"2026-11-29T17:50:49Z","level":"INFO","message":"bye"}"#,
        ];
        assert_eq!(words(&tail), "rank 0 failed first: out of memory on cuda:0");
    }
}
