//! For whom a command writes.

use clap::ValueEnum;

/// For people or for machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    Human,
    /// One JSON object a line.
    Json,
}
