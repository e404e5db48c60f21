//! One file a command. Each returns the exit code, or an error that ends with code 1.

pub mod chaos;
pub mod crds;
pub mod events;
pub mod hf;
pub mod logs;
pub mod report;
pub mod run;
pub mod status;
pub mod straw;
pub mod why;
