//! The whole loop on this machine, with all its real processes: it reaches its reward, and it outlives everything that dies.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod chaos;
mod deaths;
mod docs;
mod driven_run;
mod edits;
mod export;
mod give_back;
mod local_run;
mod resume_from;
mod reward;
mod soundness;
mod storage;
mod zombies;
