//! What can end an engine, or keep it from starting.

use std::path::PathBuf;

/// An engine that cannot start or cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model folder lacks something without which nothing can be served.
    #[error("model folder {}: {reason}. It must hold config.json (and tokenizer.json for text)", folder.display())]
    Model {
        /// The folder given by `--model-path`.
        folder: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The address is taken, or not ours.
    #[error("cannot listen on {address}: {source}. Choose another address with --listen")]
    Listen {
        /// The address given by `--listen`.
        address: std::net::SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// An option contradicts the model or another option.
    #[error("{option}: {reason}")]
    Option {
        /// The flag.
        option: &'static str,
        /// The rule it breaks, with the fix.
        reason: String,
    },
    /// The scheduler ended by itself; requests in flight are lost, so the process must end and be started again.
    #[error("the scheduler stopped: {0}. The engine ends; its supervisor starts it again")]
    Scheduler(String),
    /// The HTTP server ended by itself.
    #[error("the HTTP server stopped: {0}")]
    Server(#[from] std::io::Error),
}
