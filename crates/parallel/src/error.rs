//! What can be wrong with a layout, and what can fail in a sharded optimizer step.

/// An impossible layout, or a failed optimizer step.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The layout's sizes do not form a grid.
    #[error("parallelism {layout}: {what}")]
    Layout {
        /// The layout as text, e.g. "tp2 cp1 ep1 dp4 pp1".
        layout: String,
        /// What does not fit, and what would.
        what: String,
    },
    /// The layout is a grid, but this build cannot run it.
    #[error("parallelism {layout}: {axis} must be 1, since {axis} > 1 is not implemented yet; use tp and dp")]
    Unsupported {
        /// The layout as text.
        layout: String,
        /// The axis in question.
        axis: &'static str,
    },
    /// The optimizer was given something that does not fit the parameters.
    #[error("optimizer: {0}")]
    Optimizer(String),
    /// Below: memory, the device, or another rank.
    #[error(transparent)]
    Tensor(#[from] tensor::Error),
    /// Groups could not be made.
    #[error(transparent)]
    Comm(#[from] comm::Error),
}

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
