//! What one line of a log says.

/// What a line of one of our logs says, without time and level, in either form.
#[must_use]
pub fn words_of(line: &str) -> String {
    let line = line.trim();
    if let Ok(serde_json::Value::Object(fields)) = serde_json::from_str(line) {
        return fields.get("message").and_then(serde_json::Value::as_str).unwrap_or_default().to_owned();
    }
    let is_time =
        |word: &str| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('T') && word.ends_with('Z');
    let Some((_, rest)) = line.split_once(' ').filter(|(time, _)| is_time(time)) else { return line.to_owned() };
    let rest = rest.trim_start();
    let level = rest.split_once(' ').filter(|(word, _)| matches!(*word, "ERROR" | "WARN" | "INFO" | "DEBUG" | "TRACE"));
    level.map_or(rest, |(_, rest)| rest).trim_start().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_quoted_without_its_time_and_level() {
        assert_eq!(words_of("2026-11-29T17:50:48.868559Z ERROR rank 1: no space"), "rank 1: no space");
        assert_eq!(words_of("2026-11-29T17:50:48Z  WARN slow"), "slow");
        assert_eq!(
            words_of(r#"{"timestamp":"2026-11-29T17:50:48Z","level":"ERROR","message":"no space","code":1}"#),
            "no space"
        );
        for line in ["boom", "2 of 3 failed", "thread 'main' panicked at src/x.rs:1:2:"] {
            assert_eq!(words_of(line), line, "a line of another program");
        }
    }
}
