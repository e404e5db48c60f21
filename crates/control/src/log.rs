//! Logs, set up the same way in every binary: to standard error, for people or as JSON (`THRESH_LOG=human|json`), filtered by
//! `RUST_LOG` (default `info`).

use tracing_subscriber::{EnvFilter, fmt, prelude::*};

/// Starts logging. A second call changes nothing.
pub fn init() {
    init_but(None);
}

/// The same without what a talkative library says below warnings, unless `RUST_LOG` speaks of it.
pub fn init_but(library: Option<&str>) {
    let mut wanted =
        std::env::var(EnvFilter::DEFAULT_ENV).ok().filter(|text| !text.is_empty()).unwrap_or_else(|| "info".into());
    if let Some(library) = library.filter(|library| !wanted.contains(library)) {
        wanted = format!("{wanted},{library}=warn");
    }
    let filter = EnvFilter::try_new(wanted).unwrap_or_else(|_| EnvFilter::new("info"));
    let registry = tracing_subscriber::registry().with(filter);
    let json = std::env::var("THRESH_LOG").is_ok_and(|value| value == "json");
    // Failing means that a subscriber is set already, which is what was asked for.
    let _ = if json {
        registry.with(fmt::layer().json().flatten_event(true).with_writer(std::io::stderr)).try_init()
    } else {
        registry.with(fmt::layer().with_ansi(false).with_target(false).with_writer(std::io::stderr)).try_init()
    };
}

/// What a line of such a log says, without time and level, in either form.
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
