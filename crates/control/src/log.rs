//! Logs, set up the same way in every binary: to standard error, for people or as JSON (`THRESH_LOG=human|json`), filtered by
//! `RUST_LOG` (default `info`).

pub use last_words::words_of;
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
