//! Logs, set up the same way in every binary: to standard error, for people or as JSON (`THRESH_LOG=human|json`), filtered by
//! `RUST_LOG` (default `info`).

use tracing_subscriber::{EnvFilter, fmt, prelude::*};

/// Starts logging. A second call changes nothing.
pub fn init() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let registry = tracing_subscriber::registry().with(filter);
    let json = std::env::var("THRESH_LOG").is_ok_and(|value| value == "json");
    // Failing means that a subscriber is set already, which is what was asked for.
    let _ = if json {
        registry.with(fmt::layer().json().flatten_event(true).with_writer(std::io::stderr)).try_init()
    } else {
        registry.with(fmt::layer().with_ansi(false).with_target(false).with_writer(std::io::stderr)).try_init()
    };
}
