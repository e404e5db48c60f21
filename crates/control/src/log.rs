//! Logs, set up the same way in every binary: to standard error, for people or as JSON (`THRESH_LOG=human|json`), filtered by
//! `RUST_LOG` (default `info`).

pub use last_words::{said_once, words_of};
use tracing_subscriber::{EnvFilter, fmt, prelude::*};

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// Starts logging. A second call changes nothing.
pub fn init() {
    init_but(None);
}

/// The same without what a talkative library says below warnings, unless `RUST_LOG` speaks of it.
pub fn init_but(library: Option<&str>) {
    let asked = std::env::var(EnvFilter::DEFAULT_ENV).unwrap_or_default();
    let (filter, trouble) = filter(&asked, library);
    let registry = tracing_subscriber::registry().with(filter);
    let json = std::env::var("THRESH_LOG").is_ok_and(|value| value == "json");
    // Failing means that a subscriber is set already, which is what was asked for.
    let _ = if json {
        registry.with(fmt::layer().json().flatten_event(true).with_writer(std::io::stderr)).try_init()
    } else {
        registry.with(fmt::layer().with_ansi(false).with_target(false).with_writer(std::io::stderr)).try_init()
    };
    if let Some(trouble) = trouble {
        tracing::warn!("RUST_LOG={asked}: {trouble}");
    }
}

/// What is logged, and what is wrong with what was asked for: a process must never be silent for a slip of the pen.
fn filter(asked: &str, library: Option<&str>) -> (EnvFilter, Option<String>) {
    let quiet = library.filter(|library| !asked.contains(library)).map(|library| format!(",{library}=warn"));
    let with = |levels: &str| EnvFilter::try_new(format!("{levels}{}", quiet.as_deref().unwrap_or_default()));
    let info = || with("info").unwrap_or_else(|_| EnvFilter::new("info"));
    if asked.is_empty() {
        return (info(), None);
    }
    // A lone word is the name of a module to the filter, which then hides all others.
    let word = asked.split(',').map(str::trim).find(|one| {
        !one.contains(['=', '['])
            && !LEVELS.iter().any(|level| level.eq_ignore_ascii_case(one))
            && one.parse::<u8>().is_err()
    });
    if let Some(word) = word {
        return (info(), Some(format!("{word:?} is no level ({}), so `info` is used", LEVELS.join(", "))));
    }
    match with(asked) {
        Ok(filter) => (filter, None),
        Err(error) => (info(), Some(format!("{error}; so `info` is used"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_level_is_told_and_silences_nobody() {
        for (asked, trouble) in [
            ("loud", "\"loud\" is no level"),
            ("info,x", "\"x\" is no level"),
            ("a=loud", "error parsing level filter"),
        ] {
            let (filter, said) = filter(asked, Some("noisy"));
            assert!(said.as_deref().is_some_and(|said| said.contains(trouble)), "{asked}: {said:?}");
            assert_eq!(filter.to_string(), "noisy=warn,info", "{asked}");
        }
        for (asked, used) in [
            ("", "noisy=warn,info"),
            ("debug", "noisy=warn,debug"),
            ("WARN", "noisy=warn,warn"),
            ("warn,operator=debug", "noisy=warn,operator=debug,warn"),
            ("noisy=trace", "noisy=trace"),
        ] {
            let (filter, said) = filter(asked, Some("noisy"));
            let sorted = |text: &str| text.split(',').map(str::to_owned).collect::<std::collections::BTreeSet<_>>();
            assert_eq!((sorted(&filter.to_string()), said), (sorted(used), None), "{asked}");
        }
    }
}
